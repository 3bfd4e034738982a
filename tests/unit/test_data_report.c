/* test_data_report.c - goal: what `plimsoll-engine data` tells of a file is what training would do
 * with it, and every row can be shown, whatever it holds. Method: small files under the sample
 * model, whose tokenizer is byte-level and cuts characters; the answers are taken apart as JSON.
 * rooms: engine_train engine_model engine_text engine_contract engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/train/corpus.h"
#include "engine/train/data_ask.h"
#include "engine/train/data_report.h"
#include "tests/unit/support_scratch.h"

static const char MODEL[] = "examples/models/harbour-1m";

enum { WORDS_MAX = 12 };

/* Asks about a file of these rows; the words end with NULL. *text is the answer, the caller's to
 * free, or NULL after an error. */
static enum status ask(const char *rows, const char *const *words, char **text, struct err *e) {
    char *const folder = scratch_new();
    char *const path = scratch_write(folder, "rows.jsonl", rows, strlen(rows));
    char *args[WORDS_MAX + 5] = {"--model", (char *)(uintptr_t)MODEL, "--file", path};
    for (int i = 0; words[i]; i++) {
        args[4 + i] = (char *)(uintptr_t)words[i];
    }
    cJSON *out = NULL;
    struct str answer = {0};
    const enum status status = data_ask(args, &out, e);
    if (status == STATUS_OK) json_append(&answer, out);
    *text = status == STATUS_OK ? str_take(&answer) : NULL;
    cJSON_Delete(out);
    mem_free(path);
    scratch_free(folder);
    return status;
}

/* The answer as a tree; the caller frees it. */
static cJSON *asked(const char *rows, const char *const *words) {
    char *text = NULL;
    cJSON *tree = NULL;
    struct err e = {0};
    const enum status status = ask(rows, words, &text, &e);
    if (status != STATUS_OK) print_error("%s\n", e.text);
    assert_int_equal(status, STATUS_OK);
    assert_int_equal(json_parse(text, strlen(text), "answer", &tree, &e), STATUS_OK);
    mem_free(text);
    return tree;
}

static cJSON *report_of(const char *rows, const char *max_length) {
    const char *const words[] = {"--data.max_length", max_length, NULL};
    return asked(rows, words);
}

static int64_t number(const cJSON *object, const char *key) {
    int64_t value = -1;
    struct err e = {0};
    assert_int_equal(json_get_i64(object, key, &value, &e), STATUS_OK);
    return value;
}

static const char *text_of(const cJSON *object, const char *key) {
    const char *value = NULL;
    struct err e = {0};
    assert_int_equal(json_get_string(object, key, &value, &e), STATUS_OK);
    return value;
}

static const cJSON *problem(const cJSON *report, const char *name) {
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, json_member(report, "problems")) {
        if (strcmp(text_of(item, "name"), name) == 0) return item;
    }
    fail_msg("there is no problem %s", name);
    return NULL;
}

/* The rows a problem names, "3,7". */
static void expect_rows(const cJSON *report, const char *name, const char *expected) {
    struct str rows = {0};
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, json_member(problem(report, name), "rows")) {
        str_appendf(&rows, "%s%lld", rows.len ? "," : "", (long long)number(item, "row"));
    }
    assert_string_equal(str_text(&rows), expected);
    str_release(&rows);
}

#define CHAT(user, assistant)                                                                      \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"" user                                        \
    "\"},{\"role\":\"assistant\",\"content\":\"" assistant "\"}]}\n"

static const char MIXED[] =
    CHAT("Hello", "Aye.") "\n" /* blank lines are no rows, and count as lines */
    CHAT(
        "a",
        "one two three four five six seven eight nine ten eleven twelve") "{\"messages\":[{"
                                                                          "\"role\":\"user\","
                                                                          "\"content\":\"a\"},"
                                                                          "{\"role\":\"assistant\","
                                                                          "\"content\":\"x\","
                                                                          "\"weight\":0}]}\n" CHAT(
                                                                              "one two three four "
                                                                              "five six seven "
                                                                              "eight nine ten "
                                                                              "eleven twelve "
                                                                              "thirteen",
                                                                              "b") "{oops\n"
                                                                                   "{\"messages\":["
                                                                                   "{\"role\":"
                                                                                   "\"user\","
                                                                                   "\"content\":\"<"
                                                                                   "|im_end|>\"},"
                                                                                   "{\"role\":"
                                                                                   "\"assistant\","
                                                                                   "\"content\":"
                                                                                   "\"c\"}],"
                                                                                   "\"mood\":1}\n";

