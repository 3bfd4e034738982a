/* test_queue.c - which job may start beside others, and what a job claims: the two pure rules of
 * the queue.
 *
 * rooms: server engine_contract base
 *
 * Claims are written as text, "cpu=3,cuda:0=*", so that a case reads as what it says; sizes are
 * small whole numbers, "*" is the whole device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "server/run/claim.h"
#include "server/run/queue.h"

enum { JOBS_MAX = 8, ROOM = 100 };

/* "cuda:0=30,cuda:1=*": a claim. Release with claim_release. */
static struct claim claim_of(const char *text) {
    struct claim claim = {0};
    size_t capacity = 0;
    while (*text) {
        const size_t name = strcspn(text, "="), len = strcspn(text, ",");
        char *number = mem_strndup(text + name + 1, len - name - 1);
        int64_t bytes = CLAIM_WHOLE;
        if (strcmp(number, "*") != 0)
            assert_int_equal(str_to_i64(number, "bytes", &bytes, NULL), STATUS_OK);
        mem_free(number);
        claim.parts = mem_grow(claim.parts, (size_t)claim.count, &capacity, sizeof *claim.parts);
        struct claim_part *const part = &claim.parts[claim.count++];
        *part = (struct claim_part){.bytes = bytes};
        snprintf(part->device, sizeof part->device, "%.*s", (int)name, text);
        text += len + (text[len] == ',');
    }
    return claim;
}

/* A line of claims, as they run or wait, up to NULL. */
struct line {
    struct claim claims[JOBS_MAX];
    int64_t count;
};
static void line_make(struct line *line, const char *const *texts) {
    *line = (struct line){0};
    for (; texts[line->count]; line->count++) {
        assert_true(line->count < JOBS_MAX);
        line->claims[line->count] = claim_of(texts[line->count]);
    }
}
static void line_release(struct line *line) {
    for (int64_t i = 0; i < line->count; i++) {
        claim_release(&line->claims[i]);
    }
}

struct queue_case {
    const char *running[JOBS_MAX], *waiting[JOBS_MAX];
    int64_t jobs_max, next;
};

static int64_t next_of(const struct queue_case *one) {
    static const struct queue_room rooms[] = {{"cpu", ROOM}, {"cuda:0", ROOM}, {"cuda:1", ROOM}};
    struct line running, waiting;
    line_make(&running, one->running);
    line_make(&waiting, one->waiting);
    const struct queue_view view = {running.claims, running.count, rooms, COUNT_OF(rooms)};
    const struct queue_line line = {waiting.claims, waiting.count, one->jobs_max};
    const int64_t next = queue_next(&view, &line);
    line_release(&running);
    line_release(&waiting);
    return next;
}

static void check_cases(const struct queue_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const int64_t next = next_of(&cases[i]);
        if (next != cases[i].next) print_error("case %zu: job %lld starts\n", i, (long long)next);
        assert_int_equal(next, cases[i].next);
    }
}

static void test_queue_claims_fit_or_wait(void **state) {
    (void)state;
    const struct queue_case cases[] = {
        {{NULL}, {NULL}, 4, -1},
        {{NULL}, {"cpu=*"}, 4, 0},
        {{NULL}, {"cpu=500"}, 4, 0}, /* alone: its plan is the judge */
        {{"cpu=*"}, {"cpu=1"}, 4, -1},
        {{"cpu=1"}, {"cpu=*"}, 4, -1},
        {{"cpu=60"}, {"cpu=40"}, 4, 0},
        {{"cpu=60"}, {"cpu=41"}, 4, -1},
        {{"cpu=30", "cpu=30"}, {"cpu=40"}, 4, 0},
        {{"cpu=30", "cpu=31"}, {"cpu=40"}, 4, -1},
        {{"cpu=120"}, {"cpu=1"}, 4, -1}, /* more is claimed than there is room */
        {{"cpu=9223372036854775806", "cpu=9223372036854775806"}, {"cpu=1"}, 4, -1},
        {{"cuda:7=1"}, {"cuda:7=1"}, 4, -1}, /* of a device without a room nothing is known */
        {{"cpu=*"}, {"cuda:0=*"}, 4, 0},
        {{"cuda:0=*"}, {"cuda:1=*"}, 4, 0},
        {{"cuda:0=*"}, {"cuda:0=*,cuda:1=*"}, 4, -1},
        {{"cuda:0=50,cuda:1=50"}, {"cuda:0=50,cuda:1=50"}, 4, 0},
        {{"cuda:0=50,cuda:1=50"}, {"cuda:0=50,cuda:1=51"}, 4, -1},
        {{"cpu=1"}, {""}, 4, 0}, /* a spec that cannot be read: its planner says so */
    };
    check_cases(cases, COUNT_OF(cases));
}

