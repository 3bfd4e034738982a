/* config.c - config.json of the supported families, read into numbers and flags.
 *
 * Owns the family table: what transformers assumes for a key that the file leaves out, and in which
 * flags a family differs. A key that would change the computation and is not understood is refused
 * by name, never ignored; every size is bounded, because the file comes from outside and shapes are
 * multiplied later. */
#include "engine/model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/config_internal.h"

enum { CONFIG_FILE_MAX = 4 << 20, ABSENT = -1 };

/* How the layers that slide are chosen when layer_types does not say. */
enum slide_rule { SLIDE_NONE, SLIDE_ALL, SLIDE_QWEN, SLIDE_EVEN, SLIDE_PATTERN };

/* One family: the defaults of its transformers configuration class, and what is special about it.
 * kv_heads 0: as many as heads; head_dim 0: hidden_size / heads. */
struct family {
    const char *model_type, *architecture;
    int64_t vocab_size, hidden_size, intermediate_size, layers, heads, kv_heads, head_dim;
    int64_t max_position_embeddings;
    double rms_norm_eps;
    struct rope_presets rope;
    int64_t sliding_window; /* 0: none */
    enum slide_rule slide;
    int64_t bos, eos, pad; /* -1: none */
    double attention_softcap, final_softcap, query_pre_attn_scalar;
    bool tied, gemma, sandwich_norms, qk_norm, qkv_bias, fused;
    bool reads_attention_bias, reads_mlp_bias;
};

static const struct family FAMILIES[] = {
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .vocab_size = 32000,
     .hidden_size = 4096,
     .intermediate_size = 11008,
     .layers = 32,
     .heads = 32,
     .max_position_embeddings = 2048,
     .rms_norm_eps = 1e-6,
     .rope = {10000, 0},
     .bos = 1,
     .eos = 2,
     .pad = ABSENT,
     .reads_attention_bias = true,
     .reads_mlp_bias = true},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .vocab_size = 32000,
     .hidden_size = 4096,
     .intermediate_size = 14336,
     .layers = 32,
     .heads = 32,
     .kv_heads = 8,
     .max_position_embeddings = 131072,
     .rms_norm_eps = 1e-6,
     .rope = {10000, 0},
     .sliding_window = 4096,
     .slide = SLIDE_ALL,
     .bos = 1,
     .eos = 2,
     .pad = ABSENT},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .vocab_size = 151936,
     .hidden_size = 4096,
     .intermediate_size = 22016,
     .layers = 32,
     .heads = 32,
     .kv_heads = 32,
     .max_position_embeddings = 32768,
     .rms_norm_eps = 1e-6,
     .rope = {10000, 0},
     .sliding_window = 4096,
     .slide = SLIDE_QWEN,
     .bos = ABSENT,
     .eos = ABSENT,
     .pad = ABSENT,
     .qkv_bias = true},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .vocab_size = 151936,
     .hidden_size = 4096,
     .intermediate_size = 22016,
     .layers = 32,
     .heads = 32,
     .kv_heads = 32,
     .head_dim = 128,
     .max_position_embeddings = 32768,
     .rms_norm_eps = 1e-6,
     .rope = {10000, 0},
     .sliding_window = 4096,
     .slide = SLIDE_QWEN,
     .bos = ABSENT,
     .eos = ABSENT,
     .pad = ABSENT,
     .qk_norm = true,
     .reads_attention_bias = true},
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .vocab_size = 32064,
     .hidden_size = 3072,
     .intermediate_size = 8192,
     .layers = 32,
     .heads = 32,
     .max_position_embeddings = 4096,
     .rms_norm_eps = 1e-5,
     .rope = {10000, 0},
     .slide = SLIDE_ALL,
     .bos = 1,
     .eos = 32000,
     .pad = 32000,
     .fused = true},
    {.model_type = "gemma",
     .architecture = "GemmaForCausalLM",
     .vocab_size = 256000,
     .hidden_size = 3072,
     .intermediate_size = 24576,
     .layers = 28,
     .heads = 16,
     .kv_heads = 16,
     .head_dim = 256,
     .max_position_embeddings = 8192,
     .rms_norm_eps = 1e-6,
     .rope = {10000, 0},
     .bos = 2,
     .eos = 1,
     .pad = 0,
     .tied = true,
     .gemma = true,
     .reads_attention_bias = true},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .vocab_size = 256000,
     .hidden_size = 2304,
     .intermediate_size = 9216,
     .layers = 26,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 256,
     .max_position_embeddings = 8192,
     .rms_norm_eps = 1e-6,
     .rope = {10000, 0},
     .sliding_window = 4096,
     .slide = SLIDE_EVEN,
     .bos = 2,
     .eos = 1,
     .pad = 0,
     .attention_softcap = 50,
     .final_softcap = 30,
     .query_pre_attn_scalar = 256,
     .tied = true,
     .gemma = true,
     .sandwich_norms = true,
     .reads_attention_bias = true},
    {.model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .vocab_size = 262208,
     .hidden_size = 2304,
     .intermediate_size = 9216,
     .layers = 26,
     .heads = 8,
     .kv_heads = 4,
     .head_dim = 256,
     .max_position_embeddings = 131072,
     .rms_norm_eps = 1e-6,
     .rope = {1000000, 10000},
     .sliding_window = 4096,
     .slide = SLIDE_PATTERN,
     .bos = 2,
     .eos = 1,
     .pad = 0,
     .query_pre_attn_scalar = 256,
     .tied = true,
     .gemma = true,
     .sandwich_norms = true,
     .qk_norm = true,
     .reads_attention_bias = true},
};

