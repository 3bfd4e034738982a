/* st_read.c - stored numbers as f32, bf16 or f16.
 *
 * Stored data may lie at any byte, so elements are copied out, never dereferenced in place. */
#include <string.h>

#include "base/half.h"
#include "engine/io/safetensors.h"

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
