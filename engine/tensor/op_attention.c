/* op_attention.c - q/k norm, rotary embedding and attention over one packed projection, as one
 * operation.
 *
 * Without q/k norm the rotation happens in place in the projection's own buffer: nothing else needs
 * the unrotated values (the projection's backward reads its input, not its output). With q/k norm
 * the normalised q and k get a buffer of their own, because the norm's backward needs what was
 * normalised. */
#include "engine/tensor/ops.h"

#include <string.h>

enum { SAVED_QKV, SAVED_QK, SAVED_RSTD, SAVED_OUT, SAVED_LSE };
enum { INPUT_QKV, INPUT_Q_WEIGHT, INPUT_K_WEIGHT };

struct attention_extra {
    const struct attention_options *options;
    const struct documents *documents;
};

static int64_t q_columns(const struct attention_options *o) {
    return o->heads * o->head_dim;
}

static int64_t qk_columns(const struct attention_options *o) {
    return (o->heads + o->kv_heads) * o->head_dim;
}

/* Rotates q and k, which stand side by side at the start of each row of t. */
static enum status rotate(struct tape *tape, const struct attention_extra *extra,
                          const struct tensor *t, bool inverse, struct err *e) {
    const struct attention_options *const o = extra->options;
    const struct rope_args args = {.tokens = t->rows,
                                   .heads = o->heads + o->kv_heads,
                                   .head_dim = o->head_dim,
                                   .rotary = o->rotary_dim,
                                   .x = tensor_f32(t),
                                   .ld = t->cols,
                                   .positions = tensor_i32(extra->documents->positions),
                                   .inv_freq = tensor_f32(o->inv_freq),
                                   .scale = o->rope_scale,
                                   .inverse = inverse};
    return device_rope(tape->space->device, &args, e);
}

/* Where q or k starts in a row, how many heads it has, and its part of the saved rstd. */
struct part {
    int64_t column, heads, rstd;
    const struct tensor *weight;
    int input;
};

static struct part part_of(const struct attention_options *o, int64_t tokens, int which) {
    if (which == 0) return (struct part){0, o->heads, 0, o->q_weight, INPUT_Q_WEIGHT};
    return (struct part){q_columns(o), o->kv_heads, tokens * o->heads, o->k_weight, INPUT_K_WEIGHT};
}

static enum status normalise(struct tape *tape, const struct attention_options *o,
                             const struct tensor *qkv, const struct tensor *qk,
                             const struct tensor *rstd, struct err *e) {
    for (int which = 0; which < 2; which++) {
        const struct part p = part_of(o, qkv->rows, which);
        const struct rmsnorm_args args = {.tokens = qkv->rows,
                                          .groups = p.heads,
                                          .width = o->head_dim,
                                          .x = tensor_f32(qkv) + p.column,
                                          .ld_x = qkv->cols,
                                          .weight = tensor_f32(p.weight),
                                          .weight_offset = o->norm.offset,
                                          .eps = o->norm.eps,
                                          .y = tensor_f32(qk) + p.column,
                                          .ld_y = qk->cols,
                                          .rstd = tensor_f32(rstd) + p.rstd};
        TRY(device_rmsnorm(tape->space->device, &args, e));
    }
    return STATUS_OK;
}

static enum status normalise_backward(struct tape *tape, const struct attention_options *o,
                                      struct node *node, const struct tensor *dqk,
                                      const struct tensor *dqkv, struct err *e) {
    const struct tensor *const qkv = node->saved[SAVED_QKV];
    for (int which = 0; which < 2; which++) {
        const struct part p = part_of(o, qkv->rows, which);
        struct tensor *dweight = NULL;
        bool accumulate = false;
        if (node->inputs[p.input]) {
            TRY(gradient_target(node->inputs[p.input], &dweight, &accumulate, e));
            if (!accumulate) TRY(tensor_fill_zero(dweight, e));
        }
        const struct rmsnorm_backward_args args = {.tokens = qkv->rows,
                                                   .groups = p.heads,
                                                   .width = o->head_dim,
                                                   .x = tensor_f32(qkv) + p.column,
                                                   .ld_x = qkv->cols,
                                                   .weight = tensor_f32(p.weight),
                                                   .weight_offset = o->norm.offset,
                                                   .rstd =
                                                       tensor_f32(node->saved[SAVED_RSTD]) + p.rstd,
                                                   .dy = tensor_f32(dqk) + p.column,
                                                   .ld_dy = dqk->cols,
                                                   .dx = tensor_f32(dqkv) + p.column,
                                                   .ld_dx = dqkv->cols,
                                                   .dweight = dweight ? tensor_f32(dweight) : NULL};
        TRY(device_rmsnorm_backward(tape->space->device, &args, e));
    }
    return STATUS_OK;
}

