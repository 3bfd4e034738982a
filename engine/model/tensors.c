/* tensors.c - the names and shapes of all tensors of an architecture, in the Hugging Face layout.
 *
 * One walk serves checking weights, counting parameters, making random models and writing results,
 * so that these can never disagree. Linear weights are stored [out, in]; a tied head has no tensor
 * of its own. */
#include <string.h>

#include "base/err.h"
#include "engine/model/config.h"

static size_t put(char *to, size_t used, size_t size, const char *text) {
    const size_t length = strlen(text);
    ASSERT(used + length < size);
    memcpy(to + used, text, length + 1);
    return used + length;
}

void model_tensor_name(const struct tensor_name *name, char *to, size_t size) {
    char digits[24] = "";
    size_t used = 0, first = sizeof digits - 1;
    if (name->layer >= 0) {
        int64_t rest = name->layer;
        digits[--first] = '.';
        do {
            digits[--first] = (char)('0' + rest % 10);
        } while ((rest /= 10) > 0);
        used = put(to, used, size, "model.layers.");
        used = put(to, used, size, digits + first);
    }
    used = put(to, used, size, name->part);
    (void)put(to, used, size, name->end);
}

/* A walk in progress. `stopped` is set when the caller has seen enough. */
struct walk {
    model_tensor_fn fn;
    void *context;
    int64_t layer; /* -1: outside the layers */
    bool stopped;
};

static void emit_part(struct walk *w, const char *part, const char *end, int64_t rows,
                      int64_t cols) {
    if (w->stopped) return;
    struct model_tensor t = {.rank = cols ? 2 : 1, .shape = {rows, cols}};
    model_tensor_name(&(struct tensor_name){w->layer, part, end}, t.name, sizeof t.name);
    w->stopped = !w->fn(w->context, &t);
}

static void emit(struct walk *w, const char *name, int64_t rows, int64_t cols) {
    emit_part(w, name, "", rows, cols);
}

static void linear(struct walk *w, const char *module, int64_t out, int64_t in, bool bias) {
    emit_part(w, module, ".weight", out, in);
    if (bias) emit_part(w, module, ".bias", out, 0);
}

static void attention(struct walk *w, const struct model_config *c) {
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    if (c->fused_projections) {
        linear(w, "self_attn.qkv_proj", q + 2 * kv, c->hidden_size, c->qkv_bias);
    } else {
        linear(w, "self_attn.q_proj", q, c->hidden_size, c->qkv_bias);
        linear(w, "self_attn.k_proj", kv, c->hidden_size, c->qkv_bias);
        linear(w, "self_attn.v_proj", kv, c->hidden_size, c->qkv_bias);
    }
    linear(w, "self_attn.o_proj", c->hidden_size, q, c->o_bias);
    if (c->qk_norm) {
        emit(w, "self_attn.q_norm.weight", c->head_dim, 0);
        emit(w, "self_attn.k_norm.weight", c->head_dim, 0);
    }
}

static void feed_forward(struct walk *w, const struct model_config *c) {
    if (c->fused_projections) {
        linear(w, "mlp.gate_up_proj", 2 * c->intermediate_size, c->hidden_size, c->mlp_bias);
    } else {
        linear(w, "mlp.gate_proj", c->intermediate_size, c->hidden_size, c->mlp_bias);
        linear(w, "mlp.up_proj", c->intermediate_size, c->hidden_size, c->mlp_bias);
    }
    linear(w, "mlp.down_proj", c->hidden_size, c->intermediate_size, c->mlp_bias);
}

static void layer_tensors(struct walk *w, const struct model_config *c) {
    attention(w, c);
    feed_forward(w, c);
    emit(w, "input_layernorm.weight", c->hidden_size, 0);
    emit(w, "post_attention_layernorm.weight", c->hidden_size, 0);
    if (c->sandwich_norms) {
        emit(w, "pre_feedforward_layernorm.weight", c->hidden_size, 0);
        emit(w, "post_feedforward_layernorm.weight", c->hidden_size, 0);
    }
}

void model_tensors(const struct model_config *c, model_tensor_fn fn, void *context) {
    struct walk w = {.fn = fn, .context = context, .layer = -1};
    emit(&w, "model.embed_tokens.weight", c->vocab_size, c->hidden_size);
    for (w.layer = 0; w.layer < c->layers && !w.stopped; w.layer++) {
        layer_tensors(&w, c);
    }
    w.layer = -1;
    emit(&w, "model.norm.weight", c->hidden_size, 0);
    if (!c->tie_word_embeddings) emit(&w, "lm_head.weight", c->vocab_size, c->hidden_size);
}

static bool add_size(void *context, const struct model_tensor *t) {
    *(int64_t *)context += t->shape[0] * (t->rank == 2 ? t->shape[1] : 1);
    return true;
}

int64_t model_parameter_count(const struct model_config *c) {
    int64_t count = 0;
    model_tensors(c, add_size, &count);
    return count;
}
