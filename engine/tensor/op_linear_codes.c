/* op_linear_codes.c - a linear layer whose weight is kept as codes of 4 or 8 bits.
 *
 * The whole matrix is made before a product and let go of after it, forward and backward (Dettmers
 * et al. 2023, section 3): one pass that writes what the product reads. Between two products the
 * weight is a tensor without bytes. */
#include "engine/tensor/linear_internal.h"

static enum status decode(const struct quantised *from, const struct tensor *to, struct err *e) {
    const struct quant_layout *const l = &from->layout;
    const char *const bytes = from->bytes->data;
    for (int64_t i = 0; i < l->part_count; i++) {
        const struct quant_part *const p = &l->parts[i];
        const struct dequantize_args args = {
            .rows = p->rows,
            .cols = l->cols,
            .quant = l->quant,
            .codes = bytes + p->codes,
            .scales = bytes + p->scales,
            .nested = l->quant == QUANT_NF4_DOUBLE ? (const float *)(bytes + p->nested) : NULL,
            .out = tensor_matrix_at(to, p->first_row, 0)};
        TRY(device_dequantize(to->space->device, &args, e));
    }
    return STATUS_OK;
}

static enum status copy_block(const struct tensor *from, const struct tensor *to, int64_t row,
                              int64_t col, struct err *e) {
    const struct convert_args args = {.rows = from->rows,
                                      .cols = from->cols,
                                      .scale = 1,
                                      .src = tensor_matrix(from),
                                      .dst = tensor_matrix_at(to, row, col)};
    return device_convert(to->space->device, &args, e);
}

/* The adapters that ride in tails: small, so they are kept and copied. */
static enum status add_tails(const struct linear *l, struct err *e) {
    const struct quantised *const q = l->codes;
    TRY(copy_block(q->beside, l->augmented, 0, l->weight->cols, e));
    return copy_block(q->below, l->augmented, l->weight->rows, 0, e);
}

enum status linear_open_weight(const struct linear *l, struct tensor **scratch, struct err *e) {
    if (!l->codes) return STATUS_OK;
    struct tensor *const weight = l->weight;
    ASSERT(!weight->data && !weight->gradient && l->codes->bytes->data);
    const struct shape shape = {.dtype = weight->dtype,
                                .rows = weight->rows + l->tail,
                                .cols = weight->cols,
                                .tail = l->tail};
    TRY(tensor_make(weight->space, &shape, CATEGORY_WORKSPACE, scratch, e));
    ASSERT((*scratch)->ld == weight->ld);
    weight->data = (*scratch)->data;
    if (l->augmented) l->augmented->data = weight->data;
    TRY(decode(l->codes, weight, e));
    return l->augmented ? add_tails(l, e) : STATUS_OK;
}

void linear_close_weight(const struct linear *l, struct tensor **scratch) {
    if (!*scratch) return;
    l->weight->data = NULL;
    if (l->augmented) l->augmented->data = NULL;
    tensor_drop(scratch);
}
