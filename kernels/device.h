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
 * better everywhere. Operations are deterministic: same inputs, same thread count, same bits. */
#ifndef PLIMSOLL_KERNELS_DEVICE_H
#define PLIMSOLL_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_I32, DTYPE_I64, DTYPE_COUNT };

/* Bytes of one element. */
int64_t dtype_bytes(enum dtype dtype);
/* "float32", "bfloat16", "int32", "int64". */
const char *dtype_name(enum dtype dtype);

enum device_kind { DEVICE_CPU, DEVICE_CUDA, DEVICE_KIND_COUNT };

/* A matrix operand: points into device memory, row-major, `ld` elements between rows. */
struct matrix {
    void *data;
    enum dtype dtype;
    int64_t ld;
};

/* C[m,n] = alpha * op(A)[m,k] * op(B)[k,n] + beta * C (+ bias[n] on every row).
 * op transposes when trans_* is set: A is stored [m,k] or, transposed, [k,m]; B is stored [k,n] or,
 * transposed, [n,k]. A and B: f32 or bf16, in any mix. C: f32. beta == 0 never reads C. The product
 * is rounded to bf16 inputs only when the device was opened with gemm_bf16. */
struct gemm_args {
    int64_t m, n, k;
    float alpha, beta;
    bool trans_a, trans_b;
    struct matrix a, b, c;
    const float *bias; /* [n] f32 or NULL */
};

/* Root-mean-square norm (Zhang & Sennrich 2019): y = x * rstd * (weight_offset + weight), rstd =
 * 1/sqrt(mean(x^2)+eps). Row (t,g) is the `width` elements at x + t*ld_x + g*width: groups > 1
 * normalises each head of a packed row by itself, with one shared weight[width]. If `residual` is
 * given, x + residual is normalised and also written to `sum` [tokens, groups*width] (contiguous;
 * residual has ld_x too). All f32. `rstd` is [tokens*groups]. */
struct rmsnorm_args {
    int64_t tokens, groups, width;
    const float *x;
    int64_t ld_x;
    const float *residual;
    float *sum;
    const float *weight; /* [width] */
    float weight_offset; /* 0, or 1 for Gemma */
    float eps;
    float *y;
    int64_t ld_y;
    float *rstd;
};

/* dx (+)= gradient of rmsnorm with respect to what was normalised; dweight += when it is not NULL.
 */
