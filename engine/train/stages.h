/* stages.h - which layers each stage of a pipeline has: a pure function of the model and of how it
 * is trained, so that plan and run, and all ranks, find the same.
 *
 * The embedding is with the first stage, final norm and head are with the last, so stages of equal
 * layers are not equal. The ranges chosen make the largest share of any stage smallest, a share
 * being the larger of its part of the computing and its part of the memory, each relative to an
 * equal part. What is compared are estimates; how much memory a stage needs only its plan says. */
#ifndef PLIMSOLL_ENGINE_TRAIN_STAGES_H
#define PLIMSOLL_ENGINE_TRAIN_STAGES_H

#include "engine/model/config.h"
#include "engine/spec.h"

/* In units that only matter relative to each other. */
struct stage_cost {
    double time, kept; /* of a micro-batch; of memory that is there all the time */
    double flight;     /* memory of one micro-batch in flight */
};
struct stage_costs {
    struct stage_cost layer, begin, end; /* of any layer; of the embedding; of norm and head */
};
/* What the costs depend on beside the model. */
struct stage_wishes {
    bool full, wide, checkpointing; /* wide: 4 bytes an element, not 2 */
    bool gpipe;
    double frozen_bytes;                /* of an element of a layer's frozen weights */
    int64_t adapter_rank;               /* of LoRA, on every linear layer */
    int64_t micro_tokens, micros, data; /* data: ranks that divide the optimizer's states, or 1 */
};
struct stage_wishes stages_wishes_of(const struct spec *spec);
struct stage_costs stages_costs_of(const struct model_config *config,
                                   const struct stage_wishes *wishes);

/* ends [stages]: stage s has the layers from where the one before ends (0) to ends[s], at least
 * one. stages is at most `layers`. */
struct stages_question {
    int64_t layers, stages;
    bool gpipe;
    int64_t micros; /* of a step */
    struct stage_costs costs;
};
void stages_cut(const struct stages_question *question, int64_t *ends);

/* The range of one stage of `stages`. STATUS_INVALID for more stages than layers, with the nearest
 * number that divides `ranks` as well. */
struct stages_place {
    int64_t stage, stages, ranks; /* ranks: that stages and data parallel share */
};
enum status stages_range(const struct model_config *config, const struct stage_wishes *wishes,
                         const struct stages_place *place, int64_t *first, int64_t *end,
                         struct err *e);

#endif
