/* op_basic.c - embedding, norm, sum and gated unit: operations whose backward is one call to the
 * device.
 *
 * They read as a pair each: the backward stands right above its forward. */
#include "engine/tensor/ops.h"

#include <string.h>

struct embedding_extra {
    float scale;
    int64_t vocab;
};

static enum status embedding_backward(struct tape *tape, struct node *node, struct err *e) {
    struct embedding_extra extra;
    memcpy(&extra, node->extra, sizeof extra);
    struct tensor *value = NULL;
    bool accumulate = false;
    TRY(gradient_target(node->inputs[0], &value, &accumulate, e));
    if (!accumulate) TRY(tensor_fill_zero(value, e));
    const struct tensor *const ids = node->saved[0];
    const struct embedding_backward_args args = {.tokens = ids->cols,
                                                 .channels = value->cols,
                                                 .vocab = extra.vocab,
                                                 .ids = tensor_i32(ids),
                                                 .dout = tensor_f32(node->gradient),
                                                 .scale = extra.scale,
                                                 .dtable = tensor_f32(value)};
    return device_embedding_backward(tape->space->device, &args, e);
}

enum status op_embedding(struct tape *tape, struct tensor *ids, struct tensor *table, float scale,
                         struct tensor **out, struct err *e) {
    struct tensor *y = NULL;
    TRY(tensor_new(tape->space, DTYPE_F32, ids->cols, table->cols, CATEGORY_ACTIVATIONS, &y, e));
    const struct embedding_args args = {.tokens = ids->cols,
                                        .channels = table->cols,
                                        .vocab = table->rows,
                                        .ids = tensor_i32(ids),
                                        .table = table->data,
                                        .table_dtype = table->dtype,
                                        .scale = scale,
                                        .out = tensor_f32(y)};
    *out = y;
    TRY(device_embedding(tape->space->device, &args, e));
    if (!tape_records(tape, &table, 1)) return STATUS_OK;
    struct node *const node = tape_push(tape, embedding_backward, y);
    node_input(node, 0, table);
    node_save(node, 0, ids);
    const struct embedding_extra extra = {.scale = scale, .vocab = table->rows};
    memcpy(node->extra, &extra, sizeof extra);
    return STATUS_OK;
}

static enum status rmsnorm_backward(struct tape *tape, struct node *node, struct err *e) {
    struct norm_options options;
    memcpy(&options, node->extra, sizeof options);
    const struct tensor *const x = node->saved[0], *const weight = node->saved[1],
                               *const rstd = node->saved[2];
    struct tensor *dx = NULL, *dweight = NULL, *scratch = NULL;
    bool accumulate = false, accumulate_weight = false;
    if (node->inputs[1]) {
        TRY(gradient_target(node->inputs[1], &dweight, &accumulate_weight, e));
        if (!accumulate_weight) TRY(tensor_fill_zero(dweight, e));
    }
    if (node->inputs[0]) {
        TRY(gradient_target(node->inputs[0], &dx, &accumulate, e));
    } else {
        /* Only the weight is trained (the first layer under a frozen embedding): dx has to go
         * somewhere. */
        TRY(tensor_new(tape->space, DTYPE_F32, x->rows, x->cols, CATEGORY_ACTIVATIONS, &scratch,
                       e));
        dx = scratch;
    }
    const struct rmsnorm_backward_args args = {.tokens = x->rows,
                                               .groups = 1,
                                               .width = x->cols,
                                               .x = tensor_f32(x),
                                               .ld_x = x->cols,
                                               .weight = tensor_f32(weight),
                                               .weight_offset = options.offset,
                                               .rstd = tensor_f32(rstd),
                                               .dy = tensor_f32(node->gradient),
                                               .ld_dy = x->cols,
                                               .dx = tensor_f32(dx),
                                               .ld_dx = x->cols,
                                               .accumulate = accumulate,
                                               .dweight = dweight ? tensor_f32(dweight) : NULL};
    const enum status status = device_rmsnorm_backward(tape->space->device, &args, e);
    tensor_release(scratch);
    return status;
}

