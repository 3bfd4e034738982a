/* linear_internal.h - what the ways of a linear layer share: op_linear.c (plain, LoRA),
 * op_linear_dora.c, op_linear_tail.c, and op_glu.c, where a gated unit comes first.
 *
 * A node of a linear layer has the same inputs and saved tensors in all of them. */
#ifndef PLIMSOLL_ENGINE_TENSOR_LINEAR_INTERNAL_H
#define PLIMSOLL_ENGINE_TENSOR_LINEAR_INTERNAL_H

#include "engine/tensor/ops.h"

enum { SAVED_INPUT, SAVED_XA, SAVED_PLAIN, SAVED_NORM, SAVED_KEYS, SAVED_COUNT };
enum { INPUT_X, INPUT_WEIGHT, INPUT_BIAS };

/* What a node keeps in `extra`, at its beginning. */
struct linear_extra {
    const struct linear *linear;
    uint64_t seed, step;
};

/* c = alpha * x W^T + beta * c (+ bias). */
struct product {
    const struct tensor *x, *bias, *c; /* bias may be NULL */
    float alpha, beta;
};
enum status linear_product(const struct linear *l, const struct product *p, struct err *e);
/* c = alpha * dy W + beta * c */
enum status linear_product_back(const struct linear *l, const struct tensor *dy, float alpha,
                                float beta, const struct tensor *c, struct err *e);

/* What dropout's random numbers are keyed by, retained; NULL where nothing is dropped. */
struct tensor *linear_row_keys(const struct tape *tape, const struct linear *l,
                               const struct random_keys *keys);
/* True if nobody reads the layer's result, and nothing else is a function of it. */
bool linear_is_unread(const struct tape *tape, const struct linear *l);
/* *out = the layer's result, which is not computed where it is unread; fills parts from SAVED_XA
 * on, for the caller to release. XA may be a view of x's tail. */
enum status linear_forward(struct tape *tape, struct tensor *x, const struct linear_extra *extra,
                           struct tensor **parts, struct tensor **out, struct err *e);
/* XA in a tensor of its own: for an x that is not kept. */
enum status linear_own_xa(struct tensor **parts, struct err *e);
/* Leaves a node with these parts where x or something of the layer wants a gradient; else NULL. */
struct node *linear_record(struct tape *tape, struct tensor *x, const struct linear_extra *extra,
                           struct tensor *const *parts, struct tensor *out);

/* A layer's backward in steps, whose order is the caller's: begin, then the gradients of the input
 * and of the parameters, then end, also after an error. */
struct linear_back {
    const struct linear_extra *extra;
    struct tape *tape;
    struct node *node;
    struct tensor *scaled; /* dy with DoRA's magnitudes, or NULL: dy itself */
    struct tensor *part;   /* where dxa lies, unless that is dy's tail; or NULL */
    struct matrix dxa;     /* [T,R]: dy B, scaled; starts with the columns of lora_a's rows */
};
enum status linear_back_begin(struct linear_back *b, struct err *e);
/* dx = the gradient of the input, or dx += it. */
enum status linear_back_input(const struct linear_back *b, const struct tensor *dx, bool accumulate,
                              struct err *e);
/* Adds to the gradients of weight, bias and adapters. x is the input, looked at only where weight
 * or adapters are trained. */
enum status linear_back_parameters(const struct linear_back *b, const struct tensor *x,
                                   struct err *e);
void linear_back_end(struct linear_back *b);

/* op_linear_dora.c: y holds x W^T + scaling x A^T B^T without bias; keeps it as *plain, fills
 * *norm, scales y. */
enum status dora_apply(struct tape *tape, const struct linear *l, struct tensor *y,
                       struct tensor **plain, struct tensor **norm, struct err *e);
/* dmagnitude += sum over tokens of dy * plain / norm; then *dz = dy with the adapters' columns
 * scaled by m/norm. */
enum status dora_backward(struct tape *tape, const struct linear *l, const struct node *node,
                          struct tensor **dz, struct err *e);

/* op_linear_tail.c: with l->augmented. XA [T,tail], where `to` says. */
enum status tail_xa(const struct linear *l, const struct tensor *x, struct matrix to,
                    struct err *e);
/* *xa stays NULL unless the tape records. */
enum status tail_forward(struct tape *tape, const struct linear *l, struct tensor *x,
                         struct tensor *y, struct tensor **xa, struct err *e);
/* Fills part and dxa. */
enum status tail_begin(struct linear_back *b, struct err *e);
enum status tail_input(const struct linear_back *b, const struct tensor *dx, bool accumulate,
                       struct err *e);

#endif
