/* loss.h - arguments of the operations that are a loss: softmax cross-entropy, whole, and over a
 * vocabulary that is divided among devices.
 *
 * A part of device.h, whose rules and letters hold here. */
#ifndef PLIMSOLL_KERNELS_LOSS_H
#define PLIMSOLL_KERNELS_LOSS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/dtype.h"

/* Softmax cross-entropy over `rows` rows of logits [rows,V], contiguous. labels[i] in 0..V-1. With
 * softcap > 0 the logits are capped first. losses[i] = -log p(label); correct[i] = 1 if the label
 * has the (first) largest logit, else 0. If write_gradient, logits become gradient: grad_scale *
 * d(sum of losses)/d(logits), times *loss_scale if that is given; otherwise they are destroyed. */
struct cross_entropy_args {
    int64_t rows, vocab;
    enum dtype dtype; /* of logits */
    void *logits;
    const int32_t *labels; /* [rows] */
    float softcap;
    float grad_scale;
    const float *loss_scale; /* one device value, or NULL */
    bool write_gradient;
    float *losses;    /* [rows] */
    int32_t *correct; /* [rows] */
};

/* The same where each of `members` has only some columns of the logits, in two operations with an
 * exchange in between (Shoeybi et al. 2019, section 3). First, what a row of these columns
 * contributes, SOFTMAX_STATS f64 a row: the largest (capped) logit, the sum of powers relative to
 * it, the label's logit or -infinity where another member has it, and the first column with the
 * largest, counted in the whole vocabulary. The logits are left as they are. */
enum { SOFTMAX_STATS = 4 };
struct softmax_stats_args {
    int64_t rows, vocab; /* columns here */
    int64_t first;       /* of the whole vocabulary */
    enum dtype dtype;
    const void *logits;    /* [rows,vocab], contiguous */
    const int32_t *labels; /* [rows], in the whole vocabulary */
    float softcap;
    double *stats; /* [rows,SOFTMAX_STATS] */
};
/* Then losses, correct and the gradient of these columns, as in cross_entropy_args, from the stats
 * of all members in the order of their columns. */
struct split_cross_entropy_args {
    int64_t rows, vocab, first, members;
    enum dtype dtype;
    void *logits;
    const int32_t *labels;
    float softcap;
    float grad_scale;
    const float *loss_scale;
    bool write_gradient;
    const double *stats; /* [members,rows,SOFTMAX_STATS] */
    float *losses;
    int32_t *correct;
};

#endif