enum status op_rmsnorm(struct tape *tape, struct tensor *x, struct tensor *weight,
                       struct norm_options options, struct tensor **out, struct err *e) {
    struct tensor *y = NULL, *rstd = NULL;
    TRY(tensor_new(tape->space, DTYPE_F32, x->rows, x->cols, CATEGORY_ACTIVATIONS, &y, e));
    *out = y;
    TRY(tensor_new(tape->space, DTYPE_F32, 1, x->rows, CATEGORY_ACTIVATIONS, &rstd, e));
    const struct rmsnorm_args args = {.tokens = x->rows,
                                      .groups = 1,
                                      .width = x->cols,
                                      .x = tensor_f32(x),
                                      .ld_x = x->cols,
                                      .weight = tensor_f32(weight),
                                      .weight_offset = options.offset,
                                      .eps = options.eps,
                                      .y = tensor_f32(y),
                                      .ld_y = x->cols,
                                      .rstd = tensor_f32(rstd)};
    const enum status status = device_rmsnorm(tape->space->device, &args, e);
    struct tensor *const inputs[] = {x, weight};
    if (status == STATUS_OK && tape_records(tape, inputs, 2)) {
        struct node *const node = tape_push(tape, rmsnorm_backward, y);
        node_input(node, 0, x);
        node_input(node, 1, weight);
        node_save(node, 0, x);
        node_save(node, 1, weight);
        node_save(node, 2, rstd);
        memcpy(node->extra, &options, sizeof options);
    }
    tensor_release(rstd);
    return status;
}

static enum status add_backward(struct tape *tape, struct node *node, struct err *e) {
    (void)tape;
    for (int i = 0; i < 2; i++) {
        if (node->inputs[i]) TRY(gradient_add(node->inputs[i], node->gradient, e));
    }
    return STATUS_OK;
}

enum status op_add(struct tape *tape, struct tensor *a, struct tensor *b, struct tensor **out,
                   struct err *e) {
    ASSERT(a->rows == b->rows && a->cols == b->cols);
    struct tensor *y = NULL;
    TRY(tensor_new(tape->space, DTYPE_F32, a->rows, a->cols, CATEGORY_ACTIVATIONS, &y, e));
    *out = y;
    const struct add_args args = {
        .count = tensor_count(y), .a = tensor_f32(a), .b = tensor_f32(b), .out = tensor_f32(y)};
    TRY(device_add(tape->space->device, &args, e));
    struct tensor *const inputs[] = {a, b};
    if (!tape_records(tape, inputs, 2)) return STATUS_OK;
    struct node *const node = tape_push(tape, add_backward, y);
    node_input(node, 0, a);
    node_input(node, 1, b);
    return STATUS_OK;
}

static enum status glu_backward(struct tape *tape, struct node *node, struct err *e) {
    enum activation activation;
    memcpy(&activation, node->extra, sizeof activation);
    struct tensor *const x = node->saved[0];
    struct tensor *dx = NULL;
    if (x->references == 1) {
        dx = tensor_retain(x); /* nobody else looks at it again: the gradient takes its place */
    } else {
        TRY(tensor_new(tape->space, DTYPE_F32, x->rows, x->cols, CATEGORY_ACTIVATIONS, &dx, e));
    }
    const struct glu_backward_args args = {.tokens = x->rows,
                                           .width = x->cols / 2,
                                           .activation = activation,
                                           .gate_up = tensor_f32(x),
                                           .dout = tensor_f32(node->gradient),
                                           .dgate_up = tensor_f32(dx)};
    enum status status = device_glu_backward(tape->space->device, &args, e);
    if (status == STATUS_OK) status = gradient_add(node->inputs[0], dx, e);
    tensor_release(dx);
    return status;
}

enum status op_glu(struct tape *tape, struct tensor *x, enum activation activation,
                   struct tensor **out, struct err *e) {
    ASSERT(x->cols % 2 == 0);
    struct tensor *y = NULL;
    TRY(tensor_new(tape->space, DTYPE_F32, x->rows, x->cols / 2, CATEGORY_ACTIVATIONS, &y, e));
    *out = y;
    const struct glu_args args = {.tokens = x->rows,
                                  .width = x->cols / 2,
                                  .activation = activation,
                                  .gate_up = tensor_f32(x),
                                  .out = tensor_f32(y)};
    TRY(device_glu(tape->space->device, &args, e));
    if (!tape_records(tape, &x, 1)) return STATUS_OK;
    struct node *const node = tape_push(tape, glu_backward, y);
    node_input(node, 0, x);
    node_save(node, 0, x);
    memcpy(node->extra, &activation, sizeof activation);
    return STATUS_OK;
}
