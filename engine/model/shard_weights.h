/* shard_weights.h - frozen weights that no rank holds as a whole (ZeRO stage 3 with LoRA).
 *
 * Each rank keeps its piece of every decoder layer's matrices. A layer is gathered when the walk
 * enters it, forward or backward, and let go of when the walk leaves: a rank holds its pieces and
 * one layer. All ranks walk through the same layers in the same order. Norms and biases, the
 * embedding and the head, and adapters stay whole. */
#ifndef PLIMSOLL_ENGINE_MODEL_SHARD_WEIGHTS_H
#define PLIMSOLL_ENGINE_MODEL_SHARD_WEIGHTS_H

#include "engine/model/model.h"

/* Every function below does nothing for a model whose weights are whole. */
bool weights_are_sharded(const struct model *m);
/* Whether this storage is gathered with its layer: its value has no bytes in between. */
bool storage_is_sharded(const struct model *m, const struct storage *s);

/* Called by model_build after storages are declared, and by model_release. */
enum status shard_weights_open(struct model *m, struct err *e);
void shard_weights_close(struct model *m);

/* The layer's matrices are there; nothing if they were. */
enum status shard_gather(struct model *m, int64_t layer, struct err *e);
/* They are gone again. */
void shard_let_go(struct model *m, int64_t layer);
/* For loading: the layer's matrices have room, contents undefined; then this rank's piece is
 * kept. */
enum status shard_fill_begin(struct model *m, int64_t layer, struct err *e);
enum status shard_fill_end(struct model *m, int64_t layer, struct err *e);
/* A forward pass on a rank that has nothing to compute while the others do. */
enum status shard_walk(struct model *m, struct err *e);

#endif
