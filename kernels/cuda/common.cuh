/* common.cuh - what the memory-bound kernels share: elements of any dtype as floats in registers,
 * 16 bytes at a time, reductions over warps and blocks, and the choice of a kernel by dtype.
 *
 * A "pack" is N neighbouring elements of a row, the unit that one thread loads and stores: N is
 * WIDE<T> (16 bytes) where pointers, pitches and widths allow it and 1 elsewhere, so that the
 * scalar path is the same kernel. Reductions add in one fixed order: same launch, same bits.
 * Private to kernels/cuda. */
#ifndef PLIMSOLL_KERNELS_CUDA_COMMON_CUH
#define PLIMSOLL_KERNELS_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <type_traits>

#include "kernels/cuda/cuda.h"

/* Elements of T in 16 bytes. */
template <typename T> constexpr int WIDE = 16 / (int)sizeof(T);

/* Elements in a pack that serves two types: 16 bytes of the larger one. Lanes side by side then
 * touch memory side by side for both, which matters more than the width of an access. */
template <typename A, typename B>
const int WIDE_OF_BOTH = 16 / (int)(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

/* ---- one element ---- */

template <typename T> __device__ __forceinline__ float to_float(T value) {
    if constexpr (std::is_same_v<T, float>) {
        return value;
    } else if constexpr (std::is_same_v<T, __half>) {
        return __half2float(value);
    } else {
        return __bfloat162float(value);
    }
}

template <typename T> __device__ __forceinline__ T from_float(float value) {
    if constexpr (std::is_same_v<T, float>) {
        return value;
    } else if constexpr (std::is_same_v<T, __half>) {
        return __float2half_rn(value);
    } else {
        return __float2bfloat16_rn(value);
    }
}

/* ---- packs ---- */

/* The 32 bits of `word` as 1 float or 2. */
template <typename T> __device__ __forceinline__ void unpack_word(uint32_t word, float *x) {
    if constexpr (std::is_same_v<T, float>) {
        x[0] = __uint_as_float(word);
    } else if constexpr (std::is_same_v<T, __half>) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2 *>(&word));
        x[0] = pair.x;
        x[1] = pair.y;
    } else {
        x[0] = __uint_as_float(word << 16);
        x[1] = __uint_as_float(word & 0xffff0000u);
    }
}

template <typename T> __device__ __forceinline__ uint32_t pack_word(const float *x) {
    if constexpr (std::is_same_v<T, float>) {
        return __float_as_uint(x[0]);
    } else if constexpr (std::is_same_v<T, __half>) {
        const __half2 pair = __floats2half2_rn(x[0], x[1]);
        return *reinterpret_cast<const uint32_t *>(&pair);
    } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x[0], x[1]);
        return *reinterpret_cast<const uint32_t *>(&pair);
    }
}

/* 16 bytes kept as they are: half the registers of their floats. */
template <typename T> __device__ __forceinline__ void unpack(const uint4 &raw, float *x) {
    constexpr int EACH = 4 / (int)sizeof(T);
    unpack_word<T>(raw.x, x);
    unpack_word<T>(raw.y, x + EACH);
    unpack_word<T>(raw.z, x + 2 * EACH);
    unpack_word<T>(raw.w, x + 3 * EACH);
}

template <typename T> __device__ __forceinline__ uint4 pack(const float *x) {
    constexpr int EACH = 4 / (int)sizeof(T);
    return make_uint4(pack_word<T>(x), pack_word<T>(x + EACH), pack_word<T>(x + 2 * EACH),
                      pack_word<T>(x + 3 * EACH));
}

/* 16 bytes of device memory that are read or written once: past the first-level cache. The
 * intrinsics, because the compiler cuts plain accesses to a uint4 into words. */
static __device__ __forceinline__ uint4 load_16(const void *from) {
    return __ldcg(static_cast<const uint4 *>(from));
}

static __device__ __forceinline__ void store_16(void *to, const uint4 &raw) {
    __stcg(static_cast<uint4 *>(to), raw);
}

/* N elements from device memory; an access is as wide as the pack, 16 bytes at most. */
template <typename T, int N> __device__ __forceinline__ void load_pack(const T *from, float *x) {
    constexpr int BYTES = N * (int)sizeof(T);
    if constexpr (N == 1) {
        x[0] = to_float(*from);
    } else if constexpr (BYTES == 8) {
        const uint2 raw = __ldcg(reinterpret_cast<const uint2 *>(from));
        unpack_word<T>(raw.x, x);
        unpack_word<T>(raw.y, x + N / 2);
    } else {
        static_assert(BYTES == 16, "a pack is 1 element, 8 bytes or 16");
        unpack<T>(load_16(from), x);
    }
}

