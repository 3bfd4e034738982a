/* attention_hopper_backward.cu - dk, dv and the sums of dq by wgmma, for compute capability 9.0.
 *
 * The walk is that of attention_backward.cu: 128 keys a thread block, scores transposed, P^T and
 * dS^T left operands from registers, dq one step late. Two groups of four warps own 64 keys each;
 * of dq each group computes 64 by 64: its half of the queries, or of the columns. */
#include "kernels/cuda/attention_backward.cuh"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda/attention_panel.cuh"

/* Rounded dS^T of the warp's 16 keys into panels of 64 queries. */
template <typename T, typename V>
static __device__ __forceinline__ void put_scores(uint32_t tile, int row,
                                                  const float ds[V::BM / 8][4]) {
#pragma unroll
    for (int panel = 0; panel < V::BM / 64; panel++) {
        tile_put<T, 64>(tile + panel * V::BN * 128, row, ds + panel * 8, 1, 1);
    }
}

/* The group's 64 by 64 of dq += dS K of step s, in device memory. Waits for all products that are
 * on their way. */
template <typename T, typename V>
static __device__ __forceinline__ void add_part(const struct backward_parameters &p,
                                                const struct attention_span &span, uint32_t base,
                                                struct step s) {
    const int group = (int)threadIdx.x / 128, row = V::BM > 64 ? 64 * group : 0;
    const int column = V::DIM > 64 ? 64 * group : 0;
    const uint32_t scores = base + V::AT_SCORES + s.stage * V::SCORES;
    float dq[1][8][4];
    clear<1, 64>(dq);
    wgmma_hold<64>(dq[0]);
    wgmma_begin();
    start_columns<T, V::BN>(dq[0], scores + row / 64 * V::BN * 128,
                            base + column / 64 * V::BN * 128);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold<64>(dq[0]);
    add_sums<1, 64>(p, span, s, row + (int)threadIdx.x / 32 % 4 * 16, column, dq);
}

/* Computes dv = P^T dO, dk = scale * dS^T Q and dq sums for one block of 128 keys.
 * Grid: items of attention_span_of x heads_share_of, fastest; block: 8 warps, each owns 16 keys.
 * q, k, v, dout, dk, dv 16-bit, everything between f32 but P and dS. Shared memory: struct variant,
 * in panels. FLOPs 10*D a visible pair; bytes as attention_backward_kernel. */
