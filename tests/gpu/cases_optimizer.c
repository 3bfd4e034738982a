/* cases_optimizer.c - AdamW with every pair of types, the norm of a gradient, clipping.
 *
 * n: count, dtype of the states, copy (1 + dtype, 0: none), elements by which arrays begin late,
 * a gradient scale that is not finite (1); the case's dtype is that of the parameters. bf16 is
 * rounded stochastically, so single values may be a unit away; the mean must not be. Large cases
 * are also timed. */
#include <math.h>

#include "base/mem.h"
#include "tests/gpu/cases.h"

enum { TIMED_MIN = 1 << 22 };

struct adam {
    const struct gpu_case *c;
    struct gpu_array *param, *grad, *m, *v, *copy, *scale;
    double lr, beta2;
    int64_t step;
};

/* The address of an array, without its first elements. */
static void *late(const struct gpu_array *array, enum side side, int64_t elements) {
    return (char *)array->at[side] + elements * dtype_bytes(gpu_dtype(array, side));
}

static enum status run_adam(struct device *device, enum side side, void *context, struct err *e) {
    const struct adam *p = context;
    const int64_t shift = p->c->n[3];
    return device_adamw(device,
                        &(struct adamw_args){
                            .count = p->c->n[0],
                            .param_dtype = gpu_dtype(p->param, side),
                            .state_dtype = gpu_dtype(p->m, side),
                            .param = late(p->param, side, shift),
                            .grad = late(p->grad, side, shift),
                            .m = late(p->m, side, shift),
                            .v = late(p->v, side, shift),
                            .copy = p->copy ? late(p->copy, side, shift) : NULL,
                            .copy_dtype = p->copy ? gpu_dtype(p->copy, side) : DTYPE_F32,
                            .grad_scale = p->scale->at[side],
                            .lr = p->lr,
                            .beta1 = 0.9,
                            .beta2 = p->beta2,
                            .eps = 1e-8,
                            .weight_decay = 0.01,
                            .step = p->step,
                            .seed = 7,
                        },
                        e);
}

static enum status make_adam(struct gpu_test *t, const struct gpu_case *c, struct adam *p,
                             struct err *e) {
    const int64_t size = c->n[0] + c->n[3];
    const enum dtype state = (enum dtype)c->n[1];
    const float scale = c->n[4] ? NAN : 0.5f;
    *p = (struct adam){.c = c, .lr = 1e-3, .beta2 = 0.999, .step = 3};
    p->param = gpu_random(t, 1, size, size, c->dtype, 1);
    p->grad = gpu_random(t, 1, size, size, DTYPE_F32, 1);
    p->m = gpu_zeros(t, 1, size, size, state);
    p->v = gpu_zeros(t, 1, size, size, state);
    if (c->n[2]) p->copy = gpu_random(t, 1, size, size, (enum dtype)(c->n[2] - 1), 1);
    p->scale = gpu_values(t, &scale, 1, DTYPE_F32);
    return gpu_run(t, run_adam, p, e);
}

static enum status adam_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    struct adam p;
    TRY(make_adam(t, c, &p, e));
    p.step++;
    TRY(gpu_run(t, run_adam, &p, e));
    gpu_compare(t, p.param, "param", 0);
    gpu_compare(t, p.m, "m", 0);
    gpu_compare(t, p.v, "v", 0);
    if (p.copy) gpu_compare(t, p.copy, "copy", 0);
    if (c->n[0] < TIMED_MIN) return STATUS_OK;
    const double element =
        (double)(2 * dtype_bytes(c->dtype) + 4 + 4 * dtype_bytes((enum dtype)c->n[1]) +
                 (p.copy ? dtype_bytes(p.copy->dtype) : 0));
    return gpu_time(t, run_adam, &p, element * (double)c->n[0], 0, e);
}

