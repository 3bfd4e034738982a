/* quant.cu - matrices out of 4-bit and 8-bit codes, once before each product that reads them.
 *
 * Nothing but memory traffic: half a byte or one byte is read for each element that is written. The
 * 16 values of NF4 lie in shared memory once for each lane of a warp, so that lanes that look up
 * different values do not wait for each other. */
#include "kernels/cuda/common.cuh"
#include "kernels/quant_map.h"

/* Elements that a thread decodes at a time, all of one block and one row; packs that it has in
 * flight. */
enum { PACK = 8, IN_FLIGHT = 4, THREADS = 256 };
static_assert(QUANT_GRANULE % PACK == 0 && QUANT_BLOCK % PACK == 0, "a pack has one scale");

static __device__ const float NF4[16] = QUANT_NF4_VALUES;
static __device__ const float DYNAMIC_MAP[256] = QUANT_DYNAMIC_MAP;

/* 8 elements, as 16 bytes or twice 16; `wide`: `to` is aligned for that. */
template <typename T>
static __device__ __forceinline__ void store_decoded(T *to, const float *x, bool wide) {
    if (!wide) {
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            to[i] = from_float<T>(x[i]);
        }
    } else if constexpr (sizeof(T) == 4) {
        store_pack<T, 4>(to, x);
        store_pack<T, 4>(to + 4, x + 4);
    } else {
        store_pack<T, 8>(to, x);
    }
}

/* The scale of the block that element `at` of the tensor is in. Rounded twice, as on the
 * CPU: nothing may be fused. */
static __device__ __forceinline__ float nf4_scale(const struct dequantize_args &a, int64_t at) {
    const int64_t block = at / QUANT_BLOCK;
    if (a.quant == QUANT_NF4) return __ldg((const float *)a.scales + block);
    const float value = __ldg(DYNAMIC_MAP + __ldg((const uint8_t *)a.scales + block));
    return __fadd_rn(__fmul_rn(value, __ldg(a.nested + 1 + block / QUANT_NESTED)), __ldg(a.nested));
}

/* Computes out[r,c] = NF4[code] * scale of the block, rounded once.
 * Grid: 1-d, each thread IN_FLIGHT packs of 8 elements at a time, neighbours side by side.
 * codes [rows*cols/2] bytes, the first of a pair in the high bits -> T [rows,cols] with ld.
 * cols a multiple of 8. Bytes: 0.5 + 1/16 (1/64 doubly quantised) + sizeof(T) an element. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    dequantize_nf4_kernel(const struct dequantize_args a, bool wide) {
    __shared__ float values[16][WARP];
    for (int i = (int)threadIdx.x; i < 16 * WARP; i += THREADS) {
        values[i / WARP][i % WARP] = NF4[i / WARP];
    }
    __syncthreads();
    const int lane = (int)threadIdx.x % WARP;
    const uint32_t across = (uint32_t)(a.cols / PACK), packs = across * (uint32_t)a.rows;
    const uint32_t step = gridDim.x * THREADS;
    for (uint32_t at = blockIdx.x * THREADS + threadIdx.x; at < packs; at += IN_FLIGHT * step) {
        uint32_t codes[IN_FLIGHT];
        float scale[IN_FLIGHT];
#pragma unroll
        for (uint32_t k = 0; k < IN_FLIGHT; k++) {
            const uint32_t pack = at + k * step;
            if (pack >= packs) break;
            codes[k] = __ldcg((const uint32_t *)a.codes + pack);
            scale[k] = nf4_scale(a, (int64_t)pack * PACK);
        }
#pragma unroll
        for (uint32_t k = 0; k < IN_FLIGHT; k++) {
            const uint32_t pack = at + k * step, row = pack / across;
            if (pack >= packs) break;
            float x[PACK];
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                const int shift = i / 2 * 8 + (i % 2 == 0 ? 4 : 0);
                x[i] = values[codes[k] >> shift & 15][lane] * scale[k];
            }
            T *const to = (T *)a.out.data + row * a.out.ld + (pack % across) * PACK;
            store_decoded<T>(to, x, wide);
        }
    }
}

/* E4M3 as a float: see the CPU's. */
static __device__ __forceinline__ float from_fp8(uint32_t code) {
    const float value = __uint_as_float((code & 127) << 20) * 0x1p120f;
    const float known = (code & 127) == 127 ? __int_as_float(0x7fffffff) : value;
    return code & 128 ? -known : known;
}

/* Computes out[r,c] = E4M3(code) * scale of the row, rounded once.
 * Grid: as above. codes [rows*cols] bytes -> T [rows,cols] with ld. Bytes: 1 + sizeof(T). */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    dequantize_fp8_kernel(const struct dequantize_args a, bool wide) {
    const uint32_t across = (uint32_t)(a.cols / PACK), packs = across * (uint32_t)a.rows;
    const uint32_t step = gridDim.x * THREADS;
    for (uint32_t at = blockIdx.x * THREADS + threadIdx.x; at < packs; at += IN_FLIGHT * step) {
        uint2 codes[IN_FLIGHT];
#pragma unroll
        for (uint32_t k = 0; k < IN_FLIGHT; k++) {
            const uint32_t pack = at + k * step;
            if (pack < packs) codes[k] = __ldcg((const uint2 *)a.codes + pack);
        }
#pragma unroll
        for (uint32_t k = 0; k < IN_FLIGHT; k++) {
            const uint32_t pack = at + k * step, row = pack / across;
            if (pack >= packs) break;
            const float scale = __ldg((const float *)a.scales + row);
            float x[PACK];
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                const uint32_t word = i < 4 ? codes[k].x : codes[k].y;
                x[i] = from_fp8(word >> i % 4 * 8 & 255) * scale;
            }
            T *const to = (T *)a.out.data + row * a.out.ld + (pack % across) * PACK;
            store_decoded<T>(to, x, wide);
        }
    }
}

enum status cuda_dequantize(struct device *device, const struct dequantize_args *a, struct err *e) {
    const int64_t packs = a->rows * a->cols / PACK;
    FAIL_IF(packs > INT32_MAX / 2, STATUS_UNSUPPORTED,
            "dequantize on %s: a matrix of %lld x %lld is too large for one call", device->name,
            (long long)a->rows, (long long)a->cols);
    return launch_for(device, a->out.dtype, "dequantize", e, [&](auto one) {
        using T = decltype(one);
        struct cuda_state *const state = cuda_state_of(device);
        const int64_t most = (int64_t)state->multiprocessors * 64;
        const int64_t wanted = divide_up(packs, THREADS * IN_FLIGHT);
        const unsigned grid = (unsigned)(wanted < most ? wanted : most);
        const bool wide = is_wide(a->out.data, a->out.ld, sizeof(T));
        if (a->quant == QUANT_FP8) {
            dequantize_fp8_kernel<T><<<grid, THREADS, 0, state->stream>>>(*a, wide);
        } else {
            dequantize_nf4_kernel<T><<<grid, THREADS, 0, state->stream>>>(*a, wide);
        }
    });
}
