/* op_linear.c - the linear layer with LoRA and DoRA adapters on ranges of its output rows.
 *
 * q, k and v (and gate and up) are one product over a packed weight; each adapter adds into its own
 * columns of the result, and all adapters of a layer share one product x A^T. Sources: LoRA, Hu et
 * al. 2021, eq. 3; rsLoRA, Kalajdzievski 2023; DoRA, Liu et al. 2024, eq. 5 and section 4.3 (the
 * norm is a constant in backward). */
#include "engine/tensor/ops.h"

#include <string.h>

enum { SAVED_INPUT, SAVED_DROPPED, SAVED_XA, SAVED_PLAIN, SAVED_NORM, SAVED_KEYS };
enum { INPUT_X, INPUT_WEIGHT, INPUT_BIAS };

struct linear_extra {
    const struct linear *linear;
    uint64_t seed, step;
};

static struct matrix columns(const struct tensor *t, int64_t first) {
    struct matrix m = tensor_matrix(t);
    m.data = (char *)m.data + first * dtype_bytes(t->dtype);
    return m;
}

static struct matrix rows(const struct tensor *t, int64_t first) {
    struct matrix m = tensor_matrix(t);
    m.data = (char *)m.data + first * t->cols * dtype_bytes(t->dtype);
    return m;
}

static bool has_magnitude(const struct linear *l) {
    for (int64_t i = 0; i < l->adapter_count; i++) {
        if (l->adapters[i].magnitude) return true;
    }
    return false;
}

static enum status dropout(struct tape *tape, const struct linear_extra *key,
                           const struct tensor *row_keys, const struct tensor *x, struct tensor *y,
                           bool accumulate, struct err *e) {
    const struct dropout_args args = {.rows = x->rows,
                                      .width = x->cols,
                                      .x = tensor_f32(x),
                                      .y = tensor_f32(y),
                                      .p = key->linear->dropout,
                                      .seed = key->seed,
                                      .stream = key->step << 20 | key->linear->stream,
                                      .row_keys = row_keys->data,
                                      .accumulate = accumulate};
    return device_dropout(tape->space->device, &args, e);
}

/* y[:, rows of the adapter] += scaling * xa B^T */
static enum status add_adapter(struct tape *tape, const struct lora *a, struct tensor *xa,
                               struct tensor *y, struct err *e) {
    const struct gemm_args args = {.m = y->rows,
                                   .n = a->rows,
                                   .k = a->rank,
                                   .alpha = a->scaling,
                                   .beta = 1,
                                   .trans_b = true,
                                   .a = columns(xa, a->rank_first),
                                   .b = tensor_matrix(a->b),
                                   .c = columns(y, a->first_row)};
    return device_gemm(tape->space->device, &args, e);
}

/* norm[rows of the adapter] = |W + scaling * B A| by rows. */
static enum status weight_norm(struct tape *tape, const struct linear *l, const struct lora *a,
                               struct tensor *norm, struct err *e) {
    struct device *const device = tape->space->device;
    struct tensor *merged = NULL;
    TRY(tensor_new(tape->space, DTYPE_F32, a->rows, l->weight->cols, CATEGORY_WORKSPACE, &merged,
                   e));
    const struct convert_args copy = {.rows = a->rows,
                                      .cols = l->weight->cols,
                                      .src = rows(l->weight, a->first_row),
                                      .dst = tensor_matrix(merged)};
    const struct gemm_args delta = {.m = a->rows,
                                    .n = l->weight->cols,
                                    .k = a->rank,
                                    .alpha = a->scaling,
                                    .beta = 1,
                                    .a = tensor_matrix(a->b),
                                    .b = rows(l->lora_a, a->rank_first),
                                    .c = tensor_matrix(merged)};
    const struct row_norm_args length = {.rows = a->rows,
                                         .cols = l->weight->cols,
                                         .x = tensor_f32(merged),
                                         .ld = merged->cols,
                                         .out = tensor_f32(norm) + a->first_row};
    enum status status = device_convert(device, &copy, e);
    if (status == STATUS_OK) status = device_gemm(device, &delta, e);
    if (status == STATUS_OK) status = device_row_norm(device, &length, e);
    tensor_release(merged);
    return status;
}

