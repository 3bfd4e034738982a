/* cases_norm.c - norms and rotary embedding: rows from one head to 16384 wide, gaps between rows,
 * odd widths that no wide access fits.
 *
 * n of a norm: tokens, groups, width, columns of padding in every ld, residual (1), gradient of the
 * weight (1), accumulate (1), dx over dy (1). x: weight_offset. n of rope: tokens, heads, head_dim,
 * rotary, padding, inverse. x: scale. Large cases are also timed. */
#include <math.h>

#include "base/mem.h"
#include "tests/gpu/cases.h"

/* From so many elements on a time says something. */
enum { TIMED_MIN = 1 << 22 };

struct norm {
    const struct gpu_case *c;
    struct gpu_array *x, *residual, *sum, *weight, *y, *rstd, *dy, *dx, *dweight;
};

static enum status run_norm(struct device *device, enum side side, void *context, struct err *e) {
    const struct norm *p = context;
    const int64_t *n = p->c->n;
    return device_rmsnorm(device,
                          &(struct rmsnorm_args){
                              .tokens = n[0],
                              .groups = n[1],
                              .width = n[2],
                              .dtype = gpu_dtype(p->x, side),
                              .x = p->x->at[side],
                              .ld_x = p->x->ld,
                              .residual = p->residual ? p->residual->at[side] : NULL,
                              .ld_residual = p->residual ? p->residual->ld : 0,
                              .sum = p->sum ? p->sum->at[side] : NULL,
                              .ld_sum = p->sum ? p->sum->ld : 0,
                              .weight = p->weight->at[side],
                              .weight_offset = (float)p->c->x[0],
                              .eps = 1e-6f,
                              .y = p->y->at[side],
                              .ld_y = p->y->ld,
                              .rstd = p->rstd->at[side],
                          },
                          e);
}

static enum status run_norm_backward(struct device *device, enum side side, void *context,
                                     struct err *e) {
    const struct norm *p = context;
    const int64_t *n = p->c->n;
    return device_rmsnorm_backward(device,
                                   &(struct rmsnorm_backward_args){
                                       .tokens = n[0],
                                       .groups = n[1],
                                       .width = n[2],
                                       .dtype = gpu_dtype(p->x, side),
                                       .x = p->x->at[side],
                                       .ld_x = p->x->ld,
                                       .weight = p->weight->at[side],
                                       .weight_offset = (float)p->c->x[0],
                                       .rstd = p->rstd->at[side],
                                       .dy = p->dy->at[side],
                                       .ld_dy = p->dy->ld,
                                       .dx = p->dx->at[side],
                                       .ld_dx = p->dx->ld,
                                       .accumulate = n[6] != 0,
                                       .dweight = p->dweight ? p->dweight->at[side] : NULL,
                                   },
                                   e);
}

static void make_norm(struct gpu_test *t, const struct gpu_case *c, struct norm *p) {
    const int64_t tokens = c->n[0], row = c->n[1] * c->n[2], ld = row + c->n[3];
    *p = (struct norm){.c = c};
    p->x = gpu_random(t, tokens, row, ld, c->dtype, 1.5);
    p->weight = gpu_random(t, 1, c->n[2], c->n[2], DTYPE_F32, 1);
    p->rstd = gpu_output(t, 1, tokens * c->n[1], tokens * c->n[1], DTYPE_F32);
}

static enum status norm_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t tokens = c->n[0], row = c->n[1] * c->n[2], ld = row + c->n[3];
    struct norm p;
    make_norm(t, c, &p);
    if (c->n[4]) {
        p.residual = gpu_random(t, tokens, row, ld, c->dtype, 1);
        p.sum = gpu_output(t, tokens, row, ld, c->dtype);
    }
    p.y = gpu_output(t, tokens, row, ld, c->dtype);
    TRY(gpu_run(t, run_norm, &p, e));
    gpu_compare(t, p.y, "y", 0);
    gpu_compare(t, p.rstd, "rstd", c->n[4] ? gpu_tolerance(c->dtype) : 2e-6);
    if (p.sum) gpu_compare(t, p.sum, "sum", 0);
    const double size = (double)tokens * (double)row;
    if (size < TIMED_MIN) return STATUS_OK;
    const double passes = c->n[4] ? 4 : 2;
    return gpu_time(t, run_norm, &p, passes * size * (double)dtype_bytes(c->dtype), 0, e);
}

