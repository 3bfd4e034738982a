/* optimizer.h - AdamW over the model's flat buffer, with clipping by global norm.
 *
 * It does not know layers: names and shapes end where the flat buffer begins. */
#ifndef PLIMSOLL_ENGINE_TRAIN_OPTIMIZER_H
#define PLIMSOLL_ENGINE_TRAIN_OPTIMIZER_H

#include "engine/model/model.h"

struct optimizer_options {
    double beta1, beta2, eps, weight_decay, max_grad_norm; /* max_grad_norm 0: no clipping */
};

struct optimizer {
    struct optimizer_options options;
    struct model *model;                 /* borrowed */
    struct tensor *exp_avg, *exp_avg_sq; /* [1, trainable_count] f32 */
    struct tensor *sum_squares;          /* [1,1] i64 that holds one double */
    struct tensor *norm, *coefficient;   /* [1,1] f32 */
    int64_t updates;                     /* done so far */
};

/* Allocates the states and zeroes them. Release with optimizer_release, also after an error. */
enum status optimizer_init(struct optimizer *o, struct model *m,
                           const struct optimizer_options *options, struct err *e);
void optimizer_release(struct optimizer *o);

/* Zeroes the gradient buffer: before the first micro-batch of a step. */
enum status optimizer_zero_grad(struct optimizer *o, struct err *e);
/* Norm, clip, update, and refresh of the bf16 copies. *grad_norm is the norm before clipping (0 on
 * a null device). STATUS_DEVICE, and nothing changed, if it is not finite. */
enum status optimizer_step(struct optimizer *o, double learning_rate, double *grad_norm,
                           struct err *e);

#endif
