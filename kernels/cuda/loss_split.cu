/* loss_split.cu - softmax cross-entropy where each card has only some columns of the logits.
 *
 * Two kernels with an exchange of four numbers a row in between, made by the caller. A block has
 * one row and reads it once in each: columns of a divided vocabulary are few, so nothing is kept in
 * shared memory as in loss.cu. What travels is f64, because near p = 1 the difference must keep its
 * digits. */
#include "kernels/cuda/common.cuh"

enum { THREADS = 512, WARPS = THREADS / WARP };

/* Below every logit, and finite, so that nothing is subtracted from itself at infinity. */
#define LOWEST (-3.402823466e38f)

/* The largest logit of a part of a row, and the first column that has it. */
struct largest {
    float top;
    int column;
};

static __device__ __forceinline__ struct largest larger(struct largest a, struct largest b) {
    return b.top > a.top || (b.top == a.top && b.column < a.column) ? b : a;
}

static __device__ __forceinline__ struct largest warp_largest(struct largest mine) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        struct largest other;
        other.top = __shfl_xor_sync(ALL_LANES, mine.top, distance);
        other.column = __shfl_xor_sync(ALL_LANES, mine.column, distance);
        mine = larger(mine, other);
    }
    return mine;
}

static __device__ __forceinline__ float cap(float x, float softcap) {
    return softcap > 0 ? softcap * tanhf(x / softcap) : x;
}

/* Computes the four numbers of each row (device.h, softmax_stats_args).
 * Grid: a block a row; a thread every THREADS-th pack. T [rows,V] contiguous, f32 powers, f64 sums.
 * V multiple of N. Bytes: sizeof(T) a logit. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS) softmax_stats_kernel(const struct softmax_stats_args a) {
    __shared__ struct largest tops[WARPS];
    __shared__ double sums[WARP];
    const int64_t r = blockIdx.x;
    const T *row = (const T *)a.logits + r * a.vocab;
    const int lane = (int)threadIdx.x % WARP;
    struct largest mine = {LOWEST, INT32_MAX};
    float sum = 0;
    for (int64_t c = (int64_t)threadIdx.x * N; c < a.vocab; c += THREADS * N) {
        float x[N];
        load_pack<T, N>(row + c, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = cap(x[i], a.softcap);
            if (x[i] > mine.top) {
                sum *= expf(mine.top - x[i]);
                mine.top = x[i];
                mine.column = (int)c + i;
            }
            sum += expf(x[i] - mine.top);
        }
    }
    const struct largest of_warp = warp_largest(mine);
    if (lane == 0) tops[threadIdx.x / WARP] = of_warp;
    __syncthreads();
    const struct largest none = {LOWEST, INT32_MAX};
    const struct largest best = warp_largest(lane < WARPS ? tops[lane] : none);
    const double total = block_sum((double)(sum * expf(mine.top - best.top)), sums);
    if (threadIdx.x != 0) return;
    const int64_t label = a.labels[r] - a.first;
    double *stats = a.stats + r * SOFTMAX_STATS;
    stats[0] = (double)best.top;
    stats[1] = total;
    stats[2] = label >= 0 && label < a.vocab ? (double)cap(to_float(row[label]), a.softcap)
                                             : (double)-INFINITY;
    stats[3] = best.column == INT32_MAX ? -1.0 : (double)(a.first + best.column);
}

/* What all members say of a row, as one. */
struct row_stats {
    double top, sum, target, best;
};

static __device__ struct row_stats merge(const struct split_cross_entropy_args &a, int64_t row) {
    struct row_stats all = {-INFINITY, 0, -INFINITY, -1};
    for (int64_t i = 0; i < a.members; i++) {
        const double *s = a.stats + (i * a.rows + row) * SOFTMAX_STATS;
        if (s[0] > all.top) {
            all.top = s[0];
            all.best = s[3];
        }
        if (s[2] > all.target) all.target = s[2];
    }
    for (int64_t i = 0; i < a.members; i++) {
        const double *s = a.stats + (i * a.rows + row) * SOFTMAX_STATS;
        all.sum += s[1] * exp(s[0] - all.top);
    }
    return all;
}

/* Computes losses and correct from the members' numbers, and the gradient over these columns.
 * Grid: a block a row; a thread every THREADS-th pack. T [rows,V] contiguous. V multiple of N.
 * Bytes: 2 * sizeof(T) a logit where a gradient is wanted, else none. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    split_cross_entropy_kernel(const struct split_cross_entropy_args a) {
    __shared__ struct row_stats all;
    const int64_t r = blockIdx.x;
    if (threadIdx.x == 0) {
        all = merge(a, r);
        a.losses[r] = (float)(log(all.sum) + all.top - all.target);
        a.correct[r] = all.best == (double)a.labels[r];
    }
    __syncthreads();
    if (!a.write_gradient) return;
    T *row = (T *)a.logits + r * a.vocab;
    const float top = (float)all.top, scale = a.grad_scale * (a.loss_scale ? *a.loss_scale : 1.0f);
    const float factor = (float)((double)scale / all.sum);
    const int64_t label = a.labels[r] - a.first;
    for (int64_t c = (int64_t)threadIdx.x * N; c < a.vocab; c += THREADS * N) {
        float x[N];
        load_pack<T, N>(row + c, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float capped = cap(x[i], a.softcap);
            const float t = a.softcap > 0 ? capped / a.softcap : 0.0f, slope = 1.0f - t * t;
            x[i] = expf(capped - top) * factor * slope;
            if (c + i == label) {
                const double rest = (exp(all.target - all.top) - all.sum) / all.sum;
                x[i] = (float)rest * scale * slope;
            }
        }
        store_pack<T, N>(row + c, x);
    }
}

static enum status check_launch(int64_t rows, int64_t vocab, struct err *e) {
    FAIL_IF(vocab > INT32_MAX / 2 || rows > INT32_MAX, STATUS_UNSUPPORTED,
            "cross_entropy: %lld rows of %lld logits are more than one launch counts",
            (long long)rows, (long long)vocab);
    return STATUS_OK;
}

enum status cuda_softmax_stats(struct device *device, const struct softmax_stats_args *a,
                               struct err *e) {
    TRY(check_launch(a->rows, a->vocab, e));
    const struct cuda_state *state = cuda_state_of(device);
    return launch_for(device, a->dtype, "softmax_stats", e, [&](auto one) {
        using T = decltype(one);
        if (is_wide(a->logits, a->vocab, sizeof(T))) {
            softmax_stats_kernel<T, WIDE<T>><<<(unsigned)a->rows, THREADS, 0, state->stream>>>(*a);
        } else {
            softmax_stats_kernel<T, 1><<<(unsigned)a->rows, THREADS, 0, state->stream>>>(*a);
        }
    });
}

enum status cuda_split_cross_entropy(struct device *device,
                                     const struct split_cross_entropy_args *a, struct err *e) {
    TRY(check_launch(a->rows, a->vocab, e));
    const struct cuda_state *state = cuda_state_of(device);
    const unsigned rows = (unsigned)a->rows;
    return launch_for(device, a->dtype, "split_cross_entropy", e, [&](auto one) {
        using T = decltype(one);
        if (is_wide(a->logits, a->vocab, sizeof(T))) {
            split_cross_entropy_kernel<T, WIDE<T>><<<rows, THREADS, 0, state->stream>>>(*a);
        } else {
            split_cross_entropy_kernel<T, 1><<<rows, THREADS, 0, state->stream>>>(*a);
        }
    });
}
