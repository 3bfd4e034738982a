/* attention_backward.cu - the gradient of causal attention on the tensor core (Dao 2023).
 *
 * A thread block owns BN keys of one key/value head of one document and walks over all queries
 * that see them, head by head of the group, so that dk and dv of grouped heads are summed in
 * registers and written once. Scores are computed transposed, keys by queries: then P^T and
 * dS^T, as they come out of one product, are left operands of the products for dv and dk without
 * leaving the registers. Only dS goes through shared memory, for dq = dS K, which is summed into
 * device memory in f32. That product runs one step late, beside the next scores, so that a step
 * has a single barrier.
 *
 * Few kv heads make few and long thread blocks: then several of them divide the heads of a group,
 * and their shares of dk and dv are summed afterwards, in one order. */
#include "kernels/cuda/attention_backward.cuh"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda_sizes.h"

/* dq[BM, DIM] += dS K of step s, in device memory. */
template <typename T, typename V>
static __device__ __forceinline__ void add_queries(const struct backward_parameters &p,
                                                   const struct attention_span &span, uint32_t base,
                                                   struct step s) {
    constexpr int TILES = V::BM / 16 / V::WM, N = V::DIM / V::WN;
    const int warp = (int)threadIdx.x / 32;
    const int row = warp / V::WN * TILES * 16, column = warp % V::WN * N;
    float c[TILES][N / 8][4];
    product_columns<T, V::BM, V::DIM, V::BN, TILES, N>(c, base + V::AT_SCORES + s.stage * V::SCORES,
                                                       row, base, column);
    add_sums<TILES, N>(p, span, s, row, column, c);
}

/* Computes dv = P^T dO, dk = scale * dS^T Q and dq sums for one block of keys; P and dS
 * recomputed. Grid: items of attention_span_of x heads_share_of, fastest; block: BN/16 warps,
 * each owns 16 keys. q, k, v, dout, dk, dv 16-bit, everything between f32 but P and dS, which
 * are rounded to 16 bits where they are multiplied. Shared memory: struct variant. FLOPs 10*D a
 * visible pair (14*D when dk and dv are apart); bytes: k, v, dk, dv once; q, dout and twice dq
 * in f32 once a block of keys, mostly in L2. */
