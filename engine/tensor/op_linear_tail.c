/* op_linear_tail.c - a linear layer whose LoRA adapters ride in the tails of its operands.
 *
 * The layer's memory is one matrix M = [[W, s*B], [A, 0]] of N + rp rows and K + rp columns, rp
 * being the ranks of all its adapters, padded with zeros. Then
 *   forward   XA = X * A^T, written behind X's own rows;  Y = [X | XA] * [W | s*B]^T
 *   backward  S = dY * s*B, written behind dY's own rows; dX = [dY | S] * [W ; A]
 * are one large product each, and the adapters cost no pass over Y or dX. Where an operand has no
 * room behind its rows, the product is made in two parts. dA = S^T X and dB = s * dY^T XA go
 * straight into the flat gradient buffer. */
#include "engine/tensor/linear_internal.h"

static int64_t outputs(const struct linear *l) {
    return l->weight->rows;
}

static int64_t inputs(const struct linear *l) {
    return l->weight->cols;
}

/* XA [T,rp] = X * A^T, where `to` says. */
static enum status make_xa(const struct linear *l, const struct tensor *x, struct matrix to,
                           struct err *e) {
    const struct gemm_args args = {.m = x->rows,
                                   .n = l->tail,
                                   .k = inputs(l),
                                   .alpha = 1,
                                   .trans_b = true,
                                   .a = tensor_matrix(x),
                                   .b = tensor_matrix_at(l->augmented, outputs(l), 0),
                                   .c = to};
    return device_gemm(x->space->device, &args, e);
}

/* Y = [X | XA] * M[0:N, :]^T, whose first operand ends after `columns`. */
static enum status make_y(const struct linear *l, const struct tensor *x, int64_t columns,
                          const struct tensor *y, struct err *e) {
    const struct gemm_args args = {.m = x->rows,
                                   .n = outputs(l),
                                   .k = columns,
                                   .alpha = 1,
                                   .trans_b = true,
                                   .a = tensor_matrix(x),
                                   .b = tensor_matrix(l->augmented),
                                   .c = tensor_matrix(y),
                                   .bias = l->bias ? l->bias->data : NULL,
                                   .bias_dtype = l->bias ? l->bias->dtype : DTYPE_F32};
    return device_gemm(x->space->device, &args, e);
}

enum status tail_forward(struct tape *tape, const struct linear *l, struct tensor *x,
                         struct tensor *y, struct tensor **xa, struct err *e) {
    if (tensor_tail(x) >= l->tail) {
        TRY(make_xa(l, x, tensor_matrix_at(x, 0, x->cols), e));
        if (!tape->unread) TRY(make_y(l, x, inputs(l) + l->tail, y, e));
        if (!tape->recording) return STATUS_OK;
        /* x may be made again for backward, without its tail. */
        TRY(tensor_activation(tape->space, x->rows, l->tail, 0, xa, e));
        struct tensor *tail = tensor_view_block(x, 0, x->rows, x->cols, l->tail);
        const enum status status = tensor_copy(*xa, tail, e);
        tensor_release(tail);
        return status;
    }
    TRY(tensor_activation(tape->space, x->rows, l->tail, 0, xa, e));
    TRY(make_xa(l, x, tensor_matrix(*xa), e));
    if (tape->unread) return STATUS_OK;
    TRY(make_y(l, x, inputs(l), y, e));
    const struct gemm_args more = {.m = x->rows,
                                   .n = outputs(l),
                                   .k = l->tail,
                                   .alpha = 1,
                                   .beta = 1,
                                   .trans_b = true,
                                   .a = tensor_matrix(*xa),
                                   .b = tensor_matrix_at(l->augmented, 0, inputs(l)),
                                   .c = tensor_matrix(y)};
    return device_gemm(tape->space->device, &more, e);
}

/* S [T,rp] = dY * s*B. */
static enum status make_s(const struct linear *l, const struct tensor *dy, struct matrix to,
                          struct err *e) {
    const struct gemm_args args = {.m = dy->rows,
                                   .n = l->tail,
                                   .k = outputs(l),
                                   .alpha = 1,
                                   .a = tensor_matrix(dy),
                                   .b = tensor_matrix_at(l->augmented, 0, inputs(l)),
                                   .c = to};
    return device_gemm(dy->space->device, &args, e);
}

/* dX = [dY | S] * M[:, 0:K]; with a separate S, in two parts. */
static enum status make_dx(const struct linear *l, const struct tensor *dy, const struct tensor *s,
                           struct gradient *x, struct err *e) {
    struct tensor *dx = NULL;
    bool accumulate = false;
    TRY(gradient_target(x, &dx, &accumulate, e));
    struct gemm_args args = {.m = dy->rows,
                             .n = inputs(l),
                             .k = outputs(l) + (s ? 0 : l->tail),
                             .alpha = 1,
                             .beta = accumulate ? 1 : 0,
                             .a = tensor_matrix(dy),
                             .b = tensor_matrix(l->augmented),
                             .c = tensor_matrix(dx)};
    TRY(device_gemm(dy->space->device, &args, e));
    if (!s) return STATUS_OK;
    args.k = l->tail;
    args.beta = 1;
    args.a = tensor_matrix(s);
    args.b = tensor_matrix_at(l->augmented, outputs(l), 0);
    return device_gemm(dy->space->device, &args, e);
}

enum status tail_backward(struct tape *tape, const struct linear *l, struct node *node,
                          struct err *e) {
    const struct tensor *const dy = node->gradient;
    struct tensor *x = NULL, *s = NULL;
    struct matrix where = tensor_matrix_at(dy, 0, dy->cols);
    enum status status = STATUS_OK;
    if (tensor_tail(dy) < l->tail) {
        GUARD(tensor_activation(tape->space, dy->rows, l->tail, 0, &s, e));
        where = tensor_matrix(s);
    }
    GUARD(make_s(l, dy, where, e));
    for (int64_t i = 0; i < l->adapter_count; i++) {
        GUARD(linear_b_backward(&l->adapters[i], dy, node->saved[SAVED_XA], e));
    }
    node_drop(node, SAVED_XA);
    GUARD(linear_weight_backward(node, dy, e));
    GUARD(node_saved(node, SAVED_INPUT, &x, e));
    GUARD(linear_a_backward(l, where, x, e));
    node_drop(node, SAVED_INPUT); /* its bytes may become those of its gradient */
    if (node->inputs[INPUT_X]) GUARD(make_dx(l, dy, s, node->inputs[INPUT_X], e));
done:
    tensor_release(s);
    return status;
}
