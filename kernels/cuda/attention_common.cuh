/* attention_common.cuh - what every attention kernel shares: element types, and which block of
 * which document a thread block works on.
 *
 * Documents are found on the device, because their bounds are device memory and the host must not
 * read them. Two numberings of the work exist. Sorted: the heaviest blocks of all documents first,
 * which keeps every multiprocessor busy to the end, at the price of thread blocks that find nothing
 * to do. Dense: at most one empty slot a document, for packings of many short documents beside a
 * long one. The host chooses by counting both. */
#ifndef PLIMSOLL_KERNELS_ATTENTION_COMMON_CUH
#define PLIMSOLL_KERNELS_ATTENTION_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/cuda.h"

#define LOG2E 1.4426950408889634f

static __device__ __forceinline__ float to_float(float x) {
    return x;
}
static __device__ __forceinline__ float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
static __device__ __forceinline__ float to_float(__half x) {
    return __half2float(x);
}
template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ __half from_float<__half>(float x) {
    return __float2half_rn(x);
}

/* How the blocks of `rows` rows of all documents are numbered. */
struct attention_grid {
    int rows;
    int blocks; /* of the longest document */
    int sorted;
};

/* Rows from .. of the document of `length` tokens that begins at token `first`. */
struct attention_span {
    int64_t first;
    int length, from;
};

static inline int64_t attention_items(const struct attention_args *a, struct attention_grid grid) {
    return grid.sorted ? (int64_t)grid.blocks * a->segments : a->tokens / grid.rows + a->segments;
}

static inline struct attention_grid attention_grid_of(const struct attention_args *a, int rows) {
    struct attention_grid grid = {rows, (int)((a->max_seqlen + rows - 1) / rows), 0};
    const int64_t dense = attention_items(a, grid);
    grid.sorted = 1;
    /* An empty thread block costs about a thousandth of a full one. */
    if (attention_items(a, grid) > 8 * dense) grid.sorted = 0;
    return grid;
}

/* The last document whose first slot, cu_seqlens[s] / rows + s, is not beyond `item`: a search in
 * 32 parts at once by the lanes of a warp, each warp for itself. */
static __device__ __forceinline__ int attention_segment(const struct attention_args &a, int rows,
                                                        int item) {
    const int lane = threadIdx.x & 31;
    int low = 0, high = (int)a.segments;
    while (high - low > 1) {
        const int step = (high - low + 31) / 32, probe = low + lane * step;
        const bool below = probe < high && a.cu_seqlens[probe] / rows + probe <= item;
        const int count = __popc(__ballot_sync(0xffffffffu, below));
        low += (count - 1) * step;
        high = min(low + step, high);
    }
    return low;
}

/* Fills `span` for this item; false where the slot is empty. HEAVY_LAST: a document's last block
 * has the most work (blocks of queries); otherwise its first (blocks of keys). A slot range is long
 * enough: ceil((b-a)/rows) <= floor(b/rows) - floor(a/rows) + 1. */
template <bool HEAVY_LAST>
__device__ __forceinline__ bool attention_span_of(const struct attention_args &a,
                                                  struct attention_grid grid, int item,
                                                  struct attention_span *span) {
    const int segments = (int)a.segments;
    const int segment = grid.sorted ? item % segments : attention_segment(a, grid.rows, item);
    const int first = a.cu_seqlens[segment], length = a.cu_seqlens[segment + 1] - first;
    const int blocks = (length + grid.rows - 1) / grid.rows;
    /* How many of the document's blocks are lighter. */
    const int lighter = grid.sorted ? grid.blocks - item / segments - 1
                                    : blocks - 1 - (item - (first / grid.rows + segment));
    if (lighter < 0 || lighter >= blocks) return false;
    span->first = first;
    span->length = length;
    span->from = (HEAVY_LAST ? lighter : blocks - 1 - lighter) * grid.rows;
    return true;
}

/* A window that hides nothing where none is asked for. */
static __device__ __forceinline__ int attention_window(const struct attention_args &a) {
    return a.window > 0 && a.window < a.tokens ? (int)a.window : 0x7fffffff;
}

#endif