template <typename T, typename V>
__global__ void __launch_bounds__(V::THREADS, 1)
    attention_backward_kernel(const __grid_constant__ struct backward_parameters p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct attention_args &a = p.args.forward;
    struct attention_span span;
    const struct heads_share share = heads_share_of(p);
    const int item = (int)(blockIdx.x / (unsigned)(a.kv_heads * p.splits)), dim = (int)a.head_dim;
    if (!attention_span_of<false>(a, p.grid, item, &span)) return;

    const int lane = lane_index(), row = (int)threadIdx.x / 32 * 16, window = attention_window(a);
    const int keys = span.length - span.from;
    const int64_t first = span.first + span.from;
    const uint32_t base = shared_address(shared);
    const int end = last_query(a, span, V::BN);
    const T *k = (const T *)a.k + first * a.ld_k + (int64_t)share.kv_head * dim;
    const T *v = (const T *)a.v + first * a.ld_v + (int64_t)share.kv_head * dim;
    tile_fetch<T, V::DIM, V::BN, V::THREADS>(base, k, a.ld_k, keys, dim);
    if (V::DK) tile_fetch<T, V::DIM, V::BN, V::THREADS>(base + V::AT_V, v, a.ld_v, keys, dim);

    float dk[1][V::DK ? V::DIM / 8 : 1][4], dv[1][V::DV ? V::DIM / 8 : 1][4];
    clear<1, V::DK ? V::DIM : 8>(dk);
    clear<1, V::DV ? V::DIM : 8>(dv);
    struct step next = {share.head, span.from, 0}, now = next, before = next;
    bool more = true, began = false;
    fetch_step<T, V>(p, span, base, next);
    while (more) {
        now = next;
        copies_wait();
        __syncthreads();
        next = step_after(now, span.from, V::BM, end);
        more = next.head < share.end;
        if (more) fetch_step<T, V>(p, span, base, next);
        if constexpr (V::DK) {
            if (p.dq && began) add_queries<T, V>(p, span, base, before);
        }

        const uint32_t q_tile = base + V::AT_STAGES + now.stage * V::STAGE;
        float s[1][V::BM / 8][4], ds[1][V::BM / 8][4];
        product_rows<T, V::DIM, 1, V::BM>(s, base, row, q_tile);
        if (V::DK) product_rows<T, V::DIM, 1, V::BM>(ds, base + V::AT_V, row, q_tile + V::QUERIES);
        const bool mask =
            span.from + row + 15 > now.query || now.query + V::BM - 1 - (span.from + row) >= window;
        const int distance = now.query + 2 * (lane & 3) - (span.from + row + (lane >> 2));
        const uint32_t rows = base + V::AT_ROWS + now.stage * V::ROWS;
        if (a.softcap > 0) {
            gradient_scores<V, true>(a, s, ds, rows, distance);
        } else {
            if (mask) hide_scores<1, V::BM, -1>(s, distance, window);
            gradient_scores<V, false>(a, s, ds, rows, distance);
        }

        uint32_t packed[1][V::BM / 16][4];
        if constexpr (V::DV) {
            pack_operand<T, 1, V::BM>(packed, s);
            product_add<T, V::DIM, 1, V::BM>(dv, packed, q_tile + V::QUERIES);
        }
        if constexpr (V::DK) {
            pack_operand<T, 1, V::BM>(packed, ds);
            if (p.dq)
                tile_put<T, V::BM>(base + V::AT_SCORES + now.stage * V::SCORES, row, ds[0], 1, 1);
            product_add<T, V::DIM, 1, V::BM>(dk, packed, q_tile);
        }
        before = now;
        began = true;
    }
    __syncthreads();
    if constexpr (V::DK) {
        if (p.dq) add_queries<T, V>(p, span, base, before);
    }
    __syncthreads(); /* the keys are not read any more: their tiles take the results */
    if constexpr (V::DV) write_keys<T, V>(p, span, share, 1, base + (V::DK ? V::AT_V : 0), dv[0]);
    if constexpr (V::DK) write_keys<T, V>(p, span, share, 0, base, dk[0]);
}

template <typename T, typename V>
static enum status backward_launch(struct device *device, struct backward_parameters p,
                                   struct err *e) {
    p.grid = attention_grid_of(&p.args.forward, V::BN);
    const struct attention_launch shape = {backward_blocks(p), V::THREADS, V::BYTES,
                                           "attention_backward"};
    return attention_launch(device, shape, e, attention_backward_kernel<T, V>, p);
}

/* Large tiles where a block may have 227 KiB (90) or 163 KiB (80) of shared memory, small ones for
 * 99 KiB (86, 89, 120). */
