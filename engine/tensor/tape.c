/* tape.c - recording nodes, walking them backwards, running checkpointed segments again.
 *
 * A node is taken off the tape before its backward runs, which may push nodes of its own. */
#include "engine/tensor/tape.h"

#include <string.h>

#include "base/mem.h"

void tape_init(struct tape *tape, struct tensor_space *space) {
    *tape = (struct tape){.space = space};
}

void node_drop(struct node *node, int index) {
    tensor_drop(&node->saved[index]);
    recipe_release(node->recipes[index]);
    node->recipes[index] = NULL;
}

static void node_clear(struct node *node) {
    for (int i = 0; i < NODE_SAVED_MAX; i++) {
        node_drop(node, i);
    }
    for (int i = 0; i < NODE_INPUTS_MAX; i++) {
        gradient_release(node->inputs[i]);
    }
    gradient_release(node->output);
    tensor_release(node->gradient);
    stash_release(node->away);
}

/* A gradient that nobody will come for any more may be its own tensor's bytes (op_glu.c): each then
 * holds the other, so it is taken out first. */
void tape_clear(struct tape *tape) {
    while (tape->count) {
        struct node *const node = &tape->nodes[--tape->count];
        if (node->output && !node->output->persistent) tensor_release(gradient_take(node->output));
        node_clear(node);
    }
}

void tape_release(struct tape *tape) {
    if (!tape) return;
    tape_clear(tape);
    mem_free(tape->nodes);
    *tape = (struct tape){0};
}

bool tape_records(const struct tape *tape, struct tensor *const *inputs, size_t count) {
    if (!tape->recording) return false;
    for (size_t i = 0; i < count; i++) {
        if (inputs[i] && inputs[i]->gradient) return true;
    }
    return false;
}

struct node *tape_push(struct tape *tape, node_backward_fn backward, struct tensor *output) {
    ASSERT(tape->recording);
    tape->nodes = mem_grow(tape->nodes, tape->count, &tape->capacity, sizeof *tape->nodes);
    struct node *const node = &tape->nodes[tape->count++];
    memset(node, 0, sizeof *node);
    node->backward = backward;
    node->label = arena_label(tape->space->arena);
    tensor_want_gradient(output);
    node->output = gradient_retain(output->gradient);
    return node;
}

void tape_mark(struct tape *tape, node_backward_fn backward, struct tape_mark mark) {
    if (!tape->recording) return;
    tape->nodes = mem_grow(tape->nodes, tape->count, &tape->capacity, sizeof *tape->nodes);
    struct node *const node = &tape->nodes[tape->count++];
    memset(node, 0, sizeof *node);
    node->backward = backward;
    node->label = arena_label(tape->space->arena);
    memcpy(node->extra, &mark, sizeof mark);
}

void node_input(struct node *node, int index, struct tensor *input) {
    ASSERT(index >= 0 && index < NODE_INPUTS_MAX);
    node->inputs[index] = input ? gradient_retain(input->gradient) : NULL;
}

void node_save(struct node *node, int index, struct tensor *tensor) {
    ASSERT(index >= 0 && index < NODE_SAVED_MAX);
    if (tensor && tensor->recipe) {
        node->recipes[index] = recipe_retain(tensor->recipe);
    } else {
        node->saved[index] = tensor ? tensor_retain(tensor) : NULL;
    }
}

enum status node_saved(struct node *node, int index, struct tensor **out, struct err *e) {
    if (!node->saved[index] && node->recipes[index]) {
        TRY(recipe_make(node->recipes[index], &node->saved[index], e));
    }
    *out = node->saved[index];
    return STATUS_OK;
}

enum status tape_result(const struct tape *tape, const struct shape *shape, struct tensor **out,
                        struct err *e) {
    if (!tape->unread)
        return tensor_activation(tape->space, shape->rows, shape->cols, shape->tail, out, e);
    *out = tensor_without_bytes(tape->space, shape->rows, shape->cols);
    return STATUS_OK;
}

