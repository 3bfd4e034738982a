/* shard.h - gradients of several ranks: summed unit by unit, and from ZeRO stage 2 on held by no
 * rank as a whole (Rajbhandari et al. 2020).
 *
 * A unit is a decoder layer's matrices, the embedding, the head, or all vectors (units.h). Where
 * gradients are divided they lie in a buffer of their own while backward is in the unit; when it
 * leaves, each rank's share goes to the rank that owns these elements, which adds the sum to its
 * piece: a rank holds its piece and two units at most, one of which is on its way while the next is
 * computed. All ranks go through the same units in the same order; one that has no micro-batch goes
 * through them with zeros. */
#ifndef PLIMSOLL_ENGINE_MODEL_SHARD_H
#define PLIMSOLL_ENGINE_MODEL_SHARD_H

#include "engine/model/model.h"

/* Every function below does nothing for a model that no other rank trains. */
/* Whether gradients are divided. */
bool shard_is_on(const struct model *m);

/* Called by model_build before gradients are handed out, and by model_release. */
enum status shard_open(struct model *m, struct err *e);
void shard_close(struct model *m);

/* The next micro-batch is the last of its step, or not. Where gradients are whole and it pays
 * (overlap in model_options), units of the last one are summed as backward leaves them. */
void shard_expect(struct model *m, bool last);
/* Whether the micro-batch exchanges memory with other ranks: backward then says where it is. */
bool shard_has_marks(const struct model *m);

/* Backward enters the unit: its gradients may be written, the first to write overwrites. Nothing
 * if it is in it already. */
enum status shard_begin(struct model *m, int64_t unit, struct err *e);
/* It leaves: gradients that nobody wrote are zero, and all go to their owners. */
enum status shard_end(struct model *m, int64_t unit, struct err *e);
/* The micro-batch is over: what is still on its way to owners has arrived. */
enum status shard_finish(struct model *m, struct err *e);
/* For a rank that has nothing to train while the others do. */
enum status shard_idle(struct model *m, struct err *e);
/* After an error: lets go of what units hold. */
void shard_drop(struct model *m);

/* After the last micro-batch of a step: this rank's pieces at least hold the sum over all ranks. */
enum status shard_sum(struct model *m, struct err *e);
/* After an update of the own pieces: masters and copies that are whole get those of the others. */
enum status shard_share(struct model *m, struct err *e);

#endif
