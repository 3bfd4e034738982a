/* cases_attention.c - attention and its gradient over packed documents.
 *
 * n: tokens, layout (the length of every document, or one of enum layout), query heads,
 * key/value heads, head_dim, window, whose kernels (0: what the device chooses, 1: ours, without
 * cuDNN), elements of padding in every ld. x: softcap. q, k and v are views into one packed
 * array. Long packings are compared in their first document only, since the CPU needs seconds
 * for all of them; those of one-token documents have gradients of q and k that are zero but for
 * rounding. FLOPs count visible pairs: 4*H*D a pair forward, 10*H*D backward. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cuda/cuda.h"
#include "tests/gpu/cases.h"

/* Lengths 1..300 at random, some empty; one long document among single tokens. */
enum layout { RAGGED = -1, SHORT_AND_LONG = -2 };
enum { DEVICE_CHOOSES, OURS, AMPERE, ADA };
enum { COMPARED_TOKENS = 4096, RAGGED_MAX = 300, LONG_DOCUMENT = 1500 };

struct attention_case {
    const struct gpu_case *c;
    struct gpu_array *qkv, *out, *lse, *dout, *dq, *dk, *dv, *cu;
    void *scratch[SIDE_COUNT];
    int64_t segments, max_seqlen;
    int64_t cpu_tokens; /* all, or the first document */
    double pairs;
};

static int64_t next_length(struct gpu_test *t, int64_t layout, int64_t at, int64_t tokens) {
    const int64_t left = tokens - at;
    int64_t length = layout;
    if (layout == RAGGED) {
        const int64_t drawn = (int64_t)(gpu_next(t) % (RAGGED_MAX + 20));
        length = drawn > RAGGED_MAX ? 0 : drawn;
    }
    if (layout == SHORT_AND_LONG) length = at == tokens / 2 ? LONG_DOCUMENT : 1;
    return length < left ? length : left;
}

static double visible_pairs(int64_t length, int64_t window) {
    const double n = (double)length;
    const double w = window > 0 && window < length ? (double)window : n;
    return w * (w + 1) / 2 + (n - w) * w;
}

static void make_documents(struct gpu_test *t, struct attention_case *a) {
    const int64_t tokens = a->c->n[0];
    int32_t *cu = mem_new((size_t)tokens * 2 + 2, sizeof *cu);
    int64_t at = 0;
    cu[0] = 0;
    while (at < tokens) {
        const int64_t length = next_length(t, a->c->n[1], at, tokens);
        /* Empty documents happen, but not so many that the table would run over. */
        if (length == 0 && a->segments > tokens) continue;
        at += length;
        cu[++a->segments] = (int32_t)at;
        a->pairs += visible_pairs(length, a->c->n[5]);
        if (length > a->max_seqlen) a->max_seqlen = length;
    }
    a->cu = gpu_values(t, cu, a->segments + 1, DTYPE_I32);
    a->cpu_tokens = tokens > COMPARED_TOKENS ? cu[1] : tokens;
    mem_free(cu);
}

static struct attention_args arguments(const struct attention_case *a, enum side side) {
    const int64_t *n = a->c->n, heads = n[2], kv_heads = n[3], dim = n[4];
    const bool part = side == SIDE_CPU && a->cpu_tokens < n[0];
    const int64_t bytes = dtype_bytes(gpu_dtype(a->qkv, side));
    char *q = a->qkv->at[side];
    return (struct attention_args){
        .tokens = part ? a->cpu_tokens : n[0],
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = dim,
        .segments = part ? 1 : a->segments,
        .max_seqlen = part ? a->cpu_tokens : a->max_seqlen,
        .cu_seqlens = a->cu->at[side],
        .scale = (float)(1 / sqrt((double)dim)),
        .softcap = (float)a->c->x[0],
        .window = n[5],
        .dtype = gpu_dtype(a->qkv, side),
        .q = q,
        .k = q + heads * dim * bytes,
        .v = q + (heads + kv_heads) * dim * bytes,
        .ld_q = a->qkv->ld,
        .ld_k = a->qkv->ld,
        .ld_v = a->qkv->ld,
        .out = a->out->at[side],
        .ld_out = a->out->ld,
        .lse = a->lse->at[side],
        .scratch = a->scratch[side],
    };
}

static struct attention_backward_args backward_arguments(const struct attention_case *a,
                                                         enum side side) {
    return (struct attention_backward_args){.forward = arguments(a, side),
                                            .dout = a->dout->at[side],
                                            .ld_dout = a->dout->ld,
                                            .dq = a->dq->at[side],
                                            .dk = a->dk->at[side],
                                            .dv = a->dv->at[side],
                                            .ld_dq = a->dq->ld,
                                            .ld_dk = a->dk->ld,
                                            .ld_dv = a->dv->ld};
}

