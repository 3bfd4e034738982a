/* checkpoint_part.h - the file that a rank adds to a checkpoint, and what a rank takes from all of
 * them.
 *
 * A part holds blocks (engine/io/blocks.h) of the trained tensors under their own names, and of
 * AdamW's states as "exp_avg/NAME" and "exp_avg_sq/NAME", all f32. No file knows how the run was
 * divided: any other division reads from all parts what it needs. */
#ifndef PLIMSOLL_ENGINE_TRAIN_CHECKPOINT_PART_H
#define PLIMSOLL_ENGINE_TRAIN_CHECKPOINT_PART_H

#include "engine/io/blocks.h"
#include "engine/train/owned.h"

/* Names of files begin so: what stays, and values that are put together and removed. */
#define PART_PREFIX "part-"
#define PART_VALUES_PREFIX "values-"

/* Which kinds a file has. */
struct part_kinds {
    bool has[OWNED_KIND_COUNT];
};
/* <prefix>0000R-of-0000W.safetensors with what this rank writes; *name is the file's, NULL when
 * this rank has nothing to write. Caller frees. All ranks together. */
enum status part_save(const struct optimizer *o, const struct part_kinds *kinds, const char *folder,
                      const char *prefix, char **name, struct err *e);
/* Fills what this rank holds of these kinds. STATUS_INVALID when the files are not of this model,
 * or something is missing: it is named. */
enum status part_load(const struct optimizer *o, const struct part_kinds *kinds,
                      const struct block_set *set, struct err *e);

#endif
