/* embedding.cu - rows of the embedding table by token id, and the gradient of the table.
 *
 * The gradient is deterministic without being slower for it: the tokens of each id that occurs are
 * listed in token order first (integers only, in the workspace), then one warp sums the rows of an
 * id, a block where there are many, in that order. Every row of the table is read and written once;
 * float atomics would move more bytes. */
#include "kernels/cuda/common.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
    FEW = 64,   /* more tokens of one id than this are summed by a whole block */
    FLIGHT = 8, /* rows that a thread has in flight */
};

/* Computes out[t] = scale * table[ids[t] - first], or 0 where the table has no such row.
 * Grid: tile_rows; a thread one pack, a loop over tokens.
 * S [V,C] contiguous -> T [T,C]. C and ld_out multiples of N. Bytes: sizeof(S) + sizeof(T). */
template <typename S, typename T, int N>
__global__ void __launch_bounds__(256) embedding_kernel(const struct embedding_args a) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (c >= a.channels) return;
    const int64_t step = (int64_t)gridDim.y * blockDim.y;
    for (int64_t t = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; t < a.tokens; t += step) {
        const int64_t row = a.ids[t] - a.first;
        float x[N];
        if (row >= 0 && row < a.vocab)
            load_pack<S, N>((const S *)a.table + row * a.channels + c, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = row >= 0 && row < a.vocab ? x[i] * a.scale : 0.0f;
        }
        store_pack<T, N>((T *)a.out + t * a.ld_out + c, x);
    }
}

template <typename S, typename T, int N>
static void launch_embedding(struct device *device, const struct embedding_args *a) {
    const struct tiling tiling = tile_rows(device, a->tokens, divide_up(a->channels, N));
    embedding_kernel<S, T, N><<<tiling.grid, tiling.block, 0, cuda_state_of(device)->stream>>>(*a);
}

enum status cuda_embedding(struct device *device, const struct embedding_args *a, struct err *e) {
    enum status status = STATUS_OK;
    TRY(launch_for(device, a->table_dtype, "embedding", e, [&](auto from) {
        using S = decltype(from);
        status = launch_for(device, a->dtype, "embedding", e, [&](auto to) {
            using T = decltype(to);
            constexpr int N = WIDE_OF_BOTH<S, T>;
            if (a->channels % N == 0 && is_wide(a->table, a->channels, sizeof(S)) &&
                is_wide(a->out, a->ld_out, sizeof(T))) {
                launch_embedding<S, T, N>(device, a);
            } else {
                launch_embedding<S, T, 1>(device, a);
            }
        });
    }));
    return status;
}

/* The index of the backward pass, in the workspace. `totals` counts the ids that occur and the
 * places of `order` that are given away. */
struct occurrences {
    unsigned *totals; /* [2] */
    unsigned *count;  /* [V] tokens of an id */
    unsigned *first;  /* [V] the first of them */
    unsigned *start;  /* [V] where its list begins in `order` */
    int32_t *ids;     /* [min(T,V)] those that occur, in any order */
    int32_t *order;   /* [T] for each id its tokens, rising */
};

/* Counts each id, finds its first token, and lists the ids that occur, all less `first`: rows of
 * the table. Grid: a thread a token. */
static __global__ void __launch_bounds__(THREADS)
    count_ids_kernel(const struct embedding_backward_args a, const struct occurrences o) {
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= a.tokens) return;
    const int32_t id = a.ids[t] - (int32_t)a.first;
    if (id < 0 || id >= a.vocab) return;
    if (atomicAdd(&o.count[id], 1u) == 0) o.ids[atomicAdd(&o.totals[0], 1u)] = id;
    atomicMin(&o.first[id], (unsigned)t);
}

/* Lists the tokens of each id in token order: a warp an id, from its first token until all are
 * found. Where the list lies is left to chance, what is in it is not. */
static __global__ void __launch_bounds__(THREADS)
    order_ids_kernel(const int32_t *__restrict__ ids, int64_t tokens, int32_t first,
                     const struct occurrences o) {
    const unsigned lane = threadIdx.x % WARP, below = (1u << lane) - 1;
    const unsigned entries = o.totals[0];
    for (unsigned entry = blockIdx.x * WARPS + threadIdx.x / WARP; entry < entries;
         entry += gridDim.x * WARPS) {
        const int32_t id = o.ids[entry];
        unsigned left = o.count[id], start = 0;
        if (lane == 0) start = o.start[id] = atomicAdd(&o.totals[1], left);
        int32_t *next = o.order + __shfl_sync(ALL_LANES, start, 0);
        for (int64_t from = o.first[id]; left > 0; from += FLIGHT * WARP) {
            int32_t here[FLIGHT];
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) {
                const int64_t t = from + i * WARP + lane;
                here[i] = t < tokens ? ids[t] - first : -1;
            }
#pragma unroll
            for (int i = 0; i < FLIGHT; i++) {
                const unsigned hits = __ballot_sync(ALL_LANES, here[i] == id);
                if (here[i] == id) {
                    next[__popc(hits & below)] = (int32_t)(from + i * WARP + lane);
                }
                next += __popc(hits);
                left -= (unsigned)__popc(hits);
            }
        }
    }
}

/* sum[i] = sum of dout[order[j], c + i] over j in [0, count), rising. */
template <typename T, int N>
static __device__ __forceinline__ void sum_tokens(const struct embedding_backward_args &a,
                                                  const int32_t *order, unsigned count, int64_t c,
                                                  float *sum) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        sum[i] = 0;
    }
    for (unsigned j = 0; j < count; j += FLIGHT) {
        float x[FLIGHT][N];
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[k][i] = 0;
            }
            if (j + k < count) {
                load_pack<T, N>((const T *)a.dout + order[j + k] * a.ld_dout + c, x[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < FLIGHT; k++) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                sum[i] += x[k][i];
            }
        }
    }
}

