/* attention_backward.c - the gradient of causal attention, in blocks, from the saved log-sum-exp
 * alone.
 *
 * Two passes over the score blocks, both recomputing them: the first makes dK and dV (a task owns a
 * block of keys), the second dQ (a task owns a block of queries). That is seven small products
 * instead of five, and in exchange every output has one owner: no atomics, no order that depends on
 * threads, no buffer that grows with T. */
#include "kernels/cpu/simd/attention.h"

#include <omp.h>

#include "kernels/cpu/simd/math.h"

/* One thread's part of the workspace; head dimensions are padded to `wide`. */
struct tiles {
    int64_t wide;
    float *q, *dout, *k;         /* [BLOCK, wide]; q is scaled */
    float *keys, *values;        /* [D, BLOCK]: transposed */
    float *sum_1, *sum_2;        /* [BLOCK, wide]: dk and dv, or dq */
    float *probability, *dscore; /* [BLOCK, BLOCK] */
};

static int64_t tiles_floats(int64_t wide) {
    return 7 * BLOCK * wide + 2 * BLOCK * BLOCK;
}

static struct tiles tiles_at(float *at, int64_t wide) {
    const int64_t step = BLOCK * wide;
    struct tiles t = {.wide = wide, .q = at, .dout = at + step, .k = at + 2 * step};
    t.keys = at + 3 * step;
    t.values = at + 4 * step;
    t.sum_1 = at + 5 * step;
    t.sum_2 = at + 6 * step;
    t.probability = at + 7 * step;
    t.dscore = t.probability + BLOCK * BLOCK;
    return t;
}

static void pack_queries(const struct attention_backward_args *b, struct tiles *t,
                         const struct span *span, int64_t head) {
    const struct attention_args *a = &b->forward;
    const int64_t dim = a->head_dim, first = span->start + span->from,
                  rows = round_up(span->rows, TILE_ROWS);
    const float *q = (const float *)a->q + first * a->ld_q + head * dim;
    const float *dout = (const float *)b->dout + first * b->ld_dout + head * dim;
    tile_pack((struct tile){t->q, t->wide}, rows, (struct tile_source){q, a->ld_q, span->rows, dim},
              a->scale);
    tile_pack((struct tile){t->dout, t->wide}, rows,
              (struct tile_source){dout, b->ld_dout, span->rows, dim}, 1);
}

static void pack_keys(const struct attention_args *a, struct tiles *t, const struct span *span,
                      int64_t kv_head) {
    const int64_t dim = a->head_dim, first = span->start + span->from,
                  padded = round_up(span->rows, TILE_COLS);
    const float *k = (const float *)a->k + first * a->ld_k + kv_head * dim;
    const float *v = (const float *)a->v + first * a->ld_v + kv_head * dim;
    tile_pack_transposed((struct tile){t->keys, BLOCK}, padded,
                         (struct tile_source){k, a->ld_k, span->rows, dim});
    tile_pack_transposed((struct tile){t->values, BLOCK}, padded,
                         (struct tile_source){v, a->ld_v, span->rows, dim});
    tile_pack((struct tile){t->k, t->wide}, round_up(span->rows, TILE_ROWS),
              (struct tile_source){k, a->ld_k, span->rows, dim}, 1);
}

/* One row of scores and of dP becomes P and dS = P * (dP - delta) * (slope of the cap), zero
 * outside [low, high). */
