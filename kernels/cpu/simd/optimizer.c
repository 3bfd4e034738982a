/* optimizer.c - AdamW, the norm of a gradient and its clipping. Scalars are prepared in double, as
 * torch does; the sum of squares is cut into a fixed number of parts, so that it does not depend on
 * the number of threads. */
#include <math.h>

#include "kernels/cpu/simd/simd.h"

enum { SUM_PARTS = 256, SUM_RUN = 256, ADAM_RUN = 4096 };

struct adamw_factors {
    float decay, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction2, eps,
        grad_scale;
};

static void adamw_run(const struct adamw_args *a, const struct adamw_factors *f, int64_t from,
                      int64_t count) {
    float *restrict p = a->param + from, *restrict m = a->m + from, *restrict v = a->v + from;
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

enum status SIMD(cpu_adamw)(struct device *device, const struct adamw_args *a, struct err *e) {
    (void)device, (void)e;
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
        adamw_run(a, &factors, run * ADAM_RUN, simd_min(ADAM_RUN, a->count - run * ADAM_RUN));
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
    const float norm = (float)sqrt(*a->sum_squares);
    const float wanted = a->max_norm / (norm + 1e-6f);
    *a->norm = norm;
    /* Written so that a NaN norm gives a NaN coefficient, as torch does, and not a silent 1. */
    *a->coefficient = a->max_norm > 0 ? (wanted > 1 ? 1.0f : wanted) : 1.0f;
    return STATUS_OK;
}
