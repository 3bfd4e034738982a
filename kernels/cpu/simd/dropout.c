/* dropout.c - dropout by Philox.
 *
 * Every row draws from its own key (kernels/philox.h), so that the mask depends neither on order
 * nor on layout. Sixteen counters are drawn side by side for the vectoriser. */
#include "kernels/cpu/simd/simd.h"
#include "kernels/philox.h"

/* Blocks of counters: enough for the vectoriser to run them side by side. */
enum { QUAD_BLOCK = 16, COLUMN_BLOCK = 4 * QUAD_BLOCK };

/* keep[i] = 1/(1-p) or 0 for the columns from 4*quad on. */
static void draw(float keep[COLUMN_BLOCK], uint64_t key, int64_t row_key, uint32_t quad,
                 uint32_t threshold, float scale) {
    uint32_t word[4][QUAD_BLOCK];
#pragma omp simd
    for (uint32_t i = 0; i < QUAD_BLOCK; i++) {
        const struct philox block = philox_quad(key, row_key, quad + i);
        word[0][i] = block.word[0];
        word[1][i] = block.word[1];
        word[2][i] = block.word[2];
        word[3][i] = block.word[3];
    }
    for (int i = 0; i < QUAD_BLOCK; i++) {
        for (int j = 0; j < 4; j++) {
            keep[4 * i + j] = word[j][i] >= threshold ? scale : 0.0f;
        }
    }
}

/* A dropped value is 0 even where x is not finite. */
static inline float kept(float x, float keep) {
    return keep != 0 ? x * keep : 0.0f;
}

static void dropout_row(const struct dropout_args *a, uint64_t key, int64_t row) {
    const float *x = (const float *)a->x + row * a->ld_x;
    float *y = (float *)a->y + row * a->ld_y;
    const uint32_t threshold = philox_drop_threshold(a->p);
    const float scale = 1.0f / (1.0f - a->p);
    int64_t count = 0;
    for (int64_t from = 0; from < a->width; from += count) {
        float drawn[COLUMN_BLOCK];
        const int64_t column = a->first + from, skipped = column % 4;
        draw(drawn, key, a->row_keys[row], (uint32_t)(column / 4), threshold, scale);
        const float *keep = drawn + skipped;
        count = simd_min(COLUMN_BLOCK - skipped, a->width - from);
        if (a->accumulate) {
#pragma omp simd
            for (int64_t i = 0; i < count; i++) {
                y[from + i] += kept(x[from + i], keep[i]);
            }
        } else {
#pragma omp simd
            for (int64_t i = 0; i < count; i++) {
                y[from + i] = kept(x[from + i], keep[i]);
            }
        }
    }
}

enum status SIMD(cpu_dropout)(struct device *device, const struct dropout_args *a, struct err *e) {
    (void)device, (void)e;
    const uint64_t key = philox_stream_key(a->seed, a->stream);
#pragma omp parallel for schedule(static) if (a->rows * a->width > PARALLEL_MIN / 4)
    for (int64_t row = 0; row < a->rows; row++) {
        dropout_row(a, key, row);
    }
    return STATUS_OK;
}
