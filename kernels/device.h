/* device.h - the one interface to whatever computes: cpu, cuda, and null (which only keeps the
 * books).
 *
 * A device knows arrays, not models. Every operation takes the device, one struct of named
 * arguments and an error; the shape checks and the counting of FLOPs and bytes are done in
 * device.c, above the table, so that every device gets them. Rules that keep the plan equal to the
 * run: no operation allocates; scratch space is the device's fixed workspace, whose size is a pure
 * function of the device kind; device values never decide an allocation or a branch of the host.
 *
 * Dimension letters, for the whole project: B batch, T tokens (all rows of a micro-batch laid end
 * to end), C channels (hidden size), H query heads, K key/value heads, D head dimension, F
 * feed-forward size, V vocabulary, L layers, R rank of LoRA, W world size, N generic columns. All
 * matrices are row-major; `ld` is the distance between rows in elements. Accumulation is fp32 or
 * better everywhere. Operations are deterministic: same inputs, same thread count, same bits (on a
 * GPU where device_options asks for it, and wherever it costs nothing).
 *
 * Activations and their gradients have one dtype per device, device->activation_dtype; the `dtype`
 * field of an operation's arguments names it: f32 everywhere, bf16 and f16 on CUDA. Parameters'
 * gradients, norm weights, statistics and losses are always f32. */
#ifndef PLIMSOLL_KERNELS_DEVICE_H
#define PLIMSOLL_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/loss.h"
#include "kernels/quant.h"
#include "kernels/work.h"

enum device_kind { DEVICE_CPU, DEVICE_CUDA, DEVICE_KIND_COUNT };

/* How products are computed, and what activations are stored in. CPU: f32 activations always, bf16
 * means bf16 inputs of products. CUDA: tf32 is f32 storage with 10-bit mantissas in products; bf16
 * and f16 store activations so. */
enum precision { PRECISION_F32, PRECISION_TF32, PRECISION_BF16, PRECISION_F16, PRECISION_COUNT };
/* "fp32", "tf32", "bf16", "fp16". */
const char *precision_name(enum precision precision);

/* A matrix operand: points into device memory, row-major, `ld` elements between rows. */
struct matrix {
    void *data;
    enum dtype dtype;
    int64_t ld;
};

/* C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C (+ bias[n] on every row).
 * op transposes when trans_* is set: A is stored [m,k] or, transposed, [k,m]; B is stored [k,n] or,
 * transposed, [n,k]. CPU: A and B f32 or bf16, in any mix, C f32. CUDA: A and B of one dtype (f32,
 * bf16 or f16), C of that dtype or f32. beta == 0 never reads C. f32 inputs are rounded only when
 * the device's precision says so. */
struct gemm_args {
    int64_t m, n, k;
    float alpha, beta;
    bool trans_a, trans_b;
    struct matrix a, b, c;
    const void *bias;      /* [n] or NULL */
    enum dtype bias_dtype; /* f32, or C's dtype */
};

/* Root-mean-square norm (Zhang & Sennrich 2019): y = x * rstd * (weight_offset + weight), rstd =
 * 1/sqrt(mean(x^2)+eps). Row (t,g) is the `width` elements at x + t*ld_x + g*width: groups > 1
 * normalises each head of a packed row by itself, with one shared weight[width]. If `residual` is
 * given, x + residual is normalised (after rounding to dtype) and also written to `sum` [tokens,
 * groups*width]. x, residual, sum, y: dtype. `rstd` is [tokens*groups]. */
struct rmsnorm_args {
    int64_t tokens, groups, width;
    enum dtype dtype;
    const void *x;
    int64_t ld_x;
    const void *residual; /* or NULL */
    int64_t ld_residual;
    void *sum; /* NULL without residual; may be x or residual */
    int64_t ld_sum;
    const float *weight; /* [width] */
    float weight_offset; /* 0, or 1 for Gemma */
    float eps;
    void *y;
    int64_t ld_y;
    float *rstd;
};

/* dx (+)= gradient of rmsnorm with respect to what was normalised; dweight += when it is not NULL.
 */
