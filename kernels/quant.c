/* quant.c - where the codes and scales of a quantised matrix lie.
 *
 * Codes come first, all parts as one matrix; then scales; then nested scales, which are f32 again.
 * Every region begins at a multiple of ALIGN bytes, so that a device reads it in wide words. */
#include "kernels/quant.h"

#include "base/err.h"
#include "kernels/quant_map.h"

enum { ALIGN = 64 };

const float quant_dynamic_map[256] = QUANT_DYNAMIC_MAP;

static int64_t aligned(int64_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

const char *quant_name(enum quant quant) {
    ASSERT(quant != QUANT_NONE);
    return quant == QUANT_FP8 ? "float8_e4m3" : "nf4";
}

void quant_place(struct quant_layout *l) {
    ASSERT(l->quant != QUANT_NONE && l->cols % QUANT_GRANULE == 0);
    ASSERT(l->part_count > 0 && l->part_count <= QUANT_PARTS_MAX);
    l->rows = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < l->part_count; i++) {
        struct quant_part *const p = &l->parts[i];
        p->first_row = l->rows;
        p->codes = at;
        l->rows += p->rows;
        at += quant_code_bytes(l->quant, p->rows * l->cols);
    }
    at = aligned(at);
    for (int64_t i = 0; i < l->part_count; i++) {
        struct quant_part *const p = &l->parts[i];
        p->scales = at;
        at += quant_scale_bytes(l->quant, p->rows, l->cols);
    }
    at = aligned(at);
    for (int64_t i = 0; i < l->part_count; i++) {
        struct quant_part *const p = &l->parts[i];
        const int64_t count = quant_nested_count(l->quant, p->rows, l->cols);
        p->nested = count > 0 ? at : 0;
        at += count * 4;
    }
    l->bytes = aligned(at);
}