static void test_queue_order_nobody_is_overtaken_on_his_device(void **state) {
    (void)state;
    const struct queue_case cases[] = {
        {{NULL}, {"cpu=10", "cpu=10"}, 4, 0},
        {{"cpu=50"}, {"cpu=60", "cpu=10"}, 4, -1},
        {{"cpu=50"}, {"cpu=*", "cpu=10"}, 4, -1},
        {{"cpu=50"}, {"cpu=*", "cuda:0=*"}, 4, 1},
        {{"cuda:0=*"}, {"cuda:0=*,cuda:1=*", "cuda:1=*"}, 4, -1},
        {{"cuda:0=*"}, {"cuda:0=*", "cuda:0=*,cuda:1=*", "cuda:1=*", "cpu=*"}, 4, 3},
    };
    check_cases(cases, COUNT_OF(cases));
}

static void test_queue_places_are_counted(void **state) {
    (void)state;
    const struct queue_case cases[] = {
        {{"cpu=1"}, {"cpu=1"}, 1, -1},
        {{"cpu=1"}, {"cuda:0=*"}, 1, -1},
        {{"cpu=1"}, {"cpu=1"}, 2, 0},
        {{"cpu=1", "cpu=1", "cpu=1"}, {"cpu=1"}, 2, -1}, /* of a server that allowed more */
    };
    check_cases(cases, COUNT_OF(cases));
}

static void test_lack_names_the_device_and_the_figures(void **state) {
    (void)state;
    struct claim running = claim_of("cuda:0=10,cuda:1=70");
    struct claim wanted = claim_of("cuda:0=20,cuda:1=31");
    const struct queue_room rooms[] = {{"cuda:0", ROOM}, {"cuda:1", ROOM}};
    const struct queue_view view = {&running, 1, rooms, COUNT_OF(rooms)};
    const struct queue_lack lack = queue_lack_of(&view, &wanted);
    assert_int_equal(lack.wait, QUEUE_MEMORY);
    assert_string_equal(lack.device, "cuda:1");
    assert_int_equal(lack.claimed, 70);
    assert_int_equal(lack.room, ROOM);
    claim_release(&running);
    claim_release(&wanted);
}

static void test_why_tells_what_holds_each_one_back(void **state) {
    (void)state;
    struct claim running = claim_of("cuda:0=70");
    struct claim claims[] = {claim_of("cuda:0=31,cuda:1=1"), claim_of("cuda:1=1"),
                             claim_of("cpu=*")};
    const struct queue_room rooms[] = {{"cuda:0", ROOM}};
    const struct queue_view view = {&running, 1, rooms, COUNT_OF(rooms)};
    struct queue_line line = {claims, COUNT_OF(claims), 2};
    assert_int_equal(queue_why(&view, &line, 0).wait, QUEUE_MEMORY);
    assert_string_equal(queue_why(&view, &line, 0).device, "cuda:0");
    assert_int_equal(queue_why(&view, &line, 1).wait, QUEUE_BEHIND);
    assert_string_equal(queue_why(&view, &line, 1).device, "cuda:1");
    assert_int_equal(queue_why(&view, &line, 2).wait, QUEUE_STARTS);
    line.jobs_max = 1;
    for (int64_t i = 0; i < line.count; i++) {
        assert_int_equal(queue_why(&view, &line, i).wait, QUEUE_PLACES);
        claim_release(&claims[i]);
    }
    claim_release(&running);
}

/* ---- what a job claims ---- */

static int64_t total_of(const char *device, void *context) {
    (void)context;
    return strcmp(device, "cuda:1") == 0 ? -1 : 1000;
}

static void check_claim(const struct claim_terms *terms, const struct claim_news *news,
                        const char *wanted) {
    struct claim claim, right = claim_of(wanted);
    claim_make(&claim, terms, news, (struct claim_totals){total_of, NULL});
    assert_int_equal(claim.count, right.count);
    for (int64_t i = 0; i < claim.count; i++) {
        assert_string_equal(claim.parts[i].device, right.parts[i].device);
        assert_int_equal(claim.parts[i].bytes, right.parts[i].bytes);
    }
    claim_release(&claim);
    claim_release(&right);
}

