/* attention_mma.cuh - the tensor core and what feeds it (compute capability 8.0 and up):
 * cp.async, ldmatrix, mma.sync.m16n8k16, and swizzled tiles in shared memory.
 *
 * A tile is rows of DIM 16-bit elements in chunks of 16 bytes; chunk c of row r lies at c ^
 * f(r), so that the eight rows of an 8x8 matrix, read at one column, fall into eight different
 * groups of banks. Lane l of a warp holds, of a 16x8 accumulator, rows l/4 and l/4+8, columns
 * 2*(l%4) and the next: c[0], c[1] of the first row, c[2], c[3] of the second. Two neighbouring
 * accumulators, packed to 16 bits, are the 16x16 left operand of the next product: what was
 * computed need not leave the registers. (Layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16",
 * "ldmatrix".) */
#ifndef PLIMSOLL_KERNELS_ATTENTION_MMA_CUH
#define PLIMSOLL_KERNELS_ATTENTION_MMA_CUH

#include <stdint.h>

#include "kernels/cuda/attention_common.cuh"

/* Everything here that a compiler for another machine would not know is in these first
 * functions. */

static __device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* 16 bytes to shared memory, in the background; zeros where not `valid`. */
static __device__ __forceinline__ void copy_16(uint32_t to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copy_4(uint32_t to, const void *from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

/* Waits until all copies of this thread have arrived. */
static __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

static __device__ __forceinline__ void store_shared(uint32_t at, uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}

static __device__ __forceinline__ uint4 load_shared_16(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

static __device__ __forceinline__ float2 load_shared_floats(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}

/* Four 8x8 matrices; lanes 8i .. 8i+7 give the addresses of the rows of matrix i. */
static __device__ __forceinline__ void load_matrices(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* c[16,8] += a[16,16] * b[16,8]. */
template <typename T>
__device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply<__nv_bfloat16>(float c[4], const uint32_t a[4],
                                                        uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<__half>(float c[4], const uint32_t a[4], uint32_t b0,
                                                 uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 2^x; relative error below 2^-22, -infinity gives 0. */
static __device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Four sums in device memory; one request where the card has it. 16-byte aligned. */
static __device__ __forceinline__ void add_four(float *to, float4 v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y),
                 "f"(v.z), "f"(v.w)
                 : "memory");
#else
    atomicAdd(to, v.x);
    atomicAdd(to + 1, v.y);
    atomicAdd(to + 2, v.z);
    atomicAdd(to + 3, v.w);
#endif
}

#include "kernels/cuda/attention_tile.cuh"

#endif
