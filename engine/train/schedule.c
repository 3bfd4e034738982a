/* schedule.c - linear, cosine and constant with warm-up (transformers.optimization:
 * get_linear_schedule_with_warmup, get_cosine_schedule_with_warmup,
 * get_constant_schedule_with_warmup). Pure arithmetic; a function of the step alone, so a resumed
 * run needs no state for it. */
#include "engine/train/schedule.h"

#include <math.h>

#include "base/str.h"

enum schedule_type schedule_parse(const char *name) {
    static const char *const NAMES[SCHEDULE_COUNT] = {"linear", "cosine", "constant"};
    int type = 0;
    while (type < SCHEDULE_COUNT && !str_equal(NAMES[type], name)) {
        type++;
    }
    return (enum schedule_type)type;
}

double schedule_rate(const struct schedule *s, int64_t step) {
    if (step < s->warmup_steps) return s->peak * (double)step / (double)s->warmup_steps;
    if (s->type == SCHEDULE_CONSTANT) return s->peak;
    const double left = (double)(s->total_steps - s->warmup_steps);
    const double progress = left > 0 ? (double)(step - s->warmup_steps) / left : 1;
    if (progress >= 1) return 0;
    if (s->type == SCHEDULE_LINEAR) return s->peak * (1 - progress);
    return s->peak * 0.5 * (1 + cos(3.14159265358979323846 * progress));
}
