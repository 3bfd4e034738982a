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

int main(void) {
#define WITH_ARENA(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_ARENA(test_arena_counts_by_category_and_peak),
        WITH_ARENA(test_arena_reuses_the_best_hole),
        WITH_ARENA(test_arena_over_capacity_reports_shortage),
        WITH_ARENA(test_arena_trim_gives_back_the_tail),
        WITH_ARENA(test_arena_random_sequence_never_overlaps),
        WITH_ARENA(test_arena_same_calls_same_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
