/* test_arena.c - goal: the arena never hands out the same byte twice, coalesces, respects its
 * capacity, and counts exactly. Method: chosen sequences, and a long random one against a plain
 * model of live blocks. */
/* rooms: engine_memory */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "engine/memory/arena.h"

enum { CAPACITY = 64 << 20 };

struct fixture {
    struct device *device;
    struct arena *arena;
};

static int setup(void **state) {
    struct fixture *const f = mem_new(1, sizeof *f);
    struct err e = {0};
    assert_int_equal(device_open(&f->device, "cpu", &(struct device_options){0}, &e), STATUS_OK);
    assert_int_equal(arena_open(&f->arena, f->device, CAPACITY, &e), STATUS_OK);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *const f = *state;
    arena_close(f->arena);
    device_close(f->device);
    mem_free(f);
    return 0;
}

static struct arena_block *take(struct fixture *f, int64_t bytes, enum category category) {
    struct err e = {0};
    struct arena_block *block = NULL;
    assert_int_equal(arena_alloc(f->arena, bytes, category, &block, &e), STATUS_OK);
    return block;
}

static struct arena_stats stats_of(const struct fixture *f) {
    struct arena_stats s;
    arena_get_stats(f->arena, &s);
    return s;
}

static void test_arena_counts_by_category_and_peak(void **state) {
    struct fixture *const f = *state;
    struct arena_block *const a = take(f, 1000, CATEGORY_WEIGHTS);
    struct arena_block *const b = take(f, 512, CATEGORY_ACTIVATIONS);
    arena_free(f->arena, b);
    struct arena_block *const c = take(f, 1, CATEGORY_OPTIMIZER);
    const struct arena_stats s = stats_of(f);
    assert_int_equal(s.by_category[CATEGORY_WEIGHTS], 1024);
    assert_int_equal(s.by_category[CATEGORY_ACTIVATIONS], 0);
    assert_int_equal(s.category_peak[CATEGORY_ACTIVATIONS], 512);
    assert_int_equal(s.allocated, 1024 + 512);
    assert_int_equal(s.allocated_peak, 1024 + 512);
    assert_int_equal(s.at_peak[CATEGORY_ACTIVATIONS], 512);
    arena_free(f->arena, a);
    arena_free(f->arena, c);
    assert_int_equal(stats_of(f).allocated, 0);
}

static void test_arena_reuses_the_best_hole(void **state) {
    struct fixture *const f = *state;
    struct arena_block *holes[4];
    const int64_t sizes[] = {8192, 2048, 4096, 1024};
    struct arena_block *walls[4];
    for (int i = 0; i < 4; i++) {
        holes[i] = take(f, sizes[i], CATEGORY_ACTIVATIONS);
        walls[i] = take(f, 512, CATEGORY_WEIGHTS);
    }
    void *const wanted = holes[2]->data;
    for (int i = 0; i < 4; i++) {
        arena_free(f->arena, holes[i]);
    }
    struct arena_block *const block = take(f, 3000, CATEGORY_ACTIVATIONS);
    assert_ptr_equal(block->data, wanted);
    arena_free(f->arena, block);
    for (int i = 0; i < 4; i++) {
        arena_free(f->arena, walls[i]);
    }
    assert_int_equal(stats_of(f).largest_free_block, stats_of(f).reserved);
}

static void test_arena_over_capacity_reports_shortage(void **state) {
    struct fixture *const f = *state;
    struct err e = {0};
    struct arena_block *const held = take(f, CAPACITY / 2, CATEGORY_WEIGHTS), *more = NULL;
    arena_enter(f->arena, PHASE_BACKWARD);
    assert_int_equal(arena_alloc(f->arena, CAPACITY / 2 + 512, CATEGORY_ACTIVATIONS, &more, &e),
                     STATUS_OOM);
    assert_non_null(strstr(e.text, "backward"));
    assert_non_null(strstr(e.text, "activations"));
    const struct arena_shortage *const s = arena_last_shortage(f->arena);
    assert_int_equal(s->requested, CAPACITY / 2 + 512);
    assert_int_equal(s->allocated, CAPACITY / 2);
    assert_int_equal(s->by_category[CATEGORY_WEIGHTS], CAPACITY / 2);
    more = take(f, CAPACITY / 2, CATEGORY_ACTIVATIONS); /* exactly full is fine */
    arena_free(f->arena, more);
    arena_free(f->arena, held);
}

