/* attention_tile.cuh - products of tiles: the steps from which the attention kernels for the tensor
 * core are put together. Included by attention_mma.cuh, whose head explains tiles and registers.
 *
 * Sizes are template arguments and all loops unroll, because arrays of registers can only be
 * indexed by constants. A warp works alone here: nothing in this file waits for other warps. */
#ifndef PLIMSOLL_KERNELS_ATTENTION_TILE_CUH
#define PLIMSOLL_KERNELS_ATTENTION_TILE_CUH

static __device__ __forceinline__ int lane_index() {
    return threadIdx.x & 31;
}

/* Address of a chunk of 8 elements in a tile of rows of DIM elements that begins at `tile`. */
template <int DIM> __device__ __forceinline__ uint32_t tile_at(uint32_t tile, int row, int chunk) {
    constexpr int CHUNKS = DIM / 8;
    static_assert(DIM % 16 == 0, "a row is an even number of chunks");
    const int swizzle = CHUNKS % 8 == 0   ? row & 7
                        : CHUNKS % 4 == 0 ? (row >> 1) & 3
                                          : (row >> 2) & 1;
    return tile + (uint32_t)(row * CHUNKS + (chunk ^ swizzle)) * 16;
}

/* The same in panels of 64 columns, one behind the other, as wgmma wants them: rows of 128 bytes,
 * swizzled in groups of eight rows. */
template <int ROWS>
__device__ __forceinline__ uint32_t panel_at(uint32_t tile, int row, int chunk) {
    return tile_at<64>(tile + (uint32_t)(chunk / 8) * ROWS * 128, row, chunk % 8);
}

/* Starts copying rows 0 .. ROWS-1 of a matrix in device memory into a tile, or into panels; zeros
 * from row `rows` and from column `dim` on. A thread keeps its column, so that it holds one
 * pointer. */
template <typename T, int DIM, int ROWS, int THREADS, bool PANELS = false>
__device__ __forceinline__ void tile_fetch(uint32_t tile, const T *from, int64_t ld, int rows,
                                           int dim) {
    constexpr int CHUNKS = DIM / 8, WIDE = CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : 32;
    constexpr int STEP = THREADS / WIDE;
    static_assert(ROWS % STEP == 0, "every thread copies as much");
    const int row = (int)threadIdx.x / WIDE, chunk = (int)threadIdx.x % WIDE;
    const T *at = from + row * ld + chunk * 8;
    if (chunk >= CHUNKS) return;
    if (chunk * 8 >= dim) rows = 0;
#pragma unroll
    for (int i = 0; i < ROWS; i += STEP) {
        const uint32_t to =
            PANELS ? panel_at<ROWS>(tile, row + i, chunk) : tile_at<DIM>(tile, row + i, chunk);
        copy_16(to, at, row + i < rows);
        at += STEP * ld;
    }
}

template <typename T> __device__ __forceinline__ uint32_t pack_pair(float low, float high);
template <> __device__ __forceinline__ uint32_t pack_pair<__nv_bfloat16>(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&pair;
}
template <> __device__ __forceinline__ uint32_t pack_pair<__half>(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *(const uint32_t *)&pair;
}

/* Accumulators [16*TILES, N] as left operands. */
template <typename T, int TILES, int N>
__device__ __forceinline__ void pack_operand(uint32_t p[TILES][N / 16][4],
                                             const float s[TILES][N / 8][4]) {
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            p[t][j / 2][j % 2 * 2] = pack_pair<T>(s[t][j][0], s[t][j][1]);
            p[t][j / 2][j % 2 * 2 + 1] = pack_pair<T>(s[t][j][2], s[t][j][3]);
        }
    }
}

template <int TILES, int N> __device__ __forceinline__ void clear(float c[TILES][N / 8][4]) {
#pragma unroll
    for (int i = 0; i < TILES * N / 2; i++) {
        c[i / (N / 2)][i / 4 % (N / 8)][i % 4] = 0;
    }
}

/* s[16*TILES, N] = (rows row.. of tile a) * (tile b)^T, both with rows of DIM elements. */
template <typename T, int DIM, int TILES, int N>
__device__ __forceinline__ void product_rows(float s[TILES][N / 8][4], uint32_t a, int row,
                                             uint32_t b) {
    const int lane = lane_index();
    clear<TILES, N>(s);
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        uint32_t left[TILES][4];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            load_matrices(left[t],
                          tile_at<DIM>(a, row + 16 * t + (lane & 15), 2 * k + (lane >> 4)));
        }
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            uint32_t right[4];
            load_matrices(right, tile_at<DIM>(b, 16 * j + (lane & 7) + ((lane >> 4) << 3),
                                              2 * k + ((lane >> 3) & 1)));
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                multiply<T>(s[t][2 * j], left[t], right[0], right[1]);
                multiply<T>(s[t][2 * j + 1], left[t], right[2], right[3]);
            }
        }
    }
}