struct rmsnorm_backward_args {
    int64_t tokens, groups, width;
    const float *x; /* what was normalised (sum, if there was a residual) */
    int64_t ld_x;
    const float *weight;
    float weight_offset;
    const float *rstd; /* [tokens*groups] */
    const float *dy;
    int64_t ld_dy;
    float *dx;
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
    float *x;
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
 * out [T, H*D] contiguous; lse [H, T] is log-sum-exp. All f32. */
struct attention_args {
    int64_t tokens, heads, kv_heads, head_dim;
    int64_t segments;
    int64_t max_seqlen;        /* no document is longer */
    const int32_t *cu_seqlens; /* [segments+1], device memory */
    float scale, softcap;
    int64_t window; /* 0: none */
    const float *q, *k, *v;
    int64_t ld_q, ld_k, ld_v;
    float *out;
    float *lse;
};

/* Gradient of attention: writes dq, dk, dv (overwrites). `delta` [H, T] is scratch from the caller.
 */
struct attention_backward_args {
    struct attention_args forward; /* with out and lse as the forward left them */
    const float *dout;             /* [T, H*D] */
    float *dq, *dk, *dv;
    int64_t ld_dq, ld_dk, ld_dv;
    float *delta;
};

enum activation { ACTIVATION_SILU, ACTIVATION_GELU_TANH };

/* Gated linear unit (Shazeer 2020): out[t,f] = act(gate_up[t,f]) * gate_up[t,F+f]. gate_up [T,2F],
 * out [T,F]. f32. */
struct glu_args {
    int64_t tokens, width; /* width = F */
    enum activation activation;
    const float *gate_up;
    float *out;
};

/* dgate_up [T,2F] (may be gate_up itself). */
struct glu_backward_args {
    int64_t tokens, width;
    enum activation activation;
    const float *gate_up;
    const float *dout;
    float *dgate_up;
};

/* out[t,:] = scale * table[ids[t],:]. table [V,C] f32 or bf16; out [T,C] f32. Ids are checked by
 * the text rooms. */
struct embedding_args {
    int64_t tokens, channels, vocab;
    const int32_t *ids;
    const void *table;
    enum dtype table_dtype;
    float scale;
    float *out;
};

/* dtable[ids[t],:] += scale * dout[t,:], summed in token order. dtable [V,C] f32. */
struct embedding_backward_args {
    int64_t tokens, channels, vocab;
    const int32_t *ids;
    const float *dout;
    float scale;
    float *dtable;
};

/* Softmax cross-entropy over `rows` rows of logits [rows,V] f32. labels[i] in 0..V-1. With softcap
 * > 0 the logits are capped first. losses[i] = -log p(label); correct[i] = 1 if the label has the
 * (first) largest logit, else 0. If write_gradient, logits become gradient: grad_scale * d(sum of
 * losses)/d(logits); otherwise they are destroyed. */
struct cross_entropy_args {
    int64_t rows, vocab;
    float *logits;
    const int32_t *labels; /* [rows] */
    float softcap;
    float grad_scale;
    bool write_gradient;
    float *losses;    /* [rows] */
    int32_t *correct; /* [rows] */
};

/* AdamW (Loshchilov & Hutter 2019), in the order of torch.optim.AdamW, over a flat range; all f32.
 * g = *grad_scale * grad; p *= 1 - lr*weight_decay; m, v updated; p -= lr/(1-beta1^step) * m /
 * (sqrt(v/(1-beta2^step)) + eps) */
struct adamw_args {
    int64_t count;
    float *param;
    const float *grad;
    float *m, *v;
    const float *grad_scale; /* one device value: the clip coefficient */
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step; /* 1 for the first update */
};

/* *out += sum of x[i]^2 (f32 result of a wider accumulation). */
struct sum_squares_args {
    int64_t count;
    const float *x;
    double *out;
};

/* norm = sqrt(*sum_squares); *coefficient = max_norm > 0 ? min(1, max_norm / (norm + 1e-6)) : 1; as
 * torch.nn.utils.clip_grad_norm_. All are device values. */
struct clip_args {
    const double *sum_squares;
    float max_norm;
    float *norm;
    float *coefficient;
};

/* y[t,n] = keep(t,n) ? x[t,n] / (1-p) : 0, with keep drawn by Philox4x32-10 (Salmon et al. 2011)
 * from (seed, stream, row_keys[t], n): never from call order. The gradient is the same operation on
 * dy. `accumulate` adds to y. row_keys is [rows] i64; the caller makes it from (sample, position),
 * `stream` from (step, layer, module). */
struct dropout_args {
    int64_t rows, width;
    const float *x;
    float *y;
    float p;
    uint64_t seed, stream;
    const int64_t *row_keys;
    bool accumulate;
};

/* dst[i,:] = src[index[i],:] (gather), or dst[index[i],:] = src[i,:] (scatter; indices are
 * distinct). Width in f32. */
struct rows_args {
    int64_t rows, width;
    const int32_t *index; /* [rows] */
    const float *src;
    float *dst;
};

/* out[i] = a[i] + b[i]; out may be a or b. */
struct add_args {
    int64_t count;
    const float *a, *b;
    float *out;
};

/* out[n] = (accumulate ? out[n] : 0) + sum over t of x[t,n] * (y ? y[t,n] : 1). x and y [rows,
 * cols] with ld. */
struct column_sum_args {
    int64_t rows, cols;
    const float *x;
    int64_t ld_x;
    const float *y; /* NULL: sum of x alone */
    int64_t ld_y;
    float *out;
    bool accumulate;
};

/* out[t,n] = (accumulate ? out[t,n] : 0) + x[t,n] * scale[n] + (bias ? bias[n] : 0). out may be x.
 */
struct column_scale_args {
    int64_t rows, cols;
    const float *x;
    int64_t ld_x;
    const float *scale; /* [cols] or NULL: ones */
    const float *bias;  /* [cols] or NULL */
    float *out;
    int64_t ld_out;
    bool accumulate;
};

/* out[r] = sqrt(sum over n of x[r,n]^2). */
struct row_norm_args {
    int64_t rows, cols;
    const float *x;
    int64_t ld;
    float *out;
};

/* out[i] = a[i] / b[i]. */
struct divide_args {
    int64_t count;
    const float *a, *b;
    float *out;
};

/* dst[r,n] = src[r,n] with conversion between f32 and bf16 (round to nearest even; NaN stays NaN).
 */
struct convert_args {
    int64_t rows, cols;
    struct matrix src, dst;
};

struct device;

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
    enum status (*adamw)(struct device *, const struct adamw_args *, struct err *);
    enum status (*sum_squares)(struct device *, const struct sum_squares_args *, struct err *);
    enum status (*clip)(struct device *, const struct clip_args *, struct err *);
    enum status (*dropout)(struct device *, const struct dropout_args *, struct err *);
    enum status (*gather_rows)(struct device *, const struct rows_args *, struct err *);
    enum status (*scatter_rows)(struct device *, const struct rows_args *, struct err *);
    enum status (*add)(struct device *, const struct add_args *, struct err *);
    enum status (*column_sum)(struct device *, const struct column_sum_args *, struct err *);
    enum status (*column_scale)(struct device *, const struct column_scale_args *, struct err *);
    enum status (*row_norm)(struct device *, const struct row_norm_args *, struct err *);
    enum status (*divide)(struct device *, const struct divide_args *, struct err *);
    enum status (*convert)(struct device *, const struct convert_args *, struct err *);
};

