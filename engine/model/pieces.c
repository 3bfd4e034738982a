/* pieces.c - see pieces.h: what storages and pieces have in common. */
#include "engine/model/pieces.h"

static struct comm_piece piece_of(const struct model *m) {
    const struct mesh *const mesh = m->options.mesh;
    if (m->options.zero_stage == 0 || !mesh || mesh->data.world == 1)
        return (struct comm_piece){.count = m->flat_count};
    return comm_piece_of(m->flat_count, COMM_PITCH, mesh->data.rank, mesh->data.world);
}

int64_t pieces_count(const struct model *m) {
    return piece_of(m).count;
}

/* The storage that lies next in the flat buffers, from element `from` on; -1: there is none. */
static int64_t next_storage(const struct model *m, int64_t from) {
    int64_t best = -1;
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (!s->trainable || s->flat_first < from) continue;
        if (best < 0 || s->flat_first < m->storages[best].flat_first) best = (int64_t)i;
    }
    return best;
}

enum status pieces_each(const struct model *m, pieces_visit *visit, void *context, struct err *e) {
    const struct comm_piece own = piece_of(m);
    int64_t index = 0, from = 0;
    while ((index = next_storage(m, from)) >= 0) {
        const struct storage *const s = &m->storages[index];
        const int64_t begins = s->flat_first, ends = begins + s->rows * s->cols;
        const int64_t first = begins > own.first ? begins : own.first;
        const int64_t last = ends < own.first + own.count ? ends : own.first + own.count;
        from = begins + 1;
        if (first >= last) continue;
        const enum dtype dtype = s->master->dtype;
        const struct own_piece piece = {.storage = index,
                                        .first = first - begins,
                                        .count = last - first,
                                        .own = first - own.first,
                                        .master = (char *)s->master->data +
                                                  (first - begins) * dtype_bytes(dtype),
                                        .master_dtype = dtype};
        TRY(visit(context, &piece, e));
    }
    return STATUS_OK;
}
