/* math.h - exp, tanh, the logistic function and rounding to bf16 in a form that the compiler
 * vectorises. Private to kernels/cpu/simd.
 *
 * Branch-free, exact in their special cases (infinities, NaN, overflow, subnormal results), and
 * within 2 units in the last place of the true value over the whole range:
 * tests/unit/test_ops_math.c walks it against long double. */
#ifndef PLIMSOLL_KERNELS_SIMD_MATH_H
#define PLIMSOLL_KERNELS_SIMD_MATH_H

#include <stdint.h>
#include <string.h>

static inline float simd_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t simd_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float simd_from_bf16(uint16_t value) {
    return simd_from_bits((uint32_t)value << 16);
}

/* Round to nearest, ties to even; a NaN keeps its sign and stays one. */
static inline uint16_t simd_to_bf16(float value) {
    const uint32_t bits = simd_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* e^x: x = n ln2 + r with |r| <= ln2/2 (Cody & Waite 1980: ln2 in two parts, the first with 16 bits
 * so that n times it is exact), Taylor's series to r^7 (its rest is below 0.05 ulp), and 2^n in two
 * factors so that neither overflows before the result does. */
static inline float simd_exp(float x) {
    const float rounder = 0x1.8p23f;
    x = x > 90.0f ? 90.0f : x;
    x = x < -105.0f ? -105.0f : x;
    const float shifted = x * 0x1.715476p+0f + rounder;
    const float n = shifted - rounder;
    float r = x - n * 0x1.62e4p-1f;
    r = r - n * 0x1.7f7d1cp-20f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r * r + r;
    p = p + 1.0f;
    const int32_t power = (int32_t)(simd_bits(shifted) - simd_bits(rounder));
    const int32_t half = power / 2;
    const float scale_1 = simd_from_bits((uint32_t)(half + 127) << 23);
    const float scale_2 = simd_from_bits((uint32_t)(power - half + 127) << 23);
    return p * scale_1 * scale_2;
}

/* 1 / (1 + e^-x). */
static inline float simd_logistic(float x) {
    return 1.0f / (1.0f + simd_exp(-x));
}

/* tanh x: an odd polynomial (minimax in x^2, relative error 2^-27.7) for |x| < 0.625, 1 - 2/(e^2|x|
 * + 1) beyond, where nothing cancels. */
static inline float simd_tanh(float x) {
    const float size = simd_from_bits(simd_bits(x) & 0x7fffffffu);
    const float z = x * x;
    float p = -0x1.7522bp-8f;
    p = p * z + 0x1.51fd78p-6f;
    p = p * z + -0x1.b83652p-5f;
    p = p * z + 0x1.1106fap-3f;
    p = p * z + -0x1.555532p-2f;
    const float near = x + x * z * p;
    const float far = 1.0f - 2.0f / (simd_exp(2.0f * size) + 1.0f);
    const float far_signed = simd_from_bits(simd_bits(far) | (simd_bits(x) & 0x80000000u));
    return size < 0.625f ? near : far_signed;
}

#endif
