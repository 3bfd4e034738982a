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

/* What the caller is working at: "attention" of layer 12. `what` is NULL or a string that is never
 * freed. Labels are for people; no allocation is decided by them. */
struct arena_label {
    const char *what;
    int32_t layer; /* -1: of no layer */
};
enum { ARENA_LABEL_MAX = 64 };
/* "layer 12 attention", "loss", "" without one. Returns `buffer`. */
const char *arena_label_text(const struct arena_label *label, char buffer[ARENA_LABEL_MAX]);

/* One live allocation. `data` is granule-aligned device memory. The block belongs to the arena. */
struct arena_block {
    void *data;
    int64_t bytes;     /* rounded up to granules */
    int64_t requested; /* as asked for */
    enum category category;
    enum phase phase; /* in which it was allocated */
    struct arena_label label;
    bool live;
    struct arena_block *previous, *next; /* by address */
    struct arena_block *free_previous,
        *free_next; /* the free list; unused records are chained by free_next */
};

/* The counters, all in bytes. */
struct arena_stats {
    int64_t capacity;
    int64_t allocated, allocated_peak;
    int64_t requested, requested_peak; /* what `allocated` would be without rounding */
    int64_t reserved, reserved_peak;   /* backed by the device */
    int64_t extent_peak;     /* highest end of a block so far: what a capacity must be at least */
    int64_t allocated_total; /* of all allocations so far; freed: this - allocated */
    int64_t reserved_total;  /* of all backing so far */
    int64_t largest_free_block; /* inside what is reserved */
    int64_t non_releasable;     /* free, but below a live block: arena_trim cannot give it back */
    int64_t by_category[CATEGORY_COUNT];
    int64_t category_peak[CATEGORY_COUNT]; /* each category's own peak */
    int64_t at_peak[CATEGORY_COUNT];       /* the categories at the moment of allocated_peak */
    int64_t phase_peak[PHASE_COUNT];       /* of allocated, 0 for a phase not entered */
    int64_t phase_categories[PHASE_COUNT][CATEGORY_COUNT]; /* at the moment of phase_peak */
    enum phase peak_phase;
    /* Of the label that is followed: now, at each phase's peak, and the most at any time. */
    int64_t followed, phase_followed[PHASE_COUNT], followed_peak;
    int64_t window_peak;                       /* of allocated, since arena_begin_window */
    int64_t window_categories[CATEGORY_COUNT]; /* at the moment of window_peak */
    uint64_t allocations;                      /* calls so far, of arena_alloc and arena_free */
    int64_t live, live_peak;                   /* blocks */
    int64_t live_total;                        /* blocks allocated so far */
    int64_t failures;                          /* STATUS_OOM so far */
    uint64_t trace; /* hash over the sequence of (bytes, category) of all calls */
};

/* A live block, for a report. */
struct arena_holding {
    int64_t bytes;
    enum category category;
    enum phase phase;
    struct arena_label label;
};

/* What was short, kept from the last STATUS_OOM for the report: afterwards the failed step lets go
 * of its memory. */
enum { SHORTAGE_LARGEST_MAX = 8 };
struct arena_shortage {
    int64_t requested, allocated, reserved, capacity, largest_free_block;
    enum category category;
    enum phase phase;
    struct arena_label label;
    int64_t by_category[CATEGORY_COUNT];
    bool reservation; /* nothing was allocated: arena_reserve said no */
    struct arena_holding largest[SHORTAGE_LARGEST_MAX]; /* falling */
    int64_t largest_count;
};

/* How the arena takes memory from its device, in bytes; zeroed: as little as possible, and it keeps
 * what it has. The same settings must be given to plan and run. */
struct arena_settings {
    int64_t growth;         /* back at least so much at a time, where the capacity allows */
    int64_t split_limit;    /* holes of at least this size are kept for requests of at least this
                             * size, unless nothing else is left */
    int64_t trim_threshold; /* arena_settle gives unused memory back when more than this is backed;
                             * 0: never */
};