struct rmsnorm_backward_args {
    int64_t tokens, groups, width;
    enum dtype dtype; /* of x, dy, dx */
    const void *x;    /* what was normalised (sum, if there was a residual) */
    int64_t ld_x;
    const float *weight;
    float weight_offset;
    const float *rstd; /* [tokens*groups] */
    const void *dy;
    int64_t ld_dy;
    void *dx; /* may be dy */
    int64_t ld_dx;
    bool accumulate; /* add to dx instead of overwriting it */
    float *dweight;  /* [width] or NULL; always accumulated */
};

/* Rotary position embedding in place (Su et al. 2021), halves layout: pairs (i, i + rotary/2) of
 * each head's first `rotary` dimensions are rotated by positions[t] * inv_freq[i], and scaled by
 * `scale` (YaRN's attention factor, else 1). `inverse` rotates back: the gradient. Head h of token
 * t starts at x + t*ld + h*head_dim. Angles are computed in f32. */
struct rope_args {
    int64_t tokens, heads, head_dim, rotary;
    enum dtype dtype;
    void *x;
    int64_t ld;
    const int32_t *positions; /* [tokens] */
    const float *inv_freq;    /* [rotary/2] */
    float scale;
    bool inverse;
};

/* Causal attention over packed documents: document s holds tokens cu_seqlens[s]..cu_seqlens[s+1]-1
 * and sees nothing else. Query head h reads key/value head h / (H/K). With window > 0 token i sees
 * j only if i - j < window. With softcap > 0 scores become softcap * tanh(score / softcap) before
 * the mask (Gemma 2). scores = scale * q.k. q [T, H*D] with ld_q, k and v [T, K*D] with ld_k, ld_v;
 * out [T, H*D] with ld_out; lse, H*T f32, is the natural log-sum-exp, read by the
 * backward alone: [H, T] on the CPU, in an order of the device's own elsewhere. `scratch` is device
 * memory of device_attention_scratch bytes. */
struct attention_args {
    int64_t tokens, heads, kv_heads, head_dim;
    int64_t segments;
    int64_t max_seqlen;        /* no document is longer */
    const int32_t *cu_seqlens; /* [segments+1], device memory */
    float scale, softcap;
    int64_t window;   /* 0: none */
    enum dtype dtype; /* of q, k, v, out */
    const void *q, *k, *v;
    int64_t ld_q, ld_k, ld_v;
    void *out;
    int64_t ld_out;
    float *lse;
    void *scratch; /* NULL where device_attention_scratch is 0 */
};

/* Gradient of attention: writes dq, dk, dv (overwrites). */
struct attention_backward_args {
    struct attention_args forward; /* with out and lse as the forward left them; its scratch is for
                                      the backward now */
    const void *dout;              /* [T, H*D] */
    int64_t ld_dout;
    void *dq, *dk, *dv;
    int64_t ld_dq, ld_dk, ld_dv;
};

enum activation { ACTIVATION_SILU, ACTIVATION_GELU_TANH };

/* Gated linear unit (Shazeer 2020): out[t,f] = act(gate_up[t,f]) * gate_up[t,F+f]. gate_up [T,2F],
 * out [T,F]. */
struct glu_args {
    int64_t tokens, width; /* width = F */
    enum activation activation;
    enum dtype dtype;
    const void *gate_up;
    int64_t ld_gate_up;
    void *out;
    int64_t ld_out;
};

/* dgate_up [T,2F] (may be gate_up itself). With `gated`, out is made again on the way, as glu makes
 * it: the gradient of a product that read it wants it, and gate_up is read here anyway. */
struct glu_backward_args {
    int64_t tokens, width;
    enum activation activation;
    enum dtype dtype;
    const void *gate_up;
    int64_t ld_gate_up;
    const void *dout;
    int64_t ld_dout;
    void *dgate_up;
    int64_t ld_dgate_up;
    void *gated; /* [T,F], may be dout; or NULL */
    int64_t ld_gated;
};

/* out[t,:] = scale * table[ids[t] - first,:]. table [V,C] contiguous, f32, bf16 or f16; out [T,C]
 * of dtype. Ids are checked by the text rooms. `partial`: the table is a piece of a larger one, and
 * ids outside of it give zeros. */
