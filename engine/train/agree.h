/* agree.h - all ranks agree before a micro-step, so that none is alone with a lack of memory while
 * the others wait in a collective.
 *
 * Each posts on the host channel (comm_gather) what it needs and whether it has it; the decision is
 * a pure function of what was gathered, the same on every rank, so there is no leader. Nobody
 * computes before all have posted. World 1 takes the same path. */
#ifndef PLIMSOLL_ENGINE_TRAIN_AGREE_H
#define PLIMSOLL_ENGINE_TRAIN_AGREE_H

#include "engine/dist/comm.h"
#include "engine/spec.h"
#include "engine/train/layout.h"

/* What a rank posts before micro-batch `micro` of a step, and once more after its last. */
struct agree_post {
    int64_t epoch; /* how often the layout was changed or the step begun again */
    int64_t step, micro;
    int64_t micro_count;    /* micro-batches that this rank has in the step */
    int64_t need, can_back; /* bytes reserved in all */
    int64_t backed;         /* 0: its reservation failed */
    int64_t failed;         /* 1: its micro-batch before could not allocate */
};

enum agree_verdict {
    AGREE_GO,
    AGREE_SHORT, /* a rank is short of memory: all begin the step again with something changed */
    AGREE_APART, /* the ranks are not at the same place: a bug */
};
struct agreement {
    enum agree_verdict verdict;
    int64_t rank;     /* the first that is short, or apart */
    bool failed;      /* it could not allocate what it had reserved */
    int64_t need;     /* most of any rank */
    int64_t can_back; /* least of any rank */
    int64_t rounds;   /* most micro-batches of any rank */
};
struct agreement agree_decide(const struct agree_post *posts, int64_t world);

/* Posts and decides. `posts` [world] gets everybody's, for the report. Errors of comm_gather;
 * STATUS_INTERNAL when the ranks are apart. */
enum status agree_micro_step(struct comm *comm, const struct agree_post *mine,
                             struct agree_post *posts, struct agreement *out, struct err *e);

/* What is wanted between two steps: rank 0 reads the operator's wishes, everybody does the same. */
struct agree_wishes {
    int64_t stop;      /* of any rank */
    int64_t available; /* arena_available, the least of all ranks */
    int64_t fresh;     /* the rest is new; of rank 0 */
    int64_t has_cap;
    struct spec_cap cap;
    int64_t remedy, undo; /* enum remedy_kind; REMEDY_KIND_COUNT: none */
    int64_t accept, snapshot;
};
enum status agree_wishes(struct comm *comm, struct agree_wishes *wishes, struct err *e);
/* Of the layouts that the ranks have found, the one that saves most in every respect. */
enum status agree_layout(struct comm *comm, struct layout *layout, struct err *e);
/* The least of everybody's number. */
enum status agree_least(struct comm *comm, int64_t *number, struct err *e);

#endif