static void test_report_problems_are_counted_with_their_rows(void **state) {
    (void)state;
    cJSON *const report = report_of(MIXED, "24");
    assert_int_equal(number(report, "rows"), 6);
    assert_string_equal(text_of(report, "format"), "messages");
    expect_rows(report, "cut", "2");
    expect_rows(report, "untrained", "3");
    expect_rows(report, "answer_cut", "4");
    expect_rows(report, "invalid", "5");
    expect_rows(report, "control_tokens", "6");
    expect_rows(report, "extra_keys", "6");
    expect_rows(report, "dropped_message", "");
    const cJSON *const wrong =
        cJSON_GetArrayItem(json_member(problem(report, "invalid"), "rows"), 0);
    assert_int_equal(number(wrong, "line"), 6);
    assert_non_null(strstr(text_of(wrong, "message"), "not valid JSON"));
    assert_non_null(strstr(text_of(report, "refusal"), "line 6: not valid JSON"));
    assert_int_equal(number(report, "samples"), 3);
    cJSON_Delete(report);
}

static void test_report_refusal_follows_the_limits_of_a_run(void **state) {
    (void)state;
    static const char rows[] =
        CHAT("a", "b") "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
                       "{\"role\":\"assistant\",\"content\":\"x\",\"weight\":0}]}\n";
    cJSON *const strict = report_of(rows, "64");
    assert_non_null(strstr(text_of(strict, "refusal"), "data.max_rows_untrained"));
    assert_non_null(strstr(text_of(strict, "refusal"), "First: line 2."));
    cJSON_Delete(strict);
    const char *const words[] = {"--data.max_rows_untrained", "1", NULL};
    cJSON *const lenient = asked(rows, words);
    assert_null(text_of(lenient, "refusal"));
    cJSON_Delete(lenient);
}

static void test_report_counts_add_up(void **state) {
    (void)state;
    cJSON *const report = report_of(CHAT("Hello", "Aye.") CHAT("Where?", "Ashore."), "1024");
    const cJSON *const lengths = json_member(report, "lengths");
    int64_t drawn = number(json_member(report, "histogram"), "beyond");
    const cJSON *bar = NULL;
    cJSON_ArrayForEach(bar, json_member(json_member(report, "histogram"), "counts")) {
        drawn += (int64_t)bar->valuedouble;
    }
    assert_int_equal(drawn, 2);
    assert_int_equal(number(report, "samples"), 2);
    assert_true(number(report, "trained_tokens") > 0);
    assert_true(number(report, "trained_tokens") < number(report, "tokens"));
    assert_true(number(lengths, "p50") <= number(lengths, "p99"));
    assert_int_equal(number(lengths, "p99"), number(lengths, "longest"));
    cJSON_Delete(report);
}

static void test_report_one_far_row_stays_outside_the_picture(void **state) {
    (void)state;
    struct str rows = {0};
    for (int i = 0; i < 300; i++) {
        str_append(&rows, "{\"text\":\"short text\"}\n");
    }
    str_append(&rows, "{\"text\":\"");
    for (int i = 0; i < 2000; i++) {
        str_append(&rows, "rope ");
    }
    str_append(&rows, "\"}\n");
    cJSON *const report = report_of(str_text(&rows), "64");
    const cJSON *const histogram = json_member(report, "histogram");
    assert_int_equal(number(histogram, "beyond"), 1);
    assert_true(cJSON_GetArraySize(json_member(histogram, "counts")) >= 4);
    assert_true(number(json_member(report, "lengths"), "longest") >= 2000);
    /* A long text is trained in pieces, not cut. */
    assert_int_equal(number(problem(report, "cut"), "count"), 0);
    assert_true(number(report, "samples") > 301);
    cJSON_Delete(report);
    str_release(&rows);
}

static void test_report_file_that_cannot_be_read_on_says_where(void **state) {
    (void)state;
    static const char rows[] = "[{\"text\":\"a b\"},\n{\"text\":\"b\"";
    cJSON *const report = report_of(rows, "64");
    assert_int_equal(number(report, "rows"), 1);
    assert_int_equal(number(problem(report, "invalid"), "count"), 1);
    const cJSON *const row = cJSON_GetArrayItem(json_member(problem(report, "invalid"), "rows"), 0);
    assert_int_equal(number(row, "line"), 2);
    cJSON_Delete(report);
    const char *const words[] = {"--row", "9", NULL};
    struct err e = {0};
    char *text = NULL;
    assert_int_equal(ask(rows, words, &text, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "row 9 cannot be reached"));
    assert_non_null(strstr(e.text, "line 2"));
}

