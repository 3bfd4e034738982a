/* plan_ranks.h - the plans of all ranks of a run, and the shapes of its data for any layout.
 *
 * Ranks hold the same model, but each its own part of every batch, and rank 0 alone makes samples.
 * A run fits when the neediest rank fits. */
#ifndef PLIMSOLL_ENGINE_TRAIN_PLAN_RANKS_H
#define PLIMSOLL_ENGINE_TRAIN_PLAN_RANKS_H

#include "engine/train/corpus.h"
#include "engine/train/plan.h"

/* What the shapes of a run come from: its data, or without them full rows. */
struct plan_subject {
    const struct spec *spec;
    const struct model_config *config;
    struct session_options *options; /* its rank is set */
    const struct layout *layout;
    struct corpus *corpus; /* NULL: full rows */
};

enum { PLAN_RANKS_MAX = 64 };

/* Zeroed, then filled by plan_ranks_make. */
struct plan_ranks {
    struct plan_subject subject;
    int64_t world;
    int64_t count; /* planned one by one: the first so many */
    struct {
        int64_t peak, reserved, need;
    } ranks[PLAN_RANKS_MAX];
    int64_t neediest;
    struct plan plan; /* of the neediest */
    /* A request for it, with the shapes of any layout. */
    struct batch_shapes train, eval;
    struct shape_source source;
    struct plan_request request;
};

/* Plans every rank (the first PLAN_RANKS_MAX of more). The subject is borrowed as long as `out` is
 * used, and `out` must not move. Errors as for plan_make. */
enum status plan_ranks_make(struct plan_ranks *out, const struct plan_subject *subject,
                            struct err *e);
/* [{"rank","planned_peak_bytes","planned_reserved_bytes","planned_need_bytes"}]. Caller frees. */
cJSON *plan_ranks_to_json(const struct plan_ranks *ranks);

#endif
