/* decoder.c - a pre-norm decoder (Touvron et al. 2023) with what its relatives add: q/k norms,
 * biases, sandwich norms, sliding layers, soft caps. All of that is data in the layer; there is one
 * path. */
#include "engine/model/decoder.h"

#include <math.h>
#include <string.h>

#include "engine/model/shard.h"
#include "engine/model/shard_weights.h"

/* *y = norm(*y), replacing it, where there is such a norm (sandwich norms). */
static enum status close_branch(struct tape *tape, const struct norm *norm, struct tensor **y,
                                struct err *e) {
    if (!norm->weight) return STATUS_OK;
    struct tensor *normed = NULL;
    const enum status status = op_rmsnorm(tape, *y, norm, &normed, e);
    tensor_release(*y);
    *y = normed;
    return status;
}

static enum status attention_branch(const struct decoder_inputs *in, const struct layer *l,
                                    struct tape *tape, struct tensor *x, struct tensor **out,
                                    struct err *e) {
    const struct random_keys *const keys = &in->keys;
    struct comm_group *const group = in->model->group;
    const struct all_rows all = {in->ids->cols, l->qkv.tail};
    struct tensor *own = NULL, *h = NULL, *qkv = NULL, *mixed = NULL, *part = NULL;
    enum status status = STATUS_OK;
    GUARD(op_rmsnorm(tape, x, &l->norm_attention, &own, e));
    GUARD(op_gather_members(tape, group, own, &all, &h, e));
    tensor_drop(&own);
    GUARD(op_linear(tape, h, &l->qkv, keys, &qkv, e));
    tensor_drop(&h);
    GUARD(op_attention(tape, qkv, &l->attention, &in->documents, &mixed, e));
    tensor_drop(&qkv);
    GUARD(op_linear(tape, mixed, &l->o, keys, &part, e));
    tensor_drop(&mixed);
    GUARD(op_scatter_sum(tape, group, part, &l->o.sum_bias, out, e));
    tensor_drop(&part);
    GUARD(close_branch(tape, &l->norm_attention_after, out, e));
done:
    tensor_release(own);
    tensor_release(part);
    tensor_release(h);
    tensor_release(qkv);
    tensor_release(mixed);
    return status;
}

/* Takes over the caller's reference to own, which is let go of as soon as nothing reads it. */
static enum status mlp_branch(const struct decoder_inputs *in, const struct layer *l,
                              struct tape *tape, struct tensor *own, struct tensor **out,
                              struct err *e) {
    const struct random_keys *const keys = &in->keys;
    struct comm_group *const group = in->model->group;
    const struct all_rows all = {in->ids->cols, l->gate_up.tail};
    struct tensor *h = NULL, *gate_up = NULL, *part = NULL;
    const struct glu_linear down = {in->model->config.activation, &l->down};
    enum status status = STATUS_OK;
    GUARD(op_gather_members(tape, group, own, &all, &h, e));
    tensor_drop(&own);
    GUARD(op_linear(tape, h, &l->gate_up, keys, &gate_up, e));
    tensor_drop(&h);
    /* When the layer runs again only for its backward, nobody reads what its last product gives. */
    tape->unread = tape->rerun && !l->norm_mlp_after.weight;
    GUARD(op_glu_linear(tape, &gate_up, &down, keys, &part, e));
    GUARD(op_scatter_sum(tape, group, part, &l->down.sum_bias, out, e));
    tape->unread = false;
    tensor_drop(&part);
    GUARD(close_branch(tape, &l->norm_mlp_after, out, e));
done:
    tensor_release(own);
    tensor_release(h);
    tensor_release(gate_up);
    tensor_release(part);
    return status;
}

/* Where backward enters and leaves a layer: gradients and weights may be there only meanwhile. */
static enum status enter_backward(struct tape *tape, struct node *node, struct err *e) {
    (void)tape;
    struct tape_mark mark;
    memcpy(&mark, node->extra, sizeof mark);
    TRY(shard_gather(mark.context, mark.index, shard_before(mark.index), e));
    return shard_begin(mark.context, mark.index, e);
}

static enum status leave_backward(struct tape *tape, struct node *node, struct err *e) {
    (void)tape;
    struct tape_mark mark;
    memcpy(&mark, node->extra, sizeof mark);
    shard_let_go(mark.context, mark.index);
    return shard_end(mark.context, mark.index, e);
}

/* A layer ends with a plain sum: its result is one tensor, as a checkpointed segment's must be.
 * (The sum fused with the next layer's norm would save one pass over [T,C] of some thirty.) */