static enum status norm_backward_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t tokens = c->n[0], row = c->n[1] * c->n[2], ld = row + c->n[3];
    struct norm p;
    make_norm(t, c, &p);
    p.y = gpu_output(t, tokens, row, ld, c->dtype);
    TRY(gpu_run(t, run_norm, &p, e));
    p.dy = gpu_random(t, tokens, row, ld, c->dtype, 1);
    p.dx = c->n[7]   ? p.dy
           : c->n[6] ? gpu_random(t, tokens, row, ld, c->dtype, 1)
                     : gpu_output(t, tokens, row, ld, c->dtype);
    if (c->n[5]) p.dweight = gpu_random(t, 1, c->n[2], c->n[2], DTYPE_F32, 1);
    TRY(gpu_run(t, run_norm_backward, &p, e));
    gpu_compare(t, p.dx, "dx", 0);
    if (p.dweight) gpu_compare(t, p.dweight, "dweight", 2e-5);
    const double size = (double)tokens * (double)row;
    if (size < TIMED_MIN) return STATUS_OK;
    const double passes = c->n[6] ? 4 : 3;
    return gpu_time(t, run_norm_backward, &p, passes * size * (double)dtype_bytes(c->dtype), 0, e);
}

struct rope {
    const struct gpu_case *c;
    struct gpu_array *x, *positions, *inv_freq;
};

static enum status run_rope(struct device *device, enum side side, void *context, struct err *e) {
    const struct rope *p = context;
    const int64_t *n = p->c->n;
    return device_rope(device,
                       &(struct rope_args){
                           .tokens = n[0],
                           .heads = n[1],
                           .head_dim = n[2],
                           .rotary = n[3],
                           .dtype = gpu_dtype(p->x, side),
                           .x = p->x->at[side],
                           .ld = p->x->ld,
                           .positions = p->positions->at[side],
                           .inv_freq = p->inv_freq->at[side],
                           .scale = (float)p->c->x[0],
                           .inverse = n[5] != 0,
                       },
                       e);
}

static enum status rope_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t tokens = c->n[0], row = c->n[1] * c->n[2], half = c->n[3] / 2;
    struct rope p = {.c = c};
    p.x = gpu_random(t, tokens, row, row + c->n[4], c->dtype, 1);
    /* As far as a context reaches: a sine without full range reduction fails here. */
    p.positions = gpu_indices(t, tokens, 1000000);
    float *inv_freq = mem_new((size_t)half, sizeof *inv_freq);
    for (int64_t i = 0; i < half; i++) {
        inv_freq[i] = (float)pow(10000.0, -(double)i / (double)half);
    }
    p.inv_freq = gpu_values(t, inv_freq, half, DTYPE_F32);
    mem_free(inv_freq);
    TRY(gpu_run(t, run_rope, &p, e));
    gpu_compare(t, p.x, "x", 0);
    const double size = (double)tokens * (double)c->n[1] * (double)c->n[3];
    if (size < TIMED_MIN) return STATUS_OK;
    return gpu_time(t, run_rope, &p, 2 * size * (double)dtype_bytes(c->dtype), 0, e);
}

#define NORM(label, type, ...)                                                                     \
    {                                                                                              \
        .name = "rmsnorm/" label, .run = norm_case, .dtype = type, .n = { __VA_ARGS__ }            \
    }
