/* loss_internal.h - the loss over a vocabulary that ranks have divided among them (op_loss_part.c),
 * for op_loss.c.
 *
 * Each member has some columns of a chunk's logits and all of its labels; what they tell each other
 * is a few numbers a row. */
#ifndef PLIMSOLL_ENGINE_TENSOR_LOSS_INTERNAL_H
#define PLIMSOLL_ENGINE_TENSOR_LOSS_INTERNAL_H

#include "engine/tensor/ops.h"

/* One chunk: rows first..first + count of the loss, whose logits are there. */
struct loss_part {
    const struct loss_options *options;
    const struct tensor *logits;     /* [chunk, own columns] */
    struct tensor *stats;            /* of loss_part_stats */
    struct tensor *losses, *correct; /* of all rows */
    int64_t first, count;
    bool record;
};
/* Room for what members tell each other of `rows` rows. */
enum status loss_part_stats(struct tensor_space *space, const struct loss_options *options,
                            int64_t rows, struct tensor **out, struct err *e);
/* Fills losses and correct of the chunk; with `record` the logits become their gradient. */
enum status loss_of_part(const struct loss_part *p, struct err *e);

#endif