/* What is changed about the card while our own kernels run: no cuDNN; AMPERE and ADA also make it
 * pass for a card of 8.0 or 8.9, whose kernels it can run. */
struct disguise {
    struct cuda_dnn *dnn;
    int capability;
    int64_t shared_bytes;
};

static struct disguise put_on(struct cuda_state *card, int64_t which) {
    const struct disguise before = {card->dnn, card->capability, card->shared_bytes};
    if (which != DEVICE_CHOOSES) card->dnn = NULL;
    if (which >= AMPERE) card->capability = which == ADA ? 89 : 80;
    if (which >= AMPERE) card->shared_bytes = (which == ADA ? 99 : 163) * 1024;
    return before;
}

static void take_off(struct cuda_state *card, struct disguise before) {
    card->dnn = before.dnn;
    card->capability = before.capability;
    card->shared_bytes = before.shared_bytes;
}

static enum status run_forward(struct device *device, enum side side, void *context,
                               struct err *e) {
    const struct attention_case *a = context;
    const struct attention_args args = arguments(a, side);
    if (side == SIDE_CPU) return device_attention(device, &args, e);
    struct cuda_state *const card = cuda_state_of(device);
    const struct disguise before = put_on(card, a->c->n[6]);
    const enum status status = device_attention(device, &args, e);
    take_off(card, before);
    return status;
}

static enum status run_backward(struct device *device, enum side side, void *context,
                                struct err *e) {
    const struct attention_case *a = context;
    const struct attention_backward_args args = backward_arguments(a, side);
    if (side == SIDE_CPU) return device_attention_backward(device, &args, e);
    struct cuda_state *const card = cuda_state_of(device);
    const struct disguise before = put_on(card, a->c->n[6]);
    const enum status status = device_attention_backward(device, &args, e);
    take_off(card, before);
    return status;
}

static void make_arrays(struct gpu_test *t, struct attention_case *a) {
    const int64_t *n = a->c->n, tokens = n[0], pad = n[7];
    const int64_t wide = n[2] * n[4], narrow = n[3] * n[4];
    const enum dtype dtype = a->c->dtype;
    make_documents(t, a);
    a->qkv = gpu_random(t, tokens, wide + 2 * narrow, wide + 2 * narrow + pad, dtype, 1);
    a->dout = gpu_random(t, tokens, wide, wide + pad, dtype, 1);
    a->out = gpu_output(t, tokens, wide, wide + pad, dtype);
    a->lse = gpu_output(t, n[2], tokens, tokens, DTYPE_F32);
    a->dq = gpu_output(t, tokens, wide, wide + pad, dtype);
    a->dk = gpu_output(t, tokens, narrow, narrow + pad, dtype);
    a->dv = gpu_output(t, tokens, narrow, narrow + pad, dtype);
    for (enum side side = 0; side < SIDE_COUNT; side++) {
        struct device *device = gpu_device(t, side);
        const struct attention_args args = arguments(a, side);
        const int64_t forward = device_attention_scratch(device, &args, false);
        const int64_t backward = device_attention_scratch(device, &args, true);
        a->scratch[side] = gpu_scratch(t, side, forward > backward ? forward : backward);
    }
}

/* Compares the rows that the CPU has computed. dS is rounded to 16 bits before it is multiplied,
 * and delta comes from a rounded out, hence twice the tolerance of one rounding. */
static void compare(struct gpu_test *t, const struct attention_case *a, struct gpu_array *array,
                    const char *what) {
    struct gpu_array rows = *array;
    rows.rows = a->cpu_tokens;
    gpu_compare(t, &rows, what, array == a->out ? 0 : 2 * gpu_tolerance(array->dtype));
}

/* Where every token sees itself alone, dS is zero but for the rounding of dout * out. */
static void expect_zeros(struct gpu_test *t, const struct gpu_array *array, const char *what) {
    float *got = gpu_read(t, array, SIDE_GPU);
    for (int64_t i = 0; i < array->rows * array->cols; i++) {
        gpu_expect(t, fabsf(got[i]) < 0.05f, "%s: element %lld is %g, not near zero", what,
                   (long long)i, (double)got[i]);
    }
    mem_free(got);
}

static void compare_forward(struct gpu_test *t, const struct attention_case *a) {
    compare(t, a, a->out, "out");
    /* cuDNN's statistics have a layout of their own. */
    if (a->cpu_tokens == a->c->n[0] && (a->c->n[6] != DEVICE_CHOOSES || a->c->dtype == DTYPE_F32))
        gpu_compare(t, a->lse, "lse", 1e-5);
}

