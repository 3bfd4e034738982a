/* cases_cudnn.c - attention by cuDNN over packings that differ in one thing each.
 *
 * n: layout, query heads, key/value heads, head_dim, window, elements of padding in every ld.
 * Every row of out, dq, dk and dv is compared, and a failure says in which documents the wrong rows
 * are: the library finds the documents by offsets, so the first may be right where the others are
 * not. What the library is not proven for is computed by our own kernels and must be right all the
 * same; with PLIMSOLL_CUDNN=all in the environment a case fails unless the library has taken it. A
 * pass of all cases there is the proof that the table in cudnn_attention.c asks for. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda.h"
#include "tests/gpu/cases.h"

enum { DOCUMENTS_MAX = 16 };
enum layout {
    ONE,           /* one document of whole tiles: no offset but zero */
    ONE_PARTIAL,   /* its last tile is not full */
    EQUAL,         /* offsets that are multiples of the plan's length */
    EQUAL_SPARE,   /* fewer documents than the plan has room for */
    EQUAL_SHORT,   /* whole tiles, shorter than the plan's length */
    EQUAL_PARTIAL, /* last tiles that are not full, before another document */
    TILES,         /* lengths that differ, all of whole tiles */
    LAST_PARTIAL,  /* the same, but the last */
    EMPTY_INSIDE,  /* an empty document between others */
    SHORT,         /* shorter than a tile or about one */
    RAGGED         /* all of it */
};

static const struct {
    int64_t count;
    int32_t length[DOCUMENTS_MAX];
} LAYOUTS[] = {
    [ONE] = {1, {1024}},
    [ONE_PARTIAL] = {1, {1000}},
    [EQUAL] = {4, {512, 512, 512, 512}},
    [EQUAL_SPARE] = {3, {512, 512, 512}},
    [EQUAL_SHORT] = {4, {384, 384, 384, 384}},
    [EQUAL_PARTIAL] = {4, {500, 500, 500, 500}},
    [TILES] = {4, {128, 512, 256, 384}},
    [LAST_PARTIAL] = {4, {128, 512, 256, 100}},
    [EMPTY_INSIDE] = {4, {512, 0, 512, 256}},
    [SHORT] = {16, {1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 63, 64, 65, 127, 129}},
    [RAGGED] = {13, {300, 1, 0, 257, 64, 128, 511, 0, 33, 129, 300, 270, 7}},
};

struct packing {
    const struct gpu_case *c;
    struct gpu_array *qkv, *out, *lse, *dout, *dq, *dk, *dv, *cu;
    void *scratch[SIDE_COUNT];
    int32_t starts[DOCUMENTS_MAX + 1];
    int64_t documents, tokens, max_seqlen;
};

static struct attention_args arguments(const struct packing *p, enum side side) {
    const int64_t *n = p->c->n, heads = n[1], kv_heads = n[2], dim = n[3];
    const int64_t bytes = dtype_bytes(gpu_dtype(p->qkv, side));
    char *q = p->qkv->at[side];
    return (struct attention_args){
        .tokens = p->tokens,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = dim,
        .segments = p->documents,
        .max_seqlen = p->max_seqlen,
        .cu_seqlens = p->cu->at[side],
        .scale = (float)(1 / sqrt((double)dim)),
        .window = n[4],
        .dtype = gpu_dtype(p->qkv, side),
        .q = q,
        .k = q + heads * dim * bytes,
        .v = q + (heads + kv_heads) * dim * bytes,
        .ld_q = p->qkv->ld,
        .ld_k = p->qkv->ld,
        .ld_v = p->qkv->ld,
        .out = p->out->at[side],
        .ld_out = p->out->ld,
        .lse = p->lse->at[side],
        .scratch = p->scratch[side],
    };
}

static enum status run_forward(struct device *device, enum side side, void *context,
                               struct err *e) {
    const struct attention_args args = arguments(context, side);
    return device_attention(device, &args, e);
}

static enum status run_backward(struct device *device, enum side side, void *context,
                                struct err *e) {
    const struct packing *p = context;
    const struct attention_backward_args args = {.forward = arguments(p, side),
                                                 .dout = p->dout->at[side],
                                                 .ld_dout = p->dout->ld,
                                                 .dq = p->dq->at[side],
                                                 .dk = p->dk->at[side],
                                                 .dv = p->dv->at[side],
                                                 .ld_dq = p->dq->ld,
                                                 .ld_dk = p->dk->ld,
                                                 .ld_dv = p->dv->ld};
    return device_attention_backward(device, &args, e);
}

