/* parallel.h - what happens between the ranks that share each layer: tensor parallelism (Shoeybi et
 * al. 2019) with the rows between layers divided among them (sequence parallelism, Korthikanti et
 * al. 2022).
 *
 * Inside a layer every member has all T rows and its part of the columns; between layers its rows
 * only, all columns. A group of NULL is a world of one: rows are not moved, tensors are passed on.
 * Where there are fewer rows than members, those without hold one row of zeros, so that nothing
 * else has to know. All members run the same operations in the same order. */
#ifndef PLIMSOLL_ENGINE_TENSOR_PARALLEL_H
#define PLIMSOLL_ENGINE_TENSOR_PARALLEL_H

#include "engine/dist/group.h"
#include "engine/tensor/tape.h"

/* Rows that this member holds of so many. */
int64_t group_rows(const struct comm_group *group, int64_t rows);

/* All rows, and the tail that who reads them wants. */
struct all_rows {
    int64_t rows, tail;
};
/* x: this member's rows -> out [T,C]: everyone's. Backward sums the members' gradients and keeps
 * the own rows. The result has a recipe: it is gathered again, and x made again where it has
 * one. */
enum status op_gather_members(struct tape *tape, struct comm_group *group, struct tensor *x,
                              const struct all_rows *all, struct tensor **out, struct err *e);
/* What is added to a sum, once: NULL and NULL for nothing. */
struct sum_bias {
    struct tensor *value, *master; /* [1,C]: what gets the gradient, and in f32; may be the same */
};
/* x [T,C]: this member's part of a sum, overwritten -> out: its rows of the sum, and bias. Backward
 * gathers. In a world of one the part is the sum, and has its bias already. */
enum status op_scatter_sum(struct tape *tape, struct comm_group *group, struct tensor *x,
                           const struct sum_bias *bias, struct tensor **out, struct err *e);

/* t [1,n] f32 = the sum over members, or the root of the sum of squares: the length of rows whose
 * columns are divided. */
enum status group_sum(struct comm_group *group, struct tensor *t, struct err *e);
enum status group_length(struct comm_group *group, struct tensor *t, struct err *e);
/* Every member's row of t [members, n], any type, to every member. */
enum status group_share_rows(struct comm_group *group, struct tensor *t, struct err *e);

#endif
