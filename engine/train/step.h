/* step.h - one micro-batch through the model, with or without gradients.
 *
 * The planner, the trainer, evaluation and the tests all go through here, and where the model is a
 * stage of a pipeline training goes through pipeline.h: there is no other way to run the model.
 * What runs forward only hands hidden states on to the next stage, whose call must come too. */
#ifndef PLIMSOLL_ENGINE_TRAIN_STEP_H
#define PLIMSOLL_ENGINE_TRAIN_STEP_H

#include "engine/model/decoder.h"
#include "engine/text/batch.h"
#include "engine/train/graphs.h"
#include "engine/train/layout.h"
#include "engine/train/pipeline_order.h"

struct step_options {
    struct layout layout;    /* of it checkpointing, offloading and loss_chunk_rows are read */
    uint64_t seed, step;     /* what dropout is keyed by, with each token's row key */
    bool last;               /* of the step's micro-batches, on all ranks: see shard_expect */
    double grad_scale;       /* 1 / trained tokens of the global batch */
    const float *loss_scale; /* a device value that gradients are multiplied by, or NULL */
    double *totals; /* device memory [2] that sums of loss and correct are added to: nothing waits
                       for the device. NULL: they come back in step_sums, and the host waits */
    enum pipeline_kind order; /* of the micro-batches, in a pipeline */
    struct graphs *graphs; /* of this model, or NULL: step_train launches what it has seen before as
                              one graph, where nothing but device values changes between the two */
};

/* Sums over the trained tokens of what was run; add-able over micro-batches. loss and correct stay
 * zero on a null device, and where step_options has totals. */
struct step_sums {
    double loss;
    int64_t correct, trained, tokens;
};

/* Forward and backward: gradients are added to the model's buffer. A micro-batch without a trained
 * token does nothing. After an error the tape and all temporary tensors are gone, and the gradient
 * buffer holds a part of the micro-batch. */
enum status step_train(struct model *m, const struct batch *batch,
                       const struct step_options *options, struct step_sums *sums, struct err *e);
/* Instead of step_train on a rank that has no micro-batch while others have one: where gradients
 * are summed meanwhile it takes part with zeros (shard.h), else it does nothing. */
enum status step_idle(struct model *m, bool last, struct err *e);
/* Instead of step_evaluate, likewise. */
enum status step_idle_forward(struct model *m, struct err *e);
/* Forward only, dropout off. `losses`, if not NULL, receives each trained token's negative
 * log-likelihood, in order [batch->trained]. */
enum status step_evaluate(struct model *m, const struct batch *batch,
                          const struct step_options *options, struct step_sums *sums, float *losses,
                          struct err *e);
/* Logits of the given tokens of a batch (host memory, [count, V]), soft cap applied; only on the
 * last stage of a pipeline. */
enum status step_logits(struct model *m, const struct batch *batch, const int32_t *tokens,
                        int64_t count, float *logits, struct err *e);

#endif
