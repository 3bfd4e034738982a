/* test_base.c - what everything stands on: errors, strings, numbers from text, UTF-8, files, JSON,
 * appended lines.
 *
 * Method: the rules that headers promise, each with the input that breaks the obvious
 * implementation. rooms: base */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "tests/unit/support_scratch.h"

static void test_err_first_wins(void **state) {
    (void)state;
    struct err e = {0};
    assert_int_equal(err_set_param(&e, STATUS_INVALID, "key", "value %d", 3), STATUS_INVALID);
    assert_int_equal(err_set(&e, STATUS_IO, "later"), STATUS_INVALID);
    assert_int_equal(err_prefix(&e, "file %s", "a"), STATUS_INVALID);
    assert_string_equal(e.text, "file a: value 3");
    assert_string_equal(e.param, "key");
    assert_int_equal(err_set(NULL, STATUS_IO, "nobody listens"), STATUS_IO);
    for (int i = 0; i < STATUS_COUNT; i++) {
        assert_int_equal(status_from_name(status_name((enum status)i)), i);
    }
    assert_int_equal(status_from_name("unheard"), STATUS_COUNT);
}

static void test_err_long_isCutNotOverrun(void **state) {
    (void)state;
    struct err e = {0};
    char text[3 * ERR_TEXT_MAX];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    err_set(&e, STATUS_IO, "%s", text);
    err_prefix(&e, "%s", text);
    assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
}

static void test_str_append_holdsEveryByte(void **state) {
    (void)state;
    struct str s = {0};
    assert_string_equal(str_text(&s), "");
    str_append_bytes(&s, "a\0b", 3);
    str_appendf(&s, "%05d", 42);
    str_append_utf8(&s, 0x1F642);
    assert_int_equal(s.len, 12);
    assert_memory_equal(s.data, "a\0b00042\xF0\x9F\x99\x82", 13);
    str_truncate(&s, 1);
    assert_string_equal(s.data, "a");
    char *taken = str_take(&s);
    assert_string_equal(taken, "a");
    mem_free(taken);
    str_release(&s);
}

static void test_str_numbers_takeTheWholeText(void **state) {
    (void)state;
    int64_t whole = 0;
    double number = 0;
    assert_int_equal(str_to_i64("-9223372036854775808", "x", &whole, NULL), STATUS_OK);
    assert_true(whole == INT64_MIN);
    static const char *const NOT_WHOLE[] = {"", "1x", "9223372036854775808", "1.5", "x"};
    for (size_t i = 0; i < COUNT_OF(NOT_WHOLE); i++) {
        assert_int_equal(str_to_i64(NOT_WHOLE[i], "x", &whole, NULL), STATUS_INVALID);
    }
    assert_int_equal(str_to_f64("2e-4", "x", &number, NULL), STATUS_OK);
    assert_true(number == 2e-4);
    static const char *const NOT_FINITE[] = {"", "nan", "inf", "1e999", "1,5"};
    for (size_t i = 0; i < COUNT_OF(NOT_FINITE); i++) {
        assert_int_equal(str_to_f64(NOT_FINITE[i], "x", &number, NULL), STATUS_INVALID);
    }
}

static void test_str_bytes_knowUnits(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } CASES[] = {{"4096", 4096},       {"24GiB", 25769803776}, {"900MB", 900000000},
                 {"1.5g", 1610612736}, {"1 kb", 1000},         {"2T", 2199023255552}};
    int64_t bytes = 0;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        assert_int_equal(str_to_bytes(CASES[i].text, "x", &bytes, NULL), STATUS_OK);
        assert_true(bytes == CASES[i].bytes);
    }
    static const char *const BAD[] = {"", "GiB", "-1", "1 parsec", "nan", "1e30"};
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        assert_int_equal(str_to_bytes(BAD[i], "x", &bytes, NULL), STATUS_INVALID);
    }
    char buffer[24];
    assert_string_equal(str_bytes(1610612736, buffer), "1.50 GiB");
    assert_string_equal(str_bytes(17, buffer), "17 B");
}

static void test_str_distance_isLevenshtein(void **state) {
    (void)state;
    assert_int_equal(str_distance("kitten", "sitting"), 3);
    assert_int_equal(str_distance("", "abc"), 3);
    assert_int_equal(str_distance("same", "same"), 0);
    assert_true(str_distance("learning_rat", "learning_rate") == 1);
}