template <int N>
static __device__ __forceinline__ void add_to_table(const struct embedding_backward_args &a,
                                                    int32_t id, int64_t c, const float *sum) {
    float *at = a.dtable + id * a.channels + c;
    float table[N];
    load_pack<float, N>(at, table);
#pragma unroll
    for (int i = 0; i < N; i++) {
        table[i] += a.scale * sum[i];
    }
    store_pack<float, N>(at, table);
}

/* Computes dtable[id] += scale * sum of dout over the tokens of id.
 * Grid: blocks walk over items (id, chunk of 32*N columns), WARPS of them at a time, a warp each;
 * an item of more than FEW tokens is then summed by the whole block, each warp an eighth of the
 * tokens, the eighths in order.
 * T [T,C], f32 sums. C and ld_dout multiples of N.
 * Bytes: sizeof(T) an element of dout, 8 an element of the table's rows that occur. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    embedding_backward_kernel(const struct embedding_backward_args a, const struct occurrences o) {
    __shared__ float partial[WARPS][WARP * N];
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int64_t chunks = (a.channels + WARP * N - 1) / (WARP * N);
    const int64_t items = (int64_t)o.totals[0] * chunks;
    float sum[N];
    for (int64_t base = (int64_t)blockIdx.x * WARPS; base < items;
         base += (int64_t)gridDim.x * WARPS) {
        if (base + warp < items) {
            const int32_t id = o.ids[(base + warp) / chunks];
            const int64_t c = (base + warp) % chunks * (WARP * N) + lane * N;
            const unsigned count = o.count[id];
            if (count <= FEW && c < a.channels) {
                sum_tokens<T, N>(a, o.order + o.start[id], count, c, sum);
                add_to_table<N>(a, id, c, sum);
            }
        }
        for (int64_t item = base; item < base + WARPS && item < items; item++) {
            const int32_t id = o.ids[item / chunks];
            const unsigned count = o.count[id];
            if (count <= FEW) continue;
            const int64_t c = item % chunks * (WARP * N) + lane * N;
            const unsigned each = (count + WARPS - 1) / WARPS;
            const unsigned from = min(count, warp * each), to = min(count, from + each);
            if (c < a.channels) {
                sum_tokens<T, N>(a, o.order + o.start[id] + from, to - from, c, sum);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    partial[warp][lane * N + i] = sum[i];
                }
            }
            __syncthreads();
            if (warp == 0 && c < a.channels) {
                for (int w = 1; w < WARPS; w++) {
#pragma unroll
                    for (int i = 0; i < N; i++) {
                        sum[i] += partial[w][lane * N + i];
                    }
                }
                add_to_table<N>(a, id, c, sum);
            }
            __syncthreads();
        }
    }
}

/* Lays the index into the workspace and fills it. */
static enum status index_ids(struct device *device, const struct embedding_backward_args *a,
                             struct occurrences *o, struct err *e) {
    const struct cuda_state *state = cuda_state_of(device);
    const int64_t distinct = a->tokens < a->vocab ? a->tokens : a->vocab;
    const int64_t words = 2 + 3 * a->vocab + distinct + a->tokens;
    FAIL_IF(words * 4 > device->workspace_bytes, STATUS_UNSUPPORTED,
            "embedding_backward: an index of %lld tokens over %lld ids needs %lld bytes of "
            "workspace, there are %lld",
            (long long)a->tokens, (long long)a->vocab, (long long)(words * 4),
            (long long)device->workspace_bytes);
    o->totals = (unsigned *)device->workspace;
    o->count = o->totals + 2;
    o->first = o->count + a->vocab;
    o->start = o->first + a->vocab;
    o->ids = (int32_t *)(o->start + a->vocab);
    o->order = o->ids + distinct;
    TRY(cuda_check(
        device,
        cudaMemsetAsync(o->totals, 0, (size_t)(2 + a->vocab) * sizeof(unsigned), state->stream),
        "embedding_backward", e));
    TRY(cuda_check(
        device, cudaMemsetAsync(o->first, 0xff, (size_t)a->vocab * sizeof(unsigned), state->stream),
        "embedding_backward", e));
    count_ids_kernel<<<(unsigned)divide_up(a->tokens, THREADS), THREADS, 0, state->stream>>>(*a,
                                                                                             *o);
    TRY(cuda_launched(device, "embedding_backward", e));
    const int64_t blocks = divide_up(distinct, WARPS), most = state->multiprocessors * (int64_t)8;
    order_ids_kernel<<<(unsigned)(blocks < most ? blocks : most), THREADS, 0, state->stream>>>(
        a->ids, a->tokens, (int32_t)a->first, *o);
    return cuda_launched(device, "embedding_backward", e);
}

enum status cuda_embedding_backward(struct device *device, const struct embedding_backward_args *a,
                                    struct err *e) {
    struct occurrences o;
    TRY(index_ids(device, a, &o, e));
    const struct cuda_state *state = cuda_state_of(device);
    const unsigned blocks = (unsigned)state->multiprocessors * 8;
    return launch_for(device, a->dtype, "embedding_backward", e, [&](auto one) {
        using T = decltype(one);
        constexpr int N = WIDE<float>;
        if (a->channels % N == 0 && is_wide(a->dout, a->ld_dout, sizeof(T)) &&
            is_wide(a->dtable, a->channels, sizeof(float))) {
            embedding_backward_kernel<T, N><<<blocks, THREADS, 0, state->stream>>>(*a, o);
        } else {
            embedding_backward_kernel<T, 1><<<blocks, THREADS, 0, state->stream>>>(*a, o);
        }
    });
}