struct embedding_args {
    int64_t tokens, channels, vocab;
    int64_t first; /* 0 unless partial */
    bool partial;
    const int32_t *ids;
    const void *table;
    enum dtype table_dtype;
    float scale;
    enum dtype dtype;
    void *out;
    int64_t ld_out;
};

/* dtable[ids[t] - first,:] += scale * dout[t,:], summed in token order. dtable [V,C] f32. Ids
 * outside of a partial table add nothing. */
struct embedding_backward_args {
    int64_t tokens, channels, vocab;
    int64_t first; /* 0 unless partial */
    bool partial;
    const int32_t *ids;
    enum dtype dtype; /* of dout */
    const void *dout;
    int64_t ld_dout;
    float scale;
    float *dtable;
};

/* AdamW (Loshchilov & Hutter 2019), in the order of torch.optim.AdamW, over a flat range.
 * g = *grad_scale * grad; p *= 1 - lr*weight_decay; m, v updated; p -= lr/(1-beta1^step) * m /
 * (sqrt(v/(1-beta2^step)) + eps). Nothing changes when *grad_scale is not finite. param: f32, or on
 * CUDA bf16 without a master copy, then rounded stochastically by Philox (seed, step, index). m and
 * v: f32, or on CUDA bf16. `copy`, when given, gets param rounded to copy_dtype, at the same index.
 */
struct adamw_args {
    int64_t count;
    enum dtype param_dtype, state_dtype;
    void *param;
    const float *grad;
    void *m, *v;
    void *copy; /* or NULL */
    enum dtype copy_dtype;
    const float *grad_scale; /* one device value: the clip coefficient */
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step, first; /* 1 for the first update; the index of element 0, a multiple of 4 */
    uint64_t seed;
};

/* *out += sum of x[i]^2 (f32 result of a wider accumulation). */
struct sum_squares_args {
    int64_t count;
    const float *x;
    double *out;
};

/* norm = sqrt(*sum_squares) / loss_scale; *coefficient = (max_norm > 0 ? min(1, max_norm / (norm +
 * 1e-6)) : 1) / loss_scale, as torch.nn.utils.clip_grad_norm_; NaN when the norm is not finite. All
 * are device values; loss_scale NULL means 1. */
struct clip_args {
    const double *sum_squares;
    const float *loss_scale;
    float max_norm;
    float *norm;
    float *coefficient;
};

/* totals[0] += sum of losses, totals[1] += sum of correct, in a fixed order. */
struct loss_sums_args {
    int64_t rows;
    const float *losses;
    const int32_t *correct;
    double *totals; /* [2] device memory */
};

/* y[t,n] = keep(t,n) ? x[t,n] / (1-p) : 0, with keep drawn by Philox4x32-10 (Salmon et al. 2011)
 * from (seed, stream, row_keys[t], first + n): never from call order. The gradient is the same
 * operation on dy. `accumulate` adds to y. row_keys is [rows] i64; the caller makes it from
 * (sample, position), `stream` from (step, layer, module). */
struct dropout_args {
    int64_t rows, width;
    enum dtype dtype;
    const void *x;
    int64_t ld_x;
    void *y; /* may be x */
    int64_t ld_y;
    float p;
    uint64_t seed, stream;
    const int64_t *row_keys;
    bool accumulate;
    int64_t first; /* column of a wider matrix that column 0 is, for the drawing; else 0 */
};

/* dst[i,:] = src[index[i],:] (gather), or dst[index[i],:] = src[i,:] (scatter; indices are
 * distinct). */
struct rows_args {
    int64_t rows, width;
    enum dtype dtype;
    const int32_t *index; /* [rows] */
    const void *src;
    int64_t ld_src;
    void *dst;
    int64_t ld_dst;
};

/* out[t,n] = a[t,n] + b[t,n]; out may be a or b. */
struct add_args {
    int64_t rows, cols;
    enum dtype dtype;
    const void *a;
    int64_t ld_a;
    const void *b;
    int64_t ld_b;
    void *out;
    int64_t ld_out;
};

/* out[n] = (accumulate ? out[n] : 0) + sum over t of x[t,n] * (y ? y[t,n] : 1). x and y [rows,
 * cols] with ld. */
