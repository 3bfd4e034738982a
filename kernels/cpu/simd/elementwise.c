/* elementwise.c - sums, scales, norms of rows and columns, and conversion between element types.
 * Nothing here is more than memory traffic, so the loops are plain and split over rows, columns or
 * runs of elements. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/simd/math.h"
#include "kernels/cpu/simd/simd.h"

enum { RUN = 8192, COLUMN_BLOCK = 64, ROW_BLOCK = 64 };

static void add_run(const float *x, const float *y, float *out, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        out[i] = x[i] + y[i];
    }
}

/* Without gaps between rows all of it is one row; a row is split into runs, so that few long rows
 * and many short ones both occupy every thread. */
enum status SIMD(cpu_add)(struct device *device, const struct add_args *a, struct err *e) {
    (void)device, (void)e;
    const bool dense = a->ld_a == a->cols && a->ld_b == a->cols && a->ld_out == a->cols;
    const int64_t rows = dense ? 1 : a->rows, cols = dense ? a->rows * a->cols : a->cols;
    const int64_t runs = (cols + RUN - 1) / RUN;
#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_MIN)
    for (int64_t i = 0; i < rows * runs; i++) {
        const int64_t row = i / runs, from = i % runs * RUN;
        add_run((const float *)a->a + row * a->ld_a + from,
                (const float *)a->b + row * a->ld_b + from,
                (float *)a->out + row * a->ld_out + from, simd_min(RUN, cols - from));
    }
    return STATUS_OK;
}

enum status SIMD(cpu_divide)(struct device *device, const struct divide_args *a, struct err *e) {
    (void)device, (void)e;
    const float *x = a->a, *y = a->b;
    float *out = a->out;
#pragma omp parallel for simd schedule(static) if (a->count > PARALLEL_MIN)
    for (int64_t i = 0; i < a->count; i++) {
        out[i] = x[i] / y[i];
    }
    return STATUS_OK;
}

/* One block of columns, in blocks of rows so that the sums stay short. */
static void sum_columns(const struct column_sum_args *a, int64_t from, int64_t cols) {
    float total[COLUMN_BLOCK] = {0};
    for (int64_t first = 0; first < a->rows; first += ROW_BLOCK) {
        float sum[COLUMN_BLOCK] = {0};
        const int64_t last = simd_min(a->rows, first + ROW_BLOCK);
        for (int64_t t = first; t < last; t++) {
            const float *x = (const float *)a->x + t * a->ld_x + from;
            if (a->y) {
                const float *y = (const float *)a->y + t * a->ld_y + from;
#pragma omp simd
                for (int64_t i = 0; i < cols; i++) {
                    sum[i] += x[i] * y[i];
                }
            } else {
#pragma omp simd
                for (int64_t i = 0; i < cols; i++) {
                    sum[i] += x[i];
                }
            }
        }
        for (int64_t i = 0; i < cols; i++) {
            total[i] += sum[i];
        }
    }
    for (int64_t i = 0; i < cols; i++) {
        a->out[from + i] = a->accumulate ? a->out[from + i] + total[i] : total[i];
    }
}

enum status SIMD(cpu_column_sum)(struct device *device, const struct column_sum_args *a,
                                 struct err *e) {
    (void)device, (void)e;
    const int64_t blocks = (a->cols + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
#pragma omp parallel for schedule(static) if (a->rows * a->cols > PARALLEL_MIN)
    for (int64_t block = 0; block < blocks; block++) {
        sum_columns(a, block * COLUMN_BLOCK,
                    simd_min(COLUMN_BLOCK, a->cols - block * COLUMN_BLOCK));
    }
    return STATUS_OK;
}

static void scale_row(const struct column_scale_args *a, const float *x, float *out) {
    for (int64_t from = 0; from < a->cols; from += COLUMN_BLOCK) {
        const int64_t cols = simd_min(COLUMN_BLOCK, a->cols - from);
        float value[COLUMN_BLOCK];
        memcpy(value, x + from, (size_t)cols * sizeof *value);
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            value[i] *= a->scale ? a->scale[from + i] : 1.0f;
        }
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            value[i] += a->bias ? a->bias[from + i] : 0.0f;
        }
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            out[from + i] = a->accumulate ? out[from + i] + value[i] : value[i];
        }
    }
}

