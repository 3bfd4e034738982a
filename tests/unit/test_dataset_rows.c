/* test_dataset_rows.c - goal: rows and their physical lines come out of every kind of file the
 * same, bad files are refused by name, and no error shows what a row says. Method: small files of
 * given bytes, read through rows_next and row_json_parse; the reader's buffer is crossed with rows
 * larger than it. rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
#include <zlib.h>
#include <zstd.h>

#include "base/mem.h"
#include "engine/text/rows.h"
#include "engine/text/rows_json.h"
#include "tests/unit/support_scratch.h"

/* Reads a file of the given bytes as one text: "line:row|line:row|", or the error with its line. */
static enum status read_bytes(const void *bytes, size_t count, struct str *out, struct err *e) {
    char *const folder = scratch_new();
    char *const path = scratch_write(folder, "rows.jsonl", bytes, count);
    struct rows rows = {0};
    struct row_json json = {0};
    enum status status = STATUS_OK;
    bool found = false;
    GUARD(rows_open(&rows, path, e));
    do {
        struct row row;
        status = rows_next(&rows, &row, &found, e);
        if (status != STATUS_OK) str_appendf(out, "line %lld", (long long)rows.line);
        if (status != STATUS_OK || !found) break;
        status = row_json_parse(&json, &row, e);
        if (status != STATUS_OK) str_appendf(out, "line %lld", (long long)json.flaw_line);
        if (status != STATUS_OK) break;
        str_appendf(out, "%lld:", (long long)row.line);
        str_append_bytes(out, row.text, row.len < 40 ? row.len : 40);
        str_append_char(out, '|');
    } while (found);
done:
    row_json_release(&json);
    rows_close(&rows);
    mem_free(path);
    scratch_free(folder);
    return status;
}

static void expect_rows(const void *bytes, size_t count, const char *expected) {
    struct str out = {0};
    struct err e = {0};
    const enum status status = read_bytes(bytes, count, &out, &e);
    assert_string_equal(e.text, "");
    assert_int_equal(status, STATUS_OK);
    assert_string_equal(str_text(&out), expected);
    str_release(&out);
}

/* The file must be refused at this line with this in the text. */
static void expect_error(const void *bytes, size_t count, const char *where, const char *text) {
    struct str out = {0};
    struct err e = {0};
    assert_int_not_equal(read_bytes(bytes, count, &out, &e), STATUS_OK);
    if (!strstr(e.text, text)) fail_msg("\"%s\" is not in \"%s\"", text, e.text);
    if (where) assert_true(str_ends_with(str_text(&out), where));
    assert_null(strstr(e.text, "secret"));
    str_release(&out);
}

static void expect_text_error(const char *file, const char *where, const char *text) {
    expect_error(file, strlen(file), where, text);
}

static void test_rows_C01_byte_order_mark(void **state) {
    (void)state;
    const char plain[] = "{\"a\":1}\n{\"a\":2}\n", marked[] = "\xef\xbb\xbf{\"a\":1}\n{\"a\":2}\n";
    expect_rows(plain, sizeof plain - 1, "1:{\"a\":1}|2:{\"a\":2}|");
    expect_rows(marked, sizeof marked - 1, "1:{\"a\":1}|2:{\"a\":2}|");
    expect_error("\xff\xfe{\0}\0", 6, "line 1", "UTF-16 (little endian), save it as UTF-8");
    expect_error("\xfe\xff\0{\0}", 6, "line 1", "UTF-16 (big endian)");
    expect_error("{\0}\0", 4, "line 1", "UTF-16 (little endian)");
    expect_error("\xff\xfe\0\0{\0\0\0", 8, "line 1", "UTF-32 (little endian)");
}

static void test_rows_C02_line_ends_blank_lines_physical_lines(void **state) {
    (void)state;
    const char good[] = "{\"a\":1}\r\n\r\n   \n{\"a\":2}\n\t\n{\"a\":3}";
    expect_rows(good, sizeof good - 1, "1:{\"a\":1}|4:{\"a\":2}|6:{\"a\":3}|");
    expect_text_error("{\"a\":1}\r\n\r\n   \n{secret}\n{\"a\":2}", "line 4", "column 2");
    expect_rows("", 0, "");
    expect_rows("\n \n", 3, "");
}