struct column_sum_args {
    int64_t rows, cols;
    enum dtype dtype; /* of x and y */
    const void *x;
    int64_t ld_x;
    const void *y; /* NULL: sum of x alone */
    int64_t ld_y;
    float *out;
    bool accumulate;
};

/* out[t,n] = (accumulate ? out[t,n] : 0) + x[t,n] * scale[n] + (bias ? bias[n] : 0). out may be x.
 */
struct column_scale_args {
    int64_t rows, cols;
    enum dtype dtype; /* of x and out */
    const void *x;
    int64_t ld_x;
    const float *scale; /* [cols] or NULL: ones */
    const float *bias;  /* [cols] or NULL */
    void *out;
    int64_t ld_out;
    bool accumulate;
};

/* out[r] = sqrt(sum over n of x[r,n]^2). f32. */
struct row_norm_args {
    int64_t rows, cols;
    const float *x;
    int64_t ld;
    float *out;
};

/* out[i] = a[i] / b[i]. f32. */
struct divide_args {
    int64_t count;
    const float *a, *b;
    float *out;
};

/* dst[r,n] = scale * src[r,n], between f32, bf16 and f16 (round to nearest even; NaN stays NaN);
 * f16 only on CUDA. */
struct convert_args {
    int64_t rows, cols;
    float scale; /* 1 to copy */
    struct matrix src, dst;
};

/* The same for many matrices at once: each item as convert_args, the types are those of all. */
struct convert_item {
    const void *src;
    void *dst;
    int64_t rows, cols, ld_src, ld_dst;
    double scale;
};
enum { CONVERT_ITEMS_MAX = 65535 };
struct convert_items_args {
    int64_t count;
    const struct convert_item *items; /* [count], device memory; what they say is not checked */
    enum dtype src_dtype, dst_dtype;
    int64_t largest, elements; /* of one item, of all together */
};

/* out[r,c] = value(code of [r,c]) * scale: a matrix out of its codes (quant.h), the scale that of
 * the element's block or row. One part of a layout: blocks are counted from its first element. */
struct dequantize_args {
    int64_t rows, cols; /* cols a multiple of QUANT_GRANULE */
    enum quant quant;
    const void *codes;   /* two a byte, or one */
    const void *scales;  /* f32; u8 where doubly quantised */
    const float *nested; /* of doubly quantised scales, else NULL */
    struct matrix out;   /* f32, bf16; f16 only on CUDA */
};

/* A piece of a matrix between host and device, either way. */
struct transfer {
    void *device;
    int64_t device_pitch; /* bytes between rows */
    void *host;
    int64_t host_pitch;
    int64_t width, rows; /* bytes of a row, rows */
};

/* Bytes of the device now, whoever uses them. */
struct device_memory {
    int64_t free, total;
};

struct device;

/* A sequence of operations that a device has written down, to be started at once. */
struct device_graph {
    void *state;   /* the device's own; NULL: none */
    int64_t nodes; /* kernels, copies and fills */
    int64_t bytes; /* of device memory outside the arena, as measured when it was made */
};

