/* test_links.c - seconds of exchange: rings by hand, machines that a group lies on, and the books
 * of planned worlds.
 *
 * Expected numbers are worked out from the formulas in the header, never read off the code; the one
 * measured speed is held against what two cards did (BENCHMARKS.md, gpus).
 *
 * rooms: engine_train engine_dist engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/dist/group.h"
#include "engine/spec.h"
#include "engine/train/links.h"

static const struct link_speed FAST = {"fast", 100e9, 0, "measured"}, SLOW = {"slow", 10e9, 0, ""};

static struct links plain_links(int64_t per_node) {
    return (struct links){.node = FAST, .network = SLOW, .ranks_per_node = per_node};
}

static struct comm_traffic row_of(enum traffic_kind kind, int64_t stride, int64_t world,
                                  double bytes) {
    return (struct comm_traffic){
        .kind = kind, .stride = stride, .world = world, .bytes = bytes, .calls = 1};
}

/* Twenty microseconds are the call's own. */
static void assert_seconds(const struct links *links, const struct comm_traffic *row,
                           double expected) {
    const double seconds = links_seconds(links, row) - 20e-6;
    assert_true(fabs(seconds - expected) <= 1e-9 * fmax(1, expected));
}

static void test_links_of_one_machine_are_rings_over_its_link(void **state) {
    (void)state;
    const struct links links = plain_links(8);
    struct comm_traffic row = row_of(TRAFFIC_ALL_REDUCE, 1, 4, 100e9);
    assert_seconds(&links, &row, 2 * 0.75);
    row.kind = TRAFFIC_ALL_GATHER;
    assert_seconds(&links, &row, 0.75);
    row.kind = TRAFFIC_REDUCE_SCATTER;
    assert_seconds(&links, &row, 0.75);
    row.kind = TRAFFIC_MESSAGE;
    assert_seconds(&links, &row, 1);
    row.world = 1;
    assert_true(links_seconds(&links, &row) == 0);
}

static void test_links_machines_are_those_that_members_lie_on(void **state) {
    (void)state;
    const struct links links = plain_links(8);
    const struct {
        int64_t first, stride, world, nodes;
    } cases[] = {{0, 1, 8, 1}, {8, 1, 8, 1}, {0, 1, 16, 2},  {6, 1, 2, 1},
                 {7, 1, 2, 2}, {0, 2, 8, 2}, {3, 8, 64, 64}, {0, 4, 2, 1}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct comm_traffic row = {
            .first = cases[i].first, .stride = cases[i].stride, .world = cases[i].world};
        assert_int_equal(links_nodes(&links, &row), cases[i].nodes);
    }
}

static void test_links_between_machines_have_a_rail_for_each_rank(void **state) {
    (void)state;
    const struct links links = plain_links(4);
    struct comm_traffic row = row_of(TRAFFIC_ALL_GATHER, 1, 8, 80e9);
    /* Four network cards a machine: 40e9 bytes a second. */
    assert_seconds(&links, &row, 7.0 / 8 * 80 / 40);
    /* One member a machine: one card. */
    row = row_of(TRAFFIC_ALL_GATHER, 4, 8, 80e9);
    assert_seconds(&links, &row, 7.0 / 8 * 80 / 10);
    /* Never faster than the machine's own link. */
    const struct links wide = plain_links(32);
    row = row_of(TRAFFIC_ALL_GATHER, 1, 64, 64e9);
    assert_seconds(&wide, &row, 63.0 / 64 * 64 / 100);
    row = row_of(TRAFFIC_MESSAGE, 4, 2, 80e9);
    assert_seconds(&links, &row, 8);
}

static void test_links_hops_add_to_every_call(void **state) {
    (void)state;
    struct links links = plain_links(4);
    links.node.hop_seconds = 1e-3;
    links.network.hop_seconds = 1e-2;
    struct comm_traffic row = row_of(TRAFFIC_ALL_GATHER, 1, 4, 0);
    assert_seconds(&links, &row, 3e-3);
    row = row_of(TRAFFIC_ALL_GATHER, 1, 12, 0);
    assert_seconds(&links, &row, 3 * 1e-2 + 9 * 1e-3);
}

