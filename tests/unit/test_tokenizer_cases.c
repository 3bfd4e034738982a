/* test_tokenizer_cases.c - what real tokenizer files got wrong for others, and the ways through our
 * own reader and merger that a file can take.
 *
 * Goal: the cases A02, A05, A07, A08, A10 on tiny files; a text that is cut before merging gives
 * what merging it whole gives; the large members of a file are read in every spelling of JSON.
 * Method: files are written into a scratch folder, and ids are known by hand.
 *
 * rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/support_scratch.h"

#define MARK "\xE2\x96\x81" /* U+2581 */
#define LLAMA3_PATTERN                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "         \
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

/* Files by name and text, NULL at the end. */
static enum status open_files(struct tokenizer **t, const char *const *files, struct err *e) {
    char *const folder = scratch_new();
    for (size_t i = 0; files[i]; i += 2) {
        mem_free(scratch_write(folder, files[i], files[i + 1], strlen(files[i + 1])));
    }
    const enum status status = tokenizer_open(t, folder, e);
    scratch_free(folder);
    return status;
}

static struct tokenizer *open_json(const char *json) {
    struct tokenizer *t = NULL;
    struct err e = {0};
    const enum status status =
        open_files(&t, (const char *const[]){"tokenizer.json", json, NULL}, &e);
    if (status != STATUS_OK) fail_msg("%s", e.text);
    return t;
}

static void assert_ids(const struct tokenizer *t, const char *text, enum special_mode mode,
                       const char *expected) {
    struct token_list ids = {0};
    struct str got = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_encode(t, text, strlen(text), mode, false, &ids, &e), STATUS_OK);
    for (size_t i = 0; i < ids.count; i++) {
        str_appendf(&got, "%s%d", i ? " " : "", ids.ids[i]);
    }
    if (!str_equal(str_text(&got), expected))
        fail_msg("\"%s\": got %s, expected %s", text, str_text(&got), expected);
    str_release(&got);
    token_list_release(&ids);
}

static void assert_refused(const char *json, const char *words) {
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_int_equal(open_files(&t, (const char *const[]){"tokenizer.json", json, NULL}, &e),
                     STATUS_INVALID);
    if (!strstr(e.text, words)) fail_msg("%s\nexpected %s", e.text, words);
}

/* ---- cases ---- */

static void test_tokenizer_A02_mixed_or_missing_merges_are_an_error(void **state) {
    (void)state;
    struct str json = {0};
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,"
                   "\"ab\":4,\"cd\":5},\"merges\":[[\"a\",\"b\"],\"c d\"]}}",
                   "model.merges[1]: this merge is not a pair");
    str_append(&json, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 300; i++) {
        str_appendf(&json, "%s\"t%d\":%d", i ? "," : "", i, i);
    }
    str_append(&json, "}}}");
    assert_refused(str_text(&json), "there are no merges");
    str_release(&json);
}

/* A String pattern is a text, even one that looks like a regular expression. */
static void test_tokenizer_A05_a_string_pattern_is_literal(void **state) {
    (void)state;
    static const char FORMAT[] =
        "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"%s\":\"a+\"},\"behavior\":"
        "\"Isolated\"},\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0,\"+\":"
        "1,\"b\":2,\"a+\":3,\"aa\":4,\"aa+b\":5},\"merges\":[]}}";
    char *const literal = str_format(FORMAT, "String"), *const regex = str_format(FORMAT, "Regex");
    struct tokenizer *const t = open_json(literal), *const u = open_json(regex);
    assert_ids(t, "aa+b", SPECIAL_PARSE, "0 3 2");
    assert_ids(u, "aa+b", SPECIAL_PARSE, "4 1 2");
    tokenizer_free(t);
    tokenizer_free(u);
    mem_free(literal);
    mem_free(regex);
}

