/* cases_gemm.c - matrix products: the shapes that training meets, and the ones that break kernels.
 *
 * n: m, n, k, which operands are transposed (1: A, 2: B), columns of padding in every ld, bias (1:
 * float32, 2: C's dtype), C in float32 (1) or in A's dtype (0), elements by which A, B and C begin
 * late. x: alpha, beta. Large products are compared in their first rows only, since the CPU needs
 * seconds for all of them. The tolerance covers sums in another order: f32 relative to the norm,
 * TF32 its 10-bit mantissas, bf16 into f32 that tensor cores cut off where f32 rounds. */
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "tests/gpu/cases.h"

enum { COMPARED_ROWS = 256 };
static const double TF32_TOLERANCE = 1.5e-3;
static const double WIDE_TOLERANCE = 1e-4;

struct product {
    const struct gpu_case *c;
    struct gpu_array *a, *b, *out, *bias;
    int64_t cpu_rows;
};

/* The operand, without its first elements. */
static struct matrix late(const struct gpu_array *array, enum side side, int64_t elements) {
    struct matrix m = gpu_matrix(array, side);
    m.data = (char *)m.data + elements * dtype_bytes(m.dtype);
    return m;
}

static enum status run_product(struct device *device, enum side side, void *context,
                               struct err *e) {
    const struct product *p = context;
    const int64_t *n = p->c->n;
    return device_gemm(device,
                       &(struct gemm_args){
                           .m = side == SIDE_CPU ? p->cpu_rows : n[0],
                           .n = n[1],
                           .k = n[2],
                           .alpha = (float)p->c->x[0],
                           .beta = (float)p->c->x[1],
                           .trans_a = (n[3] & 1) != 0,
                           .trans_b = (n[3] & 2) != 0,
                           .a = late(p->a, side, n[7]),
                           .b = late(p->b, side, n[7]),
                           .c = late(p->out, side, n[7]),
                           .bias = p->bias ? p->bias->at[side] : NULL,
                           .bias_dtype = p->bias ? gpu_dtype(p->bias, side) : DTYPE_F32,
                       },
                       e);
}

static double tolerance_of(const struct gpu_case *c, enum dtype out) {
    if (c->dtype == DTYPE_F32 && c->precision == PRECISION_TF32) return TF32_TOLERANCE;
    if (c->dtype != DTYPE_F32 && out == DTYPE_F32) return WIDE_TOLERANCE;
    return gpu_tolerance(out);
}

static enum status gemm_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t m = c->n[0], n = c->n[1], k = c->n[2], pad = c->n[4], shift = c->n[7];
    const bool trans_a = (c->n[3] & 1) != 0, trans_b = (c->n[3] & 2) != 0;
    const enum dtype out = c->n[6] ? DTYPE_F32 : c->dtype;
    const int64_t cols_a = shift + (trans_a ? m : k), cols_b = shift + (trans_b ? k : n);
    struct product p = {.c = c, .cpu_rows = m > 2 * COMPARED_ROWS && !trans_a ? COMPARED_ROWS : m};
    p.a = gpu_random(t, trans_a ? k : m, cols_a, cols_a + pad, c->dtype, 1);
    p.b = gpu_random(t, trans_b ? n : k, cols_b, cols_b + pad, c->dtype, 0.02);
    p.out = c->x[1] != 0 || shift ? gpu_random(t, m, shift + n, shift + n + pad, out, 1)
                                  : gpu_output(t, m, n, n + pad, out);
    if (c->n[5]) p.bias = gpu_random(t, 1, n, n, c->n[5] == 1 ? DTYPE_F32 : out, 1);
    TRY(gpu_run(t, run_product, &p, e));
    struct gpu_array compared = *p.out;
    compared.rows = p.cpu_rows;
    gpu_compare(t, &compared, "c", tolerance_of(c, out));
    const double element = (double)dtype_bytes(c->dtype), size = (double)m * (double)n;
    const double bytes = ((double)m * (double)k + (double)n * (double)k) * element +
                         size * (double)dtype_bytes(out) * (c->x[1] != 0 ? 2 : 1);
    return gpu_time(t, run_product, &p, bytes, 2 * size * (double)k, e);
}

/* Something was timed by now, or is timed here, and is on disk for the next process. */
static enum status cache_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    TRY(gemm_case(t, c, e));
    char *folder = file_join(getenv("XDG_CACHE_HOME"), "plimsoll");
    char **names = NULL;
    size_t count = 0;
    int64_t bytes = 0;
    const enum status status = file_list(folder, &names, &count, e);
    if (status == STATUS_OK) {
        gpu_expect(t, count == 1 && str_starts_with(names[0], "gemm-"), "%zu files in the cache",
                   count);
        char *path = count == 1 ? file_join(folder, names[0]) : NULL;
        if (path && file_size(path, &bytes, e) == STATUS_OK)
            gpu_expect(t, bytes > 256, "the cache has %lld bytes", (long long)bytes);
        mem_free(path);
        file_names_free(names, count);
    }
    mem_free(folder);
    return status;
}

#define GEMM(label, type, ...)                                                                     \
    {                                                                                              \
        .name = "gemm/" label, .run = gemm_case, .dtype = type, .n = {__VA_ARGS__}, .x = { 1, 0 }  \
    }
