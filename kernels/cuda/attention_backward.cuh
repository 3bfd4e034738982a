/* attention_backward.cuh - what the two main kernels of attention's backward share: sizes, the walk
 * over queries, and everything that is done to scores and results between the products.
 *
 * attention_backward.cu multiplies by mma.sync, attention_hopper_backward.cu by wgmma; in both a
 * warp holds the scores of 16 keys by BM queries, in the same registers. */
#ifndef PLIMSOLL_KERNELS_ATTENTION_BACKWARD_CUH
#define PLIMSOLL_KERNELS_ATTENTION_BACKWARD_CUH

#include "kernels/cuda/attention_mma.cuh"

/* What a launch makes: heads of more than 128 dimensions have no room for both sums at once. */
enum { MAKE_BOTH, MAKE_DV, MAKE_DK };

/* Sizes of one variant. Warps of the block: BN/16, each owns 16 keys; for dq they lie WM by
 * (BN/16)/WM over [BM, DIM]. */
template <int DIM_, int BM_, int BN_, int WM_, int MAKE_, bool PANELS_ = false> struct variant {
    static constexpr int DIM = DIM_, BM = BM_, BN = BN_, WM = WM_, MAKE = MAKE_;
    static constexpr bool PANELS = PANELS_; /* for wgmma */
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
    float *shares;      /* [splits, T, 2, K*D]: dk and dv of each split's heads, where splits > 1 */
    int splits;         /* thread blocks that divide the heads of a group among them */
};

/* The query heads that a thread block walks over, head .. end-1, all of one kv head. */
struct heads_share {
    int kv_head, split, head, end;
};

/* Thread blocks of one block of keys are neighbours: splits fastest, then kv heads. */
static __device__ __forceinline__ struct heads_share heads_share_of(
    const struct backward_parameters &p) {
    const int group = (int)(p.args.forward.heads / p.args.forward.kv_heads);
    const int index = (int)(blockIdx.x % (unsigned)(p.args.forward.kv_heads * p.splits));
    const int kv_head = index / p.splits, split = index % p.splits;
    return {kv_head, split, kv_head * group + group * split / p.splits,
            kv_head * group + group * (split + 1) / p.splits};
}

/* One block of queries of one head, and the two buffers it is in. */
struct step {
    int head, query; /* query: its first row in the document */
    int stage;
};

/* Starts the copies of a step's Q, dO, lse and delta. */
template <typename T, typename V>
__device__ __forceinline__ void fetch_step(const struct backward_parameters &p,
                                           const struct attention_span &span, uint32_t base,
                                           struct step s) {
    const struct attention_args &a = p.args.forward;
    const int64_t token = span.first + s.query;
    const int dim = (int)a.head_dim, rows = span.length - s.query;
    const uint32_t tile = base + V::AT_STAGES + s.stage * V::STAGE;
    const T *q = (const T *)a.q + token * a.ld_q + (int64_t)s.head * dim;
    const T *dout = (const T *)p.args.dout + token * p.args.ld_dout + (int64_t)s.head * dim;
    tile_fetch<T, V::DIM, V::BM, V::THREADS, V::PANELS>(tile, q, a.ld_q, rows, dim);
    tile_fetch<T, V::DIM, V::BM, V::THREADS, V::PANELS>(tile + V::QUERIES, dout, p.args.ld_dout,
                                                        rows, dim);
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
__device__ __forceinline__ void gradient_scores(const struct attention_args &a,
                                                float s[1][V::BM / 8][4], float ds[1][V::BM / 8][4],
                                                uint32_t rows, int distance) {
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

/* The step after s: the next queries, or the first of the next head; its stage is the other one. */
static __device__ __forceinline__ struct step step_after(struct step s, int from, int rows,
                                                         int end) {
    s.query += rows;
    s.stage ^= 1;
    if (s.query >= end) {
        s.query = from;
        s.head++;
    }
    return s;
}

/* The first query that does not see the last of `keys` keys, and no further than the document. */
static __device__ __forceinline__ int last_query(const struct attention_args &a,
                                                 const struct attention_span &span, int keys) {
    const int64_t end = (int64_t)span.from + keys - 1 + attention_window(a);
    return (int)min((int64_t)span.length, end);
}

/* Adds a piece of dq of step s to the sums in device memory: rows row .. of the block, columns
 * column .. of the head. Two lanes exchange halves, so that each adds four neighbouring columns of
 * one row. */
template <int TILES, int N>
__device__ __forceinline__ void add_sums(const struct backward_parameters &p,
                                         const struct attention_span &span, struct step s, int row,
                                         int column, const float c[TILES][N / 8][4]) {
    const struct attention_args &a = p.args.forward;
    const int lane = lane_index(), odd = lane & 1;
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

/* The warp's 16 rows of sums as they are into this split's shares: dk at `which` 0, dv at 1. */
template <typename V>
__device__ __forceinline__ void write_share(const struct backward_parameters &p,
                                            const struct attention_span &span,
                                            struct heads_share share, int which,
                                            const float c[V::DIM / 8][4], float factor) {
    const struct attention_args &a = p.args.forward;
    const int lane = lane_index(), row = (int)threadIdx.x / 32 * 16 + (lane >> 2);
    const int rows = span.length - span.from, dim = (int)a.head_dim;
    const int64_t wide = a.kv_heads * dim;
    const int64_t token = share.split * a.tokens + span.first + span.from + row;
    float *to = p.shares + (2 * token + which) * wide + share.kv_head * dim + 2 * (lane & 3);
#pragma unroll
    for (int j = 0; j < V::DIM / 8; j++) {
        if (8 * j >= dim) continue;
        if (row < rows) *(float2 *)(to + 8 * j) = make_float2(c[j][0] * factor, c[j][1] * factor);
        if (row + 8 < rows)
            *(float2 *)(to + 16 * wide + 8 * j) = make_float2(c[j][2] * factor, c[j][3] * factor);
    }
}

/* The warp's 16 rows of sums to dk (`which` 0) or dv (1), through its rows of a tile of keys, or
 * to the shares. */
template <typename T, typename V>
__device__ __forceinline__ void write_keys(const struct backward_parameters &p,
                                           const struct attention_span &span,
                                           struct heads_share share, int which, uint32_t tile,
                                           const float c[V::DIM / 8][4]) {
    const struct attention_args &a = p.args.forward;
    const int row = (int)threadIdx.x / 32 * 16;
    const float factor = which ? 1.0f : a.scale;
    if (p.splits > 1) return write_share<V>(p, span, share, which, c, factor);
    const int64_t ld = which ? p.args.ld_dv : p.args.ld_dk;
    tile_put<T, V::DIM>(tile, row, c, factor, factor);
    __syncwarp();
    T *at = (T *)(which ? p.args.dv : p.args.dk) + (span.first + span.from) * ld +
            share.kv_head * a.head_dim;
    tile_write<T, V::DIM, 16>(at, ld, tile, row, span.length - span.from, (int)a.head_dim);
}

/* How many thread blocks a launch makes. */
static inline int64_t backward_blocks(const struct backward_parameters &p) {
    const struct attention_args *a = &p.args.forward;
    return attention_items(a, p.grid) * a->kv_heads * p.splits;
}

/* attention_hopper_backward.cu: dk, dv and the sums of dq, for heads of up to 128 dimensions that
 * cuda_attention_hopper_takes. */
enum status cuda_attention_hopper_backward(struct device *device, struct backward_parameters p,
                                           struct err *e);

#endif
