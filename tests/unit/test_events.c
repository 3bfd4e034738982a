/* test_events.c - the event stream: what is written is read, whole lines only, whatever else is in
 * the file.
 *
 * Method: files are damaged the way crashes damage them (half lines, garbage, lines too long), then
 * read on. rooms: engine_contract base */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/events.h"
#include "tests/unit/support_scratch.h"

static const char NAME[] = "events.0.jsonl";
static const char LINE[] = "{\"time_ms\":1,\"rank\":0,\"kind\":\"log\",\"level\":\"info\"}\n";

/* Reads one event and returns its kind; EVENT_KIND_COUNT when there is none. */
static enum event_kind next(struct event_reader *r, int64_t *skipped) {
    struct err e = {0};
    cJSON *event = NULL;
    assert_int_equal(event_reader_next(r, &event, skipped, &e), STATUS_OK);
    if (!event) return EVENT_KIND_COUNT;
    const enum event_kind kind = event_kind_parse(json_member(event, "kind")->valuestring);
    cJSON_Delete(event);
    return kind;
}

static void test_events_written_areReadInOrder(void **state) {
    (void)state;
    char *run = scratch_new();
    struct err e = {0};
    struct event_log log = {0};
    assert_int_equal(event_log_open(&log, run, 0, &e), STATUS_OK);
    for (int i = 0; i < EVENT_KIND_COUNT; i++) {
        cJSON *fields = cJSON_CreateObject();
        event_add_number(fields, "loss", i == 2 ? NAN : i == 3 ? -INFINITY : i);
        assert_int_equal(event_write(&log, (enum event_kind)i, fields, &e), STATUS_OK);
    }
    assert_int_equal(event_write(&log, EVENT_DONE, NULL, &e), STATUS_OK);
    struct event_reader r;
    event_reader_open(&r, run, 0, 0);
    int64_t skipped = 0;
    cJSON *event = NULL;
    for (int i = 0; i < EVENT_KIND_COUNT; i++) {
        assert_int_equal(event_reader_next(&r, &event, &skipped, &e), STATUS_OK);
        assert_string_equal(json_member(event, "kind")->valuestring,
                            event_kind_name((enum event_kind)i));
        if (i == 2 || i == 3) {
            assert_true(cJSON_IsNull(json_member(event, "loss")));
            assert_string_equal(json_member(json_member(event, "nonfinite"), "loss")->valuestring,
                                i == 2 ? "nan" : "-inf");
        }
        cJSON_Delete(event);
    }
    assert_int_equal(next(&r, &skipped), EVENT_DONE);
    assert_int_equal(next(&r, &skipped), EVENT_KIND_COUNT);
    assert_int_equal(skipped, 0);
    const int64_t offset = r.offset;
    event_reader_close(&r);
    event_write(&log, EVENT_LOG, NULL, &e);
    event_reader_open(&r, run, 0, offset);
    assert_int_equal(next(&r, &skipped), EVENT_LOG);
    event_reader_close(&r);
    event_log_close(&log);
    assert_int_equal(event_write(&log, EVENT_LOG, NULL, &e), STATUS_OK);
    scratch_free(run);
}

static void test_events_halfLine_isCutAndReplaced(void **state) {
    (void)state;
    char *run = scratch_new();
    struct str text = {0};
    str_append(&text, LINE);
    str_append(&text, "{\"time_ms\":2,\"ra");
    mem_free(scratch_write(run, NAME, text.data, text.len));
    struct event_reader r;
    int64_t skipped = 0;
    event_reader_open(&r, run, 0, 0);
    assert_int_equal(next(&r, &skipped), EVENT_LOG);
    assert_int_equal(next(&r, &skipped), EVENT_KIND_COUNT); /* has seen the half line */
    struct event_log log = {0};
    struct err e = {0};
    assert_int_equal(event_log_open(&log, run, 0, &e), STATUS_OK);
    assert_int_equal(event_write(&log, EVENT_DONE, NULL, &e), STATUS_OK);
    assert_int_equal(next(&r, &skipped), EVENT_DONE);
    assert_int_equal(skipped, 0);
    event_log_close(&log);
    event_reader_close(&r);
    str_release(&text);
    scratch_free(run);
}

static void test_events_garbage_isSkippedAndCounted(void **state) {
    (void)state;
    char *run = scratch_new();
    struct str text = {0};
    str_append(&text, "not json\n\n[1]\n{\"kind\":\"log\"}\n");
    str_append(&text, "{\"time_ms\":1,\"rank\":0,\"kind\":\"unheard\"}\n");
    for (int i = 0; i < EVENT_LINE_MAX + 100000; i++) {
        str_append_char(&text, 'x');
    }
    str_append(&text, "\n");
    str_append_bytes(&text, "\0\xFF\n", 3);
    str_append(&text, LINE);
    mem_free(scratch_write(run, NAME, text.data, text.len));
    struct event_reader r;
    int64_t skipped = 0;
    event_reader_open(&r, run, 0, 0);
    assert_int_equal(next(&r, &skipped), EVENT_LOG);
    assert_int_equal(skipped, 7);
    assert_int_equal(next(&r, &skipped), EVENT_KIND_COUNT);
    assert_true(r.offset == (int64_t)text.len);
    event_reader_close(&r);
    event_reader_open(&r, run, 7, 0); /* no such file */
    assert_int_equal(next(&r, &skipped), EVENT_KIND_COUNT);
    event_reader_close(&r);
    str_release(&text);
    scratch_free(run);
}

static void test_events_tooLong_isRefused(void **state) {
    (void)state;
    char *run = scratch_new();
    struct event_log log = {0};
    struct err e = {0};
    assert_int_equal(event_log_open(&log, run, 0, &e), STATUS_OK);
    char *text = mem_new(EVENT_LINE_MAX + 1, 1);
    memset(text, 'y', EVENT_LINE_MAX);
    cJSON *fields = cJSON_CreateObject();
    json_add_string(fields, "message", text);
    assert_int_equal(event_write(&log, EVENT_LOG, fields, &e), STATUS_INTERNAL);
    event_log_close(&log);
    mem_free(text);
    scratch_free(run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_written_areReadInOrder),
        cmocka_unit_test(test_events_halfLine_isCutAndReplaced),
        cmocka_unit_test(test_events_garbage_isSkippedAndCounted),
        cmocka_unit_test(test_events_tooLong_isRefused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