/* c[16*TILES, DIM] += p[16*TILES, K] * (tile b [K, DIM]). */
template <typename T, int DIM, int TILES, int K>
__device__ __forceinline__ void product_add(float c[TILES][DIM / 8][4],
                                            const uint32_t p[TILES][K / 16][4], uint32_t b) {
    const int lane = lane_index();
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
#pragma unroll
        for (int j = 0; j < DIM / 16; j++) {
            uint32_t right[4];
            load_matrices_transposed(right,
                                     tile_at<DIM>(b, 16 * k + (lane & 15), 2 * j + (lane >> 4)));
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                multiply<T>(c[t][2 * j], p[t][k], right[0], right[1]);
                multiply<T>(c[t][2 * j + 1], p[t][k], right[2], right[3]);
            }
        }
    }
}

/* c[16*TILES, N] = (columns row.. of tile a [K, AD])^T * (columns column.. of tile b [K, DIM]). */
template <typename T, int AD, int DIM, int K, int TILES, int N>
__device__ __forceinline__ void product_columns(float c[TILES][N / 8][4], uint32_t a, int row,
                                                uint32_t b, int column) {
    const int lane = lane_index();
    clear<TILES, N>(c);
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        uint32_t left[TILES][4];
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            load_matrices_transposed(left[t],
                                     tile_at<AD>(a, 16 * k + (lane & 7) + ((lane >> 4) << 3),
                                                 row / 8 + 2 * t + ((lane >> 3) & 1)));
        }
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            uint32_t right[4];
            load_matrices_transposed(
                right, tile_at<DIM>(b, 16 * k + (lane & 15), column / 8 + 2 * j + (lane >> 4)));
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                multiply<T>(c[t][2 * j], left[t], right[0], right[1]);
                multiply<T>(c[t][2 * j + 1], left[t], right[2], right[3]);
            }
        }
    }
}

/* Accumulators into rows row .. row+15 of a tile, rounded; the two rows of a lane times f0 and
 * f1. */
template <typename T, int DIM>
__device__ __forceinline__ void tile_put(uint32_t tile, int row, const float c[DIM / 8][4],
                                         float f0, float f1) {
    const int lane = lane_index(), r = row + (lane >> 2);
    const uint32_t within = (uint32_t)(lane & 3) * 4;
#pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        store_shared(tile_at<DIM>(tile, r, j) + within, pack_pair<T>(c[j][0] * f0, c[j][1] * f0));
        store_shared(tile_at<DIM>(tile, r + 8, j) + within,
                     pack_pair<T>(c[j][2] * f1, c[j][3] * f1));
    }
}

/* One warp copies rows row .. row+ROWS-1 of a tile to device memory, as far as they are among the
 * first `rows` rows of the tile and `dim` columns. `to` is where the tile's row 0 belongs. */
template <typename T, int DIM, int ROWS>
__device__ __forceinline__ void tile_write(T *__restrict__ to, int64_t ld, uint32_t tile, int row,
                                           int rows, int dim) {
    constexpr int CHUNKS = DIM / 8;
#pragma unroll 4
    for (int at = lane_index(); at < ROWS * CHUNKS; at += 32) {
        const int r = row + at / CHUNKS, chunk = at % CHUNKS;
        if (r >= rows || chunk * 8 >= dim) continue;
        *(uint4 *)(to + r * ld + chunk * 8) = load_shared_16(tile_at<DIM>(tile, r, chunk));
    }
}

/* Scores that must not be seen become -infinity. distance: query minus key of the lane's first
 * element. SIGN is 1 where rows are queries, -1 where they are keys. */
template <int TILES, int N, int SIGN>
__device__ __forceinline__ void hide_scores(float s[TILES][N / 8][4], int distance, int window) {
#pragma unroll
    for (int i = 0; i < TILES * N / 2; i++) {
        const int t = i / (N / 2), j = i / 4 % (N / 8), e = i % 4;
        const int d = distance + SIGN * (16 * t + 8 * (e >> 1) - 8 * j - (e & 1));
        if (d < 0 || d >= window) s[t][j][e] = -INFINITY;
    }
}

/* tanh by 1 - 2 / (1 + e^2x): absolute error about 2e-7, which a soft cap of 50 makes 1e-5. */
static __device__ __forceinline__ float cap_tanh(float x) {
    return 1.0f - __fdividef(2.0f, 1.0f + power_of_two(2 * LOG2E * x));
}

#endif
