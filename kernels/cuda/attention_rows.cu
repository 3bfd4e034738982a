/* attention_rows.cu - what the backward of attention does row by row, before and after the blocks:
 * delta, the rounding of dq, and the sums of dk and dv where their heads were divided.
 *
 * All only move memory. delta[h,t] = sum over d of dout * out is the sum over keys of P * dP that
 * the softmax's gradient needs, without the keys. The same pass clears the row's dq sums. */
#include "kernels/cuda/attention_rows.cuh"

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"

enum { THREADS = 256 };

/* Eight 16-bit elements times eight. */
template <typename T> static __device__ __forceinline__ float dot_8(uint4 x, uint4 y) {
    const T *a = (const T *)&x, *b = (const T *)&y;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum += to_float(a[i]) * to_float(b[i]);
    }
    return sum;
}

/* Computes delta[h,t] = sum_d dout[t,h,d] * out[t,h,d], and dq[t,h,:] = 0 where dq is given.
 * Grid: rows of (t, h), h fastest; block: 256 threads, LANES of them own a row, 8 elements each.
 * out, dout 16-bit, 16-byte aligned, head_dim a multiple of 8 up to 8*LANES; sums f32.
 * Bytes: 4*T*H*D read, 4*T*H*D written with dq. */
template <typename T, int LANES>
__global__ void __launch_bounds__(THREADS)
    attention_delta_kernel(const __grid_constant__ struct attention_backward_args b, float *delta,
                           float *dq) {
    const struct attention_args &a = b.forward;
    const int64_t index = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    const int64_t token = index / a.heads, head = index % a.heads;
    const int column = (int)(threadIdx.x % LANES) * 8;
    float sum = 0;
    if (token < a.tokens && column < a.head_dim) {
        const int64_t at = head * a.head_dim + column;
        const uint4 out = *(const uint4 *)((const T *)a.out + token * a.ld_out + at);
        const uint4 dout = *(const uint4 *)((const T *)b.dout + token * b.ld_dout + at);
        sum = dot_8<T>(out, dout);
        if (dq) {
            float4 *to = (float4 *)(dq + token * a.heads * a.head_dim + at);
            to[0] = make_float4(0, 0, 0, 0);
            to[1] = make_float4(0, 0, 0, 0);
        }
    }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (token < a.tokens && column == 0) delta[head * a.tokens + token] = sum;
}

/* The same delta for any sizes and dtype: a warp a row, one element a lane and step. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    attention_delta_any_kernel(const __grid_constant__ struct attention_backward_args b,
                               float *delta) {
    const struct attention_args &a = b.forward;
    const int64_t index = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    const int64_t token = index / a.heads, head = index % a.heads;
    if (token >= a.tokens) return;
    const T *out = (const T *)a.out + token * a.ld_out + head * a.head_dim;
    const T *dout = (const T *)b.dout + token * b.ld_dout + head * a.head_dim;
    float sum = 0;
    for (int d = (int)threadIdx.x % 32; d < a.head_dim; d += 32) {
        sum += to_float(out[d]) * to_float(dout[d]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (threadIdx.x % 32 == 0) delta[head * a.tokens + token] = sum;
}

/* Eight sums times `factor`, rounded to 16 bits. */
template <typename T>
static __device__ __forceinline__ void write_8(T *to, const float x[8], float factor) {
    uint4 packed;
    T *y = (T *)&packed;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        y[i] = from_float<T>(x[i] * factor);
    }
    *(uint4 *)to = packed;
}

