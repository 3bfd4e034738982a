/* test_server_rules.c - the pure decisions of the server: who may talk to it, and what the end of a
 * rank means for its job.
 *
 * rooms: server engine_contract base
 *
 * Tables of cases; no sockets and no processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "server/run/outcome.h"
#include "server/run/results.h"
#include "server/web/guard.h"
#include "server/web/http.h"

static void test_host_foreign_name_is_refused(void **state) {
    (void)state;
    struct guard guard = {0};
    guard.hosts[guard.host_count++] = mem_strdup("studio.example");
    const char *const good[] = {NULL,       "localhost", "LOCALHOST:80", "127.0.0.1:8080",
                                "10.1.2.3", "[::1]:80",  "a.localhost",  "studio.example:8080"};
    const char *const bad[] = {"evil.example",           "localhost.evil.example",
                               "127.0.0.1.evil.example", "",
                               "notlocalhost",           "studio.example.evil"};
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        assert_true(guard_host_fits(&guard, good[i]));
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_false(guard_host_fits(&guard, bad[i]));
    }
    guard_release(&guard);
}

static void test_origin_of_another_page_is_refused(void **state) {
    (void)state;
    assert_true(guard_origin_fits(NULL, NULL, "127.0.0.1:8080"));
    assert_true(guard_origin_fits("http://127.0.0.1:8080", "same-origin", "127.0.0.1:8080"));
    assert_false(guard_origin_fits("http://127.0.0.1:9090", NULL, "127.0.0.1:8080"));
    assert_false(guard_origin_fits("null", NULL, "127.0.0.1:8080"));
    assert_false(guard_origin_fits("http://evil.example", NULL, "127.0.0.1:8080"));
    assert_false(guard_origin_fits(NULL, "cross-site", "127.0.0.1:8080"));
}

static void test_key_only_the_right_one_fits(void **state) {
    (void)state;
    struct guard guard = {0};
    assert_true(guard_key_fits(&guard, NULL, NULL));
    guard.keys[guard.key_count++] = mem_strdup("abc");
    guard.keys[guard.key_count++] = mem_strdup("long-key");
    assert_true(guard_key_fits(&guard, "Bearer abc", NULL));
    assert_true(guard_key_fits(&guard, "bearer long-key", NULL));
    assert_true(guard_key_fits(&guard, NULL, "x=1; plimsoll_key=abc; y=2"));
    const char *const wrong[] = {NULL,        "abc",         "Bearer ",
                                 "Bearer ab", "Bearer abcd", "Bearer abcabc"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_false(guard_key_fits(&guard, wrong[i], NULL));
    }
    assert_false(guard_key_fits(&guard, NULL, "plimsoll_key="));
    assert_false(guard_key_fits(&guard, NULL, "not_plimsoll_key=abc"));
    guard_release(&guard);
}

static void test_decode_malformed_escape_is_refused(void **state) {
    (void)state;
    struct str out = {0};
    assert_true(http_decode("a%2Fb%c3%a9+", &out));
    assert_string_equal(str_text(&out), "a/b\xC3\xA9+");
    const char *const bad[] = {"%", "%2", "%zz", "%2g", "a%00b"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_false(http_decode(bad[i], &out));
    }
    str_release(&out);
}

/* An event as text (NULL: none), how the process ended, and what that means. */
struct outcome_case {
    const char *event;
    struct process_end end;
    enum outcome expected;
};

