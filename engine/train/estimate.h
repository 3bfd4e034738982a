/* estimate.h - what a plan means on a certain device: does it fit, how long does a step take, and
 * what lies beside the arena.
 *
 * Three kinds of numbers, never mixed: the arena's bytes are exact; the bytes of context and
 * libraries are measured or said to be assumed; seconds are estimates, from measured or published
 * rates, and say which. */
#ifndef PLIMSOLL_ENGINE_TRAIN_ESTIMATE_H
#define PLIMSOLL_ENGINE_TRAIN_ESTIMATE_H

#include "engine/train/cost.h"
#include "engine/train/plan.h"

/* Where a plan would run. */
struct estimate_place {
    int64_t capacity; /* of the arena; 0: unknown */
    const char *from; /* "memory.cap", "device", "card" or NULL; static */
    char name[RATES_NAME_MAX];
    char missing[256];  /* why the capacity is unknown, for the user */
    struct rates rates; /* zeroed: unknown */
    struct links links;
    int64_t overhead; /* context and libraries, beside the arena; -1: unknown */
    bool overhead_measured;
};

/* Looks at the device, or at the card of this name (see cost.h; NULL: none), which need not be
 * here. A device that is not there and has no cap leaves capacity 0. STATUS_NOT_FOUND for a card
 * that is not in the table. */
enum status estimate_place_find(struct estimate_place *place, const struct spec *spec,
                                const struct device_options *options, const char *card,
                                struct err *e);

/* Seconds of a step of all ranks together. */
struct step_time {
    double seconds;   /* all of it; 0: rates are unknown */
    double computing; /* of the slowest rank */
    double exchange;  /* that nothing hides */
    double hidden;    /* exchange beside computing */
    double waiting;   /* of a pipeline that fills and empties */
    double bus;       /* waiting for what comes from host memory */
    double bytes;     /* that one rank sends */
    double across;    /* of all exchange: between machines */
    double tokens;    /* of all ranks that train different rows */
};
/* By the plan of the slowest rank of a world of this shape. */
struct step_time estimate_step(const struct plan *plan, const struct rates *rates,
                               const struct links *links, const struct mesh_shape *shape);

/* What time a plan's JSON tells. */
struct estimate_subject {
    const struct plan *plan;    /* of the rank that needs most memory */
    const struct plan *slowest; /* of the one that takes longest */
    struct mesh_shape shape;
    int64_t total_steps; /* 0: unknown */
};
/* Adds "verdict", "phase_table", "when", "overhead", "host" and "time" to a plan's JSON. */
void estimate_add(cJSON *json, const struct estimate_subject *subject,
                  const struct estimate_place *place);

#endif
