/* attention_plain.cu - causal attention without the tensor core: f32, and sizes or alignments that
 * the other kernels do not take.
 *
 * Everything is computed in f32 with the exact library functions, so that f32 training agrees with
 * the CPU device; every sum has one owner and one order. Blocks of ROWS queries meet blocks of ROWS
 * keys; thread (y, x) of 16 x 16 computes scores of queries y, y+16 and keys x, x+16, and sums
 * columns x, x+16, ... of the rows y, y+16 of a result. */
#include "kernels/cuda/attention_common.cuh"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda_sizes.h"

enum { THREADS = 256, SIDE = 16, HEAD_DIM_MAX = 256 };

struct plain_parameters {
    struct attention_backward_args args; /* the forward kernel looks at args.forward only */
    struct attention_grid grid;
    const float *delta; /* [H,T] */
};

/* Sizes of one variant: heads of up to DIM, blocks of ROWS. A pitch of DIM+4 keeps rows 16-byte
 * aligned and neighbouring rows in different banks. */
template <typename T_, int DIM_, int ROWS_> struct plain {
    typedef T_ T;
    static constexpr int DIM = DIM_, ROWS = ROWS_, R = ROWS / SIDE, C = DIM / SIDE;
    static constexpr int PITCH = DIM + 4, TILE = ROWS * PITCH, SCORES = ROWS * (ROWS + 1);
};

/* A block of rows as floats; zeros from row `rows` and column `dim` on, up to a multiple of 4. */
template <typename V>
static __device__ void plain_fetch(float *tile, const typename V::T *from, int64_t ld, int rows,
                                   int dim) {
    const int wide = (dim + 3) / 4 * 4;
    for (int row = (int)threadIdx.x / 32; row < V::ROWS; row += THREADS / 32) {
        for (int d = (int)threadIdx.x % 32; d < wide; d += 32) {
            const bool valid = row < rows && d < dim;
            tile[row * V::PITCH + d] = valid ? to_float(from[row * ld + d]) : 0.0f;
        }
    }
}

/* s[i][j] = row y+16i of a times row x+16j of b. */
template <typename V>
static __device__ __forceinline__ void plain_scores(float s[V::R][V::R], const float *a,
                                                    const float *b, int dim) {
    const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < V::R * V::R; i++) {
        s[i / V::R][i % V::R] = 0;
    }
    for (int d = 0; d < dim; d += 4) {
        float4 p[V::R], q[V::R];
#pragma unroll
        for (int i = 0; i < V::R; i++) {
            p[i] = *(const float4 *)(a + (y + SIDE * i) * V::PITCH + d);
            q[i] = *(const float4 *)(b + (x + SIDE * i) * V::PITCH + d);
        }
#pragma unroll
        for (int i = 0; i < V::R * V::R; i++) {
            const float4 u = p[i / V::R], w = q[i % V::R];
            s[i / V::R][i % V::R] += u.x * w.x + u.y * w.y + u.z * w.z + u.w * w.w;
        }
    }
}

/* c[i][j] += sum over m of weight(m, y+16i) * tile[m][x+16j]; the weight of m and row r lies at
 * weights[m*m_step + r*r_step]. Columns beyond the head's hold anything; they are never written. */
template <typename V>
static __device__ __forceinline__ void plain_sum(float c[V::R][V::C], const float *weights,
                                                 int m_step, int r_step, const float *tile) {
    const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
    for (int m = 0; m < V::ROWS; m++) {
        float w[V::R];
#pragma unroll
        for (int i = 0; i < V::R; i++) {
            w[i] = weights[m * m_step + (y + SIDE * i) * r_step];
        }
#pragma unroll
        for (int j = 0; j < V::C; j++) {
            const float t = tile[m * V::PITCH + x + SIDE * j];
#pragma unroll
            for (int i = 0; i < V::R; i++) {
                c[i][j] += w[i] * t;
            }
        }
    }
}

template <typename V>
static __device__ __forceinline__ void plain_write(typename V::T *to, int64_t ld,
                                                   const float c[V::R][V::C],
                                                   const float factor[V::R], int rows, int dim) {
    const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < V::R; i++) {
#pragma unroll
        for (int j = 0; j < V::C; j++) {
            const int row = y + SIDE * i, column = x + SIDE * j;
            if (row < rows && column < dim)
                to[row * ld + column] = from_float<typename V::T>(c[i][j] * factor[i]);
        }
    }
}

/* Sum or maximum over the 16 lanes that share a row. */
static __device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int step = SIDE / 2; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, step);
    }
    return x;
}
static __device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (int step = SIDE / 2; step > 0; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    }
    return x;
}

