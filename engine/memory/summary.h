/* summary.h - the arena's counters as the table that PyTorch users know
 * (torch.cuda.memory_summary): each metric now, at its peak, and in total.
 *
 * What the rows mean here: allocated, bytes in blocks, rounded up to 512; requested, the same
 * without rounding; reserved, backed by the device; non-releasable, free but below a live block. An
 * arena has no pools and no cache, so the rows for those are not there. */
#ifndef PLIMSOLL_ENGINE_MEMORY_SUMMARY_H
#define PLIMSOLL_ENGINE_MEMORY_SUMMARY_H

#include "base/str.h"
#include "engine/memory/arena.h"

/* Appends the table: 75 columns between two bars. */
void summary_append(struct str *out, const struct arena_stats *stats, int64_t rank);

#endif