static void test_arena_trim_gives_back_the_tail(void **state) {
    struct fixture *const f = *state;
    struct arena_block *const a = take(f, 4096, CATEGORY_WEIGHTS), *const b =
                                                                       take(f, 16 << 20,
                                                                            CATEGORY_ACTIVATIONS);
    arena_free(f->arena, b);
    const int64_t before = stats_of(f).reserved, given = arena_trim(f->arena);
    assert_true(given > 0);
    assert_int_equal(stats_of(f).reserved, before - given);
    struct arena_block *const c = take(f, 16 << 20, CATEGORY_ACTIVATIONS);
    memset(c->data, 1, 16 << 20); /* it is backed again */
    arena_free(f->arena, c);
    arena_free(f->arena, a);
}

/* A pattern is written into every live block and checked when it is freed: overlap would destroy
 * it. */
static void test_arena_random_sequence_never_overlaps(void **state) {
    struct fixture *const f = *state;
    enum { LIVE_MAX = 200, ROUNDS = 20000 };
    struct arena_block *live[LIVE_MAX] = {0};
    uint32_t random = 1;
    int64_t sum = 0;
    for (int round = 0; round < ROUNDS; round++) {
        random = random * 1664525u + 1013904223u;
        const int slot = (int)((random >> 8) % LIVE_MAX);
        if (live[slot]) {
            const unsigned char *const bytes = live[slot]->data;
            assert_int_equal(bytes[0], (unsigned char)slot);
            assert_int_equal(bytes[live[slot]->bytes - 1], (unsigned char)slot);
            sum -= live[slot]->bytes;
            arena_free(f->arena, live[slot]);
            live[slot] = NULL;
        } else {
            const int64_t bytes = (random >> 4) % 200000;
            live[slot] = take(f, bytes, (enum category)(slot % CATEGORY_COUNT));
            memset(live[slot]->data, slot, (size_t)live[slot]->bytes);
            sum += live[slot]->bytes;
        }
        assert_int_equal(stats_of(f).allocated, sum);
    }
    for (int slot = 0; slot < LIVE_MAX; slot++) {
        arena_free(f->arena, live[slot]);
    }
    assert_int_equal(stats_of(f).largest_free_block, stats_of(f).reserved);
}

static void test_arena_same_calls_same_trace(void **state) {
    struct fixture *const f = *state;
    struct arena *again = NULL;
    struct device *null = NULL;
    struct err e = {0};
    assert_int_equal(device_open(&null, "null:cpu", &(struct device_options){0}, &e), STATUS_OK);
    assert_int_equal(arena_open(&again, null, CAPACITY, &e), STATUS_OK);
    struct fixture other = {.device = null, .arena = again};
    for (int i = 1; i < 50; i++) {
        struct arena_block *const a = take(f, i * 777, CATEGORY_ACTIVATIONS),
                                  *const b = take(&other, i * 777, CATEGORY_ACTIVATIONS);
        if (i % 3 == 0) {
            arena_free(f->arena, a);
            arena_free(again, b);
        }
    }
    const struct arena_stats x = stats_of(f), y = stats_of(&other);
    assert_true(x.trace == y.trace);
    assert_int_equal(x.allocated_peak, y.allocated_peak);
    assert_int_equal(x.reserved, y.reserved);
    arena_close(again);
    device_close(null);
}

/* Each phase keeps the table of its own fullest moment, whatever the others do later. */
static void test_arena_phases_keep_their_own_categories(void **state) {
    struct fixture *const f = *state;
    struct arena_block *const weights = take(f, 4096, CATEGORY_WEIGHTS);
    arena_enter(f->arena, PHASE_FORWARD);
    struct arena_block *const activations = take(f, 8192, CATEGORY_ACTIVATIONS);
    arena_free(f->arena, activations);
    arena_enter(f->arena, PHASE_BACKWARD);
    struct arena_block *const gradients = take(f, 1024, CATEGORY_GRADIENTS);
    arena_enter(f->arena, PHASE_FORWARD);
    const struct arena_stats s = stats_of(f);
    assert_int_equal(s.phase_peak[PHASE_FORWARD], 4096 + 8192);
    assert_int_equal(s.phase_categories[PHASE_FORWARD][CATEGORY_ACTIVATIONS], 8192);
    assert_int_equal(s.phase_categories[PHASE_FORWARD][CATEGORY_GRADIENTS], 0);
    assert_int_equal(s.phase_peak[PHASE_BACKWARD], 4096 + 1024);
    assert_int_equal(s.phase_categories[PHASE_BACKWARD][CATEGORY_GRADIENTS], 1024);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        int64_t sum = 0;
        for (int i = 0; i < CATEGORY_COUNT; i++) {
            sum += s.phase_categories[phase][i];
        }
        assert_int_equal(sum, s.phase_peak[phase]);
    }
    arena_free(f->arena, weights);
    arena_free(f->arena, gradients);
}

