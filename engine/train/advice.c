/* advice.c - the choice table.
 *
 *   fits                       -> plain
 *   float32 weights            -> bf16 first: it halves weights and activations
 *   weights too big            -> NF4, or shard
 *   optimizer's states too big -> LoRA, stochastic rounding, or shard
 *   activations too big        -> checkpointing, a smaller micro-batch
 *   and the rows are long      -> offloading, shorter rows
 *
 * The number of cards for sharding is a least one: what lies still, divided evenly. */
#include "engine/train/advice.h"

#include "base/mem.h"
#include "base/str.h"

/* Rows from here on count as long: the inputs of checkpointed layers are then gigabytes. */
enum { LONG_TOKENS = 8192, SHORTEST_TOKENS = 256, RANKS_MAX = 4096 };

static const char *const NAMES[ADVICE_KIND_COUNT] = {
    [ADVICE_PLAIN] = "plain",
    [ADVICE_BF16] = "bf16",
    [ADVICE_LORA] = "lora",
    [ADVICE_STOCHASTIC_ROUNDING] = "stochastic_rounding",
    [ADVICE_ZERO] = "zero",
    [ADVICE_CHECKPOINTING] = "checkpointing",
    [ADVICE_MICRO_BATCH] = "micro_batch",
    [ADVICE_OFFLOADING] = "offloading",
    [ADVICE_SHORTER] = "shorter",
    [ADVICE_NF4] = "nf4",
    [ADVICE_SHARD] = "shard",
};

const char *advice_name(enum advice_kind kind) {
    ASSERT(kind < ADVICE_KIND_COUNT);
    return NAMES[kind];
}

/* The least number of cards, a power of two, with which the optimizer's states divided evenly leave
 * room for the rest; 0: none. Only which number to plan with. */
static int64_t ranks_for_zero(const struct advice_facts *f) {
    const int64_t rest = f->weights + f->states - f->optimizer;
    if (f->zero_stage > 0 || f->rounding || rest >= f->capacity) return 0;
    int64_t ranks = f->ranks > 1 ? f->ranks : 2;
    while (ranks < RANKS_MAX && rest + f->optimizer / ranks >= f->capacity) {
        ranks *= 2;
    }
    return ranks;
}

/* Likewise where weights and gradients are divided too; a fifth is left for the layer at hand and
 * activations. */
static int64_t ranks_for_shard(const struct advice_facts *f) {
    int64_t ranks = f->ranks > 1 ? f->ranks : 2;
    if (f->zero_stage == 3) ranks *= 2;
    while (ranks < RANKS_MAX && (f->weights + f->states) / ranks > f->capacity / 5 * 4) {
        ranks *= 2;
    }
    return ranks;
}

/* A card of its own for each rank. */
static void divide(cJSON *keys, const struct advice_facts *f, int64_t ranks, int64_t stage) {
    if (f->gpu) json_add_string(keys, "device", "cuda");
    cJSON *const parallel = cJSON_AddObjectToObject(keys, "parallel");
    json_add_i64(parallel, "ranks", ranks);
    json_add_i64(parallel, "zero_stage", stage);
}

/* Frozen weights that are large beside the device. */
static bool can_quantise(const struct advice_facts *f) {
    return !f->full && !f->quantised && f->weights > f->capacity / 2;
}

/* For weights or states: what makes them smaller, then what spreads them. */
static int choose_for_states(const struct advice_facts *f, enum advice_kind *out) {
    int count = 0;
    if (f->full) out[count++] = ADVICE_LORA;
    if (f->full && f->gpu && !f->wide && !f->rounding) out[count++] = ADVICE_STOCHASTIC_ROUNDING;
    if (ranks_for_zero(f) > 0) out[count++] = ADVICE_ZERO;
    if (can_quantise(f)) out[count++] = ADVICE_NF4;
    out[count++] = ADVICE_SHARD;
    return count;
}

static int choose_for_activations(const struct advice_facts *f, enum advice_kind *out) {
    int count = 0;
    if (!f->checkpointing) out[count++] = ADVICE_CHECKPOINTING;
    if (f->rows > 1) out[count++] = ADVICE_MICRO_BATCH;
    if (f->longest >= LONG_TOKENS && f->gpu && !f->offloading) out[count++] = ADVICE_OFFLOADING;
    if (can_quantise(f)) out[count++] = ADVICE_NF4;
    if (f->longest >= 2 * SHORTEST_TOKENS) out[count++] = ADVICE_SHORTER;
    return count;
}

