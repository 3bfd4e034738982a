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

/* A tile that is written: dense columns, `ld` floats between rows. */
struct tile {
    float *at;
    int64_t ld;
};

/* Sides of a product of tiles. */
struct tile_sides {
    int64_t m, n, k;
};

/* c[TILE_ROWS, 2*VEC] (+)= a[TILE_ROWS, k] * b[k, 2*VEC]: the accumulators stay in registers. */
static inline __attribute__((always_inline)) void tile_kernel(int64_t k, struct tile_view a,
                                                              struct tile_view b, struct tile c,
                                                              bool accumulate) {
    vec sum[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++) {
        const vec zero = {0};
        sum[r][0] = accumulate ? *(const vec *)(c.at + r * c.ld) : zero;
        sum[r][1] = accumulate ? *(const vec *)(c.at + r * c.ld + VEC) : zero;
    }
    for (int64_t p = 0; p < k; p++) {
        const float *row = b.at + p * b.row;
        const vec b0 = *(const vec *)row, b1 = *(const vec *)(row + VEC);
#pragma GCC unroll 8
        for (int r = 0; r < TILE_ROWS; r++) {
            const float x = a.at[r * a.row + p * a.col];
            sum[r][0] += x * b0;
            sum[r][1] += x * b1;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < TILE_ROWS; r++) {
        *(vec *)(c.at + r * c.ld) = sum[r][0];
        *(vec *)(c.at + r * c.ld + VEC) = sum[r][1];
    }
}

/* c[m,n] (+)= a[m,k] * b[k,n]; m a multiple of TILE_ROWS, n of TILE_COLS; the columns of b are
 * dense. A strip of b stays in the first cache while all rows of a pass over it. */
static inline void tile_product(struct tile_sides s, struct tile_view a, struct tile_view b,
                                struct tile c, bool accumulate) {
    for (int64_t j = 0; j < s.n; j += 2 * VEC) {
        for (int64_t i = 0; i < s.m; i += TILE_ROWS) {
            tile_kernel(s.k, (struct tile_view){a.at + i * a.row, a.row, a.col},
                        (struct tile_view){b.at + j, b.row, 1},
                        (struct tile){c.at + i * c.ld + j, c.ld}, accumulate);
        }
    }
}

/* What is packed into a tile: rows x cols floats, `ld` between rows. */
struct tile_source {
    const float *at;
    int64_t ld, rows, cols;
};

/* out[padded rows, out.ld] = scale * x, zero elsewhere. */
static inline void tile_pack(struct tile out, int64_t padded_rows, struct tile_source x,
                             float scale) {
    for (int64_t r = 0; r < x.rows; r++) {
        float *to = out.at + r * out.ld;
#pragma omp simd
        for (int64_t c = 0; c < x.cols; c++) {
            to[c] = scale * x.at[r * x.ld + c];
        }
        memset(to + x.cols, 0, (size_t)(out.ld - x.cols) * sizeof *to);
    }
    memset(out.at + x.rows * out.ld, 0, (size_t)((padded_rows - x.rows) * out.ld) * sizeof *out.at);
}

/* out[x.cols, out.ld] = transpose of x, zero in columns x.rows..padded_rows-1. */
static inline void tile_pack_transposed(struct tile out, int64_t padded_rows,
                                        struct tile_source x) {
    for (int64_t c = 0; c < x.cols; c++) {
        for (int64_t r = 0; r < x.rows; r++) {
            out.at[c * out.ld + r] = x.at[r * x.ld + c];
        }
        for (int64_t r = x.rows; r < padded_rows; r++) {
            out.at[c * out.ld + r] = 0;
        }
    }
}

#endif
