/* attention.c - which of the ways to compute attention is taken: cuDNN, our kernels for the
 * tensor core, or the plain ones.
 *
 * The choice looks at sizes, dtype, alignment and what the card has, never at values. cuDNN is
 * asked the same question, about the forward's arguments, in both directions: its lse is not
 * ours. Our own ways share theirs, so that a backward whose gradients lie oddly may go the plain
 * way alone. */
#include "kernels/cuda/attention.h"

#include "kernels/cuda_sizes.h"

enum { TENSOR_HEAD_DIM_MAX = 256, VECTOR_BYTES = 16, VECTOR_ELEMENTS = 8 };

static bool vectors(const void *data, int64_t ld) {
    return (uintptr_t)data % VECTOR_BYTES == 0 && ld % VECTOR_ELEMENTS == 0;
}

/* f32 stays exact and goes the plain way; a scale that is not positive would turn the maximum of
 * the scores into their minimum. */
static bool tensor_takes(const struct attention_args *a) {
    if (a->dtype == DTYPE_F32 || a->head_dim % VECTOR_ELEMENTS != 0 ||
        a->head_dim > TENSOR_HEAD_DIM_MAX || !(a->scale > 0))
        return false;
    return vectors(a->q, a->ld_q) && vectors(a->k, a->ld_k) && vectors(a->v, a->ld_v) &&
           vectors(a->out, a->ld_out);
}

static bool tensor_takes_backward(const struct attention_backward_args *b) {
    return tensor_takes(&b->forward) && vectors(b->dout, b->ld_dout) && vectors(b->dq, b->ld_dq) &&
           vectors(b->dk, b->ld_dk) && vectors(b->dv, b->ld_dv);
}

int64_t cuda_attention_scratch(const struct device *device, const struct attention_args *a,
                               bool backward) {
    (void)device;
    return cuda_sizes_attention_scratch(a, backward);
}

enum status cuda_attention(struct device *device, const struct attention_args *a, struct err *e) {
    if (cuda_state_of(device)->dnn && cuda_dnn_supports(device, a))
        return cuda_dnn_attention(device, a, e);
    if (!tensor_takes(a)) return cuda_attention_plain(device, a, e);
    if (cuda_attention_hopper_takes(device, a)) return cuda_attention_hopper(device, a, e);
    return cuda_attention_tensor(device, a, e);
}

enum status cuda_attention_backward(struct device *device, const struct attention_backward_args *b,
                                    struct err *e) {
    FAIL_IF(!b->forward.scratch, STATUS_INTERNAL,
            "device_attention_backward: the scratch of device_attention_scratch bytes is missing");
    if (cuda_state_of(device)->dnn && cuda_dnn_supports(device, &b->forward))
        return cuda_dnn_attention_backward(device, b, e);
    if (tensor_takes_backward(b)) return cuda_attention_tensor_backward(device, b, e);
    return cuda_attention_plain_backward(device, b, e);
}
