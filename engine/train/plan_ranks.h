/* plan_ranks.h - the plans of all ranks of a run, and the shapes of its data for any layout.
 *
 * Ranks that are alike in all that memory depends on are a class and have one plan: the same stage
 * of a pipeline, the same pieces of what is divided, the same shapes of micro-batches; rank 0 alone
 * makes samples. So thousands of ranks take as few plans as there are classes. A run fits when the
 * neediest rank fits. */
#ifndef PLIMSOLL_ENGINE_TRAIN_PLAN_RANKS_H
#define PLIMSOLL_ENGINE_TRAIN_PLAN_RANKS_H

#include "engine/train/corpus.h"
#include "engine/train/estimate.h"

/* What the shapes of a run come from: its data, or without them full rows. */
struct plan_subject {
    const struct spec *spec;
    const struct model_config *config;
    struct session_options *options; /* its rank is set */
    const struct layout *layout;
    struct corpus *corpus; /* NULL: full rows */
};

/* Ranks that are listed one by one; and ranks that train different rows whose own shapes are looked
 * at: of more of them, one bound of all. */
enum { PLAN_RANKS_MAX = 64 };

struct plan_class {
    int64_t first, count; /* its first rank, and how many there are */
    int64_t stage;        /* of the pipeline */
    int64_t tensor;       /* place on the tensor axis, where that matters */
    uint64_t held;        /* fingerprint of what its ranks hold all the time */
    bool speaks;          /* makes samples */
    struct batch_shapes train, eval;
    struct plan plan;
};

/* Zeroed, then filled by plan_ranks_make. */
struct plan_ranks {
    struct plan_subject subject;
    struct mesh_shape shape;
    int64_t world;
    int64_t *class_of; /* [world] */
    struct plan_class *classes;
    int64_t class_count;
    size_t class_capacity;
    int64_t neediest; /* rank */
    struct plan plan; /* of the neediest */
    /* A request for it, with the shapes of any layout. */
    struct batch_shapes train, eval;
    struct shape_source source;
    struct plan_request request;
};

/* The subject is borrowed as long as `out` is used, and `out` must not move. Errors as for
 * plan_make. Release with plan_ranks_release, also after an error. */
enum status plan_ranks_make(struct plan_ranks *out, const struct plan_subject *subject,
                            struct err *e);
void plan_ranks_release(struct plan_ranks *ranks);
/* The plan of the class whose step takes longest; where rates are unknown, of the neediest. */
const struct plan *plan_ranks_slowest(const struct plan_ranks *ranks,
                                      const struct estimate_place *place);

/* [{"rank","planned_peak_bytes","planned_reserved_bytes","planned_need_bytes"}], the first
 * PLAN_RANKS_MAX of more. Caller frees. */
cJSON *plan_ranks_to_json(const struct plan_ranks *ranks);
/* [{"ranks","count","stage","first_layer","end_layer","planned_peak_bytes",
 * "planned_reserved_bytes","planned_need_bytes"}]: "ranks" is text, "0-7, 16-23". Caller frees. */
cJSON *plan_classes_to_json(const struct plan_ranks *ranks);

#endif