struct device {
    const struct device_ops *ops;
    enum device_kind kind; /* the kind it computes as; for null, the kind it plans for */
    bool computes;    /* false: a null device; values in memory mean nothing and must not be read */
    bool gemm_bf16;   /* products take bf16 inputs (autocast) */
    char name[64];    /* "cpu", "null:cpu", ... */
    char detail[160]; /* for people: processor, threads, library, e.g. "AMD EPYC, 2 threads,
                         oneDNN 2.6.3 avx512" */
    int64_t granule_bytes;   /* every allocation is a multiple of this: 512 */
    int64_t page_bytes;      /* commit and decommit work in multiples of this */
    int64_t workspace_bytes; /* scratch that the engine gives with device_set_workspace; a pure
                                function of kind */
    int64_t total_bytes;     /* physical memory of the device; for null, 2^46 */
    double flops;            /* counted so far by device.c */
    double bytes_moved;
    void *workspace;
    void *state;
};

/* name: "cpu", "cuda:N", "null:cpu" or "null:cuda". gemm_bf16 asks for bf16 products;
 * STATUS_UNSUPPORTED with the reason where the device has no fast ones. Caller frees with
 * device_close. */
enum status device_open(struct device **out, const char *name, bool gemm_bf16, struct err *e);
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
enum status device_adamw(struct device *, const struct adamw_args *, struct err *);
enum status device_sum_squares(struct device *, const struct sum_squares_args *, struct err *);
enum status device_clip(struct device *, const struct clip_args *, struct err *);
enum status device_dropout(struct device *, const struct dropout_args *, struct err *);
enum status device_gather_rows(struct device *, const struct rows_args *, struct err *);
enum status device_scatter_rows(struct device *, const struct rows_args *, struct err *);
enum status device_add(struct device *, const struct add_args *, struct err *);
enum status device_column_sum(struct device *, const struct column_sum_args *, struct err *);
enum status device_column_scale(struct device *, const struct column_scale_args *, struct err *);
enum status device_row_norm(struct device *, const struct row_norm_args *, struct err *);
enum status device_divide(struct device *, const struct divide_args *, struct err *);
enum status device_convert(struct device *, const struct convert_args *, struct err *);

#endif
