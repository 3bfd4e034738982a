/* op_attention.c - q/k norm, rotary embedding and attention over one packed projection, as one
 * operation.
 *
 * Without q/k norm the rotation happens in place in the projection's own buffer: nothing else needs
 * the unrotated values (the projection's backward reads its input, not its output). With q/k norm
 * the normalised q and k get a buffer of their own, because the norm's backward needs what was
 * normalised; that buffer is not kept but made again in backward. */
#include "engine/tensor/ops.h"

#include <string.h>

enum { SAVED_QKV, SAVED_RSTD, SAVED_OUT, SAVED_LSE };
enum { INPUT_QKV, INPUT_Q_WEIGHT, INPUT_K_WEIGHT };

struct attention_extra {
    const struct attention_options *options;
    const struct documents *documents;
};

/* The element of the first row at this column. */
static void *column(const struct tensor *t, int64_t first) {
    return tensor_matrix_at(t, 0, first).data;
}

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
                                   .dtype = t->dtype,
                                   .x = t->data,
                                   .ld = t->ld,
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
                                          .dtype = qkv->dtype,
                                          .x = column(qkv, p.column),
                                          .ld_x = qkv->ld,
                                          .weight = tensor_f32(p.weight),
                                          .weight_offset = o->norm.offset,
                                          .eps = o->norm.eps,
                                          .y = column(qk, p.column),
                                          .ld_y = qk->ld,
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
                                                   .dtype = qkv->dtype,
                                                   .x = column(qkv, p.column),
                                                   .ld_x = qkv->ld,
                                                   .weight = tensor_f32(p.weight),
                                                   .weight_offset = o->norm.offset,
                                                   .rstd =
                                                       tensor_f32(node->saved[SAVED_RSTD]) + p.rstd,
                                                   .dy = column(dqk, p.column),
                                                   .ld_dy = dqk->ld,
                                                   .dx = column(dqkv, p.column),
                                                   .ld_dx = dqkv->ld,
                                                   .dweight = dweight ? tensor_f32(dweight) : NULL};
        TRY(device_rmsnorm_backward(tape->space->device, &args, e));
    }
    return STATUS_OK;
}

/* The normalised and rotated q and k in a buffer of their own; rstd is filled. */
static enum status make_qk(struct tape *tape, const struct attention_extra *extra,
                           const struct tensor *qkv, const struct tensor *rstd, struct tensor **qk,
                           struct err *e) {
    const struct attention_options *const o = extra->options;
    TRY(tensor_activation(tape->space, qkv->rows, qk_columns(o), 0, qk, e));
    TRY(normalise(tape, o, qkv, *qk, rstd, e));
    return rotate(tape, extra, *qk, false, e);
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
                                   .dtype = qkv->dtype,
                                   .q = qk->data,
                                   .k = column(qk, q_columns(o)),
                                   .v = column(qkv, qk_columns(o)),
                                   .ld_q = qk->ld,
                                   .ld_k = qk->ld,
                                   .ld_v = qkv->ld,
                                   .out = out->data,
                                   .ld_out = out->ld,
                                   .lse = tensor_f32(lse)};
}

/* Memory that one call of the device wants; *out stays NULL where it wants none. */
static enum status take_scratch(struct tape *tape, struct attention_args *args, bool backward,
                                struct tensor **out, struct err *e) {
    const int64_t bytes = device_attention_scratch(tape->space->device, args, backward);
    if (bytes == 0) return STATUS_OK;
    TRY(tensor_new(tape->space, DTYPE_F32, 1, (bytes + 3) / 4, CATEGORY_WORKSPACE, out, e));
    args->scratch = (*out)->data;
    return STATUS_OK;
}

/* Where q and k are read, where their gradients go, and where that of v goes. */
struct backward_call {
    const struct tensor *qk, *dqk, *dqkv;
};

static enum status call_backward(struct tape *tape, const struct attention_extra *extra,
                                 const struct node *node, const struct backward_call *call,
                                 struct err *e) {
    const struct attention_options *const o = extra->options;
    const struct tensor *const dy = node->gradient, *const dqk = call->dqk,
                               *const dqkv = call->dqkv;
    struct tensor *scratch = NULL;
    struct attention_backward_args args = {.forward = arguments(extra, node->saved[SAVED_QKV],
                                                                call->qk, node->saved[SAVED_OUT],
                                                                node->saved[SAVED_LSE]),
                                           .dout = dy->data,
                                           .ld_dout = dy->ld,
                                           .dq = dqk->data,
                                           .dk = column(dqk, q_columns(o)),
                                           .dv = column(dqkv, qk_columns(o)),
                                           .ld_dq = dqk->ld,
                                           .ld_dk = dqk->ld,
                                           .ld_dv = dqkv->ld};
    TRY(take_scratch(tape, &args.forward, true, &scratch, e));
    const enum status status = device_attention_backward(tape->space->device, &args, e);
    tensor_release(scratch);
    return status;
}

