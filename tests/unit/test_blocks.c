/* test_blocks.c - tensors spread over files as blocks: any division is read back in any other, and
 * what is missing, twice there or no block at all has its own error.
 *
 * Method: matrices whose elements are their own numbers, cut into runs at random places (the seed
 * is printed) as ranks with flat pieces, or with columns, would; then read in other cuts. The
 * memory of putting a result together is bounded by a limit of the system in a process of its own.
 * rooms: engine_model engine_io base */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/io/blocks.h"
#include "engine/model/assemble.h"
#include "tests/unit/support_scratch.h"

enum { SEED = 7, ROUNDS = 60, FILES = 3 };

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s: %s", status_name(status), e->text);
}

static struct block whole_of(const char *name, int64_t rank, int64_t rows, int64_t cols) {
    return (struct block){name, rank, rows, cols, {0, 0, rows, cols}};
}

/* One file with these blocks; an element's value is its number in the tensor. */
static void write_blocks(const char *folder, const char *file, const struct block *blocks,
                         int count) {
    struct err e = {0};
    struct st_writer w = {0};
    char *const path = file_join(folder, file);
    for (int i = 0; i < count; i++) {
        block_declare(&w, &blocks[i]);
    }
    must(st_writer_begin(&w, path, &e), &e);
    for (int i = 0; i < count; i++) {
        const struct block *const b = &blocks[i];
        for (int64_t k = 0; k < b->at.rows * b->at.cols; k++) {
            const int64_t row = b->at.row + k / b->at.cols, col = b->at.col + k % b->at.cols;
            const float value = (float)(row * b->whole_cols + col);
            must(st_writer_data(&w, &value, sizeof value, &e), &e);
        }
    }
    must(st_writer_commit(&w, &e), &e);
    mem_free(path);
}

static void test_block_cut_covers_every_run_in_order(void **state) {
    (void)state;
    for (int64_t cols = 1; cols < 6; cols++) {
        for (int64_t first = 0; first < 18; first++) {
            for (int64_t count = 0; count < 20; count++) {
                struct block_place cuts[BLOCK_CUTS_MAX];
                const int n = block_cut(first, count, cols, cuts);
                int64_t at = first;
                for (int i = 0; i < n; i++) {
                    assert_int_equal(cuts[i].row * cols + cuts[i].col, at);
                    assert_true(cuts[i].rows == 1 || cuts[i].cols == cols);
                    assert_true(cuts[i].col + cuts[i].cols <= cols);
                    at += cuts[i].rows * cuts[i].cols;
                }
                assert_int_equal(at, first + count);
            }
        }
    }
}

static int64_t below(int64_t n) {
    return (int64_t)rand() % n;
}

/* Everything of the tensor in runs of random lengths, over some files. */
static void spread_runs(const char *folder, const struct block *whole) {
    struct block blocks[FILES][64];
    int counts[FILES] = {0};
    const int64_t total = whole->whole_rows * whole->whole_cols;
    for (int64_t first = 0; first < total;) {
        const int64_t left = total - first, count = left < 8 ? left : 1 + below(left);
        struct block_place cuts[BLOCK_CUTS_MAX];
        const int n = block_cut(first, count, whole->whole_cols, cuts);
        const int file = (int)below(FILES);
        for (int i = 0; i < n; i++) {
            assert_true(counts[file] < 64);
            blocks[file][counts[file]] = *whole;
            blocks[file][counts[file]++].at = cuts[i];
        }
        first += count;
    }
    for (int file = 0; file < FILES; file++) {
        char name[32];
        snprintf(name, sizeof name, "part-%d.safetensors", file);
        write_blocks(folder, name, blocks[file], counts[file]);
    }
}

/* Everything in columns, as a tensor axis cuts a matrix. */
static void spread_columns(const char *folder, const struct block *whole) {
    for (int64_t col = 0, file = 0; col < whole->whole_cols; file++) {
        struct block part = *whole;
        part.at.col = col;
        part.at.cols = 1 + below(whole->whole_cols - col);
        char name[32];
        snprintf(name, sizeof name, "part-%lld.safetensors", (long long)file);
        write_blocks(folder, name, &part, 1);
        col += part.at.cols;
    }
}

static void expect_read(const struct block_set *set, const struct block *wanted) {
    struct err e = {0};
    const struct block_place *const at = &wanted->at;
    float *const values = mem_new((size_t)(at->rows * at->cols), sizeof *values);
    must(blocks_read(set, wanted, values, &e), &e);
    for (int64_t i = 0; i < at->rows * at->cols; i++) {
        const int64_t row = at->row + i / at->cols, col = at->col + i % at->cols;
        assert_true(values[i] == (float)(row * wanted->whole_cols + col));
    }
    mem_free(values);
}

