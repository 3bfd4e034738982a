/* decoder.c - a pre-norm decoder (Touvron et al. 2023) with what its relatives add: q/k norms,
 * biases, sandwich norms, sliding layers, soft caps. All of that is data in the layer; there is one
 * path. */
#include "engine/model/decoder.h"

#include <math.h>

static struct norm_options norm_of(const struct model *m) {
    return (struct norm_options){.eps = m->config.rms_norm_eps,
                                 .offset = m->config.norm_weight_offset};
}

/* *y = residual + (norm ? norm(*y) : *y), replacing *y. */
static enum status close_branch(const struct model *m, struct tape *tape, struct tensor *norm,
                                struct tensor *residual, struct tensor **y, struct err *e) {
    struct tensor *normed = NULL, *sum = NULL;
    enum status status = STATUS_OK;
    if (norm) {
        GUARD(op_rmsnorm(tape, *y, norm, norm_of(m), &normed, e));
        tensor_release(*y);
        *y = normed;
        normed = NULL;
    }
    GUARD(op_add(tape, residual, *y, &sum, e));
    tensor_release(*y);
    *y = sum;
    sum = NULL;
done:
    tensor_release(normed);
    tensor_release(sum);
    return status;
}

static enum status attention_branch(const struct decoder_inputs *in, const struct layer *l,
                                    struct tape *tape, struct tensor *x, struct tensor **out,
                                    struct err *e) {
    const struct model *const m = in->model;
    const struct random_keys *const keys = &in->keys;
    struct tensor *h = NULL, *qkv = NULL, *mixed = NULL;
    enum status status = STATUS_OK;
    GUARD(op_rmsnorm(tape, x, l->norm_attention, norm_of(m), &h, e));
    GUARD(op_linear(tape, h, &l->qkv, keys, &qkv, e));
    tensor_drop(&h);
    GUARD(op_attention(tape, qkv, &l->attention, &in->documents, &mixed, e));
    tensor_drop(&qkv);
    GUARD(op_linear(tape, mixed, &l->o, keys, out, e));
    tensor_drop(&mixed);
    GUARD(close_branch(m, tape, l->norm_attention_after, x, out, e));
done:
    tensor_release(h);
    tensor_release(qkv);
    tensor_release(mixed);
    return status;
}

static enum status mlp_branch(const struct decoder_inputs *in, const struct layer *l,
                              struct tape *tape, struct tensor *x, struct tensor **out,
                              struct err *e) {
    const struct model *const m = in->model;
    const struct random_keys *const keys = &in->keys;
    struct tensor *h = NULL, *gate_up = NULL, *gated = NULL;
    enum status status = STATUS_OK;
    GUARD(op_rmsnorm(tape, x, l->norm_mlp, norm_of(m), &h, e));
    GUARD(op_linear(tape, h, &l->gate_up, keys, &gate_up, e));
    tensor_drop(&h);
    GUARD(op_glu(tape, gate_up, m->config.activation, &gated, e));
    tensor_drop(&gate_up);
    GUARD(op_linear(tape, gated, &l->down, keys, out, e));
    tensor_drop(&gated);
    GUARD(close_branch(m, tape, l->norm_mlp_after, x, out, e));
done:
    tensor_release(h);
    tensor_release(gate_up);
    tensor_release(gated);
    return status;
}

static enum status run_layer(struct tape *tape, void *context, int64_t index, struct tensor *x,
                             struct tensor **out, struct err *e) {
    const struct decoder_inputs *const in = context;
    const struct layer *const l = &in->model->layers[index];
    struct tensor *middle = NULL;
    enum status status = attention_branch(in, l, tape, x, &middle, e);
    if (status == STATUS_OK) status = mlp_branch(in, l, tape, middle, out, e);
    tensor_release(middle);
    return status;
}

/* sqrt(hidden_size) for Gemma, rounded to the dtype that the embedding is read in, as transformers
 * does. */
static float embedding_scale(const struct model *m) {
    const float scale = (float)m->config.embedding_scale;
    if (m->options.weight_dtype != DTYPE_BF16) return scale;
    int exponent = 0;
    const float mantissa = frexpf(scale, &exponent);
    return ldexpf(rintf(mantissa * 256.0f), exponent - 8);
}

enum status decoder_forward(struct tape *tape, struct decoder_inputs *inputs, struct tensor **out,
                            struct err *e) {
    const struct model *const m = inputs->model;
    struct tensor *x = NULL, *next = NULL;
    enum status status = STATUS_OK;
    GUARD(op_embedding(tape, inputs->ids, m->embedding, embedding_scale(m), &x, e));
    for (int64_t i = 0; i < m->config.layers; i++) {
        const struct segment layer = {.run = run_layer, .context = inputs, .index = i};
        GUARD(tape_segment(tape, &layer, inputs->checkpointing, x, &next, e));
        tensor_release(x);
        x = next;
        next = NULL;
    }
    GUARD(op_rmsnorm(tape, x, m->final_norm, norm_of(m), out, e));
done:
    tensor_release(x);
    tensor_release(next);
    return status;
}