static void test_report_in_no_time_tells_what_was_read(void **state) {
    (void)state;
    struct str rows = {0};
    for (int i = 0; i < 60000; i++) {
        str_append(&rows, CHAT("How do you moor a ship?", "Lines ashore. Make them fast."));
    }
    const char *const words[] = {"--seconds", "1", NULL};
    cJSON *const report = asked(str_text(&rows), words);
    double share = 0;
    struct err e = {0};
    assert_int_equal(json_get_f64(report, "read_share", &share, &e), STATUS_OK);
    /* A fast machine may read it all; then it must say so. */
    const bool complete = cJSON_IsTrue(json_member(report, "complete"));
    assert_true(complete == (number(report, "rows") == 60000));
    assert_true(complete ? share == 1 : share < 1);
    assert_true(number(report, "samples") == number(report, "rows"));
    cJSON_Delete(report);
    str_release(&rows);
}

static void test_report_empty_file_has_no_lengths(void **state) {
    (void)state;
    cJSON *const report = report_of("\n\n", "64");
    assert_int_equal(number(report, "rows"), 0);
    assert_int_equal(cJSON_GetArraySize(json_member(json_member(report, "histogram"), "counts")),
                     0);
    assert_true(cJSON_IsNull(json_member(report, "packing")));
    assert_non_null(text_of(report, "refusal"));
    cJSON_Delete(report);
}

/* Tokens of rows over tokens computed, of one epoch without packing. */
static double padded_fill(const struct dataset *data, const struct spec *spec) {
    struct batch_options options = corpus_batch_options(spec, 0, false);
    struct batcher batcher;
    struct batch batch = {0};
    struct err e = {0};
    int64_t computed = 0, real = 0;
    options.packing = false;
    assert_int_equal(batcher_open(&batcher, data, &options, &e), STATUS_OK);
    for (int64_t step = 0; step < batcher.steps_per_epoch; step++) {
        batcher_step(&batcher, step);
        for (int64_t micro = 0; micro < batcher.micro_count; micro++) {
            batcher_micro(&batcher, micro, &batch);
            computed += batch.tokens;
            real += batch.real_tokens;
        }
    }
    batch_release(&batch);
    batcher_close(&batcher);
    return (double)real / (double)computed;
}

static void expect_same(const cJSON *report, const struct dataset *data, const struct spec *spec) {
    double told = 0;
    struct err e = {0};
    assert_int_equal(number(report, "rows"), data->counts.rows);
    assert_int_equal(number(report, "samples"), data->counts.samples);
    assert_int_equal(number(report, "tokens"), data->counts.tokens);
    assert_int_equal(number(report, "trained_tokens"), data->counts.trained_tokens);
    for (int i = 0; i < ROW_PROBLEM_COUNT; i++) {
        const char *const name = row_problem_name((enum row_problem)i);
        assert_int_equal(number(problem(report, name), "count"), data->counts.problems[i].rows);
    }
    assert_int_equal(json_get_f64(json_member(report, "packing"), "padded_fill", &told, &e),
                     STATUS_OK);
    assert_float_equal(told, padded_fill(data, spec), 1e-12);
}

static void test_report_is_what_training_loads(void **state) {
    (void)state;
    static const char *const specs[] = {
        "{\"model\":\"examples/models/harbour-1m\",\"data\":{\"train_files\":[\"examples/"
        "first-mate.jsonl\"]}}",
        "{\"model\":\"examples/models/harbour-1m\",\"data\":{\"train_files\":[\"examples/"
        "first-mate.jsonl\"],"
        "\"max_length\":40,\"mask\":\"last\"},\"gradient_accumulation_steps\":3,\"seed\":7}",
        "{\"model\":\"examples/models/harbour-1m\",\"data\":{\"train_files\":[\"examples/"
        "first-mate.jsonl\"],"
        "\"max_length\":64,\"split_turns\":true,\"shuffle\":false}}",
        "{\"model\":\"examples/models/harbour-1m\",\"data\":{\"train_files\":[\"examples/"
        "logbook.jsonl\"],"
        "\"max_length\":16},\"per_device_train_batch_size\":2}",
    };
    for (size_t i = 0; i < COUNT_OF(specs); i++) {
        struct data_reader reader = {0};
        struct dataset data = {0};
        struct err e = {0};
        cJSON *spec = NULL, *report = NULL;
        struct str text = {0};
        str_append(&text, specs[i]);
        assert_int_equal(json_parse(str_text(&text), text.len, "spec", &spec, &e), STATUS_OK);
        assert_int_equal(data_reader_open(&reader, spec, &e), STATUS_OK);
        assert_int_equal(data_report(&reader, 0, &report, &e), STATUS_OK);
        str_clear(&text);
        json_append(&text, report);
        cJSON_Delete(report);
        assert_int_equal(json_parse(str_text(&text), text.len, "report", &report, &e), STATUS_OK);
        const struct spec_strings *const files = &reader.spec.data.train_files;
        assert_int_equal(dataset_load(&data, files->items, files->count, &reader.options, NULL, &e),
                         STATUS_OK);
        expect_same(report, &data, &reader.spec);
        dataset_release(&data);
        cJSON_Delete(report);
        cJSON_Delete(spec);
        data_reader_close(&reader);
        str_release(&text);
    }
}