/* What a device must bring: every slot, no optional ones. */
struct device_ops {
    void (*close)(struct device *);
    /* Reserves address space for the arena. Nothing is backed yet. */
    enum status (*reserve)(struct device *, int64_t bytes, void **base, struct err *);
    void (*unreserve)(struct device *, void *base, int64_t bytes);
    /* Backs, or gives back, a range inside the reservation; multiples of device->page_bytes. */
    enum status (*commit)(struct device *, void *at, int64_t bytes, struct err *);
    void (*decommit)(struct device *, void *at, int64_t bytes);
    /* Host to device and back; returns when the host side may be reused or read. */
    enum status (*upload)(struct device *, void *to, const void *from, int64_t bytes, struct err *);
    enum status (*download)(struct device *, void *to, const void *from, int64_t bytes,
                            struct err *);
    enum status (*copy)(struct device *, void *to, const void *from, int64_t bytes, struct err *);
    enum status (*fill_zero)(struct device *, void *at, int64_t bytes, struct err *);
    /* The same for `rows` rows of `width` bytes, pitches in bytes. */
    enum status (*upload_rows)(struct device *, const struct transfer *, struct err *);
    enum status (*download_rows)(struct device *, const struct transfer *, struct err *);
    /* Host memory that the device copies from by itself (pinned on CUDA), uploads from it, which
     * may return before it was read, and the wait until all but the last `pending` were. */
    enum status (*stage_new)(struct device *, int64_t bytes, void **out, struct err *);
    void (*stage_free)(struct device *, void *at);
    enum status (*stage_upload)(struct device *, const struct transfer *, struct err *);
    enum status (*stage_wait)(struct device *, int64_t pending, struct err *);
    /* Copies to and from such memory that run beside the operations: see device_stash. Until
     * copies_wait nothing may write the source or use the destination. */
    enum status (*stash)(struct device *, void *host, const void *from, int64_t bytes,
                         struct err *);
    enum status (*fetch)(struct device *, void *to, const void *host, int64_t bytes, struct err *);
    enum status (*copies_wait)(struct device *, struct err *);
    /* Waits for everything asked so far; the error of anything that failed on the way. */
    enum status (*synchronize)(struct device *, struct err *);
    enum status (*memory)(struct device *, struct device_memory *, struct err *);
    int64_t (*attention_scratch)(const struct device *, const struct attention_args *,
                                 bool backward);
    enum status (*capture_begin)(struct device *, struct err *);
    enum status (*capture_end)(struct device *, struct device_graph *, struct err *);
    enum status (*graph_launch)(struct device *, const struct device_graph *, struct err *);
    void (*graph_free)(struct device *, struct device_graph *);

    enum status (*gemm)(struct device *, const struct gemm_args *, struct err *);
    enum status (*rmsnorm)(struct device *, const struct rmsnorm_args *, struct err *);
    enum status (*rmsnorm_backward)(struct device *, const struct rmsnorm_backward_args *,
                                    struct err *);
    enum status (*rope)(struct device *, const struct rope_args *, struct err *);
    enum status (*attention)(struct device *, const struct attention_args *, struct err *);
    enum status (*attention_backward)(struct device *, const struct attention_backward_args *,
                                      struct err *);
    enum status (*glu)(struct device *, const struct glu_args *, struct err *);
    enum status (*glu_backward)(struct device *, const struct glu_backward_args *, struct err *);
    enum status (*embedding)(struct device *, const struct embedding_args *, struct err *);
    enum status (*embedding_backward)(struct device *, const struct embedding_backward_args *,
                                      struct err *);
    enum status (*cross_entropy)(struct device *, const struct cross_entropy_args *, struct err *);
    enum status (*softmax_stats)(struct device *, const struct softmax_stats_args *, struct err *);
    enum status (*split_cross_entropy)(struct device *, const struct split_cross_entropy_args *,
                                       struct err *);
    enum status (*adamw)(struct device *, const struct adamw_args *, struct err *);
    enum status (*sum_squares)(struct device *, const struct sum_squares_args *, struct err *);
    enum status (*clip)(struct device *, const struct clip_args *, struct err *);
    enum status (*loss_sums)(struct device *, const struct loss_sums_args *, struct err *);
    enum status (*dropout)(struct device *, const struct dropout_args *, struct err *);
    enum status (*gather_rows)(struct device *, const struct rows_args *, struct err *);
    enum status (*scatter_rows)(struct device *, const struct rows_args *, struct err *);
    enum status (*add)(struct device *, const struct add_args *, struct err *);
    enum status (*column_sum)(struct device *, const struct column_sum_args *, struct err *);
    enum status (*column_scale)(struct device *, const struct column_scale_args *, struct err *);
    enum status (*row_norm)(struct device *, const struct row_norm_args *, struct err *);
    enum status (*divide)(struct device *, const struct divide_args *, struct err *);
    enum status (*convert)(struct device *, const struct convert_args *, struct err *);
    enum status (*convert_items)(struct device *, const struct convert_items_args *, struct err *);
    enum status (*dequantize)(struct device *, const struct dequantize_args *, struct err *);
};

/* What becomes of operations. Captured ones are written down for a graph; muted ones are checked
 * and counted, and that is all. */
enum device_mode { DEVICE_COMPUTES, DEVICE_CAPTURES, DEVICE_IS_MUTED };