static const char PATTERN_FILE[] =
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{"
    "\"Regex\":\"" LLAMA3_PATTERN
    "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":"
    "false,\"trim_offsets\":true,\"use_regex\":false}]},\"model\":{\"type\":\"BPE\","
    "\"ignore_merges\":true,\"vocab\":{\"HelloWorld\":0,\"\u0120eBay\":1,\"\u0120pH\":2,"
    "\"Hello\":3,\"World\":4},\"merges\":[]}}";

/* The file counts as it is; the warning is for this family alone. */
static void test_tokenizer_A07_a_wrong_pattern_is_used_and_told(void **state) {
    (void)state;
    static const struct {
        const char *config;
        bool warned;
    } CASES[] = {{"{\"model_type\":\"mistral\"}", true},   {"{\"model_type\":\"mistral3\"}", true},
                 {"{\"model_type\":\"ministral\"}", true}, {"{\"model_type\":\"qwen3\"}", false},
                 {"{\"model_type\":\"llama\"}", false},    {"{}", false}};
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        const char *const files[] = {"tokenizer.json", PATTERN_FILE, "config.json", CASES[i].config,
                                     NULL};
        assert_int_equal(open_files(&t, files, &e), STATUS_OK);
        assert_ids(t, "HelloWorld eBay pH", SPECIAL_PARSE, "0 1 2");
        assert_int_equal(strstr(tokenizer_warnings(t), "pattern of Llama 3") != NULL,
                         CASES[i].warned);
        assert_int_equal(strstr(tokenizer_warnings(t), "data.fix_mistral_regex: true") != NULL,
                         CASES[i].warned);
        tokenizer_free(t);
    }
}

/* Opens a folder of these two files with the right pattern asked for. */
static enum status open_fixed(struct tokenizer **t, const char *folder, const char *json,
                              const char *config, struct err *e) {
    const struct tokenizer_options options = {.fix_mistral_regex = true};
    mem_free(scratch_write(folder, "tokenizer.json", json, strlen(json)));
    mem_free(scratch_write(folder, "config.json", config, strlen(config)));
    return tokenizer_open_with(t, folder, &options, e);
}

/* The override, and the file that a run leaves behind: other readers cut as training did. */
static void test_tokenizer_A07_the_right_pattern_is_used_on_request(void **state) {
    (void)state;
    static const char MISTRAL[] = "{\"model_type\":\"mistral\"}";
    char *const folder = scratch_new(), *const result = scratch_new();
    struct tokenizer *t = NULL, *copy = NULL;
    struct err e = {0};
    assert_int_equal(open_fixed(&t, folder, PATTERN_FILE, MISTRAL, &e), STATUS_OK);
    assert_ids(t, "HelloWorld", SPECIAL_PARSE, "3 4");
    assert_true(tokenizer_pattern_replaced(t));
    assert_string_equal(tokenizer_warnings(t), "");
    assert_non_null(strstr(tokenizer_notes(t), "as data.fix_mistral_regex asks"));
    mem_free(scratch_write(result, "config.json", MISTRAL, strlen(MISTRAL)));
    assert_int_equal(tokenizer_copy_fixed(folder, result, &e), STATUS_OK);
    assert_int_equal(tokenizer_open(&copy, result, &e), STATUS_OK);
    assert_ids(copy, "HelloWorld", SPECIAL_PARSE, "3 4");
    assert_false(tokenizer_pattern_replaced(copy));
    assert_string_equal(tokenizer_warnings(copy), "");
    tokenizer_free(t);
    tokenizer_free(copy);
    scratch_free(folder);
    scratch_free(result);
}

static void test_tokenizer_A07_the_override_is_for_mistral_alone(void **state) {
    (void)state;
    static const char RIGHT[] = "{\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,"
                                "\"vocab\":{\"a\":0},\"merges\":[]}}";
    static const struct {
        const char *json, *config, *words;
    } CASES[] = {{PATTERN_FILE, "{\"model_type\":\"qwen3\"}", "has model_type \"qwen3\""},
                 {PATTERN_FILE, "{\"model_type\":\"llama\"}", "has model_type \"llama\""},
                 {PATTERN_FILE, "{}", "is for tokenizers of Mistral"},
                 {RIGHT, "{\"model_type\":\"mistral\"}", "does not have: leave the key out"}};
    char *const folder = scratch_new();
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        assert_int_equal(open_fixed(&t, folder, CASES[i].json, CASES[i].config, &e),
                         STATUS_INVALID);
        assert_string_equal(e.param, "data.fix_mistral_regex");
        if (!strstr(e.text, CASES[i].words)) fail_msg("%s", e.text);
    }
    scratch_free(folder);
}

/* Under Prepend each stretch between added tokens gets its mark, and a space is a second one. */
static void test_tokenizer_A08_prepend_keeps_a_leading_space(void **state) {
    (void)state;
    struct tokenizer *t = NULL;
    struct err e = {0};
    struct str text = {0};
    assert_int_equal(tokenizer_open(&t, "tests/unit/data/tokenizer/pieces", &e), STATUS_OK);
    assert_ids(t, "hi", SPECIAL_PARSE, "263");
    assert_ids(t, " hi", SPECIAL_PARSE, "259 263");
    assert_ids(t, "hi<s>hi", SPECIAL_PARSE, "263 1 263");
    assert_int_equal(tokenizer_decode(t, (const int32_t[]){259, 263}, 2, false, &text, &e),
                     STATUS_OK);
    assert_string_equal(str_text(&text), " hi");
    str_release(&text);
    tokenizer_free(t);
}

