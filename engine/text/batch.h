/* batch.h - which samples make an optimizer step, and how they are laid out in micro-batches.
 *
 * The step is decided first, from the seed and the lengths alone; only then is it cut into
 * micro-batches, padded or packed. So neither micro-batch size nor packing can change what is
 * learned from what (law 2). Any step can be made again from (seed, step) at a cost that does not
 * depend on which step it is: no earlier step and no earlier epoch is walked through. */
#ifndef PLIMSOLL_ENGINE_TEXT_BATCH_H
#define PLIMSOLL_ENGINE_TEXT_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/text/batch_rows.h"
#include "engine/text/dataset.h"

/* How the samples of a step are chosen. */
enum batch_strategy {
    /* global_rows samples in the order of the epoch. Packing then fills bins from these alone: the
       fewer they are, the emptier the bins. */
    BATCH_OF_SAMPLES,
    /* global_rows rows of max_length tokens, so the step is a number of tokens. The rows are packed
       over the whole epoch (engine/text/batch_rows.h), hence full; they are the same whether a step
       is then laid out packed, a micro-batch being micro_rows of them, or padded. A step has more
       samples, and an epoch fewer steps, than with BATCH_OF_SAMPLES. */
    BATCH_OF_ROWS,
};

struct batch_options {
    enum batch_strategy strategy;
    int64_t micro_rows;   /* per_device_train_batch_size */
    int64_t micro_tokens; /* packed samples: most tokens of a micro-batch, or one longer sample; 0:
                             micro_rows * max_length */
    int64_t global_rows;  /* samples or rows of an optimizer step, of all ranks together */
    int64_t max_length;
    bool packing; /* lay samples end to end, in micro-batches of at most micro_rows*max_length
                     tokens: first-fit-decreasing */
    bool shuffle; /* false: file order in every epoch */
    uint64_t seed;
    int32_t pad_id;
    int64_t rank, world; /* whose part of each step is handed out; world 0: there is one rank */
};

/* One micro-batch. `tokens` entries in each array; documents are cu_seqlens[0..segments]. labels[t]
 * is the id that token t must predict, or -100. positions restart at 0 in every document.
 * row_keys[t] = sample << 24 | position, the key of random numbers. Without packing every document
 * is padded at its end to the longest of the micro-batch (padding is inside the document, has label
 * -100 and changes nothing, attention being causal). */
struct batch {
    int64_t tokens, trained, segments, max_seqlen, real_tokens;
    int32_t *ids, *labels, *positions, *cu_seqlens;
    int64_t *row_keys;
    int64_t capacity_tokens, capacity_segments;
};
void batch_release(struct batch *batch);

/* The order of samples and the cutting of steps. Borrowed dataset must outlive it. */
struct batcher {
    const struct dataset *dataset;
    struct batch_options options;
    struct batch_rows rows;  /* BATCH_OF_ROWS; else empty */
    int64_t steps_per_epoch; /* ceil(samples or rows / global_rows): the last may be smaller */
    int64_t epoch;           /* of `order`, -1 before the first step */
    int64_t *order;          /* [samples] */
    int64_t *begins;         /* [rows + 1] where a row begins in `order`; BATCH_OF_ROWS */
    /* the step being handed out */
    int64_t step_first;   /* index in `order` of its first sample */
    int64_t row_first;    /* index in `begins` of its first row; BATCH_OF_ROWS */
    int64_t step_rows;    /* samples in it */
    int64_t step_trained; /* trained tokens of the whole step: the loss is divided by this */
    int64_t step_tokens;
    /* this rank's part of it */
    int64_t rank_trained, rank_tokens;
    int64_t micro_count;      /* micro-batches; 0 when there are fewer samples than ranks */
    int64_t micro_count_most; /* of any rank: how often all meet in this step */
    int64_t *bins;            /* [step_rows] micro-batch of each sample of the step, or -1 */
    int64_t bins_capacity;
};

enum status batcher_open(struct batcher *b, const struct dataset *dataset,
                         const struct batch_options *options, struct err *e);
void batcher_close(struct batcher *b);
/* No micro-batch has more documents than this. */
int64_t batcher_segments_max(const struct batcher *b);

/* Prepares optimizer step `step` (0-based, over all epochs): fills the step_* and micro_count
 * fields. */
void batcher_step(struct batcher *b, int64_t step);
/* From the next batcher_step on the part of this rank is handed out. The steps stay what they are.
 */
void batcher_take_rank(struct batcher *b, int64_t rank);
/* From the next batcher_step on a micro-batch has this many rows, at least 1, and (see
 * batch_options) this many tokens. The samples of the steps stay what they are; the step at hand
 * may be prepared again. */
void batcher_cut(struct batcher *b, int64_t micro_rows, int64_t micro_tokens);
/* Most tokens of a micro-batch that has no longer sample. */
int64_t batch_budget(const struct batch_options *options);
/* Fills micro-batch `micro` (0-based) of the prepared step; memory in `out` is reused. */
void batcher_micro(struct batcher *b, int64_t micro, struct batch *out);

#endif
