/* optimizer.h - AdamW over the model's flat buffers, with clipping by global norm, and the numbers
 * of a step.
 *
 * It does not know layers: names and shapes end where the flat buffers begin. What a step tells the
 * host (loss, correct, norm) is gathered in a few words of device memory and comes back in one
 * transfer, the only one that waits for the device. */
#ifndef PLIMSOLL_ENGINE_TRAIN_OPTIMIZER_H
#define PLIMSOLL_ENGINE_TRAIN_OPTIMIZER_H

#include "engine/dist/comm.h"
#include "engine/model/model.h"
#include "engine/train/optimizer_away.h"

struct optimizer_options {
    double beta1, beta2, eps, weight_decay, max_grad_norm; /* max_grad_norm 0: no clipping */
    uint64_t seed;                                         /* of stochastic rounding */
    bool scales_loss;   /* f16: gradients are multiplied so that they do not vanish */
    bool offloading;    /* the states wait in host memory; beside weights that do, always */
    int64_t zero_stage; /* from 1 on each rank holds the states of its own pieces (pieces.h) */
};

/* Dynamic loss scaling as torch.amp.GradScaler: doubled after 2000 updates without an overflow;
 * halved, and the update skipped, after one. */
struct loss_scaling {
    double scale; /* 1 where the loss is not scaled */
    int64_t good; /* updates since the last change */
    int64_t skipped;
};

struct optimizer {
    struct optimizer_options options;
    struct model *model;                 /* borrowed */
    struct tensor *exp_avg, *exp_avg_sq; /* [1, own_count of the model] f32; NULL while away */
    struct states_away away;
    struct tensor *numbers; /* [1, NUMBER_COUNT] i64: words of device memory */
    struct tensor *scratch; /* of tied embeddings at the ends of a pipeline, or NULL */
    struct loss_scaling scaling;
    int64_t updates; /* done so far */
};

/* Allocates the states and zeroes them. Release with optimizer_release, also after an error. */
enum status optimizer_init(struct optimizer *o, struct model *m,
                           const struct optimizer_options *options, struct err *e);
void optimizer_release(struct optimizer *o);
/* Takes up the state of a checkpoint. */
enum status optimizer_resume(struct optimizer *o, const struct loss_scaling *scaling,
                             int64_t updates, struct err *e);

/* Before the first micro-batch of a step: zeroes the totals, and that micro-batch will begin the
 * gradients anew (model.h). */
enum status optimizer_zero_grad(struct optimizer *o, struct err *e);
/* Only the totals: before an evaluation. */
enum status optimizer_zero_totals(struct optimizer *o, struct err *e);
/* What was added to them; waits for the device. */
enum status optimizer_read_totals(const struct optimizer *o, double *loss, int64_t *correct,
                                  struct err *e);
/* Where micro-batches add loss and correct: device memory [2]. */
double *optimizer_totals(const struct optimizer *o);
/* What losses are multiplied by before backward: a device value, or NULL. */
const float *optimizer_loss_scale(const struct optimizer *o);

/* What the device said, all zero on a null device. */
struct optimizer_report {
    double loss, grad_norm; /* sums of what went into the totals of this rank; norm of all ranks'
                               gradient before clipping */
    int64_t correct;
    bool skipped; /* f16: the gradient overflowed, nothing was changed, the loss scale is halved */
};
/* After the last micro-batch of a step: gradients become the sum of all ranks', of the own piece at
 * least. All must come. */
enum status optimizer_sum_gradients(struct optimizer *o, struct err *e);
/* All ranks together: norm, clip, update, and refresh of what forward reads; then waits for the
 * device and reports.
 * STATUS_DEVICE, and nothing changed, if the gradient is not finite (unless it is skipped). */
enum status optimizer_step(struct optimizer *o, double learning_rate, struct optimizer_report *r,
                           struct err *e);

#endif
