/* loss.cu - softmax cross-entropy with its gradient written over the logits, and sums of losses.
 *
 * A block has one row. It is read once for its maximum and sum (online, Milakov & Gimelshein 2018),
 * and what shared memory holds of it is kept there for the gradient; only the rest of a very wide
 * row is read again, from the second-level cache where it still lies. Logits cross device memory
 * once each way. */
#include "kernels/cuda/common.cuh"

enum {
    THREADS_MAX = 1024,
    SUM_THREADS = 1024,
    STATIC_BYTES = 1024, /* of shared memory that the kernel uses besides the row */
};

/* Packs that a thread has in flight: what 64 registers hold. */
template <bool CAP, bool EDGES> constexpr int FLIGHT = (CAP && EDGES) ? 2 : 4;

/* The largest logit of a part of a row, and the first pack that has it. */
struct largest {
    float top;
    int pack;
};

static __device__ __forceinline__ struct largest larger(struct largest a, struct largest b) {
    return b.top > a.top || (b.top == a.top && b.pack < a.pack) ? b : a;
}

static __device__ __forceinline__ struct largest warp_largest(struct largest mine) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        struct largest other;
        other.top = __shfl_xor_sync(ALL_LANES, mine.top, distance);
        other.pack = __shfl_xor_sync(ALL_LANES, mine.pack, distance);
        mine = larger(mine, other);
    }
    return mine;
}

/* Below every logit, and finite, so that nothing is subtracted from itself at infinity. */
template <typename T> static __device__ __forceinline__ float lowest() {
    return std::is_same_v<T, float> ? -3.402823466e38f : -1e30f;
}

/* Powers are taken relative to `shift`: the largest logit for f32; for 16-bit logits, whose powers
 * are 2^(x log2 e - shift) by one fused multiply-add, that times log2 e. */
#define LOG2_E 1.4426950408889634f

template <typename T> static __device__ __forceinline__ float shift_of(float top) {
    return std::is_same_v<T, float> ? top : top * LOG2_E;
}

/* 2^x, within 2 units in the last place; what is below 2^-126 becomes 0. */
static __device__ __forceinline__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

template <typename T> static __device__ __forceinline__ float power(float x, float shift) {
    if constexpr (std::is_same_v<T, float>) {
        return expf(x - shift);
    } else {
        return power_of_two(fmaf(x, LOG2_E, -shift));
    }
}

/* What the sum must be multiplied with when its shift changes. */
template <typename T>
static __device__ __forceinline__ float power_of_shifts(float from, float to) {
    return std::is_same_v<T, float> ? expf(from - to) : power_of_two(from - to);
}

template <bool CAP> static __device__ __forceinline__ float cap(float x, float softcap) {
    return CAP ? softcap * tanhf(x / softcap) : x;
}

/* A row as packs of 16 bytes. Where V is no multiple of a pack, rows begin and end in packs they
 * share with their neighbours (EDGES); `from` and `to` are the row's places in its packs. */
template <typename T> struct row_packs {
    T *packs;
    int count, from, to;
};

/* Whether pack `at` may hold elements that are not of this row. */
template <typename T, bool EDGES>
static __device__ __forceinline__ bool is_shared(const struct row_packs<T> &row, int at) {
    return EDGES && (at == 0 || at == row.count - 1);
}

/* A pack as it lies in memory. What is not of this row is not touched, and 0. */
template <typename T, bool EDGES>
static __device__ __forceinline__ uint4 fetch(const struct row_packs<T> &row, int at) {
    constexpr int N = WIDE<T>;
    const T *from = row.packs + (int64_t)at * N;
    if (!is_shared<T, EDGES>(row, at)) return load_16(from);
    float x[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int place = at * N + i;
        x[i] = place >= row.from && place < row.to ? to_float(from[i]) : 0.0f;
    }
    return pack<T>(x);
}

/* Its logits, capped; those that are not of this row become the lowest. */
template <typename T, bool CAP, bool EDGES>
static __device__ __forceinline__ void open_pack(const struct row_packs<T> &row, const uint4 &raw,
                                                 int at, float softcap, float *x) {
    constexpr int N = WIDE<T>;
    unpack<T>(raw, x);
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = cap<CAP>(x[i], softcap);
    }
    if (!is_shared<T, EDGES>(row, at)) return;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int place = at * N + i;
        if (place < row.from || place >= row.to) x[i] = lowest<T>();
    }
}

