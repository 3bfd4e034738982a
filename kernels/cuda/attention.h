/* attention.h - the ways in which the CUDA device can compute attention; attention.c chooses.
 * Private to kernels/cuda.
 *
 * All of them take what device.c has checked, write the same results (within rounding), and use of
 * the backward's scratch only what cuda_attention_parts names. Our own ways agree on lse, so the
 * forward may go one and the backward another; cuDNN lays it out differently and takes both. */
#ifndef PLIMSOLL_KERNELS_CUDA_ATTENTION_H
#define PLIMSOLL_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* attention_forward.cu, attention_backward.cu: bf16 and f16 on the tensor core, for head_dim a
 * multiple of 8 up to 256, 16-byte aligned pointers, lds that are multiples of 8, scale > 0.
 * The backward sums dq with atomics, in no fixed order, except where device->deterministic asks
 * for a dq kernel of its own (7 products instead of 5). */
enum status cuda_attention_tensor(struct device *device, const struct attention_args *args,
                                  struct err *e);
enum status cuda_attention_tensor_backward(struct device *device,
                                           const struct attention_backward_args *args,
                                           struct err *e);

/* attention_hopper.cu: the forward again, by the instructions of compute capability 9.0; for what
 * cuda_attention_tensor takes, where `takes` says that card, build and head_dim fit. The backward
 * asks it too, and then takes attention_hopper_backward.cu for heads of up to 128 dimensions. */
bool cuda_attention_hopper_takes(struct device *device, const struct attention_args *args);
enum status cuda_attention_hopper(struct device *device, const struct attention_args *args,
                                  struct err *e);

/* attention_rows.cu: delta[h,t] = sum over d of dout * out. */
enum status cuda_attention_delta(struct device *device, const struct attention_backward_args *args,
                                 float *delta, struct err *e);

/* attention_plain.cu: any dtype and any head_dim up to 256, in f32 arithmetic without
 * approximations, always deterministic. STATUS_UNSUPPORTED for larger heads. */
enum status cuda_attention_plain(struct device *device, const struct attention_args *args,
                                 struct err *e);
enum status cuda_attention_plain_backward(struct device *device,
                                          const struct attention_backward_args *args,
                                          struct err *e);

/* cudnn_attention.c, not called without state->dnn; described in cudnn.h. The reason is that of the
 * last refusal, for the tests. Weak, because a toolkit without cuDNN's headers builds no such
 * file. */
bool cuda_dnn_supports(struct device *device, const struct attention_args *args)
    __attribute__((weak));
const char *cuda_dnn_reason(struct device *device) __attribute__((weak));
enum status cuda_dnn_attention(struct device *device, const struct attention_args *args,
                               struct err *e) __attribute__((weak));
enum status cuda_dnn_attention_backward(struct device *device,
                                        const struct attention_backward_args *args, struct err *e)
    __attribute__((weak));

#ifdef __cplusplus
}
#endif
#endif