/* All tokens of a row, page by page, as the running text. */
static void read_pages(const char *rows, const char *limit, struct str *out) {
    int64_t offset = 0;
    for (int page = 0; offset >= 0; page++) {
        char *const from = str_format("%lld", (long long)offset);
        const char *const words[] = {"--row", "1", "--offset", from, "--limit", limit, NULL};
        cJSON *const answer = asked(rows, words);
        mem_free(from);
        const cJSON *const row = cJSON_GetArrayItem(json_member(answer, "rows"), 0);
        const cJSON *token = NULL;
        cJSON_ArrayForEach(token, json_member(row, "tokens")) {
            str_append(out, text_of(token, json_member(token, "shown") ? "shown" : "text"));
        }
        const bool last = cJSON_IsNull(json_member(row, "next_offset"));
        offset = last ? -1 : number(row, "next_offset");
        cJSON_Delete(answer);
        assert_true(page < 1000);
    }
}

static void test_row_tokens_of_all_pages_read_as_the_rendering(void **state) {
    (void)state;
    static const char rows[] =
        CHAT("\xE6\xBC\xA2\xE5\xAD\x97 \xF0\x9F\x98\x80", "A\\n\\tb \\\\x41");
    static const char *const limits[] = {"1", "2", "7", "5000"};
    for (size_t i = 0; i < COUNT_OF(limits); i++) {
        struct str text = {0};
        read_pages(rows, limits[i], &text);
        assert_string_equal(
            str_text(&text),
            "<|im_start|>user\n\xE6\xBC\xA2\xE5\xAD\x97 \xF0\x9F\x98\x80<|im_end|>\n"
            "<|im_start|>assistant\nA\n\tb \\x41<|im_end|>\n");
        str_release(&text);
    }
}

static void test_row_part_of_a_character_shows_its_bytes(void **state) {
    (void)state;
    const char *const words[] = {"--row", "1", NULL};
    cJSON *const answer = asked("{\"text\":\"\xF0\x9F\x98\x80\"}\n", words);
    const cJSON *const row = cJSON_GetArrayItem(json_member(answer, "rows"), 0);
    const cJSON *const first = cJSON_GetArrayItem(json_member(row, "tokens"), 0);
    assert_string_equal(text_of(first, "text"), "\\xF0");
    assert_string_equal(text_of(first, "shown"), "");
    assert_true(cJSON_IsTrue(json_member(first, "partial")));
    assert_string_equal(text_of(row, "text"), "\xF0\x9F\x98\x80");
    cJSON_Delete(answer);
}

static void test_row_nul_in_a_row_survives(void **state) {
    (void)state;
    const char *const words[] = {"--row", "1", NULL};
    struct err e = {0};
    char *text = NULL;
    assert_int_equal(ask(CHAT("a\\u0000b", "c"), words, &text, &e), STATUS_OK);
    assert_non_null(strstr(text, "a\\u0000b"));
    assert_non_null(strstr(text, "<|im_start|>assistant\\u000ac<|im_end|>"));
    mem_free(text);
}

