/* op_basic.c - embedding, sum and gated unit: operations whose backward is one call to the device.
 *
 * They read as a pair each: the backward stands right above its forward. */
#include "engine/tensor/ops.h"

#include <string.h>

#include "engine/tensor/internal.h"

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
    const struct tensor *const ids = node->saved[0], *const dy = node->gradient;
    const struct embedding_backward_args args = {.tokens = ids->cols,
                                                 .channels = value->cols,
                                                 .vocab = extra.vocab,
                                                 .ids = tensor_i32(ids),
                                                 .dtype = dy->dtype,
                                                 .dout = dy->data,
                                                 .ld_dout = dy->ld,
                                                 .scale = extra.scale,
                                                 .dtable = tensor_f32(value)};
    return device_embedding_backward(tape->space->device, &args, e);
}

enum status op_embedding(struct tape *tape, struct tensor *ids, struct tensor *table, float scale,
                         struct tensor **out, struct err *e) {
    struct tensor *y = NULL;
    TRY(tensor_activation(tape->space, ids->cols, table->cols, 0, &y, e));
    ASSERT(table->ld == table->cols);
    const struct embedding_args args = {.tokens = ids->cols,
                                        .channels = table->cols,
                                        .vocab = table->rows,
                                        .ids = tensor_i32(ids),
                                        .table = table->data,
                                        .table_dtype = table->dtype,
                                        .scale = scale,
                                        .dtype = y->dtype,
                                        .out = y->data,
                                        .ld_out = y->ld};
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

static enum status add_backward(struct tape *tape, struct node *node, struct err *e) {
    (void)tape;
    for (int i = 0; i < 2; i++) {
        if (node->inputs[i]) TRY(gradient_add(node->inputs[i], node->gradient, e));
    }
    return STATUS_OK;
}

void record_sum(struct tape *tape, struct tensor *a, struct tensor *b, struct tensor *sum) {
    /* The gradient of the sum becomes that of both addends, by reference: it needs their tails. */
    tensor_want_tail(sum, a->gradient_tail);
    tensor_want_tail(sum, b->gradient_tail);
    struct tensor *const inputs[] = {a, b};
    if (!tape_records(tape, inputs, 2)) return;
    struct node *const node = tape_push(tape, add_backward, sum);
    node_input(node, 0, a);
    node_input(node, 1, b);
}

enum status op_add(struct tape *tape, struct tensor *a, struct tensor *b, struct tensor **out,
                   struct err *e) {
    ASSERT(a->rows == b->rows && a->cols == b->cols);
    struct tensor *y = NULL;
    const struct shape shape = {.rows = a->rows, .cols = a->cols};
    TRY(tape_result(tape, &shape, &y, e));
    *out = y;
    const struct add_args args = {.rows = y->rows,
                                  .cols = y->cols,
                                  .dtype = y->dtype,
                                  .a = a->data,
                                  .ld_a = a->ld,
                                  .b = b->data,
                                  .ld_b = b->ld,
                                  .out = y->data,
                                  .ld_out = y->ld};
    if (!tape->unread) TRY(device_add(tape->space->device, &args, e));
    record_sum(tape, a, b, y);
    return STATUS_OK;
}

static enum status glu_backward(struct tape *tape, struct node *node, struct err *e) {
    enum activation activation;
    memcpy(&activation, node->extra, sizeof activation);
    struct tensor *x = NULL, *dx = NULL;
    const int64_t tail = node->inputs[0]->tail;
    TRY(node_saved(node, 0, &x, e));
    if (x->references == 1 && tensor_tail(x) >= tail) {
        dx = tensor_retain(x); /* nobody else looks at it again: the gradient takes its place */
    } else {
        TRY(tensor_activation(tape->space, x->rows, x->cols, tail, &dx, e));
    }
    const struct glu_backward_args args = {.tokens = x->rows,
                                           .width = x->cols / 2,
                                           .activation = activation,
                                           .dtype = x->dtype,
                                           .gate_up = x->data,
                                           .ld_gate_up = x->ld,
                                           .dout = node->gradient->data,
                                           .ld_dout = node->gradient->ld,
                                           .dgate_up = dx->data,
                                           .ld_dgate_up = dx->ld};
    enum status status = device_glu_backward(tape->space->device, &args, e);
    if (status == STATUS_OK) status = gradient_add(node->inputs[0], dx, e);
    tensor_release(dx);
    return status;
}

static enum status run_glu(const struct tensor *x, enum activation activation,
                           const struct tensor *y, struct err *e) {
    const struct glu_args args = {.tokens = x->rows,
                                  .width = y->cols,
                                  .activation = activation,
                                  .dtype = x->dtype,
                                  .gate_up = x->data,
                                  .ld_gate_up = x->ld,
                                  .out = y->data,
                                  .ld_out = y->ld};
    return device_glu(x->space->device, &args, e);
}

static enum status make_glu_again(const struct recipe *recipe, struct tensor *into, struct err *e) {
    enum activation activation;
    memcpy(&activation, recipe->extra, sizeof activation);
    return run_glu(recipe->from[0], activation, into, e);
}

enum status op_glu(struct tape *tape, struct tensor *x, enum activation activation, int64_t tail,
                   struct tensor **out, struct err *e) {
    ASSERT(x->cols % 2 == 0);
    struct tensor *y = NULL;
    const struct shape shape = {.rows = x->rows, .cols = x->cols / 2, .tail = tail};
    TRY(tape_result(tape, &shape, &y, e));
    *out = y;
    if (!tape->unread) TRY(run_glu(x, activation, y, e));
    if (!tape->recording) return STATUS_OK;
    struct recipe *const recipe = recipe_attach(y, &x, 1);
    recipe->make = make_glu_again;
    memcpy(recipe->extra, &activation, sizeof activation);
    if (!tape_records(tape, &x, 1)) return STATUS_OK;
    struct node *const node = tape_push(tape, glu_backward, y);
    node_input(node, 0, x);
    node_save(node, 0, x);
    memcpy(node->extra, &activation, sizeof activation);
    return STATUS_OK;
}
