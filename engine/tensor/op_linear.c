/* op_linear.c - the linear layer with LoRA and DoRA adapters on ranges of its output rows.
 *
 * q, k and v (and gate and up) are one product over a packed weight; each adapter adds into its own
 * columns of the result, and all adapters of a layer share one product x A^T. Where the device
 * likes it better the adapters ride in the tails of the operands (op_linear_tail.c). Sources: LoRA,
 * Hu et al. 2021, eq. 3; rsLoRA, Kalajdzievski 2023; DoRA, Liu et al. 2024, eq. 5. What dropout
 * kept is drawn again in backward: its random numbers are a pure function of their key. */
#include "engine/tensor/linear_internal.h"

#include <string.h>

struct linear_extra {
    const struct linear *linear;
    uint64_t seed, step;
};

static bool has_magnitude(const struct linear *l) {
    for (int64_t i = 0; i < l->adapter_count; i++) {
        if (l->adapters[i].magnitude) return true;
    }
    return false;
}

static enum status dropout(const struct linear_extra *key, const struct tensor *row_keys,
                           const struct tensor *x, const struct tensor *y, bool accumulate,
                           struct err *e) {
    const struct dropout_args args = {.rows = x->rows,
                                      .width = x->cols,
                                      .dtype = x->dtype,
                                      .x = x->data,
                                      .ld_x = x->ld,
                                      .y = y->data,
                                      .ld_y = y->ld,
                                      .p = key->linear->dropout,
                                      .seed = key->seed,
                                      .stream = key->step << 20 | key->linear->stream,
                                      .row_keys = row_keys->data,
                                      .accumulate = accumulate};
    return device_dropout(x->space->device, &args, e);
}

static enum status gemm(const struct tensor *on, const struct gemm_args *args, struct err *e) {
    return device_gemm(on->space->device, args, e);
}

enum status linear_product(const struct linear *l, const struct product *p, struct err *e) {
    const struct gemm_args args = {.m = p->x->rows,
                                   .n = l->weight->rows,
                                   .k = l->weight->cols,
                                   .alpha = p->alpha,
                                   .beta = p->beta,
                                   .trans_b = true,
                                   .a = tensor_matrix(p->x),
                                   .b = tensor_matrix(l->weight),
                                   .c = tensor_matrix(p->c),
                                   .bias = p->bias ? p->bias->data : NULL,
                                   .bias_dtype = p->bias ? p->bias->dtype : DTYPE_F32};
    return gemm(p->x, &args, e);
}

enum status linear_product_back(const struct linear *l, const struct tensor *dy, float alpha,
                                float beta, const struct tensor *c, struct err *e) {
    const struct gemm_args args = {.m = dy->rows,
                                   .n = l->weight->cols,
                                   .k = l->weight->rows,
                                   .alpha = alpha,
                                   .beta = beta,
                                   .a = tensor_matrix(dy),
                                   .b = tensor_matrix(l->weight),
                                   .c = tensor_matrix(c)};
    return gemm(dy, &args, e);
}

enum status linear_weight_backward(struct node *node, const struct tensor *dz, struct err *e) {
    struct tensor *x = NULL, *value = NULL;
    bool accumulate = false;
    if (node->inputs[INPUT_WEIGHT]) {
        TRY(node_saved(node, SAVED_INPUT, &x, e));
        TRY(gradient_target(node->inputs[INPUT_WEIGHT], &value, &accumulate, e));
        const struct gemm_args args = {.m = dz->cols,
                                       .n = x->cols,
                                       .k = x->rows,
                                       .alpha = 1,
                                       .beta = accumulate ? 1 : 0,
                                       .trans_a = true,
                                       .a = tensor_matrix(dz),
                                       .b = tensor_matrix(x),
                                       .c = tensor_matrix(value)};
        TRY(gemm(x, &args, e));
    }
    if (!node->inputs[INPUT_BIAS]) return STATUS_OK;
    const struct tensor *const dy = node->gradient;
    TRY(gradient_target(node->inputs[INPUT_BIAS], &value, &accumulate, e));
    const struct column_sum_args sum = {.rows = dy->rows,
                                        .cols = dy->cols,
                                        .dtype = dy->dtype,
                                        .x = dy->data,
                                        .ld_x = dy->ld,
                                        .out = tensor_f32(value),
                                        .accumulate = accumulate};
    return device_column_sum(dy->space->device, &sum, e);
}

