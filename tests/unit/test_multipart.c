/* test_multipart.c - a form body gives the same fields and the same file, wherever it is cut.
 *
 * rooms: server engine_contract base
 *
 * Every split into two pieces and pieces of every small size are tried; malformed bodies must be
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "server/web/multipart.h"

static const char TYPE[] = "multipart/form-data; boundary=\"cut here\"";
static const char BODY[] =
    "ignored preamble\r\n--cut here\r\n"
    "Content-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n"
    "--cut here\r\n"
    "content-disposition: form-data; name=file; filename=\"a \\\"b\\\".jsonl\"\r\n"
    "Content-Type: text/plain\r\n\r\n"
    "one\r\n--cut her\r\n--cut\r\ntwo\r\r\n--cut here--\r\nignored";
static const char CONTENT[] = "one\r\n--cut her\r\n--cut\r\ntwo\r";

static enum status collect(void *context, const void *bytes, size_t count, struct err *e) {
    (void)e;
    str_append_bytes(context, bytes, count);
    return STATUS_OK;
}

/* Feeds the body in pieces of `step` bytes, after a first piece of `first` bytes. */
static enum status feed(struct multipart *m, const char *body, size_t first, size_t step,
                        struct err *e) {
    const size_t len = strlen(body);
    size_t at = first < len ? first : len;
    TRY(multipart_feed(m, body, at, e));
    while (at < len) {
        const size_t count = len - at < step ? len - at : step;
        TRY(multipart_feed(m, body + at, count, e));
        at += count;
    }
    return multipart_finish(m, e);
}

static void expect_whole(size_t first, size_t step) {
    struct multipart m;
    struct err e = {0};
    struct str file = {0};
    const struct multipart_sink sink = {collect, &file};
    assert_int_equal(multipart_init(&m, TYPE, sink, &e), STATUS_OK);
    assert_int_equal(feed(&m, BODY, first, step, &e), STATUS_OK);
    assert_string_equal(multipart_value(&m, "purpose"), "fine-tune");
    assert_string_equal(m.file_name, "a \"b\".jsonl");
    assert_string_equal(str_text(&file), CONTENT);
    multipart_release(&m);
    str_release(&file);
}

static void test_body_cut_anywhere_gives_the_same(void **state) {
    (void)state;
    for (size_t first = 0; first < sizeof BODY; first++) {
        expect_whole(first, sizeof BODY);
    }
    for (size_t step = 1; step < 40; step++) {
        expect_whole(0, step);
    }
}

static void expect_refused(const char *type, const char *body) {
    struct multipart m;
    struct err e = {0};
    struct str file = {0};
    const struct multipart_sink sink = {collect, &file};
    enum status status = multipart_init(&m, type, sink, &e);
    if (status == STATUS_OK) status = feed(&m, body, 0, 3, &e);
    assert_int_equal(status, STATUS_INVALID);
    assert_true(e.text[0]);
    multipart_release(&m);
    str_release(&file);
}

static void test_body_malformed_is_refused(void **state) {
    (void)state;
    expect_refused(NULL, "");
    expect_refused("application/json", "{}");
    expect_refused("multipart/form-data", "");
    expect_refused("multipart/form-data; boundary=", "");
    expect_refused(TYPE, "");
    expect_refused(TYPE, "--cut here--\r\n");
    expect_refused(TYPE, "--cut hereX\r\n");
    expect_refused(TYPE, "--cut here\r\nContent-Type: x\r\n\r\nbody\r\n--cut here--");
    expect_refused(TYPE, "--cut here\r\nContent-Disposition: form-data; name=a\r\n\r\nno end");
    expect_refused(TYPE,
                   "--cut here\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n1"
                   "\r\n--cut here\r\nContent-Disposition: form-data; name=file; filename=b\r\n\r\n"
                   "2\r\n--cut here--");
}

static void test_field_too_long_is_refused(void **state) {
    (void)state;
    struct str body = {0};
    str_append(&body, "--cut here\r\nContent-Disposition: form-data; name=a\r\n\r\n");
    for (int i = 0; i <= MULTIPART_FIELD_BYTES_MAX; i++) {
        str_append_char(&body, 'x');
    }
    str_append(&body, "\r\n--cut here--\r\n");
    expect_refused(TYPE, str_text(&body));
    str_clear(&body);
    str_append(&body, "--cut here\r\nX: ");
    for (int i = 0; i <= MULTIPART_HEAD_MAX; i++) {
        str_append_char(&body, 'x');
    }
    expect_refused(TYPE, str_text(&body));
    str_release(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_body_cut_anywhere_gives_the_same),
        cmocka_unit_test(test_body_malformed_is_refused),
        cmocka_unit_test(test_field_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