int advice_choose(const struct advice_facts *f, enum advice_kind out[ADVICE_KIND_COUNT]) {
    int count = 0;
    if (f->need <= f->capacity) {
        out[count++] = ADVICE_PLAIN;
        return count;
    }
    if (f->wide) out[count++] = ADVICE_BF16;
    const bool lies_still = f->weights + f->states > f->capacity;
    return count + (lies_still ? choose_for_states(f, out + count)
                               : choose_for_activations(f, out + count));
}

cJSON *advice_keys(enum advice_kind kind, const struct advice_facts *f) {
    cJSON *const keys = cJSON_CreateObject();
    switch (kind) {
    case ADVICE_BF16: json_add_bool(keys, "bf16", true); return keys;
    case ADVICE_LORA:
        json_add_string(keys, "finetuning_type", "lora");
        if (f->rounding) json_add_bool(keys, "stochastic_rounding", false);
        return keys;
    case ADVICE_STOCHASTIC_ROUNDING: json_add_bool(keys, "stochastic_rounding", true); return keys;
    case ADVICE_ZERO: divide(keys, f, ranks_for_zero(f), 1); return keys;
    case ADVICE_SHARD: divide(keys, f, ranks_for_shard(f), 3); return keys;
    case ADVICE_NF4: json_add_bool(keys, "load_in_4bit", true); return keys;
    case ADVICE_CHECKPOINTING: json_add_bool(keys, "gradient_checkpointing", true); return keys;
    case ADVICE_OFFLOADING:
        json_add_bool(keys, "gradient_checkpointing", true);
        json_add_bool(keys, "activation_offloading", true);
        return keys;
    case ADVICE_SHORTER: {
        cJSON *const data = cJSON_AddObjectToObject(keys, "data");
        json_add_i64(data, "max_length", f->longest / 2);
        return keys;
    }
    case ADVICE_MICRO_BATCH:
        json_add_i64(keys, "per_device_train_batch_size", (f->rows + 1) / 2);
        json_add_i64(keys, "gradient_accumulation_steps", 2 * f->accumulation);
        return keys;
    case ADVICE_PLAIN:
    case ADVICE_KIND_COUNT: break;
    }
    cJSON_Delete(keys);
    return NULL;
}

char *advice_sentence(enum advice_kind kind, const struct advice_facts *f) {
    char a[24], b[24];
    const int64_t still = f->weights + f->states;
    switch (kind) {
    case ADVICE_PLAIN: return mem_strdup("Nothing is needed: the run fits as it is.");
    case ADVICE_BF16: return mem_strdup("Weights in bfloat16 take half of the memory of float32.");
    case ADVICE_LORA:
        return str_format("Gradients and optimizer take %s. Train adapters (LoRA) instead of every "
                          "weight.",
                          str_bytes(f->states, a));
    case ADVICE_STOCHASTIC_ROUNDING:
        return mem_strdup("Round updates at random and keep no float32 copies of the weights.");
    case ADVICE_ZERO:
        return str_format("The optimizer's states take %s. Divide them among %lld cards; a step "
                          "then has that many times the rows, unless "
                          "gradient_accumulation_steps is lowered.",
                          str_bytes(f->optimizer, a), (long long)ranks_for_zero(f));
    case ADVICE_CHECKPOINTING:
        return mem_strdup("Compute activations again in backward instead of keeping them.");
    case ADVICE_MICRO_BATCH:
        return mem_strdup("Fewer rows at a time and more accumulation: the same step.");
    case ADVICE_OFFLOADING:
        return mem_strdup("Long rows: let the inputs of checkpointed layers wait in host memory.");
    case ADVICE_SHORTER:
        return str_format("Shorter rows: cut or split them at %lld tokens. This changes the data.",
                          (long long)f->longest / 2);
    case ADVICE_NF4:
        return str_format("The frozen weights take %s. Keep those of the layers in 4 bits (NF4, "
                          "QLoRA). This changes what is learned a little.",
                          str_bytes(f->weights, a));
    case ADVICE_SHARD:
        return str_format("Weights and states take %s of %s: spread over at least %lld cards they "
                          "would fit. Divide them among %lld (ZeRO stage 3); a step then has that "
                          "many times the rows, unless gradient_accumulation_steps is lowered.",
                          str_bytes(still, a), str_bytes(f->capacity, b),
                          (long long)((still + f->capacity - 1) / f->capacity),
                          (long long)ranks_for_shard(f));
    case ADVICE_KIND_COUNT: break;
    }
    return NULL;
}