enum status linear_b_backward(const struct lora *a, const struct tensor *dz,
                              const struct tensor *xa, struct err *e) {
    struct tensor *db = NULL;
    bool accumulate = false;
    TRY(gradient_target(a->b->gradient, &db, &accumulate, e));
    const struct gemm_args args = {.m = a->rows,
                                   .n = a->rank,
                                   .k = dz->rows,
                                   .alpha = a->scaling,
                                   .beta = accumulate ? 1 : 0,
                                   .trans_a = true,
                                   .a = tensor_matrix_at(dz, 0, a->first_row),
                                   .b = tensor_matrix_at(xa, 0, a->rank_first),
                                   .c = tensor_matrix(db)};
    return gemm(dz, &args, e);
}

enum status linear_a_backward(const struct linear *l, struct matrix dxa, const struct tensor *x,
                              struct err *e) {
    struct tensor *da = NULL;
    bool accumulate = false;
    TRY(gradient_target(l->lora_a->gradient, &da, &accumulate, e));
    const struct gemm_args args = {.m = l->lora_a->rows,
                                   .n = x->cols,
                                   .k = x->rows,
                                   .alpha = 1,
                                   .beta = accumulate ? 1 : 0,
                                   .trans_a = true,
                                   .a = dxa,
                                   .b = tensor_matrix(x),
                                   .c = tensor_matrix(da)};
    return gemm(x, &args, e);
}

/* y[:, rows of the adapter] += scaling * xa B^T */
static enum status add_adapter(const struct lora *a, const struct tensor *xa,
                               const struct tensor *y, struct err *e) {
    const struct gemm_args args = {.m = y->rows,
                                   .n = a->rows,
                                   .k = a->rank,
                                   .alpha = a->scaling,
                                   .beta = 1,
                                   .trans_b = true,
                                   .a = tensor_matrix_at(xa, 0, a->rank_first),
                                   .b = tensor_matrix(a->b),
                                   .c = tensor_matrix_at(y, 0, a->first_row)};
    return gemm(y, &args, e);
}

/* One adapter's part of backward: its columns of dxa, and B's gradient. dz is the gradient of x W^T
 * + scaling x A^T B^T in the adapter's columns. */
static enum status adapter_backward(const struct lora *a, const struct tensor *xa,
                                    const struct tensor *dz, const struct tensor *dxa,
                                    struct err *e) {
    const struct gemm_args to_xa = {.m = dz->rows,
                                    .n = a->rank,
                                    .k = a->rows,
                                    .alpha = a->scaling,
                                    .a = tensor_matrix_at(dz, 0, a->first_row),
                                    .b = tensor_matrix(a->b),
                                    .c = tensor_matrix_at(dxa, 0, a->rank_first)};
    TRY(gemm(dz, &to_xa, e));
    return linear_b_backward(a, dz, xa, e);
}

/* dxa, and the gradients of A and B. */
static enum status adapters_backward(const struct linear_extra *extra, struct node *node,
                                     const struct tensor *dz, struct tensor **dxa, struct err *e) {
    const struct linear *const l = extra->linear;
    const struct tensor *const xa = node->saved[SAVED_XA];
    struct tensor *x = NULL, *dropped = NULL;
    enum status status = STATUS_OK;
    TRY(tensor_activation(dz->space, xa->rows, xa->cols, 0, dxa, e));
    for (int64_t i = 0; i < l->adapter_count; i++) {
        TRY(adapter_backward(&l->adapters[i], xa, dz, *dxa, e));
    }
    TRY(node_saved(node, SAVED_INPUT, &x, e));
    if (node->saved[SAVED_KEYS]) {
        GUARD(tensor_activation(dz->space, x->rows, x->cols, 0, &dropped, e));
        GUARD(dropout(extra, node->saved[SAVED_KEYS], x, dropped, false, e));
    }
    GUARD(linear_a_backward(l, tensor_matrix(*dxa), dropped ? dropped : x, e));
done:
    tensor_release(dropped);
    return status;
}

