/* test_dataset_cache.c - goal: an encoded data set that is kept is exactly what encoding gives, is
 * found again by contents alone, is never stale, and a damaged file is made anew. Method: small
 * files loaded again and again in a scratch cache, with one input changed at a time; bytes of the
 * cached file overturned one after another; several processes at once.
 * rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/cache.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/text/dataset_cache.h"
#include "engine/text/dataset_store.h"
#include "engine/text/template.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/support_scratch.h"

static const char ROWS[] =
    "{\"text\":\"one\"}\n\n{\"text\":\"and two\"}\n{\"text\":\"three <s>\"}\n"
    "{\"text\":\"\"}\n";

struct world {
    char *scratch, *rows, *model;
    struct cache_place place;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct dataset_options options;
    int64_t progress_calls;
};

static void copy_model(struct world *w) {
    struct str text = {0};
    struct err e = {0};
    w->model = file_join(w->scratch, "model");
    assert_int_equal(file_make_folder(w->model, &e), STATUS_OK);
    static const char *const NAMES[] = {"tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        char *const from = str_format("tests/unit/data/dataset/bos/%s", NAMES[i]);
        str_clear(&text);
        assert_int_equal(file_read(from, 1 << 20, &text, &e), STATUS_OK);
        mem_free(scratch_write(w->model, NAMES[i], text.data, text.len));
        mem_free(from);
    }
    str_release(&text);
}

static int setup(void **state) {
    struct world *const w = mem_new(1, sizeof *w);
    struct err e = {0};
    w->scratch = scratch_new();
    w->rows = scratch_write(w->scratch, "rows.jsonl", ROWS, sizeof ROWS - 1);
    w->place = (struct cache_place){file_join(w->scratch, "cache"), 1 << 30};
    assert_int_equal(file_make_folder(w->place.folder, &e), STATUS_OK);
    copy_model(w);
    assert_int_equal(tokenizer_open(&w->tokenizer, w->model, &e), STATUS_OK);
    w->options = (struct dataset_options){
        .max_length = 100, .vocab = 1000, .tokenizer = w->tokenizer, .now_unix_s = 7};
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *const w = *state;
    tokenizer_free(w->tokenizer);
    chat_template_free(w->chat);
    mem_free(w->rows);
    mem_free(w->model);
    cache_place_release(&w->place);
    scratch_free(w->scratch);
    mem_free(w);
    return 0;
}

static void count_call(void *context, const struct dataset_progress *progress) {
    struct world *const w = context;
    assert_true(progress->bytes <= progress->bytes_total);
    w->progress_calls++;
}

static void load(struct world *w, struct dataset *d, bool expect_cached) {
    struct err e = {0};
    const struct dataset_keeping keeping = {
        .place = &w->place, .model_folder = w->model, .context = w, .progress = count_call};
    const enum status status = dataset_load(d, &w->rows, 1, &w->options, &keeping, &e);
    if (status != STATUS_OK) fail_msg("%s", e.text);
    assert_int_equal(d->from_cache, expect_cached);
}

static void load_once(struct world *w, bool expect_cached) {
    struct dataset d;
    load(w, &d, expect_cached);
    dataset_release(&d);
}

static void expect_same(const struct dataset *a, const struct dataset *b) {
    assert_int_equal(a->format, b->format);
    assert_memory_equal(&a->counts, &b->counts, sizeof a->counts);
    for (int64_t i = 0; i < a->counts.samples; i++) {
        const struct sample x = dataset_sample(a, i), y = dataset_sample(b, i);
        assert_int_equal(x.count, y.count);
        assert_int_equal(x.line, y.line);
        assert_memory_equal(x.ids, y.ids, (size_t)x.count * sizeof *x.ids);
        assert_memory_equal(x.trained, y.trained, (size_t)x.count);
    }
}

static char *cached_path(const struct world *w) {
    char *path = NULL;
    struct err e = {0};
    const struct dataset_keeping keeping = {.place = &w->place, .model_folder = w->model};
    assert_int_equal(dataset_cache_path(&path, &keeping, &w->rows, 1, &w->options, &e), STATUS_OK);
    return path;
}

static size_t cached_files(const struct world *w) {
    char **names = NULL;
    size_t count = 0;
    assert_int_equal(file_list(w->place.folder, &names, &count, NULL), STATUS_OK);
    file_names_free(names, count);
    return count;
}

static void test_dataset_cache_is_what_encoding_gives(void **state) {
    struct world *const w = *state;
    struct dataset memory, made, found;
    struct err e = {0};
    assert_int_equal(dataset_load(&memory, &w->rows, 1, &w->options, NULL, &e), STATUS_OK);
    load(w, &made, false);
    assert_int_equal(w->progress_calls, 1);
    load(w, &found, true);
    assert_int_equal(w->progress_calls, 1); /* nothing was encoded */
    assert_int_equal(memory.counts.samples, 3);
    assert_int_equal(memory.counts.rows, 4);
    assert_int_equal(memory.counts.problems[ROW_UNTRAINED].rows, 1);
    assert_int_equal(memory.counts.problems[ROW_UNTRAINED].first[0].line, 5);
    assert_int_equal(memory.counts.control_tokens, 1);
    expect_same(&memory, &made);
    expect_same(&memory, &found);
    assert_int_equal(cached_files(w), 1); /* and no unfinished ones */
    dataset_release(&memory);
    dataset_release(&made);
    dataset_release(&found);
}

