/* attention.c - causal attention, forward, in blocks (Dao et al. 2022, "FlashAttention"; the online
 * softmax is Milakov & Gimelshein 2018). One task is a block of queries of one head; nothing of
 * size T x T exists, blocks outside of the causal triangle and the window are never touched. */
#include "kernels/cpu/simd/attention.h"

#include <math.h>
#include <omp.h>

#include "kernels/cpu/simd/math.h"

/* One thread's part of the workspace; head dimensions are padded to `wide`. */
struct tiles {
    int64_t wide;
    float *q, *out, *v; /* [BLOCK, wide] */
    float *keys;        /* [D, BLOCK]: transposed */
    float *score;       /* [BLOCK, BLOCK] */
    float *top, *sum;   /* [BLOCK] */
};

static int64_t tiles_floats(int64_t wide) {
    return 4 * BLOCK * wide + BLOCK * BLOCK + 2 * BLOCK;
}

static struct tiles tiles_at(float *at, int64_t wide) {
    struct tiles t = {.wide = wide, .q = at};
    t.out = t.q + BLOCK * wide;
    t.v = t.out + BLOCK * wide;
    t.keys = t.v + BLOCK * wide;
    t.score = t.keys + BLOCK * wide;
    t.top = t.score + BLOCK * BLOCK;
    t.sum = t.top + BLOCK;
    return t;
}

/* Folds columns [low, high) of one row of scores into its running maximum and sum; the row becomes
 * exp(score - maximum), zero outside, and what was summed so far is rescaled. */
static void softmax_row(const struct attention_args *a, struct tiles *t, int64_t row, int64_t low,
                        int64_t high) {
    float *s = t->score + row * BLOCK, *out = t->out + row * t->wide;
    if (low >= high) {
        memset(s, 0, BLOCK * sizeof *s);
        return;
    }
    if (a->softcap > 0) {
        const float inverse = 1.0f / a->softcap;
#pragma omp simd
        for (int64_t j = low; j < high; j++) {
            s[j] = a->softcap * simd_tanh(s[j] * inverse);
        }
    }
    float top = t->top[row];
#pragma omp simd reduction(max : top)
    for (int64_t j = low; j < high; j++) {
        top = s[j] > top ? s[j] : top;
    }
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = low; j < high; j++) {
        s[j] = simd_exp(s[j] - top);
        sum += s[j];
    }
    memset(s, 0, (size_t)low * sizeof *s);
    memset(s + high, 0, (size_t)(BLOCK - high) * sizeof *s);
    const float rescale = simd_exp(t->top[row] - top);
    t->sum[row] = t->sum[row] * rescale + sum;
    t->top[row] = top;
    if (rescale == 1.0f) return;
#pragma omp simd
    for (int64_t d = 0; d < t->wide; d++) {
        out[d] *= rescale;
    }
}

static void attend_block(const struct attention_args *a, struct tiles *t, const struct span *span,
                         int64_t kv_head, int64_t key) {
    const int64_t cols = simd_min(BLOCK, span->length - key), dim = a->head_dim;
    const int64_t rows = round_up(span->rows, TILE_ROWS), padded = round_up(cols, TILE_COLS);
    const float *k = (const float *)a->k + (span->start + key) * a->ld_k + kv_head * dim;
    const float *v = (const float *)a->v + (span->start + key) * a->ld_v + kv_head * dim;
    tile_pack_transposed((struct tile){t->keys, BLOCK}, padded,
                         (struct tile_source){k, a->ld_k, cols, dim});
    tile_pack((struct tile){t->v, t->wide}, cols, (struct tile_source){v, a->ld_v, cols, dim}, 1);
    tile_product((struct tile_sides){rows, padded, dim}, (struct tile_view){t->q, t->wide, 1},
                 (struct tile_view){t->keys, BLOCK, 1}, (struct tile){t->score, BLOCK}, false);
    for (int64_t row = 0; row < span->rows; row++) {
        int64_t low = 0, high = 0;
        visible_columns(a, span->from + row, key, cols, &low, &high);
        softmax_row(a, t, row, low, high);
    }
    tile_product((struct tile_sides){rows, t->wide, cols}, (struct tile_view){t->score, BLOCK, 1},
                 (struct tile_view){t->v, t->wide, 1}, (struct tile){t->out, t->wide}, true);
}

static void attend(const struct attention_args *a, struct tiles *t, const struct span *span,
                   int64_t head) {
    const int64_t dim = a->head_dim, kv_head = head / (a->heads / a->kv_heads);
    const int64_t first = span->start + span->from, rows = round_up(span->rows, TILE_ROWS);
    const float *q = (const float *)a->q + first * a->ld_q + head * dim;
    tile_pack((struct tile){t->q, t->wide}, rows, (struct tile_source){q, a->ld_q, span->rows, dim},
              a->scale);
    memset(t->out, 0, (size_t)(BLOCK * t->wide) * sizeof *t->out);
    memset(t->score, 0, BLOCK * BLOCK * sizeof *t->score);
    for (int64_t row = 0; row < BLOCK; row++) {
        t->top[row] = -INFINITY;
        t->sum[row] = 0;
    }
    const int64_t from = first_visible(a, span->from) / BLOCK * BLOCK;
    for (int64_t key = from; key < span->from + span->rows; key += BLOCK) {
        attend_block(a, t, span, kv_head, key);
    }
    for (int64_t row = 0; row < span->rows; row++) {
        float *out = (float *)a->out + (first + row) * a->ld_out + head * dim;
        const float *sum = t->out + row * t->wide;
        const float inverse = 1.0f / t->sum[row];
#pragma omp simd
        for (int64_t d = 0; d < dim; d++) {
            out[d] = sum[d] * inverse;
        }
        a->lse[head * a->tokens + first + row] = t->top[row] + logf(t->sum[row]);
    }
}

enum status SIMD(cpu_attention)(struct device *device, const struct attention_args *a,
                                struct err *e) {
    const int64_t wide = round_up(a->head_dim, TILE_COLS), floats = tiles_floats(wide);
    const int threads =
        attention_threads(device, floats * (int64_t)sizeof(float), omp_get_max_threads());
    FAIL_IF(
        !device->workspace || threads < 1, STATUS_INTERNAL,
        "device_attention: the workspace of %lld bytes is missing or too small for head_dim %lld",
        (long long)device->workspace_bytes, (long long)a->head_dim);
    const int64_t slots = span_slots(a), tasks = slots * a->heads;
#pragma omp parallel num_threads(threads)
    {
        struct tiles tiles =
            tiles_at((float *)device->workspace + omp_get_thread_num() * floats, wide);
#pragma omp for schedule(static, 1)
        for (int64_t task = 0; task < tasks; task++) {
            struct span span;
            if (span_at(a, task / a->heads, &span)) attend(a, &tiles, &span, task % a->heads);
        }
    }
    return STATUS_OK;
}
