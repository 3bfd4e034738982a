/* arena.c - blocks in address order, a free list searched best-fit, page-wise backing at the end of
 * the range.
 *
 * The free list is short in training (tens of blocks: activations come and go in stack order), so a
 * linear search costs less than keeping it sorted. Records of blocks come from chunks that are
 * never given back, so a steady training step calls no host allocator. */
#include "engine/memory/arena.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/memory/pressure.h"

enum { RECORDS_PER_CHUNK = 512 };

struct chunk {
    struct chunk *next;
    struct arena_block records[RECORDS_PER_CHUNK];
};

struct arena {
    struct device *device;
    char *base;
    int64_t range_bytes; /* reserved addresses */
    struct arena_block *first, *last;
    struct arena_block *free_head;
    struct arena_block *unused;
    struct chunk *chunks;
    struct arena_stats stats;
    struct arena_shortage shortage;
    struct arena_settings settings;
    enum phase phase;
    struct arena_label label;
    const char *followed; /* may be NULL */
    struct pressure pressure;
    arena_watcher *watcher; /* may be NULL */
    void *watcher_context;
};

static const char *const CATEGORY_NAMES[CATEGORY_COUNT] = {
    [CATEGORY_WEIGHTS] = "weights",
    [CATEGORY_ADAPTERS] = "adapters",
    [CATEGORY_GRADIENTS] = "gradients",
    [CATEGORY_OPTIMIZER] = "optimizer",
    [CATEGORY_ACTIVATIONS] = "activations",
    [CATEGORY_WORKSPACE] = "workspace",
    [CATEGORY_COMMUNICATION] = "communication",
    [CATEGORY_STAGING] = "staging",
};

static const char *const PHASE_NAMES[PHASE_COUNT] = {
    [PHASE_LOAD] = "load",           [PHASE_FORWARD] = "forward", [PHASE_BACKWARD] = "backward",
    [PHASE_OPTIMIZER] = "optimizer", [PHASE_EVAL] = "eval",       [PHASE_CHECKPOINT] = "checkpoint",
    [PHASE_EXPORT] = "export",
};

const char *category_name(enum category category) {
    ASSERT(category < CATEGORY_COUNT);
    return CATEGORY_NAMES[category];
}

const char *phase_name(enum phase phase) {
    ASSERT(phase < PHASE_COUNT);
    return PHASE_NAMES[phase];
}

const char *arena_label_text(const struct arena_label *label, char buffer[ARENA_LABEL_MAX]) {
    buffer[0] = 0;
    if (label->what && label->layer >= 0) {
        snprintf(buffer, ARENA_LABEL_MAX, "layer %d %s", (int)label->layer, label->what);
    } else if (label->what) {
        snprintf(buffer, ARENA_LABEL_MAX, "%s", label->what);
    }
    return buffer;
}

static int64_t round_up(int64_t value, int64_t step) {
    return (value + step - 1) / step * step;
}

static struct arena_block *take_record(struct arena *arena) {
    if (!arena->unused) {
        struct chunk *const chunk = mem_new(1, sizeof *chunk);
        chunk->next = arena->chunks;
        arena->chunks = chunk;
        for (int i = 0; i < RECORDS_PER_CHUNK; i++) {
            chunk->records[i].free_next = arena->unused;
            arena->unused = &chunk->records[i];
        }
    }
    struct arena_block *const block = arena->unused;
    arena->unused = block->free_next;
    *block = (struct arena_block){0};
    return block;
}

static void drop_record(struct arena *arena, struct arena_block *block) {
    block->free_next = arena->unused;
    arena->unused = block;
}

static void free_list_add(struct arena *arena, struct arena_block *block) {
    block->live = false;
    block->free_previous = NULL;
    block->free_next = arena->free_head;
    if (arena->free_head) arena->free_head->free_previous = block;
    arena->free_head = block;
}

static void free_list_remove(struct arena *arena, struct arena_block *block) {
    if (block->free_previous) block->free_previous->free_next = block->free_next;
    if (block->free_next) block->free_next->free_previous = block->free_previous;
    if (arena->free_head == block) arena->free_head = block->free_next;
    block->free_previous = block->free_next = NULL;
}

static void insert_after(struct arena *arena, struct arena_block *left, struct arena_block *block) {
    block->previous = left;
    block->next = left ? left->next : arena->first;
    if (block->next) block->next->previous = block;
    if (left) left->next = block;
    if (!left) arena->first = block;
    if (arena->last == left) arena->last = block;
}