/* dx (+)= the gradient through the base, and through the adapters where there is a dxa. */
static enum status input_backward(const struct linear_extra *extra, struct node *node,
                                  const struct tensor *dz, const struct tensor *dxa,
                                  struct err *e) {
    const struct linear *const l = extra->linear;
    const struct tensor *const keys = node->saved[SAVED_KEYS], *const dy = node->gradient;
    struct tensor *dx = NULL, *part = NULL;
    bool accumulate = false;
    enum status status = STATUS_OK;
    TRY(gradient_target(node->inputs[INPUT_X], &dx, &accumulate, e));
    /* With dropout under DoRA the base sees x itself: its gradient is not scaled. */
    const bool apart = node->saved[SAVED_PLAIN] && keys;
    TRY(linear_product_back(l, apart ? dy : dz, 1, accumulate ? 1 : 0, dx, e));
    if (!dxa) return STATUS_OK;
    if (keys) TRY(tensor_activation(dz->space, dx->rows, dx->cols, 0, &part, e));
    const struct gemm_args to_x = {.m = dx->rows,
                                   .n = dx->cols,
                                   .k = dxa->cols,
                                   .alpha = 1,
                                   .beta = keys ? 0 : 1,
                                   .a = tensor_matrix(dxa),
                                   .b = tensor_matrix(l->lora_a),
                                   .c = tensor_matrix(keys ? part : dx)};
    GUARD(gemm(dx, &to_x, e));
    if (apart) {
        GUARD(linear_product_back(l, dz, 1, 1, part, e));
        GUARD(linear_product_back(l, dy, -1, 1, part, e));
    }
    if (keys) GUARD(dropout(extra, keys, part, dx, true, e));
done:
    tensor_release(part);
    return status;
}

static enum status linear_backward(struct tape *tape, struct node *node, struct err *e) {
    struct linear_extra extra;
    memcpy(&extra, node->extra, sizeof extra);
    const struct linear *const l = extra.linear;
    struct tensor *scaled = NULL, *dxa = NULL;
    enum status status = STATUS_OK;
    if (l->augmented) return tail_backward(tape, l, node, e);
    if (node->saved[SAVED_PLAIN]) GUARD(dora_backward(tape, l, node, &scaled, e));
    const struct tensor *const dz = scaled ? scaled : node->gradient;
    GUARD(linear_weight_backward(node, dz, e));
    if (l->lora_a) GUARD(adapters_backward(&extra, node, dz, &dxa, e));
    node_drop(node, SAVED_INPUT); /* its bytes may become those of its gradient */
    if (node->inputs[INPUT_X]) GUARD(input_backward(&extra, node, dz, dxa, e));
done:
    tensor_release(scaled);
    tensor_release(dxa);
    return status;
}

static enum status add_bias(const struct linear *l, const struct tensor *y, struct err *e) {
    const struct column_scale_args add = {.rows = y->rows,
                                          .cols = y->cols,
                                          .dtype = y->dtype,
                                          .x = y->data,
                                          .ld_x = y->ld,
                                          .bias = tensor_f32(l->bias_master),
                                          .out = y->data,
                                          .ld_out = y->ld};
    return device_column_scale(y->space->device, &add, e);
}

/* x A^T for all adapters, and what each adds to y, where that is read. */
static enum status add_adapters(const struct tape *tape, const struct linear *l,
                                const struct tensor *input, struct tensor **xa,
                                const struct tensor *y, struct err *e) {
    TRY(tensor_activation(y->space, input->rows, l->lora_a->rows, 0, xa, e));
    const struct gemm_args to_xa = {.m = input->rows,
                                    .n = l->lora_a->rows,
                                    .k = input->cols,
                                    .alpha = 1,
                                    .trans_b = true,
                                    .a = tensor_matrix(input),
                                    .b = tensor_matrix(l->lora_a),
                                    .c = tensor_matrix(*xa)};
    TRY(gemm(input, &to_xa, e));
    for (int64_t i = 0; !tape->unread && i < l->adapter_count; i++) {
        TRY(add_adapter(&l->adapters[i], *xa, y, e));
    }
    return STATUS_OK;
}

