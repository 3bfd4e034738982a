/* bench_shape.c - config.json texts of the benchmarked shapes, and random weights for them.
 *
 * The weights come from one table of normal values that is walked from a different start for each
 * tensor: ordinary numbers, made once, so that filling 8 billion of them takes seconds. */
#include "tests/gpu/bench_shape.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model/weights.h"

#define LLAMA_8B                                                                                   \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":4096,"     \
    "\"intermediate_size\":14336,\"num_hidden_layers\":32,\"num_attention_heads\":32,"             \
    "\"num_key_value_heads\":8,\"vocab_size\":128256,\"rope_theta\":500000.0,"                     \
    "\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,"                 \
    "\"max_position_embeddings\":131072,\"torch_dtype\":\"bfloat16\",\"bos_token_id\":1,"          \
    "\"eos_token_id\":2}"
#define QWEN_05B                                                                                   \
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"hidden_size\":896,"      \
    "\"intermediate_size\":4864,\"num_hidden_layers\":24,\"num_attention_heads\":14,"              \
    "\"num_key_value_heads\":2,\"vocab_size\":151936,\"rope_theta\":1000000.0,"                    \
    "\"rms_norm_eps\":1e-6,\"hidden_act\":\"silu\",\"tie_word_embeddings\":true,"                  \
    "\"max_position_embeddings\":32768,\"torch_dtype\":\"bfloat16\",\"bos_token_id\":1,"           \
    "\"eos_token_id\":2}"
#define QWEN_15B                                                                                   \
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"hidden_size\":1536,"     \
    "\"intermediate_size\":8960,\"num_hidden_layers\":28,\"num_attention_heads\":12,"              \
    "\"num_key_value_heads\":2,\"vocab_size\":151936,\"rope_theta\":1000000.0,"                    \
    "\"rms_norm_eps\":1e-6,\"hidden_act\":\"silu\",\"tie_word_embeddings\":true,"                  \
    "\"max_position_embeddings\":32768,\"torch_dtype\":\"bfloat16\",\"bos_token_id\":1,"           \
    "\"eos_token_id\":2}"
#define SMOLLM_135M                                                                                \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":576,"      \
    "\"intermediate_size\":1536,\"num_hidden_layers\":30,\"num_attention_heads\":9,"               \
    "\"num_key_value_heads\":3,\"vocab_size\":49152,\"rope_theta\":100000.0,"                      \
    "\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\",\"tie_word_embeddings\":true,"                  \
    "\"max_position_embeddings\":8192,\"torch_dtype\":\"bfloat16\",\"bos_token_id\":1,"            \
    "\"eos_token_id\":2}"

static const struct {
    const char *name, *config;
} SHAPES[] = {{"llama-8b", LLAMA_8B},
              {"qwen2.5-0.5b", QWEN_05B},
              {"qwen2.5-1.5b", QWEN_15B},
              {"smollm2-135m", SMOLLM_135M}};

enum { TABLE_COUNT = 1 << 24, PIECE = 1 << 22 };

const char *bench_config_text(const char *shape) {
    for (size_t i = 0; i < COUNT_OF(SHAPES); i++) {
        if (strcmp(SHAPES[i].name, shape) == 0) return SHAPES[i].config;
    }
    return NULL;
}

enum status bench_config(struct model_config *config, const char *shape, struct err *e) {
    const char *const text = bench_config_text(shape);
    FAIL_IF(!text, STATUS_INVALID, "the shape %s is not known", shape);
    cJSON *json = NULL;
    TRY(json_parse(text, strlen(text), shape, &json, e));
    const enum status status = model_config_parse(config, json, shape, e);
    cJSON_Delete(json);
    return status;
}

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Normal values by Box and Muller, deviation 0.02. */
static float *normal_table(void) {
    float *const table = mem_new(TABLE_COUNT, sizeof *table);
    uint64_t state = 20261129;
    for (int64_t i = 0; i < TABLE_COUNT; i += 2) {
        const double u = (next_random(&state) + 1.0) / 2147483649.0;
        const double v = (double)next_random(&state) / 2147483648.0;
        const double r = 0.02 * sqrt(-2 * log(u));
        table[i] = (float)(r * cos(6.283185307179586 * v));
        table[i + 1] = (float)(r * sin(6.283185307179586 * v));
    }
    return table;
}