static void gradient_row(const struct attention_args *a, float *score, float *dscore, int64_t low,
                         int64_t high, float lse, float delta) {
    if (low >= high) low = high = 0;
    if (a->softcap > 0) {
        const float inverse = 1.0f / a->softcap;
#pragma omp simd
        for (int64_t j = low; j < high; j++) {
            const float t = simd_tanh(score[j] * inverse);
            const float p = simd_exp(a->softcap * t - lse);
            score[j] = p;
            dscore[j] = p * (dscore[j] - delta) * (1.0f - t * t);
        }
    } else {
#pragma omp simd
        for (int64_t j = low; j < high; j++) {
            const float p = simd_exp(score[j] - lse);
            score[j] = p;
            dscore[j] = p * (dscore[j] - delta);
        }
    }
    memset(score, 0, (size_t)low * sizeof *score);
    memset(dscore, 0, (size_t)low * sizeof *dscore);
    memset(score + high, 0, (size_t)(BLOCK - high) * sizeof *score);
    memset(dscore + high, 0, (size_t)(BLOCK - high) * sizeof *dscore);
}

/* P and dS of the packed blocks of queries and keys. */
static void gradient_block(const struct attention_backward_args *b, struct tiles *t,
                           const struct span *queries, const struct span *keys, int64_t head) {
    const struct attention_args *a = &b->forward;
    const int64_t rows = round_up(queries->rows, TILE_ROWS), cols = round_up(keys->rows, TILE_COLS);
    const float *delta = a->scratch;
    tile_product((struct tile_sides){rows, cols, a->head_dim}, (struct tile_view){t->q, t->wide, 1},
                 (struct tile_view){t->keys, BLOCK, 1}, (struct tile){t->probability, BLOCK},
                 false);
    tile_product((struct tile_sides){rows, cols, a->head_dim},
                 (struct tile_view){t->dout, t->wide, 1}, (struct tile_view){t->values, BLOCK, 1},
                 (struct tile){t->dscore, BLOCK}, false);
    for (int64_t row = 0; row < queries->rows; row++) {
        const int64_t query = queries->from + row;
        const int64_t at = head * a->tokens + queries->start + query;
        int64_t low = 0, high = 0;
        visible_columns(a, query, keys->from, keys->rows, &low, &high);
        gradient_row(a, t->probability + row * BLOCK, t->dscore + row * BLOCK, low, high,
                     a->lse[at], delta[at]);
    }
}

static void write_tile(float *out, int64_t ld, const float *tile, int64_t wide, int64_t rows,
                       int64_t cols, float scale) {
    for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
        for (int64_t c = 0; c < cols; c++) {
            out[r * ld + c] = scale * tile[r * wide + c];
        }
    }
}

/* dK and dV of one block of keys: every head of the group, every block of queries that sees it. */
static void keys_task(const struct attention_backward_args *b, struct tiles *t,
                      const struct span *keys, int64_t kv_head) {
    const struct attention_args *a = &b->forward;
    const int64_t group = a->heads / a->kv_heads, rows = round_up(keys->rows, TILE_ROWS);
    const int64_t last = a->window > 0
                             ? simd_min(keys->length, keys->from + keys->rows + a->window - 1)
                             : keys->length;
    pack_keys(a, t, keys, kv_head);
    memset(t->sum_1, 0, (size_t)(2 * BLOCK * t->wide) * sizeof *t->sum_1);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int64_t from = keys->from; from < last; from += BLOCK) {
            const struct span queries = {keys->start, keys->length, from,
                                         simd_min(BLOCK, keys->length - from)};
            pack_queries(b, t, &queries, head);
            gradient_block(b, t, &queries, keys, head);
            tile_product((struct tile_sides){rows, t->wide, queries.rows},
                         (struct tile_view){t->dscore, 1, BLOCK},
                         (struct tile_view){t->q, t->wide, 1}, (struct tile){t->sum_1, t->wide},
                         true);
            tile_product((struct tile_sides){rows, t->wide, queries.rows},
                         (struct tile_view){t->probability, 1, BLOCK},
                         (struct tile_view){t->dout, t->wide, 1}, (struct tile){t->sum_2, t->wide},
                         true);
        }
    }
    const int64_t first = keys->start + keys->from, dim = a->head_dim;
    /* The scale is in q already. */
    write_tile((float *)b->dk + first * b->ld_dk + kv_head * dim, b->ld_dk, t->sum_1, t->wide,
               keys->rows, dim, 1);
    write_tile((float *)b->dv + first * b->ld_dv + kv_head * dim, b->ld_dv, t->sum_2, t->wide,
               keys->rows, dim, 1);
}

