/* ops.h - the operations of a decoder as forward/backward pairs on the tape, at the grain of the
 * device.
 *
 * Each takes tensors, returns a new tensor in *out (one reference), and records its backward when
 * an input wants a gradient. *out is set as soon as it exists: release it after an error too. T
 * tokens, C channels, H query heads, K key/value heads, D head dimension, F feed-forward size, V
 * vocabulary, R rank. Activations are of the device's activation dtype. Statuses: STATUS_OOM from
 * the arena, STATUS_DEVICE and STATUS_INTERNAL from the device. */
#ifndef PLIMSOLL_ENGINE_TENSOR_OPS_H
#define PLIMSOLL_ENGINE_TENSOR_OPS_H

#include "engine/tensor/parallel.h"
#include "engine/tensor/tape.h"

/* The embedding table, or a part of it: its rows from the id `first` on. */
struct embedding {
    struct tensor *table; /* [V,C] */
    float scale;
    bool partial; /* other ids are zeros */
    int64_t first;
};
/* out[t,:] = scale * table[ids[t] - first,:]. ids [1,T] i32; out [T,C]. */
enum status op_embedding(struct tape *tape, struct tensor *ids, const struct embedding *embedding,
                         struct tensor **out, struct err *e);

/* A root-mean-square norm: what it scales by, and the tail that the reader of its result wants. */
struct norm {
    struct tensor *weight; /* [1,C] f32 */
    float eps, offset;
    int64_t tail;
};
/* out = x / rms(x) * (offset + weight), by rows. x [T,C]. The result has a recipe. */
enum status op_rmsnorm(struct tape *tape, struct tensor *x, const struct norm *norm,
                       struct tensor **out, struct err *e);

/* out = a + b. Same shapes. */
enum status op_add(struct tape *tape, struct tensor *a, struct tensor *b, struct tensor **out,
                   struct err *e);

/* The two in one pass: sum = a + b, out = norm(sum). */
struct addends {
    struct tensor *a, *b;
};
enum status op_add_rmsnorm(struct tape *tape, struct addends addends, const struct norm *norm,
                           struct tensor **sum, struct tensor **out, struct err *e);

/* A LoRA adapter (Hu et al. 2021) on a range of output rows of a linear layer. */
struct lora {
    int64_t first_row, rows;  /* of the outputs: one of q, k, v in a packed product, or all */
    int64_t rank_first, rank; /* its rows of lora_a */
    float scaling;            /* alpha/r, or alpha/sqrt(r) (Kalajdzievski 2023) */
    struct tensor *b;         /* [rows,R]; times scaling where it rides in a tail */
    struct tensor *b_master;  /* the same in f32 without it; for exporting */
    struct tensor *magnitude; /* [1,rows]: DoRA (Liu et al. 2024), or NULL */
};
enum { LINEAR_ADAPTERS_MAX = 3 };

/* A frozen matrix that is kept as codes of 4 or 8 bits (kernels/quant.h). */
struct quantised {
    struct quant_layout layout; /* quant is QUANT_NONE for a matrix of numbers */
    struct tensor *bytes;       /* [1, layout.bytes/4] i32 */
    /* With adapters in tails, what lies below the weight and to its right: [tail,K+tail], which is
     * A and zeros, and [N,tail], scaling * B. Or NULL. */
    struct tensor *below, *beside;
};

/* y = x W^T + bias + sum over adapters of scaling * (dropout(x) A^T) B^T; with a magnitude m, on
 * its rows, y = m/|W + scaling*B*A| * (x W^T + scaling * x A^T B^T) + bias, the norm taken by rows
 * and as a constant in backward. Dropout under DoRA acts on what the magnitude scales, not on the
 * base (as in PEFT): with d = dropout(x), y = (x - d) W^T + bias + m/|..| * (d W^T + ..d..). */
struct linear {
    struct tensor *weight;         /* [N,K]; wants a gradient when it is trained */
    const struct quantised *codes; /* what weight is made of for each product, without bytes in
                                      between; NULL: weight has its own */
    struct tensor *bias;           /* [1,N] of the activations' dtype, or NULL */
    struct tensor *bias_master;    /* the same in f32; may be the same tensor */
    struct tensor *lora_a;         /* [sum of ranks, K], all adapters side by side, or NULL */
    struct tensor *lora_a_master;  /* the same in f32; for exporting */
    struct lora adapters[LINEAR_ADAPTERS_MAX];
    int64_t adapter_count;
    float dropout;
    uint64_t stream; /* which random numbers: unique per layer and module */
    /* Where ranks share the layer and have some of its inputs each: they, and the first of this
     * rank's inputs among all. The result is then a part of a sum. */
    struct comm_group *inputs_shared;
    int64_t first_input;
    struct sum_bias sum_bias; /* then bias is NULL, and this is added to the sum */
    /* Where adapters ride in tails: [N+tail, K+tail], of which weight, lora_a and every
     * scaling * b are views (op_linear_tail.c); else NULL and 0. */
    struct tensor *augmented;
    int64_t tail; /* the ranks of all adapters, padded: what x and dy want behind their rows */
    int64_t output_tail; /* of y, where its gradient will take its place; else 0 */
};

