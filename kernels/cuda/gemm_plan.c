/* gemm_plan.c - plans of products: found again by their key, or made.
 *
 * Making one asks cuBLASLt's heuristic for algorithms, which takes a tenth of a millisecond;
 * finding one is a hash of seven words. The heuristic hears what it must: how the operands are
 * aligned, how much workspace there is (always the same), and that partial sums may only be kept
 * in f32. Where C has few tiles and k is long (the gradients of LoRA), algorithms that split k are
 * added by hand, since the heuristic offers few of them. */
#include "kernels/cuda/gemm.h"

#include <string.h>

#include "base/mem.h"

/* Plans are cheap to make again; so many shapes only come from ever-changing token counts. */
enum { PLANS_MAX = 4096, TABLE_START = 64 };
enum { ALIGNMENT_LOG2_MAX = 8, HEURISTICS_WANTED = 24 };
/* Sizes up to this are a class of their own. */
enum { EXACT_SIZE_MAX = 256 };
/* Splits are tried below so many tiles of 128 x 128 (twice the multiprocessors of the largest
 * card) and from this k on. */
enum { SPLIT_TILES_MAX = 264, SPLIT_TILE = 128, SPLIT_K_MIN = 1024, SPLIT_SOURCES = 3 };
static const int32_t SPLITS[] = {2, 4, 8, 12, 16, 32};
/* After so much timing in one process the heuristic decides: a run must not spend minutes. */
static const int64_t TUNING_NS_MAX = INT64_C(20) * 1000 * 1000 * 1000;

static uint64_t alignment_log2(const void *pointer) {
    const uint64_t address = (uintptr_t)pointer | (UINT64_C(1) << ALIGNMENT_LOG2_MAX);
    return (uint64_t)__builtin_ctzll(address);
}

struct gemm_key gemm_key_of(const struct device *device, const struct gemm_args *a) {
    const uint64_t fields[][2] = {
        /* value, bits */
        {a->a.dtype, 4},
        {a->c.dtype, 4},
        {a->trans_a, 1},
        {a->trans_b, 1},
        {a->a.dtype == DTYPE_F32 && device->precision == PRECISION_TF32, 1},
        {a->bias != NULL, 1},
        {a->beta != 0, 1},
        {device->deterministic, 1},
        {alignment_log2(a->a.data), 4},
        {alignment_log2(a->b.data), 4},
        {alignment_log2(a->c.data), 4},
        {a->bias ? alignment_log2(a->bias) : 0, 4},
    };
    struct gemm_key key = {a->m, a->n, a->k, a->a.ld, a->b.ld, a->c.ld, 0};
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        key.code = key.code << fields[i][1] | fields[i][0];
    }
    return key;
}

/* Up to the next of 1, 1.25, 1.5, 1.75 times a power of two. */
static int64_t size_class(int64_t size) {
    if (size <= EXACT_SIZE_MAX) return size;
    const int64_t step = INT64_C(1) << (61 - __builtin_clzll((uint64_t)size - 1));
    return (size + step - 1) / step * step;
}

/* Whether the rows of a matrix are aligned as far as its first element is: 4 bits of log2. */
static uint64_t ld_alignment(int64_t ld) {
    const uint64_t bits = (uint64_t)ld | (UINT64_C(1) << ALIGNMENT_LOG2_MAX);
    return (uint64_t)__builtin_ctzll(bits);
}

struct gemm_key gemm_class_of(const struct gemm_key *key) {
    const uint64_t rows =
        ld_alignment(key->ld_a) << 8 | ld_alignment(key->ld_b) << 4 | ld_alignment(key->ld_c);
    return (struct gemm_key){.m = size_class(key->m),
                             .n = size_class(key->n),
                             .k = size_class(key->k),
                             .code = rows << 48 | key->code};
}