static __device__ __forceinline__ float capped(const struct attention_args &a, float product) {
    const float score = product * a.scale;
    return a.softcap > 0 ? a.softcap * tanhf(score / a.softcap) : score;
}

/* Computes out and lse for one block of queries of one head.
 * Grid: items of attention_span_of x heads; block: 256 threads as the head of the file says.
 * Any dtype, f32 arithmetic. Shared memory: Q, K, V, probabilities. */
template <typename V>
__global__ void __launch_bounds__(THREADS)
    attention_plain_kernel(const __grid_constant__ struct plain_parameters p) {
    typedef typename V::T T;
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct attention_args &a = p.args.forward;
    struct attention_span span;
    const int head = (int)(blockIdx.x % (unsigned)a.heads), dim = (int)a.head_dim;
    if (!attention_span_of<true>(a, p.grid, (int)(blockIdx.x / (unsigned)a.heads), &span)) return;

    const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
    const int kv_head = head / (int)(a.heads / a.kv_heads), window = attention_window(a);
    const int rows = span.length - span.from;
    const int64_t token = span.first + span.from;
    float *q = (float *)shared, *k = q + V::TILE, *v = k + V::TILE, *weights = v + V::TILE;
    plain_fetch<V>(q, (const T *)a.q + token * a.ld_q + (int64_t)head * dim, a.ld_q, rows, dim);
    float o[V::R][V::C] = {}, top[V::R], sum[V::R];
#pragma unroll
    for (int i = 0; i < V::R; i++) {
        top[i] = -INFINITY;
        sum[i] = 0;
    }
    const int end = min(span.from + V::ROWS, span.length);
    for (int key = max(span.from - window + 1, 0) / V::ROWS * V::ROWS; key < end; key += V::ROWS) {
        const int64_t at = span.first + key;
        __syncthreads();
        plain_fetch<V>(k, (const T *)a.k + at * a.ld_k + (int64_t)kv_head * dim, a.ld_k,
                       span.length - key, dim);
        plain_fetch<V>(v, (const T *)a.v + at * a.ld_v + (int64_t)kv_head * dim, a.ld_v,
                       span.length - key, dim);
        __syncthreads();
        float s[V::R][V::R];
        plain_scores<V>(s, q, k, dim);
#pragma unroll
        for (int i = 0; i < V::R; i++) {
            float best = top[i], part = 0;
#pragma unroll
            for (int j = 0; j < V::R; j++) {
                const int distance = span.from + y + SIDE * i - (key + x + SIDE * j);
                const bool seen = distance >= 0 && distance < window;
                s[i][j] = seen ? capped(a, s[i][j]) : -INFINITY;
                best = fmaxf(best, s[i][j]);
            }
            best = row_max(best);
            const float base = best == -INFINITY ? 0.0f : best, rescale = expf(top[i] - base);
#pragma unroll
            for (int j = 0; j < V::R; j++) {
                const float e = expf(s[i][j] - base);
                weights[(y + SIDE * i) * (V::ROWS + 1) + x + SIDE * j] = e;
                part += e;
            }
            sum[i] = sum[i] * rescale + row_sum(part);
            top[i] = best;
#pragma unroll
            for (int j = 0; j < V::C; j++) {
                o[i][j] *= rescale;
            }
        }
        __syncthreads();
        plain_sum<V>(o, weights, 1, V::ROWS + 1, v);
    }
    float inverse[V::R];
#pragma unroll
    for (int i = 0; i < V::R; i++) {
        const int row = y + SIDE * i;
        inverse[i] = 1.0f / sum[i];
        if (x == 0 && row < rows) a.lse[head * a.tokens + token + row] = top[i] + logf(sum[i]);
    }
    plain_write<V>((T *)a.out + token * a.ld_out + (int64_t)head * dim, a.ld_out, o, inverse, rows,
                   dim);
}

/* P and dS of queries `query`.. and keys `key`.. in the document, from the four tiles, into shared
 * memory [query][key]; 0 where not visible or beyond the document. */