#define GEMM_ADD(label, type, ...)                                                                 \
    {                                                                                              \
        .name = "gemm/" label, .run = gemm_case, .dtype = type, .n = {__VA_ARGS__}, .x = {         \
            0.5,                                                                                   \
            1                                                                                      \
        }                                                                                          \
    }
#define GEMM_EVERY_DTYPE(label, ...)                                                               \
    GEMM(label, DTYPE_F32, __VA_ARGS__), GEMM(label, DTYPE_BF16, __VA_ARGS__),                     \
        GEMM(label, DTYPE_F16, __VA_ARGS__)

static const struct gpu_case CASES[] = {
    /* The largest product of Llama-3.1-8B on 8192 tokens: the rate that bench.sh compares with. */
    GEMM("rate-8b", DTYPE_BF16, 8192, 28672, 4096, 2),
    GEMM_EVERY_DTYPE("nt-256", 256, 256, 256, 2),
    GEMM_EVERY_DTYPE("nn-256", 256, 256, 256, 0),
    GEMM_EVERY_DTYPE("tn-256", 256, 256, 256, 1),
    GEMM_EVERY_DTYPE("tt-256", 256, 256, 256, 3),
    GEMM_EVERY_DTYPE("one", 1, 1, 1, 2),
    GEMM_EVERY_DTYPE("row", 1, 4096, 512, 2),
    GEMM_EVERY_DTYPE("column", 333, 1, 77, 2),
    GEMM_EVERY_DTYPE("odd-sizes", 127, 333, 65, 2, 3),
    GEMM_EVERY_DTYPE("odd-nn", 63, 129, 257, 0, 1),
    GEMM_EVERY_DTYPE("odd-tn", 63, 129, 257, 1, 1),
    GEMM_EVERY_DTYPE("unaligned", 128, 256, 192, 2, 5, 0, 0, 3),
    GEMM_EVERY_DTYPE("bias-own-dtype", 300, 896, 512, 2, 8, 2),
    GEMM_EVERY_DTYPE("bias-f32", 300, 1152, 512, 2, 64, 1),
    GEMM("bias-long", DTYPE_BF16, 8, 600000, 32, 2, 0, 1),
    GEMM("bf16-to-f32", DTYPE_BF16, 512, 640, 1024, 2, 8, 1, 1),
    GEMM("f16-to-f32", DTYPE_F16, 512, 640, 1024, 2, 8, 0, 1),
    GEMM_ADD("add-f32", DTYPE_F32, 320, 512, 640, 1, 4),
    GEMM_ADD("add-bf16", DTYPE_BF16, 320, 512, 640, 2, 8, 2),
    GEMM_ADD("add-bf16-to-f32", DTYPE_BF16, 32, 2048, 4096, 1, 8, 0, 1),
    {.name = "gemm/tf32",
     .run = gemm_case,
     .dtype = DTYPE_F32,
     .precision = PRECISION_TF32,
     .n = {2048, 2048, 2048, 2},
     .x = {1, 0}},
    {.name = "gemm/nt",
     .run = gemm_case,
     .dtype = DTYPE_BF16,
     .deterministic = true,
     .n = {2048, 2048, 2048, 2},
     .x = {1, 0}},
    {.name = "gemm/split-k",
     .run = gemm_case,
     .dtype = DTYPE_BF16,
     .deterministic = true,
     .n = {32, 4096, 8192, 1, 0, 0, 1},
     .x = {1, 1}},
    /* Llama 8B with LoRA r 16 in the tails (48 and 32, padded to 64), 4096 tokens. */
    GEMM("8b-qkv", DTYPE_BF16, 4096, 6144, 4160, 2),
    GEMM("8b-qkv-dx", DTYPE_BF16, 4096, 4096, 6208, 0),
    GEMM("8b-gate-up", DTYPE_BF16, 4096, 28672, 4160, 2),
    GEMM("8b-down", DTYPE_BF16, 4096, 4096, 14400, 2),
    GEMM("8b-xa", DTYPE_BF16, 4096, 64, 4096, 2, 64),
    GEMM("8b-xa-one", DTYPE_BF16, 4096, 16, 4096, 2, 64),
    GEMM_ADD("8b-da", DTYPE_BF16, 48, 4096, 4096, 1, 64, 0, 1),
    GEMM_ADD("8b-db", DTYPE_BF16, 6144, 64, 4096, 1, 0, 0, 1),
    {.name = "gemm/cache",
     .run = cache_case,
     .dtype = DTYPE_BF16,
     .n = {768, 512, 512, 2},
     .x = {1, 0}},
    GEMM("f32-2048", DTYPE_F32, 2048, 2048, 2048, 2),
    GEMM("8192", DTYPE_BF16, 8192, 8192, 8192, 2),
    /* Qwen2.5 1.5B in full: the gradient of a weight, and the head. */
    GEMM_ADD("1.5b-dw", DTYPE_BF16, 1536, 8960, 8192, 1, 0, 0, 1),
    GEMM("1.5b-head", DTYPE_BF16, 1024, 151936, 1536, 2),
};

const struct gpu_suite gpu_suite_gemm = {"gemm", CASES, COUNT_OF(CASES)};
