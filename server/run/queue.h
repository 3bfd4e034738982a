/* queue.h - which of the waiting jobs may start now. A pure rule over claims, so that every case
 * can be tested.
 *
 * A job claims memory on each device that it uses: its cap, or the whole device when it has none.
 * It may start when its claims fit beside those of the jobs that run, and when no earlier job waits
 * for one of its devices: so nobody is overtaken on a device that he waits for. */
#ifndef PLIMSOLL_SERVER_RUN_QUEUE_H
#define PLIMSOLL_SERVER_RUN_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/spec.h"

/* The whole device: fits beside nothing. */
#define CLAIM_WHOLE INT64_MAX

struct claim_part {
    char device[SPEC_DEVICE_MAX]; /* cpu | cuda:N; no device twice */
    int64_t bytes;                /* or CLAIM_WHOLE */
};
struct claim {
    struct claim_part *parts;
    int64_t count;
};
void claim_release(struct claim *claim);
/* What it claims on a device; 0 when it does not use it. */
int64_t claim_on(const struct claim *claim, const char *device);

/* What all claims on a device may add up to. */
struct queue_room {
    char device[SPEC_DEVICE_MAX];
    int64_t bytes;
};
/* The jobs that run. A device without a room is one of which nothing is known: it is not shared. */
struct queue_view {
    const struct claim *running;
    int64_t running_count;
    const struct queue_room *rooms;
    int64_t room_count;
};
/* Why a claim does not fit. */
struct queue_lack {
    char device[SPEC_DEVICE_MAX];
    int64_t claimed; /* by those that run; or CLAIM_WHOLE */
    int64_t room;    /* -1: unknown */
};
/* True when the claim fits on every device beside those that run; a device that nobody uses always
 * fits, since the plan is the judge there. Else *lack (may be NULL) tells the first device. */
bool queue_fits(const struct queue_view *view, const struct claim *wanted, struct queue_lack *lack);

/* The first of the waiting jobs, which stand in the order of their submission, that may start; -1
 * when none may. `jobs_max`: how many may run in all. */
int64_t queue_next(const struct queue_view *view, int64_t jobs_max, const struct claim *waiting,
                   int64_t waiting_count);

#endif
