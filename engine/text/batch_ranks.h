/* batch_ranks.h - which rank trains which part of a step.
 *
 * A pure function of costs and the number of ranks, so every rank knows everybody's part without a
 * word. It decides who computes what, never what is learned: a step is one sum over all its samples
 * (law 2). */
#ifndef PLIMSOLL_ENGINE_TEXT_BATCH_RANKS_H
#define PLIMSOLL_ENGINE_TEXT_BATCH_RANKS_H

#include <stdint.h>

/* Deals `count` units (samples, or packed rows) of these costs to `world` ranks: owners[i] becomes
 * the rank of unit i. The most costly first, each to the rank that has least so far; no rank gets
 * more than ceil(count / world) units, so nobody has more micro-batches than it was told to
 * accumulate. */
void batch_deal_ranks(const int64_t *costs, int64_t count, int64_t world, int64_t *owners);

#endif