static enum status forward_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    struct attention_case a = {.c = c};
    make_arrays(t, &a);
    TRY(gpu_run(t, run_forward, &a, e));
    compare_forward(t, &a);
    return gpu_time(t, run_forward, &a, 0, 4 * a.pairs * (double)(c->n[2] * c->n[4]), e);
}

/* Deterministic devices must give the same bits a second time. */
static enum status run_again(struct gpu_test *t, struct attention_case *a, struct err *e) {
    struct gpu_array *const arrays[] = {a->dq, a->dk, a->dv};
    float *before[COUNT_OF(arrays)];
    for (size_t i = 0; i < COUNT_OF(arrays); i++) {
        before[i] = gpu_read(t, arrays[i], SIDE_GPU);
    }
    const enum status status = run_backward(gpu_device(t, SIDE_GPU), SIDE_GPU, a, e);
    for (size_t i = 0; i < COUNT_OF(arrays); i++) {
        float *after = gpu_read(t, arrays[i], SIDE_GPU);
        const size_t bytes = (size_t)(arrays[i]->rows * arrays[i]->cols) * sizeof *after;
        gpu_expect(t, memcmp(before[i], after, bytes) == 0, "a second run gave other bits");
        mem_free(after);
        mem_free(before[i]);
    }
    return status;
}

static enum status backward_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    struct attention_case a = {.c = c};
    make_arrays(t, &a);
    TRY(gpu_run(t, run_forward, &a, e));
    compare_forward(t, &a);
    TRY(gpu_run(t, run_backward, &a, e));
    if (a.max_seqlen > 1 && c->n[5] != 1) {
        compare(t, &a, a.dq, "dq");
        compare(t, &a, a.dk, "dk");
    } else {
        expect_zeros(t, a.dq, "dq");
        expect_zeros(t, a.dk, "dk");
    }
    compare(t, &a, a.dv, "dv");
    if (c->deterministic) TRY(run_again(t, &a, e));
    return gpu_time(t, run_backward, &a, 0, 10 * a.pairs * (double)(c->n[2] * c->n[4]), e);
}

#define CASE(label, how, type, ...)                                                                \
    {                                                                                              \
        .name = "attention" label, .run = how, .dtype = type, .n = { __VA_ARGS__ }                 \
    }
#define CAPPED(label, type, cap, ...)                                                              \
    {                                                                                              \
        .name = "attention" label, .run = backward_case, .dtype = type, .n = {__VA_ARGS__}, .x = { \
            cap                                                                                    \
        }                                                                                          \
    }