static void test_blocks_of_any_division_read_in_any_other(void **state) {
    (void)state;
    srand(SEED);
    print_message("seed %d\n", SEED);
    for (int round = 0; round < ROUNDS; round++) {
        char *const folder = scratch_new();
        struct err e = {0};
        struct block_set set;
        const int64_t rank = 1 + below(2), rows = 1 + below(9), cols = rank == 1 ? 1 : 1 + below(9);
        const struct block whole = whole_of("a.weight", rank, rows, cols);
        (rank == 2 && round % 2 ? spread_columns : spread_runs)(folder, &whole);
        must(blocks_open(&set, folder, "part-", &e), &e);
        assert_int_equal(set.tensors, 1);
        expect_read(&set, &whole);
        for (int i = 0; i < 10; i++) {
            struct block part = whole;
            part.at.row = below(rows);
            part.at.rows = 1 + below(rows - part.at.row);
            part.at.col = below(cols);
            part.at.cols = 1 + below(cols - part.at.col);
            expect_read(&set, &part);
        }
        blocks_close(&set);
        scratch_free(folder);
    }
}

static void test_blocks_missing_rows_are_named(void **state) {
    (void)state;
    char *const folder = scratch_new();
    struct err e = {0};
    struct block_set set;
    struct block parts[2] = {whole_of("exp_avg/a", 2, 4, 3), whole_of("exp_avg/a", 2, 4, 3)};
    parts[0].at = (struct block_place){0, 0, 2, 3};
    parts[1].at = (struct block_place){2, 1, 2, 2};
    write_blocks(folder, "part-1.safetensors", parts, 2);
    must(blocks_open(&set, folder, "part-", &e), &e);
    float out[12];
    const struct block whole = whole_of("exp_avg/a", 2, 4, 3), other = whole_of("b", 1, 2, 1);
    assert_int_equal(blocks_read(&set, &whole, out, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "row 2 of exp_avg/a"));
    assert_non_null(strstr(e.text, "only 2 are there"));
    err_clear(&e);
    assert_int_equal(blocks_read(&set, &other, out, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "row 0 of b"));
    err_clear(&e);
    const struct block smaller = whole_of("exp_avg/a", 2, 2, 3);
    assert_int_equal(blocks_read(&set, &smaller, out, &e), STATUS_OK);
    const struct block narrower = whole_of("exp_avg/a", 2, 4, 2);
    assert_int_equal(blocks_read(&set, &narrower, out, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "does not belong to this model"));
    blocks_close(&set);
    scratch_free(folder);
}

/* One or two stored tensors of f32 with these names and shapes. */
static void expect_refused(const char *entries, size_t data_bytes, const char *part) {
    char *const folder = scratch_new();
    struct err e = {0};
    struct block_set set;
    struct str file = {0};
    char *const header = str_format("{%s}", entries);
    for (int i = 0; i < 8; i++) {
        str_append_char(&file, (char)((uint64_t)strlen(header) >> (8 * i) & 0xFF));
    }
    str_append(&file, header);
    for (size_t i = 0; i < data_bytes; i++) {
        str_append_char(&file, 0);
    }
    mem_free(scratch_write(folder, "part-1.safetensors", file.data, file.len));
    assert_int_equal(blocks_open(&set, folder, "part-", &e), STATUS_INVALID);
    if (!strstr(e.text, part)) fail_msg("\"%s\" is not in \"%s\"", part, e.text);
    blocks_close(&set);
    str_release(&file);
    mem_free(header);
    scratch_free(folder);
}