template <typename V>
static __device__ __forceinline__ void plain_gradient(const struct plain_parameters &p,
                                                      const struct attention_span &span, int head,
                                                      int query, int key, float *tiles) {
    const struct attention_args &a = p.args.forward;
    const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
    const int window = attention_window(a), dim = (int)a.head_dim;
    float *k = tiles, *v = k + V::TILE, *q = v + V::TILE, *dout = q + V::TILE;
    float *probability = dout + V::TILE, *dscore = probability + V::SCORES;
    float s[V::R][V::R], g[V::R][V::R];
    plain_scores<V>(s, q, k, dim);
    plain_scores<V>(g, dout, v, dim);
#pragma unroll
    for (int i = 0; i < V::R; i++) {
        const int row = query + y + SIDE * i;
        const int64_t at = head * a.tokens + span.first + min(row, span.length - 1);
        const float lse = a.lse[at], delta = p.delta[at];
#pragma unroll
        for (int j = 0; j < V::R; j++) {
            const int distance = row - (key + x + SIDE * j);
            const bool seen = distance >= 0 && distance < window && row < span.length;
            const float score = capped(a, s[i][j]);
            const float t = a.softcap > 0 ? score / a.softcap : 0.0f;
            const float e = seen ? expf(score - lse) : 0.0f;
            const int to = (y + SIDE * i) * (V::ROWS + 1) + x + SIDE * j;
            probability[to] = e;
            dscore[to] = seen ? e * (g[i][j] - delta) * (1.0f - t * t) : 0.0f;
        }
    }
}

/* Computes dk and dv for one block of keys, summed over the heads of the group and the queries that
 * see them. Grid: items x kv heads; shared memory: K, V, Q, dO, P, dS. */
template <typename V>
__global__ void __launch_bounds__(THREADS)
    attention_plain_keys_kernel(const __grid_constant__ struct plain_parameters p) {
    typedef typename V::T T;
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct attention_args &a = p.args.forward;
    struct attention_span span;
    const int kv_head = (int)(blockIdx.x % (unsigned)a.kv_heads), dim = (int)a.head_dim;
    if (!attention_span_of<false>(a, p.grid, (int)(blockIdx.x / (unsigned)a.kv_heads), &span))
        return;

    const int group = (int)(a.heads / a.kv_heads), rows = span.length - span.from;
    const int64_t first = span.first + span.from, column = (int64_t)kv_head * dim;
    const int end =
        (int)min((int64_t)span.length, (int64_t)span.from + V::ROWS - 1 + attention_window(a));
    float *k = (float *)shared, *v = k + V::TILE, *q = v + V::TILE, *dout = q + V::TILE;
    float *probability = dout + V::TILE, *dscore = probability + V::SCORES;
    plain_fetch<V>(k, (const T *)a.k + first * a.ld_k + column, a.ld_k, rows, dim);
    plain_fetch<V>(v, (const T *)a.v + first * a.ld_v + column, a.ld_v, rows, dim);
    float dk[V::R][V::C] = {}, dv[V::R][V::C] = {}, one[V::R], scale[V::R];
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int query = span.from; query < end; query += V::ROWS) {
            const int64_t at = span.first + query;
            __syncthreads();
            plain_fetch<V>(q, (const T *)a.q + at * a.ld_q + (int64_t)head * dim, a.ld_q,
                           span.length - query, dim);
            plain_fetch<V>(dout, (const T *)p.args.dout + at * p.args.ld_dout + (int64_t)head * dim,
                           p.args.ld_dout, span.length - query, dim);
            __syncthreads();
            plain_gradient<V>(p, span, head, query, span.from, k);
            __syncthreads();
            plain_sum<V>(dv, probability, V::ROWS + 1, 1, dout);
            plain_sum<V>(dk, dscore, V::ROWS + 1, 1, q);
        }
    }
#pragma unroll
    for (int i = 0; i < V::R; i++) {
        one[i] = 1;
        scale[i] = a.scale;
    }
    plain_write<V>((T *)p.args.dk + first * p.args.ld_dk + column, p.args.ld_dk, dk, scale, rows,
                   dim);
    plain_write<V>((T *)p.args.dv + first * p.args.ld_dv + column, p.args.ld_dv, dv, one, rows,
                   dim);
}