static void test_utf8_invalid_isRefused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t len;
        size_t valid;
    } CASES[] = {
        {"a\xC3\xA9", 3, 3},
        {"a\xC3", 2, 1},
        {"\xC0\x80", 2, 0},
        {"\xE0\x80\x80", 3, 0},
        {"\xED\xA0\xBD", 3, 0},
        {"\xF4\x90\x80\x80", 4, 0},
        {"\xF4\x8F\xBF\xBF", 4, 4},
        {"x\xFF", 2, 1},
        {"\x80", 1, 0},
        {"\xF0\x9F\x99\x82", 4, 4},
        {"\xF0\x8F\xBF\xBF", 4, 0},
        {"\xE2\x82", 2, 0},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        assert_int_equal(utf8_valid_prefix(CASES[i].text, CASES[i].len), CASES[i].valid);
    }
    for (uint32_t code = 1; code < 0x110000; code += 97) {
        if (code >= 0xD800 && code < 0xE000) continue;
        struct str s = {0};
        uint32_t back = 0;
        str_append_utf8(&s, code);
        assert_int_equal(utf8_decode(s.data, s.len, &back), s.len);
        assert_int_equal(back, code);
        str_release(&s);
    }
}

static void test_file_names_mustBePlain(void **state) {
    (void)state;
    char lengthy[300];
    memset(lengthy, 'a', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = 0;
    const char *const bad[] = {"", ".", "..", "a/b", "a\\b", "a\nb", "/a", lengthy};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_false(file_name_is_plain(bad[i]));
    }
    assert_true(file_name_is_plain("model-00001-of-00002.safetensors"));
    assert_true(file_name_is_plain("...x"));
}

static void test_file_atomicWrite_replacesOrLeavesAlone(void **state) {
    (void)state;
    char *folder = scratch_new();
    struct err e = {0};
    char *path = scratch_write(folder, "a", "old", 3);
    char *temporary = str_format("%s.tmp.%ld", path, (long)getpid());
    assert_int_equal(symlink("/dev/full", temporary), 0);
    assert_int_equal(file_write_atomic(path, "new", 3, &e), STATUS_NO_SPACE);
    struct str text = {0};
    err_clear(&e);
    assert_int_equal(file_read(path, 100, &text, &e), STATUS_OK);
    assert_string_equal(text.data, "old");
    assert_false(file_exists(temporary));
    assert_int_equal(file_write_atomic(path, "new", 3, &e), STATUS_OK);
    str_clear(&text);
    assert_int_equal(file_read(path, 3, &text, &e), STATUS_OK);
    assert_string_equal(text.data, "new");
    assert_int_equal(file_read(path, 2, &text, &e), STATUS_INVALID);
    err_clear(&e);
    assert_int_equal(file_read("/does/not/exist", 2, &text, &e), STATUS_NOT_FOUND);
    str_release(&text);
    mem_free(temporary);
    mem_free(path);
    scratch_free(folder);
}

static void test_file_removeAll_doesNotFollowLinks(void **state) {
    (void)state;
    char *folder = scratch_new(), *outside = scratch_new();
    struct err e = {0};
    char *kept = scratch_write(outside, "kept", "x", 1);
    char *inner = file_join(folder, "a/b/c"), *link = file_join(folder, "a/link");
    assert_int_equal(file_make_folder(inner, &e), STATUS_OK);
    assert_int_equal(symlink(outside, link), 0);
    assert_int_equal(file_remove_all(folder, &e), STATUS_OK);
    assert_false(file_exists(folder));
    assert_true(file_exists(kept));
    assert_int_equal(file_remove_all(folder, &e), STATUS_OK);
    mem_free(link);
    mem_free(inner);
    mem_free(kept);
    scratch_free(outside);
    scratch_free(folder);
}

static void test_append_open_cutsTheHalfLine(void **state) {
    (void)state;
    char *folder = scratch_new();
    struct err e = {0};
    struct str text = {0};
    char *path = scratch_write(folder, "a", "one\ntw", 6);
    int fd = -1;
    assert_int_equal(append_open(&fd, path, &e), STATUS_OK);
    assert_int_equal(append_line(fd, path, "two\n", 4, &e), STATUS_OK);
    close(fd);
    assert_int_equal(file_read_at(path, 4, 100, &text, &e), STATUS_OK);
    assert_string_equal(text.data, "two\n");
    assert_int_equal(append_open(&fd, "/dev/full", &e), STATUS_OK);
    assert_int_equal(append_line(fd, "/dev/full", "x\n", 2, &e), STATUS_NO_SPACE);
    close(fd);
    str_release(&text);
    mem_free(path);
    scratch_free(folder);
}

