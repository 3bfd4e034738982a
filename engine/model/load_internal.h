/* load_internal.h - what load.c and load_quant.c share: a piece of an item, the unit of reading.
 *
 * load.c cuts items into pieces and moves them; what is quantised on the way is read and uploaded
 * by load_quant.c, piece by piece. Private to the two. */
#ifndef PLIMSOLL_ENGINE_MODEL_LOAD_INTERNAL_H
#define PLIMSOLL_ENGINE_MODEL_LOAD_INTERNAL_H

#include "engine/model/load.h"

enum { PIECE_ELEMENTS = 1 << 20 };

/* Elements [first, first + rows * cols) of an item's block; `row` is where they go, cols is a whole
 * row of a matrix with gaps, here or in the file, and a run of elements of one without. */
struct piece {
    const struct load_item *item;
    int64_t first, row, rows, cols;
    struct load_scales *scales; /* of the whole item, for its last piece to quantise; else NULL */
    bool last;
};

/* There from the first piece that is taken to the last that is uploaded. */
struct load_scales {
    float *values;
};

/* load_quant.c. Whether rows are read one by one: the file has gaps between them, or each has a
 * scale of its own. */
bool load_quant_by_rows(const struct load_item *item);
/* For f32 scales that wait for the last piece; NULL where they need not. Free with
 * load_quant_free. */
struct load_scales *load_quant_scales(const struct load_item *item);
void load_quant_free(struct load_scales *scales);
/* Before a piece is read, in order. One thread at a time. */
void load_quant_begin(const struct piece *p);
/* Codes, then scales, into host memory of 2 bytes an element. Any thread. */
enum status load_quant_read(const struct piece *p, void *out, struct err *e);
enum status load_quant_upload(const struct piece *p, void *host, struct err *e);

#endif
