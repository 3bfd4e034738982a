/* test_snapshot.c - goal: the pickle writer writes exactly the bytes of the format, closes long
 * lists in pieces that the viewer can spread, and leaves no file behind when it fails; a snapshot
 * of an arena is such a file. Method: bytes by hand from the format's own description. That the
 * file is one that the viewer and Python read is proven in tests/memory/watch_snapshot.mjs. */
/* rooms: engine_memory */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/memory/pickle.h"
#include "engine/memory/snapshot.h"

static char *new_path(void) {
    return str_format("/tmp/plimsoll-test-snapshot-%d", (int)getpid());
}

/* The file's bytes; it is removed. */
static void read_and_remove(const char *path, struct str *out) {
    struct err e = {0};
    assert_int_equal(file_read(path, 1 << 26, out, &e), STATUS_OK);
    assert_int_equal(file_remove_all(path, &e), STATUS_OK);
}

static void test_pickle_bytes_are_those_of_the_format(void **state) {
    (void)state;
    static const unsigned char WANTED[] = {
        0x80, 2,                                             /* protocol 2 */
        '}',  '(',                                           /* a dict */
        'X',  1,    0,    0,    0,    'a',  'r', 0, 0, 0, 0, /* "a", remembered as 0 */
        ']',  '(',                                           /* a list */
        'K',  255,                                           /* one byte */
        'J',  0,    1,    0,    0,                           /* 256 */
        'J',  0xFF, 0xFF, 0xFF, 0xFF,                        /* -1 */
        0x8A, 8,    0,    0,    0,    0x80, 0,   0, 0, 0,    /* 2^31 */
        0x88, 0x89,                                          /* true, false */
        'j',  0,    0,    0,    0,                           /* "a" again */
        'K',  1,    'K',  2,    0x86,                        /* a pair */
        'G',  0x3F, 0xF0, 0,    0,    0,    0,   0, 0,       /* 1.0 */
        'e',  'u',  '.'};
    struct pickle p;
    struct err e = {0};
    struct str bytes = {0};
    char *path = new_path();
    assert_int_equal(pickle_open(&p, path, &e), STATUS_OK);
    pickle_dict(&p);
    pickle_string(&p, "a");
    pickle_list(&p);
    pickle_i64(&p, 255);
    pickle_i64(&p, 256);
    pickle_i64(&p, -1);
    pickle_i64(&p, INT64_C(1) << 31);
    pickle_bool(&p, true);
    pickle_bool(&p, false);
    pickle_string(&p, "a");
    pickle_pair(&p, 1, 2);
    pickle_f64(&p, 1);
    pickle_list_end(&p);
    pickle_dict_end(&p);
    assert_int_equal(pickle_commit(&p, &e), STATUS_OK);
    pickle_close(&p);
    read_and_remove(path, &bytes);
    assert_int_equal(bytes.len, sizeof WANTED);
    assert_memory_equal(bytes.data, WANTED, sizeof WANTED);
    str_release(&bytes);
    mem_free(path);
}

/* A remembered value may be the last of a piece: the number belongs to it, not to the list. */
static void test_pickle_long_list_is_closed_in_pieces(void **state) {
    (void)state;
    enum { ITEMS = 2500 };
    struct pickle p;
    struct err e = {0};
    struct str bytes = {0};
    char *path = new_path();
    assert_int_equal(pickle_open(&p, path, &e), STATUS_OK);
    pickle_list(&p);
    for (int i = 0; i < ITEMS; i++) {
        pickle_i64(&p, 7);
        if (i == 999) assert_int_equal(pickle_remember(&p), 0);
    }
    pickle_list_end(&p);
    assert_int_equal(pickle_commit(&p, &e), STATUS_OK);
    pickle_close(&p);
    read_and_remove(path, &bytes);
    const unsigned char *at = (const unsigned char *)bytes.data + 4;
    assert_int_equal(at[2 * 999], 'K');
    assert_int_equal(at[2 * 1000], 'r');
    int pieces = 0;
    for (size_t i = 0; i + 1 < bytes.len; i++) {
        pieces += bytes.data[i] == 'e' && bytes.data[i + 1] == '(';
    }
    assert_int_equal(pieces, 2);
    str_release(&bytes);
    mem_free(path);
}

static void test_pickle_that_is_given_up_leaves_nothing(void **state) {
    (void)state;
    struct pickle p;
    struct err e = {0};
    char *path = new_path();
    assert_int_equal(pickle_open(&p, path, &e), STATUS_OK);
    pickle_i64(&p, 1);
    pickle_close(&p);
    assert_false(file_exists(path));
    assert_int_not_equal(pickle_open(&p, "/nowhere/at/all", &e), STATUS_OK);
    pickle_close(&p);
    mem_free(path);
}

/* A rank has the lists of the ranks before it, so that files of several ranks look alike. */
static void test_snapshot_of_an_arena_is_one_file(void **state) {
    (void)state;
    struct device *device = NULL;
    struct arena *arena = NULL;
    struct arena_block *block = NULL;
    struct err e = {0};
    struct str bytes = {0};
    char *path = new_path();
    assert_int_equal(device_open(&device, "null:cpu", &(struct device_options){0}, &e), STATUS_OK);
    assert_int_equal(arena_open(&arena, device, 64 << 20, &e), STATUS_OK);
    struct trace *const trace = trace_new(100);
    trace_begin(trace, arena);
    assert_int_equal(arena_alloc(arena, 1000, CATEGORY_WEIGHTS, &block, &e), STATUS_OK);
    trace_end(trace);
    const struct snapshot_place place = {.rank = 2, .step = 5};
    assert_int_equal(snapshot_write(arena, trace, &place, path, &e), STATUS_OK);
    read_and_remove(path, &bytes);
    const char *const words[] = {"segments", "device_traces",      "segment_map", "alloc",
                                 "weights",  "active_allocated",   "inactive",    "snapshot",
                                 "unknown",  "expandable_segments"};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (!memmem(bytes.data, bytes.len, words[i], strlen(words[i])))
            fail_msg("%s is not in the file", words[i]);
    }
    static const char EMPTY_RANKS[] = "](](e](e](}(";
    assert_non_null(memmem(bytes.data, bytes.len, EMPTY_RANKS, sizeof EMPTY_RANKS - 1));
    assert_int_not_equal(snapshot_write(arena, trace, &place, "/nowhere/at/all", &e), STATUS_OK);
    str_release(&bytes);
    trace_free(trace);
    arena_free(arena, block);
    arena_close(arena);
    device_close(device);
    mem_free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pickle_bytes_are_those_of_the_format),
        cmocka_unit_test(test_pickle_long_list_is_closed_in_pieces),
        cmocka_unit_test(test_pickle_that_is_given_up_leaves_nothing),
        cmocka_unit_test(test_snapshot_of_an_arena_is_one_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