#define BACKWARD(label, type, ...)                                                                 \
    {                                                                                              \
        .name = "rmsnorm_backward/" label, .run = norm_backward_case, .dtype = type, .n = {        \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define ROPE(label, type, ...)                                                                     \
    {                                                                                              \
        .name = "rope/" label, .run = rope_case, .dtype = type, .n = {__VA_ARGS__}, .x = { 1.25 }  \
    }
#define EVERY_DTYPE(MAKE, label, ...)                                                              \
    MAKE(label, DTYPE_F32, __VA_ARGS__), MAKE(label, DTYPE_BF16, __VA_ARGS__),                     \
        MAKE(label, DTYPE_F16, __VA_ARGS__)

static const struct gpu_case CASES[] = {
    EVERY_DTYPE(NORM, "64", 33, 1, 64),
    EVERY_DTYPE(NORM, "one", 1, 1, 8),
    EVERY_DTYPE(NORM, "576", 37, 1, 576, 64),
    EVERY_DTYPE(NORM, "896-residual", 37, 1, 896, 64, 1),
    EVERY_DTYPE(NORM, "1536-residual", 19, 1, 1536, 0, 1),
    EVERY_DTYPE(NORM, "4096", 19, 1, 4096, 64),
    EVERY_DTYPE(NORM, "16384-residual", 5, 1, 16384, 8, 1),
    EVERY_DTYPE(NORM, "heads-64", 21, 5, 64, 192),
    EVERY_DTYPE(NORM, "heads-128", 21, 7, 128, 64),
    EVERY_DTYPE(NORM, "heads-256", 21, 3, 256),
    EVERY_DTYPE(NORM, "odd", 7, 3, 77, 5, 1),
    EVERY_DTYPE(NORM, "unaligned-ld", 7, 1, 1024, 3, 1),
    EVERY_DTYPE(NORM, "too-wide", 3, 1, 40000),
    {.name = "rmsnorm/offset",
     .run = norm_case,
     .dtype = DTYPE_BF16,
     .n = {9, 1, 2304, 0, 1},
     .x = {1}},
    NORM("8192x4096", DTYPE_BF16, 8192, 1, 4096, 64),
    NORM("8192x4096-residual", DTYPE_BF16, 8192, 1, 4096, 0, 1),
    NORM("16384x896-residual", DTYPE_BF16, 16384, 1, 896, 0, 1),
    NORM("4096x4096-residual", DTYPE_F32, 4096, 1, 4096, 0, 1),
    NORM("8192x40x128", DTYPE_BF16, 8192, 40, 128, 1024),
    EVERY_DTYPE(BACKWARD, "64", 33, 1, 64, 0, 0, 1),
    EVERY_DTYPE(BACKWARD, "one", 1, 1, 8, 0, 0, 1),
    EVERY_DTYPE(BACKWARD, "576", 3000, 1, 576, 64, 0, 1),
    EVERY_DTYPE(BACKWARD, "896-add", 37, 1, 896, 64, 0, 0, 1),
    EVERY_DTYPE(BACKWARD, "1536", 1500, 1, 1536, 0, 0, 1, 1),
    EVERY_DTYPE(BACKWARD, "4096-in-place", 700, 1, 4096, 64, 0, 1, 0, 1),
    EVERY_DTYPE(BACKWARD, "16384", 5, 1, 16384, 8, 0, 1),
    EVERY_DTYPE(BACKWARD, "heads-64", 301, 5, 64, 192, 0, 1),
    EVERY_DTYPE(BACKWARD, "heads-128", 301, 7, 128, 64, 0, 1, 0, 1),
    EVERY_DTYPE(BACKWARD, "odd", 57, 3, 77, 5, 0, 1, 1),
    EVERY_DTYPE(BACKWARD, "too-wide", 3, 1, 40000, 0, 0, 1),
    {.name = "rmsnorm_backward/offset",
     .run = norm_backward_case,
     .dtype = DTYPE_BF16,
     .deterministic = true,
     .n = {900, 1, 2304, 0, 0, 1},
     .x = {1}},
    BACKWARD("8192x4096", DTYPE_BF16, 8192, 1, 4096),
    BACKWARD("8192x4096-add", DTYPE_BF16, 8192, 1, 4096, 64, 0, 0, 1),
    BACKWARD("8192x4096-weight", DTYPE_BF16, 8192, 1, 4096, 0, 0, 1),
    BACKWARD("16384x896-weight", DTYPE_BF16, 16384, 1, 896, 0, 0, 1),
    BACKWARD("8192x40x128-weight", DTYPE_BF16, 8192, 40, 128, 1024, 0, 1),
    EVERY_DTYPE(ROPE, "64", 33, 12, 64, 64, 192),
    EVERY_DTYPE(ROPE, "128", 37, 5, 128, 128, 128),
    EVERY_DTYPE(ROPE, "partial", 37, 5, 96, 48),
    EVERY_DTYPE(ROPE, "inverse", 37, 5, 80, 80, 8, 1),
    EVERY_DTYPE(ROPE, "odd", 11, 3, 10, 6, 1),
    EVERY_DTYPE(ROPE, "256", 600, 4, 256, 256),
    ROPE("8192x40x128", DTYPE_BF16, 8192, 40, 128, 128, 1024),
    ROPE("16384x16x64", DTYPE_BF16, 16384, 16, 64, 64, 128),
};

const struct gpu_suite gpu_suite_norm = {"norm", CASES, COUNT_OF(CASES)};
