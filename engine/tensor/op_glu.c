/* op_glu.c - a gated linear unit and the linear layer that reads it, as one node.
 *
 * What the unit gives is not kept for backward. The layer's parameters want it there, but its input
 * gradient does not: so that one is computed first, and then a single pass over the unit's input
 * writes the input's gradient over the input, and what the unit gave over the gradient of that
 * (as in Unsloth's fast_lora.py, a fact of which this is an independent expression). */
#include "engine/tensor/linear_internal.h"

#include <string.h>

struct glu_extra {
    struct linear_extra linear; /* first: see linear_internal.h */
    enum activation activation;
};
_Static_assert(sizeof(struct glu_extra) <= NODE_EXTRA_MAX, "the numbers fit the node");

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

/* Adds to the gradient of x. `gated` comes with its own gradient and leaves with its values. */
static enum status glu_backward(struct node *node, enum activation activation,
                                const struct tensor *gated, bool wanted, struct err *e) {
    struct tensor *const x = node->saved[SAVED_INPUT];
    struct gradient *const target = node->inputs[INPUT_X];
    struct tensor *dx = NULL;
    if (x->references == 1 && tensor_tail(x) >= target->tail) {
        dx = tensor_retain(x); /* nobody else looks at it again: the gradient takes its place */
    } else {
        TRY(tensor_activation(x->space, x->rows, x->cols, target->tail, &dx, e));
    }
    const struct glu_backward_args args = {.tokens = x->rows,
                                           .width = gated->cols,
                                           .activation = activation,
                                           .dtype = x->dtype,
                                           .gate_up = x->data,
                                           .ld_gate_up = x->ld,
                                           .dout = gated->data,
                                           .ld_dout = gated->ld,
                                           .dgate_up = dx->data,
                                           .ld_dgate_up = dx->ld,
                                           .gated = wanted ? gated->data : NULL,
                                           .ld_gated = gated->ld};
    enum status status = device_glu_backward(x->space->device, &args, e);
    if (status == STATUS_OK) status = gradient_add(target, dx, e);
    tensor_release(dx);
    return status;
}

static enum status glu_linear_backward(struct tape *tape, struct node *node, struct err *e) {
    struct glu_extra extra;
    memcpy(&extra, node->extra, sizeof extra);
    const struct linear *const l = extra.linear.linear;
    struct linear_back back = {.extra = &extra.linear, .tape = tape, .node = node};
    struct tensor *x = NULL, *gated = NULL;
    const bool wanted = node->inputs[INPUT_WEIGHT] || l->lora_a;
    enum status status = STATUS_OK;
    GUARD(linear_back_begin(&back, e));
    GUARD(node_saved(node, SAVED_INPUT, &x, e));
    GUARD(tensor_activation(tape->space, x->rows, x->cols / 2, 0, &gated, e));
    if (node->inputs[INPUT_X]) {
        GUARD(linear_back_input(&back, gated, false, e));
        GUARD(glu_backward(node, extra.activation, gated, wanted, e));
    } else {
        GUARD(run_glu(x, extra.activation, gated, e)); /* nothing below the layer is trained */
    }
    node_drop(node, SAVED_INPUT);
    GUARD(linear_back_parameters(&back, gated, e));
done:
    linear_back_end(&back);
    tensor_release(gated);
    return status;
}

static void record(struct tape *tape, struct tensor *x, const struct glu_extra *extra,
                   struct tensor *const *parts, struct tensor *out) {
    struct node *const node = linear_record(tape, x, &extra->linear, parts, out);
    if (!node) return;
    node->backward = glu_linear_backward;
    memcpy(node->extra, extra, sizeof *extra);
}

/* What the layer reads; without bytes where nobody reads its result. */
static enum status make_gated(const struct tape *tape, const struct tensor *x,
                              const struct glu_extra *extra, struct tensor **out, struct err *e) {
    const struct linear *const l = extra->linear.linear;
    if (linear_is_unread(tape, l)) {
        *out = tensor_without_bytes(tape->space, x->rows, x->cols / 2);
        return STATUS_OK;
    }
    TRY(tensor_activation(tape->space, x->rows, x->cols / 2, l->tail, out, e));
    return run_glu(x, extra->activation, *out, e);
}

enum status op_glu_linear(struct tape *tape, struct tensor **x, const struct glu_linear *layer,
                          const struct random_keys *keys, struct tensor **out, struct err *e) {
    const struct linear *const l = layer->linear;
    const struct glu_extra extra = {.linear = {.linear = l, .seed = keys->seed, .step = keys->step},
                                    .activation = layer->activation};
    struct tensor *parts[SAVED_COUNT] = {[SAVED_KEYS] = linear_row_keys(tape, l, keys)};
    struct tensor *gated = NULL;
    enum status status = STATUS_OK;
    GUARD(make_gated(tape, *x, &extra, &gated, e));
    if (tape->recording) parts[SAVED_INPUT] = tensor_retain(*x);
    struct tensor *const input = parts[SAVED_INPUT];
    tensor_drop(x);
    GUARD(linear_forward(tape, gated, &extra.linear, parts, out, e));
    GUARD(linear_own_xa(parts, e));
    if (input) record(tape, input, &extra, parts, *out);
done:
    tensor_drop(x);
    tensor_release(gated);
    for (int i = 0; i < SAVED_COUNT; i++) {
        tensor_release(parts[i]);
    }
    return status;
}