static void unlink_block(struct arena *arena, struct arena_block *block) {
    if (block->previous) block->previous->next = block->next;
    if (block->next) block->next->previous = block->previous;
    if (arena->first == block) arena->first = block->next;
    if (arena->last == block) arena->last = block->previous;
    drop_record(arena, block);
}

enum status arena_open(struct arena **out, struct device *device, int64_t capacity, struct err *e) {
    FAIL_IF(capacity < device->page_bytes, STATUS_INVALID,
            "memory.cap: %lld bytes is less than one page of the device (%lld bytes)",
            (long long)capacity, (long long)device->page_bytes);
    struct arena *const arena = mem_new(1, sizeof *arena);
    arena->device = device;
    const bool larger = device->computes && device->total_bytes > capacity;
    const int64_t most = larger ? device->total_bytes : capacity;
    arena->range_bytes = round_up(most, device->page_bytes);
    arena->stats.capacity = capacity;
    if (device->computes) arena->pressure = pressure_of_others();
    void *base = NULL;
    const enum status status = device_reserve(device, arena->range_bytes, &base, e);
    if (status != STATUS_OK) {
        mem_free(arena);
        return status;
    }
    arena->base = base;
    *out = arena;
    return STATUS_OK;
}

void arena_configure(struct arena *arena, const struct arena_settings *settings) {
    ASSERT(arena->stats.allocations == 0);
    arena->settings = *settings;
}

void arena_watch(struct arena *arena, arena_watcher *watcher, void *context) {
    arena->watcher = watcher;
    arena->watcher_context = context;
}

static void tell_block(const struct arena *arena, enum arena_action action,
                       const struct arena_block *block) {
    if (!arena->watcher) return;
    const struct arena_event event = {.action = action,
                                      .offset = (char *)block->data - arena->base,
                                      .bytes = block->bytes,
                                      .requested = block->requested,
                                      .category = block->category,
                                      .phase = arena->phase,
                                      .label = block->label};
    arena->watcher(arena->watcher_context, &event);
}

static void tell_pages(const struct arena *arena, enum arena_action action, int64_t offset,
                       int64_t bytes) {
    if (!arena->watcher) return;
    const struct arena_event event = {.action = action,
                                      .offset = offset,
                                      .bytes = bytes,
                                      .phase = arena->phase,
                                      .label = arena->label};
    arena->watcher(arena->watcher_context, &event);
}

void arena_close(struct arena *arena) {
    if (!arena) return;
    if (arena->stats.reserved) device_decommit(arena->device, arena->base, arena->stats.reserved);
    device_unreserve(arena->device, arena->base, arena->range_bytes);
    while (arena->chunks) {
        struct chunk *const next = arena->chunks->next;
        mem_free(arena->chunks);
        arena->chunks = next;
    }
    mem_free(arena);
}

static int64_t largest_free(const struct arena *arena) {
    int64_t largest = 0;
    for (const struct arena_block *b = arena->free_head; b; b = b->free_next) {
        if (b->bytes > largest) largest = b->bytes;
    }
    return largest;
}

/* The smallest free block that is large enough; among equals the lowest address, so that the choice
 * does not depend on the order of frees. Holes of at least `limit` are left alone by smaller
 * requests. What is behind the last live block is no hole: it is taken when there is none, so that
 * how much of it is backed decides nothing. */
static struct arena_block *best_fit(const struct arena *arena, int64_t bytes, int64_t limit) {
    struct arena_block *best = NULL;
    for (struct arena_block *b = arena->free_head; b; b = b->free_next) {
        if (!b->next || b->bytes < bytes || (bytes < limit && b->bytes >= limit)) continue;
        if (!best || b->bytes < best->bytes || (b->bytes == best->bytes && b->data < best->data))
            best = b;
    }
    return best;
}

static struct arena_block *free_tail(const struct arena *arena) {
    return arena->last && !arena->last->live ? arena->last : NULL;
}

static void find_largest(const struct arena *arena, struct arena_shortage *report) {
    for (const struct arena_block *b = arena->first; b; b = b->next) {
        if (!b->live) continue;
        int64_t at = report->largest_count;
        while (at > 0 && report->largest[at - 1].bytes < b->bytes) {
            if (at < SHORTAGE_LARGEST_MAX) report->largest[at] = report->largest[at - 1];
            at--;
        }
        if (at == SHORTAGE_LARGEST_MAX) continue;
        report->largest[at] = (struct arena_holding){b->bytes, b->category, b->phase, b->label};
        if (report->largest_count < SHORTAGE_LARGEST_MAX) report->largest_count++;
    }
}