static enum status attention_backward(struct tape *tape, struct node *node, struct err *e) {
    struct attention_extra extra;
    memcpy(&extra, node->extra, sizeof extra);
    const struct attention_options *const o = extra.options;
    struct tensor *const qkv = node->saved[SAVED_QKV];
    struct tensor *qk = NULL, *dqkv = NULL, *dqk = NULL;
    enum status status = STATUS_OK;
    if (o->q_weight) GUARD(make_qk(tape, &extra, qkv, node->saved[SAVED_RSTD], &qk, e));
    GUARD(tensor_activation(tape->space, qkv->rows, qkv->cols, node->inputs[INPUT_QKV]->tail, &dqkv,
                            e));
    if (qk) GUARD(tensor_activation(tape->space, qk->rows, qk->cols, 0, &dqk, e));
    const struct backward_call call = {qk ? qk : qkv, dqk ? dqk : dqkv, dqkv};
    GUARD(call_backward(tape, &extra, node, &call, e));
    tensor_drop(&qk);
    GUARD(rotate(tape, &extra, dqk ? dqk : dqkv, true, e));
    if (dqk) GUARD(normalise_backward(tape, o, node, dqk, dqkv, e));
    GUARD(gradient_add(node->inputs[INPUT_QKV], dqkv, e));
done:
    tensor_release(qk);
    tensor_release(dqkv);
    tensor_release(dqk);
    return status;
}

static void record(struct tape *tape, const struct attention_extra *extra, struct tensor *qkv,
                   struct tensor *out, struct tensor *rstd, struct tensor *lse) {
    const struct attention_options *const o = extra->options;
    struct tensor *const inputs[] = {qkv, o->q_weight, o->k_weight};
    if (!tape_records(tape, inputs, 3)) return;
    tensor_want_gradient(qkv); /* q/k norm weights may be the only thing trained below */
    struct node *const node = tape_push(tape, attention_backward, out);
    node_input(node, INPUT_QKV, qkv);
    node_input(node, INPUT_Q_WEIGHT, o->q_weight);
    node_input(node, INPUT_K_WEIGHT, o->k_weight);
    node_save(node, SAVED_QKV, qkv);
    node_save(node, SAVED_RSTD, rstd);
    node_save(node, SAVED_OUT, out);
    node_save(node, SAVED_LSE, lse);
    memcpy(node->extra, extra, sizeof *extra);
}

enum status op_attention(struct tape *tape, struct tensor *qkv,
                         const struct attention_options *options, const struct documents *documents,
                         struct tensor **out, struct err *e) {
    const struct attention_extra extra = {.options = options, .documents = documents};
    const int64_t tokens = qkv->rows, heads = options->heads + options->kv_heads;
    struct tensor_space *const space = tape->space;
    struct tensor *qk = NULL, *rstd = NULL, *lse = NULL, *scratch = NULL;
    enum status status = STATUS_OK;
    ASSERT(!qkv->recipe); /* it is rotated in place */
    GUARD(tensor_activation(space, tokens, q_columns(options), options->tail, out, e));
    GUARD(tensor_new(space, DTYPE_F32, options->heads, tokens, CATEGORY_ACTIVATIONS, &lse, e));
    if (options->q_weight) {
        GUARD(tensor_new(space, DTYPE_F32, 1, tokens * heads, CATEGORY_ACTIVATIONS, &rstd, e));
        GUARD(make_qk(tape, &extra, qkv, rstd, &qk, e));
    } else {
        GUARD(rotate(tape, &extra, qkv, false, e));
    }
    struct attention_args args = arguments(&extra, qkv, qk ? qk : qkv, *out, lse);
    GUARD(take_scratch(tape, &args, false, &scratch, e));
    GUARD(device_attention(space->device, &args, e));
    record(tape, &extra, qkv, *out, rstd, lse);
done:
    tensor_release(scratch);
    tensor_release(qk);
    tensor_release(rstd);
    tensor_release(lse);
    return status;
}
