/* test_data_print.c - goal: what `plimsoll data` prints says which tokens are trained with and
 * without colour, and nothing in a row can steer a terminal. Method: answers as the API gives them,
 * written by hand.
 * rooms: server engine_contract base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "server/cli/data_print.h"

static const struct data_style PLAIN = {0}, COLOUR = {.colour = true}, IDS = {.ids = true};

static void expect_safe(const char *text, bool lines, const char *expected) {
    struct str out = {0};
    data_append_safe(&out, text, lines);
    assert_string_equal(str_text(&out), expected);
    str_release(&out);
}

static void test_safe_text_shows_what_would_act(void **state) {
    (void)state;
    expect_safe("a\033[2Jb\r\a", true, "a<U+001B>[2Jb<U+000D><U+0007>");
    expect_safe("\xC2\x9B"
                "31m",
                true, "<U+009B>31m"); /* CSI as one C1 character */
    expect_safe("\xE2\x80\xAE"
                "evil",
                true, "<U+202E>evil");
    expect_safe("one\ttwo\n", true, "one\ttwo\n");
    expect_safe("one\ttwo\n", false, "one\\ttwo\\n");
    expect_safe("\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7", true,
                "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7"); /* joined emoji stay */
    expect_safe("\xFF", true, "\\xFF");
}

/* Prints an answer and looks for `expected`. */
static void expect_rows(const char *answer, const struct data_style *style, const char *expected) {
    cJSON *tree = NULL;
    struct err e = {0};
    struct str out = {0};
    assert_int_equal(data_read_answer(answer, &tree, &e), STATUS_OK);
    data_print_rows(&out, tree, style);
    if (!strstr(str_text(&out), expected)) print_error("%s\n", str_text(&out));
    assert_non_null(strstr(str_text(&out), expected));
    str_release(&out);
    cJSON_Delete(tree);
}

static const char ROW[] =
    "{\"rows\":[{\"row\":3,\"line\":4,\"part\":1,\"parts\":1,\"problems\":[\"cut\"],\"error\":null,"
    "\"total\":5,\"kept\":4,\"trained\":2,\"offset\":0,\"next_offset\":null,\"tokens\":["
    "{\"id\":1,\"text\":\"Q\",\"trained\":false,\"special\":true},"
    "{\"id\":2,\"text\":\"\\\\xF0\",\"trained\":true,\"special\":false,\"partial\":true,\"shown\":"
    "\"\"},"
    "{\"id\":3,\"text\":\"\\\\x9F\",\"trained\":true,\"special\":false,\"partial\":true,"
    "\"shown\":\"\xF0\x9F\x98\x80\"},"
    "{\"id\":4,\"text\":\"\\u0000\",\"trained\":false,\"special\":false},"
    "{\"id\":5,\"text\":\"gone\",\"trained\":true,\"special\":false}]}]}";

static void test_rows_plain_marks_trained_and_cut(void **state) {
    (void)state;
    expect_rows(ROW, &PLAIN, "row 3, line 4: 5 tokens, 2 trained, cut\n");
    expect_rows(ROW, &PLAIN,
                "Q\xE2\x9F\xA6\xF0\x9F\x98\x80\xE2\x9F\xA7\xE2\x90\x80[cut here]gone\n");
}

static void test_rows_colour_begins_and_ends(void **state) {
    (void)state;
    expect_rows(ROW, &COLOUR,
                "\033[0m\033[2mQ\033[0m\033[1;32m\xF0\x9F\x98\x80\033[0m\033[2m\xE2\x90\x80"
                "\033[0m\033[9;31mgone\033[0m\n");
}

static void test_rows_ids_one_line_a_token(void **state) {
    (void)state;
    expect_rows(ROW, &IDS, "     1        2  trained  \\xF0\n");
    expect_rows(ROW, &IDS, "     4        5  cut      gone\n");
}