static enum status shortage(struct arena *arena, int64_t bytes, enum category category,
                            struct err *e) {
    const struct arena_stats *const s = &arena->stats;
    struct arena_shortage *const report = &arena->shortage;
    *report = (struct arena_shortage){.requested = bytes,
                                      .allocated = s->allocated,
                                      .reserved = s->reserved,
                                      .capacity = s->capacity,
                                      .largest_free_block = largest_free(arena),
                                      .category = category,
                                      .phase = arena->phase,
                                      .label = arena->label};
    find_largest(arena, report);
    memcpy(report->by_category, s->by_category, sizeof report->by_category);
    arena->stats.failures++;
    char asked[24], held[24], capacity[24], hole[24];
    return err_set(e, STATUS_OOM,
                   "out of memory in %s: %s for %s do not fit: %s of %s are in use, the largest "
                   "free block is %s",
                   phase_name(arena->phase), str_bytes(bytes, asked), category_name(category),
                   str_bytes(s->allocated, held), str_bytes(s->capacity, capacity),
                   str_bytes(report->largest_free_block, hole));
}

/* What the last block lacks to be free and `bytes` large. */
static int64_t missing_for(const struct arena *arena, int64_t bytes) {
    const struct arena_block *const tail = free_tail(arena);
    return bytes - (tail ? tail->bytes : 0);
}

/* Whole pages that hold `missing` bytes; more where the settings ask for it and the capacity has
 * room. */
static int64_t growth_for(const struct arena *arena, int64_t missing) {
    const int64_t page = arena->device->page_bytes;
    const int64_t room = round_up(arena->stats.capacity, page) - arena->stats.reserved;
    int64_t more = round_up(missing, page);
    const int64_t wanted = round_up(arena->settings.growth, page);
    if (more < wanted) more = wanted;
    return more < room ? more : room;
}

/* What the capacity leaves, others being there. */
static int64_t limit_now(struct arena *arena) {
    return arena->stats.capacity - pressure_others(&arena->pressure);
}

/* Backs `more` bytes of pages, which become part of the free tail. */
static enum status back_pages(struct arena *arena, int64_t more, struct err *e) {
    struct arena_block *tail = free_tail(arena);
    char *const at = arena->base + arena->stats.reserved;
    TRY(device_commit(arena->device, at, more, e));
    if (tail) {
        tail->bytes += more;
    } else {
        tail = take_record(arena);
        tail->data = at;
        tail->bytes = more;
        insert_after(arena, arena->last, tail);
        free_list_add(arena, tail);
    }
    tell_pages(arena, ARENA_BACK, arena->stats.reserved, more);
    arena->stats.reserved += more;
    arena->stats.reserved_total += more;
    if (arena->stats.reserved > arena->stats.reserved_peak)
        arena->stats.reserved_peak = arena->stats.reserved;
    return STATUS_OK;
}

/* Makes the last block free and at least `bytes` large by backing more pages behind it, for which
 * the capacity has room. The device may refuse: that is a shortage, too. */
static enum status grow(struct arena *arena, int64_t bytes, enum category category,
                        struct arena_block **out, struct err *e) {
    struct err refusal = {0};
    if (pressure_hits(&arena->pressure.reservation)) return shortage(arena, bytes, category, e);
    const enum status status =
        back_pages(arena, growth_for(arena, missing_for(arena, bytes)), &refusal);
    if (status == STATUS_OOM) (void)shortage(arena, bytes, category, NULL);
    if (status != STATUS_OK) return err_set(e, status, "%s", refusal.text);
    *out = free_tail(arena);
    return STATUS_OK;
}

static void count_phase(struct arena *arena) {
    struct arena_stats *const s = &arena->stats;
    if (s->allocated <= s->phase_peak[arena->phase]) return;
    s->phase_peak[arena->phase] = s->allocated;
    memcpy(s->phase_categories[arena->phase], s->by_category, sizeof s->by_category);
    s->phase_followed[arena->phase] = s->followed;
}

static void count_window(struct arena_stats *s) {
    if (s->allocated <= s->window_peak) return;
    s->window_peak = s->allocated;
    memcpy(s->window_categories, s->by_category, sizeof s->by_category);
}

/* Blocks by number and as asked for; `sign` is -1 for a release. */
static void count_block(struct arena *arena, const struct arena_block *block, int sign) {
    struct arena_stats *const s = &arena->stats;
    /* Most differ in their first letter, and a plan asks for millions. */
    if (arena->followed && block->label.what && block->label.what[0] == arena->followed[0] &&
        str_equal(block->label.what, arena->followed))
        s->followed += sign * block->bytes;
    if (s->followed > s->followed_peak) s->followed_peak = s->followed;
    s->live += sign;
    s->requested += sign * block->requested;
    if (sign > 0) {
        s->live_total++;
        s->allocated_total += block->bytes;
    }
    if (s->live > s->live_peak) s->live_peak = s->live;
    if (s->requested > s->requested_peak) s->requested_peak = s->requested;
}