template <typename T, int N> __device__ __forceinline__ void store_pack(T *to, const float *x) {
    constexpr int BYTES = N * (int)sizeof(T);
    if constexpr (N == 1) {
        *to = from_float<T>(x[0]);
    } else if constexpr (BYTES == 8) {
        __stcg(reinterpret_cast<uint2 *>(to), make_uint2(pack_word<T>(x), pack_word<T>(x + N / 2)));
    } else {
        static_assert(BYTES == 16, "a pack is 1 element, 8 bytes or 16");
        store_16(to, pack<T>(x));
    }
}

/* N floats that every row reads and nothing writes meanwhile (weights): through the first-level
 * cache. */
template <int N> __device__ __forceinline__ void load_weights(const float *from, float *x) {
    if constexpr (N == 1) {
        x[0] = __ldg(from);
    } else {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            unpack<float>(__ldg(reinterpret_cast<const uint4 *>(from) + i), x + 4 * i);
        }
    }
}

/* N floats of shared memory, aligned to 16 bytes when N > 1. */
template <int N> __device__ __forceinline__ void load_shared(const float *from, float *x) {
    if constexpr (N == 1) {
        x[0] = *from;
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(x[i]), "=f"(x[i + 1]), "=f"(x[i + 2]), "=f"(x[i + 3])
                         : "r"((unsigned)__cvta_generic_to_shared(from + i)));
        }
    }
}

/* ---- functions of one element ---- */

/* e^x: exact to the last bit or two for f32; for 16-bit elements the hardware's, whose error of at
 * most |x| * 1e-7 is far below their own rounding. */
template <typename T> __device__ __forceinline__ float exp_for(float x) {
    if constexpr (std::is_same_v<T, float>) {
        return expf(x);
    } else {
        return __expf(x);
    }
}

template <typename T> __device__ __forceinline__ float divide_for(float a, float b) {
    if constexpr (std::is_same_v<T, float>) {
        return a / b;
    } else {
        return __fdividef(a, b);
    }
}

/* ---- reductions ---- */

/* The sum over groups of `lanes` neighbouring lanes, a power of two up to 32, in all of them. */
template <typename F> __device__ __forceinline__ F warp_sum(F value, int lanes = WARP) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    return value;
}

/* The sum over a block of whole warps, in every thread. One barrier: who calls it again soon gives
 * another `shared` [32], in turn. */
template <typename F> __device__ __forceinline__ F block_sum(F value, F *shared) {
    const int lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
    value = warp_sum(value);
    if (lane == 0) shared[threadIdx.x / WARP] = value;
    __syncthreads();
    return warp_sum(lane < warps ? shared[lane] : (F)0);
}

/* ---- launches ---- */

/* 16-byte accesses are right for rows that begin at `data` and are `ld` elements apart. */
static inline bool is_wide(const void *data, int64_t ld, int64_t element_bytes) {
    return (uintptr_t)data % 16 == 0 && ld * element_bytes % 16 == 0;
}

static inline int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* How [rows, packs] is laid over the card: x steps over packs, one each; y over rows, in a loop. */
struct tiling {
    dim3 grid, block;
};

/* Blocks of up to 256 threads that waste few of them on any width, and enough blocks for every
 * multiprocessor several times over. */
static inline struct tiling tile_rows(struct device *device, int64_t rows, int64_t packs) {
    const int64_t across = divide_up(packs, 256);
    const int64_t x = across == 1 ? packs : divide_up(divide_up(packs, across), 8) * 8;
    const int64_t y = 256 / x;
    const int64_t blocks = (int64_t)cuda_state_of(device)->multiprocessors * 32;
    const int64_t wanted = divide_up(rows, y), most = divide_up(blocks, across);
    const int64_t down = wanted < most ? wanted : most;
    struct tiling tiling;
    tiling.block = dim3((unsigned)x, (unsigned)y);
    tiling.grid = dim3((unsigned)divide_up(packs, x), (unsigned)(down < 65535 ? down : 65535));
    return tiling;
}

/* Calls `launch` with a value of the type that `dtype` names, then checks the launch. */
template <typename F>
static enum status launch_for(struct device *device, enum dtype dtype, const char *operation,
                              struct err *e, F launch) {
    switch (dtype) {
    case DTYPE_F32: launch(float{}); break;
    case DTYPE_BF16: launch(__nv_bfloat16{}); break;
    case DTYPE_F16: launch(__half{}); break;
    default:
        return err_set(e, STATUS_INTERNAL, "%s on %s: elements of type %s are not computed with",
                       operation, device->name, dtype_name(dtype));
    }
    return cuda_launched(device, operation, e);
}

/* columns.cu: out[c] = (accumulate ? out[c] : 0) + sum over p of parts[p, c], p rising, in two
 * levels of a fixed shape. parts [count, cols] f32, in the workspace. */
enum status cuda_sum_parts(struct device *device, const float *parts, int64_t count, int64_t cols,
                           float *out, bool accumulate, struct err *e);

#endif
