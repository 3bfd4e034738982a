/* gemm.c - matrix products by cuBLASLt, which is loaded at run time.
 *
 * cuBLASLt counts columns first. A row-major matrix is the transpose of a column-major one in the
 * same memory, so C = op(A) op(B) is asked for as C^T = op(B)^T op(A)^T: the operands change places
 * and nothing is moved. f32 inputs are multiplied in full f32 unless the device is open for TF32;
 * bf16 and f16 accumulate in f32. A bias in f32 for a narrower C is rounded to C's dtype in the
 * workspace, so that it costs no pass over C. */
#include "kernels/cuda/gemm.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static const char *const LIBRARIES[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                        "/usr/local/cuda/lib64/libcublasLt.so.13",
                                        "/usr/local/cuda/lib64/libcublasLt.so.12"};

static const struct {
    const char *name;
    size_t offset;
} FUNCTIONS[] = {
    {"cublasLtCreate", offsetof(struct gemm_library, create)},
    {"cublasLtDestroy", offsetof(struct gemm_library, destroy)},
    {"cublasLtGetVersion", offsetof(struct gemm_library, version)},
    {"cublasLtGetStatusString", offsetof(struct gemm_library, status_string)},
    {"cublasLtMatmul", offsetof(struct gemm_library, matmul)},
    {"cublasLtMatmulDescCreate", offsetof(struct gemm_library, desc_create)},
    {"cublasLtMatmulDescDestroy", offsetof(struct gemm_library, desc_destroy)},
    {"cublasLtMatmulDescSetAttribute", offsetof(struct gemm_library, desc_set)},
    {"cublasLtMatrixLayoutCreate", offsetof(struct gemm_library, layout_create)},
    {"cublasLtMatrixLayoutDestroy", offsetof(struct gemm_library, layout_destroy)},
    {"cublasLtMatmulPreferenceCreate", offsetof(struct gemm_library, preference_create)},
    {"cublasLtMatmulPreferenceDestroy", offsetof(struct gemm_library, preference_destroy)},
    {"cublasLtMatmulPreferenceSetAttribute", offsetof(struct gemm_library, preference_set)},
    {"cublasLtMatmulAlgoGetHeuristic", offsetof(struct gemm_library, heuristic)},
    {"cublasLtMatmulAlgoCheck", offsetof(struct gemm_library, check)},
    {"cublasLtMatmulAlgoConfigSetAttribute", offsetof(struct gemm_library, config_set)},
};

/* The library stays loaded when the device is closed: unloading half a gigabyte of code that may
 * have registered itself with the runtime gains nothing. */
static enum status load(const struct device *device, struct gemm_library *library, struct err *e) {
    void *found = NULL;
    size_t which = 0;
    for (; which < COUNT_OF(LIBRARIES) && !found; which++) {
        found = dlopen(LIBRARIES[which], RTLD_NOW | RTLD_LOCAL);
    }
    FAIL_IF(
        !found, STATUS_UNSUPPORTED,
        "device %s: cuBLASLt cannot be loaded (neither %s nor %s was found); install it (Debian "
        "package libcublas-13-0), or name its folder in LD_LIBRARY_PATH",
        device->name, LIBRARIES[0], LIBRARIES[1]);
    for (size_t i = 0; i < COUNT_OF(FUNCTIONS); i++) {
        void *function = dlsym(found, FUNCTIONS[i].name);
        FAIL_IF(!function, STATUS_UNSUPPORTED, "device %s: %s has no %s; install a newer one",
                device->name, LIBRARIES[which - 1], FUNCTIONS[i].name);
        memcpy((char *)library + FUNCTIONS[i].offset, &function, sizeof function);
    }
    return STATUS_OK;
}

enum status cuda_gemm_open(struct device *device, struct err *e) {
    struct cuda_state *state = cuda_state_of(device);
    struct cuda_gemm *gemm = state->gemm = mem_new(1, sizeof *gemm);
    TRY(load(device, &gemm->library, e));
    const cublasStatus_t result = gemm->library.create(&gemm->handle);
    FAIL_IF(result != CUBLAS_STATUS_SUCCESS, STATUS_DEVICE,
            "device %s: cuBLASLt does not start: %s", device->name,
            gemm->library.status_string(result));
    const int version = (int)gemm->library.version();
    snprintf(gemm->version, sizeof gemm->version, "cuBLASLt %d.%d.%d", version / 10000,
             version / 100 % 100, version % 100);
    /* What is timed may be chosen differently next time: not where the same bits are asked for. */
    gemm->tunes = !device->deterministic && !cuda_environment("PLIMSOLL_CUDA_NO_TUNING");
    if (gemm->tunes) gemm_cache_open(device);
    return STATUS_OK;
}

void cuda_gemm_close(struct device *device) {
    struct cuda_state *state = cuda_state_of(device);
    struct cuda_gemm *gemm = state->gemm;
    if (!gemm) return;
    gemm_cache_save(device);
    gemm_cache_close(device);
    gemm_plans_clear(gemm);
    if (gemm->handle) (void)gemm->library.destroy(gemm->handle);
    mem_free(gemm);
    state->gemm = NULL;
}

