/* shard_weights.h - weights that no rank holds as a whole (ZeRO stage 3), and f32 masters.
 *
 * Each rank keeps its piece of every decoder layer's matrices, of the embedding and of the
 * head: frozen weights with adapters, and in full fine-tuning f32 masters and what forward
 * reads of them. A unit is gathered when the walk enters it, forward or backward, and let go of
 * when the walk leaves; the one that comes next is on its way meanwhile. So a rank holds its
 * pieces and two units. With param_offloading its pieces, or all, wait in page-locked host
 * memory and come over the bus. What is quantised is kept, and travels, as codes. All ranks
 * walk through the same units in the same order. Vectors and adapters stay whole. */
#ifndef PLIMSOLL_ENGINE_MODEL_SHARD_WEIGHTS_H
#define PLIMSOLL_ENGINE_MODEL_SHARD_WEIGHTS_H

#include "engine/model/model.h"

/* Every function below does nothing for a model whose weights are whole and here. */
/* Whether ranks share them, so that no rank computes alone. */
bool weights_are_sharded(const struct model *m);
/* Whether units come and go: they are shared, or wait in host memory (param_offloading). */
bool weights_come_and_go(const struct model *m);
/* Whether this storage is gathered with its unit: its value has no bytes in between. */
bool storage_is_sharded(const struct model *m, const struct storage *s);
/* Whether it is trained, and of its master each rank holds a piece (pieces.h): the master has bytes
 * only while it is filled. In full fine-tuning with stage 3, and from stage 1 on where forward
 * reads narrower copies. */
bool storage_is_divided(const struct model *m, const struct storage *s);

/* Elements between the rows of a weight that has room for adapters behind them. */
int64_t tail_pitch(const struct storage *s);

/* Whether the adapters in this weight's tails come and go with it. */
bool tails_are_gathered(const struct model *m, const struct storage *weight);

/* What comes over the bus in a training micro-batch: layers twice, embedding and head once. */
int64_t shard_bus_bytes(const struct model *m);

/* Called by model_build after storages are declared, and by model_release. */
enum status shard_weights_open(struct model *m, struct err *e);
void shard_weights_close(struct model *m);

/* The unit of the loss head: its own, or the embedding. */
int64_t shard_head(const struct model *m);
/* The unit that a walk comes to after layer i, forward and backward. */
int64_t shard_after(const struct model *m, int64_t layer);
int64_t shard_before(int64_t layer);
enum { UNIT_NONE = -UNITS_BESIDE - 1 };

/* The unit is there; nothing if it was. `next` (or UNIT_NONE) begins to come. */
enum status shard_gather(struct model *m, int64_t unit, int64_t next, struct err *e);
/* It is gone again. */
void shard_let_go(struct model *m, int64_t unit);
/* For loading: what is trained, or else what forward reads, has room, contents zero; then this
 * rank's piece is kept. */
enum status shard_fill_begin(struct model *m, int64_t unit, struct err *e);
enum status shard_fill_end(struct model *m, int64_t unit, struct err *e);
/* After masters were filled: what forward reads of them. All ranks together. */
enum status shard_refresh(struct model *m, struct err *e);
/* A forward pass on a rank that has nothing to compute while the others do. training: backward
 * follows. */
enum status shard_walk(struct model *m, bool training, struct err *e);

#endif
