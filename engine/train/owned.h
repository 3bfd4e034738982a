/* owned.h - which elements of which tensors this rank keeps, and where: the only place where
 * checkpoints meet the way in which parameters and AdamW's states are divided.
 *
 * What is trained lies in flat buffers; a rank keeps a piece of them. A run is what such a piece
 * has of one parameter. Several ranks may keep the same (copies of the data axes, what the tensor
 * axis does not cut, tied embeddings at both ends of a pipeline): exactly one of them writes it. */
#ifndef PLIMSOLL_ENGINE_TRAIN_OWNED_H
#define PLIMSOLL_ENGINE_TRAIN_OWNED_H

#include "engine/train/optimizer.h"

/* What there is of each trained element. */
enum owned_kind { OWNED_VALUE, OWNED_EXP_AVG, OWNED_EXP_AVG_SQ, OWNED_KIND_COUNT };

struct owned_run {
    const struct param *param;
    int64_t first, count;  /* elements of the parameter's block, row by row */
    int64_t own;           /* where they lie in AdamW's states; -1: another rank has those */
    struct tensor *values; /* [1, count] their masters; borrowed until the visit returns */
    float *host;           /* where masters wait in host memory; values is NULL then */
};
typedef enum status owned_visit(void *context, const struct owned_run *run, struct err *e);

/* The parameters that are trained: those of the base model, or of the adapters. */
const struct param *owned_params(const struct model *m, size_t *count);

/* Every run that this rank has: of values all that it holds, of the states its piece. */
enum status owned_each(const struct optimizer *o, enum owned_kind kind, owned_visit *visit,
                       void *context, struct err *e);
/* Where a run lies: a view of device memory, which the caller releases, or host memory. */
struct owned_place {
    struct tensor *view; /* [1, count], or NULL */
    float *host;         /* [count] */
};
void owned_find(const struct optimizer *o, enum owned_kind kind, const struct owned_run *run,
                struct owned_place *place);
/* The device has finished with what lies in host memory. */
enum status owned_settle(const struct optimizer *o, struct err *e);

/* Which parameters this rank writes its runs of. All ranks together. Release with mem_free. */
enum status owned_writes(const struct optimizer *o, bool **writes, struct err *e);
/* Every run that this rank writes, of any kind. */
enum status owned_each_written(const struct optimizer *o, const bool *writes, owned_visit *visit,
                               void *context, struct err *e);
/* Whether every rank has all values of what is trained. */
bool owned_has_all(const struct optimizer *o);

#endif
