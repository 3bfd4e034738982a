/* batch_rows.h - an epoch laid out in rows of a fixed number of tokens, by first-fit-decreasing.
 *
 * Which lengths share a row follows from the lengths alone, once for a run: the number of rows is
 * the same in every epoch. The seed and the epoch then decide which of the samples of equal length
 * stands where, and the order of the rows. */
#ifndef PLIMSOLL_ENGINE_TEXT_BATCH_ROWS_H
#define PLIMSOLL_ENGINE_TEXT_BATCH_ROWS_H

#include <stdbool.h>
#include <stdint.h>

struct dataset;

/* The rows of a dataset. `ranked` are its samples, longest first, equal lengths in file order;
 * members[first[r]..first[r + 1]) are the ranks of row r. */
struct batch_rows {
    int64_t count, samples;
    int64_t *ranked, *members, *first; /* [samples], [samples], [count + 1] */
    int64_t *classes;                  /* ranks at which a new length begins, then `samples` */
    int64_t class_count;
};

/* Packs all samples into rows of `row_tokens`, which no sample exceeds; each goes to the first row
 * that has room, longest first, in O(samples log samples). in_order: samples stay in file order,
 * and a row ends where the next one does not fit. Caller frees with batch_rows_release. */
void batch_rows_pack(struct batch_rows *r, const struct dataset *d, int64_t row_tokens,
                     bool in_order);
void batch_rows_release(struct batch_rows *r);

/* The rows of one epoch: order[begins[k]..begins[k + 1]) are the samples of its k-th row. Arrays of
 * `samples` and `count` + 1. Without shuffle every epoch is the same. */
void batch_rows_order(const struct batch_rows *r, uint64_t seed, int64_t epoch, bool shuffle,
                      int64_t *order, int64_t *begins);

/* Fisher-Yates whose random numbers are addressed by (seed, epoch, base + index), never drawn from
 * a stream. */
void batch_shuffle(int64_t *items, int64_t count, uint64_t seed, int64_t epoch, int64_t base);

#endif
