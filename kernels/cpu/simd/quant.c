/* quant.c - matrices out of 4-bit and 8-bit codes.
 *
 * A row is decoded a block at a time: the 16 values times the block's scale are made once, and each
 * code picks one. The products are those of value * scale, whatever the order. */
#include <math.h>

#include "kernels/cpu/simd/math.h"
#include "kernels/cpu/simd/simd.h"

static const float NF4[16] = QUANT_NF4_VALUES;

static float nf4_scale(const struct dequantize_args *a, int64_t block) {
    if (a->quant == QUANT_NF4) return ((const float *)a->scales)[block];
    const float *nested = a->nested;
    const uint8_t code = ((const uint8_t *)a->scales)[block];
    /* Rounded twice, as the reference does: through memory, so that no compiler fuses the two. */
    const volatile float product = quant_dynamic_map[code] * nested[1 + block / QUANT_NESTED];
    return product + nested[0];
}

/* `count` elements, an even number, of one block. */
static void decode_block(const uint8_t *codes, float scale, int64_t count, float *out) {
    float values[16];
    for (int i = 0; i < 16; i++) {
        values[i] = NF4[i] * scale;
    }
    for (int64_t i = 0; i < count / 2; i++) {
        out[2 * i] = values[codes[i] >> 4];
        out[2 * i + 1] = values[codes[i] & 15];
    }
}

/* E4M3 has an exponent that is 120 lower than that of a float, and its subnormal numbers come out
 * of the same product. 127 is NaN. */
static void decode_fp8(const uint8_t *codes, float scale, int64_t count, float *out) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        const uint32_t code = codes[i], size = code & 127;
        const float value = simd_from_bits(size << 20) * 0x1p120f;
        const float known = size == 127 ? NAN : value;
        out[i] = (code & 128 ? -known : known) * scale;
    }
}

/* Elements [first, first + QUANT_BLOCK) of the tensor or fewer, none beyond their block. */
static void decode(const struct dequantize_args *a, int64_t row, int64_t first, int64_t count,
                   float *out) {
    if (a->quant == QUANT_FP8) {
        decode_fp8((const uint8_t *)a->codes + first, ((const float *)a->scales)[row], count, out);
    } else {
        decode_block((const uint8_t *)a->codes + first / 2, nf4_scale(a, first / QUANT_BLOCK),
                     count, out);
    }
}

static void narrow(const float *from, uint16_t *to, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        to[i] = simd_to_bf16(from[i]);
    }
}

enum status SIMD(cpu_dequantize)(struct device *device, const struct dequantize_args *a,
                                 struct err *e) {
    (void)device, (void)e;
#pragma omp parallel for schedule(static) if (a->rows * a->cols > PARALLEL_MIN)
    for (int64_t row = 0; row < a->rows; row++) {
        const int64_t begin = row * a->cols, end = begin + a->cols;
        for (int64_t first = begin; first < end;) {
            const int64_t block_end = (first / QUANT_BLOCK + 1) * QUANT_BLOCK;
            const int64_t count = simd_min(block_end, end) - first;
            const int64_t at = row * a->out.ld + first - begin;
            float block[QUANT_BLOCK];
            if (a->out.dtype == DTYPE_F32) {
                decode(a, row, first, count, (float *)a->out.data + at);
            } else {
                decode(a, row, first, count, block);
                narrow(block, (uint16_t *)a->out.data + at, count);
            }
            first += count;
        }
    }
    return STATUS_OK;
}