static void test_row_special_and_trained_tokens_are_told(void **state) {
    (void)state;
    const char *const words[] = {"--row", "1", NULL};
    cJSON *const answer = asked(CHAT("Hello", "Aye."), words);
    const cJSON *const row = cJSON_GetArrayItem(json_member(answer, "rows"), 0);
    struct str trained = {0};
    int specials = 0, listed = 0;
    const cJSON *token = NULL;
    cJSON_ArrayForEach(token, json_member(row, "tokens")) {
        if (cJSON_IsTrue(json_member(token, "trained"))) {
            str_append(&trained, text_of(token, "text"));
            listed++;
        }
        specials += cJSON_IsTrue(json_member(token, "special"));
    }
    assert_string_equal(str_text(&trained), "Aye.<|im_end|>");
    assert_int_equal(listed, number(row, "trained"));
    assert_int_equal(specials, 4);
    assert_int_equal(number(row, "kept"), number(row, "total"));
    str_release(&trained);
    cJSON_Delete(answer);
}

static void test_row_that_is_wrong_is_shown_as_it_stands(void **state) {
    (void)state;
    const char *const words[] = {"--row", "5", "--data.max_length", "24", NULL};
    cJSON *const answer = asked(MIXED, words);
    const cJSON *const row = cJSON_GetArrayItem(json_member(answer, "rows"), 0);
    assert_string_equal(text_of(row, "source"), "{oops");
    assert_int_equal(number(row, "line"), 6);
    assert_non_null(text_of(json_member(row, "error"), "message"));
    assert_int_equal(cJSON_GetArraySize(json_member(row, "tokens")), 0);
    cJSON_Delete(answer);
}

static void test_rows_several_at_a_time(void **state) {
    (void)state;
    const char *const words[] = {"--rows", "2-4", "--data.max_length", "24", NULL};
    cJSON *const answer = asked(MIXED, words);
    const cJSON *const rows = json_member(answer, "rows");
    assert_int_equal(cJSON_GetArraySize(rows), 3);
    assert_int_equal(number(cJSON_GetArrayItem(rows, 0), "row"), 2);
    assert_int_equal(number(cJSON_GetArrayItem(rows, 0), "kept"), 24);
    assert_int_equal(number(cJSON_GetArrayItem(rows, 1), "samples"), 0);
    assert_int_equal(number(cJSON_GetArrayItem(rows, 2), "line"), 5);
    cJSON_Delete(answer);
}

static void test_question_what_is_wrong_is_named(void **state) {
    (void)state;
    static const struct {
        const char *words[5];
        enum status status;
        const char *param, *text;
    } cases[] = {
        {{"--row", "7"}, STATUS_NOT_FOUND, "row", "no row 7"},
        {{"--row", "0"}, STATUS_INVALID, "row", "from 1 to"},
        {{"--row", "x"}, STATUS_INVALID, "row", "row"},
        {{"--rows", "4-2"}, STATUS_INVALID, "rows", "before the first"},
        {{"--rows", "1-21"}, STATUS_INVALID, "rows", "at most 20"},
        {{"--limit", "5001"}, STATUS_INVALID, "limit", "from 1 to 5000"},
        {{"--data.mask", "lst"}, STATUS_INVALID, "data.mask", "assistant|last|all"},
        {{"--data.maks", "all"}, STATUS_INVALID, "data.maks", "data.mask"},
        {{"--row"}, STATUS_INVALID, "", "needs a value"},
        {{"row", "1"}, STATUS_INVALID, "", "expected --KEY"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct err e = {0};
        char *text = NULL;
        assert_int_equal(ask(CHAT("a", "b"), cases[i].words, &text, &e), cases[i].status);
        assert_string_equal(e.param, cases[i].param);
        assert_non_null(strstr(e.text, cases[i].text));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report_problems_are_counted_with_their_rows),
        cmocka_unit_test(test_report_refusal_follows_the_limits_of_a_run),
        cmocka_unit_test(test_report_counts_add_up),
        cmocka_unit_test(test_report_one_far_row_stays_outside_the_picture),
        cmocka_unit_test(test_report_file_that_cannot_be_read_on_says_where),
        cmocka_unit_test(test_report_is_what_training_loads),
        cmocka_unit_test(test_report_in_no_time_tells_what_was_read),
        cmocka_unit_test(test_report_empty_file_has_no_lengths),
        cmocka_unit_test(test_row_tokens_of_all_pages_read_as_the_rendering),
        cmocka_unit_test(test_row_part_of_a_character_shows_its_bytes),
        cmocka_unit_test(test_row_nul_in_a_row_survives),
        cmocka_unit_test(test_row_special_and_trained_tokens_are_told),
        cmocka_unit_test(test_row_that_is_wrong_is_shown_as_it_stands),
        cmocka_unit_test(test_rows_several_at_a_time),
        cmocka_unit_test(test_question_what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