static bool is_given(const cJSON *json, const char *key) {
    const cJSON *const item = json_member(json, key);
    return item && !cJSON_IsNull(item);
}

enum status config_number(const cJSON *json, const char *key, double min, double max, double *out,
                          struct err *e) {
    double value = *out;
    if (!is_given(json, key)) return STATUS_OK;
    TRY(json_get_f64(json, key, &value, e));
    if (!(value >= min && value <= max)) {
        return err_set_param(e, STATUS_INVALID, key, "%s is %g, it must be from %g to %g", key,
                             value, min, max);
    }
    *out = value;
    return STATUS_OK;
}

static enum status whole(const cJSON *json, const char *key, int64_t min, int64_t max, int64_t *out,
                         struct err *e) {
    int64_t value = *out;
    if (!is_given(json, key)) return STATUS_OK;
    TRY(json_get_i64(json, key, &value, e));
    if (value < min || value > max) {
        return err_set_param(e, STATUS_INVALID, key, "%s is %lld, it must be from %lld to %lld",
                             key, (long long)value, (long long)min, (long long)max);
    }
    *out = value;
    return STATUS_OK;
}

static enum status find_family(const cJSON *json, const struct family **out, struct err *e) {
    const char *type = NULL;
    TRY(json_get_string(json, "model_type", &type, e));
    if (!type) {
        return err_set_param(e, STATUS_INVALID, "model_type",
                             "model_type is missing: it says which architecture this is");
    }
    for (size_t i = 0; i < COUNT_OF(FAMILIES); i++) {
        if (strcmp(FAMILIES[i].model_type, type) != 0) continue;
        *out = &FAMILIES[i];
        return STATUS_OK;
    }
    if (strcmp(type, "gemma3") == 0) {
        return err_set_param(e, STATUS_UNSUPPORTED, "model_type",
                             "model_type \"gemma3\" is a model for text and images; only its text "
                             "form, gemma3_text, is supported");
    }
    return err_set_param(e, STATUS_UNSUPPORTED, "model_type",
                         "model_type \"%.60s\" is not supported; supported are llama, mistral, "
                         "qwen2, qwen3, phi3, gemma, gemma2, gemma3_text",
                         type);
}