/* A piece of `count` elements in the dtype of the tensor. */
static void make_piece(void *to, enum dtype dtype, const float *values, int64_t count) {
    if (dtype == DTYPE_F32) {
        memcpy(to, values, (size_t)count * sizeof *values);
        return;
    }
    uint16_t *const halves = to;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        halves[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
}

/* The same normal values in both dtypes that parameters have. */
struct table {
    float *f32;
    uint16_t *bf16;
};

static enum status fill_rows(struct tensor *t, const struct table *table, int64_t start,
                             struct err *e) {
    const int64_t size = dtype_bytes(t->dtype);
    const int64_t step = PIECE / t->cols > 0 ? PIECE / t->cols : 1;
    for (int64_t first = 0; first < t->rows; first += step) {
        const int64_t at = (start + first * 7919) % (TABLE_COUNT - step * t->cols);
        const struct transfer part = {.device = (char *)t->data + first * t->ld * size,
                                      .device_pitch = t->ld * size,
                                      .host = t->dtype == DTYPE_F32 ? (void *)(table->f32 + at)
                                                                    : (void *)(table->bf16 + at),
                                      .host_pitch = t->cols * size,
                                      .width = t->cols * size,
                                      .rows = first + step < t->rows ? step : t->rows - first};
        TRY(device_upload_rows(t->space->device, &part, e));
    }
    return STATUS_OK;
}

static enum status fill_constant(struct tensor *t, float value, struct err *e) {
    float *const values = mem_new((size_t)tensor_count(t), sizeof *values);
    for (int64_t i = 0; i < tensor_count(t); i++) {
        values[i] = value;
    }
    char *const piece = mem_new((size_t)tensor_count(t), (size_t)dtype_bytes(t->dtype));
    make_piece(piece, t->dtype, values, tensor_count(t));
    const enum status status = tensor_upload(t, piece, e);
    mem_free(values);
    mem_free(piece);
    return status;
}

/* Codes of every value, and scales that give weights of a usual size. Bytes of E4M3 keep clear of
 * NaN and of the largest powers. */
static enum status fill_codes(const struct storage *s, struct err *e) {
    const struct quant_layout *const l = &s->quantised.layout;
    uint8_t *const host = mem_new((size_t)l->bytes, 1);
    uint32_t random = (uint32_t)s->rows;
    for (int64_t i = 0; i < l->bytes; i++) {
        random = random * 1664525u + 1013904223u;
        host[i] = (uint8_t)(random >> 24);
        if (l->quant == QUANT_FP8) host[i] &= 0xbf;
    }
    for (int64_t i = 0; i < l->part_count; i++) {
        const struct quant_part *const p = &l->parts[i];
        const int64_t nested = quant_nested_count(l->quant, p->rows, l->cols);
        const int64_t scales = nested ? 0 : quant_scale_count(l->quant, p->rows, l->cols);
        for (int64_t k = 0; k < scales; k++) {
            ((float *)(host + p->scales))[k] = 0.04f;
        }
        for (int64_t k = 0; k < nested; k++) {
            ((float *)(host + p->nested))[k] = k == 0 ? 0.04f : 0.01f;
        }
    }
    const enum status status = tensor_upload(s->quantised.bytes, host, e);
    mem_free(host);
    return status;
}

enum status bench_fill(struct model *m, struct err *e) {
    if (!m->space->device->computes) return STATUS_OK;
    struct table table = {.f32 = normal_table(), .bf16 = mem_new(TABLE_COUNT, sizeof(uint16_t))};
    make_piece(table.bf16, DTYPE_BF16, table.f32, TABLE_COUNT);
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < m->param_count; i++) {
        const struct param *const p = &m->params[i];
        const struct storage *const s = &m->storages[p->storage];
        if (s->quantised.bytes) {
            if (p->first_row == 0) status = fill_codes(s, e);
            continue;
        }
        struct tensor *t = model_param_view(m, p, true);
        const bool norm = m->storages[p->storage].kind == PARAM_NORM;
        const float offset = m->config.norm_weight_offset;
        status = p->rank == 1 ? fill_constant(t, norm ? 1 - offset : 0, e)
                              : fill_rows(t, &table, (int64_t)i * 104729, e);
        tensor_release(t);
    }
    mem_free(table.f32);
    mem_free(table.bf16);
    if (status == STATUS_OK) status = model_refresh(m, e);
    if (status == STATUS_OK && m->options.lora) status = weights_init_adapter(m, 1, e);
    return status;
}