/* Every input is part of the name, and only inputs are. */
static void test_dataset_cache_is_never_stale(void **state) {
    struct world *const w = *state;
    load_once(w, false);
    w->options.mask = MASK_ALL;
    load_once(w, false);
    w->options.max_length = 5;
    load_once(w, false);
    w->options.parse_special = true;
    load_once(w, false);
    w->options.replace_invalid_utf8 = true;
    load_once(w, false);
    w->options.now_unix_s = 8; /* no template asks for the time */
    load_once(w, true);
    mem_free(scratch_write(w->scratch, "rows.jsonl", "{\"text\":\"one\"}\n", 15));
    load_once(w, false);
    mem_free(scratch_write(w->model, "chat_template.jinja", "{{ 1 }}", 7));
    load_once(w, false);
    mem_free(scratch_write(w->model, "chat_template.jinja", "{{ strftime_now('%Y') }}", 24));
    load_once(w, false);
    w->options.now_unix_s = 9;
    load_once(w, false);
    load_once(w, true);
    char *const copy = scratch_write(w->scratch, "other name.jsonl", "{\"text\":\"one\"}\n", 15);
    mem_free(w->rows);
    w->rows = copy; /* the same bytes under another name */
    load_once(w, true);
    struct str text = {0};
    char *const path = file_join(w->model, "tokenizer.json");
    assert_int_equal(file_read(path, 1 << 20, &text, NULL), STATUS_OK);
    str_append_char(&text, '\n');
    assert_int_equal(file_write_atomic(path, text.data, text.len, NULL), STATUS_OK);
    load_once(w, false);
    str_release(&text);
    mem_free(path);
}

/* Any overturned byte and any missing end is noticed, and the file is made anew. */
static void test_dataset_cache_damaged_files_are_made_anew(void **state) {
    struct world *const w = *state;
    struct dataset expected;
    load(w, &expected, false);
    char *const path = cached_path(w);
    struct str whole = {0};
    assert_int_equal(file_read(path, 1 << 20, &whole, NULL), STATUS_OK);
    for (size_t at = 0; at < whole.len; at += 11) {
        whole.data[at] ^= 0x40;
        assert_int_equal(file_write_atomic(path, whole.data, whole.len, NULL), STATUS_OK);
        whole.data[at] ^= 0x40;
        struct dataset d;
        load(w, &d, false);
        expect_same(&expected, &d);
        dataset_release(&d);
    }
    const size_t lengths[] = {0, 1, 16, whole.len / 2, whole.len - 1};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        assert_int_equal(file_write_atomic(path, whole.data, lengths[i], NULL), STATUS_OK);
        load_once(w, false);
    }
    load_once(w, true);
    dataset_release(&expected);
    str_release(&whole);
    mem_free(path);
}

