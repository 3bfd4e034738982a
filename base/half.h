/* half.h - numbers of 16 bits and back, on the host.
 *
 * f16 to f32 and bf16 to f32 are exact; the other way is rounded once, to nearest even, and a NaN
 * stays a NaN (rounding must not carry its last set bit away). */
#ifndef PLIMSOLL_BASE_HALF_H
#define PLIMSOLL_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float f32_from_bf16(uint16_t value) {
    return f32_from_bits((uint32_t)value << 16);
}

/* IEEE 754 half: 1 sign, 5 exponent (bias 15), 10 mantissa bits. */
static inline float f32_from_f16(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 0x1F, mantissa = half & 0x3FF;
    if (exponent == 0x1F) return f32_from_bits(sign | 0x7F800000 | mantissa << 13);
    if (exponent) return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    const float magnitude = (float)mantissa * 0x1p-24f; /* subnormal, exact */
    return sign ? -magnitude : magnitude;
}

static inline uint16_t bf16_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Rounded to nearest even; what is too large becomes infinite, as in hardware. */
static inline uint16_t f16_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return sign | 0x7E00;  /* NaN */
    if (magnitude >= 0x477FF000) return sign | 0x7C00; /* rounds to 65536 or more */
    if (magnitude < 0x38800000) { /* subnormal: in steps of 2^-24, rounded by the adder */
        float step;
        memcpy(&step, &magnitude, sizeof step);
        step += 0.5f; /* an f32 near 0.5 has steps of 2^-24 */
        uint32_t rounded;
        memcpy(&rounded, &step, sizeof rounded);
        return (uint16_t)(sign | (rounded - 0x3F000000));
    }
    const uint32_t nearest = magnitude + 0xFFF + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((nearest - 0x38000000) >> 13));
}

#endif