struct device {
    const struct device_ops *ops;
    enum device_kind kind; /* the kind it computes as; for null, the kind it plans for */
    bool computes; /* false: a null device; values in memory mean nothing and must not be read */
    enum precision precision;
    bool deterministic, blocking;
    bool hurried; /* the first result is waited for: nothing is tried out that only later work gains
                     from. The trainer sets it until its first step is done */
    enum dtype activation_dtype;
    bool lora_tails;       /* LoRA rides in extra columns (op_linear_tail.c); tests may change it */
    char name[64];         /* "cpu", "null:cpu", ... */
    char detail[160];      /* for people: processor, threads, library, e.g. "AMD EPYC, 2 threads,
                         oneDNN 2.6.3 avx512" */
    int64_t granule_bytes; /* every allocation is a multiple of this: 512 */
    int64_t page_bytes;    /* commit and decommit work in multiples of this */
    int64_t workspace_bytes; /* for device_set_workspace; a pure function of kind */
    int64_t total_bytes;     /* physical memory of the device; for null, 2^46 */
    double flops;            /* counted so far by device.c */
    double bytes_moved;
    struct device_work work; /* the same, by class and size of call */
    uint64_t calls; /* hash over the sequence of operations, by their sizes: from the same start,
                       two equal sequences give the same */
    bool graphs;    /* device_capture_begin will work */
    enum device_mode mode;
    const struct device_ops *heard; /* the real table, while the device is muted */
    void *workspace;
    void *state;
};

struct device_options {
    enum precision precision; /* STATUS_UNSUPPORTED with the reason where there is no fast one */
    bool deterministic;       /* only algorithms that give the same bits every time */
    bool blocking; /* CUDA: wait after every operation and name the one that failed; slow */
};

/* name: "cpu", "cuda:N" (of those that CUDA_VISIBLE_DEVICES leaves), "null:cpu" or "null:cuda".
 * Caller frees with device_close. */
enum status device_open(struct device **out, const char *name, const struct device_options *options,
                        struct err *e);
void device_close(struct device *device);

/* Gives the scratch space of device->workspace_bytes; it must stay until the device is closed or
 * another is given. */
void device_set_workspace(struct device *device, void *workspace);

/* The operations: device_gemm(device, &(struct gemm_args){...}, e) and so on, one per slot above.
 * STATUS_INTERNAL for arguments that break the rules of their struct, STATUS_DEVICE for what the
 * hardware or a library reports. */
enum status device_reserve(struct device *, int64_t bytes, void **base, struct err *);
void device_unreserve(struct device *, void *base, int64_t bytes);
enum status device_commit(struct device *, void *at, int64_t bytes, struct err *);
void device_decommit(struct device *, void *at, int64_t bytes);
enum status device_upload(struct device *, void *to, const void *from, int64_t bytes, struct err *);
enum status device_download(struct device *, void *to, const void *from, int64_t bytes,
                            struct err *);
enum status device_copy(struct device *, void *to, const void *from, int64_t bytes, struct err *);
enum status device_fill_zero(struct device *, void *at, int64_t bytes, struct err *);
enum status device_upload_rows(struct device *, const struct transfer *, struct err *);
enum status device_download_rows(struct device *, const struct transfer *, struct err *);
/* For loaders: host memory that the device copies from by itself, at full speed. Free with
 * device_stage_free, after the last upload from it was waited for. */
enum status device_stage_new(struct device *, int64_t bytes, void **out, struct err *);
void device_stage_free(struct device *, void *at);
/* Like device_upload_rows, from memory of device_stage_new only; that must stay as it is until
 * device_stage_wait. Operations that are asked for later see the bytes. */
enum status device_stage_upload(struct device *, const struct transfer *, struct err *);
/* Waits until all but the last `pending` (at most STAGE_PENDING_MAX) stage uploads were read. */
enum { STAGE_PENDING_MAX = 15 };
enum status device_stage_wait(struct device *, int64_t pending, struct err *);
/* From the device to memory of device_stage_new, and back, beside the operations that are asked for
 * meanwhile; each begins when everything asked before it is done (a stash does not wait for
 * fetches). Until device_copies_wait nothing may write the source or use the destination. */