/* Keys that change what is computed and that no family here has. */
static enum status refuse_foreign(const cJSON *json, struct err *e) {
    static const char *const EXPERTS[] = {"num_local_experts", "num_experts", "n_routed_experts"};
    if (is_given(json, "quantization_config")) {
        return err_set_param(e, STATUS_UNSUPPORTED, "quantization_config",
                             "the weights are quantised (quantization_config is present); use the "
                             "original model");
    }
    for (size_t i = 0; i < COUNT_OF(EXPERTS); i++) {
        int64_t experts = 0;
        TRY(json_get_i64(json, EXPERTS[i], &experts, e));
        if (experts > 1) {
            return err_set_param(e, STATUS_UNSUPPORTED, EXPERTS[i],
                                 "mixtures of experts are not supported (%s is %lld)", EXPERTS[i],
                                 (long long)experts);
        }
    }
    bool both_ways = false;
    TRY(json_get_bool(json, "use_bidirectional_attention", &both_ways, e));
    if (!both_ways) return STATUS_OK;
    return err_set_param(e, STATUS_UNSUPPORTED, "use_bidirectional_attention",
                         "use_bidirectional_attention is not supported");
}

static enum status parse_sizes(struct model_config *c, const cJSON *json, const struct family *f,
                               struct err *e) {
    c->vocab_size = f->vocab_size;
    c->hidden_size = f->hidden_size;
    c->intermediate_size = f->intermediate_size;
    c->layers = f->layers;
    c->heads = f->heads;
    c->max_position_embeddings = f->max_position_embeddings;
    TRY(whole(json, "vocab_size", 1, 1 << 24, &c->vocab_size, e));
    TRY(whole(json, "hidden_size", 1, 1 << 17, &c->hidden_size, e));
    TRY(whole(json, "intermediate_size", 1, 1 << 20, &c->intermediate_size, e));
    TRY(whole(json, "num_hidden_layers", 1, MODEL_LAYERS_MAX, &c->layers, e));
    TRY(whole(json, "num_attention_heads", 1, 4096, &c->heads, e));
    TRY(whole(json, "max_position_embeddings", 1, 1 << 30, &c->max_position_embeddings, e));
    /* A null num_key_value_heads means "as many as heads", also where the family has a default of
     * its own. */
    const bool kv_null = cJSON_IsNull(json_member(json, "num_key_value_heads"));
    c->kv_heads = f->kv_heads && !kv_null ? f->kv_heads : c->heads;
    TRY(whole(json, "num_key_value_heads", 1, 4096, &c->kv_heads, e));
    if (c->heads % c->kv_heads != 0) {
        return err_set_param(e, STATUS_INVALID, "num_key_value_heads",
                             "num_attention_heads is %lld, not a multiple of num_key_value_heads, "
                             "%lld",
                             (long long)c->heads, (long long)c->kv_heads);
    }
    return STATUS_OK;
}

static enum status parse_head_dim(struct model_config *c, const cJSON *json, const struct family *f,
                                  struct err *e) {
    const bool null = cJSON_IsNull(json_member(json, "head_dim"));
    c->head_dim = null ? 0 : f->head_dim;
    TRY(whole(json, "head_dim", 1, 4096, &c->head_dim, e));
    if (c->head_dim) return STATUS_OK;
    if (c->hidden_size % c->heads != 0 || c->hidden_size / c->heads > 4096) {
        return err_set_param(e, STATUS_INVALID, "head_dim",
                             "head_dim is not given and hidden_size %lld is not a fitting multiple "
                             "of num_attention_heads %lld",
                             (long long)c->hidden_size, (long long)c->heads);
    }
    c->head_dim = c->hidden_size / c->heads;
    return STATUS_OK;
}

/* Gemma's first files say "gelu" in hidden_act and mean the tanh form: only hidden_activation
 * counts there. */
