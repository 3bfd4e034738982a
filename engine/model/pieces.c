/* pieces.c - see pieces.h: what storages and parts of the flat buffers have in common.
 *
 * Parts are what the optimizer updates (units.c), in the order of the own buffers; storages lie in
 * them in the order of the flat buffers. */
#include "engine/model/pieces.h"

int64_t pieces_count(const struct model *m) {
    return m->own_count;
}

/* The storage that ends behind element `from` of the flat buffers, and first of those; NULL. */
static const struct storage *next_storage(const struct model *m, int64_t from) {
    const struct storage *best = NULL;
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (!s->trainable || s->flat_first + s->rows * s->cols <= from) continue;
        if (!best || s->flat_first < best->flat_first) best = s;
    }
    return best;
}

static void *master_at(const struct model *m, const struct flat_part *p, int64_t skipped) {
    if (p->away) return m->away.masters + (p->own + skipped) * dtype_bytes(m->away.masters_dtype);
    const struct tensor *const t = p->narrow ? m->flat_narrow : m->flat;
    const int64_t at = p->held + skipped - (p->narrow ? 0 : m->flat_from);
    return (char *)t->data + at * dtype_bytes(t->dtype);
}

enum status pieces_each(const struct model *m, pieces_visit *visit, void *context, struct err *e) {
    for (size_t i = 0; i < m->part_count; i++) {
        const struct flat_part *const p = &m->parts[i];
        const struct storage *s;
        for (int64_t at = p->first; (s = next_storage(m, at));
             at = s->flat_first + s->rows * s->cols) {
            const int64_t first = s->flat_first > at ? s->flat_first : at;
            const int64_t ends = s->flat_first + s->rows * s->cols, part_end = p->first + p->count;
            const int64_t end = ends < part_end ? ends : part_end;
            if (first >= end) break;
            const struct own_piece piece = {.storage = s - m->storages,
                                            .first = first - s->flat_first,
                                            .count = end - first,
                                            .own = p->own + first - p->first,
                                            .master = master_at(m, p, first - p->first),
                                            .away = p->away,
                                            .master_dtype =
                                                p->narrow ? m->options.weight_dtype : DTYPE_F32};
            TRY(visit(context, &piece, e));
        }
    }
    return STATUS_OK;
}