static void count(struct arena *arena, int64_t bytes, enum category category) {
    struct arena_stats *const s = &arena->stats;
    s->allocated += bytes;
    s->by_category[category] += bytes;
    s->allocations++;
    /* FNV-1a style mixing; releases are mixed in as negative sizes. */
    s->trace = (s->trace ^ (uint64_t)bytes) * 0x100000001B3u;
    s->trace = (s->trace ^ (uint64_t)category) * 0x100000001B3u;
    if (s->by_category[category] > s->category_peak[category])
        s->category_peak[category] = s->by_category[category];
    count_phase(arena);
    count_window(s);
    if (s->allocated <= s->allocated_peak) return;
    s->allocated_peak = s->allocated;
    s->peak_phase = arena->phase;
    memcpy(s->at_peak, s->by_category, sizeof s->at_peak);
}

/* A free block of at least `bytes`: a hole, or made by growing. */
static enum status find_block(struct arena *arena, int64_t bytes, enum category category,
                              struct arena_block **out, struct err *e) {
    const int64_t limit = arena->settings.split_limit;
    *out = best_fit(arena, bytes, limit);
    if (!*out && missing_for(arena, bytes) <= 0) *out = free_tail(arena);
    if (*out) return STATUS_OK;
    const int64_t room = limit_now(arena) - arena->stats.reserved;
    if (missing_for(arena, bytes) <= room) return grow(arena, bytes, category, out, e);
    /* A run that could go on does not end for a preference. */
    if (limit) *out = best_fit(arena, bytes, 0);
    return *out ? STATUS_OK : shortage(arena, bytes, category, e);
}

enum status arena_alloc(struct arena *arena, int64_t bytes, enum category category,
                        struct arena_block **out, struct err *e) {
    ASSERT(bytes >= 0 && category < CATEGORY_COUNT);
    const int64_t granule = arena->device->granule_bytes;
    const int64_t size = bytes ? round_up(bytes, granule) : granule;
    struct arena_block *block = NULL;
    if (pressure_hits(&arena->pressure.allocation)) return shortage(arena, size, category, e);
    TRY(find_block(arena, size, category, &block, e));
    /* The last page may reach beyond the capacity; what is used may not. */
    if (arena->stats.allocated + size > arena->stats.capacity)
        return shortage(arena, size, category, e);
    free_list_remove(arena, block);
    if (block->bytes > size) {
        struct arena_block *const rest = take_record(arena);
        rest->data = (char *)block->data + size;
        rest->bytes = block->bytes - size;
        insert_after(arena, block, rest);
        free_list_add(arena, rest);
        block->bytes = size;
    }
    const int64_t end = (char *)block->data - arena->base + size;
    if (end > arena->stats.extent_peak) arena->stats.extent_peak = end;
    block->live = true;
    block->requested = bytes;
    block->category = category;
    block->phase = arena->phase;
    block->label = arena->label;
    count_block(arena, block, 1);
    count(arena, size, category);
    tell_block(arena, ARENA_ALLOC, block);
    *out = block;
    return STATUS_OK;
}

void arena_free(struct arena *arena, struct arena_block *block) {
    if (!block) return;
    ASSERT(block->live);
    count_block(arena, block, -1);
    count(arena, -block->bytes, block->category);
    tell_block(arena, ARENA_FREE, block);
    struct arena_block *const right = block->next;
    if (right && !right->live) {
        free_list_remove(arena, right);
        block->bytes += right->bytes;
        unlink_block(arena, right);
    }
    struct arena_block *const left = block->previous;
    if (left && !left->live) {
        left->bytes += block->bytes;
        unlink_block(arena, block);
    } else {
        free_list_add(arena, block);
    }
}

/* What is asked for is the total. */
static enum status reservation_failed(struct arena *arena, int64_t bytes_total, struct err *e) {
    char total[24], held[24], capacity[24], others[24];
    const enum status status = shortage(arena, bytes_total, CATEGORY_ACTIVATIONS, NULL);
    arena->shortage.reservation = true;
    arena->shortage.label = (struct arena_label){0};
    const char *const format =
        arena->pressure.others
            ? "out of memory in %s: %s are needed in all, %s of %s are in use, others hold %s"
            : "out of memory in %s: %s are needed in all, %s of %s are in use";
    return err_set(e, status, format, phase_name(arena->phase), str_bytes(bytes_total, total),
                   str_bytes(arena->stats.allocated, held),
                   str_bytes(arena->stats.capacity, capacity),
                   str_bytes(arena->pressure.others, others));
}