static enum status parse_activation(struct model_config *c, const cJSON *json,
                                    const struct family *f, struct err *e) {
    const char *const key = f->gemma ? "hidden_activation" : "hidden_act";
    const char *name = f->gemma ? "gelu_pytorch_tanh" : "silu";
    TRY(json_get_string(json, key, &name, e));
    if (strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0) {
        c->activation = ACTIVATION_SILU;
    } else if (strcmp(name, "gelu_pytorch_tanh") == 0) {
        c->activation = ACTIVATION_GELU_TANH;
    } else {
        return err_set_param(e, STATUS_UNSUPPORTED, key,
                             "%s \"%.40s\" is not supported; supported are silu and "
                             "gelu_pytorch_tanh",
                             key, name);
    }
    return STATUS_OK;
}

static enum status parse_flags(struct model_config *c, const cJSON *json, const struct family *f,
                               struct err *e) {
    bool attention_bias = false;
    double eps = f->rms_norm_eps;
    c->sandwich_norms = f->sandwich_norms;
    c->qk_norm = f->qk_norm;
    c->fused_projections = f->fused;
    c->norm_weight_offset = f->gemma ? 1 : 0;
    c->tie_word_embeddings = f->tied;
    TRY(json_get_bool(json, "tie_word_embeddings", &c->tie_word_embeddings, e));
    if (f->reads_attention_bias) TRY(json_get_bool(json, "attention_bias", &attention_bias, e));
    if (f->reads_mlp_bias) TRY(json_get_bool(json, "mlp_bias", &c->mlp_bias, e));
    c->qkv_bias = f->qkv_bias || attention_bias;
    c->o_bias = attention_bias;
    TRY(config_number(json, "rms_norm_eps", 1e-20, 1, &eps, e));
    c->rms_norm_eps = (float)eps;
    return parse_activation(c, json, f, e);
}

/* null turns a cap off, a missing key takes the family's. */
static enum status softcap(const cJSON *json, const char *key, double preset, double *out,
                           struct err *e) {
    *out = cJSON_IsNull(json_member(json, key)) ? 0 : preset;
    return config_number(json, key, 1e-3, 1e6, out, e);
}

static enum status parse_scales(struct model_config *c, const cJSON *json, const struct family *f,
                                struct err *e) {
    double scalar = (double)c->head_dim;
    c->embedding_scale = f->gemma ? sqrt((double)c->hidden_size) : 1;
    if (f->query_pre_attn_scalar > 0) {
        scalar = f->query_pre_attn_scalar;
        TRY(config_number(json, "query_pre_attn_scalar", 1e-3, 1e6, &scalar, e));
        TRY(softcap(json, "attn_logit_softcapping", f->attention_softcap, &c->attention_softcap,
                    e));
        TRY(softcap(json, "final_logit_softcapping", f->final_softcap, &c->final_softcap, e));
    }
    c->attention_scale = 1 / sqrt(scalar);
    return STATUS_OK;
}

static enum status slides_from_types(struct model_config *c, const cJSON *types, struct err *e) {
    int64_t i = 0;
    if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != c->layers) {
        return err_set_param(e, STATUS_INVALID, "layer_types",
                             "layer_types must be a list of %lld entries, one a layer",
                             (long long)c->layers);
    }
    for (const cJSON *item = types->child; item; item = item->next, i++) {
        const char *const type = cJSON_IsString(item) ? item->valuestring : "";
        c->layer_slides[i] = strcmp(type, "sliding_attention") == 0;
        if (c->layer_slides[i] || strcmp(type, "full_attention") == 0) continue;
        return err_set_param(e, STATUS_UNSUPPORTED, "layer_types",
                             "layer_types: \"%.40s\" of layer %lld is not supported; supported are "
                             "full_attention and sliding_attention",
                             type, (long long)i);
    }
    return STATUS_OK;
}