/* What users write: special tokens are text, other added tokens are themselves. */
static void test_tokenizer_A10_special_spellings_in_user_text_are_text(void **state) {
    (void)state;
    struct tokenizer *const t = open_json(
        "{\"added_tokens\":[{\"id\":6,\"content\":\"<e>\",\"special\":true},{\"id\":7,\"content\":"
        "\"<think>\",\"special\":false,\"normalized\":false}],\"model\":{\"type\":\"BPE\","
        "\"ignore_merges\":true,\"vocab\":{\"<\":0,\"e\":1,\">\":2,\"<e\":3,\" \":4,\"s\":5},"
        "\"merges\":[\"< e\"]}}");
    assert_ids(t, "s <e> <think>", SPECIAL_PARSE, "5 4 6 4 7");
    assert_ids(t, "s <e> <think>", SPECIAL_TEXT, "5 4 3 2 4 7");
    assert_int_equal(tokenizer_count_special(t, "s <e> <think>", 13), 1);
    tokenizer_free(t);
}

/* ---- the way out ---- */

static void test_tokenizer_model_without_json_is_refused_with_the_way_out(void **state) {
    (void)state;
    static const char *const NAMES[] = {"tokenizer.model", "spiece.model", "tekken.json",
                                        "vocab.json"};
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        assert_int_equal(open_files(&t, (const char *const[]){NAMES[i], "x", NULL}, &e),
                         STATUS_UNSUPPORTED);
        assert_non_null(strstr(e.text, NAMES[i]));
        assert_non_null(strstr(e.text, "python3 -c"));
        assert_non_null(strstr(e.text, ".save_pretrained('"));
    }
}

/* ---- cutting before merging ---- */

/* The same words with and without a character that no token can stand for; only the first may be
 * cut. */
static void test_tokenizer_cuts_change_no_id(void **state) {
    (void)state;
    static const char FORMAT[] =
        "{\"model\":{\"type\":\"BPE\",%s\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\"" MARK "\":3,\">\":4,"
        "\"<\":5,\"ab\":6,\"" MARK "a\":7,\"" MARK MARK "\":8,\">" MARK "\":9,\">" MARK "<\":10,"
        "\".\":11,\"a.\":12,\"" MARK "ab\":13},\"merges\":[\"> " MARK "\",\">" MARK " <\",\"" MARK
        " " MARK "\",\"a b\",\"" MARK " ab\",\"" MARK " a\",\"a .\"]}}";
    static const char *const VECTORS[][2] = {
        {"ab" MARK "ab" MARK MARK "a", "6 13 8 1"},
        {">" MARK "<" MARK "ab", "10 13"}, /* a merge over the mark, as Gemma 3 has one */
        {">" MARK "a" MARK "<", "9 1 3 5"},
        {"a." MARK "a.b", "12 7 11 2"},
        {MARK MARK MARK "ab", "8 13"},
    };
    char *const unknown = str_format(FORMAT, "\"unk_token\":\"?\",");
    char *const vanishing = str_format(FORMAT, "");
    struct tokenizer *const t = open_json(unknown), *const u = open_json(vanishing);
    for (size_t i = 0; i < COUNT_OF(VECTORS); i++) {
        assert_ids(t, VECTORS[i][0], SPECIAL_PARSE, VECTORS[i][1]);
        assert_ids(u, VECTORS[i][0], SPECIAL_PARSE, VECTORS[i][1]);
    }
    assert_ids(t, "a\u00e9.", SPECIAL_PARSE, "1 0 11");
    assert_ids(u, "a\u00e9.", SPECIAL_PARSE, "12"); /* the neighbours of what vanishes meet */
    tokenizer_free(t);
    tokenizer_free(u);
    mem_free(unknown);
    mem_free(vanishing);
}

/* Long words go past the memory for words, and their ids do not change with what was asked before.
 */
