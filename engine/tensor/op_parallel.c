/* op_parallel.c - gathering rows before a layer and summing parts after it, as operations of the
 * tape (parallel.h).
 *
 * Both are each other's backward. A row travels with what lies behind it, so tails need no copy of
 * their own. Gathered rows are not kept for backward, their recipe gathers them again: a layer
 * keeps what it keeps with one rank, divided by the number of members. */
#include "engine/tensor/parallel.h"

#include <string.h>

#include "base/mem.h"

struct parallel_extra {
    struct comm_group *group;
};
_Static_assert(sizeof(struct parallel_extra) <= RECIPE_EXTRA_MAX, "the group fits a recipe");

static struct comm_piece own_rows(const struct comm_group *g, int64_t rows) {
    return comm_piece_of(rows, 1, g->rank, g->world);
}

int64_t group_rows(const struct comm_group *group, int64_t rows) {
    const int64_t own = group ? own_rows(group, rows).count : rows;
    return own > 0 ? own : 1;
}

/* A matrix as a buffer of whole rows, tails included. */
static struct comm_buffer buffer_of(const struct tensor *t) {
    return (struct comm_buffer){t->data, t->dtype, t->rows * t->ld, t->ld};
}

static struct tensor *view_own(const struct comm_group *g, struct tensor *all) {
    const struct comm_piece own = own_rows(g, all->rows);
    return tensor_view_rows(all, own.first, own.count);
}

static enum status gather_rows(struct comm_group *g, const struct tensor *x, struct tensor *all,
                               struct err *e) {
    struct device *const device = x->space->device;
    const struct comm_buffer buffer = buffer_of(all);
    struct tensor *const own = view_own(g, all);
    ASSERT(x->cols == all->cols && x->rows == group_rows(g, all->rows));
    struct tensor *const from = tensor_view_rows((struct tensor *)(uintptr_t)x, 0, own->rows);
    const enum status status = own->rows > 0 ? tensor_copy(own, from, e) : STATUS_OK;
    tensor_release(from);
    tensor_release(own);
    return status == STATUS_OK ? comm_all_gather(g, device, &buffer, e) : status;
}

/* Room in which the shares of others arrive. */
static enum status take_scratch(struct tensor_space *space, const struct comm_group *g,
                                const struct comm_buffer *b, struct tensor **memory,
                                struct comm_scratch *scratch, struct err *e) {
    const int64_t each = comm_piece_of(b->count, b->pitch, 0, g->world).count;
    const int64_t bytes = comm_scratch_bytes(space->device->kind, each * g->world, g->world);
    if (bytes == 0) return STATUS_OK;
    TRY(tensor_new(space, DTYPE_F32, 1, bytes / dtype_bytes(DTYPE_F32), CATEGORY_COMMUNICATION,
                   memory, e));
    *scratch = (struct comm_scratch){(*memory)->data, bytes};
    return STATUS_OK;
}

/* The own rows of `all` are those of the sum, the others are undefined. */
static enum status sum_rows(struct comm_group *g, const struct tensor *all, struct err *e) {
    const struct comm_buffer buffer = buffer_of(all);
    struct comm_scratch scratch = {0};
    struct tensor *memory = NULL;
    TRY(take_scratch(all->space, g, &buffer, &memory, &scratch, e));
    const enum status status = comm_reduce_scatter(g, all->space->device, &scratch, &buffer, e);
    tensor_release(memory);
    return status;
}

static enum status make_again(const struct recipe *recipe, struct tensor *into, struct err *e) {
    struct parallel_extra extra;
    memcpy(&extra, recipe->extra, sizeof extra);
    struct tensor *x = NULL;
    enum status status = STATUS_OK;
    if (recipe->from[0]) {
        x = tensor_retain(recipe->from[0]);
    } else {
        status = recipe_make(recipe->inner, &x, e);
    }
    if (status == STATUS_OK) status = gather_rows(extra.group, x, into, e);
    tensor_release(x);
    return status;
}

static enum status gather_backward(struct tape *tape, struct node *node, struct err *e) {
    (void)tape;
    struct parallel_extra extra;
    memcpy(&extra, node->extra, sizeof extra);
    struct tensor *value = NULL;
    bool accumulate = false;
    /* One reader wrote it, so it is nobody else's. */
    ASSERT(node->gradient->references == 1 && !node->gradient->owner);
    TRY(sum_rows(extra.group, node->gradient, e));
    TRY(gradient_target(node->inputs[0], &value, &accumulate, e));
    struct tensor *const own = view_own(extra.group, node->gradient);
    enum status status = STATUS_OK;
    if (own->rows > 0) {
        status = accumulate ? tensor_add(value, value, own, e) : tensor_copy(value, own, e);
    } else if (!accumulate) {
        status = tensor_fill_zero(value, e);
    }
    tensor_release(own);
    return status;
}

static void record_gather(struct tape *tape, struct comm_group *group, struct tensor *x,
                          struct tensor *out) {
    const struct parallel_extra extra = {group};
    if (!tape->recording) return;
    struct tensor *const from[] = {x->recipe ? NULL : x};
    struct recipe *const recipe = recipe_attach(out, from, 1);
    recipe->make = make_again;
    if (x->recipe) recipe->inner = recipe_retain(x->recipe);
    memcpy(recipe->extra, &extra, sizeof extra);
    if (!tape_records(tape, &x, 1)) return;
    struct node *const node = tape_push(tape, gather_backward, out);
    node_input(node, 0, x);
    memcpy(node->extra, &extra, sizeof extra);
}