static enum status slides_from_rule(struct model_config *c, const cJSON *json, enum slide_rule rule,
                                    struct err *e) {
    int64_t pattern = 6, first_qwen = 28;
    TRY(whole(json, "_sliding_window_pattern", 1, MODEL_LAYERS_MAX, &pattern, e));
    TRY(whole(json, "sliding_window_pattern", 1, MODEL_LAYERS_MAX, &pattern, e));
    TRY(whole(json, "max_window_layers", 0, 1 << 20, &first_qwen, e));
    for (int64_t i = 0; i < c->layers; i++) {
        c->layer_slides[i] = rule == SLIDE_ALL || (rule == SLIDE_QWEN && i >= first_qwen) ||
                             (rule == SLIDE_EVEN && i % 2 == 0) ||
                             (rule == SLIDE_PATTERN && (i + 1) % pattern != 0);
    }
    return STATUS_OK;
}

/* A window counts only where the family has one and, for Qwen, where use_sliding_window switches it
 * on. */
static enum status parse_sliding(struct model_config *c, const cJSON *json, const struct family *f,
                                 struct err *e) {
    bool on = f->slide != SLIDE_NONE;
    c->sliding_window = cJSON_IsNull(json_member(json, "sliding_window")) ? 0 : f->sliding_window;
    TRY(whole(json, "sliding_window", 1, 1 << 30, &c->sliding_window, e));
    if (f->slide == SLIDE_QWEN) {
        on = false;
        TRY(json_get_bool(json, "use_sliding_window", &on, e));
    }
    if (!on) c->sliding_window = 0;
    const bool listed = is_given(json, "layer_types");
    TRY(listed ? slides_from_types(c, json_member(json, "layer_types"), e)
               : slides_from_rule(c, json, f->slide, e));
    bool any = false;
    for (int64_t i = 0; i < c->layers; i++) {
        any = any || c->layer_slides[i];
    }
    if (any && c->sliding_window == 0 && listed) {
        return err_set_param(e, STATUS_INVALID, "layer_types",
                             "layer_types names layers with sliding_attention, but no "
                             "sliding_window is in force");
    }
    /* Without a window these layers are like the others, but for their own rotary base. */
    if (c->sliding_window == 0 && f->slide != SLIDE_PATTERN) {
        memset(c->layer_slides, 0, sizeof c->layer_slides);
    }
    if (!any) c->sliding_window = 0;
    return STATUS_OK;
}

static enum status add_eos(struct model_config *c, const cJSON *item, struct err *e) {
    const bool fine = cJSON_IsNumber(item) && item->valuedouble == floor(item->valuedouble) &&
                      fabs(item->valuedouble) < 0x1p31;
    if (!fine) {
        return err_set_param(e, STATUS_INVALID, "eos_token_id",
                             "eos_token_id must be a token id or a list of them");
    }
    const int64_t id = (int64_t)item->valuedouble;
    if (id < 0) return STATUS_OK; /* -1 is a spelling of "none" */
    for (int64_t i = 0; i < c->eos_token_count; i++) {
        if (c->eos_token_ids[i] == id) return STATUS_OK;
    }
    if (c->eos_token_count == (int64_t)COUNT_OF(c->eos_token_ids)) {
        return err_set_param(e, STATUS_UNSUPPORTED, "eos_token_id",
                             "eos_token_id lists more than %zu tokens", COUNT_OF(c->eos_token_ids));
    }
    c->eos_token_ids[c->eos_token_count++] = id;
    return STATUS_OK;
}

static enum status parse_eos(struct model_config *c, const cJSON *json, struct err *e) {
    const cJSON *const eos = json_member(json, "eos_token_id");
    if (!eos || cJSON_IsNull(eos)) return STATUS_OK;
    if (!cJSON_IsArray(eos)) return add_eos(c, eos, e);
    for (const cJSON *item = eos->child; item; item = item->next) {
        TRY(add_eos(c, item, e));
    }
    return STATUS_OK;
}

