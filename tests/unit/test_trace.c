/* test_trace.c - goal: a trace keeps the last events of an arena in a room that never grows (case
 * M40), agrees with the arena at its end, and becomes a timeline and a summary whose numbers are
 * the arena's. Method: short chosen sequences, and one that is far longer than the ring. */
/* rooms: engine_memory */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "engine/memory/snapshot.h"
#include "engine/memory/summary.h"

enum { CAPACITY = 64 << 20 };

struct fixture {
    struct device *device;
    struct arena *arena;
};

static int setup(void **state) {
    struct fixture *const f = mem_new(1, sizeof *f);
    struct err e = {0};
    assert_int_equal(device_open(&f->device, "null:cpu", &(struct device_options){0}, &e),
                     STATUS_OK);
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

static void test_trace_begins_with_what_is_held(void **state) {
    struct fixture *const f = *state;
    struct arena_block *const weights = take(f, 4000, CATEGORY_WEIGHTS);
    struct trace *const trace = trace_new(100);
    trace_begin(trace, f->arena);
    arena_enter(f->arena, PHASE_FORWARD);
    arena_set_label(f->arena, (struct arena_label){"mlp", 2});
    struct arena_block *const x = take(f, 1000, CATEGORY_ACTIVATIONS);
    arena_free(f->arena, x);
    trace_end(trace);
    arena_free(f->arena, take(f, 1000, CATEGORY_ACTIVATIONS)); /* nobody records this */
    assert_int_equal(trace_count(trace), 4);
    assert_int_equal(trace_at(trace, 0)->event.action, ARENA_BACK);
    assert_true(trace_at(trace, 1)->held);
    assert_int_equal(trace_at(trace, 1)->event.requested, 4000);
    assert_int_equal(trace_at(trace, 1)->event.category, CATEGORY_WEIGHTS);
    assert_false(trace_at(trace, 2)->held);
    assert_int_equal(trace_at(trace, 2)->event.phase, PHASE_FORWARD);
    assert_string_equal(trace_at(trace, 2)->event.label.what, "mlp");
    assert_int_equal(trace_at(trace, 3)->event.action, ARENA_FREE);
    assert_int_equal(trace_at(trace, 3)->event.offset, trace_at(trace, 2)->event.offset);
    assert_int_equal(trace_dropped(trace), 0);
    trace_free(trace);
    arena_free(f->arena, weights);
}

/* M40: recording for ever takes the room of the ring, and keeps the newest. */
static void test_trace_full_ring_keeps_the_newest(void **state) {
    struct fixture *const f = *state;
    enum { RING = 64, ROUNDS = 10000 };
    struct trace *const trace = trace_new(RING);
    trace_begin(trace, f->arena);
    for (int i = 1; i <= ROUNDS; i++) {
        arena_free(f->arena, take(f, i, CATEGORY_ACTIVATIONS));
    }
    trace_end(trace);
    assert_int_equal(trace_count(trace), RING);
    assert_int_equal(trace_dropped(trace), 2 * ROUNDS + 1 - RING); /* and one for the pages */
    assert_int_equal(trace_at(trace, RING - 1)->event.requested, ROUNDS);
    assert_int_equal(trace_at(trace, 0)->event.requested, ROUNDS - RING / 2 + 1);
    for (int i = 1; i < RING; i++) {
        assert_true(trace_at(trace, i)->time_ns >= trace_at(trace, i - 1)->time_ns);
    }
    trace_free(trace);
}

static int64_t column(const cJSON *json, const char *name, int index) {
    return (int64_t)cJSON_GetArrayItem(json_member(json_member(json, "columns"), name), index)
        ->valuedouble;
}

static void test_timeline_replayed_ends_at_what_is_allocated(void **state) {
    struct fixture *const f = *state;
    struct arena_block *kept[8];
    struct trace *const trace = trace_new(1000);
    struct arena_block *const weights = take(f, 1 << 20, CATEGORY_WEIGHTS);
    trace_begin(trace, f->arena);
    for (int i = 0; i < 8; i++) {
        arena_set_label(f->arena, (struct arena_label){"attention", i / 4});
        kept[i] = take(f, 1000 * (i + 1), CATEGORY_ACTIVATIONS);
        arena_free(f->arena, take(f, 5000, CATEGORY_STAGING));
    }
    trace_end(trace);
    struct arena_stats stats;
    arena_get_stats(f->arena, &stats);
    const struct snapshot_place place = {.rank = 3, .step = 7};
    cJSON *const made = timeline_to_json(trace, &place);
    struct str text = {0};
    struct err e = {0};
    cJSON *json = NULL;
    json_append(&text, made);
    assert_int_equal(json_parse(str_text(&text), text.len, "timeline", &json, &e), STATUS_OK);
    int64_t allocated = 0, reserved = 0;
    for (int i = 0; i < trace_count(trace); i++) {
        const int64_t bytes = column(json, "bytes", i), action = column(json, "action", i);
        if (action == ARENA_ALLOC) allocated += bytes;
        if (action == ARENA_FREE) allocated -= bytes;
        if (action == ARENA_BACK) reserved += bytes;
    }
    assert_int_equal(allocated, stats.allocated);
    assert_int_equal(reserved, stats.reserved);
    assert_int_equal(json_member(json, "step")->valueint, 7);
    const cJSON *const labels = json_member(json, "labels");
    assert_int_equal(cJSON_GetArraySize(labels), 3); /* none, and two layers */
    assert_string_equal(cJSON_GetArrayItem(labels, 2)->valuestring, "layer 1 attention");
    cJSON_Delete(json);
    cJSON_Delete(made);
    str_release(&text);
    trace_free(trace);
    for (int i = 0; i < 8; i++) {
        arena_free(f->arena, kept[i]);
    }
    arena_free(f->arena, weights);
}

static void test_summary_is_the_classic_table(void **state) {
    (void)state;
    const struct arena_stats stats = {.allocated = 13975LL << 20,
                                      .allocated_peak = 18803LL << 20,
                                      .allocated_total = 2142LL << 30,
                                      .requested = 1000,
                                      .requested_peak = 768 << 10,
                                      .reserved = 1LL << 40,
                                      .reserved_peak = 1LL << 40,
                                      .reserved_total = 1LL << 40,
                                      .live = 12,
                                      .live_peak = 749999,
                                      .live_total = 750000,
                                      .failures = 2};
    struct str text = {0};
    summary_append(&text, &stats, 0);
    const char *const rows[] = {
        "|                      Plimsoll memory summary, rank 0                      |\n",
        "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n",
        "| Allocated memory      |  13975 MiB |  18803 MiB |   2142 GiB |   2128 GiB |\n",
        "| Requested memory      |   1000 B   |    768 KiB |            |            |\n",
        "| Reserved memory       |   1024 GiB |   1024 GiB |   1024 GiB |      0 B   |\n",
        "| Allocations           |      12    |  749999    |     750 K  |  749988    |\n",
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (!strstr(str_text(&text), rows[i]))
            fail_msg("not there: %sin:\n%s", rows[i], str_text(&text));
    }
    for (const char *at = str_text(&text); *at; at = strchr(at, '\n') + 1) {
        assert_int_equal(strcspn(at, "\n"), 77);
    }
    str_release(&text);
}

int main(void) {
#define WITH_ARENA(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_ARENA(test_trace_begins_with_what_is_held),
        WITH_ARENA(test_trace_full_ring_keeps_the_newest),
        WITH_ARENA(test_timeline_replayed_ends_at_what_is_allocated),
        cmocka_unit_test(test_summary_is_the_classic_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