static enum status run_layer(struct tape *tape, void *context, int64_t index, struct tensor *x,
                             struct tensor **out, struct err *e) {
    const struct decoder_inputs *const in = context;
    const struct layer *const l = &in->model->layers[index];
    struct arena *const arena = in->model->space->arena;
    struct tensor *branch = NULL, *middle = NULL, *h = NULL;
    enum status status = STATUS_OK;
    const struct tape_mark mark = {in->model, index};
    const bool marks = shard_has_marks(in->model) || weights_come_and_go(in->model);
    const int64_t after = tape->rerun ? shard_before(index) : shard_after(in->model, index);
    if (marks) tape_mark(tape, leave_backward, mark);
    GUARD(shard_gather(in->model, index, after, e));
    arena_set_label(arena, (struct arena_label){"attention", (int32_t)index});
    GUARD(attention_branch(in, l, tape, x, &branch, e));
    const struct addends addends = {x, branch};
    arena_set_label(arena, (struct arena_label){"mlp", (int32_t)index});
    GUARD(op_add_rmsnorm(tape, addends, &l->norm_mlp, &middle, &h, e));
    tensor_drop(&branch);
    struct tensor *const normed = h;
    h = NULL;
    GUARD(mlp_branch(in, l, tape, normed, &branch, e));
    tape->unread = tape->rerun;
    GUARD(op_add(tape, middle, branch, out, e));
    if (marks) tape_mark(tape, enter_backward, mark);
    /* What runs again for its backward needs the weights at once. */
    const bool kept = tape->rerun || (tape->training && in->model->options.keeps_gathered);
    if (!kept) shard_let_go(in->model, index);
done:
    tape->unread = false;
    tensor_release(branch);
    tensor_release(middle);
    tensor_release(h);
    return status;
}

static enum status enter_embedding(struct tape *tape, struct node *node, struct err *e) {
    (void)tape;
    struct tape_mark mark;
    memcpy(&mark, node->extra, sizeof mark);
    return shard_begin(mark.context, UNIT_EMBEDDING, e);
}

/* sqrt(hidden_size) for Gemma, rounded to the dtype that the embedding is read in, as transformers
 * does. */
static float embedding_scale(const struct model *m) {
    const float scale = (float)m->config.embedding_scale;
    if (m->options.weight_dtype == DTYPE_F32) return scale;
    const int bits = m->options.weight_dtype == DTYPE_F16 ? 11 : 8; /* of the mantissa */
    int exponent = 0;
    const float mantissa = frexpf(scale, &exponent);
    return ldexpf(rintf(ldexpf(mantissa, bits)), exponent - bits);
}

/* This rank's rows of the embedded ids: each rank has those of its own part of the vocabulary. */
static enum status embed(struct tape *tape, const struct decoder_inputs *in, struct tensor **out,
                         struct err *e) {
    struct model *const m = in->model;
    const struct embedding embedding = {.table = m->embedding,
                                        .scale = embedding_scale(m),
                                        .partial = m->group != NULL,
                                        .first = m->division.vocab.first};
    struct tensor *part = NULL;
    TRY(shard_gather(m, UNIT_EMBEDDING, 0, e));
    enum status status = op_embedding(tape, in->ids, &embedding, &part, e);
    if (status == STATUS_OK)
        status = op_scatter_sum(tape, m->group, part, &(struct sum_bias){0}, out, e);
    tensor_release(part);
    TRY(status);
    shard_let_go(m, UNIT_EMBEDDING);
    if (shard_has_marks(m)) tape_mark(tape, enter_embedding, (struct tape_mark){m, 0});
    return STATUS_OK;
}

/* The final norm of this rank's rows; all rows of it. */
static enum status close(struct tape *tape, const struct decoder_inputs *in, struct tensor *x,
                         struct tensor **out, struct err *e) {
    const struct model *const m = in->model;
    const struct all_rows all = {in->ids->cols, 0};
    struct tensor *own = NULL;
    enum status status = op_rmsnorm(tape, x, &m->final_norm, &own, e);
    if (status == STATUS_OK) status = op_gather_members(tape, m->group, own, &all, out, e);
    tensor_release(own);
    return status;
}

enum status decoder_forward(struct tape *tape, struct decoder_inputs *inputs, struct tensor **out,
                            struct err *e) {
    const struct model *const m = inputs->model;
    struct tensor *x = NULL, *next = NULL;
    enum status status = STATUS_OK;
    if (model_begins(m)) {
        arena_set_label(m->space->arena, (struct arena_label){"embedding", -1});
        GUARD(embed(tape, inputs, &x, e));
    } else {
        x = tensor_retain(inputs->given);
    }
    for (int64_t i = m->options.first_layer; i < m->options.end_layer; i++) {
        const struct segment layer = {
            .run = run_layer, .context = inputs, .index = i, .offload = inputs->offloading};
        GUARD(tape_segment(tape, &layer, i < inputs->checkpointed_layers, x, &next, e));
        tensor_release(x);
        x = next;
        next = NULL;
    }
    if (!model_ends(m)) {
        *out = x;
        return STATUS_OK;
    }
    arena_set_label(m->space->arena, (struct arena_label){"final norm", -1});
    GUARD(close(tape, inputs, x, out, e));
done:
    tensor_release(x);
    tensor_release(next);
    return status;
}