/* out[:, rows] = scale * x[:, rows] for the adapter's rows, with scale = magnitude / norm. */
static enum status scale_columns(struct tape *tape, const struct lora *a, const struct tensor *norm,
                                 const struct tensor *x, struct tensor *out, struct err *e) {
    struct device *const device = tape->space->device;
    struct tensor *scale = NULL;
    TRY(tensor_new(tape->space, DTYPE_F32, 1, a->rows, CATEGORY_WORKSPACE, &scale, e));
    const struct divide_args divide = {.count = a->rows,
                                       .a = tensor_f32(a->magnitude),
                                       .b = tensor_f32(norm) + a->first_row,
                                       .out = tensor_f32(scale)};
    const struct column_scale_args args = {.rows = x->rows,
                                           .cols = a->rows,
                                           .x = tensor_f32(x) + a->first_row,
                                           .ld_x = x->cols,
                                           .scale = tensor_f32(scale),
                                           .out = tensor_f32(out) + a->first_row,
                                           .ld_out = out->cols};
    enum status status = device_divide(device, &divide, e);
    if (status == STATUS_OK) status = device_column_scale(device, &args, e);
    tensor_release(scale);
    return status;
}

static enum status gemm(struct tape *tape, const struct gemm_args *args, struct err *e) {
    return device_gemm(tape->space->device, args, e);
}

/* c = alpha * x W^T + beta * c */
static enum status product(struct tape *tape, const struct linear *l, const struct tensor *x,
                           float alpha, float beta, const struct tensor *c, struct err *e) {
    const struct gemm_args args = {.m = x->rows,
                                   .n = l->weight->rows,
                                   .k = x->cols,
                                   .alpha = alpha,
                                   .beta = beta,
                                   .trans_b = true,
                                   .a = tensor_matrix(x),
                                   .b = tensor_matrix(l->weight),
                                   .c = tensor_matrix(c)};
    return gemm(tape, &args, e);
}

/* The DoRA end of forward: y holds x W^T + scaling x A^T B^T without bias; keeps it as *plain,
 * fills *norm, scales y. */
static enum status apply_magnitudes(struct tape *tape, const struct linear *l, struct tensor *y,
                                    struct tensor **plain, struct tensor **norm, struct err *e) {
    TRY(tensor_new(tape->space, DTYPE_F32, y->rows, y->cols, CATEGORY_ACTIVATIONS, plain, e));
    TRY(tensor_new(tape->space, DTYPE_F32, 1, y->cols, CATEGORY_ACTIVATIONS, norm, e));
    TRY(device_copy(tape->space->device, (*plain)->data, y->data, tensor_bytes(y), e));
    for (int64_t i = 0; i < l->adapter_count; i++) {
        const struct lora *const a = &l->adapters[i];
        TRY(weight_norm(tape, l, a, *norm, e));
        TRY(scale_columns(tape, a, *norm, *plain, y, e));
    }
    return STATUS_OK;
}

static enum status add_bias(struct tape *tape, const struct linear *l, struct tensor *y,
                            struct err *e) {
    const struct column_scale_args add = {.rows = y->rows,
                                          .cols = y->cols,
                                          .x = tensor_f32(y),
                                          .ld_x = y->cols,
                                          .bias = tensor_f32(l->bias),
                                          .out = tensor_f32(y),
                                          .ld_out = y->cols};
    return device_column_scale(tape->space->device, &add, e);
}

/* One adapter's part of backward. dz is the gradient of x W^T + scaling x A^T B^T in the adapter's
 * columns; adds to B's gradient and fills its columns of dxa. */
