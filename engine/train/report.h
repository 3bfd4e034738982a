/* report.h - what a rank tells the world: the trainer's numbers as events.
 *
 * The fields are listed in engine/events.h, which the server reads them by. */
#ifndef PLIMSOLL_ENGINE_TRAIN_REPORT_H
#define PLIMSOLL_ENGINE_TRAIN_REPORT_H

#include "engine/events.h"
#include "engine/train/corpus.h"
#include "engine/train/plan.h"

enum status report_phase(struct event_log *log, const char *phase, struct err *e);
enum status report_log(struct event_log *log, const char *level, const char *message,
                       struct err *e);

struct start_report {
    const struct corpus *corpus;
    const struct plan *plan;
    const struct device *device;
    const struct spec *spec;
    int64_t capacity, resumed_from_step;
};
enum status report_start(struct event_log *log, const struct start_report *r, struct err *e);

/* What was taken over from PyTorch's variables, if they are set. */
enum status report_alloc_conf(struct event_log *log, const struct alloc_conf *conf, struct err *e);

struct step_report {
    int64_t step, total_steps, trained_tokens, tokens, correct;
    double epoch, loss, grad_norm, learning_rate, seconds;
};
enum status report_step(struct event_log *log, const struct step_report *r, struct err *e);
/* f16: an update was left out because the gradient overflowed. */
enum status report_skipped(struct event_log *log, const struct loss_scaling *scaling, int64_t step,
                           struct err *e);
enum status report_memory(struct event_log *log, const struct session *s, int64_t step,
                          const char *phase, struct err *e);
enum status report_eval(struct event_log *log, int64_t step, const struct step_sums *sums,
                        double seconds, struct err *e);
enum status report_shortage(struct event_log *log, const struct arena_shortage *shortage,
                            struct err *e);
/* The last event of a failed run, from the error itself. */
void report_error(struct event_log *log, const struct err *failure);

#endif
