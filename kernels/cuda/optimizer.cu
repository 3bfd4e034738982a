/* optimizer.cu - AdamW over a flat range, the norm of a gradient and its clipping.
 *
 * Scalars are prepared in double on the host, as torch does. Parameters without a master copy, and
 * second moments, of 16 bits are rounded stochastically: an update is mostly smaller than half a
 * unit of bf16, and rounding to nearest would lose it every time (a second moment would never
 * decay). The random bits belong to (seed, step, index): no launch shape changes them. */
#include <math.h>

#include "kernels/cuda/common.cuh"
#include "kernels/philox.h"

enum { THREADS = 256, SUM_PARTS = 2048, SUM_BLOCKS = 8 };

struct adamw_factors {
    float decay, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction2, eps;
    uint64_t key; /* of the random bits */
};

/* The kernel's operands; `first` is the index of their first element in the whole range. */
struct adamw_range {
    int64_t count, first;
    void *param, *m, *v, *copy;
    const float *grad;
    const float *grad_scale;
};

/* x as bf16, up with the probability of what is cut off: `bits` is uniform in 0..2^16-1. Infinity
 * and NaN stay what they are. */
static __device__ __forceinline__ float round_stochastic(float x, uint32_t bits) {
    const uint32_t word = __float_as_uint(x);
    if ((word & 0x7f800000u) == 0x7f800000u) return x;
    return __uint_as_float((word + bits) & 0xffff0000u);
}

/* bits[i] belongs to element first + i; first is a multiple of N. */
template <int N>
static __device__ __forceinline__ void random_bits(uint64_t key, int64_t first, uint32_t *bits) {
    if constexpr (N == 1) {
        const struct philox block =
            philox_quad(key, first >> 32, (uint32_t)(first & 0xffffffff) / 4);
        const int which = (int)(first % 4);
        const uint32_t low = which == 0 ? block.word[0] : block.word[1];
        const uint32_t high = which == 2 ? block.word[2] : block.word[3];
        bits[0] = which < 2 ? low : high;
    } else {
#pragma unroll
        for (int q = 0; q < N / 4; q++) {
            const int64_t at = first + 4 * q;
            const struct philox block = philox_quad(key, at >> 32, (uint32_t)(at & 0xffffffff) / 4);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                bits[4 * q + i] = block.word[i];
            }
        }
    }
}

/* Computes g = scale*grad; m += (1-beta1)(g-m); v = beta2 v + (1-beta2) g^2;
 * p = decay*p - step_size * m / (sqrt(v)/root_correction2 + eps); copy = p.
 * Grid: a thread N elements. P, S: param and state, f32 or bf16; C the copy, void for none; f32 in
 * between. count a multiple of N.
 * Bytes an element: 2 sizeof(P) + 4 + 4 sizeof(S) + sizeof(C): 28 to 30 in f32, 16 in bf16. */
template <typename P, typename S, typename C, int N>
__global__ void __launch_bounds__(THREADS)
    adamw_kernel(const struct adamw_range a, const struct adamw_factors f) {
    const int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    const float scale = *a.grad_scale;
    if (at >= a.count) return;
    constexpr bool RANDOM = !std::is_same_v<P, float> || !std::is_same_v<S, float>;
    float p[N], g[N], m[N], v[N];
    load_pack<P, N>((const P *)a.param + at, p);
    load_pack<float, N>(a.grad + at, g);
    load_pack<S, N>((const S *)a.m + at, m);
    load_pack<S, N>((const S *)a.v + at, v);
    /* Only now, so that this wait is the same as that for the loads. */
    if (!isfinite(scale)) return;
    uint32_t bits[N];
    if constexpr (RANDOM) random_bits<N>(f.key, a.first + at, bits);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float grad = g[i] * scale;
        const float mean = m[i] + f.one_minus_beta1 * (grad - m[i]);
        const float square = v[i] * f.beta2 + f.one_minus_beta2 * grad * grad;
        const float root = sqrtf(square) / f.root_correction2 + f.eps;
        m[i] = mean;
        v[i] = square;
        p[i] = p[i] * f.decay - f.step_size * mean / root;
        if constexpr (!std::is_same_v<P, float>) p[i] = round_stochastic(p[i], bits[i] & 0xffffu);
        if constexpr (!std::is_same_v<S, float>) v[i] = round_stochastic(v[i], bits[i] >> 16);
    }
    store_pack<P, N>((P *)a.param + at, p);
    store_pack<S, N>((S *)a.m + at, m);
    store_pack<S, N>((S *)a.v + at, v);
    if constexpr (!std::is_void_v<C>) store_pack<C, N>((C *)a.copy + at, p);
}

