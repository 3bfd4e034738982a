/* tape.h - reverse-mode automatic differentiation. An operation's forward function computes its
 * result and, while the tape records, leaves a node: what its backward needs, and nothing else.
 * tape_backward walks the nodes in reverse and frees each saved tensor at its last use. Of a tensor
 * with a recipe (tensor.h) only the recipe is kept, and the node makes it again when it asks for
 * it: norms and gated units cost no memory, and no matrix product is computed twice for that.
 *
 * Activation checkpointing (Chen et al. 2016) is tape_segment: the segment runs without recording,
 * its input is kept, and it is run again, recording, when the walk comes to it. An input that waits
 * in host memory leaves while its segment runs, and comes back in the second half of the walk
 * through the segment after it, when most of that one's memory is free again. */
#ifndef PLIMSOLL_ENGINE_TENSOR_TAPE_H
#define PLIMSOLL_ENGINE_TENSOR_TAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/tensor/tensor.h"

enum { NODE_INPUTS_MAX = 4, NODE_SAVED_MAX = 8, NODE_EXTRA_MAX = 192 };

struct tape;
struct node;
/* Adds what the node's inputs get from node->gradient to their gradients. */
typedef enum status (*node_backward_fn)(struct tape *tape, struct node *node, struct err *e);

/* One recorded operation. Holds references to everything in it. */
struct node {
    node_backward_fn backward;
    struct gradient *output;
    struct tensor
        *gradient; /* of the output, during backward; may be dropped early to free its bytes */
    struct gradient *inputs[NODE_INPUTS_MAX]; /* NULL: that input wants no gradient */
    struct tensor *saved[NODE_SAVED_MAX];
    struct recipe *recipes[NODE_SAVED_MAX]; /* of what is not in `saved`: see node_saved */
    struct arena_label label;               /* under which it was recorded, and goes back */
    struct stash *away;                     /* a checkpoint that waits in host memory, or NULL */
    _Alignas(16) unsigned char extra[NODE_EXTRA_MAX]; /* the operation's own numbers */
};

struct tape {
    struct tensor_space *space;
    struct node *nodes;
    size_t count, capacity;
    bool recording;
    bool training; /* dropout is on */
    bool rerun;    /* a checkpointed segment runs again: nobody reads its result */
    bool unread;   /* operations record, but do not compute, what they return (tape_result) */
};

void tape_init(struct tape *tape, struct tensor_space *space);
/* Releases what is recorded; the tape can be used again. */
void tape_clear(struct tape *tape);
void tape_release(struct tape *tape);

/* True if a result of these inputs has to be recorded: the tape records and one of them wants a
 * gradient. NULLs are skipped. */
bool tape_records(const struct tape *tape, struct tensor *const *inputs, size_t count);

/* Appends a node without input and output: backward(tape, node, e) is called when the walk comes to
 * this place, with `extra` beginning with {context, index}. Nothing when the tape does not record.
 */
struct tape_mark {
    void *context;
    int64_t index;
};
void tape_mark(struct tape *tape, node_backward_fn backward, struct tape_mark mark);

/* Appends a node for `output`, which gets a gradient object. The caller then fills backward,
 * inputs, saved and extra through node_input, node_save and node->extra. The pointer is good until
 * the next node. */
struct node *tape_push(struct tape *tape, node_backward_fn backward, struct tensor *output);
void node_input(struct node *node, int index, struct tensor *input);
void node_save(struct node *node, int index, struct tensor *tensor); /* NULL is fine */
/* What was saved, made again if only its recipe was kept; *out is borrowed from the node, and NULL
 * if nothing was saved. */
enum status node_saved(struct node *node, int index, struct tensor **out, struct err *e);
/* Lets go of it before the node ends. */
void node_drop(struct node *node, int index);

/* The result of an operation: an activation, or while `unread` is set a tensor without bytes. Who
 * sets it knows that nothing reads the results: the end of a segment that runs again. */
enum status tape_result(const struct tape *tape, const struct shape *shape, struct tensor **out,
                        struct err *e);

/* Gradient of sum(seed * output): starts from output's gradient, which must have been set by
 * gradient_add, and empties the tape down to `mark` (0: all of it). */
enum status tape_backward(struct tape *tape, size_t mark, struct err *e);

/* A piece of the model that can be run again: x -> *out. Must do the same with the same x (random
 * numbers are counter based, so dropout does). */
struct segment {
    enum status (*run)(struct tape *tape, void *context, int64_t index, struct tensor *x,
                       struct tensor **out, struct err *e);
    void *context; /* must outlive the tape's nodes */
    int64_t index;
    bool offload; /* a checkpoint's x waits in host memory */
};
/* Runs the segment on x; with `checkpoint`, only x is kept for backward. *out holds one reference.
 */
enum status tape_segment(struct tape *tape, const struct segment *segment, bool checkpoint,
                         struct tensor *x, struct tensor **out, struct err *e);

#endif