template <typename T, bool EDGES>
static __device__ __forceinline__ void put_back(const struct row_packs<T> &row, int at,
                                                const float *x) {
    constexpr int N = WIDE<T>;
    T *to = row.packs + (int64_t)at * N;
    if (!is_shared<T, EDGES>(row, at)) {
        store_pack<T, N>(to, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int place = at * N + i;
        if (place >= row.from && place < row.to) to[i] = from_float<T>(x[i]);
    }
}

/* The first pass: the thread's share of the row, kept in `cache` as far as that goes. Returns its
 * largest logit; *sum is of powers relative to that. */
template <typename T, bool CAP, bool EDGES>
static __device__ __forceinline__ struct largest read_row(const struct row_packs<T> &row,
                                                          uint4 *cache, int kept, float softcap,
                                                          float *sum) {
    constexpr int N = WIDE<T>, AHEAD = FLIGHT<CAP, EDGES>;
    const int step = (int)blockDim.x;
    struct largest mine = {lowest<T>(), INT32_MAX};
    float shift = shift_of<T>(mine.top), total = 0;
    for (int base = (int)threadIdx.x; base < row.count; base += AHEAD * step) {
        uint4 raw[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int at = base + j * step;
            if (at < row.count) raw[j] = fetch<T, EDGES>(row, at);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int at = base + j * step;
            if (at >= row.count) break;
            if (at < kept) cache[at] = raw[j];
            float x[N];
            open_pack<T, CAP, EDGES>(row, raw[j], at, softcap, x);
            float top = x[0];
#pragma unroll
            for (int i = 1; i < N; i++) {
                top = fmaxf(top, x[i]);
            }
            if (top > mine.top) {
                const float before = shift;
                shift = shift_of<T>(top);
                total *= power_of_shifts<T>(before, shift);
                mine.top = top;
                mine.pack = at;
            }
            float part = 0;
#pragma unroll
            for (int i = 0; i < N; i++) {
                part += power<T>(x[i], shift);
            }
            total += part;
        }
    }
    *sum = total;
    return mine;
}

/* What the second pass knows of the row; `label` is its place in the packs. */
struct row_facts {
    float shift, factor, softcap;
    int label;
    float label_gradient;
};

/* The second pass: the gradient over the logits. */
template <typename T, bool CAP, bool EDGES>
static __device__ __forceinline__ void write_row(const struct row_packs<T> &row, const uint4 *cache,
                                                 int kept, const struct row_facts &f) {
    constexpr int N = WIDE<T>, AHEAD = FLIGHT<CAP, EDGES>;
    const int step = (int)blockDim.x;
    for (int base = (int)threadIdx.x; base < row.count; base += AHEAD * step) {
        uint4 raw[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int at = base + j * step;
            if (at < row.count) raw[j] = at < kept ? cache[at] : fetch<T, EDGES>(row, at);
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int at = base + j * step;
            if (at >= row.count) break;
            float x[N];
            open_pack<T, CAP, EDGES>(row, raw[j], at, f.softcap, x);
#pragma unroll
            for (int i = 0; i < N; i++) {
                const float t = CAP ? x[i] / f.softcap : 0.0f;
                x[i] = power<T>(x[i], f.shift) * f.factor * (CAP ? 1.0f - t * t : 1.0f);
            }
            if (at == f.label / N) {
#pragma unroll
                for (int i = 0; i < N; i++) {
                    if (at * N + i == f.label) x[i] = f.label_gradient;
                }
            }
            put_back<T, EDGES>(row, at, x);
        }
    }
}

/* Whether the label is the first of the largest logits. `best` is the first pack that has them. */
template <typename T, bool CAP>
static __device__ __forceinline__ bool is_first_largest(const struct row_packs<T> &row, int label,
                                                        float softcap, struct largest best) {
    constexpr int N = WIDE<T>;
    if (label / N != best.pack) return false;
    for (int i = max(best.pack * N, row.from); i < label; i++) {
        if (cap<CAP>(to_float(row.packs[i]), softcap) >= best.top) return false;
    }
    return cap<CAP>(to_float(row.packs[label]), softcap) >= best.top;
}

/* Computes loss = log sum exp(x) - x[label], whether the label is the first largest, and the
 * gradient (softmax - onehot) * grad_scale * loss_scale (times the slope of the cap) over x.
 * Grid: a block a row; a thread every blockDim-th pack. Shared: the first `kept` packs of the row.
 * T [rows,V] contiguous, f32 powers, f64 total and logarithm. EDGES where rows are not whole packs.
 * Bytes: 2 * sizeof(T) a logit, and what is beyond `kept` once more from the second-level cache. */
template <typename T, bool CAP, bool EDGES>
__global__ void __launch_bounds__(THREADS_MAX)
    cross_entropy_kernel(const struct cross_entropy_args a, int kept) {
    extern __shared__ uint4 cache[];
    __shared__ struct largest tops[WARP];
    __shared__ double sums[WARP];
    constexpr int N = WIDE<T>;
    const int64_t r = blockIdx.x;
    T *first = (T *)a.logits + r * a.vocab;
    const int from = EDGES ? (int)((uintptr_t)first % 16 / sizeof(T)) : 0;
    const int to = from + (int)a.vocab, label = from + a.labels[r];
    const struct row_packs<T> row = { first - from, (to + N - 1) / N, from, to };
    const int lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
    const float target = cap<CAP>(to_float(row.packs[label]), a.softcap);
    float sum;
    const struct largest mine = read_row<T, CAP, EDGES>(row, cache, kept, a.softcap, &sum);
    const struct largest of_warp = warp_largest(mine);
    if (lane == 0) tops[threadIdx.x / WARP] = of_warp;
    __syncthreads();
    const struct largest none = {lowest<T>(), INT32_MAX};
    const struct largest best = warp_largest(lane < warps ? tops[lane] : none);
    const float shift = shift_of<T>(best.top);
    /* Before the next barrier, behind which the logits are overwritten. */
    const bool correct = threadIdx.x == 0 && is_first_largest<T, CAP>(row, label, a.softcap, best);
    const double total =
        block_sum((double)(sum * power_of_shifts<T>(shift_of<T>(mine.top), shift)), sums);
    if (a.write_gradient) {
        const float scale = a.grad_scale * (a.loss_scale ? *a.loss_scale : 1.0f);
        const float t = CAP ? target / a.softcap : 0.0f;
        /* Not p - 1 after rounding p: near p = 1 the difference must keep its digits. */
        const double rest = ((double)power<T>(target, shift) - total) / total;
        const struct row_facts facts = {shift, (float)((double)scale / total), a.softcap, label,
                                        (float)rest * scale * (1.0f - t * t)};
        write_row<T, CAP, EDGES>(row, cache, kept, facts);
    }
    if (threadIdx.x != 0) return;
    /* Divided by the constant that multiplied, whatever its own rounding. */
    const double base = std::is_same_v<T, float> ? (double)shift : (double)shift / (double)LOG2_E;
    a.losses[r] = (float)(log(total) + base - (double)target);
    a.correct[r] = correct;
}

/* Threads of a block: with few of them several rows share a multiprocessor and overlap. */
static int choose_threads(int64_t packs, int64_t cached_bytes) {
    if (packs <= 1024) return packs <= 512 ? 128 : 256;
    return cached_bytes > 112 << 10 ? 1024 : 512;
}

template <typename T, bool CAP, bool EDGES>
static cudaError_t launch_loss(const struct cuda_state *state, const struct cross_entropy_args *a) {
    const int64_t packs = divide_up(a->vocab, WIDE<T>) + EDGES;
    const int64_t room = (state->shared_bytes - STATIC_BYTES) / 16;
    const int64_t kept = !a->write_gradient ? 0 : packs < room ? packs : room;
    const int64_t bytes = kept * 16;
    if (bytes > 48 << 10) {
        const cudaError_t error =
            cudaFuncSetAttribute(cross_entropy_kernel<T, CAP, EDGES>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (error != cudaSuccess) return error;
    }
    cross_entropy_kernel<T, CAP, EDGES>
        <<<(unsigned)a->rows, choose_threads(packs, bytes), (size_t)bytes, state->stream>>>(
            *a, (int)kept);
    return cudaSuccess;
}

enum status cuda_cross_entropy(struct device *device, const struct cross_entropy_args *a,
                               struct err *e) {
    FAIL_IF(a->vocab > INT32_MAX / 2 || a->rows > INT32_MAX, STATUS_UNSUPPORTED,
            "cross_entropy: %lld rows of %lld logits are more than one launch counts",
            (long long)a->rows, (long long)a->vocab);
    const struct cuda_state *state = cuda_state_of(device);
    cudaError_t error = cudaSuccess;
    TRY(launch_for(device, a->dtype, "cross_entropy", e, [&](auto one) {
        using T = decltype(one);
        if (is_wide(a->logits, a->vocab, sizeof(T))) {
            error = a->softcap > 0 ? launch_loss<T, true, false>(state, a)
                                   : launch_loss<T, false, false>(state, a);
        } else {
            error = a->softcap > 0 ? launch_loss<T, true, true>(state, a)
                                   : launch_loss<T, false, true>(state, a);
        }
    }));
    return cuda_check(device, error, "cross_entropy", e);
}

/* Computes totals[0] += sum of losses, totals[1] += sum of correct, f64, in a fixed order.
 * Grid: one block; a thread every SUM_THREADS-th row. Bytes: 8 a row. */
static __global__ void __launch_bounds__(SUM_THREADS)
    loss_sums_kernel(const struct loss_sums_args a) {
    __shared__ double shared[2][WARP];
    double loss = 0, correct = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < a.rows; i += SUM_THREADS) {
        loss += (double)a.losses[i];
        correct += (double)a.correct[i];
    }
    loss = block_sum(loss, shared[0]);
    correct = block_sum(correct, shared[1]);
    if (threadIdx.x == 0) {
        a.totals[0] += loss;
        a.totals[1] += correct;
    }
}

enum status cuda_loss_sums(struct device *device, const struct loss_sums_args *a, struct err *e) {
    loss_sums_kernel<<<1, SUM_THREADS, 0, cuda_state_of(device)->stream>>>(*a);
    return cuda_launched(device, "loss_sums", e);
}
