/* cudnn_copy.h - rows of several tensors moved between our layouts and cuDNN's, in one launch.
 * Private to kernels/cuda.
 *
 * See cudnn_copy.cu. */
#ifndef PLIMSOLL_KERNELS_CUDNN_COPY_H
#define PLIMSOLL_KERNELS_CUDNN_COPY_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDA_DNN_COPIES_MAX = 6 };

/* `rows` rows of `width` elements of two bytes, then `slack` rows of zeros in `to` alone. */
struct cuda_dnn_copy {
    const void *from;
    void *to;
    int64_t ld_from, ld_to; /* elements */
    int64_t width, rows, slack;
};

/* Copies all of them; at most CUDA_DNN_COPIES_MAX, and none is fine. No two may overlap. */
cudaError_t cuda_dnn_copy(cudaStream_t stream, const struct cuda_dnn_copy *copies, int count);

#ifdef __cplusplus
}
#endif
#endif