enum status device_stash(struct device *, void *host, const void *from, int64_t bytes,
                         struct err *);
enum status device_fetch(struct device *, void *to, const void *host, int64_t bytes, struct err *);
/* Whatever is asked from here on runs after all stashes and fetches asked so far. It is the device
 * that waits, not the host, which has to synchronize before it reads what was stashed. */
enum status device_copies_wait(struct device *, struct err *);
/* Waits for everything asked so far; the error of anything that failed on the way. */
enum status device_synchronize(struct device *, struct err *);
enum status device_memory(struct device *, struct device_memory *, struct err *);
/* Bytes of scratch that one attention wants (0 where none): a pure function of kind, precision and
 * sizes; pointers are not looked at. So the plan knows it. */
int64_t device_attention_scratch(const struct device *, const struct attention_args *,
                                 bool backward);

/* Graphs. From device_capture_begin to device_capture_end operations are written down instead of
 * computed; what a graph bakes in are the addresses and host numbers of their arguments, so it is
 * good only for the same ones. Between the two nothing may be transferred, committed or waited for:
 * STATUS_INTERNAL. device_capture_end must follow, also after an error; when it fails there is no
 * graph and nothing was computed. STATUS_UNSUPPORTED where device->graphs is false: CPU, null, and
 * devices opened `blocking`. */
enum status device_capture_begin(struct device *, struct err *);
enum status device_capture_end(struct device *, struct device_graph *out, struct err *);
/* Computes all of it, in stream order. */
enum status device_graph_launch(struct device *, const struct device_graph *, struct err *);
/* Waits for the device. A zeroed graph is fine. */
void device_graph_free(struct device *, struct device_graph *);
/* From here to device_unmute operations are checked and counted only: who launches a graph goes
 * through its operations again so, and all books are as if they had been computed one by one. */
void device_mute(struct device *);
void device_unmute(struct device *);

enum status device_gemm(struct device *, const struct gemm_args *, struct err *);
enum status device_rmsnorm(struct device *, const struct rmsnorm_args *, struct err *);
enum status device_rmsnorm_backward(struct device *, const struct rmsnorm_backward_args *,
                                    struct err *);
enum status device_rope(struct device *, const struct rope_args *, struct err *);
enum status device_attention(struct device *, const struct attention_args *, struct err *);
enum status device_attention_backward(struct device *, const struct attention_backward_args *,
                                      struct err *);
enum status device_glu(struct device *, const struct glu_args *, struct err *);
enum status device_glu_backward(struct device *, const struct glu_backward_args *, struct err *);
enum status device_embedding(struct device *, const struct embedding_args *, struct err *);
enum status device_embedding_backward(struct device *, const struct embedding_backward_args *,
                                      struct err *);
enum status device_cross_entropy(struct device *, const struct cross_entropy_args *, struct err *);
enum status device_softmax_stats(struct device *, const struct softmax_stats_args *, struct err *);
enum status device_split_cross_entropy(struct device *, const struct split_cross_entropy_args *,
                                       struct err *);
enum status device_adamw(struct device *, const struct adamw_args *, struct err *);
enum status device_sum_squares(struct device *, const struct sum_squares_args *, struct err *);
enum status device_clip(struct device *, const struct clip_args *, struct err *);
enum status device_loss_sums(struct device *, const struct loss_sums_args *, struct err *);
enum status device_dropout(struct device *, const struct dropout_args *, struct err *);
enum status device_gather_rows(struct device *, const struct rows_args *, struct err *);
enum status device_scatter_rows(struct device *, const struct rows_args *, struct err *);
enum status device_add(struct device *, const struct add_args *, struct err *);
enum status device_column_sum(struct device *, const struct column_sum_args *, struct err *);
enum status device_column_scale(struct device *, const struct column_scale_args *, struct err *);
enum status device_row_norm(struct device *, const struct row_norm_args *, struct err *);
enum status device_divide(struct device *, const struct divide_args *, struct err *);
enum status device_convert(struct device *, const struct convert_args *, struct err *);
enum status device_convert_items(struct device *, const struct convert_items_args *, struct err *);
enum status device_dequantize(struct device *, const struct dequantize_args *, struct err *);

#endif
