/* catalog.c - one row a model: the sizes of its config.json.
 *
 * Owns the table and the reading of names. A row becomes the JSON that model_config_parse reads, so
 * a model from the table and one from a folder cannot mean different things. The numbers are those
 * of the published files; tests/unit/test_plan_catalog.c counts the parameters of every row against
 * the published count. */
#include "engine/model/catalog.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { NAME_MAX_BYTES = 96 };

struct row {
    const char *name; /* of the repository, without its owner */
    const char *type;
    int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, positions;
    bool tied;
    double theta;
    const char *more; /* further members of the JSON, or NULL */
};

#define LLAMA3_ROPE(factor)                                                                        \
    "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":" factor                                \
    ",\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"                                           \
    "\"original_max_position_embeddings\":8192}"
#define NO_WINDOW "\"sliding_window\":null"

/* name, type, hidden, intermediate, layers, heads, kv heads, head size, vocabulary, positions,
 * tied, theta, more. */
static const struct row ROWS[] = {
    {"Llama-3.2-1B", "llama", 2048, 8192, 16, 32, 8, 64, 128256, 131072, true, 5e5,
     LLAMA3_ROPE("32.0")},
    {"Llama-3.2-3B", "llama", 3072, 8192, 28, 24, 8, 128, 128256, 131072, true, 5e5,
     LLAMA3_ROPE("32.0")},
    {"Llama-3.1-8B", "llama", 4096, 14336, 32, 32, 8, 128, 128256, 131072, false, 5e5,
     LLAMA3_ROPE("8.0")},
    {"Llama-3.1-70B", "llama", 8192, 28672, 80, 64, 8, 128, 128256, 131072, false, 5e5,
     LLAMA3_ROPE("8.0")},
    {"Llama-3.3-70B", "llama", 8192, 28672, 80, 64, 8, 128, 128256, 131072, false, 5e5,
     LLAMA3_ROPE("8.0")},
    {"Llama-3.1-405B", "llama", 16384, 53248, 126, 128, 8, 128, 128256, 131072, false, 5e5,
     LLAMA3_ROPE("8.0")},
    {"Meta-Llama-3-8B", "llama", 4096, 14336, 32, 32, 8, 128, 128256, 8192, false, 5e5, NULL},
    {"Meta-Llama-3-70B", "llama", 8192, 28672, 80, 64, 8, 128, 128256, 8192, false, 5e5, NULL},
    {"Llama-2-7b", "llama", 4096, 11008, 32, 32, 32, 128, 32000, 4096, false, 1e4, NULL},
    {"Llama-2-13b", "llama", 5120, 13824, 40, 40, 40, 128, 32000, 4096, false, 1e4, NULL},
    {"Llama-2-70b", "llama", 8192, 28672, 80, 64, 8, 128, 32000, 4096, false, 1e4, NULL},
    {"TinyLlama-1.1B", "llama", 2048, 5632, 22, 32, 4, 64, 32000, 2048, false, 1e4, NULL},
    {"SmolLM2-135M", "llama", 576, 1536, 30, 9, 3, 64, 49152, 8192, true, 1e5, NULL},
    {"SmolLM2-360M", "llama", 960, 2560, 32, 15, 5, 64, 49152, 8192, true, 1e5, NULL},
    {"SmolLM2-1.7B", "llama", 2048, 8192, 24, 32, 32, 64, 49152, 8192, true, 1.3e5, NULL},
    {"Qwen2.5-0.5B", "qwen2", 896, 4864, 24, 14, 2, 64, 151936, 32768, true, 1e6, NULL},
    {"Qwen2.5-1.5B", "qwen2", 1536, 8960, 28, 12, 2, 128, 151936, 131072, true, 1e6, NULL},
    {"Qwen2.5-3B", "qwen2", 2048, 11008, 36, 16, 2, 128, 151936, 32768, true, 1e6, NULL},
    {"Qwen2.5-7B", "qwen2", 3584, 18944, 28, 28, 4, 128, 152064, 131072, false, 1e6, NULL},
    {"Qwen2.5-14B", "qwen2", 5120, 13824, 48, 40, 8, 128, 152064, 131072, false, 1e6, NULL},
    {"Qwen2.5-32B", "qwen2", 5120, 27648, 64, 40, 8, 128, 152064, 131072, false, 1e6, NULL},
    {"Qwen2.5-72B", "qwen2", 8192, 29568, 80, 64, 8, 128, 152064, 131072, false, 1e6, NULL},
    {"Qwen3-0.6B", "qwen3", 1024, 3072, 28, 16, 8, 128, 151936, 40960, true, 1e6, NULL},
    {"Qwen3-1.7B", "qwen3", 2048, 6144, 28, 16, 8, 128, 151936, 40960, true, 1e6, NULL},
    {"Qwen3-4B", "qwen3", 2560, 9728, 36, 32, 8, 128, 151936, 40960, true, 1e6, NULL},
    {"Qwen3-8B", "qwen3", 4096, 12288, 36, 32, 8, 128, 151936, 40960, false, 1e6, NULL},
    {"Qwen3-14B", "qwen3", 5120, 17408, 40, 40, 8, 128, 151936, 40960, false, 1e6, NULL},
    {"Qwen3-32B", "qwen3", 5120, 25600, 64, 64, 8, 128, 151936, 40960, false, 1e6, NULL},
    {"gemma-2b", "gemma", 2048, 16384, 18, 8, 1, 256, 256000, 8192, true, 1e4, NULL},
    {"gemma-7b", "gemma", 3072, 24576, 28, 16, 16, 256, 256000, 8192, true, 1e4, NULL},
    {"gemma-2-2b", "gemma2", 2304, 9216, 26, 8, 4, 256, 256000, 8192, true, 1e4, NULL},
    {"gemma-2-9b", "gemma2", 3584, 14336, 42, 16, 8, 256, 256000, 8192, true, 1e4, NULL},
    {"gemma-2-27b", "gemma2", 4608, 36864, 46, 32, 16, 128, 256000, 8192, true, 1e4,
     "\"query_pre_attn_scalar\":144"},
    {"gemma-3-270m", "gemma3_text", 640, 2048, 18, 4, 1, 256, 262144, 32768, true, 1e6,
     "\"sliding_window\":512,\"rope_local_base_freq\":10000.0"},
    {"gemma-3-1b", "gemma3_text", 1152, 6912, 26, 4, 1, 256, 262144, 32768, true, 1e6,
     "\"sliding_window\":512,\"rope_local_base_freq\":10000.0"},
    {"Mistral-7B-v0.1", "mistral", 4096, 14336, 32, 32, 8, 128, 32000, 32768, false, 1e4, NULL},
    {"Mistral-7B-v0.3", "mistral", 4096, 14336, 32, 32, 8, 128, 32768, 32768, false, 1e6,
     NO_WINDOW},
    {"Mistral-Nemo-2407", "mistral", 5120, 14336, 40, 32, 8, 128, 131072, 131072, false, 1e6,
     NO_WINDOW},
    {"Mistral-Small-24B-2501", "mistral", 5120, 32768, 40, 32, 8, 128, 131072, 32768, false, 1e8,
     NO_WINDOW},
    {"Phi-3-mini-4k", "phi3", 3072, 8192, 32, 32, 32, 96, 32064, 4096, false, 1e4,
     "\"sliding_window\":2047"},
    {"Phi-3-medium-4k", "phi3", 5120, 17920, 40, 40, 10, 128, 32064, 4096, false, 1e4,
     "\"sliding_window\":2047"},
    {"phi-4", "phi3", 5120, 17920, 40, 40, 10, 128, 100352, 16384, false, 2.5e5, NO_WINDOW},
};

