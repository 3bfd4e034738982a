/* st_read.c - stored numbers as f32, bf16 or f16.
 *
 * Stored data may lie at any byte, so elements are copied out, never dereferenced in place. f16 to
 * f32 and bf16 to f32 are exact; what goes to bf16 is rounded once, to nearest even, and a NaN
 * stays a NaN (rounding must not carry its last set bit away). */
#include <string.h>

#include "engine/io/safetensors.h"

static float f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE 754 half: 1 sign, 5 exponent (bias 15), 10 mantissa bits. */
static float f32_from_f16(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 0x1F, mantissa = half & 0x3FF;
    if (exponent == 0x1F) return f32_from_bits(sign | 0x7F800000 | mantissa << 13);
    if (exponent) return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    const float magnitude = (float)mantissa * 0x1p-24f; /* subnormal, exact */
    return sign ? -magnitude : magnitude;
}

static uint16_t bf16_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Rounded to nearest even; what is too large becomes infinite, as in hardware. */
static uint16_t f16_from_f32(float value) {
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

static enum status check(const struct st_tensor *t, int64_t first, int64_t count, struct err *e) {
    ASSERT(first >= 0 && count >= 0 && first <= t->elements && count <= t->elements - first);
    FAIL_IF(t->dtype != ST_F32 && t->dtype != ST_F16 && t->dtype != ST_BF16, STATUS_UNSUPPORTED,
            "%s: tensor \"%s\" is stored as %s; only F32, F16 and BF16 weights can be used",
            t->file, t->name, st_dtype_name(t->dtype));
    return STATUS_OK;
}

static uint16_t load_u16(const unsigned char *from, int64_t index) {
    uint16_t value;
    memcpy(&value, from + 2 * index, sizeof value);
    return value;
}

enum status st_read_f32(const struct st_tensor *t, int64_t first, int64_t count, float *out,
                        struct err *e) {
    TRY(check(t, first, count, e));
    const unsigned char *const from = t->data + first * st_dtype_bytes(t->dtype);
    if (t->dtype == ST_F32) {
        if (count) memcpy(out, from, (size_t)count * sizeof *out);
    } else if (t->dtype == ST_BF16) {
        for (int64_t i = 0; i < count; i++) {
            out[i] = f32_from_bits((uint32_t)load_u16(from, i) << 16);
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            out[i] = f32_from_f16(load_u16(from, i));
        }
    }
    return STATUS_OK;
}

enum status st_read_bf16(const struct st_tensor *t, int64_t first, int64_t count, uint16_t *out,
                         struct err *e) {
    TRY(check(t, first, count, e));
    const unsigned char *const from = t->data + first * st_dtype_bytes(t->dtype);
    if (t->dtype == ST_BF16) {
        if (count) memcpy(out, from, (size_t)count * sizeof *out);
    } else if (t->dtype == ST_F32) {
        for (int64_t i = 0; i < count; i++) {
            float value;
            memcpy(&value, from + 4 * i, sizeof value);
            out[i] = bf16_from_f32(value);
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            out[i] = bf16_from_f32(f32_from_f16(load_u16(from, i)));
        }
    }
    return STATUS_OK;
}

enum status st_read_f16(const struct st_tensor *t, int64_t first, int64_t count, uint16_t *out,
                        struct err *e) {
    TRY(check(t, first, count, e));
    const unsigned char *const from = t->data + first * st_dtype_bytes(t->dtype);
    if (t->dtype == ST_F16) {
        if (count) memcpy(out, from, (size_t)count * sizeof *out);
    } else if (t->dtype == ST_F32) {
        for (int64_t i = 0; i < count; i++) {
            float value;
            memcpy(&value, from + 4 * i, sizeof value);
            out[i] = f16_from_f32(value);
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            out[i] = f16_from_f32(f32_from_bits((uint32_t)load_u16(from, i) << 16));
        }
    }
    return STATUS_OK;
}
