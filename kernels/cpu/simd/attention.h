/* attention.h - what forward and backward attention share. Private to kernels/cpu/simd.
 *
 * How documents are cut into blocks, and which columns of a block of keys a query may see: both
 * passes must agree on it, so it is said once. */
#ifndef PLIMSOLL_KERNELS_SIMD_ATTENTION_H
#define PLIMSOLL_KERNELS_SIMD_ATTENTION_H

#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/tile.h"

/* Rows of a block of queries and of a block of keys. */
enum { BLOCK = 64 };

/* Rows [from, from+rows) of the document that starts at token `start` and has `length` tokens. */
struct span {
    int64_t start, length, from, rows;
};

/* Documents are cut into blocks without a table of blocks: document s owns the slots from
 * cu[s]/BLOCK + s on, which is always room enough; the slots that are left over hold nothing. */
static inline int64_t span_slots(const struct attention_args *a) {
    return a->tokens / BLOCK + a->segments;
}

/* The block in this slot; false when it is empty. */
static inline bool span_at(const struct attention_args *a, int64_t slot, struct span *out) {
    int64_t low = 0, high = a->segments - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (a->cu_seqlens[middle] / BLOCK + middle <= slot) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    out->start = a->cu_seqlens[low];
    out->length = a->cu_seqlens[low + 1] - out->start;
    out->from = (slot - (out->start / BLOCK + low)) * BLOCK;
    out->rows = simd_min(BLOCK, out->length - out->from);
    return out->rows > 0;
}

/* The first key that the query at this place of its document sees. */
static inline int64_t first_visible(const struct attention_args *a, int64_t query) {
    return a->window > 0 ? simd_max(0, query - a->window + 1) : 0;
}

/* Columns [*low, *high) of a block of `cols` keys from `key` on that `query` sees. */
static inline void visible_columns(const struct attention_args *a, int64_t query, int64_t key,
                                   int64_t cols, int64_t *low, int64_t *high) {
    *low = simd_max(0, first_visible(a, query) - key);
    *high = simd_min(cols, query - key + 1);
}

/* Threads that the workspace has room for. */
static inline int attention_threads(const struct device *device, int64_t bytes_per_thread,
                                    int wanted) {
    return (int)simd_min(wanted, device->workspace_bytes / bytes_per_thread);
}

#endif