static void test_outcome_event_is_believed_before_exit_code(void **state) {
    (void)state;
    const char *const done = "{\"kind\":\"done\",\"outcome\":\"succeeded\"}";
    const char *const stopped = "{\"kind\":\"done\",\"outcome\":\"stopped\"}";
    const char *const error = "{\"kind\":\"error\",\"message\":\"x\"}";
    const struct outcome_case cases[] = {
        {done, {PROCESS_EXITED, 0}, OUTCOME_SUCCEEDED},
        {done, {PROCESS_GONE, 0}, OUTCOME_SUCCEEDED},
        {done, {PROCESS_SIGNALED, 9}, OUTCOME_SUCCEEDED},
        {stopped, {PROCESS_EXITED, RUN_EXIT_STOPPED}, OUTCOME_STOPPED},
        {stopped, {PROCESS_GONE, 0}, OUTCOME_STOPPED},
        {error, {PROCESS_EXITED, RUN_EXIT_FAILED}, OUTCOME_FAILED},
        {error, {PROCESS_GONE, 0}, OUTCOME_FAILED},
        {NULL, {PROCESS_EXITED, RUN_EXIT_FAILED}, OUTCOME_FAILED},
        {NULL, {PROCESS_EXITED, RUN_EXIT_USAGE}, OUTCOME_FAILED},
        {NULL, {PROCESS_EXITED, RUN_EXIT_STOPPED}, OUTCOME_STOPPED},
        {NULL, {PROCESS_EXITED, 0}, OUTCOME_CRASHED}, /* nothing was said: nothing can be trusted */
        {NULL, {PROCESS_EXITED, MEM_EXIT_CODE}, OUTCOME_CRASHED},
        {NULL, {PROCESS_SIGNALED, 11}, OUTCOME_CRASHED},
        {NULL, {PROCESS_GONE, 0}, OUTCOME_CRASHED},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        cJSON *event = cases[i].event ? cJSON_Parse(cases[i].event) : NULL;
        assert_int_equal(outcome_of(event, cases[i].end), cases[i].expected);
        cJSON_Delete(event);
    }
}

static void test_verdict_crashes_are_bounded_and_wishes_win(void **state) {
    (void)state;
    assert_int_equal(verdict_of(OUTCOME_SUCCEEDED, "cancel", 0), VERDICT_SUCCEED);
    assert_int_equal(verdict_of(OUTCOME_STOPPED, "cancel", 0), VERDICT_CANCEL);
    assert_int_equal(verdict_of(OUTCOME_CRASHED, "cancel", 9), VERDICT_CANCEL);
    assert_int_equal(verdict_of(OUTCOME_FAILED, "cancel", 0), VERDICT_CANCEL);
    assert_int_equal(verdict_of(OUTCOME_STOPPED, "pause", 0), VERDICT_PAUSE);
    assert_int_equal(verdict_of(OUTCOME_CRASHED, "pause", 9), VERDICT_PAUSE);
    assert_int_equal(verdict_of(OUTCOME_FAILED, "pause", 0), VERDICT_FAIL);
    assert_int_equal(verdict_of(OUTCOME_FAILED, NULL, 0), VERDICT_FAIL);
    assert_int_equal(verdict_of(OUTCOME_STOPPED, NULL, 0), VERDICT_RESTART);
    assert_int_equal(verdict_of(OUTCOME_STOPPED, NULL, CRASHES_MAX + 1), VERDICT_FAIL);
    assert_int_equal(verdict_of(OUTCOME_CRASHED, NULL, CRASHES_MAX), VERDICT_RESTART);
    assert_int_equal(verdict_of(OUTCOME_CRASHED, NULL, CRASHES_MAX + 1), VERDICT_FAIL);
}

static void test_log_flood_is_bounded_and_readable(void **state) {
    (void)state;
    char id[64];
    store_new_id(id, "/tmp/test-log-");
    const char text[] = "first\nprogress 1\rprogress 2\rprogress 3\n<b>\x1b[31m\xff\n";
    struct err e = {0};
    struct str tail = {0};
    assert_int_equal(file_write_atomic(id, text, sizeof text - 1, &e), STATUS_OK);
    results_log_bound(id, 1000);
    results_log_tail(id, 1000, &tail);
    assert_string_equal(str_text(&tail), "first\nprogress 3\n<b>[31m\xEF\xBF\xBD\n");
    str_clear(&tail);
    results_log_bound(id, 10);
    results_log_tail(id, 1000, &tail);
    assert_non_null(strstr(str_text(&tail), "bytes of log were dropped"));
    str_release(&tail);
    assert_int_equal(file_remove_all(id, &e), STATUS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_foreign_name_is_refused),
        cmocka_unit_test(test_origin_of_another_page_is_refused),
        cmocka_unit_test(test_key_only_the_right_one_fits),
        cmocka_unit_test(test_decode_malformed_escape_is_refused),
        cmocka_unit_test(test_outcome_event_is_believed_before_exit_code),
        cmocka_unit_test(test_log_flood_is_bounded_and_readable),
        cmocka_unit_test(test_verdict_crashes_are_bounded_and_wishes_win),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