static enum status adapter_backward(struct tape *tape, const struct lora *a,
                                    const struct tensor *xa, const struct tensor *dz,
                                    struct tensor *dxa, struct err *e) {
    const struct gemm_args to_xa = {.m = dz->rows,
                                    .n = a->rank,
                                    .k = a->rows,
                                    .alpha = a->scaling,
                                    .a = columns(dz, a->first_row),
                                    .b = tensor_matrix(a->b),
                                    .c = columns(dxa, a->rank_first)};
    TRY(gemm(tape, &to_xa, e));
    struct tensor *db = NULL;
    bool accumulate = false;
    TRY(gradient_target(a->b->gradient, &db, &accumulate, e));
    const struct gemm_args to_b = {.m = a->rows,
                                   .n = a->rank,
                                   .k = dz->rows,
                                   .alpha = a->scaling,
                                   .beta = accumulate ? 1 : 0,
                                   .trans_a = true,
                                   .a = columns(dz, a->first_row),
                                   .b = columns(xa, a->rank_first),
                                   .c = tensor_matrix(db)};
    return gemm(tape, &to_b, e);
}

/* dmagnitude += sum over tokens of dy * plain / norm; then *dz = dy with the adapters' columns
 * scaled by m/norm. */
static enum status magnitudes_backward(struct tape *tape, const struct linear *l, struct node *node,
                                       struct tensor **dz, struct err *e) {
    struct device *const device = tape->space->device;
    const struct tensor *const plain = node->saved[SAVED_PLAIN], *const norm =
                                                                     node->saved[SAVED_NORM];
    const struct tensor *const dy = node->gradient;
    struct tensor *sums = NULL;
    TRY(tensor_new(tape->space, DTYPE_F32, dy->rows, dy->cols, CATEGORY_ACTIVATIONS, dz, e));
    TRY(device_copy(device, (*dz)->data, dy->data, tensor_bytes(dy), e));
    TRY(tensor_new(tape->space, DTYPE_F32, 1, dy->cols, CATEGORY_WORKSPACE, &sums, e));
    enum status status = STATUS_OK;
    for (int64_t i = 0; status == STATUS_OK && i < l->adapter_count; i++) {
        const struct lora *const a = &l->adapters[i];
        float *const part = tensor_f32(sums) + a->first_row;
        const struct column_sum_args sum = {.rows = dy->rows,
                                            .cols = a->rows,
                                            .x = tensor_f32(dy) + a->first_row,
                                            .ld_x = dy->cols,
                                            .y = tensor_f32(plain) + a->first_row,
                                            .ld_y = plain->cols,
                                            .out = part};
        const struct divide_args divide = {
            .count = a->rows, .a = part, .b = tensor_f32(norm) + a->first_row, .out = part};
        struct tensor *dm = NULL;
        bool accumulate = false;
        GUARD(gradient_target(a->magnitude->gradient, &dm, &accumulate, e));
        if (!accumulate) GUARD(tensor_fill_zero(dm, e));
        const struct add_args add = {
            .count = a->rows, .a = tensor_f32(dm), .b = part, .out = tensor_f32(dm)};
        GUARD(device_column_sum(device, &sum, e));
        GUARD(device_divide(device, &divide, e));
        GUARD(device_add(device, &add, e));
        GUARD(scale_columns(tape, a, norm, dy, *dz, e));
    }
done:
    tensor_release(sums);
    return status;
}

/* c = alpha * dy W + beta * c */
static enum status product_back(struct tape *tape, const struct linear *l, const struct tensor *dy,
                                float alpha, float beta, const struct tensor *c, struct err *e) {
    const struct gemm_args args = {.m = dy->rows,
                                   .n = l->weight->cols,
                                   .k = l->weight->rows,
                                   .alpha = alpha,
                                   .beta = beta,
                                   .a = tensor_matrix(dy),
                                   .b = tensor_matrix(l->weight),
                                   .c = tensor_matrix(c)};
    return gemm(tape, &args, e);
}

