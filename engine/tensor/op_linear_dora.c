/* op_linear_dora.c - DoRA's magnitudes on a linear layer's adapted rows (Liu et al. 2024, eq. 5).
 *
 * The norm of the merged weight is a constant in backward (section 4.3), so it is computed in
 * forward and kept; it is one number a row. */
#include "engine/tensor/linear_internal.h"

/* The norms so far are of this rank's columns. */
static enum status whole_norm(const struct linear *l, const struct lora *a,
                              const struct tensor *norm, struct err *e) {
    struct tensor *const part =
        tensor_view_flat((struct tensor *)(uintptr_t)norm, a->first_row, 1, a->rows);
    const enum status status = group_length(l->inputs_shared, part, e);
    tensor_release(part);
    return status;
}

/* norm[rows of the adapter] = |W + scaling * B A| by rows. */
static enum status weight_norm(struct tape *tape, const struct linear *l, const struct lora *a,
                               const struct tensor *norm, struct err *e) {
    struct device *const device = tape->space->device;
    const int64_t cols = l->weight->cols;
    struct tensor *merged = NULL;
    TRY(tensor_new(tape->space, DTYPE_F32, a->rows, cols, CATEGORY_WORKSPACE, &merged, e));
    const struct convert_args copy = {.rows = a->rows,
                                      .cols = cols,
                                      .scale = 1,
                                      .src = tensor_matrix_at(l->weight, a->first_row, 0),
                                      .dst = tensor_matrix(merged)};
    const struct gemm_args delta = {.m = a->rows,
                                    .n = cols,
                                    .k = a->rank,
                                    .alpha = a->scaling,
                                    .beta = 1,
                                    .a = tensor_matrix(a->b),
                                    .b = tensor_matrix_at(l->lora_a, a->rank_first, 0),
                                    .c = tensor_matrix(merged)};
    const struct row_norm_args length = {.rows = a->rows,
                                         .cols = cols,
                                         .x = tensor_f32(merged),
                                         .ld = merged->ld,
                                         .out = tensor_f32(norm) + a->first_row};
    enum status status = device_convert(device, &copy, e);
    if (status == STATUS_OK) status = device_gemm(device, &delta, e);
    if (status == STATUS_OK) status = device_row_norm(device, &length, e);
    tensor_release(merged);
    return status == STATUS_OK && l->inputs_shared ? whole_norm(l, a, norm, e) : status;
}

/* out[:, rows] = scale * x[:, rows] for the adapter's rows, with scale = magnitude / norm. */
static enum status scale_columns(struct tape *tape, const struct lora *a, const struct tensor *norm,
                                 const struct tensor *x, const struct tensor *out, struct err *e) {
    struct device *const device = tape->space->device;
    struct tensor *scale = NULL;
    TRY(tensor_new(tape->space, DTYPE_F32, 1, a->rows, CATEGORY_WORKSPACE, &scale, e));
    const struct divide_args divide = {.count = a->rows,
                                       .a = tensor_f32(a->magnitude),
                                       .b = tensor_f32(norm) + a->first_row,
                                       .out = tensor_f32(scale)};
    const struct column_scale_args args = {.rows = x->rows,
                                           .cols = a->rows,
                                           .dtype = x->dtype,
                                           .x = tensor_matrix_at(x, 0, a->first_row).data,
                                           .ld_x = x->ld,
                                           .scale = tensor_f32(scale),
                                           .out = tensor_matrix_at(out, 0, a->first_row).data,
                                           .ld_out = out->ld};
    enum status status = device_divide(device, &divide, e);
    if (status == STATUS_OK) status = device_column_scale(device, &args, e);
    tensor_release(scale);
    return status;
}

enum status dora_apply(struct tape *tape, const struct linear *l, struct tensor *y,
                       struct tensor **plain, struct tensor **norm, struct err *e) {
    TRY(tensor_activation(tape->space, y->rows, y->cols, 0, plain, e));
    TRY(tensor_new(tape->space, DTYPE_F32, 1, y->cols, CATEGORY_ACTIVATIONS, norm, e));
    TRY(tensor_copy(*plain, y, e));
    for (int64_t i = 0; i < l->adapter_count; i++) {
        const struct lora *const a = &l->adapters[i];
        TRY(weight_norm(tape, l, a, *norm, e));
        TRY(scale_columns(tape, a, *norm, *plain, y, e));
    }
    return STATUS_OK;
}

/* dmagnitude of one adapter; `part` [1,rows] is scratch. */
static enum status magnitude_backward(const struct lora *a, const struct node *node, float *part,
                                      struct err *e) {
    const struct tensor *const plain = node->saved[SAVED_PLAIN], *const dy = node->gradient;
    struct device *const device = dy->space->device;
    const struct column_sum_args sum = {.rows = dy->rows,
                                        .cols = a->rows,
                                        .dtype = dy->dtype,
                                        .x = tensor_matrix_at(dy, 0, a->first_row).data,
                                        .ld_x = dy->ld,
                                        .y = tensor_matrix_at(plain, 0, a->first_row).data,
                                        .ld_y = plain->ld,
                                        .out = part};
    const struct divide_args divide = {.count = a->rows,
                                       .a = part,
                                       .b = tensor_f32(node->saved[SAVED_NORM]) + a->first_row,
                                       .out = part};
    struct tensor *dm = NULL;
    bool accumulate = false;
    TRY(gradient_target(a->magnitude->gradient, &dm, &accumulate, e));
    if (!accumulate) TRY(tensor_fill_zero(dm, e));
    const struct add_args add = {.rows = 1,
                                 .cols = a->rows,
                                 .dtype = DTYPE_F32,
                                 .a = tensor_f32(dm),
                                 .ld_a = a->rows,
                                 .b = part,
                                 .ld_b = a->rows,
                                 .out = tensor_f32(dm),
                                 .ld_out = a->rows};
    TRY(device_column_sum(device, &sum, e));
    TRY(device_divide(device, &divide, e));
    return device_add(device, &add, e);
}

enum status dora_backward(struct tape *tape, const struct linear *l, const struct node *node,
                          struct tensor **dz, struct err *e) {
    const struct tensor *const dy = node->gradient;
    struct tensor *sums = NULL;
    enum status status = STATUS_OK;
    TRY(tensor_activation(tape->space, dy->rows, dy->cols, 0, dz, e));
    GUARD(tensor_copy(*dz, dy, e));
    GUARD(tensor_new(tape->space, DTYPE_F32, 1, dy->cols, CATEGORY_WORKSPACE, &sums, e));
    for (int64_t i = 0; i < l->adapter_count; i++) {
        const struct lora *const a = &l->adapters[i];
        GUARD(magnitude_backward(a, node, tensor_f32(sums) + a->first_row, e));
        GUARD(scale_columns(tape, a, node->saved[SAVED_NORM], dy, *dz, e));
    }
done:
    tensor_release(sums);
    return status;
}
