/* decoder.h - the model as one readable function: token ids to the hidden states before the head;
 * of a pipeline stage, from what the stage before gave to what the next one wants.
 *
 * Families differ by the data in the layers, never by a branch on their name. */
#ifndef PLIMSOLL_ENGINE_MODEL_DECODER_H
#define PLIMSOLL_ENGINE_MODEL_DECODER_H

#include "engine/model/model.h"

/* One micro-batch on the device. Everything in it must outlive the tape's nodes. */
struct decoder_inputs {
    struct model *model;
    struct tensor *ids;   /* [1,T] i32 */
    struct tensor *given; /* [T,C] of the stage before; NULL on the first */
    struct documents documents;
    struct random_keys keys;
    int64_t
        checkpointed_layers; /* of the first so many layers only the input is kept, and the layer
                                    is run again in backward */
    bool offloading;         /* and that input waits in host memory */
};

/* *out [T,C]: hidden states after the final norm, or of a stage that is not the last after its
 * last layer. Release *out after an error too. */
enum status decoder_forward(struct tape *tape, struct decoder_inputs *inputs, struct tensor **out,
                            struct err *e);

#endif
