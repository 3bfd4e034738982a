/* flight.h - a micro-batch in flight through one stage of a pipeline: what lives between its
 * forward and its backward.
 *
 * A flight has a tape of its own, so several can be in memory. What a stage hands on is in `out`
 * after each of the two; who runs the flights sends it and drops it. Hidden states that were handed
 * on keep no bytes, only their gradient's place. A micro-batch without a trained token is empty: no
 * stage does anything about it. */
#ifndef PLIMSOLL_ENGINE_TRAIN_FLIGHT_H
#define PLIMSOLL_ENGINE_TRAIN_FLIGHT_H

#include "engine/train/micro.h"

/* Zeroed before flight_open. Must not move while it is open. */
struct flight {
    struct micro micro;
    struct tape tape;
    bool open, empty;
    struct gradient *given, *handed; /* of what came in, and of what went out */
    struct tensor *out;              /* [T,C] for a neighbour */
    struct tensor *back;             /* [T,C] the gradient that comes back of what was handed on */
};

/* The batch on the device, and room in micro.inputs.given; adds to trained and tokens of the sums.
 * options->totals must be there. flight_close always, also after an error. */
enum status flight_open(struct flight *f, struct model *m, const struct batch *batch,
                        const struct step_options *options, struct step_sums *sums, struct err *e);
enum status flight_forward(struct flight *f, const struct step_options *options, struct err *e);
/* Room in `back`, on a stage that is not the last. */
enum status flight_expect(struct flight *f, struct err *e);
/* Adds to the model's gradients, and to the totals; what is left of the flight is `out`. */
enum status flight_backward(struct flight *f, const struct step_options *options, struct err *e);
void flight_close(struct flight *f);

#endif
