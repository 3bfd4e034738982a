/* glu.cu - gated linear units, forward and backward: silu and the tanh form of gelu.
 *
 * One pass over memory. The backward computes the activation again instead of reading a saved one.
 * Every thread reads its elements before it writes them, so outputs may lie over inputs of the same
 * shape. */
#include "kernels/cuda/common.cuh"

/* gelu(x) = x/2 * (1 + tanh(A * (x + B x^3))), Hendrycks & Gimpel 2016; A = sqrt(2/pi). */
#define GELU_A 0.7978845608028654f
#define GELU_B 0.044715f

/* tanh for elements of T: by e^2x where the rounding of T hides what cancels near 0. */
template <typename T> static __device__ __forceinline__ float tanh_for(float x) {
    if constexpr (std::is_same_v<T, float>) {
        return tanhf(x);
    } else {
        return 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * x));
    }
}

template <typename T> static __device__ __forceinline__ float logistic(float x) {
    return divide_for<T>(1.0f, 1.0f + exp_for<T>(-x));
}

/* The activation at x. */
template <typename T, bool GELU> static __device__ __forceinline__ float activate(float x) {
    if constexpr (GELU) {
        return 0.5f * x * (1.0f + tanh_for<T>(GELU_A * (x + GELU_B * x * x * x)));
    } else {
        return x * logistic<T>(x);
    }
}

/* The activation at x, and its slope there. */
template <typename T, bool GELU>
static __device__ __forceinline__ float activate_slope(float x, float *slope) {
    if constexpr (GELU) {
        const float t = tanh_for<T>(GELU_A * (x + GELU_B * x * x * x));
        const float inner = GELU_A * (1.0f + 3.0f * GELU_B * x * x);
        *slope = 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
        return 0.5f * x * (1.0f + t);
    } else {
        const float s = logistic<T>(x), value = x * s;
        *slope = s + value * (1.0f - s);
        return value;
    }
}

/* Computes out[t,f] = act(gate_up[t,f]) * gate_up[t,F+f].
 * Grid: tile_rows; a thread one pack, a loop over rows.
 * T [tokens,2F] -> [tokens,F], f32 in between. F and both ld multiples of N.
 * Bytes: 3 * sizeof(T) an element of out. */
template <typename T, int N, bool GELU>
__global__ void __launch_bounds__(256) glu_kernel(const struct glu_args a) {
    const int64_t f = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (f >= a.width) return;
    const int64_t step = (int64_t)gridDim.y * blockDim.y;
    for (int64_t t = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; t < a.tokens; t += step) {
        const T *gate_at = (const T *)a.gate_up + t * a.ld_gate_up + f;
        float gate[N], up[N];
        load_pack<T, N>(gate_at, gate);
        load_pack<T, N>(gate_at + a.width, up);
#pragma unroll
        for (int i = 0; i < N; i++) {
            gate[i] = activate<T, GELU>(gate[i]) * up[i];
        }
        store_pack<T, N>((T *)a.out + t * a.ld_out + f, gate);
    }
}

/* Computes dgate = dout * up * act'(gate), dup = dout * act(gate); with AGAIN also gated =
 * act(gate) * up, with glu_kernel's own roundings.
 * Grid: tile_rows; a thread one pack of each, a loop over rows.
 * T, f32 in between. F and every ld multiples of N.
 * Bytes: (AGAIN ? 6 : 5) * sizeof(T) an element of dout. */
template <typename T, int N, bool GELU, bool AGAIN>
__global__ void __launch_bounds__(256) glu_backward_kernel(const struct glu_backward_args a) {
    const int64_t f = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (f >= a.width) return;
    const int64_t step = (int64_t)gridDim.y * blockDim.y;
    for (int64_t t = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; t < a.tokens; t += step) {
        const T *gate_at = (const T *)a.gate_up + t * a.ld_gate_up + f;
        T *dgate_at = (T *)a.dgate_up + t * a.ld_dgate_up + f;
        float gate[N], up[N], dout[N];
        load_pack<T, N>(gate_at, gate);
        load_pack<T, N>(gate_at + a.width, up);
        load_pack<T, N>((const T *)a.dout + t * a.ld_dout + f, dout);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float slope;
            const float value = activate_slope<T, GELU>(gate[i], &slope);
            const float again = value * up[i];
            gate[i] = dout[i] * up[i] * slope;
            up[i] = dout[i] * value;
            dout[i] = again;
        }
        store_pack<T, N>(dgate_at, gate);
        store_pack<T, N>(dgate_at + a.width, up);
        if constexpr (AGAIN) store_pack<T, N>((T *)a.gated + t * a.ld_gated + f, dout);
    }
}

template <typename T, int N>
static void launch_glu(struct device *device, const struct glu_args *a) {
    const struct tiling tiling = tile_rows(device, a->tokens, divide_up(a->width, N));
    const cudaStream_t stream = cuda_state_of(device)->stream;
    if (a->activation == ACTIVATION_SILU) {
        glu_kernel<T, N, false><<<tiling.grid, tiling.block, 0, stream>>>(*a);
    } else {
        glu_kernel<T, N, true><<<tiling.grid, tiling.block, 0, stream>>>(*a);
    }
}

enum status cuda_glu(struct device *device, const struct glu_args *a, struct err *e) {
    return launch_for(device, a->dtype, "glu", e, [&](auto one) {
        using T = decltype(one);
        if (a->width % WIDE<T> == 0 && is_wide(a->gate_up, a->ld_gate_up, sizeof(T)) &&
            is_wide(a->out, a->ld_out, sizeof(T))) {
            launch_glu<T, WIDE<T>>(device, a);
        } else {
            launch_glu<T, 1>(device, a);
        }
    });
}

template <typename T, int N, bool AGAIN>
static void launch_glu_backward(struct device *device, const struct glu_backward_args *a) {
    const struct tiling tiling = tile_rows(device, a->tokens, divide_up(a->width, N));
    const cudaStream_t stream = cuda_state_of(device)->stream;
    if (a->activation == ACTIVATION_SILU) {
        glu_backward_kernel<T, N, false, AGAIN><<<tiling.grid, tiling.block, 0, stream>>>(*a);
    } else {
        glu_backward_kernel<T, N, true, AGAIN><<<tiling.grid, tiling.block, 0, stream>>>(*a);
    }
}

template <typename T, int N>
static void launch_glu_backward(struct device *device, const struct glu_backward_args *a) {
    if (a->gated) {
        launch_glu_backward<T, N, true>(device, a);
    } else {
        launch_glu_backward<T, N, false>(device, a);
    }
}

enum status cuda_glu_backward(struct device *device, const struct glu_backward_args *a,
                              struct err *e) {
    return launch_for(device, a->dtype, "glu_backward", e, [&](auto one) {
        using T = decltype(one);
        if (a->width % WIDE<T> == 0 && is_wide(a->gate_up, a->ld_gate_up, sizeof(T)) &&
            is_wide(a->dout, a->ld_dout, sizeof(T)) &&
            is_wide(a->dgate_up, a->ld_dgate_up, sizeof(T)) &&
            (!a->gated || is_wide(a->gated, a->ld_gated, sizeof(T)))) {
            launch_glu_backward<T, WIDE<T>>(device, a);
        } else {
            launch_glu_backward<T, 1>(device, a);
        }
    });
}