/* dQ of one block of queries. */
static void queries_task(const struct attention_backward_args *b, struct tiles *t,
                         const struct span *queries, int64_t head) {
    const struct attention_args *a = &b->forward;
    const int64_t rows = round_up(queries->rows, TILE_ROWS),
                  kv_head = head / (a->heads / a->kv_heads);
    pack_queries(b, t, queries, head);
    memset(t->sum_1, 0, (size_t)(BLOCK * t->wide) * sizeof *t->sum_1);
    const int64_t first_key = first_visible(a, queries->from) / BLOCK * BLOCK;
    for (int64_t from = first_key; from < queries->from + queries->rows; from += BLOCK) {
        const struct span keys = {queries->start, queries->length, from,
                                  simd_min(BLOCK, queries->length - from)};
        pack_keys(a, t, &keys, kv_head);
        gradient_block(b, t, queries, &keys, head);
        tile_product((struct tile_sides){rows, t->wide, keys.rows},
                     (struct tile_view){t->dscore, BLOCK, 1}, (struct tile_view){t->k, t->wide, 1},
                     (struct tile){t->sum_1, t->wide}, true);
    }
    const int64_t first = queries->start + queries->from;
    write_tile((float *)b->dq + first * b->ld_dq + head * a->head_dim, b->ld_dq, t->sum_1, t->wide,
               queries->rows, a->head_dim, a->scale);
}

/* delta[h,t] = sum over d of dout * out, in the scratch. */
static void make_delta(const struct attention_backward_args *b, int64_t t) {
    const struct attention_args *a = &b->forward;
    float *delta = a->scratch;
    for (int64_t h = 0; h < a->heads; h++) {
        const float *dout = (const float *)b->dout + t * b->ld_dout + h * a->head_dim;
        const float *out = (const float *)a->out + t * a->ld_out + h * a->head_dim;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < a->head_dim; d++) {
            sum += dout[d] * out[d];
        }
        delta[h * a->tokens + t] = sum;
    }
}

enum status SIMD(cpu_attention_backward)(struct device *device,
                                         const struct attention_backward_args *b, struct err *e) {
    const struct attention_args *a = &b->forward;
    const int64_t wide = round_up(a->head_dim, TILE_COLS), floats = tiles_floats(wide);
    const int threads =
        attention_threads(device, floats * (int64_t)sizeof(float), omp_get_max_threads());
    FAIL_IF(!device->workspace || threads < 1, STATUS_INTERNAL,
            "device_attention_backward: the workspace of %lld bytes is missing or too small for "
            "head_dim %lld",
            (long long)device->workspace_bytes, (long long)a->head_dim);
    const int64_t slots = span_slots(a);
#pragma omp parallel num_threads(threads)
    {
        struct tiles tiles =
            tiles_at((float *)device->workspace + omp_get_thread_num() * floats, wide);
        /* A zeroed tile: rows that a short block leaves out must hold numbers, they are multiplied
         * by zeros. */
        memset(tiles.q, 0, (size_t)floats * sizeof(float));
#pragma omp for schedule(static)
        for (int64_t t = 0; t < a->tokens; t++) {
            make_delta(b, t);
        }
#pragma omp for schedule(static, 1)
        for (int64_t task = 0; task < slots * a->kv_heads; task++) {
            struct span span;
            if (span_at(a, task / a->kv_heads, &span))
                keys_task(b, &tiles, &span, task % a->kv_heads);
        }
#pragma omp for schedule(static, 1)
        for (int64_t task = 0; task < slots * a->heads; task++) {
            struct span span;
            if (span_at(a, task / a->heads, &span)) queries_task(b, &tiles, &span, task % a->heads);
        }
    }
    return STATUS_OK;
}
