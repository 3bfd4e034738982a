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
    int64_t overhead;   /* context and libraries, beside the arena; -1: unknown */
    bool overhead_measured;
};

/* Looks at the device, or at the card of this name (see cost.h; NULL: none), which need not be
 * here. A device that is not there and has no cap leaves capacity 0. STATUS_NOT_FOUND for a card
 * that is not in the table. */
enum status estimate_place_find(struct estimate_place *place, const struct spec *spec,
                                const struct device_options *options, const char *card,
                                struct err *e);

/* Adds "verdict", "phase_table", "when", "overhead", "host" and "time" to a plan's JSON. */
void estimate_add(cJSON *json, const struct plan *plan, const struct estimate_place *place,
                  int64_t total_steps);

/* Seconds of a step of this plan, 0 where rates are unknown. */
double estimate_step_seconds(const struct plan *plan, const struct rates *rates);

#endif
