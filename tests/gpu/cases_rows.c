/* cases_rows.c - whole rows by index: embedding, its gradient, gather and scatter.
 *
 * n of the embeddings: tokens, channels, vocab, padding of out or dout, dtype of the table, how ids
 * are drawn (0: uniformly, 1: mostly one id, 2: all the same), the id of the table's first row (not
 * 0: the table is a piece of one). x: scale. n of gather and scatter:
 * rows, width, rows of the longer side, padding. Large cases are also timed. */
#include "base/mem.h"
#include "tests/gpu/cases.h"

enum { TIMED_MIN = 1 << 22 };

struct rows {
    const struct gpu_case *c;
    struct gpu_array *ids, *table, *out;
};

static enum status run_embedding(struct device *device, enum side side, void *context,
                                 struct err *e) {
    const struct rows *p = context;
    const int64_t *n = p->c->n;
    return device_embedding(device,
                            &(struct embedding_args){
                                .tokens = n[0],
                                .channels = n[1],
                                .vocab = n[2],
                                .first = n[6],
                                .partial = n[6] > 0,
                                .ids = p->ids->at[side],
                                .table = p->table->at[side],
                                .table_dtype = gpu_dtype(p->table, side),
                                .scale = (float)p->c->x[0],
                                .dtype = gpu_dtype(p->out, side),
                                .out = p->out->at[side],
                                .ld_out = p->out->ld,
                            },
                            e);
}

static enum status run_embedding_backward(struct device *device, enum side side, void *context,
                                          struct err *e) {
    const struct rows *p = context;
    const int64_t *n = p->c->n;
    return device_embedding_backward(device,
                                     &(struct embedding_backward_args){
                                         .tokens = n[0],
                                         .channels = n[1],
                                         .vocab = n[2],
                                         .first = n[6],
                                         .partial = n[6] > 0,
                                         .ids = p->ids->at[side],
                                         .dtype = gpu_dtype(p->out, side),
                                         .dout = p->out->at[side],
                                         .ld_dout = p->out->ld,
                                         .scale = (float)p->c->x[0],
                                         .dtable = p->table->at[side],
                                     },
                                     e);
}

static struct gpu_array *draw_ids(struct gpu_test *t, const struct gpu_case *c) {
    const int64_t tokens = c->n[0], vocab = c->n[2];
    int32_t *ids = mem_new((size_t)tokens, sizeof *ids);
    for (int64_t i = 0; i < tokens; i++) {
        const int32_t drawn = (int32_t)(gpu_next(t) % (uint64_t)vocab);
        const bool same = c->n[5] == 2 || (c->n[5] == 1 && gpu_next(t) % 4 != 0);
        ids[i] = same ? (int32_t)(vocab - 1) : drawn;
    }
    struct gpu_array *array = gpu_values(t, ids, tokens, DTYPE_I32);
    mem_free(ids);
    return array;
}

static enum status embedding_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t tokens = c->n[0], channels = c->n[1], vocab = c->n[2];
    const enum dtype table = (enum dtype)c->n[4];
    struct rows p = {.c = c, .ids = draw_ids(t, c)};
    p.table = gpu_random(t, vocab, channels, channels, table, 1);
    p.out = gpu_output(t, tokens, channels, channels + c->n[3], c->dtype);
    TRY(gpu_run(t, run_embedding, &p, e));
    gpu_compare(t, p.out, "out", 0);
    const double size = (double)tokens * (double)channels;
    if (size < TIMED_MIN) return STATUS_OK;
    const double element = (double)(dtype_bytes(table) + dtype_bytes(c->dtype));
    return gpu_time(t, run_embedding, &p, size * element, 0, e);
}

static enum status embedding_backward_case(struct gpu_test *t, const struct gpu_case *c,
                                           struct err *e) {
    const int64_t tokens = c->n[0], channels = c->n[1], vocab = c->n[2];
    struct rows p = {.c = c, .ids = draw_ids(t, c)};
    p.table = gpu_random(t, vocab, channels, channels, DTYPE_F32, 1);
    p.out = gpu_random(t, tokens, channels, channels + c->n[3], c->dtype, 1);
    TRY(gpu_run(t, run_embedding_backward, &p, e));
    gpu_compare(t, p.table, "dtable", 0);
    const double size = (double)tokens * (double)channels;
    if (size < TIMED_MIN) return STATUS_OK;
    const double read = size * (double)dtype_bytes(c->dtype);
    return gpu_time(t, run_embedding_backward, &p, read + 8 * size, 0, e);
}

struct move {
    const struct gpu_case *c;
    struct gpu_array *index, *src, *dst;
};

static struct rows_args move_args(const struct move *p, enum side side) {
    return (struct rows_args){
        .rows = p->c->n[0],
        .width = p->c->n[1],
        .dtype = gpu_dtype(p->src, side),
        .index = p->index->at[side],
        .src = p->src->at[side],
        .ld_src = p->src->ld,
        .dst = p->dst->at[side],
        .ld_dst = p->dst->ld,
    };
}

static enum status run_gather(struct device *device, enum side side, void *context, struct err *e) {
    const struct rows_args args = move_args(context, side);
    return device_gather_rows(device, &args, e);
}

static enum status run_scatter(struct device *device, enum side side, void *context,
                               struct err *e) {
    const struct rows_args args = move_args(context, side);
    return device_scatter_rows(device, &args, e);
}