static void make_documents(struct gpu_test *t, struct packing *p) {
    p->documents = LAYOUTS[p->c->n[0]].count;
    for (int64_t i = 0; i < p->documents; i++) {
        const int32_t length = LAYOUTS[p->c->n[0]].length[i];
        p->starts[i + 1] = p->starts[i] + length;
        if (length > p->max_seqlen) p->max_seqlen = length;
    }
    p->tokens = p->starts[p->documents];
    p->cu = gpu_values(t, p->starts, p->documents + 1, DTYPE_I32);
}

static void make_arrays(struct gpu_test *t, struct packing *p) {
    const int64_t *n = p->c->n, pad = n[5];
    const int64_t wide = n[1] * n[3], narrow = n[2] * n[3];
    const enum dtype dtype = p->c->dtype;
    make_documents(t, p);
    p->qkv = gpu_random(t, p->tokens, wide + 2 * narrow, wide + 2 * narrow + pad, dtype, 1);
    p->dout = gpu_random(t, p->tokens, wide, wide + pad, dtype, 1);
    p->out = gpu_output(t, p->tokens, wide, wide + 2 * pad, dtype);
    p->lse = gpu_output(t, 1, n[1] * p->tokens, n[1] * p->tokens, DTYPE_F32);
    p->dq = gpu_output(t, p->tokens, wide, wide + pad, dtype);
    p->dk = gpu_output(t, p->tokens, narrow, narrow + pad, dtype);
    p->dv = gpu_output(t, p->tokens, narrow, narrow + pad, dtype);
    for (enum side side = 0; side < SIDE_COUNT; side++) {
        struct device *device = gpu_device(t, side);
        const struct attention_args args = arguments(p, side);
        const int64_t forward = device_attention_scratch(device, &args, false);
        const int64_t backward = device_attention_scratch(device, &args, true);
        p->scratch[side] = gpu_scratch(t, side, forward > backward ? forward : backward);
    }
}

/* True where the library computes this case; a failure where it was asked to and does not. */
static bool is_by_library(struct gpu_test *t, const struct packing *p) {
    struct device *device = gpu_device(t, SIDE_GPU);
    const struct attention_args args = arguments(p, SIDE_GPU);
    const char *wish = cuda_environment("PLIMSOLL_CUDNN");
    const bool found = cuda_state_of(device)->dnn != NULL;
    const bool takes = found && cuda_dnn_supports(device, &args);
    if (wish && strcmp(wish, "all") == 0)
        gpu_expect(t, takes, "cuDNN does not take it: %s",
                   found ? cuda_dnn_reason(device) : "the library was not found");
    return takes;
}

/* Rows whose error is beyond eight times the tolerance, of the row or of the typical row. */
struct wrong {
    int64_t rows, nan_rows, first, in_first_document;
};

static struct wrong find_wrong(const struct packing *p, const float *want, const float *got,
                               int64_t cols, double tolerance) {
    struct wrong found = {.first = -1};
    double size = 0;
    for (int64_t i = 0; i < p->tokens * cols; i++) {
        size += (double)want[i] * (double)want[i];
    }
    const double typical = size / (double)p->tokens, limit = 64 * tolerance * tolerance;
    for (int64_t row = 0; row < p->tokens; row++) {
        double difference = 0, own = 0;
        for (int64_t i = row * cols; i < (row + 1) * cols; i++) {
            const double d = (double)got[i] - (double)want[i];
            difference += d * d;
            own += (double)want[i] * (double)want[i];
        }
        if (difference <= limit * (own > typical ? own : typical)) continue;
        if (found.rows++ == 0) found.first = row;
        found.nan_rows += isnan(difference) ? 1 : 0;
        found.in_first_document += row < p->starts[1] ? 1 : 0;
    }
    return found;
}