static void test_blocks_that_lie_are_refused(void **state) {
    (void)state;
#define ONE(name, dtype, shape, from, to)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]" \
    "}"
    static const char *const PLACES[] = {"a[",
                                         "a[]",
                                         "a[0:1",
                                         "a[0:1]",
                                         "a[0:1,0:2",
                                         "a[0:1,0:2]x",
                                         "a[1:1,0:2]",
                                         "a[2:1,0:2]",
                                         "a[-1:0,0:2]",
                                         "a[0:01,0:2]",
                                         "a[00:1,0:2]",
                                         "a[ 0:1,0:2]",
                                         "a[0:1,0:2,0:1]",
                                         "a[0:1;0:2]",
                                         "a[0:1,:2]",
                                         "a[0:99999999999999999999,0:2]"};
    for (size_t i = 0; i < COUNT_OF(PLACES); i++) {
        char *const entry = str_format(
            "\"%s\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}", PLACES[i]);
        expect_refused(entry, 8, "does not end in a place");
        mem_free(entry);
    }
    expect_refused(ONE("a[0:2,0:2]", "F32", "[1,2]", "0", "8"), 8, "not that of its place");
    expect_refused(ONE("a[0:1,0:2]", "F16", "[1,2]", "0", "4"), 4, "not a vector or matrix");
    expect_refused(ONE("a", "F32", "[1,1,2]", "0", "8"), 8, "not a vector or matrix");
    expect_refused(ONE("a", "F32", "[]", "0", "4"), 4, "not a vector or matrix");
    expect_refused(ONE("a[0:1,0:2]", "F32", "[1,2]", "0", "8") "," ONE("a[0:2,1:2]", "F32", "[2,1]",
                                                                       "8", "16"),
                   16, "overlap");
    expect_refused(
        ONE("a", "F32", "[1,2]", "0", "8") "," ONE("a[3:4,0:2]", "F32", "[1,2]", "8", "16"), 16,
        "all of a tensor");
    expect_refused(
        ONE("a[0:1]", "F32", "[1]", "0", "4") "," ONE("a[0:1,0:1]", "F32", "[1,1]", "4", "8"), 8,
        "all of a tensor");
#undef ONE
    char *const folder = scratch_new();
    struct err e = {0};
    struct block_set set;
    assert_int_equal(blocks_open(&set, folder, "part-", &e), STATUS_NOT_FOUND);
    blocks_close(&set);
    scratch_free(folder);
}

/* ---- the memory of a result ---------------------------------------------------------------- */

enum { LARGE_ROWS = 6144, LARGE_COLS = 2048, ALLOWED_BYTES = 16 << 20 };

static int64_t data_bytes_now(void) {
    struct str text = {0};
    struct err e = {0};
    must(file_read("/proc/self/status", 1 << 16, &text, &e), &e);
    const char *line = strstr(str_text(&text), "VmData:");
    assert_non_null(line);
    line += strcspn(line, "0123456789");
    char *const digits = mem_strndup(line, strspn(line, "0123456789"));
    int64_t kilobytes = 0;
    must(str_to_i64(digits, "VmData", &kilobytes, &e), &e);
    mem_free(digits);
    str_release(&text);
    return kilobytes << 10;
}

/* In a process that may not have more memory. */
static int assemble_bounded(const char *folder, const char *path, const struct param *tensor) {
    struct err e = {0};
    struct block_set set;
    const rlim_t most = (rlim_t)(data_bytes_now() + ALLOWED_BYTES);
    const struct rlimit limit = {most, most};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) return 2;
    if (blocks_open(&set, folder, "part-", &e) != STATUS_OK) return 3;
    const enum status status = weights_assemble(tensor, 1, &set, ST_BF16, path, &e);
    blocks_close(&set);
    return status == STATUS_OK ? 0 : 4;
}

static void test_assembling_a_tensor_takes_little_memory(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    skip(); /* its shadow is memory, too */
#endif
    char *const folder = scratch_new(), *const path = file_join(folder, "model.safetensors");
    struct block parts[2] = {whole_of("w", 2, LARGE_ROWS, LARGE_COLS),
                             whole_of("w", 2, LARGE_ROWS, LARGE_COLS)};
    parts[0].at.cols = LARGE_COLS / 2 + 1;
    parts[1].at =
        (struct block_place){0, parts[0].at.cols, LARGE_ROWS, LARGE_COLS - parts[0].at.cols};
    write_blocks(folder, "part-1.safetensors", &parts[0], 1);
    write_blocks(folder, "part-2.safetensors", &parts[1], 1);
    const struct param tensor = {
        .name = "w", .rank = 2, .whole_rows = LARGE_ROWS, .whole_cols = LARGE_COLS};
    const pid_t child = fork();
    if (child == 0) _exit(assemble_bounded(folder, path, &tensor));
    int ended = 0;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    assert_int_equal(WEXITSTATUS(ended), 0);
    assert_true(ALLOWED_BYTES < LARGE_ROWS * LARGE_COLS * 4);
    struct st_set set;
    struct err e = {0};
    must(st_open_file(&set, path, &e), &e);
    const struct st_tensor *const w = st_find(&set, "w");
    float last[2];
    must(st_read_f32(w, w->elements - 2, 2, last, &e), &e);
    assert_true(last[1] == 12582912.0F); /* the nearest bf16 of 12582911 */
    st_close(&set);
    mem_free(path);
    scratch_free(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_cut_covers_every_run_in_order),
        cmocka_unit_test(test_blocks_of_any_division_read_in_any_other),
        cmocka_unit_test(test_blocks_missing_rows_are_named),
        cmocka_unit_test(test_blocks_that_lie_are_refused),
        cmocka_unit_test(test_assembling_a_tensor_takes_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