static void test_rows_C03_almost_json_is_refused_with_its_column(void **state) {
    (void)state;
    expect_text_error("{\"a\":\"secret\",}", "line 1", "column 15: a comma too many before }");
    expect_text_error("{\"a\":[1,]}", "line 1", "column 9: a value is missing here");
    expect_text_error("{secret:1}", "line 1", "column 2: a key must be in double quotes");
    expect_text_error("{\"a\":\"se\"cret\"}", "line 1", "column 10: expected , or }");
    expect_text_error("{'a':1}", "line 1", "column 2: single quotes");
    expect_text_error("{\"a\":'b'}", "line 1", "column 6: single quotes");
    expect_text_error("{\n  \"a\": 1\n}\n", "line 1", "write one object per line");
    expect_text_error("{\"a\":1}\n{\"a\":\"secr", "1:{\"a\":1}|line 2", "the file is not cut off");
    expect_text_error("{\"a\":1} {\"a\":2}", "line 1", "column 9: there is more text");
    expect_text_error("{\"\xc3\xa9\":\"\xf0\x9f\x99\x82\" 1}", "line 1", "column 10: expected");
    expect_text_error("{\"a\":01}", "line 1", "expected , or }");
    expect_text_error("{\"a\":NaN}", "line 1", "expected a JSON value");
    expect_text_error("{\"a\":1.}", "line 1", "digits after its point");
    expect_text_error("{\"a\":\"x\ty\"}", "line 1", "control character");
}

static void test_rows_C03_an_array_file_gives_its_elements(void **state) {
    (void)state;
    const char good[] = "[{\"a\":1}, {\"a\":\n\"],\\\"}\"},\n\n{\"a\":[3]}\n]\n";
    expect_rows(good, sizeof good - 1, "1:{\"a\":1}|1:{\"a\":\n\"],\\\"}\"}|4:{\"a\":[3]}|");
    expect_rows("[]", 2, "");
    expect_rows(" \n[\n]\n", 6, "");
    expect_text_error("[{\"a\":1},]", NULL, "a comma with no row after it");
    expect_text_error("[,]", NULL, "a comma with no row after it");
    expect_text_error("[{\"a\":1}", NULL, "the array is not closed");
    expect_text_error("[{\"a\":1},\n", "line 2", "the array is not closed");
    expect_text_error("[{\"a\":1}]\n{\"a\":2}", "line 2", "more text after the end of the array");
    expect_text_error("[{\"a\":1},\n{\"a\":\n secret}]", "line 3",
                      "column 2: expected a JSON value");
    expect_text_error("[{\"a\":1} {\"a\":1}]", "line 1", "there is more text");
}

static void test_rows_C05_surrogates_invalid_utf8_and_nul(void **state) {
    (void)state;
    const char pair[] = "{\"a\":\"\\ud83d\\ude42 \\u00e9\\u0000z\"}";
    struct row_json j = {0};
    struct err e = {0};
    struct str text = {0};
    assert_int_equal(row_json_parse(&j, &(struct row){pair, sizeof pair - 1, 1}, &e), STATUS_OK);
    row_append_string(&j, 2, &text);
    assert_int_equal(text.len, 9);
    assert_memory_equal(text.data, "\xf0\x9f\x99\x82 \xc3\xa9\0z", 9);
    str_release(&text);
    row_json_release(&j);
    expect_text_error("{\"a\":\"\\ud83d\"}", "line 1", "column 7: half of a surrogate pair");
    expect_text_error("{\"a\":\"\\ud83dx\"}", "line 1", "half of a surrogate pair");
    expect_text_error("{\"a\":\"\\ude42\\ud83d\"}", "line 1", "half of a surrogate pair");
    expect_text_error("{\"a\":\"\xed\xa0\xbd\"}", "line 1", "not valid UTF-8");
    expect_text_error("{\"a\":\"\xff\"}", "line 1", "not valid UTF-8");
    expect_text_error("{\"a\":\"\\x\"}", "line 1", "escape that JSON does not know");
    expect_text_error("{\"a\":\"\\u12g4\"}", "line 1", "four hexadecimal digits");
}

static void test_rows_C12_depth_and_length_are_bounded(void **state) {
    (void)state;
    struct str deep = {0};
    for (int i = 0; i < 10000; i++) {
        str_append_char(&deep, i ? '[' : '{');
        if (i == 0) str_append(&deep, "\"a\":");
    }
    expect_error(deep.data, deep.len, "line 1", "nested too deeply");
    str_clear(&deep);
    str_append(&deep, "{\"a\":1}\n{\"a\":\"");
    while (deep.len < ROW_BYTES_MAX + 100) {
        str_append(&deep, "secretsecretsecretsecretsecretsecretsecretsecretsecretsecretsecret");
    }
    str_append(&deep, "\"}\n");
    expect_error(deep.data, deep.len, "line 2", "longer than 64 MiB");
    deep.data[0] = '[';
    deep.data[1] = '1';
    memset(deep.data + 2, ' ', 6);
    deep.data[7] = ',';
    expect_error(deep.data, deep.len, NULL, "longer than 64 MiB");
    str_release(&deep);
    struct str wide = {0};
    str_append(&wide, "[[1");
    for (int i = 0; i < ROW_VALUES_MAX; i++) {
        str_append(&wide, ",1");
    }
    str_append(&wide, "]]");
    expect_error(wide.data, wide.len, "line 1", "too many JSON values");
    str_release(&wide);
}