/* Appends where `a` is wrong to `text`, if it is. */
static void locate(struct gpu_test *t, const struct packing *p, const struct gpu_array *a,
                   const char *what, char text[480]) {
    float *const want = gpu_read(t, a, SIDE_CPU), *const got = gpu_read(t, a, SIDE_GPU);
    const struct wrong w = find_wrong(p, want, got, a->cols, 2 * gpu_tolerance(a->dtype));
    mem_free(got);
    mem_free(want);
    if (w.rows == 0) return;
    int64_t document = 0;
    while (p->starts[document + 1] <= w.first) {
        document++;
    }
    const size_t used = strlen(text);
    snprintf(text + used, 480 - used,
             "%s: %lld of %lld rows wrong (%lld NaN, %lld in document 0), from row %lld of "
             "document %lld; ",
             what, (long long)w.rows, (long long)p->tokens, (long long)w.nan_rows,
             (long long)w.in_first_document, (long long)(w.first - p->starts[document]),
             (long long)document);
}

/* cuDNN keeps lse by tokens, the CPU by heads. */
static void compare_statistics(struct gpu_test *t, const struct packing *p) {
    const int64_t heads = p->c->n[1];
    float *const want = gpu_read(t, p->lse, SIDE_CPU), *const got = gpu_read(t, p->lse, SIDE_GPU);
    int64_t wrong = 0, first = -1;
    for (int64_t i = 0; i < p->tokens * heads; i++) {
        const float own = got[i], right = want[i % heads * p->tokens + i / heads];
        if (fabsf(own - right) <= 1e-3f * (1 + fabsf(right))) continue;
        if (wrong++ == 0) first = i / heads;
    }
    mem_free(got);
    mem_free(want);
    gpu_expect(t, wrong == 0, "statistics: %lld of %lld wrong, from token %lld on",
               (long long)wrong, (long long)(p->tokens * heads), (long long)first);
}

static enum status both_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    struct packing p = {.c = c};
    char text[480] = "";
    make_arrays(t, &p);
    const bool by_library = is_by_library(t, &p);
    TRY(gpu_run(t, run_forward, &p, e));
    locate(t, &p, p.out, "out", text);
    gpu_expect(t, text[0] == '\0', "%s", text);
    if (by_library) compare_statistics(t, &p);
    TRY(gpu_run(t, run_backward, &p, e));
    locate(t, &p, p.dq, "dq", text);
    locate(t, &p, p.dk, "dk", text);
    locate(t, &p, p.dv, "dv", text);
    gpu_expect(t, text[0] == '\0', "%s", text);
    const double twice = 2 * gpu_tolerance(c->dtype);
    gpu_compare(t, p.out, "out", 0);
    gpu_compare(t, p.dq, "dq", twice);
    gpu_compare(t, p.dk, "dk", twice);
    gpu_compare(t, p.dv, "dv", twice);
    return STATUS_OK;
}

#define CASE(label, type, ...)                                                                     \
    {                                                                                              \
        .name = "cudnn/" label, .run = both_case, .dtype = type, .n = { __VA_ARGS__ }              \
    }
/* Grouped heads of 128 and heads of their own of 64. */
#define BOTH(label, layout)                                                                        \
    CASE(label "-d128", DTYPE_BF16, layout, 8, 2, 128),                                            \
        CASE(label "-d64", DTYPE_BF16, layout, 4, 4, 64)

static const struct gpu_case CASES[] = {
    BOTH("one", ONE),
    BOTH("one-partial", ONE_PARTIAL),
    BOTH("equal", EQUAL),
    BOTH("equal-spare", EQUAL_SPARE),
    BOTH("equal-short", EQUAL_SHORT),
    BOTH("equal-partial", EQUAL_PARTIAL),
    BOTH("tiles", TILES),
    BOTH("last-partial", LAST_PARTIAL),
    BOTH("empty-inside", EMPTY_INSIDE),
    BOTH("short", SHORT),
    BOTH("ragged", RAGGED),
    CASE("ragged-d64-grouped", DTYPE_BF16, RAGGED, 6, 2, 64),
    CASE("ragged-d128-own", DTYPE_BF16, RAGGED, 2, 2, 128),
    CASE("ragged-d80", DTYPE_BF16, RAGGED, 4, 2, 80),
    CASE("ragged-d96", DTYPE_BF16, RAGGED, 4, 1, 96),
    CASE("ragged-half", DTYPE_F16, RAGGED, 8, 2, 128),
    CASE("ragged-padded", DTYPE_BF16, RAGGED, 8, 2, 128, 0, 64),
    CASE("ragged-window", DTYPE_BF16, RAGGED, 8, 2, 128, 100),
    CASE("equal-window", DTYPE_BF16, EQUAL, 8, 2, 128, 100),
};

const struct gpu_suite gpu_suite_cudnn = {"cudnn", CASES, COUNT_OF(CASES)};
