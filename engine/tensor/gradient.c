/* gradient.c - how gradients arrive: the first contribution by reference, the next ones added.
 *
 * A value that two gradients share is copied only when one of them is added to, and one without
 * the tail that its reader needs is copied when it arrives; a decoder never gets into either. */
#include "engine/tensor/internal.h"

void tensor_want_gradient(struct tensor *t) {
    if (!t->gradient) {
        t->gradient = pool_gradient(t->space);
        t->gradient->dtype = t->dtype;
        t->gradient->rows = t->rows;
        t->gradient->cols = t->cols;
    }
    tensor_want_tail(t, t->gradient_tail);
}

void tensor_want_tail(struct tensor *t, int64_t tail) {
    if (tail > t->gradient_tail) t->gradient_tail = tail;
    struct gradient *const g = t->gradient;
    if (!g || g->tail >= t->gradient_tail) return;
    ASSERT(!g->value); /* who makes a tensor asks before anything flows back */
    g->tail = t->gradient_tail;
}

struct gradient *gradient_retain(struct gradient *g) {
    if (g) g->references++;
    return g;
}

void gradient_release(struct gradient *g) {
    if (!g) return;
    ASSERT(g->references > 0);
    if (--g->references > 0) return;
    tensor_release(g->value);
    g->value = NULL;
    pool_return_gradient(g);
}

static enum status new_value(struct gradient *g, struct tensor **out, struct err *e) {
    const struct shape shape = {
        .dtype = g->dtype, .rows = g->rows, .cols = g->cols, .tail = g->tail};
    return tensor_make(g->space, &shape, CATEGORY_ACTIVATIONS, out, e);
}

/* The value becomes a copy of `from`, which nobody else holds. */
static enum status own_copy(struct gradient *g, const struct tensor *from, struct err *e) {
    struct tensor *own = NULL;
    TRY(new_value(g, &own, e));
    const enum status status = tensor_copy(own, from, e);
    tensor_release(g->value);
    g->value = own;
    return status;
}

enum status gradient_target(struct gradient *g, struct tensor **value, bool *accumulate,
                            struct err *e) {
    *accumulate = g->value != NULL && !g->stale;
    g->stale = false;
    if (!g->value) {
        TRY(new_value(g, &g->value, e));
    } else if (!g->persistent && g->value->references > 1) {
        TRY(own_copy(g, g->value, e));
    }
    *value = g->value;
    return STATUS_OK;
}

enum status gradient_add(struct gradient *g, struct tensor *contribution, struct err *e) {
    ASSERT(contribution->rows == g->rows && contribution->cols == g->cols);
    ASSERT(contribution->dtype == g->dtype);
    if (!g->value) {
        if (tensor_tail(contribution) < g->tail) return own_copy(g, contribution, e);
        g->value = tensor_retain(contribution);
        return STATUS_OK;
    }
    struct tensor *value = NULL;
    bool accumulate = false;
    TRY(gradient_target(g, &value, &accumulate, e));
    if (!accumulate) return tensor_copy(value, contribution, e);
    return tensor_add(value, value, contribution, e);
}

struct tensor *gradient_take(struct gradient *g) {
    ASSERT(!g->persistent);
    struct tensor *const value = g->value;
    g->value = NULL;
    return value;
}

enum status gradient_add_columns(struct gradient *g, const struct tensor *dy, struct err *e) {
    struct tensor *value = NULL;
    bool accumulate = false;
    if (!g) return STATUS_OK;
    TRY(gradient_target(g, &value, &accumulate, e));
    const struct column_sum_args sum = {.rows = dy->rows,
                                        .cols = dy->cols,
                                        .dtype = dy->dtype,
                                        .x = dy->data,
                                        .ld_x = dy->ld,
                                        .out = tensor_f32(value),
                                        .accumulate = accumulate};
    return device_column_sum(dy->space->device, &sum, e);
}
