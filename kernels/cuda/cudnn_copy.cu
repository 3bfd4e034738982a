/* cudnn_copy.cu - rows of several tensors moved between our layouts and cuDNN's, in one launch.
 *
 * cuDNN's backward wants tensors without gaps between rows; ours are columns of wider arrays. A
 * block copies rows, 16 bytes a thread where every address allows it. The rows behind the last
 * token become zeros: cuDNN reads whole tiles, and what it masks it still multiplies. */
#include "kernels/cuda/cudnn_copy.h"

struct copies {
    struct cuda_dnn_copy one[CUDA_DNN_COPIES_MAX];
};

enum { THREADS = 128, HALF = 2 };

template <typename T> static __device__ void copy_row(const T *from, T *to, int64_t count) {
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < count; i += THREADS) {
        to[i] = from[i];
    }
}

template <typename T> static __global__ void copy_kernel(struct copies copies) {
    const struct cuda_dnn_copy &c = copies.one[blockIdx.y];
    const int64_t per = sizeof(T) / HALF, count = c.width / per;
    for (int64_t row = blockIdx.x; row < c.rows + c.slack; row += gridDim.x) {
        T *to = (T *)c.to + row * (c.ld_to / per);
        if (row < c.rows) {
            copy_row((const T *)c.from + row * (c.ld_from / per), to, count);
            continue;
        }
        for (int64_t i = threadIdx.x; i < count; i += THREADS) {
            to[i] = T{};
        }
    }
}

/* Whether every address of the copy is a multiple of 16 bytes. */
static bool is_wide(const struct cuda_dnn_copy *c) {
    const int64_t vector = sizeof(uint4), elements = vector / HALF;
    return (int64_t)(uintptr_t)c->from % vector == 0 && (int64_t)(uintptr_t)c->to % vector == 0 &&
           c->ld_from % elements == 0 && c->ld_to % elements == 0 && c->width % elements == 0;
}

extern "C" cudaError_t cuda_dnn_copy(cudaStream_t stream, const struct cuda_dnn_copy *copies,
                                     int count) {
    struct copies all = {};
    const int64_t blocks_max = 2048;
    int64_t rows = 0;
    bool wide = true;
    if (count == 0) return cudaSuccess;
    for (int i = 0; i < count; i++) {
        const int64_t own = copies[i].rows + copies[i].slack;
        all.one[i] = copies[i];
        wide = wide && is_wide(&copies[i]);
        rows = own > rows ? own : rows;
    }
    const dim3 grid((unsigned)(rows < blocks_max ? rows : blocks_max), (unsigned)count);
    if (wide)
        copy_kernel<uint4><<<grid, THREADS, 0, stream>>>(all);
    else
        copy_kernel<uint16_t><<<grid, THREADS, 0, stream>>>(all);
    return cudaGetLastError();
}
