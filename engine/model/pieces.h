/* pieces.h - what of the trained parameters this rank updates, and where that lies.
 *
 * From ZeRO stage 1 on a rank owns a contiguous piece of every unit (a decoder layer's matrices,
 * the embedding, the head, all vectors). The own buffers, AdamW's states among them, are these
 * pieces one behind the other, in an order that only this rank knows: who saves or loads them asks
 * here. Without division a rank owns everything, and the same questions have answers. */
#ifndef PLIMSOLL_ENGINE_MODEL_PIECES_H
#define PLIMSOLL_ENGINE_MODEL_PIECES_H

#include "engine/model/model.h"

/* Elements first..first + count of a storage, row by row. */
struct own_piece {
    int64_t storage; /* index in m->storages */
    int64_t first, count;
    int64_t own;             /* of the own buffers: where they lie in exp_avg and exp_avg_sq */
    void *master;            /* the trained values of just these elements, device memory */
    bool away;               /* or page-locked host memory */
    enum dtype master_dtype; /* f32, or narrower with stochastic rounding */
};
typedef enum status pieces_visit(void *context, const struct own_piece *piece, struct err *e);

/* Calls visit for everything that this rank updates, in the order of the own buffers. Storages that
 * are not trained have no piece, and small ones may have none here. */
enum status pieces_each(const struct model *m, pieces_visit *visit, void *context, struct err *e);
/* Elements of an own buffer, gaps included: what exp_avg holds. */
int64_t pieces_count(const struct model *m);

#endif
