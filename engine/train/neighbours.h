/* neighbours.h - what the stages of a pipeline hand each other: hidden states to the next stage,
 * and their gradients back.
 *
 * All tensors of one call travel side by side, so two neighbours that both send and receive never
 * wait for each other in a ring. A tensor travels without what lies between its rows. */
#ifndef PLIMSOLL_ENGINE_TRAIN_NEIGHBOURS_H
#define PLIMSOLL_ENGINE_TRAIN_NEIGHBOURS_H

#include "engine/model/model.h"

enum hand_way { FROM_BEFORE, TO_NEXT, FROM_NEXT, TO_BEFORE };
struct hand {
    struct tensor *tensor; /* one that is received has no gap between its rows */
    enum hand_way way;
};
enum { HANDS_MAX = 2 };

/* How many stages there are, and which this model is; 1 and 0 for a model that is whole. */
int64_t neighbours_stages(const struct model *m);
int64_t neighbours_stage(const struct model *m);

/* Sends and receives all of them; each neighbour must do the same at its side. As comm_exchange.
 * With count 0 nothing happens. */
enum status neighbours_exchange(struct model *m, const struct hand *hands, int64_t count,
                                struct err *e);

#endif