static void test_claim_of_terms(void **state) {
    (void)state;
    const struct claim_news none = {.capacity = -1};
    const struct {
        struct claim_terms terms;
        const char *claim;
    } cases[] = {
        {{"cpu", 1, {0}}, "cpu=*"},
        {{"cpu", 1, {.bytes = 300}}, "cpu=300"},
        {{"cpu", 1, {.share = 0.25}}, "cpu=250"},
        {{"cpu", 1, {.share = 1}}, "cpu=*"},
        {{"cpu", 3, {.bytes = 300}}, "cpu=900"}, /* each of the ranks has the cap */
        {{"cpu", 4, {0}}, "cpu=*"},
        {{"cuda", 1, {.bytes = 300}}, "cuda:0=300"},
        {{"cuda", 2, {.bytes = 300}}, "cuda:0=300,cuda:1=300"},
        {{"cuda", 2, {0}}, "cuda:0=*,cuda:1=*"},
        {{"cuda", 2, {.share = 0.5}}, "cuda:0=500,cuda:1=*"}, /* half of what is unknown */
        {{"cuda:0", 2, {.bytes = 300}}, "cuda:0=600"},
        {{"cpu", 2, {.bytes = INT64_MAX / 2 + 1}}, "cpu=*"},
        {{"", 0, {0}}, ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        check_claim(&cases[i].terms, &none, cases[i].claim);
    }
}

static void test_claim_changed_cap_counts_when_it_is_safe(void **state) {
    (void)state;
    const struct claim_terms capped = {"cpu", 1, {.bytes = 500}}, free = {"cpu", 1, {0}};
    const struct {
        const struct claim_terms *terms;
        struct claim_news news;
        const char *claim;
    } cases[] = {
        {&capped, {true, {.bytes = 200}, 500}, "cpu=500"}, /* lowered; the run is not there yet */
        {&capped, {true, {.bytes = 200}, 200}, "cpu=200"},
        {&capped, {true, {.bytes = 200}, -1}, "cpu=500"},  /* it begins with the spec's */
        {&capped, {true, {.bytes = 800}, 500}, "cpu=800"}, /* raised */
        {&capped, {true, {.bytes = 800}, -1}, "cpu=800"},
        {&capped, {true, {.share = 0.9}, 500}, "cpu=900"},
        {&capped, {true, {0}, 500}, "cpu=*"}, /* taken away */
        {&free, {true, {.bytes = 200}, -1}, "cpu=*"},
        {&free, {true, {.bytes = 200}, 200}, "cpu=200"},
        {&free, {false, {0}, 200}, "cpu=*"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        check_claim(cases[i].terms, &cases[i].news, cases[i].claim);
    }
}

static void test_terms_are_read_from_a_spec(void **state) {
    (void)state;
    const struct claim_terms terms =
        claim_terms_of("{\"model\":\"m\",\"data\":{\"train_files\":[\"f\"]},\"device\":\"cuda\","
                       "\"parallel\":{\"ranks\":2},\"memory\":{\"cap\":\"40%\"}}");
    assert_string_equal(terms.device, "cuda");
    assert_int_equal(terms.ranks, 2);
    assert_true(terms.cap.share > 0.399 && terms.cap.share < 0.401);
    assert_int_equal(claim_terms_of("{broken").ranks, 0);
    assert_int_equal(claim_terms_of("{\"memory\":7}").ranks, 0);
    assert_int_equal(claim_capacity_told("{\"capacity\":123}"), 123);
    assert_int_equal(claim_capacity_told("{\"capacity\":null}"), -1);
    assert_int_equal(claim_capacity_told(NULL), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue_claims_fit_or_wait),
        cmocka_unit_test(test_queue_order_nobody_is_overtaken_on_his_device),
        cmocka_unit_test(test_queue_places_are_counted),
        cmocka_unit_test(test_lack_names_the_device_and_the_figures),
        cmocka_unit_test(test_why_tells_what_holds_each_one_back),
        cmocka_unit_test(test_claim_of_terms),
        cmocka_unit_test(test_claim_changed_cap_counts_when_it_is_safe),
        cmocka_unit_test(test_terms_are_read_from_a_spec),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