enum status op_gather_members(struct tape *tape, struct comm_group *group, struct tensor *x,
                              const struct all_rows *all, struct tensor **out, struct err *e) {
    if (!group) {
        *out = tensor_retain(x);
        return STATUS_OK;
    }
    TRY(tensor_activation(tape->space, all->rows, x->cols, all->tail, out, e));
    TRY(gather_rows(group, x, *out, e));
    record_gather(tape, group, x, *out);
    return STATUS_OK;
}

enum { INPUT_SUMMED, INPUT_BIAS };

static enum status scatter_backward(struct tape *tape, struct node *node, struct err *e) {
    struct parallel_extra extra;
    memcpy(&extra, node->extra, sizeof extra);
    struct gradient *const target = node->inputs[INPUT_SUMMED];
    struct tensor *dx = NULL;
    TRY(gradient_add_columns(node->inputs[INPUT_BIAS], node->gradient, e)); /* of own rows */
    if (!target) return STATUS_OK;
    TRY(tensor_activation(tape->space, target->rows, target->cols, target->tail, &dx, e));
    enum status status = gather_rows(extra.group, node->gradient, dx, e);
    tensor_drop(&node->gradient);
    if (status == STATUS_OK) status = gradient_add(target, dx, e);
    tensor_release(dx);
    return status;
}

/* The own rows of what was summed, in a tensor of their own. */
static enum status keep_own(const struct comm_group *g, struct tensor *x, struct tensor *out,
                            struct err *e) {
    struct tensor *const own = view_own(g, x);
    const enum status status = own->rows > 0 ? tensor_copy(out, own, e) : tensor_fill_zero(out, e);
    tensor_release(own);
    return status;
}

static enum status add_bias(const struct tensor *y, const struct tensor *bias, struct err *e) {
    const struct column_scale_args add = {.rows = y->rows,
                                          .cols = y->cols,
                                          .dtype = y->dtype,
                                          .x = y->data,
                                          .ld_x = y->ld,
                                          .bias = tensor_f32(bias),
                                          .out = y->data,
                                          .ld_out = y->ld};
    return device_column_scale(y->space->device, &add, e);
}

enum status op_scatter_sum(struct tape *tape, struct comm_group *group, struct tensor *x,
                           const struct sum_bias *bias, struct tensor **out, struct err *e) {
    if (!group) {
        *out = tensor_retain(x);
        return STATUS_OK;
    }
    const struct parallel_extra extra = {group};
    const struct shape shape = {.rows = group_rows(group, x->rows), .cols = x->cols};
    struct tensor *const inputs[] = {x, bias->value};
    TRY(tape_result(tape, &shape, out, e));
    if (!tape->unread) {
        TRY(sum_rows(group, x, e));
        TRY(keep_own(group, x, *out, e));
        if (bias->value) TRY(add_bias(*out, bias->master, e));
    }
    if (!tape_records(tape, inputs, 2)) return STATUS_OK;
    struct node *const node = tape_push(tape, scatter_backward, *out);
    node_input(node, INPUT_SUMMED, x);
    node_input(node, INPUT_BIAS, bias->value);
    memcpy(node->extra, &extra, sizeof extra);
    return STATUS_OK;
}

enum status group_sum(struct comm_group *group, struct tensor *t, struct err *e) {
    const struct comm_buffer buffer = {t->data, t->dtype, tensor_count(t), COMM_PITCH};
    struct comm_scratch scratch = {0};
    struct tensor *memory = NULL;
    TRY(take_scratch(t->space, group, &buffer, &memory, &scratch, e));
    const enum status status = comm_all_reduce(group, t->space->device, &scratch, &buffer, e);
    tensor_release(memory);
    return status;
}

enum status group_share_rows(struct comm_group *group, struct tensor *t, struct err *e) {
    ASSERT(t->rows == group->world && t->ld == t->cols);
    const struct comm_buffer buffer = {t->data, t->dtype, tensor_count(t), t->cols};
    return comm_all_gather(group, t->space->device, &buffer, e);
}

/* Lengths side by side are a row whose length is that of the whole. */
static enum status join_lengths(struct comm_group *group, struct tensor *t, struct tensor *sides,
                                struct err *e) {
    struct device *const device = t->space->device;
    const int64_t n = t->cols, members = group->world;
    const struct convert_args place = {
        .rows = n,
        .cols = 1,
        .scale = 1,
        .src = {.data = t->data, .dtype = DTYPE_F32, .ld = 1},
        .dst = {.data = tensor_f32(sides) + group->rank, .dtype = DTYPE_F32, .ld = members}};
    const struct row_norm_args length = {
        .rows = n, .cols = members, .x = tensor_f32(sides), .ld = members, .out = tensor_f32(t)};
    TRY(tensor_fill_zero(sides, e));
    TRY(device_convert(device, &place, e));
    TRY(group_sum(group, sides, e));
    return device_row_norm(device, &length, e);
}

enum status group_length(struct comm_group *group, struct tensor *t, struct err *e) {
    struct tensor *sides = NULL;
    ASSERT(t->rows == 1);
    TRY(tensor_new(t->space, DTYPE_F32, 1, t->cols * group->world, CATEGORY_WORKSPACE, &sides, e));
    const enum status status = join_lengths(group, t, sides, e);
    tensor_release(sides);
    return status;
}