const char *catalog_name(int64_t index) {
    return index >= 0 && index < (int64_t)COUNT_OF(ROWS) ? ROWS[index].name : NULL;
}

static void cut_ending(char *name, const char *ending) {
    if (str_ends_with(name, ending)) name[strlen(name) - strlen(ending)] = 0;
}

/* Lower case, without the owner, and without the words that say how a model was tuned. False for a
 * path and for what is too long to be a name. */
static bool read_name(const char *name, char out[NAME_MAX_BYTES]) {
    const char *const slash = strchr(name, '/');
    if (slash && strchr(slash + 1, '/')) return false;
    if (slash) name = slash + 1;
    const size_t len = strlen(name);
    if (len == 0 || len >= NAME_MAX_BYTES) return false;
    for (size_t i = 0; i <= len; i++) {
        out[i] = (char)tolower((unsigned char)name[i]);
    }
    static const char *const ENDINGS[] = {"-hf", "-instruct", "-chat",     "-base",
                                          "-it", "-pt",       "-chat-v1.0"};
    for (size_t i = 0; i < COUNT_OF(ENDINGS); i++) {
        cut_ending(out, ENDINGS[i]);
    }
    return true;
}

/* Words in the middle ("Mistral-7B-Instruct-v0.3") come out too. */
static void cut_middle(char *name, const char *word) {
    char *const at = strstr(name, word);
    if (at) memmove(at, at + strlen(word), strlen(at + strlen(word)) + 1);
}

