/* linear_internal.h - what the three ways of a linear layer share: op_linear.c (plain, LoRA),
 * op_linear_dora.c and op_linear_tail.c.
 *
 * A node of a linear layer has the same inputs and saved tensors in all of them. */
#ifndef PLIMSOLL_ENGINE_TENSOR_LINEAR_INTERNAL_H
#define PLIMSOLL_ENGINE_TENSOR_LINEAR_INTERNAL_H

#include "engine/tensor/ops.h"

enum { SAVED_INPUT, SAVED_XA, SAVED_PLAIN, SAVED_NORM, SAVED_KEYS, SAVED_COUNT };
enum { INPUT_X, INPUT_WEIGHT, INPUT_BIAS };

/* c = alpha * x W^T + beta * c (+ bias). */
struct product {
    const struct tensor *x, *bias, *c; /* bias may be NULL */
    float alpha, beta;
};
enum status linear_product(const struct linear *l, const struct product *p, struct err *e);
/* c = alpha * dy W + beta * c */
enum status linear_product_back(const struct linear *l, const struct tensor *dy, float alpha,
                                float beta, const struct tensor *c, struct err *e);
/* dW += dy^T x and dbias += sums of dy, where they are trained. dz is dy, or dy scaled by the
 * magnitudes. */
enum status linear_weight_backward(struct node *node, const struct tensor *dz, struct err *e);
/* dB += scaling * dz[:, rows]^T xa[:, ranks] */
enum status linear_b_backward(const struct lora *a, const struct tensor *dz,
                              const struct tensor *xa, struct err *e);
/* dA += dxa^T x for all adapters at once; dxa starts with the columns of lora_a's rows. */
enum status linear_a_backward(const struct linear *l, struct matrix dxa, const struct tensor *x,
                              struct err *e);

/* op_linear_dora.c: y holds x W^T + scaling x A^T B^T without bias; keeps it as *plain, fills
 * *norm, scales y. */
enum status dora_apply(struct tape *tape, const struct linear *l, struct tensor *y,
                       struct tensor **plain, struct tensor **norm, struct err *e);
/* dmagnitude += sum over tokens of dy * plain / norm; then *dz = dy with the adapters' columns
 * scaled by m/norm. */
enum status dora_backward(struct tape *tape, const struct linear *l, const struct node *node,
                          struct tensor **dz, struct err *e);

/* op_linear_tail.c: with l->augmented. *xa is made while the tape records. */
enum status tail_forward(struct tape *tape, const struct linear *l, struct tensor *x,
                         struct tensor *y, struct tensor **xa, struct err *e);
enum status tail_backward(struct tape *tape, const struct linear *l, struct node *node,
                          struct err *e);

#endif