/* What a watcher is told. `offset` is from the base of the range; for ALLOC and FREE the rest is as
 * in struct arena_block, for BACK and UNBACK (pages taken from the device and given back) only
 * bytes, phase and label are set. */
enum arena_action { ARENA_ALLOC, ARENA_FREE, ARENA_BACK, ARENA_UNBACK };
struct arena_event {
    enum arena_action action;
    int64_t offset, bytes, requested;
    enum category category;
    enum phase phase;
    struct arena_label label;
};
/* Called after the books are changed; must not call the arena. */
typedef void arena_watcher(void *context, const struct arena_event *event);

struct arena;

/* capacity in bytes, at least one page. Where the device computes, addresses are reserved for all
 * of its memory, so that the capacity can be raised. Caller frees with arena_close; the device must
 * outlive it. */
enum status arena_open(struct arena **out, struct device *device, int64_t capacity, struct err *e);
/* Before the first allocation. */
void arena_configure(struct arena *arena, const struct arena_settings *settings);
/* Every block is gone afterwards. */
void arena_close(struct arena *arena);
/* bytes >= 0 (0 gives one granule). STATUS_OOM, with a text for the user, when it does not fit the
 * capacity. */
enum status arena_alloc(struct arena *arena, int64_t bytes, enum category category,
                        struct arena_block **out, struct err *e);
void arena_free(struct arena *arena, struct arena_block *block);
/* Makes sure that the first `bytes_total` bytes of the range are backed, and stay so until
 * arena_trim: of a piece of work that was planned this is the only call that may fail. What is
 * backed has no influence on where blocks lie. STATUS_OOM as for arena_alloc. */
enum status arena_reserve(struct arena *arena, int64_t bytes_total, struct err *e);
/* How much arena_reserve could back at this moment: the capacity, or what the device still has. */
int64_t arena_available(struct arena *arena);
/* Another capacity from here on. What is backed beyond it stays until arena_trim. */
void arena_set_capacity(struct arena *arena, int64_t capacity);
/* From here on this rank suffers what the environment asks for (pressure.h). */
enum status arena_begin_pressure(struct arena *arena, int64_t rank, struct err *e);
/* Bytes that others are pretended to hold, as last read; -1: nobody is pretended. */
int64_t arena_pretended_others(const struct arena *arena);
/* Gives back what is reserved beyond the last live block. Returns the bytes given back. */
int64_t arena_trim(struct arena *arena);
/* Between steps: trims when more is backed than the settings want to keep. Returns the bytes given
 * back. */
int64_t arena_settle(struct arena *arena);
/* From here on peaks are counted for this phase too. */
void arena_enter(struct arena *arena, enum phase phase);
/* Another step begins: its own peak is counted beside that of the whole run. */
void arena_begin_window(struct arena *arena);
/* Allocations from here on carry this label. */
void arena_set_label(struct arena *arena, struct arena_label label);
struct arena_label arena_label(const struct arena *arena);
/* Counts the bytes of blocks under this label, which are a part of some category, apart: how much
 * of the activations are the loss, say. Before the first allocation; the string is never freed. */
void arena_follow(struct arena *arena, const char *what);
/* NULL stops watching. One watcher at a time. */
void arena_watch(struct arena *arena, arena_watcher *watcher, void *context);
/* Where the range begins, and its blocks: from here on along `next`, by address, live and free,
 * without gaps up to stats.reserved. NULL when nothing is reserved. */
const void *arena_base(const struct arena *arena);
const struct arena_block *arena_first(const struct arena *arena);
void arena_get_stats(const struct arena *arena, struct arena_stats *stats);
/* A hash of which bytes are taken and which are free: from two equal states the same calls give the
 * same addresses. */
uint64_t arena_fingerprint(const struct arena *arena);
/* The counters as they were, for calls that came to nothing: since then everything that was
 * allocated has been freed. What is reserved, and its peak, stay. */
void arena_forget_since(struct arena *arena, const struct arena_stats *then);
const struct arena_shortage *arena_last_shortage(const struct arena *arena);

#endif
