/* attention_launch.cuh - starts an attention kernel: one-dimensional grid, dynamic shared memory,
 * the device's stream, checked. Host code.
 *
 * A block that wants more than 48 KiB of shared memory must ask for it, for each kernel and card;
 * asking again costs nothing that would be worth a table. */
#ifndef PLIMSOLL_KERNELS_ATTENTION_LAUNCH_CUH
#define PLIMSOLL_KERNELS_ATTENTION_LAUNCH_CUH

#include "kernels/cuda/cuda.h"

struct attention_launch {
    int64_t blocks;
    int threads, shared_bytes;
    const char *operation;
};

template <typename... Parameters, typename... Arguments>
static enum status attention_launch(struct device *device, struct attention_launch shape,
                                    struct err *e, void (*kernel)(Parameters...),
                                    const Arguments &...arguments) {
    FAIL_IF(shape.blocks > 0x7fffffff, STATUS_UNSUPPORTED,
            "%s: %lld blocks of work, 2147483647 at most: use smaller micro-batches",
            shape.operation, (long long)shape.blocks);
    if (shape.shared_bytes > 48 * 1024)
        TRY(cuda_check(device,
                       cudaFuncSetAttribute((const void *)kernel,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            shape.shared_bytes),
                       shape.operation, e));
    const cudaStream_t stream = cuda_state_of(device)->stream;
    kernel<<<(unsigned)shape.blocks, shape.threads, shape.shared_bytes, stream>>>(arguments...);
    return cuda_launched(device, shape.operation, e);
}

#endif
