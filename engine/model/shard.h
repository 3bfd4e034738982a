/* shard.h - gradients that no rank holds as a whole (ZeRO stage 2, Rajbhandari et al. 2020).
 *
 * A unit is a decoder layer, or UNIT_REST: embedding, final norm and head. While backward is in a
 * unit its gradients lie in a buffer of their own; when it leaves, each rank's share goes to the
 * rank that owns these elements of the flat buffers, which adds all shares in the order of ranks to
 * its piece. So a rank holds its piece, one layer and the rest. All ranks go through the same units
 * in the same order; one that has no micro-batch goes through them with zeros. */
#ifndef PLIMSOLL_ENGINE_MODEL_SHARD_H
#define PLIMSOLL_ENGINE_MODEL_SHARD_H

#include "engine/model/model.h"

enum { UNIT_REST = -1 };

/* Every function below does nothing for a model whose gradients are whole. */
bool shard_is_on(const struct model *m);

/* Called by model_build before gradients are handed out, and by model_release. */
enum status shard_open(struct model *m, struct err *e);
void shard_close(struct model *m);

/* Backward enters the unit: its gradients may be written, the first to write overwrites. */
enum status shard_begin(struct model *m, int64_t unit, struct err *e);
/* It leaves: gradients that nobody wrote are zero, and all go to their owners. */
enum status shard_end(struct model *m, int64_t unit, struct err *e);
/* For a rank that has nothing to train while the others do. */
enum status shard_idle(struct model *m, struct err *e);
/* After an error: lets go of what units hold. */
void shard_drop(struct model *m);

#endif