/* The adapters' part of backward: B, A, and dx (which may be NULL when x wants nothing). */
static enum status adapters_backward(struct tape *tape, const struct linear_extra *extra,
                                     struct node *node, const struct tensor *dz, struct tensor *dx,
                                     struct err *e) {
    const struct linear *const l = extra->linear;
    const struct tensor *const x =
        node->saved[SAVED_DROPPED] ? node->saved[SAVED_DROPPED] : node->saved[SAVED_INPUT];
    const struct tensor *const xa = node->saved[SAVED_XA];
    struct tensor *dxa = NULL, *part = NULL, *da = NULL;
    bool accumulate = false;
    enum status status = STATUS_OK;
    GUARD(tensor_new(tape->space, DTYPE_F32, xa->rows, xa->cols, CATEGORY_ACTIVATIONS, &dxa, e));
    for (int64_t i = 0; i < l->adapter_count; i++) {
        GUARD(adapter_backward(tape, &l->adapters[i], xa, dz, dxa, e));
    }
    GUARD(gradient_target(l->lora_a->gradient, &da, &accumulate, e));
    const struct gemm_args to_a = {.m = xa->cols,
                                   .n = x->cols,
                                   .k = x->rows,
                                   .alpha = 1,
                                   .beta = accumulate ? 1 : 0,
                                   .trans_a = true,
                                   .a = tensor_matrix(dxa),
                                   .b = tensor_matrix(x),
                                   .c = tensor_matrix(da)};
    GUARD(gemm(tape, &to_a, e));
    if (!dx) goto done;
    const bool dropped = node->saved[SAVED_KEYS] != NULL;
    if (dropped)
        GUARD(tensor_new(tape->space, DTYPE_F32, x->rows, x->cols, CATEGORY_ACTIVATIONS, &part, e));
    const struct gemm_args to_x = {.m = x->rows,
                                   .n = x->cols,
                                   .k = xa->cols,
                                   .alpha = 1,
                                   .beta = dropped ? 0 : 1,
                                   .a = tensor_matrix(dxa),
                                   .b = tensor_matrix(l->lora_a),
                                   .c = tensor_matrix(dropped ? part : dx)};
    GUARD(gemm(tape, &to_x, e));
    if (dropped && node->saved[SAVED_PLAIN]) {
        GUARD(product_back(tape, l, dz, 1, 1, part, e));
        GUARD(product_back(tape, l, node->gradient, -1, 1, part, e));
    }
    if (dropped) GUARD(dropout(tape, extra, node->saved[SAVED_KEYS], part, dx, true, e));
done:
    tensor_release(dxa);
    tensor_release(part);
    return status;
}

/* dW += dy^T x and dbias += sums of dy, where they are trained. */
static enum status weight_backward(struct tape *tape, struct node *node, const struct tensor *dz,
                                   struct err *e) {
    const struct tensor *const x = node->saved[SAVED_INPUT];
    struct tensor *value = NULL;
    bool accumulate = false;
    if (node->inputs[INPUT_WEIGHT]) {
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
        TRY(gemm(tape, &args, e));
    }
    if (!node->inputs[INPUT_BIAS]) return STATUS_OK;
    TRY(gradient_target(node->inputs[INPUT_BIAS], &value, &accumulate, e));
    const struct column_sum_args sum = {.rows = node->gradient->rows,
                                        .cols = node->gradient->cols,
                                        .x = tensor_f32(node->gradient),
                                        .ld_x = node->gradient->cols,
                                        .out = tensor_f32(value),
                                        .accumulate = accumulate};
    return device_column_sum(tape->space->device, &sum, e);
}

static enum status linear_backward(struct tape *tape, struct node *node, struct err *e) {
    struct linear_extra extra;
    memcpy(&extra, node->extra, sizeof extra);
    const struct linear *const l = extra.linear;
    struct tensor *scaled = NULL, *dx = NULL;
    bool accumulate = false;
    enum status status = STATUS_OK;
    if (node->saved[SAVED_PLAIN]) GUARD(magnitudes_backward(tape, l, node, &scaled, e));
    const struct tensor *const dz = scaled ? scaled : node->gradient;
    GUARD(weight_backward(tape, node, dz, e));
    if (node->inputs[INPUT_X]) {
        GUARD(gradient_target(node->inputs[INPUT_X], &dx, &accumulate, e));
        /* With dropout under DoRA the base sees x itself: its gradient is not scaled. */
        const bool apart = scaled && node->saved[SAVED_KEYS];
        const struct tensor *const base = apart ? node->gradient : dz;
        GUARD(product_back(tape, l, base, 1, accumulate ? 1 : 0, dx, e));
    }
    if (l->lora_a) GUARD(adapters_backward(tape, &extra, node, dz, dx, e));
done:
    tensor_release(scaled);
    return status;
}

