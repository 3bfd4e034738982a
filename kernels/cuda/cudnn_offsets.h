/* cudnn_offsets.h - lengths and element offsets of packed documents, computed on the device.
 * Private to kernels/cuda.
 *
 * See cudnn_offsets.cu. */
#ifndef PLIMSOLL_KERNELS_CUDNN_OFFSETS_H
#define PLIMSOLL_KERNELS_CUDNN_OFFSETS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDA_DNN_OFFSETS_MAX = 8 };

/* cu_seqlens [segments+1] in device memory; capacity >= segments documents are described. */
struct cuda_dnn_documents {
    const int32_t *cu_seqlens;
    int64_t segments, capacity;
};

/* out[m*pitch + i] = cu_seqlens[i] * multipliers[m] for i in 0..capacity; out[count*pitch + i] =
 * length of document i. pitch > capacity; products must fit 31 bits. */
cudaError_t cuda_dnn_offsets(cudaStream_t stream, const struct cuda_dnn_documents *documents,
                             const int64_t *multipliers, int count, int32_t *out, int64_t pitch);

#ifdef __cplusplus
}
#endif
#endif