template <typename T>
static enum status backward_of(struct device *device, const struct backward_parameters &p,
                               struct err *e) {
    typedef variant<64, 64, 128, 2, MAKE_BOTH> large_64;
    typedef variant<96, 64, 128, 4, MAKE_BOTH> large_96;
    typedef variant<128, 64, 128, 2, MAKE_BOTH> large_128;
    typedef variant<128, 32, 64, 1, MAKE_BOTH> small_128;
    typedef variant<256, 32, 128, 1, MAKE_DV> large_dv;
    typedef variant<256, 32, 128, 1, MAKE_DK> large_dk;
    typedef variant<256, 16, 32, 1, MAKE_DV> small_dv;
    typedef variant<256, 16, 32, 1, MAKE_DK> small_dk;
    static_assert(large_64::BYTES <= 99 * 1024 && large_128::BYTES <= 163 * 1024, "it fits");
    static_assert(small_128::BYTES <= 99 * 1024 && small_dk::BYTES <= 99 * 1024, "it fits");
    static_assert(large_dk::BYTES <= 227 * 1024 && large_dv::BYTES <= 227 * 1024, "it fits");
    const int64_t dim = p.args.forward.head_dim, bytes = cuda_state_of(device)->shared_bytes;
    if (dim <= 128 && cuda_attention_hopper_takes(device, &p.args.forward))
        return cuda_attention_hopper_backward(device, p, e);
    if (dim <= 64) return backward_launch<T, large_64>(device, p, e);
    if (dim <= 96 && bytes >= large_96::BYTES) return backward_launch<T, large_96>(device, p, e);
    if (dim <= 128 && bytes >= large_128::BYTES) return backward_launch<T, large_128>(device, p, e);
    if (dim <= 128) return backward_launch<T, small_128>(device, p, e);
    if (bytes >= large_dk::BYTES) {
        TRY((backward_launch<T, large_dv>(device, p, e)));
        return backward_launch<T, large_dk>(device, p, e);
    }
    TRY((backward_launch<T, small_dv>(device, p, e)));
    return backward_launch<T, small_dk>(device, p, e);
}

/* Pairs of query and key that a head computes for a document of `length` tokens, of which each sees
 * at most `seen`. */
static double visible_pairs(double length, double seen) {
    const double s = length < seen ? length : seen;
    return s * (length - s / 2);
}

/* In how many parts the heads of a group are walked, by what the slowest multiprocessor will do,
 * counted in pairs: at least the longest thread block, and its share of them all. Of the documents
 * only the longest is known; that the others are alike is the least work possible. A split costs 16
 * bytes for each element of dk and dv and another launch, on an H200 the time of the pairs counted
 * here; it must gain an eighth. */
static int backward_splits(struct device *device, const struct attention_args *a) {
    const double keys = 128, share_pairs = 1.5, launch_pairs = 8192;
    const double longest = (double)a->max_seqlen, others = (double)a->segments - 1;
    const double seen = a->window > 0 ? (double)a->window : longest;
    double all = visible_pairs(longest, seen);
    if (others > 0) all += others * visible_pairs(((double)a->tokens - longest) / others, seen);
    const double each = all * (double)a->heads / cuda_state_of(device)->multiprocessors;
    const double column = keys * (seen + keys < longest ? seen + keys : longest);
    const int group = (int)(a->heads / a->kv_heads);
    const double whole = column * group;
    double least = (whole > each ? whole : each) * 7 / 8;
    int splits = 1;
    for (int n = 2; n <= group; n++) {
        const double block = column * ((group + n - 1) / n);
        const double shares = share_pairs * n * (double)(a->tokens * a->kv_heads) + launch_pairs;
        const double cost = (block > each ? block : each) + shares;
        if (cost >= least) continue;
        least = cost;
        splits = n;
    }
    return splits;
}

enum status cuda_attention_tensor_backward(struct device *device,
                                           const struct attention_backward_args *b, struct err *e) {
    const struct cuda_attention_parts parts = cuda_attention_parts(&b->forward);
    unsigned char *scratch = (unsigned char *)b->forward.scratch;
    float *delta = (float *)(scratch + parts.delta);
    float *dq = device->deterministic ? NULL : (float *)(scratch + parts.dq);
    float *shares = (float *)(scratch + parts.dkv);
    const int splits = backward_splits(device, &b->forward);
    const struct backward_parameters p = {*b, {0, 0, 0}, delta, dq, shares, splits};
    TRY(cuda_attention_delta_aligned(device, b, delta, dq, e));
    if (b->forward.dtype == DTYPE_BF16)
        TRY(backward_of<__nv_bfloat16>(device, p, e));
    else
        TRY(backward_of<__half>(device, p, e));
    if (splits > 1) TRY(cuda_attention_join(device, b, shares, splits, e));
    if (dq) return cuda_attention_round(device, b, dq, e);
    return cuda_attention_queries(device, b, delta, e);
}