/* A watcher that keeps its own books of the range: they must agree with the arena's. */
struct watched {
    int64_t allocated, reserved, requested, calls;
    struct arena_event last;
};

static void watch(void *context, const struct arena_event *event) {
    struct watched *const w = context;
    const int64_t sign = event->action == ARENA_ALLOC || event->action == ARENA_BACK ? 1 : -1;
    const bool pages = event->action == ARENA_BACK || event->action == ARENA_UNBACK;
    *(pages ? &w->reserved : &w->allocated) += sign * event->bytes;
    if (!pages) w->requested += sign * event->requested;
    w->calls++;
    w->last = *event;
}

static void test_arena_watcher_sees_every_change(void **state) {
    struct fixture *const f = *state;
    struct watched w = {0};
    arena_watch(f->arena, watch, &w);
    arena_set_label(f->arena, (struct arena_label){"layer", 3});
    arena_enter(f->arena, PHASE_FORWARD);
    struct arena_block *const a = take(f, 1000, CATEGORY_ACTIVATIONS);
    assert_int_equal(w.last.action, ARENA_ALLOC);
    assert_int_equal(w.last.requested, 1000);
    assert_int_equal(w.last.bytes, 1024);
    assert_int_equal(w.last.phase, PHASE_FORWARD);
    assert_string_equal(w.last.label.what, "layer");
    assert_int_equal(w.last.label.layer, 3);
    struct arena_block *const b = take(f, 20 << 20, CATEGORY_WEIGHTS);
    arena_free(f->arena, a);
    assert_int_equal(w.last.action, ARENA_FREE);
    assert_int_equal(w.last.category, CATEGORY_ACTIVATIONS);
    arena_free(f->arena, b);
    assert_int_equal(w.allocated, 0);
    assert_int_equal(w.requested, 0);
    assert_int_equal(w.reserved, stats_of(f).reserved);
    arena_trim(f->arena);
    assert_int_equal(w.last.action, ARENA_UNBACK);
    assert_int_equal(w.reserved, stats_of(f).reserved);
    const int64_t calls = w.calls;
    arena_watch(f->arena, NULL, NULL);
    arena_free(f->arena, take(f, 512, CATEGORY_WEIGHTS));
    assert_int_equal(w.calls, calls);
}

static void configure(struct fixture *f, int64_t growth, int64_t split, int64_t trim) {
    const struct arena_settings settings = {growth, split, trim};
    arena_configure(f->arena, &settings);
}

static void test_arena_growth_backs_in_pieces_within_the_capacity(void **state) {
    struct fixture *const f = *state;
    configure(f, 24 << 20, 0, 0);
    struct arena_block *const a = take(f, 512, CATEGORY_WEIGHTS);
    assert_int_equal(stats_of(f).reserved, 24 << 20);
    struct arena_block *const b = take(f, 24 << 20, CATEGORY_WEIGHTS);
    assert_int_equal(stats_of(f).reserved, 48 << 20);
    /* A third piece does not fit the capacity of 64 MiB: what is left is taken. */
    struct arena_block *const c = take(f, 30 << 20, CATEGORY_WEIGHTS);
    assert_int_equal(stats_of(f).reserved, CAPACITY);
    arena_free(f->arena, a);
    arena_free(f->arena, b);
    arena_free(f->arena, c);
}

static void test_arena_split_limit_keeps_large_holes_whole(void **state) {
    struct fixture *const f = *state;
    configure(f, 0, 8 << 20, 0);
    struct arena_block *const hole = take(f, 16 << 20, CATEGORY_ACTIVATIONS);
    struct arena_block *const wall = take(f, 512, CATEGORY_WEIGHTS);
    void *const place = hole->data;
    arena_free(f->arena, hole);
    struct arena_block *const small = take(f, 4096, CATEGORY_ACTIVATIONS);
    assert_true((char *)small->data > (char *)wall->data);
    struct arena_block *const large = take(f, 9 << 20, CATEGORY_ACTIVATIONS);
    assert_ptr_equal(large->data, place);
    arena_free(f->arena, large);
    /* When nothing else is left the hole is split: a run does not end for a preference. */
    const int64_t left = CAPACITY - (16 << 20) - 512 - 4096;
    struct arena_block *const rest = take(f, left, CATEGORY_WEIGHTS);
    struct arena_block *const last = take(f, 4096, CATEGORY_ACTIVATIONS);
    assert_ptr_equal(last->data, place);
    arena_free(f->arena, rest);
    arena_free(f->arena, last);
    arena_free(f->arena, small);
    arena_free(f->arena, wall);
}

