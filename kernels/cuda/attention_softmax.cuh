/* attention_softmax.cuh - the softmax of attention's forward on the tensor core, block by block
 * (Milakov & Gimelshein 2018), and how its result is written.
 *
 * Works on accumulators as attention_mma.cuh describes them, whichever instruction has made them:
 * wgmma gives each of its four warps the same layout as mma.sync. */
#ifndef PLIMSOLL_KERNELS_ATTENTION_SOFTMAX_CUH
#define PLIMSOLL_KERNELS_ATTENTION_SOFTMAX_CUH

#include "kernels/cuda/attention_mma.cuh"

/* Running maximum of the scores as they are multiplied, and this lane's part of the running sum of
 * exp(score - maximum), of each row that the lane sees. */
template <int TILES> struct softmax { float top[TILES][2], sum[TILES][2]; };

template <int TILES, int N>
__device__ __forceinline__ void cap_scores(float s[TILES][N / 8][4], float scale, float cap) {
#pragma unroll
    for (int i = 0; i < TILES * N / 2; i++) {
        float *x = &s[i / (N / 2)][i / 4 % (N / 8)][i % 4];
        *x = cap * cap_tanh(*x * scale / cap);
    }
}

template <int TILES> __device__ __forceinline__ void softmax_begin(struct softmax<TILES> &m) {
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        m.top[i / 2][i % 2] = -INFINITY;
        m.sum[i / 2][i % 2] = 0;
    }
}

/* Scores become probabilities, up to the factor that the end divides out. `slope` turns scores into
 * powers of two; what was summed before must be multiplied by `rescale`. */
template <int TILES, int N>
__device__ __forceinline__ void online_softmax(float s[TILES][N / 8][4], struct softmax<TILES> &m,
                                               float slope, float rescale[TILES][2]) {
#pragma unroll
    for (int i = 0; i < TILES * 2; i++) {
        const int t = i / 2, r = i % 2 * 2;
        float top = m.top[t][i % 2];
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            top = fmaxf(top, fmaxf(s[t][j][r], s[t][j][r + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        /* A row may have seen nothing yet: -infinity minus itself would be NaN. */
        const float base = top == -INFINITY ? 0.0f : top * slope;
        rescale[t][i % 2] = power_of_two(m.top[t][i % 2] * slope - base);
        float sum = m.sum[t][i % 2] * rescale[t][i % 2];
        m.top[t][i % 2] = top;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            s[t][j][r] = power_of_two(s[t][j][r] * slope - base);
            s[t][j][r + 1] = power_of_two(s[t][j][r + 1] * slope - base);
            sum += s[t][j][r] + s[t][j][r + 1];
        }
        m.sum[t][i % 2] = sum;
    }
}

/* o, [16*TILES, DIM], row by row times `rescale`. */
template <int TILES, int DIM>
__device__ __forceinline__ void scale_rows(float o[TILES][DIM / 8][4],
                                           const float rescale[TILES][2]) {
#pragma unroll
    for (int i = 0; i < TILES * DIM / 2; i++) {
        const int t = i / (DIM / 2), e = i % 4;
        o[t][i / 4 % (DIM / 8)][e] *= rescale[t][e >> 1];
    }
}

/* out = o / sum through the warp's own rows of the tile of queries, which nobody needs any more;
 * lse = log(sum of exp(score)). `out` and `lse` are the block's first row, `row` the warp's. */
template <typename T, int DIM, int TILES>
__device__ __forceinline__ void forward_write(const struct attention_args &a, uint32_t tile,
                                              int row, float o[TILES][DIM / 8][4],
                                              struct softmax<TILES> &m,
                                              const struct attention_span &span, int head) {
    const int lane = lane_index(), rows = span.length - span.from;
    const int64_t token = span.first + span.from;
    const float unit = a.softcap > 0 ? 1.0f : a.scale;
    __syncwarp();
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        float inverse[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = m.sum[t][r];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            inverse[r] = 1.0f / sum;
            const int at = row + 16 * t + 8 * r + (lane >> 2);
            if (lane % 4 == 0 && at < rows)
                a.lse[head * a.tokens + token + at] = m.top[t][r] * unit + logf(sum);
        }
        tile_put<T, DIM>(tile, row + 16 * t, o[t], inverse[0], inverse[1]);
    }
    __syncwarp();
    T *out = (T *)a.out + token * a.ld_out + (int64_t)head * a.head_dim;
    tile_write<T, DIM, 16 * TILES>(out, a.ld_out, tile, row, rows, (int)a.head_dim);
}

#endif