const char *cuda_gemm_version(const struct device *device) {
    const struct cuda_state *state = device->state;
    return state->gemm->version;
}

enum status gemm_check(struct device *device, cublasStatus_t result, const struct gemm_args *args,
                       struct err *e) {
    if (result == CUBLAS_STATUS_SUCCESS) return STATUS_OK;
    const struct cuda_state *state = cuda_state_of(device);
    /* cuBLASLt passes on what went wrong before it, less clearly than CUDA does. */
    const cudaError_t error = state->capturing ? cudaErrorNotReady : cudaStreamQuery(state->stream);
    if (error != cudaErrorNotReady) TRY(cuda_check(device, error, "gemm", e));
    return err_set(e, STATUS_DEVICE,
                   "gemm on %s (%s): %s says: %s, for [%lld,%lld]%s x [%lld,%lld]%s in %s to %s",
                   device->name, state->card, state->gemm->version,
                   state->gemm->library.status_string(result), (long long)args->m,
                   (long long)args->k, args->trans_a ? " (transposed)" : "", (long long)args->k,
                   (long long)args->n, args->trans_b ? " (transposed)" : "",
                   dtype_name(args->a.dtype), dtype_name(args->c.dtype));
}

cublasStatus_t gemm_start(const struct device *device, const struct gemm_plan *plan,
                          const struct gemm_args *args, const cublasLtMatmulAlgo_t *algorithm) {
    const struct cuda_state *state = device->state;
    const struct gemm_library *library = &state->gemm->library;
    if (args->bias) {
        const cublasStatus_t set = library->desc_set(
            plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &args->bias, sizeof args->bias);
        if (set != CUBLAS_STATUS_SUCCESS) return set;
    }
    return library->matmul(state->gemm->handle, plan->operation, &args->alpha, args->b.data,
                           plan->b, args->a.data, plan->a, &args->beta, args->c.data, plan->c,
                           args->c.data, plan->c, algorithm, device->workspace,
                           (size_t)gemm_workspace_bytes(device), state->stream);
}

/* Rounds an f32 bias to C's dtype at the end of the workspace. */
static enum status narrow_bias(struct device *device, struct gemm_args *args, struct err *e) {
    void *narrow = (char *)device->workspace + gemm_workspace_bytes(device);
    const struct convert_args convert = {
        .rows = 1,
        .cols = args->n,
        .scale = 1,
        .src = {(void *)(uintptr_t)args->bias, DTYPE_F32, args->n},
        .dst = {narrow, args->c.dtype, args->n},
    };
    args->bias = narrow;
    args->bias_dtype = args->c.dtype;
    return cuda_convert(device, &convert, e);
}

/* For a bias that is too long for that: one more pass over C. */
static enum status add_bias(struct device *device, const struct gemm_args *args, struct err *e) {
    const struct column_scale_args columns = {
        .rows = args->m,
        .cols = args->n,
        .dtype = args->c.dtype,
        .x = args->c.data,
        .ld_x = args->c.ld,
        .bias = args->bias,
        .out = args->c.data,
        .ld_out = args->c.ld,
    };
    return cuda_column_scale(device, &columns, e);
}

static enum status check_dtypes(const struct gemm_args *a, struct err *e) {
    const enum dtype in = a->a.dtype, out = a->c.dtype;
    FAIL_IF(a->b.dtype != in || (in != DTYPE_F32 && in != DTYPE_BF16 && in != DTYPE_F16),
            STATUS_UNSUPPORTED, "gemm on CUDA: A is %s and B is %s; both must be the same float",
            dtype_name(in), dtype_name(a->b.dtype));
    FAIL_IF(out != in && out != DTYPE_F32, STATUS_UNSUPPORTED,
            "gemm on CUDA: C is %s; it must be float32 or, like A, %s", dtype_name(out),
            dtype_name(in));
    FAIL_IF(a->bias && a->bias_dtype != DTYPE_F32 && a->bias_dtype != out, STATUS_UNSUPPORTED,
            "gemm on CUDA: the bias is %s; it must be float32 or, like C, %s",
            dtype_name(a->bias_dtype), dtype_name(out));
    return STATUS_OK;
}

enum status cuda_gemm(struct device *device, const struct gemm_args *args, struct err *e) {
    struct gemm_args a = *args;
    struct gemm_plan *plan = NULL;
    TRY(check_dtypes(&a, e));
    FAIL_IF(!device->workspace, STATUS_INTERNAL, "gemm on CUDA: the device has no workspace");
    const bool wide_bias = a.bias && a.bias_dtype == DTYPE_F32 && a.c.dtype != DTYPE_F32;
    const bool apart = wide_bias && a.n * dtype_bytes(a.c.dtype) > GEMM_BIAS_BYTES;
    if (apart) a.bias = NULL;
    if (wide_bias && !apart) TRY(narrow_bias(device, &a, e));
    TRY(gemm_plan_get(device, &a, &plan, e));
    TRY(gemm_check(device, gemm_start(device, plan, &a, &plan->algorithm), &a, e));
    TRY(cuda_launched(device, "gemm", e));
    return apart ? add_bias(device, args, e) : STATUS_OK;
}
