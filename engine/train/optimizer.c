/* optimizer.c - one norm, one clip, two AdamW calls: the decayed part of the flat buffer and the
 * rest.
 *
 * The only value that comes back to the host is the norm: for the report, and to stop at NaN. */
#include "engine/train/optimizer.h"

#include <math.h>

enum status optimizer_init(struct optimizer *o, struct model *m,
                           const struct optimizer_options *options, struct err *e) {
    *o = (struct optimizer){.options = *options, .model = m};
    struct tensor_space *const space = m->space;
    FAIL_IF(m->trainable_count == 0, STATUS_INVALID,
            "there is nothing to train: the model has no trainable parameter");
    TRY(tensor_new(space, DTYPE_F32, 1, m->trainable_count, CATEGORY_OPTIMIZER, &o->exp_avg, e));
    TRY(tensor_new(space, DTYPE_F32, 1, m->trainable_count, CATEGORY_OPTIMIZER, &o->exp_avg_sq, e));
    TRY(tensor_new(space, DTYPE_I64, 1, 1, CATEGORY_OPTIMIZER, &o->sum_squares, e));
    TRY(tensor_new(space, DTYPE_F32, 1, 1, CATEGORY_OPTIMIZER, &o->norm, e));
    TRY(tensor_new(space, DTYPE_F32, 1, 1, CATEGORY_OPTIMIZER, &o->coefficient, e));
    TRY(tensor_fill_zero(o->exp_avg, e));
    return tensor_fill_zero(o->exp_avg_sq, e);
}

void optimizer_release(struct optimizer *o) {
    if (!o) return;
    tensor_drop(&o->exp_avg);
    tensor_drop(&o->exp_avg_sq);
    tensor_drop(&o->sum_squares);
    tensor_drop(&o->norm);
    tensor_drop(&o->coefficient);
}

enum status optimizer_zero_grad(struct optimizer *o, struct err *e) {
    return tensor_fill_zero(o->model->gradients, e);
}

static enum status update(struct optimizer *o, int64_t first, int64_t count, double lr,
                          double decay, struct err *e) {
    if (count == 0) return STATUS_OK;
    const struct model *const m = o->model;
    const struct adamw_args args = {.count = count,
                                    .param = tensor_f32(m->flat) + first,
                                    .grad = tensor_f32(m->gradients) + first,
                                    .m = tensor_f32(o->exp_avg) + first,
                                    .v = tensor_f32(o->exp_avg_sq) + first,
                                    .grad_scale = tensor_f32(o->coefficient),
                                    .lr = lr,
                                    .beta1 = o->options.beta1,
                                    .beta2 = o->options.beta2,
                                    .eps = o->options.eps,
                                    .weight_decay = decay,
                                    .step = o->updates};
    return device_adamw(m->space->device, &args, e);
}

enum status optimizer_step(struct optimizer *o, double learning_rate, double *grad_norm,
                           struct err *e) {
    struct model *const m = o->model;
    struct device *const device = m->space->device;
    const struct sum_squares_args squares = {
        .count = m->trainable_count, .x = tensor_f32(m->gradients), .out = o->sum_squares->data};
    const struct clip_args clip = {.sum_squares = o->sum_squares->data,
                                   .max_norm = (float)o->options.max_grad_norm,
                                   .norm = tensor_f32(o->norm),
                                   .coefficient = tensor_f32(o->coefficient)};
    TRY(tensor_fill_zero(o->sum_squares, e));
    TRY(device_sum_squares(device, &squares, e));
    TRY(device_clip(device, &clip, e));
    float norm = 0;
    TRY(tensor_download(o->norm, &norm, e));
    *grad_norm = norm;
    FAIL_IF(!isfinite(norm), STATUS_DEVICE,
            "the gradient is not finite (norm %f) at update %lld: nothing was changed by it; a "
            "lower learning_rate, or "
            "max_grad_norm, is the usual cure",
            (double)norm, (long long)o->updates + 1);
    o->updates++;
    TRY(update(o, 0, m->decayed_count, learning_rate, o->options.weight_decay, e));
    TRY(update(o, m->decayed_count, m->trainable_count - m->decayed_count, learning_rate, 0, e));
    return model_refresh(m, e);
}
