/* attention_backward.cu - the gradient of causal attention on the tensor core (Dao 2023).
 *
 * A thread block owns BN keys of one key/value head of one document and walks over all queries
 * that see them, head by head of the group, so that dk and dv of grouped heads are summed in
 * registers and written once. Scores are computed transposed, keys by queries: then P^T and
 * dS^T, as they come out of one product, are left operands of the products for dv and dk without
 * leaving the registers. Only dS goes through shared memory, for dq = dS K, which is summed into
 * device memory in f32. That product runs one step late, beside the next scores, so that a step
 * has a single barrier. */
#include "kernels/cuda/attention_mma.cuh"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda_sizes.h"

/* What a launch makes: heads of more than 128 dimensions have no room for both sums at once. */
enum { MAKE_BOTH, MAKE_DV, MAKE_DK };

/* Sizes of one variant. Warps of the block: BN/16, each owns 16 keys; for dq they lie WM by
 * (BN/16)/WM over [BM, DIM]. */
template <int DIM_, int BM_, int BN_, int WM_, int MAKE_> struct variant {
    static constexpr int DIM = DIM_, BM = BM_, BN = BN_, WM = WM_, MAKE = MAKE_;
    static constexpr int THREADS = BN * 2, WN = BN / 16 / WM;
    static constexpr bool DV = MAKE != MAKE_DK, DK = MAKE != MAKE_DV;
    /* Shared memory in bytes: K, V; two stages of Q, dO, lse, delta; two of dS^T. */
    static constexpr int KEYS = BN * DIM * 2, QUERIES = BM * DIM * 2, SCORES = BM * BN * 2;
    static constexpr int STAGE = 2 * QUERIES, ROWS = 2 * BM * 4;
    static constexpr int AT_V = KEYS, AT_STAGES = DK ? 2 * KEYS : KEYS;
    static constexpr int AT_SCORES = AT_STAGES + 2 * STAGE;
    static constexpr int AT_ROWS = AT_SCORES + (DK ? 2 * SCORES : 0);
    static constexpr int BYTES = AT_ROWS + 2 * ROWS;
    static_assert(BM % (16 * WM) == 0 && DIM % (16 * WN) == 0, "dq falls into whole pieces");
};

struct backward_parameters {
    struct attention_backward_args args;
    struct attention_grid grid;
    const float *delta; /* [H,T] */
    float *dq;          /* [T, H*D] sums, or NULL: not made here */
};

/* One block of queries of one head, and the two buffers it is in. */
struct step {
    int head, query; /* query: its first row in the document */
    int stage;
};

/* Starts the copies of a step's Q, dO, lse and delta. */
template <typename T, typename V>
static __device__ __forceinline__ void fetch_step(const struct backward_parameters &p,
                                                  const struct attention_span &span, uint32_t base,
                                                  struct step s) {
    const struct attention_args &a = p.args.forward;
    const int64_t token = span.first + s.query;
    const int dim = (int)a.head_dim, rows = span.length - s.query;
    const uint32_t tile = base + V::AT_STAGES + s.stage * V::STAGE;
    const T *q = (const T *)a.q + token * a.ld_q + (int64_t)s.head * dim;
    const T *dout = (const T *)p.args.dout + token * p.args.ld_dout + (int64_t)s.head * dim;
    tile_fetch<T, V::DIM, V::BM, V::THREADS>(tile, q, a.ld_q, rows, dim);
    tile_fetch<T, V::DIM, V::BM, V::THREADS>(tile + V::QUERIES, dout, p.args.ld_dout, rows, dim);
    const int row = (int)threadIdx.x;
    if (row < V::BM) {
        const int64_t at = (int64_t)s.head * a.tokens + token + (row < rows ? row : 0);
        const uint32_t to = base + V::AT_ROWS + s.stage * V::ROWS + row * 4;
        copy_4(to, a.lse + at, row < rows);
        copy_4(to + V::BM * 4, p.delta + at, row < rows);
    }
}

