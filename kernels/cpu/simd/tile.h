/* tile.h - products of small tiles in the cache, for attention. Private to kernels/cpu/simd.
 *
 * Tiles are padded by their packers, so that the kernel has no edges: rows to TILE_ROWS, columns to
 * TILE_COLS, the padding is zero. The vector type is the compiler's own; its width follows the
 * instruction level that this file is built for. */
#ifndef PLIMSOLL_KERNELS_SIMD_TILE_H
#define PLIMSOLL_KERNELS_SIMD_TILE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
enum { VEC = 16, TILE_ROWS = 8 };
#elif defined(__AVX__)
enum { VEC = 8, TILE_ROWS = 4 };
#else
enum { VEC = 4, TILE_ROWS = 4 };
#endif
enum { TILE_COLS = 32 };

typedef float vec __attribute__((vector_size(VEC * sizeof(float)), aligned(4), may_alias));

static inline int64_t round_up(int64_t value, int64_t to) {
    return (value + to - 1) / to * to;
}

/* An operand whose element (i, p) is at[i*row + p*col]: a tile, or a tile read as its transpose. */
struct tile_view {
    const float *at;
    int64_t row, col;
};

/* c[TILE_ROWS, 2*VEC] (+)= a[TILE_ROWS, k] * b[k, 2*VEC]: the accumulators stay in registers. */
static inline __attribute__((always_inline)) void tile_kernel(int64_t k, struct tile_view a,
                                                              const float *b, int64_t ld_b,
                                                              float *c, int64_t ld_c,
                                                              bool accumulate) {
    vec sum[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++) {
        const vec zero = {0};
        sum[r][0] = accumulate ? *(const vec *)(c + r * ld_c) : zero;
        sum[r][1] = accumulate ? *(const vec *)(c + r * ld_c + VEC) : zero;
    }
    for (int64_t p = 0; p < k; p++) {
        const vec b0 = *(const vec *)(b + p * ld_b), b1 = *(const vec *)(b + p * ld_b + VEC);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++) {
            const float x = a.at[r * a.row + p * a.col];
            sum[r][0] += x * b0;
            sum[r][1] += x * b1;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++) {
        *(vec *)(c + r * ld_c) = sum[r][0];
        *(vec *)(c + r * ld_c + VEC) = sum[r][1];
    }
}

/* c[m,n] (+)= a[m,k] * b[k,n]; m a multiple of TILE_ROWS, n of TILE_COLS. A strip of b stays in the
 * first cache while all rows of a pass over it. */
static inline void tile_product(int64_t m, int64_t n, int64_t k, struct tile_view a, const float *b,
                                int64_t ld_b, float *c, int64_t ld_c, bool accumulate) {
    for (int64_t j = 0; j < n; j += 2 * VEC) {
        for (int64_t i = 0; i < m; i += TILE_ROWS) {
            const struct tile_view rows = {a.at + i * a.row, a.row, a.col};
            tile_kernel(k, rows, b + j, ld_b, c + i * ld_c + j, ld_c, accumulate);
        }
    }
}

/* out[padded rows, padded cols] = scale * x[rows, cols], zero elsewhere. */
static inline void tile_pack(float *out, int64_t ld, int64_t padded_rows, const float *x,
                             int64_t ld_x, int64_t rows, int64_t cols, float scale) {
    for (int64_t r = 0; r < rows; r++) {
#pragma omp simd
        for (int64_t c = 0; c < cols; c++) {
            out[r * ld + c] = scale * x[r * ld_x + c];
        }
        memset(out + r * ld + cols, 0, (size_t)(ld - cols) * sizeof *out);
    }
    memset(out + rows * ld, 0, (size_t)((padded_rows - rows) * ld) * sizeof *out);
}

/* out[cols, ld] = transpose of x[rows, cols], zero in columns rows..padded_rows-1. */
static inline void tile_pack_transposed(float *out, int64_t ld, int64_t padded_rows, const float *x,
                                        int64_t ld_x, int64_t rows, int64_t cols) {
    for (int64_t c = 0; c < cols; c++) {
        for (int64_t r = 0; r < rows; r++) {
            out[c * ld + r] = x[r * ld_x + c];
        }
        for (int64_t r = rows; r < padded_rows; r++) {
            out[c * ld + r] = 0;
        }
    }
}

#endif
