/* cudnn_sdpa.h - the graphs of causal attention over packed documents, forward and backward.
 * Private to kernels/cuda.
 *
 * The order of the operations is a convention: cuDNN recognises attention by it and answers with
 * one fused kernel. Sequences lie in the tensors at offsets that are device data (ragged), so a
 * plan depends on capacities, not on the documents. The backward has no gaps between rows, and each
 * gradient shares the offsets of its tensor, the sum of dq and dk and dv by query head included: a
 * form with gaps ended in illegal memory accesses of 9.14, this one does not. */
#ifndef PLIMSOLL_KERNELS_CUDNN_SDPA_H
#define PLIMSOLL_KERNELS_CUDNN_SDPA_H

#include "kernels/cuda/cudnn.h"

/* Everything that a plan depends on. */
struct sdpa_shape {
    int64_t backward, half; /* flags: backward pass; f16 rather than bf16 */
    int64_t documents, length;
    int64_t heads, kv_heads, head_dim;
    int64_t ld_q, ld_k, ld_v, ld_out; /* of dq, dk, dv and dout, too */
    int64_t window;
};

/* What the caller gives to a plan. The OFFSET roles are rows of cuda_dnn_offsets, in this order. */
enum sdpa_role {
    SDPA_OFFSET_Q,
    SDPA_OFFSET_K,
    SDPA_OFFSET_V,
    SDPA_OFFSET_OUT,
    SDPA_OFFSET_STATS, /* times heads */
    SDPA_LENGTH_Q,
    SDPA_LENGTH_KV,
    SDPA_Q,
    SDPA_K,
    SDPA_V,
    SDPA_OUT,
    SDPA_STATS, /* [T, H] f32: max + log sum, by tokens */
    SDPA_SCALE, /* by value, f32 */
    SDPA_MASKED,
    SDPA_WINDOW,
    SDPA_DOUT,
    SDPA_ONE,
    SDPA_SUM,  /* [T, H] f32 */
    SDPA_DQ32, /* [T, ld_q] f32 */
    SDPA_DK_HEADS,
    SDPA_DV_HEADS, /* [T, ld * H/K], for grouped heads */
    SDPA_DQ,
    SDPA_DK,
    SDPA_DV,
    SDPA_ROLE_COUNT
};

/* Fills `g` with the graph and uid[role] with the uids of what it reads and writes (0: not used).
 * Errors are the graph's. */
void sdpa_graph(struct dnn_graph *g, const struct sdpa_shape *shape, int64_t uid[SDPA_ROLE_COUNT]);

#endif
