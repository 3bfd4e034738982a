/* config.h - what a model folder's config.json says, as numbers and flags. A family differs by data
 * here, never by a code path in the decoder. Unknown model types, rope types, activations and
 * quantised weights are refused by name. */
#ifndef PLIMSOLL_ENGINE_MODEL_CONFIG_H
#define PLIMSOLL_ENGINE_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "kernels/device.h"

enum { MODEL_LAYERS_MAX = 512, MODEL_NAME_MAX = 64 };

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN, ROPE_TYPE_COUNT };
const char *rope_type_name(enum rope_type type);

/* Rotary parameters as transformers' modeling_rope_utils reads them. */
struct rope_config {
    enum rope_type type;
    double theta;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_max_position_embeddings; /* llama3, yarn, dynamic; 0: max_position_embeddings */
    double beta_fast, beta_slow;             /* yarn: 32, 1 */
    double attention_factor;                 /* yarn; 0: computed */
    double mscale, mscale_all_dim;           /* yarn; 0: absent */
    bool truncate; /* yarn: floor/ceil the correction range; default true */
};

struct model_config {
    char model_type[MODEL_NAME_MAX];   /* llama, mistral, qwen2, qwen3, phi3, gemma, gemma2,
                                          gemma3_text */
    char architecture[MODEL_NAME_MAX]; /* e.g. LlamaForCausalLM, for what we write */
    int64_t vocab_size, hidden_size, intermediate_size, layers, heads, kv_heads, head_dim;
    int64_t rotary_dim; /* head_dim * partial_rotary_factor */
    int64_t max_position_embeddings;
    float rms_norm_eps;
    float norm_weight_offset; /* 1 for Gemma: y = x * (1 + w) */
    bool sandwich_norms;      /* Gemma 2, 3: also norms after attention and feed-forward */
    bool qk_norm;             /* Qwen3, Gemma 3 */
    bool qkv_bias, o_bias, mlp_bias;
    bool fused_projections; /* Phi-3: stored as qkv_proj and gate_up_proj */
    bool tie_word_embeddings;
    enum activation activation;
    double embedding_scale; /* 1, or sqrt(hidden_size) for Gemma, rounded to the weights' dtype by
                               the loader */
    double attention_scale; /* 1/sqrt(head_dim), or query_pre_attn_scalar^-0.5 */
    double attention_softcap, final_softcap; /* 0: none */
    int64_t sliding_window;                  /* 0: none */
    bool layer_slides[MODEL_LAYERS_MAX]; /* layer uses sliding_window, and rope_local where that is
                                            set */
    bool has_rope_local;                 /* Gemma 3: sliding layers have their own rotary base */
    struct rope_config rope, rope_local;
    int64_t bos_token_id, pad_token_id; /* -1: none */
    int64_t eos_token_ids[16];
    int64_t eos_token_count;
    char torch_dtype[16]; /* "float32", "bfloat16", "float16", or "" */
};

/* From a parsed config.json; `what` names the file in errors. */
enum status model_config_parse(struct model_config *c, const cJSON *json, const char *what,
                               struct err *e);
/* Reads config.json (and generation_config.json's eos_token_id, when it is there) of a folder. */
enum status model_config_load(struct model_config *c, const char *folder, struct err *e);

/* inv_freq[rotary_dim/2] and the attention factor for one rope config, computed as transformers
 * does. `length_max` is the longest sequence of the run: `dynamic` depends on it, and taking the
 * run's limit rather than each batch's keeps the loss independent of how batches are cut. */
void rope_frequencies(const struct model_config *c, const struct rope_config *rope,
                      int64_t length_max, float *inv_freq, float *attention_factor);

/* "model.layers.N." + part + end, into `to` of so many bytes, which are enough: plans that compare
 * layouts make these names by the hundred thousand, so not by printf. A negative layer: without the
 * prefix. */
struct tensor_name {
    int64_t layer;
    const char *part, *end;
};
void model_tensor_name(const struct tensor_name *name, char *to, size_t size);

/* Parameters in matrix products and in all, from the shapes alone. */
int64_t model_parameter_count(const struct model_config *c);

/* Every tensor that a folder of this architecture holds, in a fixed order: for checking weights,
 * making random models and writing results. `out` receives name and shape; returns false to stop.
 */
struct model_tensor {
    char name[128];
    int64_t rank;
    int64_t shape[2];
};
typedef bool (*model_tensor_fn)(void *context, const struct model_tensor *tensor);
void model_tensors(const struct model_config *c, model_tensor_fn fn, void *context);

#endif
