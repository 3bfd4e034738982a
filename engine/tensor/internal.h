/* internal.h - what the files of engine/tensor share and nobody else calls.
 *
 * The pools of records belong to tensor.c, gradient.c takes from them; a sum is recorded the same
 * way whether it was computed alone or together with a norm. */
#ifndef PLIMSOLL_ENGINE_TENSOR_INTERNAL_H
#define PLIMSOLL_ENGINE_TENSOR_INTERNAL_H

#include "engine/tensor/tape.h"

/* Zeroed, with one reference. */
struct gradient *pool_gradient(struct tensor_space *space);
void pool_return_gradient(struct gradient *g);
struct recipe *pool_recipe(struct tensor_space *space);

/* stash.c: gives all of a space's host memory back. */
void stash_pool_free(struct tensor_space *space);

/* Records sum = a + b, however it was computed. */
void record_sum(struct tape *tape, struct tensor *a, struct tensor *b, struct tensor *sum);

#endif
