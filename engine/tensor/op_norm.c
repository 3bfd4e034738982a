/* op_norm.c - root-mean-square norms, alone and fused with the sum before them.
 *
 * A norm's result is not kept for backward: its recipe makes it again from what was normalised,
 * which the norm's own backward needs anyway. The fused form is two nodes, so that backward is that
 * of a sum and of a norm; the norm's backward adds straight into the gradient of the sum. */
#include "engine/tensor/ops.h"

#include <string.h>

#include "engine/tensor/internal.h"

enum { SAVED_X, SAVED_WEIGHT, SAVED_RSTD };
enum { INPUT_X, INPUT_WEIGHT };

struct norm_extra {
    float eps, offset;
};
_Static_assert(sizeof(struct norm_extra) <= RECIPE_EXTRA_MAX, "the numbers fit a recipe");

/* One call of the device: x is normalised, or the sum of x and residual. */
struct norm_call {
    const struct tensor *x, *residual, *sum; /* residual and sum may be NULL */
    const struct tensor *weight, *y, *rstd;
    struct norm_extra numbers;
};

static enum status run_norm(const struct norm_call *c, struct err *e) {
    const struct rmsnorm_args args = {.tokens = c->x->rows,
                                      .groups = 1,
                                      .width = c->x->cols,
                                      .dtype = c->x->dtype,
                                      .x = c->x->data,
                                      .ld_x = c->x->ld,
                                      .residual = c->residual ? c->residual->data : NULL,
                                      .ld_residual = c->residual ? c->residual->ld : 0,
                                      .sum = c->sum ? c->sum->data : NULL,
                                      .ld_sum = c->sum ? c->sum->ld : 0,
                                      .weight = tensor_f32(c->weight),
                                      .weight_offset = c->numbers.offset,
                                      .eps = c->numbers.eps,
                                      .y = c->y->data,
                                      .ld_y = c->y->ld,
                                      .rstd = tensor_f32(c->rstd)};
    return device_rmsnorm(c->x->space->device, &args, e);
}

/* rstd is written again, with what it already holds. */
static enum status make_again(const struct recipe *recipe, struct tensor *into, struct err *e) {
    struct norm_call call = {.x = recipe->from[SAVED_X],
                             .weight = recipe->from[SAVED_WEIGHT],
                             .rstd = recipe->from[SAVED_RSTD],
                             .y = into};
    memcpy(&call.numbers, recipe->extra, sizeof call.numbers);
    return run_norm(&call, e);
}

static enum status rmsnorm_backward(struct tape *tape, struct node *node, struct err *e) {
    struct norm_extra numbers;
    memcpy(&numbers, node->extra, sizeof numbers);
    const struct tensor *const weight = node->saved[SAVED_WEIGHT], *const dy = node->gradient;
    struct tensor *x = NULL, *dx = NULL, *dweight = NULL, *scratch = NULL;
    bool accumulate = false, accumulate_weight = false;
    TRY(node_saved(node, SAVED_X, &x, e));
    if (node->inputs[INPUT_WEIGHT]) {
        TRY(gradient_target(node->inputs[INPUT_WEIGHT], &dweight, &accumulate_weight, e));
        if (!accumulate_weight) TRY(tensor_fill_zero(dweight, e));
    }
    if (node->inputs[INPUT_X]) {
        TRY(gradient_target(node->inputs[INPUT_X], &dx, &accumulate, e));
    } else {
        /* Only the weight is trained (the first layer under a frozen embedding): dx has to go
         * somewhere. */
        TRY(tensor_activation(tape->space, x->rows, x->cols, 0, &scratch, e));
        dx = scratch;
    }
    const struct rmsnorm_backward_args args = {.tokens = x->rows,
                                               .groups = 1,
                                               .width = x->cols,
                                               .dtype = x->dtype,
                                               .x = x->data,
                                               .ld_x = x->ld,
                                               .weight = tensor_f32(weight),
                                               .weight_offset = numbers.offset,
                                               .rstd = tensor_f32(node->saved[SAVED_RSTD]),
                                               .dy = dy->data,
                                               .ld_dy = dy->ld,
                                               .dx = dx->data,
                                               .ld_dx = dx->ld,
                                               .accumulate = accumulate,
                                               .dweight = dweight ? tensor_f32(dweight) : NULL};
    const enum status status = device_rmsnorm_backward(tape->space->device, &args, e);
    tensor_release(scratch);
    return status;
}

/* y is the norm of x: leaves its recipe and, where something below is trained, its node. */
static void record_norm(struct tape *tape, struct tensor *x, const struct norm_call *call,
                        struct tensor *weight, struct tensor *y, struct tensor *rstd) {
    if (!tape->recording) return;
    struct tensor *const from[] = {[SAVED_X] = x, [SAVED_WEIGHT] = weight, [SAVED_RSTD] = rstd};
    struct recipe *const recipe = recipe_attach(y, from, 3);
    recipe->make = make_again;
    memcpy(recipe->extra, &call->numbers, sizeof call->numbers);
    struct tensor *const inputs[] = {x, weight};
    if (!tape_records(tape, inputs, 2)) return;
    struct node *const node = tape_push(tape, rmsnorm_backward, y);
    node_input(node, INPUT_X, x);
    node_input(node, INPUT_WEIGHT, weight);
    node_save(node, SAVED_X, x);
    node_save(node, SAVED_WEIGHT, weight);
    node_save(node, SAVED_RSTD, rstd);
    memcpy(node->extra, &call->numbers, sizeof call->numbers);
}

enum status op_rmsnorm(struct tape *tape, struct tensor *x, const struct norm *norm,
                       struct tensor **out, struct err *e) {
    struct tensor *rstd = NULL;
    TRY(tensor_activation(tape->space, x->rows, x->cols, norm->tail, out, e));
    TRY(tensor_new(tape->space, DTYPE_F32, 1, x->rows, CATEGORY_ACTIVATIONS, &rstd, e));
    const struct norm_call call = {.x = x,
                                   .weight = norm->weight,
                                   .y = *out,
                                   .rstd = rstd,
                                   .numbers = {.eps = norm->eps, .offset = norm->offset}};
    const enum status status = run_norm(&call, e);
    if (status == STATUS_OK) record_norm(tape, x, &call, norm->weight, *out, rstd);
    tensor_release(rstd);
    return status;
}

enum status op_add_rmsnorm(struct tape *tape, struct addends addends, const struct norm *norm,
                           struct tensor **sum, struct tensor **out, struct err *e) {
    struct tensor *const a = addends.a, *const b = addends.b;
    struct tensor *rstd = NULL;
    ASSERT(a->rows == b->rows && a->cols == b->cols);
    TRY(tensor_activation(tape->space, a->rows, a->cols, 0, sum, e));
    TRY(tensor_activation(tape->space, a->rows, a->cols, norm->tail, out, e));
    TRY(tensor_new(tape->space, DTYPE_F32, 1, a->rows, CATEGORY_ACTIVATIONS, &rstd, e));
    const struct norm_call call = {.x = b,
                                   .residual = a,
                                   .sum = *sum,
                                   .weight = norm->weight,
                                   .y = *out,
                                   .rstd = rstd,
                                   .numbers = {.eps = norm->eps, .offset = norm->offset}};
    const enum status status = run_norm(&call, e);
    if (status == STATUS_OK) {
        record_sum(tape, a, b, *sum);
        record_norm(tape, *sum, &call, norm->weight, *out, rstd);
    }
    tensor_release(rstd);
    return status;
}
