/* gemm.h - what the files gemm*.c share: the functions of cuBLASLt, the plan of a product and the
 * choices of algorithms. Private to them; the one place that includes cublasLt.h.
 *
 * Two tables. A plan is what cuBLASLt needs for exactly one product: descriptors and an algorithm.
 * A choice is the algorithm that was fastest for a class of products: sizes above 256 are rounded
 * up to a quarter of a power of two, because the number of tokens differs from one micro-batch to
 * the next and the best algorithm hardly depends on that. Choices are what is timed and kept on
 * disk. */
#ifndef PLIMSOLL_KERNELS_CUDA_GEMM_H
#define PLIMSOLL_KERNELS_CUDA_GEMM_H

#include <cublasLt.h>

#include "kernels/cuda/cuda.h"

/* The end of the workspace holds a bias that was converted; cuBLASLt gets the rest. */
enum { GEMM_BIAS_BYTES = 1 << 20 };

struct gemm_library {
    cublasStatus_t (*create)(cublasLtHandle_t *);
    cublasStatus_t (*destroy)(cublasLtHandle_t);
    size_t (*version)(void);
    const char *(*status_string)(cublasStatus_t);
    cublasStatus_t (*matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *alpha,
                             const void *a, cublasLtMatrixLayout_t, const void *b,
                             cublasLtMatrixLayout_t, const void *beta, const void *c,
                             cublasLtMatrixLayout_t, void *d, cublasLtMatrixLayout_t,
                             const cublasLtMatmulAlgo_t *, void *workspace, size_t workspace_bytes,
                             cudaStream_t);
    cublasStatus_t (*desc_create)(cublasLtMatmulDesc_t *, cublasComputeType_t, cudaDataType_t);
    cublasStatus_t (*desc_destroy)(cublasLtMatmulDesc_t);
    cublasStatus_t (*desc_set)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, const void *,
                               size_t);
    cublasStatus_t (*layout_create)(cublasLtMatrixLayout_t *, cudaDataType, uint64_t rows,
                                    uint64_t cols, int64_t ld);
    cublasStatus_t (*layout_destroy)(cublasLtMatrixLayout_t);
    cublasStatus_t (*preference_create)(cublasLtMatmulPreference_t *);
    cublasStatus_t (*preference_destroy)(cublasLtMatmulPreference_t);
    cublasStatus_t (*preference_set)(cublasLtMatmulPreference_t,
                                     cublasLtMatmulPreferenceAttributes_t, const void *, size_t);
    cublasStatus_t (*heuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int wanted,
                                cublasLtMatmulHeuristicResult_t *, int *found);
    cublasStatus_t (*check)(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                            cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                            const cublasLtMatmulAlgo_t *, cublasLtMatmulHeuristicResult_t *);
    cublasStatus_t (*config_set)(cublasLtMatmulAlgo_t *, cublasLtMatmulAlgoConfigAttributes_t,
                                 const void *, size_t);
};

/* Everything that an algorithm may depend on. `code` packs dtypes, transposes, precision, bias,
 * beta and alignments (gemm_key_of). No padding: keys are compared as bytes. */
struct gemm_key {
    int64_t m, n, k;
    int64_t ld_a, ld_b, ld_c; /* 0 in the key of a choice */
    uint64_t code;
};
_Static_assert(sizeof(struct gemm_key) == 56, "a key is compared and hashed as seven words");

struct gemm_plan {
    struct gemm_key key;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c; /* of our row-major A, B and C */
    cublasLtMatmulAlgo_t algorithm;
    bool untried; /* made in a hurry: to be chosen again by timing */
};

struct gemm_choice {
    struct gemm_key key;
    cublasLtMatmulAlgo_t algorithm;
    int64_t time_ns; /* of one product, when it was timed */
};

/* Open addressing over items that begin with their key. */
struct gemm_table {
    void **slots;
    size_t capacity, count; /* capacity: a power of two, or 0 */
};

struct cuda_gemm {
    struct gemm_library library;
    cublasLtHandle_t handle;
    char version[32]; /* "cuBLASLt 13.1.0" */
    struct gemm_table plans, choices;
    bool tunes;
    int64_t tuning_ns; /* spent so far */
    char *path;        /* where choices are kept; NULL: nowhere */
    bool unsaved;
};

static inline int64_t gemm_workspace_bytes(const struct device *device) {
    return device->workspace_bytes - GEMM_BIAS_BYTES;
}

/* STATUS_OK, or STATUS_DEVICE with the product and what cuBLASLt says. */
enum status gemm_check(struct device *device, cublasStatus_t result, const struct gemm_args *args,
                       struct err *e);
/* Starts the product by a plan. `algorithm` is the plan's own or one that is being tried. */
cublasStatus_t gemm_start(const struct device *device, const struct gemm_plan *plan,
                          const struct gemm_args *args, const cublasLtMatmulAlgo_t *algorithm);

/* gemm_plan.c */
struct gemm_key gemm_key_of(const struct device *device, const struct gemm_args *args);
struct gemm_key gemm_class_of(const struct gemm_key *key);
/* The plan of this product, made at the first asking. Borrowed until the next call. args->bias has
 * C's dtype. */
enum status gemm_plan_get(struct device *device, const struct gemm_args *args,
                          struct gemm_plan **out, struct err *e);
void gemm_plans_clear(struct cuda_gemm *gemm);
void *gemm_table_find(const struct gemm_table *table, const struct gemm_key *key);
/* `item` is not there yet. */
void gemm_table_add(struct gemm_table *table, void *item);

/* gemm_tune.c: the fastest of the candidates, by running the product itself on its real operands.
 * C is afterwards as it was, or, when beta is 0, undefined. */
enum { GEMM_CANDIDATES_MAX = 48 };
struct gemm_candidates {
    cublasLtMatmulHeuristicResult_t items[GEMM_CANDIDATES_MAX];
    int count;
};
enum status gemm_tune(struct device *device, const struct gemm_plan *plan,
                      const struct gemm_args *args, const struct gemm_candidates *candidates,
                      struct gemm_choice *out, struct err *e);

/* gemm_cache.c: reads and writes the choices of this card and library. Nothing here fails: without
 * a cache products are timed again. */
void gemm_cache_open(struct device *device);
void gemm_cache_save(struct device *device);
void gemm_cache_close(struct device *device);

#endif
