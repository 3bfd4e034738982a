/* cases_quant.c - matrices out of codes of 4 and 8 bits.
 *
 * n: rows, cols, padding in ld, enum quant; the dtype is that of the result. Codes are random bytes
 * (but for E4M3's NaN), scales random numbers. In f32 both sides must give the same bits: a product
 * and a sum are all there is. Large cases are also timed; GB/s counts codes, scales and results. */
#include "base/mem.h"
#include "tests/gpu/cases.h"

enum { TIMED_MIN = 1 << 22 };

struct arrays {
    const struct gpu_case *c;
    struct gpu_array *codes, *scales, *nested, *out;
};

static enum quant quant_of(const struct gpu_case *c) {
    return (enum quant)c->n[3];
}

static enum status run_dequantize(struct device *device, enum side side, void *context,
                                  struct err *e) {
    const struct arrays *p = context;
    return device_dequantize(device,
                             &(struct dequantize_args){
                                 .rows = p->c->n[0],
                                 .cols = p->c->n[1],
                                 .quant = quant_of(p->c),
                                 .codes = p->codes->at[side],
                                 .scales = p->scales->at[side],
                                 .nested = p->nested ? p->nested->at[side] : NULL,
                                 .out = gpu_matrix(p->out, side),
                             },
                             e);
}

static struct gpu_array *random_bytes(struct gpu_test *t, int64_t bytes) {
    const int64_t words = (bytes + 7) / 8;
    uint64_t *const values = mem_new((size_t)words, sizeof *values);
    for (int64_t i = 0; i < words; i++) {
        uint64_t word = gpu_next(t);
        for (int k = 0; k < 64; k += 8) {
            if ((word >> k & 127) == 127) word ^= UINT64_C(1) << k; /* NaN compares with nothing */
        }
        values[i] = word;
    }
    struct gpu_array *const array = gpu_values(t, values, words, DTYPE_I64);
    mem_free(values);
    return array;
}

static struct gpu_array *random_floats(struct gpu_test *t, int64_t count) {
    return gpu_random(t, 1, count, count, DTYPE_F32, 0.05);
}

static enum status dequantize_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], cols = c->n[1], pad = c->n[2];
    const enum quant quant = quant_of(c);
    const int64_t scales = quant_scale_bytes(quant, rows, cols);
    const int64_t nested = quant_nested_count(quant, rows, cols);
    struct arrays p = {.c = c};
    p.codes = random_bytes(t, quant_code_bytes(quant, rows * cols));
    p.scales = nested ? random_bytes(t, scales) : random_floats(t, scales / 4);
    p.nested = nested ? random_floats(t, nested) : NULL;
    p.out = gpu_output(t, rows, cols, cols + pad, c->dtype);
    TRY(gpu_run(t, run_dequantize, &p, e));
    gpu_compare(t, p.out, "out", c->dtype == DTYPE_F32 ? 1e-12 : 0);
    if (rows * cols < TIMED_MIN) return STATUS_OK;
    const double bytes = (double)(quant_code_bytes(quant, rows * cols) + scales + 4 * nested) +
                         (double)(rows * cols * dtype_bytes(c->dtype));
    return gpu_time(t, run_dequantize, &p, bytes, 0, e);
}

#define CASE(label, type, ...)                                                                     \
    {                                                                                              \
        .name = "dequantize/" label, .run = dequantize_case, .dtype = type, .n = { __VA_ARGS__ }   \
    }
#define EVERY_DTYPE(label, ...)                                                                    \
    CASE(label, DTYPE_F32, __VA_ARGS__), CASE(label, DTYPE_BF16, __VA_ARGS__),                     \
        CASE(label, DTYPE_F16, __VA_ARGS__)
#define EVERY_QUANT(label, rows, cols, pad)                                                        \
    EVERY_DTYPE(label "-nf4", rows, cols, pad, QUANT_NF4),                                         \
        EVERY_DTYPE(label "-nf4-double", rows, cols, pad, QUANT_NF4_DOUBLE),                       \
        EVERY_DTYPE(label "-fp8", rows, cols, pad, QUANT_FP8)

static const struct gpu_case CASES[] = {
    EVERY_QUANT("37x896", 37, 896, 64),
    EVERY_QUANT("blocks-cut-by-rows", 19, 80, 0),
    EVERY_QUANT("not-wide", 5, 16, 3),
    EVERY_QUANT("many-nested", 300, 4864, 16),
    CASE("28672x4096-nf4", DTYPE_BF16, 28672, 4096, 64, QUANT_NF4),
    CASE("28672x4096-nf4-double", DTYPE_BF16, 28672, 4096, 64, QUANT_NF4_DOUBLE),
    CASE("28672x4096-fp8", DTYPE_BF16, 28672, 4096, 64, QUANT_FP8),
    CASE("4096x4096-nf4-double", DTYPE_BF16, 4096, 4096, 0, QUANT_NF4_DOUBLE),
};

const struct gpu_suite gpu_suite_quant = {"quant", CASES, COUNT_OF(CASES)};