enum status SIMD(cpu_column_scale)(struct device *device, const struct column_scale_args *a,
                                   struct err *e) {
    (void)device, (void)e;
#pragma omp parallel for schedule(static) if (a->rows * a->cols > PARALLEL_MIN)
    for (int64_t t = 0; t < a->rows; t++) {
        scale_row(a, (const float *)a->x + t * a->ld_x, (float *)a->out + t * a->ld_out);
    }
    return STATUS_OK;
}

enum status SIMD(cpu_row_norm)(struct device *device, const struct row_norm_args *a,
                               struct err *e) {
    (void)device, (void)e;
#pragma omp parallel for schedule(static) if (a->rows * a->cols > PARALLEL_MIN)
    for (int64_t t = 0; t < a->rows; t++) {
        const float *x = a->x + t * a->ld;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < a->cols; i++) {
            sum += x[i] * x[i];
        }
        a->out[t] = sqrtf(sum);
    }
    return STATUS_OK;
}

static void widen(const uint16_t *src, float *dst, int64_t count, float scale) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        dst[i] = scale * simd_from_bf16(src[i]);
    }
}

static void narrow(const float *src, uint16_t *dst, int64_t count, float scale) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        dst[i] = simd_to_bf16(scale * src[i]);
    }
}

static void scale_f32(const float *src, float *dst, int64_t count, float scale) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        dst[i] = scale * src[i];
    }
}

static void scale_bf16(const uint16_t *src, uint16_t *dst, int64_t count, float scale) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        dst[i] = simd_to_bf16(scale * simd_from_bf16(src[i]));
    }
}

static void convert_row(const struct convert_args *a, const void *src, void *dst) {
    const enum dtype from = a->src.dtype, to = a->dst.dtype;
    if (from == to && a->scale == 1) {
        memmove(dst, src, (size_t)a->cols * (from == DTYPE_F32 ? 4 : 2));
    } else if (from == DTYPE_F32 && to == DTYPE_F32) {
        scale_f32(src, dst, a->cols, a->scale);
    } else if (from == DTYPE_F32) {
        narrow(src, dst, a->cols, a->scale);
    } else if (to == DTYPE_F32) {
        widen(src, dst, a->cols, a->scale);
    } else {
        scale_bf16(src, dst, a->cols, a->scale);
    }
}

enum status SIMD(cpu_convert)(struct device *device, const struct convert_args *a, struct err *e) {
    (void)device, (void)e;
    const enum dtype from = a->src.dtype, to = a->dst.dtype;
#pragma omp parallel for schedule(static) if (a->rows * a->cols > PARALLEL_MIN)
    for (int64_t r = 0; r < a->rows; r++) {
        const char *src = (const char *)a->src.data + r * a->src.ld * (from == DTYPE_F32 ? 4 : 2);
        char *dst = (char *)a->dst.data + r * a->dst.ld * (to == DTYPE_F32 ? 4 : 2);
        convert_row(a, src, dst);
    }
    return STATUS_OK;
}

enum status SIMD(cpu_convert_items)(struct device *device, const struct convert_items_args *a,
                                    struct err *e) {
    for (int64_t i = 0; i < a->count; i++) {
        const struct convert_item *item = &a->items[i];
        const struct convert_args args = {
            .rows = item->rows,
            .cols = item->cols,
            .scale = (float)item->scale,
            .src = {(void *)(uintptr_t)item->src, a->src_dtype, item->ld_src},
            .dst = {item->dst, a->dst_dtype, item->ld_dst}};
        TRY(SIMD(cpu_convert)(device, &args, e));
    }
    return STATUS_OK;
}