template <typename T, typename V>
__global__ void __launch_bounds__(V::THREADS, 1)
    attention_hopper_backward_kernel(const __grid_constant__ struct backward_parameters p) {
    static_assert(V::PANELS && V::THREADS == 256 && V::BM * V::DIM == 128 * 64, "dq has two parts");
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct attention_args &a = p.args.forward;
    struct attention_span span;
    const struct heads_share share = heads_share_of(p);
    const int item = (int)(blockIdx.x / (unsigned)(a.kv_heads * p.splits)), dim = (int)a.head_dim;
    if (!attention_span_of<false>(a, p.grid, item, &span)) return;

    const int lane = lane_index(), row = (int)threadIdx.x / 32 * 16, window = attention_window(a);
    const int keys = span.length - span.from;
    const int64_t first = span.first + span.from;
    const uint32_t base = shared_address(shared), own = base + threadIdx.x / 128 * 64 * 128;
    const int end = last_query(a, span, V::BN);
    tile_fetch<T, V::DIM, V::BN, V::THREADS, true>(
        base, (const T *)a.k + first * a.ld_k + (int64_t)share.kv_head * dim, a.ld_k, keys, dim);
    tile_fetch<T, V::DIM, V::BN, V::THREADS, true>(
        base + V::AT_V, (const T *)a.v + first * a.ld_v + (int64_t)share.kv_head * dim, a.ld_v,
        keys, dim);

    float dk[1][V::DIM / 8][4], dv[1][V::DIM / 8][4];
    clear<1, V::DIM>(dk);
    clear<1, V::DIM>(dv);
    struct step next = {share.head, span.from, 0}, now = next, before = next;
    bool more = true, began = false;
    fetch_step<T, V>(p, span, base, next);
    while (more) {
        now = next;
        copies_wait();
        wgmma_publish();
        __syncthreads();
        next = step_after(now, span.from, V::BM, end);
        more = next.head < share.end;

        const uint32_t q_tile = base + V::AT_STAGES + now.stage * V::STAGE;
        float s[1][V::BM / 8][4], ds[1][V::BM / 8][4];
        clear<1, V::BM>(s);
        clear<1, V::BM>(ds);
        wgmma_hold<V::BM>(s[0]);
        wgmma_hold<V::BM>(ds[0]);
        wgmma_begin();
        start_rows<T, V::DIM, V::BN, V::BM>(s[0], own, q_tile);
        start_rows<T, V::DIM, V::BN, V::BM>(ds[0], own + V::AT_V, q_tile + V::QUERIES);
        wgmma_commit();
        if (more) fetch_step<T, V>(p, span, base, next); /* while the products run */
        wgmma_wait<0>();
        wgmma_hold<V::BM>(s[0]);
        wgmma_hold<V::BM>(ds[0]);
        const int distance = now.query + 2 * (lane & 3) - (span.from + row + (lane >> 2));
        const uint32_t rows = base + V::AT_ROWS + now.stage * V::ROWS;
        if (a.softcap > 0) {
            gradient_scores<V, true>(a, s, ds, rows, distance);
        } else {
            if (span.from + row + 15 > now.query ||
                now.query + V::BM - 1 - (span.from + row) >= window)
                hide_scores<1, V::BM, -1>(s, distance, window);
            gradient_scores<V, false>(a, s, ds, rows, distance);
        }
        uint32_t packed_p[1][V::BM / 16][4], packed_ds[1][V::BM / 16][4];
        pack_operand<T, 1, V::BM>(packed_p, s);
        pack_operand<T, 1, V::BM>(packed_ds, ds);
        if (p.dq) put_scores<T, V>(base + V::AT_SCORES + now.stage * V::SCORES, row, ds[0]);
        wgmma_hold<V::DIM>(dv[0]);
        wgmma_hold<V::DIM>(dk[0]);
        wgmma_hold<V::BM>(packed_p[0]);
        wgmma_hold<V::BM>(packed_ds[0]);
        wgmma_begin();
        start_add<T, V::DIM, V::BM>(dv[0], packed_p[0], q_tile + V::QUERIES);
        start_add<T, V::DIM, V::BM>(dk[0], packed_ds[0], q_tile);
        wgmma_commit();
        if (p.dq && began) add_part<T, V>(p, span, base, before);
        wgmma_wait<0>();
        wgmma_hold<V::DIM>(dv[0]);
        wgmma_hold<V::DIM>(dk[0]);
        before = now;
        began = true;
    }
    wgmma_publish();
    __syncthreads();
    if (p.dq) add_part<T, V>(p, span, base, before);
    __syncthreads(); /* the keys are not read any more: their tiles take the results */
    write_keys<T, V>(p, span, heads_share_of(p), 1, base + V::AT_V, dv[0]);
    write_keys<T, V>(p, span, heads_share_of(p), 0, base, dk[0]);
}

template <typename T, typename V>
static enum status hopper_launch(struct device *device, struct backward_parameters p,
                                 struct err *e) {
    p.grid = attention_grid_of(&p.args.forward, V::BN);
    const struct attention_launch shape = {backward_blocks(p), V::THREADS, V::BYTES,
                                           "attention_backward"};
    return attention_launch(device, shape, e, attention_hopper_backward_kernel<T, V>, p);
}

template <typename T>
static enum status hopper_of(struct device *device, const struct backward_parameters &p,
                             struct err *e) {
    typedef variant<64, 128, 128, 2, MAKE_BOTH, true> narrow;
    typedef variant<128, 64, 128, 2, MAKE_BOTH, true> wide;
    static_assert(narrow::BYTES <= 227 * 1024 && wide::BYTES <= 227 * 1024, "it fits");
    if (p.args.forward.head_dim <= 64) return hopper_launch<T, narrow>(device, p, e);
    return hopper_launch<T, wide>(device, p, e);
}

enum status cuda_attention_hopper_backward(struct device *device, struct backward_parameters p,
                                           struct err *e) {
    if (p.args.forward.dtype == DTYPE_BF16) return hopper_of<__nv_bfloat16>(device, p, e);
    return hopper_of<__half>(device, p, e);
}
