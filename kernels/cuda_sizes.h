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
 * bytes, multiples of 512; a part of no bytes is not used. Where cuDNN may run, the parts have
 * CUDA_LIBRARY_ROWS tokens more than T, since cuDNN works in tiles. */
struct cuda_attention_parts {
    int64_t delta;   /* f32, a number a token and head: sum over d of dout * out */
    int64_t dq;      /* [T, H*D] f32: where dq is summed before it is rounded */
    int64_t stats;   /* [T, H] f32: cuDNN's copy of lse */
    int64_t dkv;     /* ours: [2, T, H*D] f32; or cuDNN's tensors in two bytes, `wide` first */
    int64_t wide;    /* six of [T, H*D]: q, out, dout, dq; dk and dv by query head */
    int64_t narrow;  /* four of [T, K*D]: k, v, dk, dv */
    int64_t library; /* CUDA_LIBRARY_SCRATCH bytes that cuDNN may want */
    int64_t bytes;   /* all of it */
    int64_t wide_stride, narrow_stride; /* bytes from one to the next */
};

enum { CUDA_LIBRARY_SCRATCH = 32 << 20, CUDA_LIBRARY_ROWS = 256, CUDA_LIBRARY_HEAD_DIM_MAX = 128 };

/* Whether cuDNN could take an attention of this dtype, head_dim and softcap, on some card. */
bool cuda_sizes_library_takes(const struct attention_args *args);

/* Looks at sizes and dtype, at no pointer. f32 has delta and dq only; what cuDNN cannot take has
 * nothing of its. */
struct cuda_attention_parts cuda_attention_parts(const struct attention_args *args);

/* The answer of the attention_scratch slot for kind DEVICE_CUDA. */
int64_t cuda_sizes_attention_scratch(const struct attention_args *args, bool backward);

#ifdef __cplusplus
}
#endif
#endif
