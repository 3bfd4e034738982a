/* rows.c - whole rows moved by index: embedding and its gradient, gather and scatter.
 *
 * Ids are checked against the vocabulary before anything is written: one comparison a token, and a
 * wrong id names itself instead of corrupting memory. */
#include <string.h>

#include "kernels/cpu/simd/math.h"
#include "kernels/cpu/simd/simd.h"

enum { COLUMN_BLOCK = 64 };

static enum status check_ids(const char *op, const int32_t *ids, int64_t count, int64_t vocab,
                             struct err *e) {
    for (int64_t i = 0; i < count; i++) {
        FAIL_IF(ids[i] < 0 || ids[i] >= vocab, STATUS_INTERNAL,
                "%s: ids[%lld] is %d, outside of the vocabulary of %lld", op, (long long)i, ids[i],
                (long long)vocab);
    }
    return STATUS_OK;
}

static void scale_f32(const float *row, float *out, int64_t channels, float scale) {
#pragma omp simd
    for (int64_t c = 0; c < channels; c++) {
        out[c] = scale * row[c];
    }
}

static void scale_bf16(const uint16_t *row, float *out, int64_t channels, float scale) {
#pragma omp simd
    for (int64_t c = 0; c < channels; c++) {
        out[c] = scale * simd_from_bf16(row[c]);
    }
}

enum status SIMD(cpu_embedding)(struct device *device, const struct embedding_args *a,
                                struct err *e) {
    (void)device;
    if (!a->partial) TRY(check_ids("device_embedding", a->ids, a->tokens, a->vocab, e));
#pragma omp parallel for schedule(static) if (a->tokens * a->channels > PARALLEL_MIN)
    for (int64_t t = 0; t < a->tokens; t++) {
        const int64_t row = a->ids[t] - a->first, from = row * a->channels;
        float *out = (float *)a->out + t * a->ld_out;
        if (row < 0 || row >= a->vocab) {
            memset(out, 0, (size_t)a->channels * sizeof *out);
        } else if (a->table_dtype == DTYPE_F32) {
            scale_f32((const float *)a->table + from, out, a->channels, a->scale);
        } else {
            scale_bf16((const uint16_t *)a->table + from, out, a->channels, a->scale);
        }
    }
    return STATUS_OK;
}

/* Threads own columns, not tokens: two tokens with the same id never meet, and the sum runs in
 * token order. */
enum status SIMD(cpu_embedding_backward)(struct device *device,
                                         const struct embedding_backward_args *a, struct err *e) {
    (void)device;
    if (!a->partial) TRY(check_ids("device_embedding_backward", a->ids, a->tokens, a->vocab, e));
    const int64_t blocks = (a->channels + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
#pragma omp parallel for schedule(static) if (a->tokens * a->channels > PARALLEL_MIN)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t from = block * COLUMN_BLOCK,
                      count = simd_min(COLUMN_BLOCK, a->channels - from);
        for (int64_t t = 0; t < a->tokens; t++) {
            const int64_t row = a->ids[t] - a->first;
            if (row < 0 || row >= a->vocab) continue;
            float *restrict into = a->dtable + row * a->channels + from;
            const float *restrict dout = (const float *)a->dout + t * a->ld_dout + from;
#pragma omp simd
            for (int64_t c = 0; c < count; c++) {
                into[c] += a->scale * dout[c];
            }
        }
    }
    return STATUS_OK;
}

enum status SIMD(cpu_gather_rows)(struct device *device, const struct rows_args *a, struct err *e) {
    (void)device, (void)e;
#pragma omp parallel for schedule(static) if (a->rows * a->width > PARALLEL_MIN)
    for (int64_t i = 0; i < a->rows; i++) {
        memcpy((float *)a->dst + i * a->ld_dst, (const float *)a->src + a->index[i] * a->ld_src,
               (size_t)a->width * sizeof(float));
    }
    return STATUS_OK;
}

enum status SIMD(cpu_scatter_rows)(struct device *device, const struct rows_args *a,
                                   struct err *e) {
    (void)device, (void)e;
#pragma omp parallel for schedule(static) if (a->rows * a->width > PARALLEL_MIN)
    for (int64_t i = 0; i < a->rows; i++) {
        memcpy((float *)a->dst + a->index[i] * a->ld_dst, (const float *)a->src + i * a->ld_src,
               (size_t)a->width * sizeof(float));
    }
    return STATUS_OK;
}
