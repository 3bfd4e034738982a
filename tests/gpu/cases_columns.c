/* cases_columns.c - sums over rows, scales of columns, norms of rows.
 *
 * n: rows, cols, padding in every ld, then for sums: product with y (1), accumulate (1); scales:
 * scale (1), bias (1), accumulate (1), in place (1). Large cases are also timed. */
#include "tests/gpu/cases.h"

#include "base/mem.h"

enum { TIMED_MIN = 1 << 22 };

struct columns {
    const struct gpu_case *c;
    struct gpu_array *x, *y, *scale, *bias, *out;
};

static enum status run_sum(struct device *device, enum side side, void *context, struct err *e) {
    const struct columns *p = context;
    return device_column_sum(device,
                             &(struct column_sum_args){
                                 .rows = p->c->n[0],
                                 .cols = p->c->n[1],
                                 .dtype = gpu_dtype(p->x, side),
                                 .x = p->x->at[side],
                                 .ld_x = p->x->ld,
                                 .y = p->y ? p->y->at[side] : NULL,
                                 .ld_y = p->y ? p->y->ld : 0,
                                 .out = p->out->at[side],
                                 .accumulate = p->c->n[4] != 0,
                             },
                             e);
}

static enum status run_scale(struct device *device, enum side side, void *context, struct err *e) {
    const struct columns *p = context;
    return device_column_scale(device,
                               &(struct column_scale_args){
                                   .rows = p->c->n[0],
                                   .cols = p->c->n[1],
                                   .dtype = gpu_dtype(p->x, side),
                                   .x = p->x->at[side],
                                   .ld_x = p->x->ld,
                                   .scale = p->scale ? p->scale->at[side] : NULL,
                                   .bias = p->bias ? p->bias->at[side] : NULL,
                                   .out = p->out->at[side],
                                   .ld_out = p->out->ld,
                                   .accumulate = p->c->n[5] != 0,
                               },
                               e);
}

static enum status run_row_norm(struct device *device, enum side side, void *context,
                                struct err *e) {
    const struct columns *p = context;
    return device_row_norm(device,
                           &(struct row_norm_args){
                               .rows = p->c->n[0],
                               .cols = p->c->n[1],
                               .x = p->x->at[side],
                               .ld = p->x->ld,
                               .out = p->out->at[side],
                           },
                           e);
}

static enum status time_large(struct gpu_test *t, gpu_op *op, struct columns *p, double passes,
                              struct err *e) {
    const double size = (double)p->c->n[0] * (double)p->c->n[1];
    if (size < TIMED_MIN) return STATUS_OK;
    return gpu_time(t, op, p, passes * size * (double)dtype_bytes(p->x->dtype), 0, e);
}

static enum status sum_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], cols = c->n[1], pad = c->n[2];
    struct columns p = {.c = c};
    p.x = gpu_random(t, rows, cols, cols + pad, c->dtype, 1);
    if (c->n[3]) p.y = gpu_random(t, rows, cols, cols + 2 * pad, c->dtype, 1);
    p.out = c->n[4] ? gpu_random(t, 1, cols, cols, DTYPE_F32, 1)
                    : gpu_output(t, 1, cols, cols, DTYPE_F32);
    TRY(gpu_run(t, run_sum, &p, e));
    gpu_compare(t, p.out, "out", 1e-5);
    return time_large(t, run_sum, &p, c->n[3] ? 2 : 1, e);
}

static enum status scale_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], cols = c->n[1], pad = c->n[2];
    struct columns p = {.c = c};
    p.x = gpu_random(t, rows, cols, cols + pad, c->dtype, 1);
    if (c->n[3]) p.scale = gpu_random(t, 1, cols, cols, DTYPE_F32, 1);
    if (c->n[4]) p.bias = gpu_random(t, 1, cols, cols, DTYPE_F32, 1);
    p.out = c->n[6]   ? p.x
            : c->n[5] ? gpu_random(t, rows, cols, cols + 2 * pad, c->dtype, 1)
                      : gpu_output(t, rows, cols, cols + 2 * pad, c->dtype);
    TRY(gpu_run(t, run_scale, &p, e));
    gpu_compare(t, p.out, "out", 0);
    return time_large(t, run_scale, &p, c->n[5] ? 3 : 2, e);
}

static enum status row_norm_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], cols = c->n[1];
    struct columns p = {.c = c};
    p.x = gpu_random(t, rows, cols, cols + c->n[2], DTYPE_F32, 1);
    p.out = gpu_output(t, 1, rows, rows, DTYPE_F32);
    TRY(gpu_run(t, run_row_norm, &p, e));
    gpu_compare(t, p.out, "out", 2e-6);
    return time_large(t, run_row_norm, &p, 1, e);
}

#define CASE(kind, function, label, type, ...)                                                     \
    {                                                                                              \
        .name = kind "/" label, .run = function, .dtype = type, .n = { __VA_ARGS__ }               \
    }
#define EVERY_DTYPE(kind, function, label, ...)                                                    \
    CASE(kind, function, label, DTYPE_F32, __VA_ARGS__),                                           \
        CASE(kind, function, label, DTYPE_BF16, __VA_ARGS__),                                      \
        CASE(kind, function, label, DTYPE_F16, __VA_ARGS__)

static const struct gpu_case CASES[] = {
    EVERY_DTYPE("column_sum", sum_case, "896", 301, 896, 64),
    EVERY_DTYPE("column_sum", sum_case, "product", 301, 896, 64, 1, 1),
    EVERY_DTYPE("column_sum", sum_case, "one-row", 1, 8, 0, 0, 1),
    EVERY_DTYPE("column_sum", sum_case, "odd", 1000, 77, 3, 1),
    EVERY_DTYPE("column_sum", sum_case, "wide", 40, 20000),
    CASE("column_sum", sum_case, "8192x6144", DTYPE_BF16, 8192, 6144, 64),
    CASE("column_sum", sum_case, "8192x4096-product", DTYPE_BF16, 8192, 4096, 0, 1),
    CASE("column_sum", sum_case, "100000x896", DTYPE_BF16, 100000, 896, 64),
    EVERY_DTYPE("column_scale", scale_case, "896", 37, 896, 64, 1, 1),
    EVERY_DTYPE("column_scale", scale_case, "bias-in-place", 37, 896, 64, 0, 1, 0, 1),
    EVERY_DTYPE("column_scale", scale_case, "add", 37, 896, 64, 1, 0, 1),
    EVERY_DTYPE("column_scale", scale_case, "odd", 37, 77, 3, 1, 1, 1),
    CASE("column_scale", scale_case, "8192x4096", DTYPE_BF16, 8192, 4096, 64, 1),
    CASE("row_norm", row_norm_case, "896", DTYPE_F32, 37, 896, 64),
    CASE("row_norm", row_norm_case, "odd", DTYPE_F32, 37, 77, 3),
    CASE("row_norm", row_norm_case, "14336x4096", DTYPE_F32, 14336, 4096),
};

const struct gpu_suite gpu_suite_columns = {"columns", CASES, COUNT_OF(CASES)};