/* `a` from element `first` on. */
template <typename P, typename S, typename C>
static struct adamw_range range_from(const struct adamw_args *a, int64_t first, int64_t count) {
    struct adamw_range range = {
        count, a->first + first, (P *)a->param + first, (S *)a->m + first, (S *)a->v + first,
        NULL,  a->grad + first,  a->grad_scale};
    if constexpr (!std::is_void_v<C>) range.copy = (C *)a->copy + first;
    return range;
}

/* Whole packs, then the elements that are left. */
template <typename P, typename S, typename C>
static void launch_adamw(cudaStream_t stream, const struct adamw_args *a,
                         const struct adamw_factors *f) {
    constexpr int N = WIDE<float>;
    const bool wide = is_wide(a->param, 0, 1) && is_wide(a->grad, 0, 1) && is_wide(a->m, 0, 1) &&
                      is_wide(a->v, 0, 1) && is_wide(a->copy, 0, 1);
    const int64_t packed = wide ? a->count / N * N : 0, rest = a->count - packed;
    if (packed > 0) {
        adamw_kernel<P, S, C, N><<<(unsigned)divide_up(packed / N, THREADS), THREADS, 0, stream>>>(
            range_from<P, S, C>(a, 0, packed), *f);
    }
    if (rest > 0) {
        adamw_kernel<P, S, C, 1><<<(unsigned)divide_up(rest, THREADS), THREADS, 0, stream>>>(
            range_from<P, S, C>(a, packed, rest), *f);
    }
}

template <typename P, typename S>
static enum status launch_with_copy(struct device *device, const struct adamw_args *a,
                                    const struct adamw_factors *f, struct err *e) {
    const cudaStream_t stream = cuda_state_of(device)->stream;
    if (a->copy) {
        return launch_for(device, a->copy_dtype, "adamw", e,
                          [&](auto one) { launch_adamw<P, S, decltype(one)>(stream, a, f); });
    }
    launch_adamw<P, S, void>(stream, a, f);
    return cuda_launched(device, "adamw", e);
}

static struct adamw_factors make_factors(const struct adamw_args *a) {
    struct adamw_factors f;
    f.decay = (float)(1 - a->lr * a->weight_decay);
    f.one_minus_beta1 = (float)(1 - a->beta1);
    f.beta2 = (float)a->beta2;
    f.one_minus_beta2 = (float)(1 - a->beta2);
    f.step_size = (float)(a->lr / (1 - pow(a->beta1, (double)a->step)));
    f.root_correction2 = (float)sqrt(1 - pow(a->beta2, (double)a->step));
    f.eps = (float)a->eps;
    f.key = philox_stream_key(a->seed, (uint64_t)a->step);
    return f;
}