/* y = x W^T + bias, then the adapters, leaving in `parts` what backward will want. Under DoRA,
 * dropout acts on what the magnitude scales and not on the base (as in PEFT): with d = dropout(x),
 * y = (x - d) W^T + bias + m/norm * (d W^T + scaling d A^T B^T). */
static enum status linear_forward(struct tape *tape, struct tensor *x,
                                  const struct linear_extra *extra, struct tensor **parts,
                                  struct tensor *y, struct err *e) {
    const struct linear *const l = extra->linear;
    const struct tensor *const row_keys = parts[SAVED_KEYS];
    const bool scaled = has_magnitude(l);
    struct tensor *dropped = NULL;
    enum status status = STATUS_OK;
    if (row_keys) {
        GUARD(tensor_activation(tape->space, x->rows, x->cols, 0, &dropped, e));
        GUARD(dropout(extra, row_keys, x, dropped, false, e));
    }
    const struct tensor *const input = dropped ? dropped : x;
    const struct product base = {
        .x = scaled ? input : x, .bias = scaled ? NULL : l->bias, .c = y, .alpha = 1};
    if (!tape->unread) GUARD(linear_product(l, &base, e));
    if (l->lora_a) GUARD(add_adapters(tape, l, input, &parts[SAVED_XA], y, e));
    if (!scaled) goto done;
    GUARD(dora_apply(tape, l, y, &parts[SAVED_PLAIN], &parts[SAVED_NORM], e));
    if (dropped) {
        const struct product whole = {.x = x, .c = y, .alpha = 1, .beta = 1},
                             part = {.x = dropped, .c = y, .alpha = -1, .beta = 1};
        GUARD(linear_product(l, &whole, e));
        GUARD(linear_product(l, &part, e));
    }
    if (l->bias) GUARD(add_bias(l, y, e));
done:
    tensor_release(dropped);
    return status;
}

static void record(struct tape *tape, struct tensor *x, const struct linear_extra *extra,
                   struct tensor *const *parts, struct tensor *out) {
    const struct linear *const l = extra->linear;
    struct tensor *const inputs[] = {x, l->weight, l->bias, l->lora_a};
    if (!tape_records(tape, inputs, 4)) return;
    struct node *const node = tape_push(tape, linear_backward, out);
    node_input(node, INPUT_X, x);
    node_input(node, INPUT_WEIGHT, l->weight);
    node_input(node, INPUT_BIAS, l->bias);
    node_save(node, SAVED_INPUT, node->inputs[INPUT_WEIGHT] || l->lora_a ? x : NULL);
    for (int i = SAVED_XA; i < SAVED_COUNT; i++) {
        node_save(node, i, parts[i]);
    }
    memcpy(node->extra, extra, sizeof *extra);
}

enum status op_linear(struct tape *tape, struct tensor *x, const struct linear *linear,
                      const struct random_keys *keys, struct tensor **out, struct err *e) {
    ASSERT(x->cols == linear->weight->cols);
    const struct linear_extra extra = {.linear = linear, .seed = keys->seed, .step = keys->step};
    struct tensor *parts[SAVED_COUNT] = {0};
    /* The magnitudes of DoRA are a function of the result. */
    const bool unread = tape->unread;
    tape->unread = unread && !has_magnitude(linear);
    const struct shape shape = {
        .rows = x->rows, .cols = linear->weight->rows, .tail = linear->output_tail};
    TRY(tape_result(tape, &shape, out, e));
    tensor_want_tail(*out, linear->tail);
    enum status status = STATUS_OK;
    if (linear->augmented) {
        ASSERT(linear->dropout == 0);
        status = tail_forward(tape, linear, x, *out, &parts[SAVED_XA], e);
    } else {
        const bool drops = linear->lora_a && linear->dropout > 0 && tape->training;
        if (drops) parts[SAVED_KEYS] = tensor_retain(keys->row_keys);
        status = linear_forward(tape, x, &extra, parts, *out, e);
    }
    tape->unread = unread;
    if (status == STATUS_OK) record(tape, x, &extra, parts, *out);
    for (int i = 0; i < SAVED_COUNT; i++) {
        tensor_release(parts[i]);
    }
    return status;
}