#define FIXED(label, type, ...)                                                                    \
    {                                                                                              \
        .name = "attention" label, .run = backward_case, .dtype = type, .deterministic = true,     \
        .n = {                                                                                     \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define BOTH(label, ...)                                                                           \
    CASE(label, backward_case, DTYPE_BF16, __VA_ARGS__),                                           \
        CASE(label, backward_case, DTYPE_F16, __VA_ARGS__)
#define PLAIN(label, ...) CASE(label, backward_case, DTYPE_F32, __VA_ARGS__)
/* Forward and backward, by what the device chooses and by us. */
#define TIMED(label, tokens, documents, heads, kv_heads, dim)                                      \
    CASE("/" label, forward_case, DTYPE_BF16, tokens, documents, heads, kv_heads, dim),            \
        CASE("-backward/" label, backward_case, DTYPE_BF16, tokens, documents, heads, kv_heads,    \
             dim),                                                                                 \
        CASE("-ours/" label, forward_case, DTYPE_BF16, tokens, documents, heads, kv_heads, dim, 0, \
             OURS),                                                                                \
        CASE("-ours-backward/" label, backward_case, DTYPE_BF16, tokens, documents, heads,         \
             kv_heads, dim, 0, OURS)

static const struct gpu_case CASES[] = {
    BOTH("/one-token", 1, 1, 2, 1, 64, 0, OURS),
    BOTH("/all-one-token", 700, 1, 2, 1, 64, 0, OURS),
    BOTH("/d64", 1000, RAGGED, 4, 2, 64, 0, OURS),
    BOTH("/d80", 1000, RAGGED, 4, 1, 80, 0, OURS, 8),
    BOTH("/d96", 1000, RAGGED, 2, 2, 96, 0, OURS),
    BOTH("/d128", 1000, RAGGED, 8, 1, 128, 0, OURS, 64),
    BOTH("/d256", 1000, RAGGED, 4, 2, 256, 0, OURS),
    BOTH("/d8", 700, RAGGED, 4, 2, 8, 0, OURS),
    BOTH("/d112", 700, RAGGED, 2, 1, 112, 0, OURS),
    BOTH("/d192", 700, RAGGED, 2, 1, 192, 0, OURS),
    BOTH("/short-and-long", 4000, SHORT_AND_LONG, 2, 1, 64, 0, OURS),
    BOTH("/one-document", 2048, 2048, 4, 2, 128, 0, OURS),
    BOTH("/not-a-block", 2047, 2047, 2, 1, 64, 0, OURS),
    BOTH("/groups-8", 900, 300, 16, 2, 64, 0, OURS),
    BOTH("/window-1", 1500, RAGGED, 2, 1, 64, 1, OURS),
    BOTH("/window-100", 2000, 1000, 4, 2, 128, 100, OURS),
    BOTH("/window-64", 2000, 1000, 2, 1, 256, 64, OURS),
    BOTH("/window-whole", 1000, 500, 2, 1, 64, 4096, OURS),
    BOTH("/odd-20", 900, RAGGED, 4, 2, 20, 0, OURS),
    BOTH("/odd-130", 500, RAGGED, 2, 1, 130, 0, OURS),
    BOTH("/unaligned", 700, RAGGED, 4, 2, 64, 0, OURS, 3),
    CAPPED("/cap-64", DTYPE_BF16, 2, 1000, RAGGED, 4, 2, 64, 0, OURS),
    CAPPED("/cap-256-window", DTYPE_BF16, 1, 1000, RAGGED, 4, 2, 256, 90, OURS),
    CAPPED("/cap-128", DTYPE_F16, 50, 1000, RAGGED, 4, 2, 128, 0, OURS),
    CAPPED("/cap-20", DTYPE_F32, 1.5, 700, RAGGED, 4, 2, 20, 70, OURS),
    FIXED("/fixed-64", DTYPE_BF16, 1000, RAGGED, 4, 2, 64),
    FIXED("/fixed-80", DTYPE_F16, 1000, RAGGED, 4, 2, 80, 77),
    FIXED("/fixed-96", DTYPE_BF16, 1000, RAGGED, 4, 4, 96),
    FIXED("/fixed-128", DTYPE_BF16, 2000, 1000, 8, 2, 128),
    FIXED("/fixed-256", DTYPE_F16, 1000, RAGGED, 4, 2, 256),
    FIXED("/fixed-plain", DTYPE_F32, 1000, RAGGED, 4, 2, 64),
    PLAIN("/f32-8", 700, RAGGED, 4, 2, 8),
    PLAIN("/f32-20", 700, RAGGED, 4, 1, 20, 0, 0, 3),
    PLAIN("/f32-32-window", 1000, 500, 4, 2, 32, 37),
    PLAIN("/f32-64", 2048, 1024, 9, 3, 64),
    PLAIN("/f32-80", 700, RAGGED, 2, 1, 80),
    PLAIN("/f32-128", 1024, RAGGED, 4, 2, 128),
    PLAIN("/f32-256", 600, RAGGED, 2, 1, 256),
    BOTH("/ampere-64", 1000, RAGGED, 4, 2, 64, 0, AMPERE),
    BOTH("/ampere-128", 1000, RAGGED, 4, 2, 128, 0, AMPERE),
    BOTH("/ampere-256", 1000, RAGGED, 2, 1, 256, 0, AMPERE),
    BOTH("/ampere-window", 2000, 1000, 4, 2, 128, 100, AMPERE),
    CAPPED("/ampere-cap", DTYPE_BF16, 2, 1000, RAGGED, 4, 2, 128, 0, AMPERE),
    BOTH("/ada-96", 1000, RAGGED, 4, 2, 96, 0, ADA),
    BOTH("/ada-128", 1000, RAGGED, 4, 2, 128, 50, ADA),
    BOTH("/ada-256", 1000, RAGGED, 2, 1, 256, 0, ADA),
    BOTH("/chosen-d64", 2000, RAGGED, 4, 2, 64),
    BOTH("/chosen-d128", 2000, RAGGED, 8, 2, 128),
    BOTH("/chosen-window", 2000, 1000, 4, 2, 128, 100),
    TIMED("8b-2048", 8192, 2048, 32, 8, 128),
    CASE("-ampere/8b-2048", forward_case, DTYPE_BF16, 8192, 2048, 32, 8, 128, 0, AMPERE),
    CASE("-ampere-backward/8b-2048", backward_case, DTYPE_BF16, 8192, 2048, 32, 8, 128, 0, AMPERE),
    TIMED("8b-4096", 16384, 4096, 32, 8, 128),
    TIMED("0.5b-2048", 16384, 2048, 14, 2, 64),
    TIMED("135m-1024", 8192, 1024, 9, 3, 64),
    TIMED("gemma-2048", 8192, 2048, 8, 4, 256),
};

const struct gpu_suite gpu_suite_attention = {"attention", CASES, COUNT_OF(CASES)};
