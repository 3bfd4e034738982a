/* attention_wgmma.cuh - the products of Hopper's tensor cores (compute capability 9.0 exactly,
 * code for sm_90a): four warps together multiply 64 rows, operands straight from shared memory.
 *
 * Operands lie in panels (panel_at): 128-byte rows, swizzled in groups of eight, which a
 * descriptor names by address and strides. Products run in the background: what they read and
 * write must be left alone until wgmma_wait, and the compiler is told so by passing accumulators
 * through wgmma_hold. (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Matrix
 * Descriptor".) */
#ifndef PLIMSOLL_KERNELS_ATTENTION_WGMMA_CUH
#define PLIMSOLL_KERNELS_ATTENTION_WGMMA_CUH

#include "kernels/cuda/attention_mma.cuh"

/* Code for other cards is compiled too, and never started (attention_hopper.cu asks first). */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WGMMA(...) asm volatile(__VA_ARGS__)
#else
#define WGMMA(...) __trap()
#endif

/* Address in bits 0-13, leading and stride offsets in bits 16-29 and 32-45, in units of 16 bytes;
 * bit 62: 128-byte swizzle. Groups of eight rows are 1024 bytes apart. `leading`, from one panel to
 * the next, matters only where the panels' columns are the columns of the product. */
static __device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t at, uint32_t leading) {
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Shared memory that ordinary copies have filled becomes visible to the tensor cores; in each
 * thread that copied, before the barrier. */
static __device__ __forceinline__ void wgmma_publish() {
    WGMMA("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Registers written so far may be read by the products that follow. */
static __device__ __forceinline__ void wgmma_begin() {
    WGMMA("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Closes a group of products. */
static __device__ __forceinline__ void wgmma_commit() {
    WGMMA("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most LEFT groups are on their way. */
template <int LEFT> __device__ __forceinline__ void wgmma_wait() {
    WGMMA("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* No reading or writing of these registers moves across this line. */
template <int N> __device__ __forceinline__ void wgmma_hold(float c[N / 8][4]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        asm volatile("" : "+f"(c[i / 4][i % 4])::"memory");
    }
}

/* The same for a left operand in registers. */
template <int K> __device__ __forceinline__ void wgmma_hold(uint32_t p[K / 16][4]) {
#pragma unroll
    for (int i = 0; i < K / 4; i++) {
        asm volatile("" : "+r"(p[i / 4][i % 4])::"memory");
    }
}

#define FOUR(c, j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define EIGHT_ROWS(c, j)                                                                           \
    FOUR(c, j), FOUR(c, j + 1), FOUR(c, j + 2), FOUR(c, j + 3), FOUR(c, j + 4), FOUR(c, j + 5),    \
        FOUR(c, j + 6), FOUR(c, j + 7)
#define REGISTERS_32                                                                               \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "            \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define REGISTERS_64                                                                               \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "            \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "             \
    "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "             \
    "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

/* c[64, N] = a * b^T, or += where `add`: 16 columns of panels a [64 rows] and b [N rows]. */
template <typename T, int N>
__device__ __forceinline__ void wgmma_rows(float c[N / 8][4], uint64_t a, uint64_t b, int add);

/* c[64, N] += a * b: a [64, 16] in registers as for mma.sync; 16 rows of panels b with N
 * columns. */
template <typename T, int N>
__device__ __forceinline__ void wgmma_add(float c[N / 8][4], const uint32_t a[4], uint64_t b);

/* c[64, 64] = a^T * b, or += where `add`: 16 rows of panels a and b. */
template <typename T>
__device__ __forceinline__ void wgmma_columns(float c[8][4], uint64_t a, uint64_t b, int add);

#define WGMMA_COLUMNS(type, name)                                                                  \
    template <>                                                                                    \
    __device__ __forceinline__ void wgmma_columns<type>(float c[8][4], uint64_t a, uint64_t b,     \
                                                        int add) {                                 \
        WGMMA("{.reg .pred p; setp.ne.b32 p, %34, 0; "                                             \
              "wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " " REGISTERS_32         \
              ", %32, %33, p, 1, 1, 1, 1;}"                                                        \
              : EIGHT_ROWS(c, 0)                                                                   \
              : "l"(a), "l"(b), "r"(add)                                                           \
              : "memory");                                                                         \
    }
#define WGMMA_ROWS(type, name, n, registers, a_at, b_at, add_at, ...)                              \
    template <>                                                                                    \
    __device__ __forceinline__ void wgmma_rows<type, n>(float c[n / 8][4], uint64_t a, uint64_t b, \
                                                        int add) {                                 \
        WGMMA("{.reg .pred p; setp.ne.b32 p, " add_at ", 0; "                                      \
              "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name " " registers        \
              ", " a_at ", " b_at ", p, 1, 1, 0, 0;}"                                              \
              : __VA_ARGS__                                                                        \
              : "l"(a), "l"(b), "r"(add)                                                           \
              : "memory");                                                                         \
    }
#define WGMMA_ADD(type, name, n, registers, a_at, b_at, ...)                                       \
    template <>                                                                                    \
    __device__ __forceinline__ void wgmma_add<type, n>(float c[n / 8][4], const uint32_t a[4],     \
                                                       uint64_t b) {                               \
        WGMMA("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." name "." name " " registers        \
              ", " a_at ", " b_at ", 1, 1, 1, 1;"                                                  \
              : __VA_ARGS__                                                                        \
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)                                 \
              : "memory");                                                                         \
    }
#define WGMMA_TYPE(type, name)                                                                     \
    WGMMA_COLUMNS(type, name)                                                                      \
    WGMMA_ROWS(type, name, 64, REGISTERS_32, "%32", "%33", "%34", EIGHT_ROWS(c, 0))                \
    WGMMA_ROWS(type, name, 128, REGISTERS_64, "%64", "%65", "%66", EIGHT_ROWS(c, 0),               \
               EIGHT_ROWS(c, 8))                                                                   \
    WGMMA_ADD(type, name, 64, REGISTERS_32, "{%32, %33, %34, %35}", "%36", EIGHT_ROWS(c, 0))       \
    WGMMA_ADD(type, name, 128, REGISTERS_64, "{%64, %65, %66, %67}", "%68", EIGHT_ROWS(c, 0),      \
              EIGHT_ROWS(c, 8))

WGMMA_TYPE(__nv_bfloat16, "bf16")
WGMMA_TYPE(__half, "f16")

#endif
