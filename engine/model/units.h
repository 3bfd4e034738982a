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
/* Whether each rank holds its piece only of f32 masters: in full fine-tuning, where forward reads
 * narrower copies of them, and with stage 3. Vectors are whole. */
bool units_are_divided(const struct model *m);
/* Whether what forward reads of them is divided too: with stage 3, and where it waits in host
 * memory, if only in one piece. */
bool units_are_gathered(const struct model *m);
/* Whether both wait in host memory (params_away). */
bool units_are_away(const struct model *m);
bool storage_is_vector(const struct storage *s);
/* Whether it is trained without an f32 master. */
bool storage_is_narrow(const struct model *m, const struct storage *s);
/* Whether units are summed while backward computes others: where gradients are whole, and it pays.
 */
bool units_overlap(const struct model *m);
/* What the forward pass reads of this kind. */
enum dtype units_value_dtype(const struct model *m, enum param_kind kind);

/* Fills flat_first of all storages, units, parts and the counts of `m`. */
void units_place(struct model *m);
struct unit *unit_at(const struct model *m, int64_t unit);
/* Where its storages are, trained or not: a model has thousands, a unit a few. */
struct storage_span units_span(const struct model *m, int64_t unit);
/* The first element of a storage that is whole: in flat_narrow and flat, one behind the other; and
 * in copies. */
int64_t units_held(const struct model *m, const struct storage *s);
int64_t units_copied(const struct model *m, const struct storage *s);

#endif
