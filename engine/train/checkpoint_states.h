/* checkpoint_states.h - AdamW's states in a checkpoint, whoever holds which part of them.
 *
 * A rank writes what it holds: optimizer.safetensors when that is everything, else
 * optimizer-<rank>-of-<world>.safetensors with the place of its part (`first`). Any other number of
 * ranks, sharded or not, reads from those files what it needs: checkpoints are layout-free. */
#ifndef PLIMSOLL_ENGINE_TRAIN_CHECKPOINT_STATES_H
#define PLIMSOLL_ENGINE_TRAIN_CHECKPOINT_STATES_H

#include "engine/train/optimizer.h"

/* Writes this rank's part into the folder of a checkpoint; a rank without a part writes nothing. */
enum status states_save(const struct optimizer *o, const char *folder, struct err *e);
/* Fills this rank's part. STATUS_INVALID when the files are not of this model, or leave a gap. */
enum status states_load(struct optimizer *o, const char *folder, struct err *e);

#endif