static void test_dataset_cache_of_a_wrong_file_is_not_kept(void **state) {
    struct world *const w = *state;
    struct dataset d;
    struct err e = {0};
    const struct dataset_keeping keeping = {.place = &w->place, .model_folder = w->model};
    mem_free(scratch_write(w->scratch, "rows.jsonl", "{\"text\":\"a\"}\n{\"text\":1}\n", 25));
    assert_int_equal(dataset_load(&d, &w->rows, 1, &w->options, &keeping, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "line 2"));
    dataset_release(&d);
    assert_int_equal(cached_files(w), 0);
}

/* What is asked for on top of the files is part of the name: folding, and the exchanged pattern,
 * which leaves the files as they are. */
static void test_dataset_cache_A07_B06_overrides_are_part_of_the_name(void **state) {
    static const char PATTERNED[] =
        "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|"
        "'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+"
        "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\"},"
        "\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0},\"merges\":[]}}";
    struct world *const w = *state;
    struct tokenizer *fixed = NULL;
    struct err e = {0};
    const struct tokenizer_options fix = {.fix_mistral_regex = true};
    char *const plain = cached_path(w);
    w->options.fold_system = true;
    char *const folding = cached_path(w);
    assert_string_not_equal(plain, folding);
    tokenizer_free(w->tokenizer);
    w->tokenizer = NULL;
    mem_free(scratch_write(w->model, "tokenizer.json", PATTERNED, sizeof PATTERNED - 1));
    mem_free(scratch_write(w->model, "tokenizer_config.json", "{}", 2));
    mem_free(scratch_write(w->model, "config.json", "{\"model_type\":\"mistral\"}", 24));
    assert_int_equal(tokenizer_open(&w->tokenizer, w->model, &e), STATUS_OK);
    w->options.tokenizer = w->tokenizer;
    char *const wrong = cached_path(w);
    if (tokenizer_open_with(&fixed, w->model, &fix, &e) != STATUS_OK) fail_msg("%s", e.text);
    w->options.tokenizer = fixed;
    char *const right = cached_path(w);
    assert_string_not_equal(wrong, right);
    tokenizer_free(fixed);
    mem_free(plain);
    mem_free(folding);
    mem_free(wrong);
    mem_free(right);
}

static void test_dataset_cache_drops_the_longest_unused(void **state) {
    struct world *const w = *state;
    char *paths[3];
    for (int i = 0; i < 3; i++) {
        w->options.max_length = 50 + i;
        load_once(w, false);
        paths[i] = cached_path(w);
    }
    int64_t bytes = 0;
    assert_int_equal(file_size(paths[2], &bytes, NULL), STATUS_OK);
    cache_touch(paths[0]);
    w->place.bytes_max = 2 * bytes + bytes / 2;
    cache_trim(&w->place, DATASET_CACHE_SUFFIX, paths[2]);
    assert_true(file_exists(paths[0]) && !file_exists(paths[1]) && file_exists(paths[2]));
    w->place.bytes_max = 0; /* what was just made stays, however large */
    w->options.max_length = 40;
    load_once(w, false);
    load_once(w, true);
    assert_int_equal(cached_files(w), 1);
    for (int i = 0; i < 3; i++) {
        mem_free(paths[i]);
    }
}

