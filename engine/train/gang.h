/* gang.h - what the ranks of a run tell each other beside gradients: sums, who is slow, who wants
 * to stop, what rank 0 has decided.
 *
 * Everything goes over the host channel in records of a fixed size. In a world of one nothing is
 * sent and the sums are the rank's own. */
#ifndef PLIMSOLL_ENGINE_TRAIN_GANG_H
#define PLIMSOLL_ENGINE_TRAIN_GANG_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/dist/comm.h"
#include "engine/train/device_books.h"

/* A rank's part of a step or of an evaluation. */
struct gang_part {
    double loss; /* a sum over trained tokens */
    int64_t correct, trained, tokens;
    double seconds;            /* of its own computing, up to where it met the others */
    double waited;             /* for others meanwhile, not in `seconds`; NAN: not known (NCCL) */
    int64_t stopping;          /* somebody has asked this rank to stop */
    struct device_share share; /* of its device, for the books; not summed */
};

/* parts [world], in order of ranks; *sum of them, in that order: seconds are the longest, stopping
 * is whether any is. The same on all ranks. */
enum status gang_sum(struct comm *c, const struct gang_part *mine, struct gang_part *parts,
                     struct gang_part *sum, struct err *e);
/* Rank 0's number to all. */
enum status gang_follow(struct comm *c, int64_t *number, struct err *e);

#endif