static void test_rows_wrong_row_is_quoted_safely(void **state) {
    (void)state;
    static const char answer[] =
        "{\"rows\":[{\"row\":1,\"line\":1,\"parts\":1,\"problems\":[\"invalid\"],"
        "\"error\":{\"field\":null,\"message\":\"bad\"},\"source\":\"{\\u001b[31m\",\"tokens\":[]}]"
        "}";
    expect_rows(answer, &COLOUR, "error: bad\n{<U+001B>[31m\n");
    cJSON *tree = NULL;
    struct err e = {0};
    assert_int_equal(data_read_answer(answer, &tree, &e), STATUS_OK);
    assert_true(data_has_errors(tree));
    cJSON_Delete(tree);
}

static void test_answer_escaped_backslash_is_no_nul(void **state) {
    (void)state;
    cJSON *tree = NULL;
    struct err e = {0};
    assert_int_equal(data_read_answer("[\"\\\\u0000\",\"\\u0000\"]", &tree, &e), STATUS_OK);
    assert_string_equal(cJSON_GetArrayItem(tree, 0)->valuestring, "\\u0000");
    assert_string_equal(cJSON_GetArrayItem(tree, 1)->valuestring, "\xE2\x90\x80");
    cJSON_Delete(tree);
}

static void test_report_bars_problems_and_cut(void **state) {
    (void)state;
    static const char answer[] =
        "{\"filename\":\"a\\u001b.jsonl\",\"model\":\"m\",\"format\":\"text\",\"mask\":\"all\","
        "\"max_length\":15,\"rows\":5,\"samples\":4,\"tokens\":40,\"trained_tokens\":10,"
        "\"refusal\":null,"
        "\"lengths\":{\"p50\":10,\"p90\":20,\"p99\":30,\"longest\":30,\"over_max_length\":1},"
        "\"histogram\":{\"width\":10,\"counts\":[4,0,1],\"beyond\":0},"
        "\"problems\":[{\"name\":\"invalid\",\"level\":\"error\",\"sentence\":\"Wrong.\",\"count\":"
        "1,"
        "\"rows\":[{\"row\":5,\"line\":6,\"message\":\"why\"}]},"
        "{\"name\":\"cut\",\"level\":\"warn\",\"sentence\":\"Cut.\",\"count\":1,"
        "\"rows\":[{\"row\":2,\"line\":2}]},"
        "{\"name\":\"extra_keys\",\"level\":\"info\",\"sentence\":\"Extra.\",\"count\":0,\"rows\":["
        "]}],"
        "\"template\":{\"file\":null,\"needed\":true},\"tokenizer\":{\"notes\":[\"seen\"],"
        "\"warnings\":[\"wrong\"],\"dropped\":0},"
        "\"packing\":null}";
    static const char *const expected[] = {
        "a<U+001B>.jsonl with m",
        "trained tokens  10 (25.0 %)",
        "       1 - 10          4 \xE2\x96\x88",
        "------ cut-off 15",
        "error invalid: 1 row. Wrong.\n    line 6: why\n",
        "warn cut: 1 row. Cut.\n    row 2\n",
        "no chat template",
        "  note: seen\n",
        "  warn: wrong\n",
    };
    cJSON *tree = NULL;
    struct err e = {0};
    struct str out = {0};
    assert_int_equal(data_read_answer(answer, &tree, &e), STATUS_OK);
    data_print_report(&out, tree, &PLAIN);
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        if (!strstr(str_text(&out), expected[i])) print_error("%s\n", str_text(&out));
        assert_non_null(strstr(str_text(&out), expected[i]));
    }
    assert_null(strstr(str_text(&out), "Extra."));
    assert_true(data_has_errors(tree));
    str_release(&out);
    cJSON_Delete(tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safe_text_shows_what_would_act),
        cmocka_unit_test(test_rows_plain_marks_trained_and_cut),
        cmocka_unit_test(test_rows_colour_begins_and_ends),
        cmocka_unit_test(test_rows_ids_one_line_a_token),
        cmocka_unit_test(test_rows_wrong_row_is_quoted_safely),
        cmocka_unit_test(test_answer_escaped_backslash_is_no_nul),
        cmocka_unit_test(test_report_bars_problems_and_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
