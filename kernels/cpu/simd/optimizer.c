/* optimizer.c - AdamW, the norm of a gradient and its clipping. Scalars are prepared in double, as
 * torch does; the sum of squares is cut into a fixed number of parts, so that it does not depend on
 * the number of threads. */
#include <math.h>

#include <string.h>

#include "kernels/cpu/simd/math.h"
#include "kernels/cpu/simd/simd.h"

enum { SUM_PARTS = 256, SUM_RUN = 256, ADAM_RUN = 4096 };

struct adamw_factors {
    float decay, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction2, eps,
        grad_scale;
};

static void adamw_run(const struct adamw_args *a, const struct adamw_factors *f, int64_t from,
                      int64_t count) {
    float *restrict p = (float *)a->param + from;
    float *restrict m = (float *)a->m + from, *restrict v = (float *)a->v + from;
    const float *restrict grad = a->grad + from;
    const struct adamw_factors k = *f;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        const float g = grad[i] * k.grad_scale;
        const float mean = m[i] + k.one_minus_beta1 * (g - m[i]);
        const float square = v[i] * k.beta2 + k.one_minus_beta2 * g * g;
        m[i] = mean;
        v[i] = square;
        p[i] = p[i] * k.decay - k.step_size * mean / (sqrtf(square) / k.root_correction2 + k.eps);
    }
}

/* The copy of a run, while the run is in the cache. */
static void copy_run(const struct adamw_args *a, int64_t from, int64_t count) {
    const float *param = (const float *)a->param + from;
    if (a->copy_dtype == DTYPE_F32) {
        memcpy((float *)a->copy + from, param, (size_t)count * sizeof *param);
        return;
    }
    uint16_t *copy = (uint16_t *)a->copy + from;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        copy[i] = simd_to_bf16(param[i]);
    }
}

enum status SIMD(cpu_adamw)(struct device *device, const struct adamw_args *a, struct err *e) {
    (void)device, (void)e;
    if (!isfinite(*a->grad_scale)) return STATUS_OK;
    const double correction1 = 1 - pow(a->beta1, (double)a->step);
    const double correction2 = 1 - pow(a->beta2, (double)a->step);
    const struct adamw_factors factors = {
        .decay = (float)(1 - a->lr * a->weight_decay),
        .one_minus_beta1 = (float)(1 - a->beta1),
        .beta2 = (float)a->beta2,
        .one_minus_beta2 = (float)(1 - a->beta2),
        .step_size = (float)(a->lr / correction1),
        .root_correction2 = (float)sqrt(correction2),
        .eps = (float)a->eps,
        .grad_scale = *a->grad_scale,
    };
    const int64_t runs = (a->count + ADAM_RUN - 1) / ADAM_RUN;
#pragma omp parallel for schedule(static) if (a->count > PARALLEL_MIN)
    for (int64_t run = 0; run < runs; run++) {
        const int64_t from = run * ADAM_RUN, count = simd_min(ADAM_RUN, a->count - from);
        adamw_run(a, &factors, from, count);
        if (a->copy) copy_run(a, from, count);
    }
    return STATUS_OK;
}

/* Short runs are summed in f32 lanes and the runs in double: the error stays at the last bits of a
 * float. */
static double part_sum(const float *x, int64_t count) {
    double total = 0;
    for (int64_t from = 0; from < count; from += SUM_RUN) {
        const int64_t run = simd_min(SUM_RUN, count - from);
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < run; i++) {
            const double value = (double)x[from + i];
            sum += value * value;
        }
        total += sum;
    }
    return total;
}

enum status SIMD(cpu_sum_squares)(struct device *device, const struct sum_squares_args *a,
                                  struct err *e) {
    (void)device, (void)e;
    double parts[SUM_PARTS];
    const int64_t part = (a->count + SUM_PARTS - 1) / SUM_PARTS;
#pragma omp parallel for schedule(static) if (a->count > PARALLEL_MIN)
    for (int64_t i = 0; i < SUM_PARTS; i++) {
        const int64_t from = simd_min(a->count, i * part);
        parts[i] = part_sum(a->x + from, simd_min(part, a->count - from));
    }
    double sum = 0;
    for (int64_t i = 0; i < SUM_PARTS; i++) {
        sum += parts[i];
    }
    *a->out += sum;
    return STATUS_OK;
}

enum status SIMD(cpu_clip)(struct device *device, const struct clip_args *a, struct err *e) {
    (void)device, (void)e;
    const double loss_scale = a->loss_scale ? (double)*a->loss_scale : 1;
    const float norm = (float)(sqrt(*a->sum_squares) / loss_scale);
    const float wanted = a->max_norm / (norm + 1e-6f);
    const float clipped = a->max_norm > 0 && wanted < 1 ? wanted : 1.0f;
    *a->norm = norm;
    /* NaN is how adamw learns that this step must not be taken. */
    *a->coefficient = isfinite(norm) ? (float)((double)clipped / loss_scale) : NAN;
    return STATUS_OK;
}