/* s: scores of 16 keys (rows) by BM queries become P = exp(score - lse); ds: dP becomes dS = P *
 * (dP - delta) * (slope of the cap). Rows beyond the document hold zeros in every operand, so P = 1
 * there meets dO = 0, and dS = 0. CAPPED asks the mask here, others have asked it before. */
template <typename V, bool CAPPED>
static __device__ __forceinline__ void gradient_scores(const struct attention_args &a,
                                                       float s[1][V::BM / 8][4],
                                                       float ds[1][V::BM / 8][4], uint32_t rows,
                                                       int distance) {
    const int lane = lane_index(), window = attention_window(a);
    const float slope = (CAPPED ? a.softcap : a.scale) * LOG2E;
#pragma unroll
    for (int j = 0; j < V::BM / 8; j++) {
        const uint32_t at = rows + (8 * j + 2 * (lane & 3)) * 4;
        const float2 lse = load_shared_floats(at), delta = load_shared_floats(at + V::BM * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float shift = (i & 1 ? lse.y : lse.x) * LOG2E;
            float x = s[0][j][i], factor = 1;
            if (CAPPED) {
                const int d = distance + 8 * j + (i & 1) - 8 * (i >> 1);
                x = cap_tanh(x * a.scale / a.softcap);
                factor = 1.0f - x * x;
                if (d < 0 || d >= window) x = -INFINITY;
            }
            const float probability = power_of_two(x * slope - shift);
            s[0][j][i] = probability;
            if (V::DK)
                ds[0][j][i] = probability * (ds[0][j][i] - (i & 1 ? delta.y : delta.x)) * factor;
        }
    }
}

/* dq[BM, DIM] += dS K of step s, in device memory. Two lanes exchange halves, so that each adds
 * four neighbouring columns of one row. */
template <typename T, typename V>
static __device__ __forceinline__ void add_queries(const struct backward_parameters &p,
                                                   const struct attention_span &span, uint32_t base,
                                                   struct step s) {
    constexpr int TILES = V::BM / 16 / V::WM, N = V::DIM / V::WN;
    const struct attention_args &a = p.args.forward;
    const int lane = lane_index(), warp = (int)threadIdx.x / 32;
    const int row = warp / V::WN * TILES * 16, column = warp % V::WN * N;
    float c[TILES][N / 8][4];
    product_columns<T, V::BM, V::DIM, V::BN, TILES, N>(c, base + V::AT_SCORES + s.stage * V::SCORES,
                                                       row, base, column);
    const int odd = lane & 1;
    const int r = s.query + row + (lane >> 2) + 8 * odd, dim = (int)a.head_dim;
    const int first = column + 4 * ((lane & 3) >> 1);
    float *to = p.dq + (span.first + r) * a.heads * dim + (int64_t)s.head * dim + first;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float *x = c[t][j];
            const float y0 = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[2], 1);
            const float y1 = __shfl_xor_sync(0xffffffffu, odd ? x[1] : x[3], 1);
            const float4 v =
                odd ? make_float4(y0, y1, x[2], x[3]) : make_float4(x[0], x[1], y0, y1);
            if (r + 16 * t < span.length && first + 8 * j < dim)
                add_four(to + 16 * t * a.heads * dim + 8 * j, v);
        }
    }
}

/* The warp's 16 rows of sums to dk or dv, through its rows of a tile of keys. */
template <typename T, typename V>
static __device__ __forceinline__ void write_keys(const struct attention_args &a,
                                                  const struct attention_span &span, void *to,
                                                  int64_t ld, uint32_t tile, int kv_head,
                                                  const float c[V::DIM / 8][4], float factor) {
    const int row = (int)threadIdx.x / 32 * 16;
    tile_put<T, V::DIM>(tile, row, c, factor, factor);
    __syncwarp();
    T *at = (T *)to + (span.first + span.from) * ld + kv_head * a.head_dim;
    tile_write<T, V::DIM, 16>(at, ld, tile, row, span.length - span.from, (int)a.head_dim);
}

