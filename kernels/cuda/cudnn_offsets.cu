/* cudnn_offsets.cu - what cuDNN wants to know of packed documents: lengths, and where each begins
 * in every tensor.
 *
 * Made on the device from cu_seqlens, so that one plan serves every packing. Row m of `out` holds
 * the offsets times multipliers[m]; the last row the lengths. Documents beyond the real ones are
 * empty. */
#include "kernels/cuda/cudnn_offsets.h"

struct multipliers {
    int64_t value[CUDA_DNN_OFFSETS_MAX];
};

static __global__ void offsets_kernel(const int32_t *cu, int64_t segments, int64_t capacity,
                                      struct multipliers by, int count, int32_t *out,
                                      int64_t pitch) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i > capacity) return;
    const int64_t first = cu[i < segments ? i : segments];
    const int64_t end = cu[i + 1 < segments ? i + 1 : segments];
    for (int m = 0; m < count; m++) {
        out[m * pitch + i] = (int32_t)(first * by.value[m]);
    }
    out[count * pitch + i] = (int32_t)(end - first);
}

extern "C" cudaError_t cuda_dnn_offsets(cudaStream_t stream, const struct cuda_dnn_documents *d,
                                        const int64_t *multipliers, int count, int32_t *out,
                                        int64_t pitch) {
    enum { THREADS = 128 };
    struct multipliers by = {};
    for (int m = 0; m < count; m++) {
        by.value[m] = multipliers[m];
    }
    const unsigned blocks = (unsigned)((d->capacity + 1 + THREADS - 1) / THREADS);
    offsets_kernel<<<blocks, THREADS, 0, stream>>>(d->cu_seqlens, d->segments, d->capacity, by,
                                                   count, out, pitch);
    return cudaGetLastError();
}