static const struct row *find(const char *name) {
    char asked[NAME_MAX_BYTES], known[NAME_MAX_BYTES];
    if (!read_name(name, asked)) return NULL;
    cut_middle(asked, "-instruct");
    cut_middle(asked, "-base");
    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        if (read_name(ROWS[i].name, known) && strcmp(asked, known) == 0) return &ROWS[i];
    }
    return NULL;
}

bool catalog_has(const char *name) {
    return find(name) != NULL;
}

static const char *nearest(const char *name) {
    const char *best = ROWS[0].name;
    char asked[NAME_MAX_BYTES], known[NAME_MAX_BYTES];
    int distance = NAME_MAX_BYTES;
    if (!read_name(name, asked)) return best;
    for (size_t i = 0; i < COUNT_OF(ROWS); i++) {
        (void)read_name(ROWS[i].name, known);
        const int d = str_distance(asked, known);
        if (d >= distance) continue;
        distance = d;
        best = ROWS[i].name;
    }
    return best;
}

static void write_config(struct str *out, const struct row *r) {
    str_appendf(out,
                "{\"model_type\":\"%s\",\"hidden_size\":%lld,\"intermediate_size\":%lld,"
                "\"num_hidden_layers\":%lld,\"num_attention_heads\":%lld,"
                "\"num_key_value_heads\":%lld,\"head_dim\":%lld,\"vocab_size\":%lld,"
                "\"max_position_embeddings\":%lld,\"tie_word_embeddings\":%s,\"rope_theta\":%.1f,"
                "\"torch_dtype\":\"bfloat16\"%s%s}",
                r->type, (long long)r->hidden, (long long)r->intermediate, (long long)r->layers,
                (long long)r->heads, (long long)r->kv_heads, (long long)r->head_dim,
                (long long)r->vocab, (long long)r->positions, r->tied ? "true" : "false", r->theta,
                r->more ? "," : "", r->more ? r->more : "");
}

enum status catalog_load(struct model_config *c, const char *name, struct err *e) {
    const struct row *const r = find(name);
    if (!r) {
        return err_set_param(e, STATUS_NOT_FOUND, "model",
                             "model: \"%.80s\" is neither a folder with a config.json nor a model "
                             "that is known by name; the nearest known one is %s",
                             name, nearest(name));
    }
    struct str text = {0};
    cJSON *json = NULL;
    write_config(&text, r);
    enum status status = json_parse(str_text(&text), text.len, r->name, &json, e);
    if (status == STATUS_OK) status = model_config_parse(c, json, r->name, e);
    cJSON_Delete(json);
    str_release(&text);
    return status;
}