/* What attention reads: q and k from qk (which is qkv itself without q/k norm), v from qkv. */
static struct attention_args arguments(const struct attention_extra *extra,
                                       const struct tensor *qkv, const struct tensor *qk,
                                       const struct tensor *out, const struct tensor *lse) {
    const struct attention_options *const o = extra->options;
    return (struct attention_args){.tokens = qkv->rows,
                                   .heads = o->heads,
                                   .kv_heads = o->kv_heads,
                                   .head_dim = o->head_dim,
                                   .segments = extra->documents->segments,
                                   .max_seqlen = extra->documents->max_seqlen,
                                   .cu_seqlens = tensor_i32(extra->documents->cu_seqlens),
                                   .scale = o->scale,
                                   .softcap = o->softcap,
                                   .window = o->window,
                                   .q = tensor_f32(qk),
                                   .k = tensor_f32(qk) + q_columns(o),
                                   .v = tensor_f32(qkv) + qk_columns(o),
                                   .ld_q = qk->cols,
                                   .ld_k = qk->cols,
                                   .ld_v = qkv->cols,
                                   .out = tensor_f32(out),
                                   .lse = tensor_f32(lse)};
}

static enum status attention_backward(struct tape *tape, struct node *node, struct err *e) {
    struct attention_extra extra;
    memcpy(&extra, node->extra, sizeof extra);
    const struct attention_options *const o = extra.options;
    const struct tensor *const qkv = node->saved[SAVED_QKV];
    const struct tensor *const qk = node->saved[SAVED_QK] ? node->saved[SAVED_QK] : qkv;
    struct tensor *dqkv = NULL, *dqk = NULL, *delta = NULL;
    enum status status = STATUS_OK;
    GUARD(tensor_new(tape->space, DTYPE_F32, qkv->rows, qkv->cols, CATEGORY_ACTIVATIONS, &dqkv, e));
    if (qk == qkv) {
        dqk = tensor_retain(dqkv);
    } else {
        GUARD(
            tensor_new(tape->space, DTYPE_F32, qk->rows, qk->cols, CATEGORY_ACTIVATIONS, &dqk, e));
    }
    GUARD(tensor_new(tape->space, DTYPE_F32, o->heads, qkv->rows, CATEGORY_WORKSPACE, &delta, e));
    const struct attention_backward_args args = {
        .forward = arguments(&extra, qkv, qk, node->saved[SAVED_OUT], node->saved[SAVED_LSE]),
        .dout = tensor_f32(node->gradient),
        .dq = tensor_f32(dqk),
        .dk = tensor_f32(dqk) + q_columns(o),
        .dv = tensor_f32(dqkv) + qk_columns(o),
        .ld_dq = dqk->cols,
        .ld_dk = dqk->cols,
        .ld_dv = dqkv->cols,
        .delta = tensor_f32(delta)};
    GUARD(device_attention_backward(tape->space->device, &args, e));
    GUARD(rotate(tape, &extra, dqk, true, e));
    if (qk != qkv) GUARD(normalise_backward(tape, o, node, dqk, dqkv, e));
    GUARD(gradient_add(node->inputs[INPUT_QKV], dqkv, e));
done:
    tensor_release(dqkv);
    tensor_release(dqk);
    tensor_release(delta);
    return status;
}

enum status op_attention(struct tape *tape, struct tensor *qkv,
                         const struct attention_options *options, const struct documents *documents,
                         struct tensor **out, struct err *e) {
    const struct attention_extra extra = {.options = options, .documents = documents};
    const int64_t tokens = qkv->rows;
    struct tensor *qk = NULL, *rstd = NULL, *lse = NULL;
    enum status status = STATUS_OK;
    GUARD(tensor_new(tape->space, DTYPE_F32, tokens, q_columns(options), CATEGORY_ACTIVATIONS, out,
                     e));
    GUARD(
        tensor_new(tape->space, DTYPE_F32, options->heads, tokens, CATEGORY_ACTIVATIONS, &lse, e));
    if (options->q_weight) {
        const int64_t heads = options->heads + options->kv_heads;
        GUARD(tensor_new(tape->space, DTYPE_F32, tokens, qk_columns(options), CATEGORY_ACTIVATIONS,
                         &qk, e));
        GUARD(
            tensor_new(tape->space, DTYPE_F32, 1, tokens * heads, CATEGORY_ACTIVATIONS, &rstd, e));
        GUARD(normalise(tape, options, qkv, qk, rstd, e));
    }
    GUARD(rotate(tape, &extra, qk ? qk : qkv, false, e));
    const struct attention_args args = arguments(&extra, qkv, qk ? qk : qkv, *out, lse);
    GUARD(device_attention(tape->space->device, &args, e));
    struct tensor *const inputs[] = {qkv, options->q_weight, options->k_weight};
    if (!tape_records(tape, inputs, 3)) goto done;
    tensor_want_gradient(qkv); /* q/k norm weights may be the only thing trained below */
    struct node *const node = tape_push(tape, attention_backward, *out);
    node_input(node, INPUT_QKV, qkv);
    node_input(node, INPUT_Q_WEIGHT, options->q_weight);
    node_input(node, INPUT_K_WEIGHT, options->k_weight);
    node_save(node, SAVED_QKV, qkv);
    node_save(node, SAVED_QK, qk);
    node_save(node, SAVED_RSTD, rstd);
    node_save(node, SAVED_OUT, *out);
    node_save(node, SAVED_LSE, lse);
    memcpy(node->extra, &extra, sizeof extra);
done:
    tensor_release(qk);
    tensor_release(rstd);
    tensor_release(lse);
    return status;
}