/* dq = scale * sum, rounded to 16 bits; 8 elements a thread. Bytes: 6*T*H*D. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    attention_round_kernel(const __grid_constant__ struct attention_backward_args b,
                           const float *sums) {
    const struct attention_args &a = b.forward;
    const int64_t wide = a.heads * a.head_dim, chunks = wide / 8;
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t token = index / chunks, column = index % chunks * 8;
    if (token >= a.tokens) return;
    const float4 *from = (const float4 *)(sums + token * wide + column);
    const float4 low = from[0], high = from[1];
    const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    write_8<T>((T *)b.dq + token * b.ld_dq + column, x, a.scale);
}

/* dk and dv = the sum of their shares, rounded to 16 bits; 8 elements of dk or dv a thread.
 * Grid: T x (dk, dv) x K*D/8, the latter fastest. Bytes: (8*splits+4)*T*K*D. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    attention_join_kernel(const __grid_constant__ struct attention_backward_args b,
                          const float *shares, int splits) {
    const struct attention_args &a = b.forward;
    const int64_t wide = a.kv_heads * a.head_dim, chunks = wide / 8;
    const int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t token = index / chunks / 2, column = index % chunks * 8;
    if (token >= a.tokens) return;
    float x[8] = {};
#pragma unroll 4
    for (int split = 0; split < splits; split++) {
        const float4 *from = (const float4 *)(shares + split * a.tokens * 2 * wide + index * 8);
        const float4 low = from[0], high = from[1];
        const float y[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] += y[i];
        }
    }
    if (index / chunks % 2 == 0)
        write_8<T>((T *)b.dk + token * b.ld_dk + column, x, 1);
    else
        write_8<T>((T *)b.dv + token * b.ld_dv + column, x, 1);
}

static struct attention_launch shape_of(int64_t threads, const char *operation) {
    const struct attention_launch shape = {(threads + THREADS - 1) / THREADS, THREADS, 0,
                                           operation};
    return shape;
}

template <typename T>
static enum status delta_of(struct device *device, const struct attention_backward_args *b,
                            float *delta, float *dq, struct err *e) {
    const int64_t rows = b->forward.tokens * b->forward.heads, dim = b->forward.head_dim;
    const int lanes = dim <= 64 ? 8 : dim <= 128 ? 16 : 32;
    const struct attention_launch shape = shape_of(rows * lanes, "attention_backward (delta)");
    if (lanes == 8)
        return attention_launch(device, shape, e, attention_delta_kernel<T, 8>, *b, delta, dq);
    if (lanes == 16)
        return attention_launch(device, shape, e, attention_delta_kernel<T, 16>, *b, delta, dq);
    return attention_launch(device, shape, e, attention_delta_kernel<T, 32>, *b, delta, dq);
}

enum status cuda_attention_delta_aligned(struct device *device,
                                         const struct attention_backward_args *b, float *delta,
                                         float *dq, struct err *e) {
    if (b->forward.dtype == DTYPE_BF16) return delta_of<__nv_bfloat16>(device, b, delta, dq, e);
    return delta_of<__half>(device, b, delta, dq, e);
}

enum status cuda_attention_delta(struct device *device, const struct attention_backward_args *b,
                                 float *delta, struct err *e) {
    const struct attention_launch shape =
        shape_of(b->forward.tokens * b->forward.heads * 32, "attention_backward (delta)");
    if (b->forward.dtype == DTYPE_BF16)
        return attention_launch(device, shape, e, attention_delta_any_kernel<__nv_bfloat16>, *b,
                                delta);
    if (b->forward.dtype == DTYPE_F16)
        return attention_launch(device, shape, e, attention_delta_any_kernel<__half>, *b, delta);
    return attention_launch(device, shape, e, attention_delta_any_kernel<float>, *b, delta);
}

enum status cuda_attention_round(struct device *device, const struct attention_backward_args *b,
                                 const float *sums, struct err *e) {
    const struct attention_args *a = &b->forward;
    const struct attention_launch shape =
        shape_of(a->tokens * a->heads * a->head_dim / 8, "attention_backward (dq)");
    if (a->dtype == DTYPE_BF16)
        return attention_launch(device, shape, e, attention_round_kernel<__nv_bfloat16>, *b, sums);
    return attention_launch(device, shape, e, attention_round_kernel<__half>, *b, sums);
}

enum status cuda_attention_join(struct device *device, const struct attention_backward_args *b,
                                const float *shares, int splits, struct err *e) {
    const struct attention_args *a = &b->forward;
    const struct attention_launch shape =
        shape_of(a->tokens * a->kv_heads * a->head_dim / 4, "attention_backward (dk, dv)");
    if (a->dtype == DTYPE_BF16)
        return attention_launch(device, shape, e, attention_join_kernel<__nv_bfloat16>, *b, shares,
                                splits);
    return attention_launch(device, shape, e, attention_join_kernel<__half>, *b, shares, splits);
}
