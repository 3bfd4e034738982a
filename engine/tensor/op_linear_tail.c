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

/* [tail, K]: A, and what pads it. Apart from the weight where that is made for each product. */
static struct matrix below(const struct linear *l) {
    return l->codes ? tensor_matrix(l->codes->below)
                    : tensor_matrix_at(l->augmented, outputs(l), 0);
}

/* [N, tail]: s * B. */
static struct matrix beside(const struct linear *l) {
    return l->codes ? tensor_matrix(l->codes->beside)
                    : tensor_matrix_at(l->augmented, 0, inputs(l));
}

enum status tail_xa(const struct linear *l, const struct tensor *x, struct matrix to,
                    struct err *e) {
    const struct gemm_args args = {.m = x->rows,
                                   .n = l->tail,
                                   .k = inputs(l),
                                   .alpha = 1,
                                   .trans_b = true,
                                   .a = tensor_matrix(x),
                                   .b = below(l),
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
        if (tape->recording) *xa = tensor_view_block(x, 0, x->rows, x->cols, l->tail);
        TRY(tail_xa(l, x, tensor_matrix_at(x, 0, x->cols), e));
        return make_y(l, x, inputs(l) + l->tail, y, e);
    }
    TRY(tensor_activation(tape->space, x->rows, l->tail, 0, xa, e));
    TRY(tail_xa(l, x, tensor_matrix(*xa), e));
    TRY(make_y(l, x, inputs(l), y, e));
    const struct gemm_args more = {.m = x->rows,
                                   .n = outputs(l),
                                   .k = l->tail,
                                   .alpha = 1,
                                   .beta = 1,
                                   .trans_b = true,
                                   .a = tensor_matrix(*xa),
                                   .b = beside(l),
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
                                   .b = beside(l),
                                   .c = to};
    return device_gemm(dy->space->device, &args, e);
}

enum status tail_begin(struct linear_back *b, struct err *e) {
    const struct linear *const l = b->extra->linear;
    const struct tensor *const dy = b->node->gradient;
    b->dxa = tensor_matrix_at(dy, 0, dy->cols);
    if (tensor_tail(dy) < l->tail) {
        TRY(tensor_activation(dy->space, dy->rows, l->tail, 0, &b->part, e));
        b->dxa = tensor_matrix(b->part);
    }
    return make_s(l, dy, b->dxa, e);
}

/* dX = [dY | S] * M[:, 0:K]; with a separate S, in two parts. */
enum status tail_input(const struct linear_back *b, const struct tensor *dx, bool accumulate,
                       struct err *e) {
    const struct linear *const l = b->extra->linear;
    const struct tensor *const dy = b->node->gradient;
    struct gemm_args args = {.m = dy->rows,
                             .n = inputs(l),
                             .k = outputs(l) + (b->part ? 0 : l->tail),
                             .alpha = 1,
                             .beta = accumulate ? 1 : 0,
                             .a = tensor_matrix(dy),
                             .b = tensor_matrix(l->augmented),
                             .c = tensor_matrix(dx)};
    TRY(device_gemm(dy->space->device, &args, e));
    if (!b->part) return STATUS_OK;
    args.k = l->tail;
    args.beta = 1;
    args.a = b->dxa;
    args.b = below(l);
    return device_gemm(dy->space->device, &args, e);
}
