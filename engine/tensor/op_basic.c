/* op_basic.c - embedding and sum: operations whose backward is one call to the device.
 *
 * They read as a pair each: the backward stands right above its forward. */
#include "engine/tensor/ops.h"

#include <string.h>

#include "engine/tensor/internal.h"

struct embedding_extra {
    float scale;
    bool partial;
    int64_t vocab, first;
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
                                                 .first = extra.first,
                                                 .partial = extra.partial,
                                                 .ids = tensor_i32(ids),
                                                 .dtype = dy->dtype,
                                                 .dout = dy->data,
                                                 .ld_dout = dy->ld,
                                                 .scale = extra.scale,
                                                 .dtable = tensor_f32(value)};
    return device_embedding_backward(tape->space->device, &args, e);
}

enum status op_embedding(struct tape *tape, struct tensor *ids, const struct embedding *embedding,
                         struct tensor **out, struct err *e) {
    struct tensor *table = embedding->table;
    struct tensor *y = NULL;
    TRY(tensor_activation(tape->space, ids->cols, table->cols, 0, &y, e));
    ASSERT(table->ld == table->cols);
    const struct embedding_args args = {.tokens = ids->cols,
                                        .channels = table->cols,
                                        .vocab = table->rows,
                                        .first = embedding->first,
                                        .partial = embedding->partial,
                                        .ids = tensor_i32(ids),
                                        .table = table->data,
                                        .table_dtype = table->dtype,
                                        .scale = embedding->scale,
                                        .dtype = y->dtype,
                                        .out = y->data,
                                        .ld_out = y->ld};
    *out = y;
    TRY(device_embedding(tape->space->device, &args, e));
    if (!tape_records(tape, &table, 1)) return STATUS_OK;
    struct node *const node = tape_push(tape, embedding_backward, y);
    node_input(node, 0, table);
    node_save(node, 0, ids);
    const struct embedding_extra extra = {.scale = embedding->scale,
                                          .partial = embedding->partial,
                                          .vocab = table->rows,
                                          .first = embedding->first};
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
    if (!tape->unread) TRY(tensor_add(y, a, b, e));
    record_sum(tape, a, b, y);
    return STATUS_OK;
}