static void test_links_time_tells_what_runs_beside_computing(void **state) {
    (void)state;
    const struct links links = plain_links(4);
    struct traffic_book book = {.count = 2};
    book.rows[0] = row_of(TRAFFIC_ALL_GATHER, 1, 4, 100e9);
    book.rows[0].aside = true;
    book.rows[1] = row_of(TRAFFIC_ALL_REDUCE, 4, 2, 10e9);
    const struct exchange_time time = links_time(&links, &book);
    assert_true(fabs(time.aside - 0.75) < 1e-4 && fabs(time.plain - 1) < 1e-4);
    assert_true(fabs(time.across - 1) < 1e-4);
    assert_true(time.bytes == 75e9 + 10e9);
}

static void test_links_two_h200_sum_the_gradients_as_measured(void **state) {
    (void)state;
    const struct links links = links_find("h200", "auto", 8);
    assert_string_equal(links.node.from, "measured");
    assert_string_equal(links.network.from, "assumed");
    const struct comm_traffic row = row_of(TRAFFIC_ALL_REDUCE, 1, 2, 4 * 1.5437e9);
    const double measured = 8192 * (2 / 75773.0 - 1 / 42166.0);
    assert_true(fabs(links_seconds(&links, &row) / measured - 1) < 0.05);
    /* And 8 to 512 MiB alone (links): microseconds as measured. */
    const struct { double mib, us; } sums[] = {{8, 58.5}, {64, 266.2}, {512, 1766}};
    for (size_t i = 0; i < COUNT_OF(sums); i++) {
        const struct comm_traffic sum = row_of(TRAFFIC_ALL_REDUCE, 1, 2, sums[i].mib * (1 << 20));
        assert_true(fabs(1e6 * links_seconds(&links, &sum) / sums[i].us - 1) < 0.2);
    }
    assert_string_equal(links_find("h100", "auto", 8).node.from, "published");
}

/* Every choice of the spec has a speed. */
static void test_links_know_every_network_of_the_spec(void **state) {
    (void)state;
    int64_t count = 0;
    const struct spec_key *keys = spec_keys(&count);
    while (strcmp(keys->path, "parallel.network") != 0) {
        keys++;
    }
    char *const choices = mem_strdup(keys->choices);
    for (char *at = choices, *next = at; at; at = next) {
        next = strchr(at, '|');
        if (next) *next++ = 0;
        const struct links links = links_find(NULL, at, 8);
        assert_true(links.network.bytes_per_second > 1e9 && links.network.name[0]);
        assert_string_equal(links.node.name, "PCI Express");
    }
    mem_free(choices);
}

static void test_links_books_are_differences(void **state) {
    (void)state;
    struct comm *comm = NULL;
    struct err e = {0};
    const struct comm_members all = {0, 1, 4};
    const struct traffic_book nothing = {.count = 0};
    struct comm_group group;
    assert_int_equal(comm_open_planned(&comm, 0, 4, &e), STATUS_OK);
    assert_int_equal(comm_group_open(&group, comm, NULL, &all, &e), STATUS_OK);
    const struct comm_buffer buffer = {.dtype = DTYPE_F32, .count = 1000};
    assert_int_equal(comm_all_gather(&group, NULL, &buffer, &e), STATUS_OK);
    const struct traffic_book then = traffic_since(comm, &nothing);
    assert_int_equal(comm_all_gather(&group, NULL, &buffer, &e), STATUS_OK);
    assert_int_equal(comm_all_reduce(&group, NULL, NULL, &buffer, &e), STATUS_OK);
    const struct traffic_book since = traffic_since(comm, &then);
    /* A sum that nobody makes is counted as its two halves. */
    assert_int_equal(since.count, 2);
    assert_int_equal(since.rows[0].kind, TRAFFIC_ALL_GATHER);
    assert_true(since.rows[0].bytes == 8000 && since.rows[0].calls == 2);
    assert_int_equal(since.rows[1].kind, TRAFFIC_REDUCE_SCATTER);
    assert_true(since.rows[1].bytes == 4000 && since.rows[1].calls == 1);
    comm_group_close(&group);
    comm_close(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links_of_one_machine_are_rings_over_its_link),
        cmocka_unit_test(test_links_machines_are_those_that_members_lie_on),
        cmocka_unit_test(test_links_between_machines_have_a_rail_for_each_rank),
        cmocka_unit_test(test_links_hops_add_to_every_call),
        cmocka_unit_test(test_links_time_tells_what_runs_beside_computing),
        cmocka_unit_test(test_links_two_h200_sum_the_gradients_as_measured),
        cmocka_unit_test(test_links_know_every_network_of_the_spec),
        cmocka_unit_test(test_links_books_are_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
