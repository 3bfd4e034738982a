/* attention_forward.cu - causal attention on the tensor core, forward (Dao 2023,
 * "FlashAttention-2").
 *
 * A thread block owns BM queries of one head of one document and walks over the blocks of BN
 * keys that they see, from the diagonal back. Scores and probabilities stay in registers; keys
 * and values arrive in two buffers, the next pair while this one is multiplied. Each warp owns
 * BM/WARPS queries: 32 where the registers allow it, since then what is read of a key serves
 * twice. */
#include "kernels/cuda/attention_mma.cuh"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda/attention_softmax.cuh"

/* Starts the copies of BN keys and values. */
template <typename T, int DIM, int BN, int THREADS>
static __device__ __forceinline__ void fetch_pair(uint32_t tile, const struct attention_args &a,
                                                  const T *k, const T *v, int rows) {
    tile_fetch<T, DIM, BN, THREADS>(tile, k, a.ld_k, rows, (int)a.head_dim);
    tile_fetch<T, DIM, BN, THREADS>(tile + BN * DIM * 2, v, a.ld_v, rows, (int)a.head_dim);
}

/* Computes out = softmax(mask(cap(scale * Q K^T))) V and lse for one block of queries.
 * Grid: items of attention_span_of x heads, heads fastest (the heads of a group share keys in L2);
 * block: WARPS warps, warp w owns queries w*BM/WARPS.
 * q, k, v, out 16-bit, accumulators and softmax f32; head_dim a multiple of 8 up to DIM.
 * Shared memory: Q [BM,DIM], then two stages of K [BN,DIM] and V [BN,DIM].
 * FLOPs 4*D a visible pair; bytes: q, out once, k and v once a block of queries, mostly from L2. */
template <typename T, int DIM, int BM, int BN, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, 2)
    attention_forward_kernel(const __grid_constant__ struct attention_args a,
                             const struct attention_grid grid) {
    constexpr int THREADS = WARPS * 32, TILES = BM / (16 * WARPS);
    constexpr uint32_t PART = BN * DIM * 2;
    extern __shared__ __align__(1024) unsigned char shared[];
    struct attention_span span;
    const int head = (int)(blockIdx.x % (unsigned)a.heads);
    if (!attention_span_of<true>(a, grid, (int)(blockIdx.x / (unsigned)a.heads), &span)) return;

    const int lane = lane_index(), row = (int)threadIdx.x / 32 * 16 * TILES, dim = (int)a.head_dim;
    const int kv_head = head / (int)(a.heads / a.kv_heads), window = attention_window(a);
    const T *q = (const T *)a.q + (span.first + span.from) * a.ld_q + (int64_t)head * dim;
    const T *k = (const T *)a.k + span.first * a.ld_k + (int64_t)kv_head * dim;
    const T *v = (const T *)a.v + span.first * a.ld_v + (int64_t)kv_head * dim;
    const uint32_t q_tile = shared_address(shared), kv_tile = q_tile + BM * DIM * 2;
    const int last = (min(span.from + BM, span.length) - 1) / BN;
    const int first = max(span.from - window + 1, 0) / BN;
    const float slope = (a.softcap > 0 ? 1.0f : a.scale) * LOG2E;

    float o[TILES][DIM / 8][4], s[TILES][BN / 8][4];
    struct softmax<TILES> m;
    clear<TILES, DIM>(o);
    softmax_begin<TILES>(m);
    tile_fetch<T, DIM, BM, THREADS>(q_tile, q, a.ld_q, span.length - span.from, dim);
    fetch_pair<T, DIM, BN, THREADS>(kv_tile, a, k + last * BN * a.ld_k, v + last * BN * a.ld_v,
                                    span.length - last * BN);
    for (int block = last, stage = 0; block >= first; block--, stage ^= 1) {
        const int key = block * BN;
        copies_wait();
        __syncthreads(); /* this pair has arrived, and all are done with the other */
        if (block > first)
            fetch_pair<T, DIM, BN, THREADS>(kv_tile + (uint32_t)(stage ^ 1) * 2 * PART, a,
                                            k + (key - BN) * a.ld_k, v + (key - BN) * a.ld_v, BN);
        const uint32_t k_tile = kv_tile + (uint32_t)stage * 2 * PART;
        product_rows<T, DIM, TILES, BN>(s, q_tile, row, k_tile);
        if (a.softcap > 0) cap_scores<TILES, BN>(s, a.scale, a.softcap);
        if (key + BN - 1 > span.from + row || span.from + BM - 1 - key >= window)
            hide_scores<TILES, BN, 1>(s, span.from + row + (lane >> 2) - (key + 2 * (lane & 3)),
                                      window);
        float rescale[TILES][2];
        online_softmax<TILES, BN>(s, m, slope, rescale);
        scale_rows<TILES, DIM>(o, rescale);
        uint32_t p[TILES][BN / 16][4];
        pack_operand<T, TILES, BN>(p, s);
        product_add<T, DIM, TILES, BN>(o, p, k_tile + PART);
    }
    forward_write<T, DIM, TILES>(a, q_tile, row, o, m, span, head);
}

template <typename T, int DIM, int BM, int BN, int WARPS>
static enum status forward_launch(struct device *device, const struct attention_args *a,
                                  struct err *e) {
    const struct attention_grid grid = attention_grid_of(a, BM);
    const struct attention_launch shape = {attention_items(a, grid) * a->heads, WARPS * 32,
                                           (BM + 4 * BN) * DIM * 2, "attention"};
    return attention_launch(device, shape, e, attention_forward_kernel<T, DIM, BM, BN, WARPS>, *a,
                            grid);
}

template <typename T>
static enum status forward_of(struct device *device, const struct attention_args *a,
                              struct err *e) {
    if (a->head_dim <= 64) return forward_launch<T, 64, 128, 64, 4>(device, a, e);
    if (a->head_dim <= 96) return forward_launch<T, 96, 128, 64, 4>(device, a, e);
    if (a->head_dim <= 128) return forward_launch<T, 128, 128, 64, 4>(device, a, e);
    return forward_launch<T, 256, 64, 32, 4>(device, a, e);
}

enum status cuda_attention_tensor(struct device *device, const struct attention_args *a,
                                  struct err *e) {
    if (a->dtype == DTYPE_BF16) return forward_of<__nv_bfloat16>(device, a, e);
    return forward_of<__half>(device, a, e);
}
