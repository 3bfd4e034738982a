/* norm.c - root-mean-square norm, forward and backward. Rows are split over the threads; sums over
 * rows (the gradient of the weight) are split over columns instead, so that they do not depend on
 * the number of threads. */
#include <math.h>

#include "kernels/cpu/simd/simd.h"

enum { COLUMN_BLOCK = 64, ROW_BLOCK = 64 };

static float mean_square(const float *x, int64_t width) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) {
        sum += x[i] * x[i];
    }
    return sum / (float)width;
}

enum status SIMD(cpu_rmsnorm)(struct device *device, const struct rmsnorm_args *a, struct err *e) {
    (void)device, (void)e;
    const int64_t rows = a->tokens * a->groups, width = a->width;
#pragma omp parallel for schedule(static) if (rows * width > PARALLEL_MIN)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t t = row / a->groups, offset = row % a->groups * width;
        const float *x = (const float *)a->x + t * a->ld_x + offset;
        float *y = (float *)a->y + t * a->ld_y + offset;
        if (a->residual) {
            const float *residual = (const float *)a->residual + t * a->ld_residual + offset;
            float *sum = (float *)a->sum + t * a->ld_sum + offset;
#pragma omp simd
            for (int64_t i = 0; i < width; i++) {
                sum[i] = x[i] + residual[i];
            }
            x = sum;
        }
        const float rstd = 1.0f / sqrtf(mean_square(x, width) + a->eps);
        a->rstd[row] = rstd;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            y[i] = x[i] * rstd * (a->weight_offset + a->weight[i]);
        }
    }
    return STATUS_OK;
}

/* With n = x*rstd and g = dy*(offset+weight): dx = rstd * (g - n * mean(g*n)). */
static void backward_row(const struct rmsnorm_backward_args *a, int64_t row) {
    const int64_t t = row / a->groups, offset = row % a->groups * a->width, width = a->width;
    const float *x = (const float *)a->x + t * a->ld_x + offset;
    const float *dy = (const float *)a->dy + t * a->ld_dy + offset;
    float *dx = (float *)a->dx + t * a->ld_dx + offset;
    const float rstd = a->rstd[row];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < width; i++) {
        dot += dy[i] * (a->weight_offset + a->weight[i]) * x[i];
    }
    const float pull = dot * rstd * rstd / (float)width;
    if (a->accumulate) {
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            dx[i] += rstd * (dy[i] * (a->weight_offset + a->weight[i]) - x[i] * pull);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            dx[i] = rstd * (dy[i] * (a->weight_offset + a->weight[i]) - x[i] * pull);
        }
    }
}

/* dweight of columns [from, to), in blocks of rows so that the sums stay short. */
static void backward_weight(const struct rmsnorm_backward_args *a, int64_t from, int64_t to) {
    const int64_t rows = a->tokens * a->groups, cols = to - from;
    for (int64_t first = 0; first < rows; first += ROW_BLOCK) {
        float sum[COLUMN_BLOCK] = {0};
        const int64_t last = simd_min(rows, first + ROW_BLOCK);
        for (int64_t row = first; row < last; row++) {
            const int64_t t = row / a->groups, offset = row % a->groups * a->width + from;
            const float *x = (const float *)a->x + t * a->ld_x + offset;
            const float *dy = (const float *)a->dy + t * a->ld_dy + offset;
            const float rstd = a->rstd[row];
#pragma omp simd
            for (int64_t i = 0; i < cols; i++) {
                sum[i] += dy[i] * x[i] * rstd;
            }
        }
        for (int64_t i = 0; i < cols; i++) {
            a->dweight[from + i] += sum[i];
        }
    }
}

enum status SIMD(cpu_rmsnorm_backward)(struct device *device, const struct rmsnorm_backward_args *a,
                                       struct err *e) {
    (void)device, (void)e;
    const int64_t rows = a->tokens * a->groups;
    /* The weight first: dx may be where dy is. */
    if (a->dweight) {
        const int64_t blocks = (a->width + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
#pragma omp parallel for schedule(static) if (rows * a->width > PARALLEL_MIN)
        for (int64_t block = 0; block < blocks; block++) {
            backward_weight(a, block * COLUMN_BLOCK,
                            simd_min(a->width, (block + 1) * COLUMN_BLOCK));
        }
    }
#pragma omp parallel for schedule(static) if (rows * a->width > PARALLEL_MIN)
    for (int64_t row = 0; row < rows; row++) {
        backward_row(a, row);
    }
    return STATUS_OK;
}