/* y = x W^T (+ bias), then the adapters, into the tensors that backward will want. Under DoRA,
 * dropout acts on what the magnitude scales and not on the base (as in PEFT): with d = dropout(x),
 * y = (x - d) W^T + bias + m/norm * (d W^T + scaling d A^T B^T). */
static enum status linear_forward(struct tape *tape, struct tensor *x,
                                  const struct linear_extra *extra, struct tensor *row_keys,
                                  struct tensor **parts, struct tensor *y, struct err *e) {
    const struct linear *const l = extra->linear;
    const bool scaled = has_magnitude(l);
    const struct tensor *input = x;
    if (row_keys) {
        TRY(tensor_new(tape->space, DTYPE_F32, x->rows, x->cols, CATEGORY_ACTIVATIONS,
                       &parts[SAVED_DROPPED], e));
        TRY(dropout(tape, extra, row_keys, x, parts[SAVED_DROPPED], false, e));
        input = parts[SAVED_DROPPED];
    }
    TRY(product(tape, l, scaled ? input : x, 1, 0, y, e));
    if (l->lora_a) {
        TRY(tensor_new(tape->space, DTYPE_F32, x->rows, l->lora_a->rows, CATEGORY_ACTIVATIONS,
                       &parts[SAVED_XA], e));
        const struct gemm_args to_xa = {.m = x->rows,
                                        .n = l->lora_a->rows,
                                        .k = x->cols,
                                        .alpha = 1,
                                        .trans_b = true,
                                        .a = tensor_matrix(input),
                                        .b = tensor_matrix(l->lora_a),
                                        .c = tensor_matrix(parts[SAVED_XA])};
        TRY(gemm(tape, &to_xa, e));
    }
    for (int64_t i = 0; i < l->adapter_count; i++) {
        TRY(add_adapter(tape, &l->adapters[i], parts[SAVED_XA], y, e));
    }
    if (scaled) TRY(apply_magnitudes(tape, l, y, &parts[SAVED_PLAIN], &parts[SAVED_NORM], e));
    if (scaled && row_keys) {
        TRY(product(tape, l, x, 1, 1, y, e));
        TRY(product(tape, l, input, -1, 1, y, e));
    }
    return l->bias ? add_bias(tape, l, y, e) : STATUS_OK;
}

enum status op_linear(struct tape *tape, struct tensor *x, const struct linear *linear,
                      const struct random_keys *keys, struct tensor **out, struct err *e) {
    ASSERT(x->cols == linear->weight->cols);
    struct tensor *parts[NODE_SAVED_MAX] = {0};
    struct tensor *const row_keys =
        linear->lora_a && linear->dropout > 0 && tape->training ? keys->row_keys : NULL;
    const struct linear_extra extra = {.linear = linear, .seed = keys->seed, .step = keys->step};
    TRY(tensor_new(tape->space, DTYPE_F32, x->rows, linear->weight->rows, CATEGORY_ACTIVATIONS, out,
                   e));
    const enum status status = linear_forward(tape, x, &extra, row_keys, parts, *out, e);
    struct tensor *const inputs[] = {x, linear->weight, linear->bias, linear->lora_a};
    if (status == STATUS_OK && tape_records(tape, inputs, 4)) {
        struct node *const node = tape_push(tape, linear_backward, *out);
        node_input(node, INPUT_X, x);
        node_input(node, INPUT_WEIGHT, linear->weight);
        node_input(node, INPUT_BIAS, linear->bias);
        const bool wants_input =
            node->inputs[INPUT_WEIGHT] || (linear->lora_a && !parts[SAVED_DROPPED]);
        node_save(node, SAVED_INPUT, wants_input ? x : NULL);
        for (int i = SAVED_DROPPED; i <= SAVED_NORM; i++) {
            node_save(node, i, parts[i]);
        }
        node_save(node, SAVED_KEYS, row_keys);
        memcpy(node->extra, &extra, sizeof extra);
    }
    for (int i = 0; i < NODE_SAVED_MAX; i++) {
        tensor_release(parts[i]);
    }
    return status;
}
