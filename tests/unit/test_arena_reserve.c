/* test_arena_reserve.c - goal: what is backed is backed ahead and given back, decides nothing about
 * where blocks lie, and fails where a test wants it to. Method: chosen sequences on the CPU device
 * and on the null device, whose books must be equal. */
/* rooms: engine_memory */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/memory/arena.h"
#include "tests/unit/support_scratch.h"

#define MIB (INT64_C(1) << 20)

struct fixture {
    struct device *device;
    struct arena *arena;
};

static void open_fixture(struct fixture *f, const char *device, int64_t capacity) {
    struct err e = {0};
    assert_int_equal(device_open(&f->device, device, &(struct device_options){0}, &e), STATUS_OK);
    assert_int_equal(arena_open(&f->arena, f->device, capacity, &e), STATUS_OK);
}

static void close_fixture(struct fixture *f) {
    arena_close(f->arena);
    device_close(f->device);
}

static struct arena_block *take(struct fixture *f, int64_t bytes) {
    struct err e = {0};
    struct arena_block *block = NULL;
    if (arena_alloc(f->arena, bytes, CATEGORY_ACTIVATIONS, &block, &e) != STATUS_OK)
        fail_msg("%s", e.text);
    return block;
}

static struct arena_stats stats_of(const struct fixture *f) {
    struct arena_stats s;
    arena_get_stats(f->arena, &s);
    return s;
}

static void test_arena_reserved_isBackedUntilTrimmed(void **state) {
    (void)state;
    struct fixture f;
    struct err e = {0};
    open_fixture(&f, "cpu", 64 * MIB);
    struct arena_block *const weights = take(&f, 3 * MIB);
    assert_int_equal(arena_reserve(f.arena, 31 * MIB, &e), STATUS_OK);
    assert_int_equal(stats_of(&f).reserved, 32 * MIB);
    assert_int_equal(arena_reserve(f.arena, 5 * MIB, &e), STATUS_OK);
    assert_int_equal(stats_of(&f).reserved, 32 * MIB);
    assert_int_equal(stats_of(&f).extent_peak, 3 * MIB);
    assert_int_equal(arena_reserve(f.arena, 65 * MIB, &e), STATUS_OOM);
    assert_true(arena_last_shortage(f.arena)->reservation);
    assert_int_equal(arena_trim(f.arena), 28 * MIB);
    assert_int_equal(stats_of(&f).reserved, 4 * MIB);
    arena_free(f.arena, weights);
    close_fixture(&f);
}

/* Blocks of chosen sizes come and go; the places they get, as one number. */
static uint64_t places(struct fixture *f) {
    static const int64_t SIZES[] = {5, 3, 1, 4, 2};
    struct arena_block *blocks[COUNT_OF(SIZES)];
    uint64_t hash = 0;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
            blocks[i] = take(f, SIZES[i] * MIB / 2);
            const int64_t offset = (char *)blocks[i]->data - (const char *)arena_base(f->arena);
            hash = hash * 31 + (uint64_t)offset;
        }
        arena_free(f->arena, blocks[1]);
        arena_free(f->arena, blocks[3]);
        blocks[1] = take(f, MIB);
        const int64_t offset = (char *)blocks[1]->data - (const char *)arena_base(f->arena);
        hash = hash * 31 + (uint64_t)offset;
        for (size_t i = 0; i < COUNT_OF(SIZES); i++) {
            if (i != 3) arena_free(f->arena, blocks[i]);
        }
    }
    return hash;
}

static void test_arena_reserved_decidesNoPlace(void **state) {
    (void)state;
    struct err e = {0};
    struct fixture plain, ahead, planned;
    open_fixture(&plain, "cpu", 64 * MIB);
    open_fixture(&ahead, "cpu", 64 * MIB);
    open_fixture(&planned, "null:cpu", 1 << 30);
    assert_int_equal(arena_reserve(ahead.arena, 40 * MIB, &e), STATUS_OK);
    const uint64_t wanted = places(&plain);
    assert_true(places(&ahead) == wanted && places(&planned) == wanted);
    const struct arena_stats s = stats_of(&planned);
    assert_int_equal(stats_of(&ahead).extent_peak, s.extent_peak);
    assert_int_equal(stats_of(&plain).extent_peak, s.extent_peak);
    close_fixture(&plain);
    close_fixture(&ahead);
    /* The extent is what the capacity must be, to the byte. */
    open_fixture(&ahead, "cpu", s.extent_peak);
    assert_true(places(&ahead) == wanted);
    close_fixture(&ahead);
    open_fixture(&ahead, "cpu", s.extent_peak - 512);
    struct arena_block *block = NULL;
    struct arena_block *const most = take(&ahead, s.extent_peak - 512);
    assert_int_equal(arena_alloc(ahead.arena, 512, CATEGORY_WEIGHTS, &block, &e), STATUS_OOM);
    arena_free(ahead.arena, most);
    close_fixture(&ahead);
    close_fixture(&planned);
}

