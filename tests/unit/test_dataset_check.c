/* test_dataset_check.c - goal: an upload's report has format, rows and every error with its
 * line and field, and never a row's words in an error. Method: small files through
 * dataset_check.
 * rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/text/dataset.h"
#include "tests/unit/support_scratch.h"

/* The report as compact JSON text; the caller frees it. */
static char *check_text(const char *rows, int64_t errors_max) {
    char *const folder = scratch_new();
    char *const path = scratch_write(folder, "rows.jsonl", rows, strlen(rows));
    cJSON *report = NULL;
    struct err e = {0};
    assert_int_equal(dataset_check(path, errors_max, &report, &e), STATUS_OK);
    struct str out = {0};
    json_append(&out, report);
    cJSON_Delete(report);
    mem_free(path);
    scratch_free(folder);
    return str_take(&out);
}

static void expect_report(const char *rows, int64_t errors_max, const char *expected) {
    char *const text = check_text(rows, errors_max);
    assert_string_equal(text, expected);
    mem_free(text);
}

static void test_check_good_file_has_no_errors(void **state) {
    (void)state;
    expect_report("{\"text\":\"a\"}\n\n{\"text\":\"b\",\"id\":12345678901234567890}\n{\"text\":"
                  "\"c\"}\n{\"text\":\"d\"}",
                  5,
                  "{\"format\":\"text\",\"rows\":4,\"bytes\":78,\"rows_extra_keys\":1,\"error_"
                  "count\":0,\"first_rows\":["
                  "{\"text\":\"a\"},{\"text\":\"b\",\"id\":12345678901234567890},{\"text\":\"c\"}],"
                  "\"error_groups\":[],\"errors\":[]}");
}

static void test_check_reports_every_bad_row_and_goes_on(void **state) {
    (void)state;
    char *const text = check_text("{\"text\":1}\n{\"text\":\"secret\",}\n{\"text\":\"good\"}\n{"
                                  "\"messages\":[]}\n{\"text\":[]}\n",
                                  3);
    assert_non_null(strstr(text, "\"rows\":5"));
    assert_non_null(strstr(text, "\"error_count\":4"));
    assert_non_null(strstr(
        text,
        "{\"line\":1,\"field\":\"text\",\"message\":\"text: must be a string, it is a number\"}"));
    assert_non_null(strstr(
        text,
        "{\"line\":2,\"field\":null,\"message\":\"not valid JSON at column 18: a comma too many"));
    assert_non_null(strstr(
        text,
        "{\"line\":4,\"field\":null,\"message\":\"the row is in format messages, line 1 made"));
    assert_null(strstr(text, "\"line\":5"));
    assert_null(strstr(text, "secret"));
    mem_free(text);
}

/* Case C07: the wrong value with its count, whatever message it is in. */
static void test_check_C07_unknown_roles_are_counted(void **state) {
    (void)state;
    struct str rows = {0};
    for (int i = 0; i < 40; i++) {
        str_append(&rows, "{\"conversations\":[");
        for (int k = 0; k < i % 3; k++) {
            str_append(&rows, "{\"from\":\"human\",\"value\":\"a\"},");
        }
        str_appendf(&rows, "{\"from\":\"%s\",\"value\":\"b\"}]}\n", i % 4 ? "gpt" : "hummany");
    }
    char *const text = check_text(str_text(&rows), 2);
    assert_non_null(strstr(text, "\"error_groups\":[{\"message\":\"conversations[N].from: unknown "
                                 "role \\\"hummany\\\""));
    assert_non_null(strstr(text, "\"rows\":10,\"first_line\":1}]"));
    assert_non_null(strstr(text, "\"error_count\":10"));
    mem_free(text);
    str_release(&rows);
}

static void test_check_empty_and_foreign_files(void **state) {
    (void)state;
    static const struct {
        const char *rows, *expected;
    } CASES[] = {
        {"", "the file has no rows"},
        {" \n\n", "the file has no rows"},
        {"PAR1", "is a Parquet file"},
        {"a,b\n1,2\n", "expected a JSON value"},
        {"{\n \"messages\": [\n", "write one object per line"},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        char *const text = check_text(CASES[i].rows, 10);
        if (!strstr(text, CASES[i].expected))
            fail_msg("\"%s\" is not in %s", CASES[i].expected, text);
        assert_non_null(strstr(text, "\"format\":null"));
        mem_free(text);
    }
}

static void test_check_missing_file_is_a_status(void **state) {
    (void)state;
    cJSON *report = NULL;
    struct err e = {0};
    assert_int_equal(dataset_check("/nonexistent/rows.jsonl", 3, &report, &e), STATUS_NOT_FOUND);
    assert_null(report);
    assert_non_null(strstr(e.text, "/nonexistent/rows.jsonl"));
}

static void test_check_names_are_stable(void **state) {
    (void)state;
    for (int i = 0; i < FORMAT_COUNT; i++) {
        assert_int_equal(data_format_parse(data_format_name((enum data_format)i)), i);
    }
    for (int i = 0; i < MASK_COUNT; i++) {
        assert_int_equal(data_mask_parse(data_mask_name((enum data_mask)i)), i);
    }
    assert_int_equal(data_format_parse("chatml"), FORMAT_COUNT);
    assert_int_equal(data_mask_parse(NULL), MASK_COUNT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_good_file_has_no_errors),
        cmocka_unit_test(test_check_reports_every_bad_row_and_goes_on),
        cmocka_unit_test(test_check_C07_unknown_roles_are_counted),
        cmocka_unit_test(test_check_empty_and_foreign_files),
        cmocka_unit_test(test_check_missing_file_is_a_status),
        cmocka_unit_test(test_check_names_are_stable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