static enum status parse_tokens(struct model_config *c, const cJSON *json, const struct family *f,
                                struct err *e) {
    c->bos_token_id =
        is_given(json, "bos_token_id") || !json_member(json, "bos_token_id") ? f->bos : ABSENT;
    c->pad_token_id =
        is_given(json, "pad_token_id") || !json_member(json, "pad_token_id") ? f->pad : ABSENT;
    TRY(whole(json, "bos_token_id", ABSENT, INT32_MAX, &c->bos_token_id, e));
    TRY(whole(json, "pad_token_id", ABSENT, INT32_MAX, &c->pad_token_id, e));
    if (!json_member(json, "eos_token_id") && f->eos >= 0) {
        c->eos_token_ids[c->eos_token_count++] = f->eos;
    }
    return parse_eos(c, json, e);
}

/* "dtype" is the newer name of "torch_dtype"; both may carry the prefix "torch.". */
static enum status parse_dtype(struct model_config *c, const cJSON *json, struct err *e) {
    static const char *const KNOWN[] = {"float32", "bfloat16", "float16"};
    const char *name = NULL;
    TRY(json_get_string(json, "torch_dtype", &name, e));
    TRY(json_get_string(json, "dtype", &name, e));
    if (!name || strcmp(name, "auto") == 0) return STATUS_OK;
    if (str_starts_with(name, "torch.")) name += strlen("torch.");
    for (size_t i = 0; i < COUNT_OF(KNOWN); i++) {
        if (strcmp(KNOWN[i], name) != 0) continue;
        snprintf(c->torch_dtype, sizeof c->torch_dtype, "%s", name);
        return STATUS_OK;
    }
    return err_set_param(e, STATUS_UNSUPPORTED, "dtype",
                         "dtype \"%.40s\" is not supported; supported are float32, bfloat16, "
                         "float16",
                         name);
}

static enum status parse(struct model_config *c, const cJSON *json, struct err *e) {
    const struct family *f = NULL;
    FAIL_IF(!cJSON_IsObject(json), STATUS_INVALID, "expected a JSON object");
    TRY(find_family(json, &f, e));
    TRY(refuse_foreign(json, e));
    snprintf(c->model_type, sizeof c->model_type, "%s", f->model_type);
    snprintf(c->architecture, sizeof c->architecture, "%s", f->architecture);
    TRY(parse_sizes(c, json, f, e));
    TRY(parse_head_dim(c, json, f, e));
    TRY(parse_flags(c, json, f, e));
    TRY(parse_scales(c, json, f, e));
    TRY(parse_sliding(c, json, f, e));
    TRY(config_parse_rope(c, json, &f->rope, e));
    TRY(parse_tokens(c, json, f, e));
    return parse_dtype(c, json, e);
}

enum status model_config_parse(struct model_config *c, const cJSON *json, const char *what,
                               struct err *e) {
    *c = (struct model_config){0};
    const enum status status = parse(c, json, e);
    return status == STATUS_OK ? status : err_prefix(e, "%s", what);
}

static enum status add_generation_config(struct model_config *c, const char *path, struct err *e) {
    cJSON *json = NULL;
    if (!file_exists(path)) return STATUS_OK;
    TRY(json_read_file(path, CONFIG_FILE_MAX, &json, e));
    enum status status = parse_eos(c, json, e);
    if (status != STATUS_OK) status = err_prefix(e, "%s", path);
    cJSON_Delete(json);
    return status;
}

enum status model_config_load(struct model_config *c, const char *folder, struct err *e) {
    char *path = file_join(folder, "config.json");
    char *generation = file_join(folder, "generation_config.json");
    cJSON *json = NULL;
    enum status status = STATUS_OK;
    GUARD(json_read_file(path, CONFIG_FILE_MAX, &json, e));
    GUARD(model_config_parse(c, json, path, e));
    GUARD(add_generation_config(c, generation, e));
done:
    cJSON_Delete(json);
    mem_free(generation);
    mem_free(path);
    return status;
}