/* Computes dq for one block of queries of one head. Grid: items x heads; shared memory as above. */
template <typename V>
__global__ void __launch_bounds__(THREADS)
    attention_plain_queries_kernel(const __grid_constant__ struct plain_parameters p) {
    typedef typename V::T T;
    extern __shared__ __align__(1024) unsigned char shared[];
    const struct attention_args &a = p.args.forward;
    struct attention_span span;
    const int head = (int)(blockIdx.x % (unsigned)a.heads), dim = (int)a.head_dim;
    if (!attention_span_of<true>(a, p.grid, (int)(blockIdx.x / (unsigned)a.heads), &span)) return;

    const int kv_head = head / (int)(a.heads / a.kv_heads), rows = span.length - span.from;
    const int64_t first = span.first + span.from, column = (int64_t)head * dim;
    const int end = min(span.from + V::ROWS, span.length);
    float *k = (float *)shared, *v = k + V::TILE, *q = v + V::TILE, *dout = q + V::TILE;
    float *dscore = dout + V::TILE + V::SCORES;
    plain_fetch<V>(q, (const T *)a.q + first * a.ld_q + column, a.ld_q, rows, dim);
    plain_fetch<V>(dout, (const T *)p.args.dout + first * p.args.ld_dout + column, p.args.ld_dout,
                   rows, dim);
    float dq[V::R][V::C] = {}, scale[V::R];
    const int begin = max(span.from - attention_window(a) + 1, 0) / V::ROWS * V::ROWS;
    for (int key = begin; key < end; key += V::ROWS) {
        const int64_t at = span.first + key;
        __syncthreads();
        plain_fetch<V>(k, (const T *)a.k + at * a.ld_k + (int64_t)kv_head * dim, a.ld_k,
                       span.length - key, dim);
        plain_fetch<V>(v, (const T *)a.v + at * a.ld_v + (int64_t)kv_head * dim, a.ld_v,
                       span.length - key, dim);
        __syncthreads();
        plain_gradient<V>(p, span, head, span.from, key, k);
        __syncthreads();
        plain_sum<V>(dq, dscore, 1, V::ROWS + 1, k);
    }
#pragma unroll
    for (int i = 0; i < V::R; i++) {
        scale[i] = a.scale;
    }
    plain_write<V>((T *)p.args.dq + first * p.args.ld_dq + column, p.args.ld_dq, dq, scale, rows,
                   dim);
}

static enum status check_head_dim(const struct attention_args *a, struct err *e) {
    FAIL_IF(a->head_dim > HEAD_DIM_MAX, STATUS_UNSUPPORTED,
            "attention on CUDA: head_dim is %lld, %d at most", (long long)a->head_dim,
            HEAD_DIM_MAX);
    return STATUS_OK;
}

template <typename V>
static enum status plain_forward(struct device *device, struct plain_parameters p, struct err *e) {
    const struct attention_args *a = &p.args.forward;
    p.grid = attention_grid_of(a, V::ROWS);
    const struct attention_launch shape = {attention_items(a, p.grid) * a->heads, THREADS,
                                           (3 * V::TILE + V::SCORES) * 4, "attention"};
    return attention_launch(device, shape, e, attention_plain_kernel<V>, p);
}

template <typename V>
static enum status plain_backward(struct device *device, struct plain_parameters p, struct err *e) {
    const struct attention_args *a = &p.args.forward;
    p.grid = attention_grid_of(a, V::ROWS);
    const int64_t items = attention_items(a, p.grid);
    const int bytes = (4 * V::TILE + 2 * V::SCORES) * 4;
    const struct attention_launch keys = {items * a->kv_heads, THREADS, bytes,
                                          "attention_backward (dk, dv)"};
    const struct attention_launch queries = {items * a->heads, THREADS, bytes,
                                             "attention_backward (dq)"};
    TRY(attention_launch(device, keys, e, attention_plain_keys_kernel<V>, p));
    return attention_launch(device, queries, e, attention_plain_queries_kernel<V>, p);
}

template <typename T>
static enum status plain_of(struct device *device, const struct plain_parameters &p, bool backward,
                            struct err *e) {
    typedef plain<T, 64, 32> narrow;
    typedef plain<T, HEAD_DIM_MAX, 16> wide;
    if (p.args.forward.head_dim <= 64)
        return backward ? plain_backward<narrow>(device, p, e)
                        : plain_forward<narrow>(device, p, e);
    return backward ? plain_backward<wide>(device, p, e) : plain_forward<wide>(device, p, e);
}

static enum status plain_any(struct device *device, const struct plain_parameters &p, bool backward,
                             struct err *e) {
    if (p.args.forward.dtype == DTYPE_BF16) return plain_of<__nv_bfloat16>(device, p, backward, e);
    if (p.args.forward.dtype == DTYPE_F16) return plain_of<__half>(device, p, backward, e);
    return plain_of<float>(device, p, backward, e);
}

enum status cuda_attention_plain(struct device *device, const struct attention_args *a,
                                 struct err *e) {
    TRY(check_head_dim(a, e));
    struct plain_parameters p = {};
    p.args.forward = *a;
    return plain_any(device, p, false, e);
}

enum status cuda_attention_plain_backward(struct device *device,
                                          const struct attention_backward_args *b, struct err *e) {
    TRY(check_head_dim(&b->forward, e));
    const struct cuda_attention_parts parts = cuda_attention_parts(&b->forward);
    float *delta = (float *)((unsigned char *)b->forward.scratch + parts.delta);
    TRY(cuda_attention_delta(device, b, delta, e));
    const struct plain_parameters p = {*b, {0, 0, 0}, delta};
    return plain_any(device, p, true, e);
}
