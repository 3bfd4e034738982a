/* arena.h - the one allocator of a rank's device memory. Best fit with splitting and coalescing
 * over one reserved range of addresses, in granules of the device (512 bytes); backed page by page,
 * so it grows and shrinks in place.
 *
 * Every byte has a category and is counted; the counters, not the device, decide whether an
 * allocation succeeds, so any capacity can be pretended. The same calls give the same addresses
 * (relative to the base) and counters on every device: that is what makes the plan equal to the
 * run. One thread. */
#ifndef PLIMSOLL_ENGINE_MEMORY_ARENA_H
#define PLIMSOLL_ENGINE_MEMORY_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/device.h"

enum category {
    CATEGORY_WEIGHTS,
    CATEGORY_ADAPTERS,
    CATEGORY_GRADIENTS,
    CATEGORY_OPTIMIZER,
    CATEGORY_ACTIVATIONS,
    CATEGORY_WORKSPACE,
    CATEGORY_COMMUNICATION,
    CATEGORY_STAGING,
    CATEGORY_COUNT
};
const char *category_name(enum category category);

enum phase {
    PHASE_LOAD,
    PHASE_FORWARD,
    PHASE_BACKWARD,
    PHASE_OPTIMIZER,
    PHASE_EVAL,
    PHASE_CHECKPOINT,
    PHASE_EXPORT,
    PHASE_COUNT
};
const char *phase_name(enum phase phase);

/* One live allocation. `data` is granule-aligned device memory. The block belongs to the arena. */
struct arena_block {
    void *data;
    int64_t bytes; /* rounded up to granules */
    enum category category;
    bool live;
    struct arena_block *previous, *next; /* by address */
    struct arena_block *free_previous,
        *free_next; /* the free list; unused records are chained by free_next */
};

/* The counters, all in bytes. */
struct arena_stats {
    int64_t capacity;
    int64_t allocated, allocated_peak;
    int64_t reserved, reserved_peak; /* backed by the device */
    int64_t largest_free_block;      /* inside what is reserved */
    int64_t by_category[CATEGORY_COUNT];
    int64_t category_peak[CATEGORY_COUNT]; /* each category's own peak */
    int64_t at_peak[CATEGORY_COUNT];       /* the categories at the moment of allocated_peak */
    int64_t phase_peak[PHASE_COUNT];       /* of allocated, 0 for a phase not entered */
    enum phase peak_phase;
    uint64_t allocations; /* calls so far */
    uint64_t trace;       /* hash over the sequence of (bytes, category) of all calls */
};

/* What was short, kept from the last STATUS_OOM for the report. */
struct arena_shortage {
    int64_t requested, allocated, reserved, capacity, largest_free_block;
    enum category category;
    enum phase phase;
    int64_t by_category[CATEGORY_COUNT];
};

struct arena;

/* capacity in bytes, at least one page. Caller frees with arena_close; the device must outlive it.
 */
enum status arena_open(struct arena **out, struct device *device, int64_t capacity, struct err *e);
/* Every block is gone afterwards. */
void arena_close(struct arena *arena);
/* bytes >= 0 (0 gives one granule). STATUS_OOM, with a text for the user, when it does not fit the
 * capacity. */
enum status arena_alloc(struct arena *arena, int64_t bytes, enum category category,
                        struct arena_block **out, struct err *e);
void arena_free(struct arena *arena, struct arena_block *block);
/* Gives back what is reserved beyond the last live block. Returns the bytes given back. */
int64_t arena_trim(struct arena *arena);
/* From here on peaks are counted for this phase too. */
void arena_enter(struct arena *arena, enum phase phase);
void arena_get_stats(const struct arena *arena, struct arena_stats *stats);
/* A hash of which bytes are taken and which are free: from two equal states the same calls give the
 * same addresses. */
uint64_t arena_fingerprint(const struct arena *arena);
/* The counters as they were, for calls that came to nothing: since then everything that was
 * allocated has been freed. What is reserved, and its peak, stay. */
void arena_forget_since(struct arena *arena, const struct arena_stats *then);
const struct arena_shortage *arena_last_shortage(const struct arena *arena);

#endif