static size_t hash(const struct gemm_key *key) {
    uint64_t words[sizeof *key / sizeof(uint64_t)], h = UINT64_C(0x9E3779B97F4A7C15);
    memcpy(words, key, sizeof words);
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        h = (h ^ words[i]) * UINT64_C(0xBF58476D1CE4E5B9);
        h ^= h >> 29;
    }
    return (size_t)h;
}

void *gemm_table_find(const struct gemm_table *table, const struct gemm_key *key) {
    if (table->capacity == 0) return NULL;
    for (size_t i = hash(key);; i++) {
        void *item = table->slots[i & (table->capacity - 1)];
        if (!item || memcmp(item, key, sizeof *key) == 0) return item;
    }
}

static void put(struct gemm_table *table, void *item) {
    size_t i = hash(item);
    while (table->slots[i & (table->capacity - 1)]) {
        i++;
    }
    table->slots[i & (table->capacity - 1)] = item;
}

void gemm_table_add(struct gemm_table *table, void *item) {
    if (2 * (table->count + 1) > table->capacity) {
        const struct gemm_table old = *table;
        table->capacity = old.capacity ? 2 * old.capacity : TABLE_START;
        table->slots = mem_new(table->capacity, sizeof *table->slots);
        for (size_t i = 0; i < old.capacity; i++) {
            if (old.slots[i]) put(table, old.slots[i]);
        }
        mem_free(old.slots);
    }
    put(table, item);
    table->count++;
}

static void plan_free(const struct cuda_gemm *gemm, struct gemm_plan *plan) {
    const struct gemm_library *library = &gemm->library;
    if (plan->operation) (void)library->desc_destroy(plan->operation);
    if (plan->a) (void)library->layout_destroy(plan->a);
    if (plan->b) (void)library->layout_destroy(plan->b);
    if (plan->c) (void)library->layout_destroy(plan->c);
    mem_free(plan);
}

void gemm_plans_clear(struct cuda_gemm *gemm) {
    for (size_t i = 0; i < gemm->plans.capacity; i++) {
        if (gemm->plans.slots[i]) plan_free(gemm, gemm->plans.slots[i]);
    }
    mem_free(gemm->plans.slots);
    gemm->plans = (struct gemm_table){.count = 0};
}

static cudaDataType data_type(enum dtype dtype) {
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : dtype == DTYPE_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static enum status describe_operation(struct device *device, struct gemm_plan *plan,
                                      const struct gemm_args *a, struct err *e) {
    const struct gemm_library *library = &cuda_state_of(device)->gemm->library;
    const bool tf32 = a->a.dtype == DTYPE_F32 && device->precision == PRECISION_TF32;
    TRY(gemm_check(device,
                   library->desc_create(&plan->operation,
                                        tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                        CUDA_R_32F),
                   a, e));
    /* B comes first there, see the head of gemm.c. */
    const int32_t first = a->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t second = a->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const int32_t bias_type = data_type(a->c.dtype);
    const struct {
        cublasLtMatmulDescAttributes_t which;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first},
        {CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a->bias, sizeof a->bias},
    };
    const size_t count = a->bias ? COUNT_OF(attributes) : 2;
    for (size_t i = 0; i < count; i++) {
        TRY(gemm_check(device,
                       library->desc_set(plan->operation, attributes[i].which, attributes[i].value,
                                         attributes[i].bytes),
                       a, e));
    }
    return STATUS_OK;
}

/* Our rows are its columns. */
static enum status describe(struct device *device, struct gemm_plan *plan,
                            const struct gemm_args *a, struct err *e) {
    const struct gemm_library *library = &cuda_state_of(device)->gemm->library;
    const uint64_t m = (uint64_t)a->m, n = (uint64_t)a->n, k = (uint64_t)a->k;
    TRY(describe_operation(device, plan, a, e));
    TRY(gemm_check(device,
                   library->layout_create(&plan->a, data_type(a->a.dtype), a->trans_a ? m : k,
                                          a->trans_a ? k : m, a->a.ld),
                   a, e));
    TRY(gemm_check(device,
                   library->layout_create(&plan->b, data_type(a->b.dtype), a->trans_b ? k : n,
                                          a->trans_b ? n : k, a->b.ld),
                   a, e));
    return gemm_check(device,
                      library->layout_create(&plan->c, data_type(a->c.dtype), n, m, a->c.ld), a, e);
}

