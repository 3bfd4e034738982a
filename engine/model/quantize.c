/* quantize.c - see quantize.h.
 *
 * NF4 after Dettmers et al. 2023 (QLoRA), equations 1 and 2, rounded as bitsandbytes does: elements
 * are multiplied by the reciprocal of their block's largest magnitude, and an element lies above a
 * threshold or not. A block of zeros has no reciprocal; its products compare as not above. */
#include "engine/model/quantize.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

static const float THRESHOLDS[QUANT_NF4_STEPS] = QUANT_NF4_THRESHOLDS;

float quantize_largest(const float *x, int64_t count) {
    float largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < count; i++) {
        const float size = fabsf(x[i]);
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* Compared with all of them: faster than a search, because many are done at a time. */
static inline int32_t nf4_code(float x) {
    int32_t code = 0;
#pragma GCC unroll 15
    for (int step = 0; step < QUANT_NF4_STEPS; step++) {
        code += x > THRESHOLDS[step];
    }
    return code;
}

float quantize_nf4(const float *x, int64_t count, uint8_t *codes) {
    ASSERT(count > 0 && count <= QUANT_BLOCK && count % 2 == 0);
    const float scale = quantize_largest(x, count), reciprocal = 1 / scale;
    int32_t code[QUANT_BLOCK];
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        code[i] = nf4_code(x[i] * reciprocal);
    }
    for (int64_t i = 0; i < count / 2; i++) {
        codes[i] = (uint8_t)(code[2 * i] << 4 | code[2 * i + 1]);
    }
    return scale;
}

/* The code whose value is nearest. */
static uint8_t nearest(float x) {
    int low = 0; /* the last value that is at most x, or the first */
    for (int step = 128; step > 0; step /= 2) {
        low += quant_dynamic_map[low + step] <= x ? step : 0; /* no branch to be guessed wrong */
    }
    const int high = low < 255 ? low + 1 : low;
    const float between = (quant_dynamic_map[low] + quant_dynamic_map[high]) * 0.5f;
    return (uint8_t)(x > between ? high : low);
}

void quantize_scales(const float *scales, int64_t count, uint8_t *codes, float *nested) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)scales[i];
    }
    const float mean = (float)(sum / (double)count);
    nested[0] = mean;
#pragma omp parallel for schedule(static) if (count > QUANT_NESTED)
    for (int64_t first = 0; first < count; first += QUANT_NESTED) {
        const int64_t left = count - first, part = left < QUANT_NESTED ? left : QUANT_NESTED;
        float rest[QUANT_NESTED];
        for (int64_t i = 0; i < part; i++) {
            rest[i] = scales[first + i] - mean;
        }
        const float scale = quantize_largest(rest, part);
        const float reciprocal = scale > 0 ? 1 / scale : 0;
        for (int64_t i = 0; i < part; i++) {
            codes[first + i] = nearest(rest[i] * reciprocal);
        }
        nested[1 + first / QUANT_NESTED] = scale;
    }
}

float quantize_fp8_scale(float largest) {
    return largest / QUANT_FP8_MAX;
}

/* E4M3 has 3 bits of mantissa, normal numbers from 2^-6 on, and steps of 2^-9 below. */
static uint8_t fp8_of(float x) {
    uint32_t bits = 0;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 24 & 128;
    const float size = fabsf(x);
    if (isnan(x)) return (uint8_t)(sign | 127);
    if (size >= QUANT_FP8_MAX) return (uint8_t)(sign | 126);
    if (size < 0x1p-6f) return (uint8_t)(sign | (uint32_t)rintf(size * 0x1p9f));
    bits &= 0x7fffffff;
    const uint32_t rounded = bits + 0x7ffff + (bits >> 20 & 1);
    return (uint8_t)(sign | ((rounded >> 20) - (120 << 3)));
}

void quantize_fp8(const float *x, int64_t count, float scale, uint8_t *codes) {
    for (int64_t i = 0; i < count; i++) {
        codes[i] = scale > 0 ? fp8_of(x[i] / scale) : 0;
    }
}
