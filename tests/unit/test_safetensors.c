/* test_safetensors.c - safetensors files and folders: what is written is read, and every broken one
 * has its own error.
 *
 * Method: a small valid file is built as text and bytes, then bent one rule at a time. A full disk
 * is a link from the writer's temporary name to /dev/full. rooms: engine_io base */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/io/folder.h"
#include "engine/io/manifest.h"
#include "engine/io/safetensors.h"
#include "tests/unit/support_scratch.h"

/* A file of this header and `data_bytes` zeros. Caller frees the path. */
static char *write_st(const char *folder, const char *name, const char *header, size_t data_bytes) {
    struct str file = {0};
    const uint64_t length = strlen(header);
    for (int i = 0; i < 8; i++) {
        str_append_char(&file, (char)(length >> (8 * i) & 0xFF));
    }
    str_append(&file, header);
    for (size_t i = 0; i < data_bytes; i++) {
        str_append_char(&file, 0);
    }
    char *path = scratch_write(folder, name, file.data, file.len);
    str_release(&file);
    return path;
}

static void expect_file(const char *path, enum status status, const char *part) {
    struct st_set set;
    struct err e = {0};
    const enum status got = st_open_file(&set, path, &e);
    if (got != status) fail_msg("%s: %s (%s)", part, status_name(got), e.text);
    if (!strstr(e.text, part)) fail_msg("\"%s\" is not in \"%s\"", part, e.text);
    if (got == STATUS_OK) st_close(&set);
    st_close(&set);
}

static void expect_header(const char *header, size_t data_bytes, enum status status,
                          const char *part) {
    char *folder = scratch_new();
    char *path = write_st(folder, "x.safetensors", header, data_bytes);
    expect_file(path, status, part);
    mem_free(path);
    scratch_free(folder);
}

static void test_safetensors_brokenHeaders_haveDistinctErrors(void **state) {
    (void)state;
#define T(offsets) "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets "}}"
#define TWO(a, b)                                                                                  \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" a                                   \
    "},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" b "}}"
    expect_header(T("[0,8]"), 8, STATUS_OK, "");
    expect_header("{}", 0, STATUS_OK, "");
    expect_header(T("[0,8]"), 7, STATUS_INVALID, "is truncated");
    expect_header(T("[0,8]"), 9, STATUS_INVALID, "behind the last tensor");
    expect_header(T("[0,9]"), 9, STATUS_INVALID, "need 8 bytes");
    expect_header(T("[8,0]"), 8, STATUS_INVALID, "before it begins");
    expect_header(T("[-1,7]"), 8, STATUS_INVALID, "not [begin, end]");
    expect_header(T("[0,8,9]"), 8, STATUS_INVALID, "not [begin, end]");
    expect_header(T("[1,9]"), 9, STATUS_INVALID, "unused bytes");
    expect_header(TWO("[0,2]", "[1,3]"), 3, STATUS_INVALID, "overlaps");
    expect_header(TWO("[0,2]", "[3,5]"), 5, STATUS_INVALID, "unused bytes");
    expect_header(TWO("[2,4]", "[0,2]"), 4, STATUS_OK, "");
    expect_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, STATUS_INVALID,
                  "data_offsets is missing");
    expect_header("{\"a\":{\"dtype\":\"Q4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1,
                  STATUS_UNSUPPORTED, "Q4");
    expect_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1,
                  STATUS_INVALID, "not a size");
    expect_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}",
                  1, STATUS_UNSUPPORTED, "dimensions");
    expect_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],"
                  "\"data_offsets\":[0,0]}}",
                  0, STATUS_INVALID, "overflows");
    expect_header("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],"
                  "\"data_offsets\":[0,1]}}",
                  1, STATUS_INVALID, "given twice");
    expect_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                  "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                  2, STATUS_INVALID, "there twice");
    expect_header("{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                  STATUS_INVALID, "name");
    expect_header("{\"a\\u0000\":1}", 0, STATUS_INVALID, "NUL");
    expect_header("{\"a\xFF\":1}", 0, STATUS_INVALID, "UTF-8");
    expect_header("{\"a\":[[[[[[[[[[[[[[[[[[[[", 0, STATUS_INVALID, "deeper");
    expect_header("{\"a\"", 0, STATUS_INVALID, "not valid JSON");
    expect_header(" {}", 0, STATUS_INVALID, "does not begin");
    expect_header("{\"__metadata__\":{\"a\":1}}", 0, STATUS_INVALID, "__metadata__");
#undef TWO
#undef T
}

