/* cuda_sizes.h - what the CUDA device needs beside its fixed workspace, as pure functions of sizes.
 * Private to kernels.
 *
 * Apart from kernels/cuda because null:cuda answers the same questions, in builds and on machines
 * without CUDA: the plan must equal the run. No header of CUDA is included here. */
#ifndef PLIMSOLL_KERNELS_CUDA_SIZES_H
#define PLIMSOLL_KERNELS_CUDA_SIZES_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The parts of the backward attention's scratch, in the order in which they lie in it. Offsets in
 * bytes, multiples of 512; a part of no bytes is not used. */
struct cuda_attention_parts {
    int64_t delta;   /* [H, T] f32: sum over d of dout * out */
    int64_t dq;      /* [T, H*D] f32: where dq is summed before it is rounded */
    int64_t dkv;     /* four of [T, H*D] in two bytes: what cuDNN writes before it is copied */
    int64_t library; /* CUDA_LIBRARY_SCRATCH bytes that cuDNN may want */
    int64_t bytes;   /* all of it */
};

enum { CUDA_LIBRARY_SCRATCH = 32 << 20 };

/* For bf16 and f16; f32 has delta and dq only. Looks at sizes and dtype, at no pointer. */
struct cuda_attention_parts cuda_attention_parts(const struct attention_args *args);

/* The answer of the attention_scratch slot for kind DEVICE_CUDA. */
int64_t cuda_sizes_attention_scratch(const struct attention_args *args, bool backward);

#ifdef __cplusplus
}
#endif
#endif
