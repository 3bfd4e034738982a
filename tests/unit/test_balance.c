/* test_balance.c - who holds up a step: named with its cause, and never for waiting.
 *
 * Step events are written by hand, as rank 0 writes them.
 *
 * rooms: server engine_contract base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "server/api/balance.h"

static const struct balance_stages PLAIN = {4, 1}, STAGED = {4, 2};

static void must_say(const char *ranks, const struct balance_stages *stages, const char *cause,
                     const char *text) {
    struct err e = {0};
    cJSON *step = NULL;
    assert_int_equal(json_parse(ranks, strlen(ranks), "a step", &step, &e), STATUS_OK);
    cJSON *const balance = balance_of_step(step, stages);
    if (!text) {
        assert_true(cJSON_IsNull(balance));
    } else {
        const cJSON *const told = json_member(balance, "cause");
        if (cause) assert_string_equal(told->valuestring, cause);
        if (!cause) assert_true(cJSON_IsNull(told));
        assert_string_equal(json_member(balance, "text")->valuestring, text);
    }
    cJSON_Delete(balance);
    cJSON_Delete(step);
}

#define RANK(tokens, seconds, waited)                                                              \
    "{\"tokens\":" #tokens ",\"seconds\":" #seconds ",\"waited_seconds\":" #waited "}"

static void test_balance_even_ranks_are_even_whoever_waits(void **state) {
    (void)state;
    must_say("{\"ranks\":[" RANK(100, 1.0, 0.5) "," RANK(100, 1.05, 0.0) "]}", &PLAIN, NULL,
             "All 2 ranks compute about as long.");
    /* Milliseconds are nothing. */
    must_say("{\"ranks\":[" RANK(100, 0.001, 0) "," RANK(100, 0.005, 0) "]}", &PLAIN, NULL,
             "All 2 ranks compute about as long.");
}

static void test_balance_more_tokens_are_named_before_the_device(void **state) {
    (void)state;
    must_say("{\"ranks\":[" RANK(100, 1, 1) "," RANK(200, 2, 0) "," RANK(100, 1, 1) "]}", &PLAIN,
             "tokens",
             "Rank 1 computes 2 s of a step, the others 1 s on average: it has 2.00 times their "
             "tokens.");
    must_say("{\"ranks\":[" RANK(100, 1, 1) "," RANK(101, 2, 0) "," RANK(100, 1, 1) "]}", &PLAIN,
             "device",
             "Rank 1 computes 2 s of a step, the others 1 s on average: with as many tokens, so "
             "its device is slower, or others use it too.");
}

static void test_balance_ranks_that_share_rows_count_them_once(void **state) {
    (void)state;
    must_say(
        "{\"ranks\":[" RANK(100, 2, 0) "," RANK(0, 1, 1) "," RANK(100, 1, 1) "," RANK(0, 1, 1) "]}",
        &PLAIN, "device",
        "Rank 0 computes 2 s of a step, the others 1 s on average: with as many tokens, so "
        "its device is slower, or others use it too.");
}

static void test_balance_a_stage_is_told_as_one(void **state) {
    (void)state;
    must_say("{\"ranks\":[" RANK(0, 1, 1) "," RANK(0, 1, 1) "," RANK(100, 2, 0) "," RANK(100, 1.9,
                                                                                         0) "]}",
             &STAGED, "stage",
             "Rank 2 computes 2 s of a step, the others 1.3 s on average: it is in stage 2 of 2, "
             "whose layers take longest; the other stages wait for it.");
}

static void test_balance_what_is_not_known_is_not_judged(void **state) {
    (void)state;
    must_say("{\"ranks\":[" RANK(100, 1, null) "," RANK(100, 2, null) "]}", &PLAIN, NULL, NULL);
    must_say("{\"ranks\":[" RANK(100, 1, 0) "]}", &PLAIN, NULL, NULL);
    must_say("{}", &PLAIN, NULL, NULL);
    const struct balance_stages none = balance_stages_of(NULL);
    assert_int_equal(none.stages, 1);
    assert_int_equal(balance_stage(&STAGED, 1), 0);
    assert_int_equal(balance_stage(&STAGED, 2), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_balance_even_ranks_are_even_whoever_waits),
        cmocka_unit_test(test_balance_more_tokens_are_named_before_the_device),
        cmocka_unit_test(test_balance_ranks_that_share_rows_count_them_once),
        cmocka_unit_test(test_balance_a_stage_is_told_as_one),
        cmocka_unit_test(test_balance_what_is_not_known_is_not_judged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
