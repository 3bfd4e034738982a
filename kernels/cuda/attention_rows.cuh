/* attention_rows.cuh - the steps of attention's backward on the tensor core, of which
 * attention_backward.cu is the main one.
 *
 * All of them want what cuda_attention_tensor_backward wants; `delta` is [H,T], `sums` [T, H*D]
 * without gaps, both f32 in the scratch. */
#ifndef PLIMSOLL_KERNELS_ATTENTION_ROWS_CUH
#define PLIMSOLL_KERNELS_ATTENTION_ROWS_CUH

#include "kernels/cuda/attention_common.cuh"

/* delta, and zeros into `sums` where it is not NULL. */
enum status cuda_attention_delta_aligned(struct device *device,
                                         const struct attention_backward_args *args, float *delta,
                                         float *sums, struct err *e);

/* dq = scale * sums. */
enum status cuda_attention_round(struct device *device, const struct attention_backward_args *args,
                                 const float *sums, struct err *e);

/* dk and dv: the sums of the shares [splits, T, 2, K*D], in their order. */
enum status cuda_attention_join(struct device *device, const struct attention_backward_args *args,
                                const float *shares, int splits, struct err *e);

/* attention_queries.cu: dq without sums in device memory, in a fixed order. */
enum status cuda_attention_queries(struct device *device,
                                   const struct attention_backward_args *args, const float *delta,
                                   struct err *e);

#endif