enum status cuda_adamw(struct device *device, const struct adamw_args *a, struct err *e) {
    const enum dtype p = a->param_dtype, s = a->state_dtype;
    FAIL_IF((p != DTYPE_F32 && p != DTYPE_BF16) || (s != DTYPE_F32 && s != DTYPE_BF16),
            STATUS_UNSUPPORTED,
            "adamw on %s: parameters of type %s with states of type %s; each must be float32 or "
            "bfloat16",
            device->name, dtype_name(p), dtype_name(s));
    const struct adamw_factors f = make_factors(a);
    if (p == DTYPE_F32 && s == DTYPE_F32) return launch_with_copy<float, float>(device, a, &f, e);
    if (p == DTYPE_F32) return launch_with_copy<float, __nv_bfloat16>(device, a, &f, e);
    if (s == DTYPE_F32) return launch_with_copy<__nv_bfloat16, float>(device, a, &f, e);
    return launch_with_copy<__nv_bfloat16, __nv_bfloat16>(device, a, &f, e);
}

/* Computes parts[block] = sum of squares of every gridDim-th pack, f64 from the first square on:
 * what overflows f32 when squared is still a number.
 * Grid: fixed by the card; a thread a pack at a time. Bytes: 4 an element. */
template <int N>
__global__ void __launch_bounds__(THREADS)
    sum_squares_kernel(const float *x, int64_t count, double *parts) {
    __shared__ double shared[WARP];
    const int64_t step = (int64_t)gridDim.x * THREADS * N, whole = count - count % N;
    double sum = 0;
#pragma unroll 4
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N; i < whole; i += step) {
        float value[N];
        load_pack<float, N>(x + i, value);
#pragma unroll
        for (int j = 0; j < N; j++) {
            sum += (double)value[j] * (double)value[j];
        }
    }
    const int64_t last = whole + threadIdx.x;
    if (blockIdx.x == 0 && last < count) sum += (double)x[last] * (double)x[last];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

/* Computes *out += sum of parts, in a fixed order. Grid: one block. */
static __global__ void __launch_bounds__(THREADS)
    add_parts_kernel(const double *parts, int count, double *out) {
    __shared__ double shared[WARP];
    double sum = 0;
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        sum += parts[i];
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *out += sum;
}

enum status cuda_sum_squares(struct device *device, const struct sum_squares_args *a,
                             struct err *e) {
    constexpr int N = WIDE<float>;
    const struct cuda_state *state = cuda_state_of(device);
    double *parts = (double *)device->workspace;
    int64_t blocks = divide_up(a->count, THREADS * N);
    if (blocks > state->multiprocessors * SUM_BLOCKS) blocks = state->multiprocessors * SUM_BLOCKS;
    if (blocks > SUM_PARTS) blocks = SUM_PARTS;
    if (is_wide(a->x, 0, 4)) {
        sum_squares_kernel<N>
            <<<(unsigned)blocks, THREADS, 0, state->stream>>>(a->x, a->count, parts);
    } else {
        sum_squares_kernel<1>
            <<<(unsigned)blocks, THREADS, 0, state->stream>>>(a->x, a->count, parts);
    }
    TRY(cuda_launched(device, "sum_squares", e));
    add_parts_kernel<<<1, THREADS, 0, state->stream>>>(parts, (int)blocks, a->out);
    return cuda_launched(device, "sum_squares", e);
}

/* Computes the norm and the clip coefficient, both divided by the loss scale. One thread. */
static __global__ void clip_kernel(const struct clip_args a) {
    const float loss_scale = a.loss_scale ? *a.loss_scale : 1.0f;
    const float norm = (float)(sqrt(*a.sum_squares) / (double)loss_scale);
    const float wanted = a.max_norm / (norm + 1e-6f);
    const float kept = a.max_norm > 0 ? (wanted > 1 ? 1.0f : wanted) : 1.0f;
    *a.norm = norm;
    *a.coefficient = isfinite(norm) ? kept / loss_scale : __int_as_float(0x7fc00000);
}

enum status cuda_clip(struct device *device, const struct clip_args *a, struct err *e) {
    clip_kernel<<<1, 1, 0, cuda_state_of(device)->stream>>>(*a);
    return cuda_launched(device, "clip", e);
}
