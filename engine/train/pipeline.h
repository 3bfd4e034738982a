/* pipeline.h - the micro-batches of a step through this stage of a pipeline.
 *
 * All stages of a pipeline run it together, over the same micro-batches; another pipeline beside it
 * (data parallel) may have more or fewer. The planner runs it too, with nobody there. */
#ifndef PLIMSOLL_ENGINE_TRAIN_PIPELINE_H
#define PLIMSOLL_ENGINE_TRAIN_PIPELINE_H

#include "engine/train/step.h"

/* The micro-batches of a step, asked for in order, each once. */
struct pipeline_source {
    const struct batch *(*micro)(void *context, int64_t micro); /* good until the next one */
    void *context;
    int64_t count;
};

/* True for a model that is one stage of several. */
bool pipeline_is_on(const struct model *m);

/* Instead of step_train for each of them: gradients are added to the model's buffer; sums get
 * trained and tokens, loss and correct go to options->totals of the last stage. After an error the
 * other stages are in the middle of the step; nothing of it is left here but a part of the
 * gradients. */
enum status pipeline_train(struct model *m, const struct pipeline_source *source,
                           const struct step_options *options, struct step_sums *sums,
                           struct err *e);

#endif