/* Which ways to add up the parts of a split k are allowed. In f32 in the workspace always; in C
 * itself only where C is f32, and not where the same bits are asked for. */
static uint32_t reductions(const struct device *device, const struct gemm_args *a) {
    return a->c.dtype == DTYPE_F32 && !device->deterministic
               ? CUBLASLT_REDUCTION_SCHEME_MASK
               : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

static enum status set_preferences(struct device *device, cublasLtMatmulPreference_t preference,
                                   const struct gemm_args *a, struct err *e) {
    const struct gemm_library *library = &cuda_state_of(device)->gemm->library;
    const uint64_t workspace = (uint64_t)gemm_workspace_bytes(device);
    const uint32_t scheme = reductions(device, a);
    const uint32_t align_a = 1u << alignment_log2(a->a.data);
    const uint32_t align_b = 1u << alignment_log2(a->b.data);
    const uint32_t align_c = 1u << alignment_log2(a->c.data);
    const struct {
        cublasLtMatmulPreferenceAttributes_t which;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_b, sizeof align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_a, sizeof align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_c, sizeof align_c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_c, sizeof align_c},
    };
    for (size_t i = 0; i < COUNT_OF(attributes); i++) {
        TRY(gemm_check(device,
                       library->preference_set(preference, attributes[i].which, attributes[i].value,
                                               attributes[i].bytes),
                       a, e));
    }
    return STATUS_OK;
}

/* The heuristic's list, best first by its own account. */
static enum status ask_heuristic(struct device *device, const struct gemm_plan *plan,
                                 const struct gemm_args *a, struct gemm_candidates *out,
                                 struct err *e) {
    enum status status = STATUS_OK;
    struct cuda_gemm *gemm = cuda_state_of(device)->gemm;
    cublasLtMatmulPreference_t preference = NULL;
    cublasStatus_t result = gemm->library.preference_create(&preference);
    GUARD(gemm_check(device, result, a, e));
    GUARD(set_preferences(device, preference, a, e));
    result = gemm->library.heuristic(gemm->handle, plan->operation, plan->b, plan->a, plan->c,
                                     plan->c, preference, gemm->tunes ? HEURISTICS_WANTED : 1,
                                     out->items, &out->count);
    GUARD(gemm_check(device, result, a, e));
    GUARD(gemm_check(device, out->count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED,
                     a, e));

done:
    if (preference) (void)gemm->library.preference_destroy(preference);
    return status;
}

/* True if cuBLASLt can run the algorithm on this product in our workspace. */
static bool is_possible(const struct device *device, const struct gemm_plan *plan,
                        const cublasLtMatmulAlgo_t *algorithm,
                        cublasLtMatmulHeuristicResult_t *result) {
    const struct cuda_state *state = device->state;
    const struct cuda_gemm *gemm = state->gemm;
    const cublasStatus_t checked = gemm->library.check(
        gemm->handle, plan->operation, plan->b, plan->a, plan->c, plan->c, algorithm, result);
    return checked == CUBLAS_STATUS_SUCCESS && result->state == CUBLAS_STATUS_SUCCESS &&
           result->workspaceSize <= (size_t)gemm_workspace_bytes(device);
}

