/* replicated.h - gradients of what several ranks along the tensor axis have alike: norms, one side
 * of each adapter, key/value heads where there are fewer of them than ranks.
 *
 * Each of these ranks computes a part of such a gradient, from its own rows or heads. The parts are
 * summed once a step, after the sums over ranks that train other rows: the flat buffers of all
 * ranks that share layers have what is shared in the same places. A norm of all gradients counts
 * every element once. */
#ifndef PLIMSOLL_ENGINE_MODEL_REPLICATED_H
#define PLIMSOLL_ENGINE_MODEL_REPLICATED_H

#include "engine/model/model.h"

/* Every function below does nothing for a model whose layers are this rank's alone. */

/* Opens what the sums need; after the flat buffers. All ranks together. */
enum status replicated_open(struct model *m, struct err *e);
void replicated_close(struct model *m);
/* What this rank owns of shared elements becomes the sum over those who share them; after the sum
 * over other rows. Allocates nothing. */
enum status replicated_sum(struct model *m, struct err *e);
/* The next elements of all that is trained, from `from` on, that an earlier rank has too and counts
 * in norms. False: there are none. */
bool replicated_next(const struct model *m, int64_t from, struct comm_piece *out);

#endif