/* Computes dv = P^T dO, dk = scale * dS^T Q and dq sums for one block of keys; P and dS
 * recomputed. Grid: items of attention_span_of x kv heads, heads fastest; block: BN/16 warps,
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
    const int kv_head = (int)(blockIdx.x % (unsigned)a.kv_heads), dim = (int)a.head_dim;
    if (!attention_span_of<false>(a, p.grid, (int)(blockIdx.x / (unsigned)a.kv_heads), &span))
        return;

    const int lane = lane_index(), row = (int)threadIdx.x / 32 * 16, window = attention_window(a);
    const int group = (int)(a.heads / a.kv_heads), keys = span.length - span.from;
    const int64_t first = span.first + span.from;
    const uint32_t base = shared_address(shared);
    /* The last query that sees the last key, and no further than the document. */
    const int end = (int)min((int64_t)span.length, (int64_t)span.from + V::BN - 1 + window);
    const T *k = (const T *)a.k + first * a.ld_k + (int64_t)kv_head * dim;
    const T *v = (const T *)a.v + first * a.ld_v + (int64_t)kv_head * dim;
    tile_fetch<T, V::DIM, V::BN, V::THREADS>(base, k, a.ld_k, keys, dim);
    if (V::DK) tile_fetch<T, V::DIM, V::BN, V::THREADS>(base + V::AT_V, v, a.ld_v, keys, dim);

    float dk[1][V::DK ? V::DIM / 8 : 1][4], dv[1][V::DV ? V::DIM / 8 : 1][4];
    clear<1, V::DK ? V::DIM : 8>(dk);
    clear<1, V::DV ? V::DIM : 8>(dv);
    struct step next = {kv_head * group, span.from, 0}, now = next, before = next;
    bool more = true, began = false;
    fetch_step<T, V>(p, span, base, next);
    while (more) {
        now = next;
        copies_wait();
        __syncthreads();
        next.query += V::BM;
        next.stage ^= 1;
        if (next.query >= end) {
            next.query = span.from;
            next.head++;
        }
        more = next.head < (kv_head + 1) * group;
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
    if constexpr (V::DV)
        write_keys<T, V>(a, span, p.args.dv, p.args.ld_dv, base + (V::DK ? V::AT_V : 0), kv_head,
                         dv[0], 1);
    if constexpr (V::DK)
        write_keys<T, V>(a, span, p.args.dk, p.args.ld_dk, base, kv_head, dk[0], a.scale);
}

template <typename T, typename V>
static enum status backward_launch(struct device *device, struct backward_parameters p,
                                   struct err *e) {
    const struct attention_args *a = &p.args.forward;
    p.grid = attention_grid_of(a, V::BN);
    const struct attention_launch shape = {attention_items(a, p.grid) * a->kv_heads, V::THREADS,
                                           V::BYTES, "attention_backward"};
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

enum status cuda_attention_tensor_backward(struct device *device,
                                           const struct attention_backward_args *b, struct err *e) {
    const struct cuda_attention_parts parts = cuda_attention_parts(&b->forward);
    unsigned char *scratch = (unsigned char *)b->forward.scratch;
    float *delta = (float *)(scratch + parts.delta);
    float *dq = device->deterministic ? NULL : (float *)(scratch + parts.dq);
    const struct backward_parameters p = {*b, {0, 0, 0}, delta, dq};
    TRY(cuda_attention_delta_aligned(device, b, delta, dq, e));
    if (b->forward.dtype == DTYPE_BF16)
        TRY(backward_of<__nv_bfloat16>(device, p, e));
    else
        TRY(backward_of<__half>(device, p, e));
    if (dq) return cuda_attention_round(device, b, dq, e);
    return cuda_attention_queries(device, b, delta, e);
}