enum status arena_reserve(struct arena *arena, int64_t bytes_total, struct err *e) {
    const int64_t page = arena->device->page_bytes;
    struct err refusal = {0};
    if (pressure_hits(&arena->pressure.reservation))
        return reservation_failed(arena, bytes_total, e);
    if (bytes_total > limit_now(arena)) return reservation_failed(arena, bytes_total, e);
    const int64_t missing = round_up(bytes_total, page) - arena->stats.reserved;
    if (missing <= 0) return STATUS_OK;
    const enum status status = back_pages(arena, missing, &refusal);
    if (status == STATUS_OOM) (void)reservation_failed(arena, bytes_total, NULL);
    if (status != STATUS_OK) return err_set(e, status, "%s", refusal.text);
    return STATUS_OK;
}

int64_t arena_available(struct arena *arena) {
    const int64_t limit = limit_now(arena);
    struct device_memory memory = {0};
    struct err ignored = {0};
    if (arena->device->kind != DEVICE_CUDA || !arena->device->computes) return limit;
    if (device_memory(arena->device, &memory, &ignored) != STATUS_OK) return limit;
    const int64_t there = arena->stats.reserved + memory.free;
    return there < limit ? there : limit;
}

void arena_set_capacity(struct arena *arena, int64_t capacity) {
    ASSERT(capacity >= arena->device->page_bytes && capacity <= arena->range_bytes);
    arena->stats.capacity = capacity;
}

enum status arena_begin_pressure(struct arena *arena, int64_t rank, struct err *e) {
    return pressure_read(&arena->pressure, rank, e);
}

int64_t arena_pretended_others(const struct arena *arena) {
    return arena->pressure.others_path ? arena->pressure.others : -1;
}

int64_t arena_trim(struct arena *arena) {
    struct arena_block *const tail = arena->last;
    if (!tail || tail->live) return 0;
    const int64_t page = arena->device->page_bytes;
    const int64_t begin = (char *)tail->data - arena->base;
    const int64_t keep = round_up(begin, page);
    const int64_t given = arena->stats.reserved - keep;
    if (given <= 0) return 0;
    device_decommit(arena->device, arena->base + keep, given);
    tell_pages(arena, ARENA_UNBACK, keep, given);
    arena->stats.reserved = keep;
    tail->bytes -= given;
    if (tail->bytes == 0) {
        free_list_remove(arena, tail);
        unlink_block(arena, tail);
    }
    return given;
}

int64_t arena_settle(struct arena *arena) {
    const int64_t threshold = arena->settings.trim_threshold;
    return threshold && arena->stats.reserved > threshold ? arena_trim(arena) : 0;
}

void arena_begin_window(struct arena *arena) {
    arena->stats.window_peak = 0;
    count_window(&arena->stats);
}

void arena_follow(struct arena *arena, const char *what) {
    ASSERT(arena->stats.allocations == 0);
    arena->followed = what;
}

void arena_set_label(struct arena *arena, struct arena_label label) {
    arena->label = label;
}

struct arena_label arena_label(const struct arena *arena) {
    return arena->label;
}

const void *arena_base(const struct arena *arena) {
    return arena->base;
}

const struct arena_block *arena_first(const struct arena *arena) {
    return arena->first;
}

void arena_enter(struct arena *arena, enum phase phase) {
    ASSERT(phase < PHASE_COUNT);
    arena->phase = phase;
    count_phase(arena);
}

void arena_get_stats(const struct arena *arena, struct arena_stats *stats) {
    *stats = arena->stats;
    stats->largest_free_block = largest_free(arena);
    const struct arena_block *const tail = free_tail(arena);
    stats->non_releasable = stats->reserved - stats->allocated - (tail ? tail->bytes : 0);
}

uint64_t arena_fingerprint(const struct arena *arena) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (const struct arena_block *b = arena->first; b; b = b->next) {
        hash = (hash ^ (uint64_t)b->bytes ^ (uint64_t)b->live) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

void arena_forget_since(struct arena *arena, const struct arena_stats *then) {
    ASSERT(arena->stats.allocated == then->allocated);
    const struct arena_stats now = arena->stats;
    arena->stats = *then;
    arena->stats.reserved = now.reserved;
    arena->stats.reserved_peak = now.reserved_peak;
    arena->stats.reserved_total = now.reserved_total;
}

const struct arena_shortage *arena_last_shortage(const struct arena *arena) {
    return &arena->shortage;
}
