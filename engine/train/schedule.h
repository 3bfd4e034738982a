/* schedule.h - the learning rate of each optimizer step, as transformers' get_scheduler computes
 * it.
 *
 * A pure function of the step, so that resuming needs no state. */
#ifndef PLIMSOLL_ENGINE_TRAIN_SCHEDULE_H
#define PLIMSOLL_ENGINE_TRAIN_SCHEDULE_H

#include <stdint.h>

enum schedule_type { SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_CONSTANT, SCHEDULE_COUNT };
/* SCHEDULE_COUNT for an unknown name. */
enum schedule_type schedule_parse(const char *name);

struct schedule {
    enum schedule_type type;
    double peak; /* learning_rate */
    int64_t warmup_steps, total_steps;
};

/* The rate used by step `step` (0-based, counted in optimizer updates). Warm-up rises as step /
 * warmup_steps, so the first update of a warm-up has rate 0, as in transformers; then linear to 0,
 * half a cosine to 0, or constant. */
double schedule_rate(const struct schedule *s, int64_t step);

#endif
