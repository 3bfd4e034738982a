/* shapes.h - how large the micro-batches of a run get. Memory depends on a micro-batch only through
 * these numbers, and grows with each of them, so the planner needs to run only those that no other
 * exceeds. */
#ifndef PLIMSOLL_ENGINE_TRAIN_SHAPES_H
#define PLIMSOLL_ENGINE_TRAIN_SHAPES_H

#include "engine/text/batch.h"
#include "engine/train/layout.h"

struct batch_shape {
    int64_t tokens, trained, segments, max_seqlen;
};

enum { SHAPES_MAX = 64, STEP_MICROS_MAX = 512, STEPS_MAX = 64 };

/* The micro-batches of whole steps, in order: in a pipeline several are in memory at a time, so it
 * matters which follow each other. listed: those of the steps that no other exceeds in every
 * micro-batch; of too many steps to keep (merged) one that exceeds them all so. Else every step is
 * taken to be `most` micro-batches of the shape `largest`, which none of its own exceeds. */
struct step_shapes {
    bool listed, merged;
    struct batch_shape micros[STEP_MICROS_MAX];
    int64_t ends[STEPS_MAX]; /* where each step ends in `micros` */
    int64_t count;           /* steps */
    struct batch_shape largest;
    int64_t most;
};
/* Steps to look at, and the micro-batches of one of them. */
int64_t step_shapes_count(const struct step_shapes *steps);
int64_t step_shapes_micros(const struct step_shapes *steps, int64_t step);
const struct batch_shape *step_shapes_at(const struct step_shapes *steps, int64_t step,
                                         int64_t micro);
/* One more step, of `count` micro-batches. Begins with a zeroed struct whose `listed` is true. */
void step_shapes_add(struct step_shapes *steps, const struct batch_shape *micros, int64_t count);

/* The shapes of a run that no other shape of it exceeds in every number. exact: each of them
 * occurs; otherwise it is the one bound of all (too many steps to look at, or more than
 * SHAPES_MAX). */
struct batch_shapes {
    struct batch_shape items[SHAPES_MAX];
    int64_t count;
    bool exact;
    int64_t steps, micros; /* that were looked at */
    struct {
        double tokens, trained, segments, longest; /* longest: max_seqlen of each token's batch */
    } sums;                                        /* over them */
    struct step_shapes in_steps;
};

/* Looks at every micro-batch of `steps` steps, as the batcher cuts them now, when that is cheap
 * (SCAN_TOKENS_MAX in shapes.c), else bounds them. The step that the batcher had prepared is then
 * another one. */
void shapes_scan(struct batch_shapes *shapes, struct batcher *batcher, int64_t steps);
/* The one bound of all, whichever rank's. */
void shapes_bound(struct batch_shapes *shapes, const struct batcher *batcher);
/* Without data: full rows of max_length, everything trained. */
void shapes_full(struct batch_shapes *shapes, const struct batch_options *options);
/* No larger than `rows` rows of `length` tokens: what cutting the rows of the data would leave. */
void shapes_cut(struct batch_shapes *shapes, int64_t rows, int64_t length);
/* What a micro-batch of the run is like on average, for estimates of time; micros > 0. */
struct batch_shape shapes_mean(const struct batch_shapes *shapes);
/* Whoever knows the data: gives the shapes of training, or of evaluation, in any layout. */
struct shape_source {
    void *context;
    bool cuts_tokens; /* fewer micro_tokens give smaller shapes: the samples are known */
    void (*find)(void *context, bool eval, const struct layout *layout, struct batch_shapes *out);
};

/* A batch of this shape with ids 0. Memory in `out` is replaced; release with batch_release. */
void shape_batch(const struct batch_shape *shape, struct batch *out);

#endif
