/* attention_queries.cu - the gradient for queries alone, where the order of sums must not
 * change: attention's backward on a deterministic device.
 *
 * As the forward, a thread block owns queries and walks over the keys that they see; scores and
 * dP are computed a second time here (7 products instead of 5 in all), and in exchange dq has
 * one owner who sums it in registers, in one order. */
#include "kernels/cuda/attention_mma.cuh"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda/attention_rows.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, BM = 16 * WARPS };

struct queries_parameters {
    struct attention_backward_args args;
    struct attention_grid grid;
    const float *delta; /* [H,T] */
};

/* ds: dP of 16 queries by BN keys becomes dS = P * (dP - delta) * (slope of the cap). lse and delta
 * are those of the lane's two rows; P = 0 where the score is -infinity. */
template <int BN>
static __device__ __forceinline__ void gradient_rows(const struct attention_args &a,
                                                     const float s[1][BN / 8][4],
                                                     float ds[1][BN / 8][4], const float lse[2],
                                                     const float delta[2]) {
    const float slope = a.scale * LOG2E, shift[2] = {lse[0] * LOG2E, lse[1] * LOG2E};
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        const int row = i >> 1 & 1;
        const float p = power_of_two(s[0][i / 4][i % 4] * slope - shift[row]);
        ds[0][i / 4][i % 4] = p * (ds[0][i / 4][i % 4] - delta[row]);
    }
}

/* The same with a soft cap and the mask: a score of -infinity would come out of the cap as -1. */
template <int BN>
static __device__ __forceinline__ void gradient_capped_rows(const struct attention_args &a,
                                                            const float s[1][BN / 8][4],
                                                            float ds[1][BN / 8][4],
                                                            const float lse[2],
                                                            const float delta[2], int distance) {
    const int window = attention_window(a);
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        const int row = i >> 1 & 1, d = distance + 8 * row - 8 * (i / 4) - (i & 1);
        const float t = cap_tanh(s[0][i / 4][i % 4] * a.scale / a.softcap);
        const float p = power_of_two((t * a.softcap - lse[row]) * LOG2E);
        float *g = &ds[0][i / 4][i % 4];
        *g = d < 0 || d >= window ? 0.0f : p * (*g - delta[row]) * (1.0f - t * t);
    }
}

template <typename T, int DIM, int BN>
static __device__ __forceinline__ void fetch_pair(uint32_t tile, const struct attention_args &a,
                                                  const T *k, const T *v, int rows) {
    tile_fetch<T, DIM, BN, THREADS>(tile, k, a.ld_k, rows, (int)a.head_dim);
    tile_fetch<T, DIM, BN, THREADS>(tile + BN * DIM * 2, v, a.ld_v, rows, (int)a.head_dim);
}

/* Computes dq = scale * dS K for one block of 64 queries of one head.
 * Grid: items of attention_span_of x heads, heads fastest; block: 4 warps, each owns 16 queries.
 * q, k, v, dout, dq 16-bit; sums f32, dS rounded to 16 bits where it is multiplied.
 * Shared memory: Q and dO [64,DIM], two stages of K and V [BN,DIM]. FLOPs 6*D a visible pair. */
