/* attention_hopper.cu - causal attention's forward for Hopper, whose tensor cores are fast only
 * through wgmma (Shah et al. 2024, "FlashAttention-3").
 *
 * As attention_forward.cu, with two groups of four warps that own 64 queries each. A group starts
 * the product of the next scores and the one of the last probabilities with their values together,
 * and computes the softmax while the latter still runs; the two groups also fill each other's gaps.
 * So keys are needed one block before their values, and both have two buffers. */
#include "kernels/cuda/attention_panel.cuh"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda/attention_softmax.cuh"

enum { THREADS = 256, BM = 128, BUILT_REGISTERS = 64 };

/* Computes out and lse for one block of 128 queries of one head.
 * Grid: items of attention_span_of x heads, heads fastest; block: 8 warps, warp w owns queries 16w.
 * q, k, v, out 16-bit, accumulators and softmax f32; head_dim a multiple of 8 up to DIM.
 * Shared memory, in panels: Q [128,DIM], two of K [BN,DIM], two of V [BN,DIM].
 * FLOPs 4*D a visible pair; bytes: q, out once, k and v once a block of queries, mostly from L2. */
template <typename T, int DIM, int BN>
__global__ void __launch_bounds__(THREADS, DIM == 64 ? 2 : 1)
    attention_hopper_kernel(const __grid_constant__ struct attention_args a,
                            const struct attention_grid grid) {
    constexpr uint32_t PART = BN * DIM * 2;
    extern __shared__ __align__(1024) unsigned char shared[];
    struct attention_span span;
    const int head = (int)(blockIdx.x % (unsigned)a.heads);
    if (!attention_span_of<true>(a, grid, (int)(blockIdx.x / (unsigned)a.heads), &span)) return;

    const int lane = lane_index(), row = (int)threadIdx.x / 32 * 16, dim = (int)a.head_dim;
    const int kv_head = head / (int)(a.heads / a.kv_heads), window = attention_window(a);
    const T *q = (const T *)a.q + (span.first + span.from) * a.ld_q + (int64_t)head * dim;
    const T *k = (const T *)a.k + span.first * a.ld_k + (int64_t)kv_head * dim;
    const T *v = (const T *)a.v + span.first * a.ld_v + (int64_t)kv_head * dim;
    const uint32_t q_tile = shared_address(shared), k_tile = q_tile + BM * DIM * 2;
    const uint32_t v_tile = k_tile + 2 * PART, group = q_tile + threadIdx.x / 128 * 64 * 128;
    const int last = (min(span.from + BM, span.length) - 1) / BN;
    const int first = max(span.from - window + 1, 0) / BN;
    const float slope = (a.softcap > 0 ? 1.0f : a.scale) * LOG2E;

    float o[1][DIM / 8][4], s[1][BN / 8][4], rescale[1][2];
    uint32_t p[1][BN / 16][4] = {};
    struct softmax<1> m;
    clear<1, DIM>(o);
    clear<1, BN>(s);
    softmax_begin<1>(m);
    tile_fetch<T, DIM, BM, THREADS, true>(q_tile, q, a.ld_q, span.length - span.from, dim);
    tile_fetch<T, DIM, BN, THREADS, true>(k_tile, k + last * BN * a.ld_k, a.ld_k,
                                          span.length - last * BN, dim);
    for (int block = last, stage = 0; block >= first; block--, stage ^= 1) {
        const int key = block * BN;
        copies_wait();
        wgmma_publish();
        __syncthreads(); /* these keys and the last values are here; the other buffers are free */
        wgmma_hold<BN>(s[0]);
        wgmma_hold<DIM>(o[0]);
        wgmma_hold<BN>(p[0]);
        wgmma_begin();
        start_rows<T, DIM, BM, BN>(s[0], group, k_tile + (uint32_t)stage * PART);
        wgmma_commit();
        if (block < last) {
            wgmma_begin();
            start_add<T, DIM, BN>(o[0], p[0], v_tile + (uint32_t)(stage ^ 1) * PART);
        }
        wgmma_commit(); /* of nothing, the first time */
        /* The copies are asked for while the products run. */
        tile_fetch<T, DIM, BN, THREADS, true>(v_tile + (uint32_t)stage * PART, v + key * a.ld_v,
                                              a.ld_v, span.length - key, dim);
        if (block > first)
            tile_fetch<T, DIM, BN, THREADS, true>(k_tile + (uint32_t)(stage ^ 1) * PART,
                                                  k + (key - BN) * a.ld_k, a.ld_k, BN, dim);
        wgmma_wait<1>();
        wgmma_hold<BN>(s[0]);
        if (a.softcap > 0) cap_scores<1, BN>(s, a.scale, a.softcap);
        if (key + BN - 1 > span.from + row || span.from + row + 15 - key >= window)
            hide_scores<1, BN, 1>(s, span.from + row + (lane >> 2) - (key + 2 * (lane & 3)),
                                  window);
        online_softmax<1, BN>(s, m, slope, rescale);
        wgmma_wait<0>();
        wgmma_hold<DIM>(o[0]);
        scale_rows<1, DIM>(o, rescale);
        pack_operand<T, 1, BN>(p, s);
    }
    copies_wait();
    wgmma_publish();
    __syncthreads();
    wgmma_hold<DIM>(o[0]);
    wgmma_hold<BN>(p[0]);
    wgmma_begin();
    start_add<T, DIM, BN>(o[0], p[0], v_tile + (uint32_t)((last - first) & 1) * PART);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold<DIM>(o[0]);
    __syncthreads(); /* the queries are not read any more: their place takes the result */
    forward_write<T, DIM, 1>(a, q_tile, row, o, m, span, head);
}

template <typename T, int DIM, int BN>
static enum status hopper_launch(struct device *device, const struct attention_args *a,
                                 struct err *e) {
    const struct attention_grid grid = attention_grid_of(a, BM);
    const struct attention_launch shape = {attention_items(a, grid) * a->heads, THREADS,
                                           (BM + 4 * BN) * DIM * 2, "attention"};
    return attention_launch(device, shape, e, attention_hopper_kernel<T, DIM, BN>, *a, grid);
}

template <typename T>
static enum status hopper_of(struct device *device, const struct attention_args *a, struct err *e) {
    if (a->head_dim <= 64) return hopper_launch<T, 64, 64>(device, a, e);
    if (a->head_dim <= 128) return hopper_launch<T, 128, 128>(device, a, e);
    return hopper_launch<T, 256, 64>(device, a, e);
}

/* 65 to 96 would be padded to 128: attention_forward.cu loses less. A build for "90" instead of
 * "90a" holds a kernel that is one trap; it shows by its registers. */
bool cuda_attention_hopper_takes(struct device *device, const struct attention_args *a) {
    if (cuda_state_of(device)->capability != 90) return false;
    if (a->head_dim > 64 && a->head_dim <= 96) return false;
    struct cudaFuncAttributes found = {};
    const cudaError_t error = cudaFuncGetAttributes(
        &found, (const void *)attention_hopper_kernel<__nv_bfloat16, 128, 128>);
    return error == cudaSuccess && found.numRegs >= BUILT_REGISTERS;
}

enum status cuda_attention_hopper(struct device *device, const struct attention_args *a,
                                  struct err *e) {
    if (a->dtype == DTYPE_BF16) return hopper_of<__nv_bfloat16>(device, a, e);
    return hopper_of<__half>(device, a, e);
}