/* What random numbers are keyed by, for one micro-batch. */
struct random_keys {
    uint64_t seed, step;
    struct tensor *row_keys; /* [1,T] i64 */
};

/* Makes the weight out of its codes, in *scratch, until linear_close_weight; op_linear does it by
 * itself. *scratch stays NULL where the weight has its own bytes. */
enum status linear_open_weight(const struct linear *l, struct tensor **scratch, struct err *e);
/* Nothing for a *scratch that is NULL. */
void linear_close_weight(const struct linear *l, struct tensor **scratch);

/* x [T,K] -> out [T,N]. `linear` must outlive the node. A tail of x is this layer's alone: its
 * backward may read from there. */
enum status op_linear(struct tape *tape, struct tensor *x, const struct linear *linear,
                      const struct random_keys *keys, struct tensor **out, struct err *e);

/* A gated unit and the layer that reads it: out = linear(g), g[t,f] = act(x[t,f]) * x[t,F+f].
 * x [T,2F] -> out [T,N]. Lets go of the caller's *x as soon as it was read. */
struct glu_linear {
    enum activation activation;
    const struct linear *linear; /* must outlive the node */
};
enum status op_glu_linear(struct tape *tape, struct tensor **x, const struct glu_linear *layer,
                          const struct random_keys *keys, struct tensor **out, struct err *e);

/* Rotary embedding, optional q/k norm and causal attention over a packed projection. */
struct attention_options {
    int64_t heads, kv_heads, head_dim, rotary_dim;
    float scale, softcap;
    int64_t window;
    float rope_scale;
    struct tensor *inv_freq;            /* [1,rotary_dim/2] f32 */
    struct tensor *q_weight, *k_weight; /* [1,D] f32 or NULL: no q/k norm */
    struct {
        float eps, offset;
    } norm;       /* of q and k */
    int64_t tail; /* of the result */
};
/* The documents of a micro-batch, on the device. */
struct documents {
    int64_t segments, max_seqlen;
    struct tensor *positions;  /* [1,T] i32 */
    struct tensor *cu_seqlens; /* [1,segments+1] i32 */
};
/* qkv [T,(H+2K)*D] -> out [T,H*D]. Overwrites the q and k part of qkv with what attention saw.
 * Options and documents must outlive the node. */
enum status op_attention(struct tape *tape, struct tensor *qkv,
                         const struct attention_options *options, const struct documents *documents,
                         struct tensor **out, struct err *e);

/* The loss head: only rows with a label are looked at, logits exist for `chunk_rows` rows at a
 * time. */
struct loss_options {
    struct tensor *head;      /* [V,C]: lm_head, or the tied embedding, or this rank's rows of it */
    struct comm_group *group; /* who has the others, or NULL */
    int64_t first, vocab;     /* of a divided head: its first row, and all rows of all */
    float softcap;
    float grad_scale;        /* 1 / trained tokens of the global batch */
    const float *loss_scale; /* a device value that gradients are multiplied by, or NULL */
    int64_t chunk_rows;
    int64_t rows;          /* rows with a label */
    struct tensor *index;  /* [1,rows] i32: which rows of x */
    struct tensor *labels; /* [1,rows] i32 */
};
/* out[i,:] = x[index[i],:]. Not differentiable. */
enum status op_gather_rows(const struct tensor *x, const struct tensor *index, struct tensor **out,
                           struct err *e);

/* x [T,C]. Fills losses [1,rows] f32 and correct [1,rows] i32 (both given by the caller). While
 * recording, the gradient with respect to x (and head) of grad_scale * sum of losses is computed at
 * once and handed over in backward: *loss is the [1,1] anchor that the walk starts from, NULL when
 * nothing was recorded. */
enum status op_loss(struct tape *tape, struct tensor *x, const struct loss_options *options,
                    struct tensor *losses, struct tensor *correct, struct tensor **anchor,
                    struct err *e);

/* Logits of all rows before any soft cap: x [T,C] -> out [T,V], for generation and tests. Of a
 * divided head: [members * T, ceil(V / members)], each member's one after the other. Not
 * differentiable. */
enum status op_logits(struct tape *tape, struct tensor *x, const struct loss_options *options,
                      struct tensor **out, struct err *e);

#endif