static void test_safetensors_brokenFiles_haveDistinctErrors(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t count;
        const char *part;
    } CASES[] = {
        {"", 0, "is empty"},
        {"1234567", 7, "has 7 bytes"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", 62, "Git LFS"},
        {"\xE8\x03\0\0\0\0\0\0{}", 10, "truncated in its header"},
        {"\x01\xE1\xF5\x05\0\0\0\0{}", 10, "the limit is 100000000"},
        {"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10, "the limit is 100000000"},
        {"\0\0\0\0\0\0\0\0", 8, "does not begin"},
    };
    char *folder = scratch_new();
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        char *path = scratch_write(folder, "x", CASES[i].bytes, CASES[i].count);
        expect_file(path, STATUS_INVALID, CASES[i].part);
        mem_free(path);
    }
    scratch_free(folder);
}

/* Linear lookups would need 10^10 comparisons here; a minute's limit would not be met. */
static void test_safetensors_manyTensors_areQuick(void **state) {
    (void)state;
    enum { COUNT = 100001 };
    for (int overlap = 0; overlap < 2; overlap++) {
        struct str header = {0};
        str_append_char(&header, '{');
        for (int i = 0; i < COUNT; i++) {
            const int at = overlap ? 0 : i;
            str_appendf(&header,
                        "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                        i ? "," : "", i, at, at + 1);
        }
        str_append_char(&header, '}');
        const int64_t start = clock_steady_ns();
        expect_header(header.data, overlap ? 1 : COUNT, overlap ? STATUS_INVALID : STATUS_OK,
                      overlap ? "overlaps" : "");
        assert_true(clock_steady_ns() - start < (int64_t)20e9);
        str_release(&header);
    }
}

static void test_safetensors_written_readsBack(void **state) {
    (void)state;
    char *folder = scratch_new();
    char *path = file_join(folder, "x.safetensors");
    struct err e = {0};
    struct st_writer w = {0};
    const float f32[] = {1, -2.5f, NAN, 1.00390625f, 3e38f, 1.01171875f};
    const uint16_t f16[] = {0x3C00, 0x0001, 0x8001, 0xFC00, 0x7BFF};
    const float f16_values[] = {1, 0x1p-24f, -0x1p-24f, -INFINITY, 65504};
    st_writer_declare(&w, "b \"quoted\"", ST_F32, (int64_t[]){2, 3}, 2);
    st_writer_declare(&w, "a", ST_F16, (int64_t[]){5}, 1);
    st_writer_declare(&w, "scalar", ST_BF16, NULL, 0);
    assert_int_equal(st_writer_begin(&w, path, &e), STATUS_OK);
    assert_int_equal(st_writer_data(&w, f32, 5, &e), STATUS_OK);
    assert_int_equal(st_writer_data(&w, (const char *)f32 + 5, sizeof f32 - 5, &e), STATUS_OK);
    assert_int_equal(st_writer_data(&w, f16, sizeof f16, &e), STATUS_OK);
    assert_false(file_exists(path));
    assert_int_equal(st_writer_data(&w, "\x80\x3F", 2, &e), STATUS_OK);
    assert_int_equal(st_writer_commit(&w, &e), STATUS_OK);
    struct st_set set;
    assert_int_equal(st_open_file(&set, path, &e), STATUS_OK);
    assert_int_equal(set.count, 3);
    const struct st_tensor *const b = st_find(&set, "b \"quoted\""), *const a = st_find(&set, "a");
    assert_true(b && a && st_find(&set, "scalar") && !st_find(&set, "c"));
    assert_true(b->rank == 2 && b->shape[1] == 3 && b->bytes == 24);
    assert_true((uintptr_t)b->data % 8 == 0);
    float read[6];
    uint16_t bits[6];
    assert_int_equal(st_read_f32(b, 1, 5, read, &e), STATUS_OK);
    assert_memory_equal(read, f32 + 1, 5 * sizeof *read);
    assert_int_equal(st_read_f32(a, 0, 5, read, &e), STATUS_OK);
    assert_memory_equal(read, f16_values, sizeof f16_values);
    /* ties go to even: 1 + 1/256 down to 1, 1 + 3/256 up to 1 + 4/256 */
    assert_int_equal(st_read_bf16(b, 0, 6, bits, &e), STATUS_OK);
    assert_true(bits[0] == 0x3F80 && bits[1] == 0xC020 && (bits[2] & 0x7FFF) > 0x7F80);
    assert_true(bits[3] == 0x3F80 && bits[5] == 0x3F82);
    assert_int_equal(st_read_f32(st_find(&set, "scalar"), 0, 1, read, &e), STATUS_OK);
    assert_true(read[0] == 1);
    st_close(&set);
    mem_free(path);
    scratch_free(folder);
}

static void test_safetensors_writer_leavesNothingAfterAnError(void **state) {
    (void)state;
    char *folder = scratch_new();
    char *path = file_join(folder, "x.safetensors");
    struct err e = {0};
    struct st_writer w = {0};
    st_writer_declare(&w, "a", ST_U8, (int64_t[]){4}, 1);
    assert_int_equal(st_writer_begin(&w, path, &e), STATUS_OK);
    assert_int_equal(st_writer_data(&w, "12345", 5, &e), STATUS_INTERNAL);
    err_clear(&e);
    assert_int_equal(st_writer_data(&w, "123", 3, &e), STATUS_OK);
    assert_int_equal(st_writer_commit(&w, &e), STATUS_INTERNAL);
    err_clear(&e);
    st_writer_declare(&w, "a", ST_U8, (int64_t[]){4}, 1);
    st_writer_declare(&w, "a", ST_U8, (int64_t[]){4}, 1);
    assert_int_equal(st_writer_begin(&w, path, &e), STATUS_INTERNAL);
    err_clear(&e);
    char *temporary = str_format("%s.tmp.%ld", path, (long)getpid());
    assert_int_equal(symlink("/dev/full", temporary), 0);
    st_writer_declare(&w, "a", ST_U8, (int64_t[]){4}, 1);
    assert_int_equal(st_writer_begin(&w, path, &e), STATUS_NO_SPACE);
    char **names = NULL;
    size_t count = 0;
    err_clear(&e);
    assert_int_equal(file_list(folder, &names, &count, &e), STATUS_OK);
    assert_int_equal(count, 0);
    file_names_free(names, count);
    mem_free(temporary);
    mem_free(path);
    scratch_free(folder);
}

static void expect_folder(const char *folder, enum status status, const char *part) {
    struct st_set set;
    struct err e = {0};
    const enum status got = st_open_folder(&set, folder, &e);
    if (got != status) fail_msg("%s: %s (%s)", part, status_name(got), e.text);
    if (!strstr(e.text, part)) fail_msg("\"%s\" is not in \"%s\"", part, e.text);
    st_close(&set);
}

#define ONE(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}"
#define FIRST "model-00001-of-00002.safetensors"
#define SECOND "model-00002-of-00002.safetensors"

static void index_case(const char *folder, const char *map, enum status status, const char *part) {
    char *text = str_format("{\"metadata\":{\"total_size\":999},\"weight_map\":{%s}}", map);
    mem_free(scratch_write(folder, "model.safetensors.index.json", text, strlen(text)));
    expect_folder(folder, status, part);
    mem_free(text);
}

static void test_safetensors_folder_followsTheIndex(void **state) {
    (void)state;
    char *folder = scratch_new();
    mem_free(write_st(folder, FIRST, ONE("a"), 1));
    mem_free(write_st(folder, SECOND, ONE("b"), 1));
    mem_free(write_st(folder, "model.safetensors", ONE("stray"), 1));
    index_case(folder, "\"a\":\"" FIRST "\",\"b\":\"" SECOND "\"", STATUS_OK, "");
    index_case(folder, "\"a\":\"" FIRST "\",\"b\":\"" FIRST "\"", STATUS_INVALID, "does not hold");
    index_case(folder, "\"a\":\"" SECOND "\",\"b\":\"" FIRST "\"", STATUS_INVALID, "listed in");
    index_case(folder, "\"a\":\"" FIRST "\",\"b\":\"gone.safetensors\"", STATUS_NOT_FOUND, "gone");
    index_case(folder, "\"a\":\"../x\"", STATUS_INVALID, "plain");
    index_case(folder, "\"a\":3", STATUS_INVALID, "file name");
    index_case(folder, "", STATUS_INVALID, "weight_map");
    mem_free(write_st(folder, SECOND, ONE("a"), 1));
    index_case(folder, "\"a\":\"" FIRST "\",\"b\":\"" SECOND "\"", STATUS_INVALID, "there twice");
    scratch_free(folder);
}

static void test_safetensors_folder_withoutIndexMustBeComplete(void **state) {
    (void)state;
    char *folder = scratch_new();
    expect_folder("/does/not/exist", STATUS_NOT_FOUND, "not a folder");
    expect_folder(folder, STATUS_NOT_FOUND, "has no weights");
    mem_free(scratch_write(folder, "pytorch_model.bin", "x", 1));
    expect_folder(folder, STATUS_NOT_FOUND, "pytorch_model.bin");
    mem_free(write_st(folder, SECOND, ONE("b"), 1));
    expect_folder(folder, STATUS_NOT_FOUND, FIRST);
    mem_free(write_st(folder, FIRST, ONE("a"), 1));
    expect_folder(folder, STATUS_OK, "");
    mem_free(write_st(folder, "model-00001-of-00003.safetensors", ONE("a"), 1));
    expect_folder(folder, STATUS_INVALID, "two sets");
    mem_free(write_st(folder, "model.safetensors", ONE("a"), 1));
    expect_folder(folder, STATUS_OK, "");
    scratch_free(folder);
}

static void test_manifest_damage_isNamed(void **state) {
    (void)state;
    char *folder = scratch_new();
    struct err e = {0};
    assert_int_equal(manifest_verify(folder, 0, 1, &e), STATUS_NOT_FOUND);
    err_clear(&e);
    char *inner = file_join(folder, "inner");
    assert_int_equal(file_make_folder(inner, &e), STATUS_OK);
    mem_free(scratch_write(folder, "empty", "", 0));
    char *file = scratch_write(inner, "b", "abc", 3);
    assert_int_equal(manifest_write(folder, NULL, 0, &e), STATUS_OK);
    assert_int_equal(manifest_verify(folder, 0, 1, &e), STATUS_OK);
    static const char *const CHANGES[][2] = {{"abd", "damaged"}, {"ab", "has 2 bytes"}};
    for (size_t i = 0; i < COUNT_OF(CHANGES); i++) {
        mem_free(scratch_write(inner, "b", CHANGES[i][0], strlen(CHANGES[i][0])));
        assert_int_equal(manifest_verify(folder, 0, 1, &e), STATUS_INVALID);
        assert_non_null(strstr(e.text, CHANGES[i][1]));
        assert_non_null(strstr(e.text, "inner/b"));
        err_clear(&e);
    }
    assert_int_equal(file_remove_all(file, &e), STATUS_OK);
    assert_int_equal(manifest_verify(folder, 0, 1, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "is missing"));
    mem_free(file);
    mem_free(inner);
    scratch_free(folder);
}

static void test_folder_commit_replacesAndSweepRemovesLeftovers(void **state) {
    (void)state;
    char *parent = scratch_new();
    char *path = file_join(parent, "deep/step-1");
    struct err e = {0};
    for (int i = 0; i < 2; i++) {
        char *temporary = NULL;
        assert_int_equal(folder_begin(path, &temporary, &e), STATUS_OK);
        mem_free(scratch_write(temporary, i ? "new" : "old", "x", 1));
        assert_int_equal(folder_commit(&temporary, path, &e), STATUS_OK);
        assert_null(temporary);
    }
    char *temporary = NULL, *deep = file_join(parent, "deep"), *kept = file_join(path, "new");
    assert_int_equal(folder_begin(path, &temporary, &e), STATUS_OK);
    folder_abort(&temporary);
    mem_free(scratch_write(deep, "a.tmp.12", "x", 1));
    mem_free(scratch_write(deep, "a.tmp.b", "x", 1));
    assert_int_equal(folder_sweep(deep, &e), STATUS_OK);
    char **names = NULL;
    size_t count = 0;
    assert_int_equal(file_list(deep, &names, &count, &e), STATUS_OK);
    assert_int_equal(count, 2);
    assert_string_equal(names[0], "a.tmp.b");
    assert_true(file_exists(kept));
    file_names_free(names, count);
    mem_free(kept);
    mem_free(deep);
    mem_free(path);
    scratch_free(parent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors_brokenHeaders_haveDistinctErrors),
        cmocka_unit_test(test_safetensors_brokenFiles_haveDistinctErrors),
        cmocka_unit_test(test_safetensors_manyTensors_areQuick),
        cmocka_unit_test(test_safetensors_written_readsBack),
        cmocka_unit_test(test_safetensors_writer_leavesNothingAfterAnError),
        cmocka_unit_test(test_safetensors_folder_followsTheIndex),
        cmocka_unit_test(test_safetensors_folder_withoutIndexMustBeComplete),
        cmocka_unit_test(test_manifest_damage_isNamed),
        cmocka_unit_test(test_folder_commit_replacesAndSweepRemovesLeftovers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