static void test_tokenizer_words_of_every_length_are_the_same_twice(void **state) {
    (void)state;
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_int_equal(tokenizer_open(&t, "tests/unit/data/tokenizer/pieces", &e), STATUS_OK);
    for (size_t len = 1; len <= 200; len++) {
        struct str word = {0};
        struct token_list once = {0}, again = {0}, third = {0};
        for (size_t i = 0; i < len; i++) {
            str_append_char(&word, "athhie"[(i * i + len) % 6]);
        }
        const char *const text = str_text(&word);
        assert_int_equal(tokenizer_encode(t, text, len, SPECIAL_PARSE, false, &once, &e), 0);
        assert_int_equal(tokenizer_encode(t, text, len, SPECIAL_PARSE, false, &again, &e), 0);
        struct tokenizer *other = NULL;
        assert_int_equal(tokenizer_open(&other, "tests/unit/data/tokenizer/pieces", &e), 0);
        assert_int_equal(tokenizer_encode(other, text, len, SPECIAL_PARSE, false, &third, &e), 0);
        assert_int_equal(once.count, again.count);
        assert_int_equal(once.count, third.count);
        assert_memory_equal(once.ids, again.ids, once.count * sizeof *once.ids);
        assert_memory_equal(once.ids, third.ids, once.count * sizeof *once.ids);
        tokenizer_free(other);
        token_list_release(&once);
        token_list_release(&again);
        token_list_release(&third);
        str_release(&word);
    }
    tokenizer_free(t);
}

/* ---- the large members of the file ---- */

static void test_tokenizer_file_is_read_in_every_spelling_of_json(void **state) {
    (void)state;
    static const char *const FILES[] = {
        "{\"model\":{\"vocab\":{\"a\":0,\"\u00e9\":1,\"\\\"\":2,\"a\u00e9\":3,\"\U0001f642\":4},"
        "\"merges\":[\"a \u00e9\"],\"type\":\"BPE\"}}",
        "\xEF\xBB\xBF { \"model\" :\r\n{ \"merges\" : [ [ \"a\" , \"\\u00E9\" ] ] ,\n\t\"type\":"
        "\"BPE\", \"vocab\" : { \"\\u0061\" : 0 , \"\\u00e9\":1,\"\\u0022\" :2,\"a\\u00e9\":3,"
        "\"\\ud83d\\uDE42\":4 } } , \"version\" : \"1.0\" }\n",
        "{\"model\":{\"type\":\"BPE\",\"unk_token\":null,\"vocab\":{\"a\\u00e9\":3,\"\\\"\":2,"
        "\"\U0001f642\":4,\"\u00e9\":1,\"a\":0},\"merges\":[\"#version: 0.2\",\"a \\u00e9\"]}}",
    };
    for (size_t i = 0; i < COUNT_OF(FILES); i++) {
        struct tokenizer *const t = open_json(FILES[i]);
        assert_ids(t, "a\u00e9\"\U0001f642a", SPECIAL_PARSE, "3 2 4 0");
        tokenizer_free(t);
    }
}

static void test_tokenizer_file_flaws_are_told_by_line_and_column(void **state) {
    (void)state;
    static const char *const FILES[][2] = {
        {"{\"model\":{\n\"vocab\":{\"a\":0 \"b\":1}}}", "line 2"},
        {"{\"model\":{\n\n\"vocab\":{\"a\":0},\"merges\":[\"a\\q\"]}}", "line 3, column 29"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\\ud800b\"]}}",
         "not valid JSON at line 1"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"", "not valid JSON at line 1"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}},", "line 1, column 45"},
        {"{\"model\":{\"vocab\":{\"a\":01x},\"merges\":[]}}", "not valid JSON"},
        {"{\"model\":{\"vocab\":{\"a\":1.5},\"merges\":[]}}", "the id of \"a\""},
        {"{\"model\":{\"vocab\":[\"a\"],\"merges\":[\"a b\"]}}", "expected an object of token"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"b\",\"c\"]]}}",
         "merges[0]: expected"},
    };
    for (size_t i = 0; i < COUNT_OF(FILES); i++) {
        assert_refused(FILES[i][0], FILES[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_A02_mixed_or_missing_merges_are_an_error),
        cmocka_unit_test(test_tokenizer_A05_a_string_pattern_is_literal),
        cmocka_unit_test(test_tokenizer_A07_a_wrong_pattern_is_used_and_told),
        cmocka_unit_test(test_tokenizer_A07_the_right_pattern_is_used_on_request),
        cmocka_unit_test(test_tokenizer_A07_the_override_is_for_mistral_alone),
        cmocka_unit_test(test_tokenizer_A08_prepend_keeps_a_leading_space),
        cmocka_unit_test(test_tokenizer_A10_special_spellings_in_user_text_are_text),
        cmocka_unit_test(test_tokenizer_model_without_json_is_refused_with_the_way_out),
        cmocka_unit_test(test_tokenizer_cuts_change_no_id),
        cmocka_unit_test(test_tokenizer_words_of_every_length_are_the_same_twice),
        cmocka_unit_test(test_tokenizer_file_is_read_in_every_spelling_of_json),
        cmocka_unit_test(test_tokenizer_file_flaws_are_told_by_line_and_column),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