template <typename T, int DIM, int BN>
__global__ void __launch_bounds__(THREADS, 2)
    attention_queries_kernel(const __grid_constant__ struct queries_parameters p) {
    constexpr uint32_t TILE = BM * DIM * 2, PART = BN * DIM * 2;
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct attention_args &a = p.args.forward;
    struct attention_span span;
    const int head = (int)(blockIdx.x % (unsigned)a.heads);
    if (!attention_span_of<true>(a, p.grid, (int)(blockIdx.x / (unsigned)a.heads), &span)) return;

    const int lane = lane_index(), row = (int)threadIdx.x / 32 * 16, dim = (int)a.head_dim;
    const int kv_head = head / (int)(a.heads / a.kv_heads), window = attention_window(a);
    const int rows = span.length - span.from;
    const int64_t token = span.first + span.from, column = (int64_t)head * dim;
    const T *k = (const T *)a.k + span.first * a.ld_k + (int64_t)kv_head * dim;
    const T *v = (const T *)a.v + span.first * a.ld_v + (int64_t)kv_head * dim;
    const uint32_t base = shared_address(shared), kv_tile = base + 2 * TILE;
    const int last = (min(span.from + BM, span.length) - 1) / BN;
    const int first = max(span.from - window + 1, 0) / BN;

    tile_fetch<T, DIM, BM, THREADS>(base, (const T *)a.q + token * a.ld_q + column, a.ld_q, rows,
                                    dim);
    tile_fetch<T, DIM, BM, THREADS>(base + TILE,
                                    (const T *)p.args.dout + token * p.args.ld_dout + column,
                                    p.args.ld_dout, rows, dim);
    fetch_pair<T, DIM, BN>(kv_tile, a, k + last * BN * a.ld_k, v + last * BN * a.ld_v,
                           span.length - last * BN);
    float lse[2], delta[2], dq[1][DIM / 8][4];
    clear<1, DIM>(dq);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int at = min(row + (lane >> 2) + 8 * r, rows - 1);
        lse[r] = a.lse[(int64_t)head * a.tokens + token + at];
        delta[r] = p.delta[(int64_t)head * a.tokens + token + at];
    }
    for (int block = last, stage = 0; block >= first; block--, stage ^= 1) {
        const int key = block * BN;
        copies_wait();
        __syncthreads();
        if (block > first)
            fetch_pair<T, DIM, BN>(kv_tile + (uint32_t)(stage ^ 1) * 2 * PART, a,
                                   k + (key - BN) * a.ld_k, v + (key - BN) * a.ld_v, BN);
        const uint32_t k_tile = kv_tile + (uint32_t)stage * 2 * PART;
        float s[1][BN / 8][4], ds[1][BN / 8][4];
        product_rows<T, DIM, 1, BN>(s, base, row, k_tile);
        product_rows<T, DIM, 1, BN>(ds, base + TILE, row, k_tile + PART);
        const int distance = span.from + row + (lane >> 2) - (key + 2 * (lane & 3));
        if (a.softcap > 0) {
            gradient_capped_rows<BN>(a, s, ds, lse, delta, distance);
        } else {
            if (key + BN - 1 > span.from + row || span.from + row + 15 - key >= window)
                hide_scores<1, BN, 1>(s, distance, window);
            gradient_rows<BN>(a, s, ds, lse, delta);
        }
        uint32_t packed[1][BN / 16][4];
        pack_operand<T, 1, BN>(packed, ds);
        product_add<T, DIM, 1, BN>(dq, packed, k_tile);
    }
    __syncwarp();
    tile_put<T, DIM>(base, row, dq[0], a.scale, a.scale);
    __syncwarp();
    tile_write<T, DIM, 16>((T *)p.args.dq + token * p.args.ld_dq + column, p.args.ld_dq, base, row,
                           rows, dim);
}

template <typename T, int DIM, int BN>
static enum status queries_launch(struct device *device, struct queries_parameters p,
                                  struct err *e) {
    const struct attention_args *a = &p.args.forward;
    p.grid = attention_grid_of(a, BM);
    const struct attention_launch shape = {attention_items(a, p.grid) * a->heads, THREADS,
                                           (2 * BM + 4 * BN) * DIM * 2, "attention_backward (dq)"};
    return attention_launch(device, shape, e, attention_queries_kernel<T, DIM, BN>, p);
}

template <typename T>
static enum status queries_of(struct device *device, const struct queries_parameters &p,
                              struct err *e) {
    const int64_t dim = p.args.forward.head_dim;
    if (dim <= 64) return queries_launch<T, 64, 64>(device, p, e);
    if (dim <= 96) return queries_launch<T, 96, 64>(device, p, e);
    if (dim <= 128) return queries_launch<T, 128, 64>(device, p, e);
    return queries_launch<T, 256, 16>(device, p, e);
}

enum status cuda_attention_queries(struct device *device, const struct attention_backward_args *b,
                                   const float *delta, struct err *e) {
    const struct queries_parameters p = {*b, {0, 0, 0}, delta};
    if (b->forward.dtype == DTYPE_BF16) return queries_of<__nv_bfloat16>(device, p, e);
    return queries_of<__half>(device, p, e);
}