static void add_splits(const struct device *device, const struct gemm_plan *plan,
                       const struct gemm_args *a, struct gemm_candidates *candidates) {
    const struct cuda_state *state = device->state;
    const int64_t tiles =
        ((a->m + SPLIT_TILE - 1) / SPLIT_TILE) * ((a->n + SPLIT_TILE - 1) / SPLIT_TILE);
    if (tiles > SPLIT_TILES_MAX || a->k < SPLIT_K_MIN) return;
    const int sources = candidates->count < SPLIT_SOURCES ? candidates->count : SPLIT_SOURCES;
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    for (int i = 0; i < sources; i++) {
        for (size_t s = 0; s < COUNT_OF(SPLITS) && candidates->count < GEMM_CANDIDATES_MAX; s++) {
            cublasLtMatmulHeuristicResult_t result = {0};
            cublasLtMatmulAlgo_t algorithm = candidates->items[i].algo;
            const struct gemm_library *library = &state->gemm->library;
            if (library->config_set(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &SPLITS[s],
                                    sizeof SPLITS[s]) != CUBLAS_STATUS_SUCCESS ||
                library->config_set(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                    sizeof scheme) != CUBLAS_STATUS_SUCCESS)
                continue;
            if (!is_possible(device, plan, &algorithm, &result)) continue;
            result.algo = algorithm;
            candidates->items[candidates->count++] = result;
        }
    }
}

/* A captured stream cannot be timed, and a hurried device shall not be. */
static bool may_tune(const struct device *device) {
    const struct cuda_state *state = device->state;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusActive;
    return state->gemm->tunes && !device->hurried && state->gemm->tuning_ns < TUNING_NS_MAX &&
           cudaStreamIsCapturing(state->stream, &capture) == cudaSuccess &&
           capture == cudaStreamCaptureStatusNone;
}

static enum status choose(struct device *device, struct gemm_plan *plan, const struct gemm_args *a,
                          struct err *e) {
    struct cuda_gemm *gemm = cuda_state_of(device)->gemm;
    const struct gemm_key class = gemm_class_of(&plan->key);
    struct gemm_choice *known = gemm_table_find(&gemm->choices, &class);
    cublasLtMatmulHeuristicResult_t result = {0};
    plan->untried = false;
    if (known && is_possible(device, plan, &known->algorithm, &result)) {
        plan->algorithm = known->algorithm;
        return STATUS_OK;
    }
    struct gemm_candidates candidates = {.count = 0};
    TRY(ask_heuristic(device, plan, a, &candidates, e));
    plan->algorithm = candidates.items[0].algo;
    plan->untried = !known && gemm->tunes && device->hurried;
    if (known || !may_tune(device)) return STATUS_OK;
    struct gemm_choice choice = {.key = class};
    add_splits(device, plan, a, &candidates);
    TRY(gemm_tune(device, plan, a, &candidates, &choice, e));
    if (choice.time_ns == 0) return STATUS_OK; /* C was too large to be kept meanwhile */
    struct gemm_choice *item = mem_new(1, sizeof *item);
    *item = choice;
    gemm_table_add(&gemm->choices, item);
    gemm->unsaved = true;
    plan->algorithm = choice.algorithm;
    gemm_cache_save(device);
    return STATUS_OK;
}

enum status gemm_plan_get(struct device *device, const struct gemm_args *args,
                          struct gemm_plan **out, struct err *e) {
    struct cuda_gemm *gemm = cuda_state_of(device)->gemm;
    const struct gemm_key key = gemm_key_of(device, args);
    *out = gemm_table_find(&gemm->plans, &key);
    const bool again = *out && (*out)->untried && may_tune(device);
    if (again) return choose(device, *out, args, e);
    if (*out) return STATUS_OK;
    if (gemm->plans.count >= PLANS_MAX) gemm_plans_clear(gemm);
    struct gemm_plan *plan = mem_new(1, sizeof *plan);
    plan->key = key;
    enum status status = describe(device, plan, args, e);
    if (status == STATUS_OK) status = choose(device, plan, args, e);
    if (status != STATUS_OK) {
        plan_free(gemm, plan);
        return status;
    }
    gemm_table_add(&gemm->plans, plan);
    *out = plan;
    return STATUS_OK;
}
