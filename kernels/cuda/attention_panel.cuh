/* attention_panel.cuh - products of panels by wgmma: the steps of the attention kernels for
 * Hopper.
 *
 * Each call starts a product for one group of four warps, 64 rows of the result, and returns at
 * once; wgmma_begin before, wgmma_commit and wgmma_wait after are the caller's. A tile of panels
 * has ROWS rows; panel p, columns 64p .. 64p+63, lies at p * ROWS * 128 bytes. */
#ifndef PLIMSOLL_KERNELS_ATTENTION_PANEL_CUH
#define PLIMSOLL_KERNELS_ATTENTION_PANEL_CUH

#include "kernels/cuda/attention_wgmma.cuh"

/* s[64, N] = A B^T: `a` is the group's first row of a tile with AROWS rows, b a tile with N rows;
 * both have DIM columns. */
template <typename T, int DIM, int AROWS, int N>
__device__ __forceinline__ void start_rows(float s[N / 8][4], uint32_t a, uint32_t b) {
#pragma unroll
    for (int d = 0; d < DIM; d += 16) {
        const uint32_t within = d % 64 * 2;
        wgmma_rows<T, N>(s, wgmma_descriptor(a + d / 64 * AROWS * 128 + within, 16),
                         wgmma_descriptor(b + d / 64 * N * 128 + within, 16), d > 0);
    }
}

/* c[64, DIM] += P B: P [64, ROWS] in registers, b a tile with ROWS rows and DIM columns, which are
 * taken in pieces of at most 128. */
template <typename T, int DIM, int ROWS>
__device__ __forceinline__ void start_add(float c[DIM / 8][4], const uint32_t p[ROWS / 16][4],
                                          uint32_t b) {
    constexpr int WIDE = DIM < 128 ? DIM : 128;
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) {
#pragma unroll
        for (int d = 0; d < DIM; d += WIDE) {
            const uint32_t at = b + d / 64 * ROWS * 128 + k * 16 * 128;
            wgmma_add<T, WIDE>(c + d / 8, p[k], wgmma_descriptor(at, ROWS * 128));
        }
    }
}

/* c[64, 64] = A^T B: a and b are panels with ROWS rows. */
template <typename T, int ROWS>
__device__ __forceinline__ void start_columns(float c[8][4], uint32_t a, uint32_t b) {
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) {
        wgmma_columns<T>(c, wgmma_descriptor(a + k * 16 * 128, 16),
                         wgmma_descriptor(b + k * 16 * 128, 16), k > 0);
    }
}

#endif
