/* report.h - what a rank tells the world: the trainer's numbers as events.
 *
 * The fields are listed in engine/events.h, which the server reads them by. */
#ifndef PLIMSOLL_ENGINE_TRAIN_REPORT_H
#define PLIMSOLL_ENGINE_TRAIN_REPORT_H

#include "engine/events.h"
#include "engine/memory/diagnosis.h"
#include "engine/train/corpus.h"
#include "engine/train/gang.h"
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
    const struct gang_part *parts; /* [ranks] what each did of it */
    int64_t ranks;
};
enum status report_step(struct event_log *log, const struct step_report *r, struct err *e);
/* f16: an update was left out because the gradient overflowed. */
enum status report_skipped(struct event_log *log, const struct loss_scaling *scaling, int64_t step,
                           struct err *e);
/* What a run holds now, and held when it was fullest. Then the window of the next step begins. */
struct memory_report {
    int64_t step;
    const char *phase;
    int64_t cap; /* what memory.cap allows in bytes; 0: it is not set */
};
enum status report_memory(struct event_log *log, struct session *s, const struct memory_report *r,
                          struct err *e);
enum status report_eval(struct event_log *log, int64_t step, const struct step_sums *sums,
                        double seconds, struct err *e);
/* What is in memory, by group of parameters: after loading, and after a remedy. */
enum status report_holdings(struct event_log *log, const struct session *s, int64_t step,
                            struct err *e);

/* What the arena of `s` refused last, why, and who has the memory. *out (may be NULL) gets the
 * diagnosis. */
struct oom_report {
    int64_t step, micro; /* micro -1: outside a micro-batch */
    int64_t cap;         /* as in struct memory_report */
    int64_t world;
    const struct diagnosis_rank *ranks; /* [rank_count], borrowed */
    int64_t rank_count;
    const struct err *failure; /* it was not the arena, but a library or the driver; or NULL */
};
enum status report_oom(struct event_log *log, struct session *s, const struct oom_report *r,
                       struct diagnosis *out, struct err *e);
/* The last event of a failed run, from the error itself. */
void report_error(struct event_log *log, const struct err *failure);

#endif
