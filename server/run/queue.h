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
/* Why a job may not start. */
enum queue_wait {
    QUEUE_STARTS, /* it may */
    QUEUE_PLACES, /* as many run as may */
    QUEUE_BEHIND, /* an earlier one waits for the device */
    QUEUE_MEMORY  /* its claim does not fit beside those that run there */
};
struct queue_lack {
    enum queue_wait wait;
    char device[SPEC_DEVICE_MAX]; /* "" with QUEUE_PLACES */
    int64_t claimed;              /* with QUEUE_MEMORY: by those that run; or CLAIM_WHOLE */
    int64_t room;                 /* with QUEUE_MEMORY; -1: unknown */
};
/* Whether a claim fits on every device beside those that run; a device that nobody uses always
 * fits, since the plan is the judge there. The first device that is short is told. */
struct queue_lack queue_lack_of(const struct queue_view *view, const struct claim *wanted);

/* The jobs that wait, in the order of their submission. */
struct queue_line {
    const struct claim *claims;
    int64_t count;
    int64_t jobs_max; /* so many may run in all */
};
/* What holds the job at this place of the line back. */
struct queue_lack queue_why(const struct queue_view *view, const struct queue_line *line,
                            int64_t place);
/* The first of the line that may start; -1 when none may. */
int64_t queue_next(const struct queue_view *view, const struct queue_line *line);

#endif
