/* micro.h - one micro-batch on the device: its tokens, its way through the decoder and the loss
 * head, and where its losses go.
 *
 * Shared by what runs micro-batches one by one (step.c) and several at a time (flight.c). A stage
 * of a pipeline that is not the first has room for what the stage before gives, and one that is not
 * the last hands its hidden states on instead of taking a loss. */
#ifndef PLIMSOLL_ENGINE_TRAIN_MICRO_H
#define PLIMSOLL_ENGINE_TRAIN_MICRO_H

#include "engine/train/step.h"

struct micro {
    struct decoder_inputs inputs; /* `given` holds one reference */
    struct tensor *staging;       /* ids, labels and the like are views of it */
    struct tensor *index, *labels;
    struct tensor *losses, *correct; /* NULL where the loss is another stage's */
    struct tensor *handed;           /* [T,C] for the next stage, after forward; else NULL */
    int64_t rows;                    /* trained tokens */
};

/* Puts the batch on the device. micro_close always, also after an error; it zeroes the struct. */
enum status micro_open(struct micro *u, struct model *m, const struct batch *b,
                       const struct step_options *o, struct err *e);
void micro_close(struct micro *u);
/* Hidden states and loss, or `handed`; *anchor is set while recording, where there is a loss. */
enum status micro_forward(struct tape *tape, struct micro *u, const struct step_options *o,
                          struct tensor **anchor, struct err *e);
/* Adds loss and correct on the device, where the caller has room for them there. */
enum status micro_add_totals(const struct micro *u, const struct step_options *o, struct err *e);
/* Adds to the host's sums; waits for the device where the caller has no totals. */
enum status micro_add_sums(const struct micro *u, const struct batch *b,
                           const struct step_options *o, struct step_sums *sums, struct err *e);

#endif
