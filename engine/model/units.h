/* units.h - where in the flat buffers what is trained lies, and what of it this rank updates.
 *
 * Alone, a model has decayed elements first, so that an update is one call or two. Where several
 * ranks train different rows, the flat buffers are units, one behind the other: what a rank sums,
 * owns and gathers at a time is then contiguous, and cut into equal pieces.
 *
 * Internal to engine/model; others ask pieces.h. */
#ifndef PLIMSOLL_ENGINE_MODEL_UNITS_H
#define PLIMSOLL_ENGINE_MODEL_UNITS_H

#include "engine/model/model.h"

/* The ZeRO stage that counts: 0 where no rank shares this one's copy of the parameters. */
int64_t units_stage(const struct model *m);
/* Whether each rank holds its piece only, of masters and of what forward reads: full fine-tuning
 * with stage 3. Vectors are whole. */
bool units_are_divided(const struct model *m);
/* This storage is trained, and its rank holds a piece. */
bool storage_is_divided(const struct model *m, const struct storage *s);
bool storage_is_vector(const struct storage *s);
/* Whether it is trained without an f32 master. */
bool storage_is_narrow(const struct model *m, const struct storage *s);
/* What the forward pass reads of this kind. */
enum dtype units_value_dtype(const struct model *m, enum param_kind kind);

/* Fills flat_first of all storages, units, parts and the counts of `m`. */
void units_place(struct model *m);
struct unit *unit_at(const struct model *m, int64_t unit);
/* Of a storage that is not divided: its first element in flat_narrow and flat, one behind the
 * other, and in copies. */
int64_t units_held(const struct model *m, const struct storage *s);

#endif