/* Distinct indices below `below`, in no order: a walk with a step that shares no factor with it. */
static struct gpu_array *distinct(struct gpu_test *t, int64_t count, int64_t below) {
    int32_t *index = mem_new((size_t)count, sizeof *index);
    ASSERT(below % 7919 != 0);
    for (int64_t i = 0; i < count; i++) {
        index[i] = (int32_t)(i * 7919 % below);
    }
    struct gpu_array *array = gpu_values(t, index, count, DTYPE_I32);
    mem_free(index);
    return array;
}

static enum status move_case(struct gpu_test *t, const struct gpu_case *c, gpu_op *op, bool scatter,
                             struct err *e) {
    const int64_t rows = c->n[0], width = c->n[1], longer = c->n[2];
    struct move p = {.c = c, .index = distinct(t, rows, longer)};
    p.src = gpu_random(t, scatter ? rows : longer, width, width + c->n[3], c->dtype, 1);
    p.dst = gpu_zeros(t, scatter ? longer : rows, width, width + 2 * c->n[3], c->dtype);
    TRY(gpu_run(t, op, &p, e));
    /* Nothing is computed: not one bit may differ. */
    gpu_compare(t, p.dst, "dst", 1e-30);
    const double size = (double)rows * (double)width;
    if (size < TIMED_MIN) return STATUS_OK;
    return gpu_time(t, op, &p, 2 * size * (double)dtype_bytes(c->dtype), 0, e);
}

static enum status gather_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    return move_case(t, c, run_gather, false, e);
}

static enum status scatter_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    return move_case(t, c, run_scatter, true, e);
}

#define EMBEDDING(label, type, ...)                                                                \
    {                                                                                              \
        .name = "embedding/" label, .run = embedding_case, .dtype = type, .n = {__VA_ARGS__},      \
        .x = {                                                                                     \
            1.5                                                                                    \
        }                                                                                          \
    }
#define BACKWARD(label, type, ...)                                                                 \
    {                                                                                              \
        .name = "embedding_backward/" label, .run = embedding_backward_case, .dtype = type,        \
        .deterministic = true, .n = {__VA_ARGS__}, .x = {                                          \
            1.5                                                                                    \
        }                                                                                          \
    }
#define GATHER(label, type, ...)                                                                   \
    {                                                                                              \
        .name = "gather_rows/" label, .run = gather_case, .dtype = type, .n = { __VA_ARGS__ }      \
    }
#define SCATTER(label, type, ...)                                                                  \
    {                                                                                              \
        .name = "scatter_rows/" label, .run = scatter_case, .dtype = type, .n = { __VA_ARGS__ }    \
    }
#define EVERY_DTYPE(MAKE, label, ...)                                                              \
    MAKE(label, DTYPE_F32, __VA_ARGS__), MAKE(label, DTYPE_BF16, __VA_ARGS__),                     \
        MAKE(label, DTYPE_F16, __VA_ARGS__)

static const struct gpu_case CASES[] = {
    EVERY_DTYPE(EMBEDDING, "table-f32", 77, 576, 1000, 64, DTYPE_F32),
    EVERY_DTYPE(EMBEDDING, "table-bf16", 77, 896, 1000, 64, DTYPE_BF16),
    EVERY_DTYPE(EMBEDDING, "table-f16", 77, 896, 1000, 0, DTYPE_F16),
    EVERY_DTYPE(EMBEDDING, "odd", 77, 77, 300, 3, DTYPE_BF16),
    EVERY_DTYPE(EMBEDDING, "piece", 77, 576, 1000, 64, DTYPE_BF16, 0, 300),
    EMBEDDING("16384x2048", DTYPE_BF16, 16384, 2048, 50000, 0, DTYPE_BF16),
    EVERY_DTYPE(BACKWARD, "576", 500, 576, 1000, 64),
    EVERY_DTYPE(BACKWARD, "few-ids", 1500, 128, 7),
    EVERY_DTYPE(BACKWARD, "mostly-one", 1500, 264, 1000, 8, 0, 1),
    EVERY_DTYPE(BACKWARD, "all-one", 700, 128, 1000, 0, 0, 2),
    EVERY_DTYPE(BACKWARD, "one-token", 1, 64, 1000),
    EVERY_DTYPE(BACKWARD, "piece", 500, 576, 1000, 64, 0, 0, 300),
    EVERY_DTYPE(BACKWARD, "odd", 300, 77, 100, 3),
    BACKWARD("8192x1536", DTYPE_BF16, 8192, 1536, 50000),
    BACKWARD("8192x1536-mostly-one", DTYPE_BF16, 8192, 1536, 50000, 0, 0, 1),
    EVERY_DTYPE(GATHER, "896", 100, 896, 301, 64),
    EVERY_DTYPE(GATHER, "odd", 100, 77, 301, 3),
    GATHER("8192x4096", DTYPE_BF16, 8192, 4096, 16384, 64),
    EVERY_DTYPE(SCATTER, "896", 100, 896, 301, 64),
    EVERY_DTYPE(SCATTER, "odd", 100, 77, 301, 3),
    SCATTER("8192x4096", DTYPE_BF16, 8192, 4096, 16384, 64),
};

const struct gpu_suite gpu_suite_rows = {"rows", CASES, COUNT_OF(CASES)};