/* One of several processes that want the same data set. Not a fork: OpenMP does not survive one. */
static int be_a_child(char **arguments) {
    const bool damages = str_equal(arguments[3], "0"), removes = str_equal(arguments[3], "1");
    struct cache_place place = {arguments[1], 1 << 30};
    struct tokenizer *tokenizer = NULL;
    struct err e = {0};
    bool good = tokenizer_open(&tokenizer, arguments[2], &e) == STATUS_OK;
    const struct dataset_options options = {
        .max_length = 100, .vocab = 1000, .tokenizer = tokenizer, .now_unix_s = 7};
    const struct dataset_keeping keeping = {.place = &place, .model_folder = arguments[2]};
    char *path = NULL;
    good = good && dataset_cache_path(&path, &keeping, arguments, 1, &options, &e) == STATUS_OK;
    for (int i = 0; i < 25 && good; i++) {
        struct dataset d;
        good = dataset_load(&d, arguments, 1, &options, &keeping, &e) == STATUS_OK &&
               d.counts.samples == 3 && dataset_sample(&d, 2).line == 4;
        dataset_release(&d);
        if (damages) (void)file_write_atomic(path, "damaged", 7, NULL);
        if (removes) (void)file_remove_all(path, NULL);
    }
    if (!good) fprintf(stderr, "child %s: %s\n", arguments[3], e.text);
    mem_free(path);
    tokenizer_free(tokenizer);
    return good ? 0 : 1;
}

static void test_dataset_cache_is_safe_for_several_processes(void **state) {
    struct world *const w = *state;
    pid_t children[4];
    for (int c = 0; c < 4; c++) {
        char number[2] = {(char)('0' + c), 0}, name[] = "test_dataset_cache";
        char *const arguments[] = {name, w->rows, w->place.folder, w->model, number, NULL};
        assert_int_equal(
            posix_spawn(&children[c], "/proc/self/exe", NULL, NULL, arguments, environ), 0);
    }
    for (int c = 0; c < 4; c++) {
        int how = 0;
        assert_int_equal(waitpid(children[c], &how, 0), children[c]);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    }
}

static void test_cache_place_comes_from_the_environment(void **state) {
    struct world *const w = *state;
    struct cache_place place;
    struct err e = {0};
    char *const one = file_join(w->scratch, "one"), *const xdg = file_join(w->scratch, "xdg");
    setenv("XDG_CACHE_HOME", xdg, 1);
    unsetenv("PLIMSOLL_CACHE_DIR");
    assert_int_equal(cache_place_find(&place, &e), STATUS_OK);
    assert_true(str_starts_with(place.folder, xdg) && file_is_folder(place.folder));
    cache_place_release(&place);
    cache_place_preset(one);
    cache_place_preset(xdg); /* what is set stays */
    setenv("PLIMSOLL_CACHE_MAX", "3GiB", 1);
    assert_int_equal(cache_place_find(&place, &e), STATUS_OK);
    assert_string_equal(place.folder, one);
    assert_int_equal(place.bytes_max, (int64_t)3 << 30);
    cache_place_release(&place);
    setenv("PLIMSOLL_CACHE_MAX", "much", 1);
    assert_int_equal(cache_place_find(&place, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "PLIMSOLL_CACHE_MAX"));
    cache_place_release(&place);
    unsetenv("PLIMSOLL_CACHE_MAX");
    char *const below = str_format("%s/below", w->rows); /* a file is no folder */
    setenv("PLIMSOLL_CACHE_DIR", below, 1);
    err_clear(&e);
    assert_int_not_equal(cache_place_find(&place, &e), STATUS_OK);
    assert_non_null(strstr(e.text, "PLIMSOLL_CACHE_DIR"));
    cache_place_release(&place);
    unsetenv("PLIMSOLL_CACHE_DIR");
    unsetenv("XDG_CACHE_HOME");
    mem_free(below);
    mem_free(one);
    mem_free(xdg);
}

int main(int argc, char **argv) {
    if (argc == 5) return be_a_child(argv + 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_dataset_cache_is_what_encoding_gives, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dataset_cache_is_never_stale, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dataset_cache_damaged_files_are_made_anew, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_dataset_cache_of_a_wrong_file_is_not_kept, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_dataset_cache_A07_B06_overrides_are_part_of_the_name,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_dataset_cache_drops_the_longest_unused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_dataset_cache_is_safe_for_several_processes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_cache_place_comes_from_the_environment, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