/* Rows of many lengths around the size of the reader's window (1 MiB). */
static void test_rows_longer_than_the_window_are_whole(void **state) {
    (void)state;
    struct str file = {0};
    for (int i = 0; i < 40; i++) {
        str_append(&file, "{\"a\":\"");
        for (int k = 0; k < i * 15000; k++) {
            str_append_char(&file, 'x');
        }
        str_append(&file, "\"}\n");
    }
    struct str out = {0};
    struct err e = {0};
    assert_int_equal(read_bytes(file.data, file.len, &out, &e), STATUS_OK);
    assert_non_null(strstr(str_text(&out), "|40:{\"a\":\"xxxx"));
    str_release(&out);
    str_release(&file);
}

static void test_rows_gzip_and_zstd_are_unpacked(void **state) {
    (void)state;
    static const char text[] = "{\"a\":1}\n{\"a\":2}\n";
    unsigned char packed[512];
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)text;
    z.avail_in = sizeof text - 1;
    z.next_out = packed;
    z.avail_out = 200;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    const size_t gzip = z.total_out;
    deflateEnd(&z);
    expect_rows(packed, gzip, "1:{\"a\":1}|2:{\"a\":2}|");
    memcpy(packed + gzip, packed, gzip); /* two members end to end */
    expect_rows(packed, 2 * gzip, "1:{\"a\":1}|2:{\"a\":2}|3:{\"a\":1}|4:{\"a\":2}|");
    expect_error(packed, gzip - 3, NULL, "gzip data ends too early");
    packed[12] ^= 0x55;
    expect_error(packed, gzip, NULL, "gzip data is damaged");
    size_t zstd = ZSTD_compress(packed, sizeof packed, text, sizeof text - 1, 3);
    assert_false(ZSTD_isError(zstd));
    expect_rows(packed, zstd, "1:{\"a\":1}|2:{\"a\":2}|");
    memcpy(packed + zstd, packed, zstd);
    expect_rows(packed, 2 * zstd, "1:{\"a\":1}|2:{\"a\":2}|3:{\"a\":1}|4:{\"a\":2}|");
    expect_error(packed, zstd - 1, NULL, "zstd data ends too early");
}

static void test_rows_other_formats_are_refused_by_name(void **state) {
    (void)state;
    expect_error("PAR1xxxx", 8, NULL, "is a Parquet file");
    expect_error("PK\x03\x04xx", 6, NULL, "is a zip archive");
    expect_error("\xfd"
                 "7zXZ\0x",
                 7, NULL, "is an xz file");
    struct rows rows = {0};
    struct err e = {0};
    assert_int_equal(rows_open(&rows, "/nonexistent/file.jsonl", &e), STATUS_NOT_FOUND);
}

static void test_rows_a_key_given_twice_is_an_error(void **state) {
    (void)state;
    const char text[] = "{\"a\":1,\"b\":{\"c\":[]},\"\\u0061\":2}";
    struct row_json j = {0};
    struct err e = {0};
    size_t value;
    assert_int_equal(row_json_parse(&j, &(struct row){text, sizeof text - 1, 1}, &e), STATUS_OK);
    assert_int_equal(row_member(&j, 0, "a", &value, &e), STATUS_INVALID);
    assert_string_equal(e.param, "a");
    assert_int_equal(row_member(&j, 0, "b", &value, NULL), STATUS_OK);
    assert_int_equal(row_kind(&j, value), ROW_OBJECT);
    assert_int_equal(row_member(&j, 0, "z", &value, NULL), STATUS_OK);
    assert_int_equal(value, 0);
    row_json_release(&j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_C01_byte_order_mark),
        cmocka_unit_test(test_rows_C02_line_ends_blank_lines_physical_lines),
        cmocka_unit_test(test_rows_C03_almost_json_is_refused_with_its_column),
        cmocka_unit_test(test_rows_C03_an_array_file_gives_its_elements),
        cmocka_unit_test(test_rows_C05_surrogates_invalid_utf8_and_nul),
        cmocka_unit_test(test_rows_C12_depth_and_length_are_bounded),
        cmocka_unit_test(test_rows_longer_than_the_window_are_whole),
        cmocka_unit_test(test_rows_gzip_and_zstd_are_unpacked),
        cmocka_unit_test(test_rows_other_formats_are_refused_by_name),
        cmocka_unit_test(test_rows_a_key_given_twice_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