static double mean_change(struct gpu_test *t, const struct gpu_array *a, enum side side,
                          const float *before) {
    float *after = gpu_read(t, a, side);
    double sum = 0;
    for (int64_t i = 0; i < a->cols; i++) {
        sum += fabs((double)after[i]) - fabs((double)before[i]);
    }
    mem_free(after);
    return sum / (double)a->cols;
}

/* Updates far below half a unit of bf16: the mean of many must move as the CPU's does, which keeps
 * f32. Rounding to nearest would not move at all. Weight decay alone moves the parameters, beta2
 * alone the second moment. */
static enum status unbiased_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    struct adam p;
    TRY(make_adam(t, c, &p, e));
    float *param = gpu_read(t, p.param, SIDE_GPU), *v = gpu_read(t, p.v, SIDE_GPU);
    const float zero = 0;
    p.scale = gpu_values(t, &zero, 1, DTYPE_F32);
    p.m = gpu_zeros(t, 1, c->n[0], c->n[0], (enum dtype)c->n[1]);
    p.lr = 0.05; /* times weight decay: 1/2000 of each parameter, an eighth of a unit */
    TRY(gpu_run(t, run_adam, &p, e));
    const double moved = mean_change(t, p.param, SIDE_GPU, param), wanted = -5e-4 * 0.7979;
    gpu_expect(t, fabs(moved - wanted) < 0.05 * fabs(wanted),
               "parameters moved by %.4g in the mean, %.4g is right", moved, wanted);
    double mean = 0;
    for (int64_t i = 0; i < c->n[0]; i++) {
        mean += (double)v[i] / (double)c->n[0];
    }
    const double decayed = mean_change(t, p.v, SIDE_GPU, v);
    gpu_expect(t, fabs(decayed + 1e-3 * mean) < 0.1e-3 * mean,
               "second moments moved by %.4g in the mean, %.4g is right", decayed, -1e-3 * mean);
    mem_free(param);
    mem_free(v);
    return STATUS_OK;
}

struct norm {
    const struct gpu_case *c;
    struct gpu_array *x, *sum, *loss_scale, *norm, *coefficient;
};

static enum status run_squares(struct device *device, enum side side, void *context,
                               struct err *e) {
    const struct norm *p = context;
    return device_sum_squares(device,
                              &(struct sum_squares_args){
                                  .count = p->c->n[0],
                                  .x = late(p->x, side, p->c->n[3]),
                                  .out = p->sum->at[side],
                              },
                              e);
}

static enum status run_clip(struct device *device, enum side side, void *context, struct err *e) {
    const struct norm *p = context;
    return device_clip(device,
                       &(struct clip_args){
                           .sum_squares = p->sum->at[side],
                           .loss_scale = p->loss_scale ? p->loss_scale->at[side] : NULL,
                           .max_norm = (float)p->c->x[0],
                           .norm = p->norm->at[side],
                           .coefficient = p->coefficient->at[side],
                       },
                       e);
}

static enum status squares_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t size = c->n[0] + c->n[3];
    struct norm p = {.c = c};
    p.x = gpu_random(t, 1, size, size, DTYPE_F32, c->x[1]);
    p.sum = gpu_doubles(t, 1);
    TRY(gpu_run(t, run_squares, &p, e));
    TRY(gpu_run(t, run_squares, &p, e));
    gpu_compare_f64(t, p.sum, "sum", 1e-12);
    const float scale = 8;
    if (c->n[1]) p.loss_scale = gpu_values(t, &scale, 1, DTYPE_F32);
    p.norm = gpu_output(t, 1, 1, 1, DTYPE_F32);
    p.coefficient = gpu_output(t, 1, 1, 1, DTYPE_F32);
    TRY(gpu_run(t, run_clip, &p, e));
    gpu_compare(t, p.norm, "norm", 1e-6);
    gpu_compare(t, p.coefficient, "coefficient", 1e-6);
    if (c->n[0] < TIMED_MIN) return STATUS_OK;
    return gpu_time(t, run_squares, &p, 4 * (double)c->n[0], 0, e);
}