enum status tape_backward(struct tape *tape, size_t mark, struct err *e) {
    while (tape->count > mark) {
        /* Taken off first: a segment that runs again pushes its own nodes in this place. */
        struct node node = tape->nodes[--tape->count];
        if (node.output) node.gradient = gradient_take(node.output);
        enum status status = STATUS_OK;
        /* A result that nothing downstream used has no gradient, and so have its inputs none from
         * it. */
        arena_set_label(tape->space->arena, node.label);
        if (node.gradient || !node.output) status = node.backward(tape, &node, e);
        node_clear(&node);
        TRY(status);
    }
    return STATUS_OK;
}

/* Walks a segment that has run again. Halfway, a decoder layer has let go of the wide tensors of
 * its MLP and has its attention before it: the time, and the room, to bring back what the segment
 * before needs. */
static enum status walk_segment(struct tape *tape, size_t mark, struct err *e) {
    TRY(tape_backward(tape, mark + (tape->count - mark) / 2, e));
    struct stash *const away = mark > 0 ? tape->nodes[mark - 1].away : NULL;
    if (away) TRY(stash_recall(away, e));
    return tape_backward(tape, mark, e);
}

static enum status segment_backward(struct tape *tape, struct node *node, struct err *e) {
    struct segment segment;
    memcpy(&segment, node->extra, sizeof segment);
    ASSERT(!tape->recording);
    struct tensor *input = NULL;
    if (node->away) TRY(stash_take(node->away, &node->saved[0], e));
    TRY(node_saved(node, 0, &input, e));
    /* The same bytes under a gradient of their own. */
    struct tensor *x = tensor_view_rows(input, 0, input->rows);
    if (node->inputs[0]) tensor_want_tail(x, node->inputs[0]->tail);
    if (node->inputs[0]) tensor_want_gradient(x);
    const size_t mark = tape->count;
    struct tensor *out = NULL;
    tape->recording = tape->rerun = true;
    enum status status = segment.run(tape, segment.context, segment.index, x, &out, e);
    tape->recording = tape->rerun = tape->unread = false;
    if (status == STATUS_OK && out->gradient)
        status = gradient_add(out->gradient, node->gradient, e);
    tensor_drop(&node->gradient);
    tensor_drop(&out);
    if (status == STATUS_OK) status = walk_segment(tape, mark, e);
    if (status == STATUS_OK && x->gradient && x->gradient->value) {
        struct tensor *const contribution = gradient_take(x->gradient);
        status = gradient_add(node->inputs[0], contribution, e);
        tensor_release(contribution);
    }
    tensor_release(x);
    return status;
}

/* Runs without recording; x may go as soon as the caller gets control back. */
static enum status run_once(struct tape *tape, const struct segment *segment, struct tensor *x,
                            struct stash **away, struct tensor **out, struct err *e) {
    if (segment->offload) TRY(stash_send(x, away, e));
    tape->recording = false;
    enum status status = segment->run(tape, segment->context, segment->index, x, out, e);
    tape->recording = true;
    if (status == STATUS_OK && *away) status = device_copies_wait(tape->space->device, e);
    return status;
}

enum status tape_segment(struct tape *tape, const struct segment *segment, bool checkpoint,
                         struct tensor *x, struct tensor **out, struct err *e) {
    if (!checkpoint || !tape->recording)
        return segment->run(tape, segment->context, segment->index, x, out, e);
    struct stash *away = NULL;
    const enum status status = run_once(tape, segment, x, &away, out, e);
    if (status != STATUS_OK) {
        stash_release(away);
        return status;
    }
    struct node *const node = tape_push(tape, segment_backward, *out);
    node_input(node, 0, x);
    node->away = away;
    if (!away) node_save(node, 0, x);
    _Static_assert(sizeof *segment <= NODE_EXTRA_MAX, "the segment fits the node");
    memcpy(node->extra, segment, sizeof *segment);
    return STATUS_OK;
}