static void test_arena_settle_trims_above_the_threshold_only(void **state) {
    struct fixture *const f = *state;
    configure(f, 0, 0, 32 << 20);
    arena_free(f->arena, take(f, 30 << 20, CATEGORY_ACTIVATIONS));
    assert_int_equal(arena_settle(f->arena), 0);
    arena_free(f->arena, take(f, 40 << 20, CATEGORY_ACTIVATIONS));
    assert_true(arena_settle(f->arena) >= 40 << 20);
    assert_int_equal(stats_of(f).reserved, 0);
}

static void test_arena_counts_totals_and_requests(void **state) {
    struct fixture *const f = *state;
    struct err e = {0};
    struct arena_block *const a = take(f, 1000, CATEGORY_WEIGHTS);
    arena_free(f->arena, take(f, 100, CATEGORY_STAGING));
    struct arena_block *none = NULL;
    assert_int_equal(arena_alloc(f->arena, 2 * (int64_t)CAPACITY, CATEGORY_WEIGHTS, &none, &e),
                     STATUS_OOM);
    const struct arena_stats s = stats_of(f);
    assert_int_equal(s.requested, 1000);
    assert_int_equal(s.requested_peak, 1100);
    assert_int_equal(s.allocated_total, 1024 + 512);
    assert_int_equal(s.live, 1);
    assert_int_equal(s.live_peak, 2);
    assert_int_equal(s.live_total, 2);
    assert_int_equal(s.failures, 1);
    int64_t covered = 0;
    for (const struct arena_block *b = arena_first(f->arena); b; b = b->next) {
        assert_ptr_equal(b->data, (const char *)arena_base(f->arena) + covered);
        covered += b->bytes;
    }
    assert_int_equal(covered, s.reserved);
    arena_free(f->arena, a);
}

/* The part of a category that one label holds: at each phase's peak, and at most. */
static void test_arena_follows_a_label(void **state) {
    struct fixture *const f = *state;
    arena_follow(f->arena, "loss");
    arena_enter(f->arena, PHASE_FORWARD);
    arena_set_label(f->arena, (struct arena_label){"mlp", 0});
    struct arena_block *const x = take(f, 8192, CATEGORY_ACTIVATIONS);
    arena_set_label(f->arena, (struct arena_label){"loss", -1});
    struct arena_block *const logits = take(f, 4096, CATEGORY_ACTIVATIONS);
    arena_enter(f->arena, PHASE_BACKWARD);
    arena_set_label(f->arena, (struct arena_label){"mlp", 0});
    arena_free(f->arena, logits);
    struct arena_block *const dx = take(f, 8192, CATEGORY_ACTIVATIONS);
    const struct arena_stats s = stats_of(f);
    assert_int_equal(s.phase_followed[PHASE_FORWARD], 4096);
    assert_int_equal(s.phase_peak[PHASE_BACKWARD], 16384);
    assert_int_equal(s.phase_followed[PHASE_BACKWARD], 0);
    assert_int_equal(s.followed, 0);
    assert_int_equal(s.followed_peak, 4096);
    arena_free(f->arena, x);
    arena_free(f->arena, dx);
}

int main(void) {
#define WITH_ARENA(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_ARENA(test_arena_counts_by_category_and_peak),
        WITH_ARENA(test_arena_reuses_the_best_hole),
        WITH_ARENA(test_arena_over_capacity_reports_shortage),
        WITH_ARENA(test_arena_trim_gives_back_the_tail),
        WITH_ARENA(test_arena_random_sequence_never_overlaps),
        WITH_ARENA(test_arena_same_calls_same_trace),
        WITH_ARENA(test_arena_phases_keep_their_own_categories),
        WITH_ARENA(test_arena_watcher_sees_every_change),
        WITH_ARENA(test_arena_growth_backs_in_pieces_within_the_capacity),
        WITH_ARENA(test_arena_split_limit_keeps_large_holes_whole),
        WITH_ARENA(test_arena_settle_trims_above_the_threshold_only),
        WITH_ARENA(test_arena_counts_totals_and_requests),
        WITH_ARENA(test_arena_follows_a_label),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