static void test_arena_capacity_canBeLoweredAndRaised(void **state) {
    (void)state;
    struct fixture f;
    struct err e = {0};
    open_fixture(&f, "cpu", 16 * MIB);
    assert_int_equal(arena_reserve(f.arena, 16 * MIB, &e), STATUS_OK);
    arena_set_capacity(f.arena, 8 * MIB);
    assert_int_equal(arena_available(f.arena), 8 * MIB);
    assert_int_equal(arena_reserve(f.arena, 10 * MIB, &e), STATUS_OOM);
    arena_trim(f.arena);
    assert_int_equal(stats_of(&f).reserved, 0);
    e = (struct err){0};
    assert_int_equal(arena_reserve(f.arena, 8 * MIB, &e), STATUS_OK);
    arena_set_capacity(f.arena, 48 * MIB);
    assert_int_equal(arena_reserve(f.arena, 48 * MIB, &e), STATUS_OK);
    struct arena_block *const block = take(&f, 48 * MIB);
    memset(block->data, 1, 48 * MIB);
    arena_free(f.arena, block);
    close_fixture(&f);
}

static void test_arena_pressure_failsTheNthOnce(void **state) {
    (void)state;
    struct fixture f;
    struct err e = {0};
    open_fixture(&f, "cpu", 16 * MIB);
    setenv("PLIMSOLL_FAIL_ALLOCATION", "3", 1);
    setenv("PLIMSOLL_FAIL_RESERVATION", "2:1", 1);
    assert_int_equal(arena_begin_pressure(f.arena, 0, &e), STATUS_OK);
    for (int i = 1; i <= 5; i++) {
        struct arena_block *block = NULL;
        const enum status status = arena_alloc(f.arena, 512, CATEGORY_STAGING, &block, &e);
        assert_int_equal(status, i == 3 ? STATUS_OOM : STATUS_OK);
        if (i == 3) assert_false(arena_last_shortage(f.arena)->reservation);
        arena_free(f.arena, block);
    }
    assert_int_equal(arena_begin_pressure(f.arena, 1, &e), STATUS_OK);
    for (int i = 1; i <= 4; i++) {
        assert_int_equal(arena_reserve(f.arena, MIB, &e), i == 2 ? STATUS_OOM : STATUS_OK);
    }
    setenv("PLIMSOLL_FAIL_ALLOCATION", "soon", 1);
    e = (struct err){0};
    assert_int_equal(arena_begin_pressure(f.arena, 0, &e), STATUS_INVALID);
    unsetenv("PLIMSOLL_FAIL_ALLOCATION");
    unsetenv("PLIMSOLL_FAIL_RESERVATION");
    close_fixture(&f);
}

static void test_arena_pretendedOthers_takeFromTheCapacity(void **state) {
    (void)state;
    struct fixture f;
    struct err e = {0};
    char *folder = scratch_new();
    char *path = file_join(folder, "others");
    setenv("PLIMSOLL_PRETEND_OTHERS", path, 1);
    open_fixture(&f, "cpu", 16 * MIB);
    assert_int_equal(arena_available(f.arena), 16 * MIB);
    assert_int_equal(file_write_atomic(path, "6291456\n", 8, &e), STATUS_OK);
    assert_int_equal(arena_available(f.arena), 10 * MIB);
    assert_int_equal(arena_pretended_others(f.arena), 6 * MIB);
    assert_int_equal(arena_reserve(f.arena, 10 * MIB, &e), STATUS_OK);
    assert_int_equal(arena_reserve(f.arena, 12 * MIB, &e), STATUS_OOM);
    assert_non_null(strstr(e.text, "others hold 6.00 MiB"));
    unsetenv("PLIMSOLL_PRETEND_OTHERS");
    close_fixture(&f);
    mem_free(path);
    scratch_free(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_reserved_isBackedUntilTrimmed),
        cmocka_unit_test(test_arena_reserved_decidesNoPlace),
        cmocka_unit_test(test_arena_capacity_canBeLoweredAndRaised),
        cmocka_unit_test(test_arena_pressure_failsTheNthOnce),
        cmocka_unit_test(test_arena_pretendedOthers_takeFromTheCapacity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
