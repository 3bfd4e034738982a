/* op_linear.c - the linear layer with LoRA and DoRA adapters on ranges of its output rows.
 *
 * q, k and v (and gate and up) are one product over a packed weight; each adapter adds into its own
 * columns of the result, and all adapters of a layer share one product x A^T. Where the device
 * likes it better the adapters ride in the tails of the operands (op_linear_tail.c). Sources: LoRA,
 * Hu et al. 2021, eq. 3; rsLoRA, Kalajdzievski 2023; DoRA, Liu et al. 2024, eq. 5. What dropout
 * kept is drawn again in backward: its random numbers are a pure function of their key. */
#include "engine/tensor/linear_internal.h"

#include <string.h>

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
                                      .accumulate = accumulate,
                                      .first = key->linear->first_input};
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

/* dW += dz^T x and dbias += sums of dy, where they are trained. */
static enum status weight_backward(const struct node *node, const struct tensor *dz,
                                   const struct tensor *x, struct err *e) {
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
        TRY(gemm(x, &args, e));
    }
    return gradient_add_columns(node->inputs[INPUT_BIAS], node->gradient, e);
}

/* dB += scaling * dz[:, rows]^T xa[:, ranks] */
static enum status b_backward(const struct lora *a, const struct tensor *dz,
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

/* dA += dxa^T x for all adapters at once. */
static enum status a_backward(const struct linear *l, struct matrix dxa, const struct tensor *x,
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

/* What dA, dB and dx are made of: the gradient of x W^T + scaling x A^T B^T. */
static const struct tensor *dz_of(const struct linear_back *b) {
    return b->scaled ? b->scaled : b->node->gradient;
}

/* dxa = scaling * dz B, each adapter in its own columns. */
static enum status adapters_begin(struct linear_back *b, struct err *e) {
    const struct linear *const l = b->extra->linear;
    const struct tensor *const dz = dz_of(b);
    TRY(tensor_activation(dz->space, dz->rows, l->lora_a->rows, 0, &b->part, e));
    b->dxa = tensor_matrix(b->part);
    for (int64_t i = 0; i < l->adapter_count; i++) {
        const struct lora *const a = &l->adapters[i];
        const struct gemm_args args = {.m = dz->rows,
                                       .n = a->rank,
                                       .k = a->rows,
                                       .alpha = a->scaling,
                                       .a = tensor_matrix_at(dz, 0, a->first_row),
                                       .b = tensor_matrix(a->b),
                                       .c = tensor_matrix_at(b->part, 0, a->rank_first)};
        TRY(gemm(dz, &args, e));
    }
    return STATUS_OK;
}

enum status linear_back_begin(struct linear_back *b, struct err *e) {
    const struct linear *const l = b->extra->linear;
    if (l->augmented) return tail_begin(b, e);
    if (b->node->saved[SAVED_PLAIN]) TRY(dora_backward(b->tape, l, b->node, &b->scaled, e));
    return l->lora_a ? adapters_begin(b, e) : STATUS_OK;
}

void linear_back_end(struct linear_back *b) {
    tensor_drop(&b->scaled);
    tensor_drop(&b->part);
}

/* x A^T for all adapters. */
static enum status make_xa(const struct linear *l, const struct tensor *x, struct tensor **xa,
                           struct err *e) {
    TRY(tensor_activation(x->space, x->rows, l->augmented ? l->tail : l->lora_a->rows, 0, xa, e));
    if (l->augmented) return tail_xa(l, x, tensor_matrix(*xa), e);
    const struct gemm_args args = {.m = x->rows,
                                   .n = l->lora_a->rows,
                                   .k = x->cols,
                                   .alpha = 1,
                                   .trans_b = true,
                                   .a = tensor_matrix(x),
                                   .b = tensor_matrix(l->lora_a),
                                   .c = tensor_matrix(*xa)};
    return gemm(x, &args, e);
}

/* dA and dB. Where the result was unread, nobody made x A^T yet. */
static enum status adapters_backward(const struct linear_back *b, const struct tensor *x,
                                     struct err *e) {
    const struct linear *const l = b->extra->linear;
    struct node *const node = b->node;
    struct tensor *dropped = NULL;
    enum status status = STATUS_OK;
    if (node->saved[SAVED_KEYS]) {
        GUARD(tensor_activation(x->space, x->rows, x->cols, 0, &dropped, e));
        GUARD(dropout(b->extra, node->saved[SAVED_KEYS], x, dropped, false, e));
        x = dropped;
    }
    if (!node->saved[SAVED_XA]) GUARD(make_xa(l, x, &node->saved[SAVED_XA], e));
    for (int64_t i = 0; i < l->adapter_count; i++) {
        GUARD(b_backward(&l->adapters[i], dz_of(b), node->saved[SAVED_XA], e));
    }
    node_drop(node, SAVED_XA);
    GUARD(a_backward(l, b->dxa, x, e));
done:
    tensor_release(dropped);
    return status;
}

enum status linear_back_parameters(const struct linear_back *b, const struct tensor *x,
                                   struct err *e) {
    TRY(weight_backward(b->node, dz_of(b), x, e));
    return b->extra->linear->lora_a ? adapters_backward(b, x, e) : STATUS_OK;
}

/* dx += the gradient through the adapters, where their input was dropped out. With dropout under
 * DoRA the base sees x itself, whose gradient is not scaled: `apart` brings the scaled one. */
static enum status dropped_input(const struct linear_back *b, const struct tensor *dx, bool apart,
                                 struct err *e) {
    const struct linear *const l = b->extra->linear;
    struct node *const node = b->node;
    struct tensor *part = NULL;
    enum status status = STATUS_OK;
    TRY(tensor_activation(dx->space, dx->rows, dx->cols, 0, &part, e));
    const struct gemm_args args = {.m = dx->rows,
                                   .n = dx->cols,
                                   .k = l->lora_a->rows,
                                   .alpha = 1,
                                   .a = b->dxa,
                                   .b = tensor_matrix(l->lora_a),
                                   .c = tensor_matrix(part)};
    GUARD(gemm(dx, &args, e));
    if (apart) {
        GUARD(linear_product_back(l, dz_of(b), 1, 1, part, e));
        GUARD(linear_product_back(l, node->gradient, -1, 1, part, e));
    }
    GUARD(dropout(b->extra, node->saved[SAVED_KEYS], part, dx, true, e));
done:
    tensor_release(part);
    return status;
}

static enum status plain_input(const struct linear_back *b, const struct tensor *dx,
                               bool accumulate, struct err *e) {
    const struct linear *const l = b->extra->linear;
    const struct node *const node = b->node;
    const bool apart = node->saved[SAVED_PLAIN] && node->saved[SAVED_KEYS];
    TRY(linear_product_back(l, apart ? node->gradient : dz_of(b), 1, accumulate ? 1 : 0, dx, e));
    if (!l->lora_a) return STATUS_OK;
    if (node->saved[SAVED_KEYS]) return dropped_input(b, dx, apart, e);
    const struct gemm_args args = {.m = dx->rows,
                                   .n = dx->cols,
                                   .k = l->lora_a->rows,
                                   .alpha = 1,
                                   .beta = 1,
                                   .a = b->dxa,
                                   .b = tensor_matrix(l->lora_a),
                                   .c = tensor_matrix(dx)};
    return gemm(dx, &args, e);
}

enum status linear_back_input(const struct linear_back *b, const struct tensor *dx, bool accumulate,
                              struct err *e) {
    const struct linear *const l = b->extra->linear;
    struct tensor *scratch = NULL;
    enum status status = linear_open_weight(l, &scratch, e);
    if (status == STATUS_OK)
        status = (l->augmented ? tail_input : plain_input)(b, dx, accumulate, e);
    linear_close_weight(l, &scratch);
    return status;
}

static enum status linear_backward(struct tape *tape, struct node *node, struct err *e) {
    struct linear_extra extra;
    memcpy(&extra, node->extra, sizeof extra);
    struct linear_back back = {.extra = &extra, .tape = tape, .node = node};
    struct tensor *x = NULL, *dx = NULL;
    bool accumulate = false;
    enum status status = STATUS_OK;
    GUARD(linear_back_begin(&back, e));
    GUARD(node_saved(node, SAVED_INPUT, &x, e));
    GUARD(linear_back_parameters(&back, x, e));
    node_drop(node, SAVED_INPUT); /* its bytes may become those of its gradient */
    if (!node->inputs[INPUT_X]) goto done;
    GUARD(gradient_target(node->inputs[INPUT_X], &dx, &accumulate, e));
    GUARD(linear_back_input(&back, dx, accumulate, e));
done:
    linear_back_end(&back);
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

/* y = x W^T + bias, then the adapters, leaving in `parts` what backward will want. Under DoRA,
 * dropout acts on what the magnitude scales and not on the base (as in PEFT): with d = dropout(x),
 * y = (x - d) W^T + bias + m/norm * (d W^T + scaling d A^T B^T). */
static enum status plain_forward(struct tape *tape, struct tensor *x,
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
    GUARD(linear_product(l, &base, e));
    if (l->lora_a) GUARD(make_xa(l, input, &parts[SAVED_XA], e));
    for (int64_t i = 0; i < l->adapter_count; i++) {
        GUARD(add_adapter(&l->adapters[i], parts[SAVED_XA], y, e));
    }
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

/* The magnitudes of DoRA are a function of the result. */
bool linear_is_unread(const struct tape *tape, const struct linear *l) {
    return tape->unread && !has_magnitude(l);
}

enum status linear_forward(struct tape *tape, struct tensor *x, const struct linear_extra *extra,
                           struct tensor **parts, struct tensor **out, struct err *e) {
    const struct linear *const l = extra->linear;
    const int64_t rows = x->rows, cols = l->weight->rows;
    const bool unread = linear_is_unread(tape, l);
    ASSERT(x->cols == l->weight->cols && (!l->augmented || l->dropout == 0));
    if (unread) {
        *out = tensor_without_bytes(tape->space, rows, cols);
    } else {
        TRY(tensor_activation(tape->space, rows, cols, l->output_tail, out, e));
    }
    tensor_want_tail(*out, l->tail);
    if (unread) return STATUS_OK;
    struct tensor *scratch = NULL;
    enum status status = linear_open_weight(l, &scratch, e);
    if (status == STATUS_OK)
        status = l->augmented ? tail_forward(tape, l, x, *out, &parts[SAVED_XA], e)
                              : plain_forward(tape, x, extra, parts, *out, e);
    linear_close_weight(l, &scratch);
    return status;
}

enum status linear_own_xa(struct tensor **parts, struct err *e) {
    struct tensor *const xa = parts[SAVED_XA];
    if (!xa || !xa->owner) return STATUS_OK;
    struct tensor *own = NULL;
    TRY(tensor_activation(xa->space, xa->rows, xa->cols, 0, &own, e));
    const enum status status = tensor_copy(own, xa, e);
    tensor_release(xa);
    parts[SAVED_XA] = own;
    return status;
}

struct node *linear_record(struct tape *tape, struct tensor *x, const struct linear_extra *extra,
                           struct tensor *const *parts, struct tensor *out) {
    const struct linear *const l = extra->linear;
    struct tensor *const inputs[] = {x, l->weight, l->bias, l->lora_a};
    if (!tape_records(tape, inputs, 4)) return NULL;
    struct node *const node = tape_push(tape, linear_backward, out);
    node_input(node, INPUT_X, x);
    node_input(node, INPUT_WEIGHT, l->weight);
    node_input(node, INPUT_BIAS, l->bias);
    for (int i = 0; i < SAVED_COUNT; i++) {
        node_save(node, i, parts[i]);
    }
    memcpy(node->extra, extra, sizeof *extra);
    return node;
}

struct tensor *linear_row_keys(const struct tape *tape, const struct linear *l,
                               const struct random_keys *keys) {
    const bool drops = l->lora_a && l->dropout > 0 && tape->training;
    return drops ? tensor_retain(keys->row_keys) : NULL;
}

enum status op_linear(struct tape *tape, struct tensor *x, const struct linear *linear,
                      const struct random_keys *keys, struct tensor **out, struct err *e) {
    const struct linear_extra extra = {.linear = linear, .seed = keys->seed, .step = keys->step};
    struct tensor *parts[SAVED_COUNT] = {[SAVED_KEYS] = linear_row_keys(tape, linear, keys)};
    if (linear->weight->gradient || linear->lora_a) parts[SAVED_INPUT] = tensor_retain(x);
    enum status status = linear_forward(tape, x, &extra, parts, out, e);
    /* An x with a recipe is made again for backward, without its tail. */
    if (status == STATUS_OK && x->recipe) status = linear_own_xa(parts, e);
    if (status == STATUS_OK) linear_record(tape, x, &extra, parts, *out);
    for (int i = 0; i < SAVED_COUNT; i++) {
        tensor_release(parts[i]);
    }
    return status;
}