static void expect_json_error(const char *text, size_t len, const char *part) {
    struct err e = {0};
    cJSON *json = NULL;
    assert_int_equal(json_parse(text, len, "what", &json, &e), STATUS_INVALID);
    if (!strstr(e.text, part)) fail_msg("\"%s\" is not in \"%s\"", part, e.text);
}

static void test_json_errors_nameThePlace(void **state) {
    (void)state;
    expect_json_error("", 0, "is empty");
    expect_json_error("{\n \"a\": x}", 10, "line 2");
    expect_json_error("{} {}", 5, "line 1, column 4");
    expect_json_error("[1,]", 4, "line 1");
}

static void test_json_numbers_readBackTheSame(void **state) {
    (void)state;
    static const double VALUES[] = {0.1, 2e-4, 1e300, 123456789012345680.0, 5e-324, -0.5};
    for (size_t i = 0; i < COUNT_OF(VALUES); i++) {
        cJSON *object = cJSON_CreateObject(), *back = NULL;
        json_add_number(object, "x", VALUES[i]);
        json_add_number(object, "nan", NAN);
        json_add_i64(object, "n", INT64_C(9007199254740992));
        struct str text = {0};
        json_append(&text, object);
        double value = 0;
        int64_t n = 0;
        assert_int_equal(json_parse(text.data, text.len, "x", &back, NULL), STATUS_OK);
        assert_int_equal(json_get_f64(back, "x", &value, NULL), STATUS_OK);
        assert_true(value == VALUES[i]);
        assert_int_equal(json_get_i64(back, "n", &n, NULL), STATUS_OK);
        assert_true(n == INT64_C(9007199254740992));
        assert_true(cJSON_IsNull(json_member(back, "nan")));
        cJSON_Delete(object);
        cJSON_Delete(back);
        str_release(&text);
    }
}

static void test_json_get_refusesOtherTypes(void **state) {
    (void)state;
    static const char TEXT[] = "{\"a\":1.5,\"b\":\"x\",\"c\":true,\"d\":1e999,\"e\":null}";
    cJSON *json = NULL;
    struct err e = {0};
    int64_t whole = 7;
    double number = 7;
    bool flag = false;
    const char *text = NULL;
    assert_int_equal(json_parse(TEXT, strlen(TEXT), "x", &json, &e), STATUS_OK);
    assert_int_equal(json_get_i64(json, "a", &whole, &e), STATUS_INVALID);
    assert_string_equal(e.param, "a");
    assert_int_equal(json_get_f64(json, "b", &number, NULL), STATUS_INVALID);
    assert_int_equal(json_get_f64(json, "d", &number, NULL), STATUS_INVALID);
    assert_int_equal(json_get_string(json, "c", &text, NULL), STATUS_INVALID);
    assert_int_equal(json_get_bool(json, "b", &flag, NULL), STATUS_INVALID);
    assert_int_equal(json_get_i64(json, "e", &whole, NULL), STATUS_OK);
    assert_int_equal(json_get_i64(json, "absent", &whole, NULL), STATUS_OK);
    assert_int_equal(whole, 7);
    assert_null(json_member(json, "A"));
    cJSON_Delete(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_first_wins),
        cmocka_unit_test(test_err_long_isCutNotOverrun),
        cmocka_unit_test(test_str_append_holdsEveryByte),
        cmocka_unit_test(test_str_numbers_takeTheWholeText),
        cmocka_unit_test(test_str_bytes_knowUnits),
        cmocka_unit_test(test_str_distance_isLevenshtein),
        cmocka_unit_test(test_utf8_invalid_isRefused),
        cmocka_unit_test(test_file_names_mustBePlain),
        cmocka_unit_test(test_file_atomicWrite_replacesOrLeavesAlone),
        cmocka_unit_test(test_file_removeAll_doesNotFollowLinks),
        cmocka_unit_test(test_append_open_cutsTheHalfLine),
        cmocka_unit_test(test_json_errors_nameThePlace),
        cmocka_unit_test(test_json_numbers_readBackTheSame),
        cmocka_unit_test(test_json_get_refusesOtherTypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
