/* test_rows_csv.c - goal: CSV rows are the texts that were put in, on their physical lines, and
 * what is not well formed is refused with line and column. Method: small files read through
 * rows_next, compared as the JSON they stand for; a long first field moves the border of the
 * reader's buffer over every byte that matters. rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "engine/text/rows.h"
#include "tests/unit/support_scratch.h"

/* Rows as "line:json" with newlines between them; an error as "!line: text". */
static char *read_named(const char *name, const char *text, size_t len) {
    char *const folder = scratch_new();
    char *const path = scratch_write(folder, name, text, len);
    struct rows rows = {0};
    struct str out = {0};
    struct err e = {0};
    enum status status = rows_open(&rows, path, &e);
    for (bool found = true; status == STATUS_OK && found;) {
        struct row row;
        status = rows_next(&rows, &row, &found, &e);
        if (status == STATUS_OK && found)
            str_appendf(&out, "%lld:%.*s\n", (long long)row.line, (int)row.len, row.text);
    }
    if (status != STATUS_OK) str_appendf(&out, "!%lld: %s", (long long)rows.line, e.text);
    rows_close(&rows);
    mem_free(path);
    scratch_free(folder);
    return str_take(&out);
}

static void expect(const char *text, const char *expected) {
    char *const got = read_named("rows.dat", text, strlen(text));
    if (!str_equal(got, expected)) fail_msg("\ngot      %s\nexpected %s", got, expected);
    mem_free(got);
}

static void expect_flaw(const char *text, const char *expected) {
    char *const got = read_named("rows.csv", text, strlen(text));
    const char *const flaw = strchr(got, '!');
    if (!flaw || !strstr(flaw, expected))
        fail_msg("\ngot %s\nexpected an error with %s", got, expected);
    assert_null(strstr(flaw, "secret"));
    mem_free(got);
}

static void test_rows_csv_rfc_4180(void **state) {
    (void)state;
    expect("prompt,completion\na,b\n", "2:{\"prompt\":\"a\",\"completion\":\"b\"}\n");
    expect("prompt,completion\r\na,b\r\n\r\n\"c, \"\"d\"\"\r\ne\",f",
           "2:{\"prompt\":\"a\",\"completion\":\"b\"}\n"
           "4:{\"prompt\":\"c, \\\"d\\\"\\u000d\\u000ae\",\"completion\":\"f\"}\n");
    expect("text\n\"two\nlines\"\nlast\n",
           "2:{\"text\":\"two\\u000alines\"}\n4:{\"text\":\"last\"}\n");
    expect("\"text\",\"n\"\n\"\",\n x ,\"1\"\n",
           "2:{\"text\":\"\",\"n\":\"\"}\n3:{\"text\":\" x \",\"n\":\"1\"}\n");
    expect("instruction,input,output\ndo,,\xC3\xA4\n",
           "2:{\"instruction\":\"do\",\"input\":\"\",\"output\":\"\xC3\xA4\"}\n");
}

/* Case C01. */
static void test_rows_csv_C01_byte_order_mark(void **state) {
    (void)state;
    expect("\xEF\xBB\xBFtext\na\n", "2:{\"text\":\"a\"}\n");
}

static void test_rows_csv_fields_of_json(void **state) {
    (void)state;
    expect("messages,tools\n\"[{\"\"role\"\": \"\"user\"\"}]\",\n",
           "2:{\"messages\":[{\"role\": \"user\"}],\"tools\":\"\"}\n");
    expect_flaw("messages,id\n\"[{\"\"secret\"\"}]\",1\n",
                "!2: not well-formed CSV at column 1 (field \"messages\"): not valid JSON");
}

static void test_rows_csv_not_well_formed_is_refused_with_its_place(void **state) {
    (void)state;
    expect_flaw("text,b\na,b\nsecret\n",
                "!3: not well-formed CSV at column 1 (field \"text\"): the "
                "record has 1 fields, the first line 2");
    expect_flaw("text,b\na,b,secret\n", "!2: not well-formed CSV at column 5: the record has 3");
    expect_flaw("text,b\na,se\"cret\n", "!2: not well-formed CSV at column 5: a quote inside");
    expect_flaw("text,b\na,\"x\"secret\n",
                "!2: not well-formed CSV at column 6: text after the quote");
    expect_flaw("text,b\na,b\nc,\"secret\n\n\n",
                "!3: not well-formed CSV at column 3: the quote that "
                "opens this field is never closed");
    expect_flaw("text,b\ra,b\r", "!1: not well-formed CSV at column 8: a carriage return");
    expect_flaw("text,\na,b\n", "!1: not well-formed CSV at column 6: a column without a name");
    expect_flaw("text,text\na,b\n",
                "!1: not well-formed CSV at column 6 (field \"text\"): two columns");
    expect_flaw(
        "text,b\n\xC3\xA4,\xFFsecret\n",
        "!2: not well-formed CSV at column 3 (field \"b\"): bytes that are not valid UTF-8");
}

static void test_rows_csv_other_tables_are_refused_by_name(void **state) {
    (void)state;
    char *got = read_named("rows.dat", "prompt\tcompletion\na\tb\n", 22);
    assert_non_null(strstr(got, "tabs between its fields: save it as CSV"));
    mem_free(got);
    got = read_named("rows.tsv", "a\tb\nc\td\n", 8);
    assert_non_null(strstr(got, "tabs between its fields"));
    mem_free(got);
    got = read_named("rows.dat", "prompt;completion\na;b\n", 22);
    assert_non_null(strstr(got, "semicolons between its fields"));
    mem_free(got);
    /* Something else that is no JSON stays what it is: a line for the JSON parser to refuse. */
    got = read_named("rows.jsonl", "hello, world\n", 13);
    assert_string_equal(got, "1:hello, world\n");
    mem_free(got);
    got = read_named("rows.csv.gz", "x,y\n1,2\n", 8); /* told by its name alone */
    assert_string_equal(got, "2:{\"x\":\"1\",\"y\":\"2\"}\n");
    mem_free(got);
}

/* The reader's buffer is filled 1 MiB at a time: quotes, line ends and doubled quotes fall on its
 * border. */
static void test_rows_csv_across_the_buffers_border(void **state) {
    (void)state;
    static const char TAIL[] = "\"\"q\",b\r\n\"c\nd\",e\n";
    for (size_t shift = 0; shift < sizeof TAIL + 2; shift++) {
        struct str text = {0};
        str_append(&text, "text,b\n\"");
        while (text.len + shift < (1 << 20)) {
            str_append_char(&text, text.len % 100 ? 'x' : '\n');
        }
        const size_t head = text.len;
        str_append(&text, TAIL);
        char *const got = read_named("rows.csv", text.data, text.len);
        const size_t len = strlen(got);
        assert_true(len > head);
        const char *const second = strrchr(got, '{');
        assert_string_equal(second, "{\"text\":\"c\\u000ad\",\"b\":\"e\"}\n");
        assert_non_null(strstr(got, "\\\"q\",\"b\":\"b\"}\n"));
        mem_free(got);
        str_release(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_csv_rfc_4180),
        cmocka_unit_test(test_rows_csv_C01_byte_order_mark),
        cmocka_unit_test(test_rows_csv_fields_of_json),
        cmocka_unit_test(test_rows_csv_not_well_formed_is_refused_with_its_place),
        cmocka_unit_test(test_rows_csv_other_tables_are_refused_by_name),
        cmocka_unit_test(test_rows_csv_across_the_buffers_border),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