/* A norm that is not finite must come back as a coefficient that stops the update. */
static enum status overflow_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const float values[3] = {1, INFINITY, 2};
    struct norm p = {.c = c};
    p.x = gpu_values(t, values, 3, DTYPE_F32);
    p.sum = gpu_doubles(t, 1);
    p.norm = gpu_zeros(t, 1, 1, 1, DTYPE_F32);
    p.coefficient = gpu_zeros(t, 1, 1, 1, DTYPE_F32);
    TRY(gpu_run(t, run_squares, &p, e));
    TRY(gpu_run(t, run_clip, &p, e));
    float *coefficient = gpu_read(t, p.coefficient, SIDE_GPU);
    gpu_expect(t, isnan(coefficient[0]), "the coefficient of an infinite norm is %g, not NaN",
               (double)coefficient[0]);
    mem_free(coefficient);
    return STATUS_OK;
}

#define ADAM(label, type, ...)                                                                     \
    {                                                                                              \
        .name = "adamw/" label, .run = adam_case, .dtype = type, .n = { __VA_ARGS__ }              \
    }
#define SQUARES(label, max, size, ...)                                                             \
    {                                                                                              \
        .name = "sum_squares/" label, .run = squares_case, .dtype = DTYPE_F32, .n = {__VA_ARGS__}, \
        .x = {                                                                                     \
            max,                                                                                   \
            size                                                                                   \
        }                                                                                          \
    }

static const struct gpu_case CASES[] = {
    ADAM("f32", DTYPE_F32, 4099, DTYPE_F32),
    ADAM("f32-copy-f32", DTYPE_F32, 4099, DTYPE_F32, 1 + DTYPE_F32),
    ADAM("f32-copy-bf16", DTYPE_F32, 4099, DTYPE_F32, 1 + DTYPE_BF16),
    ADAM("f32-copy-f16", DTYPE_F32, 4099, DTYPE_F32, 1 + DTYPE_F16),
    ADAM("f32-one", DTYPE_F32, 1, DTYPE_F32, 1 + DTYPE_BF16),
    ADAM("f32-late", DTYPE_F32, 1001, DTYPE_F32, 1 + DTYPE_BF16, 1),
    ADAM("f32-not-finite", DTYPE_F32, 4099, DTYPE_F32, 1 + DTYPE_BF16, 0, 1),
    ADAM("f32-states-bf16", DTYPE_F32, 4099, DTYPE_BF16, 1 + DTYPE_BF16),
    ADAM("bf16-states-f32", DTYPE_BF16, 4099, DTYPE_F32),
    ADAM("bf16-states-bf16", DTYPE_BF16, 4099, DTYPE_BF16),
    ADAM("bf16-late", DTYPE_BF16, 1001, DTYPE_BF16, 0, 1),
    {.name = "adamw/unbiased",
     .run = unbiased_case,
     .dtype = DTYPE_BF16,
     .n = {200000, DTYPE_BF16}},
    {.name = "adamw/unbiased-odd",
     .run = unbiased_case,
     .dtype = DTYPE_BF16,
     .n = {200003, DTYPE_BF16}},
    ADAM("64M", DTYPE_F32, INT64_C(1) << 26, DTYPE_F32, 1 + DTYPE_BF16),
    ADAM("64M-states-bf16", DTYPE_BF16, INT64_C(1) << 26, DTYPE_BF16),
    SQUARES("1", 1, 1, 1),
    SQUARES("1001", 0.5, 1, 1001, 1),
    SQUARES("1001-late", 1e6, 1, 1001, 0, 0, 1),
    SQUARES("100000-large", 0, 1e30, 100000),
    SQUARES("64M", 1, 1e-3, INT64_C(1) << 26, 1),
    {.name = "clip/infinite", .run = overflow_case, .dtype = DTYPE_F32, .n = {3}, .x = {1}},
};

const struct gpu_suite gpu_suite_optimizer = {"optimizer", CASES, COUNT_OF(CASES)};
