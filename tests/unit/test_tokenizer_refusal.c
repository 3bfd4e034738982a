/* test_tokenizer_refusal.c - what a tokenizer folder may not hold, and that the error says where.
 *
 * Goal: nothing that is not understood passes silently, and hostile files stay bounded.
 * Method: a table of files, each with the status and the words its error must have.
 *
 * rooms: engine_text engine_io base
 */
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

#define MODEL                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define WITH_MERGES(list)                                                                          \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":" list "}}"
#define WITH_MODEL(text)                                                                           \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]," text \
    "}}"

static enum status open_files(const char *name, const char *text, const char *config,
                              struct err *e) {
    char *const folder = scratch_new();
    struct tokenizer *t = NULL;
    if (text) mem_free(scratch_write(folder, name, text, strlen(text)));
    if (config) mem_free(scratch_write(folder, "tokenizer_config.json", config, strlen(config)));
    const enum status status = tokenizer_open(&t, folder, e);
    tokenizer_free(t);
    scratch_free(folder);
    return status;
}

static const struct {
    const char *json;
    enum status status;
    const char *words;
} FILES[] = {
    {"", STATUS_INVALID, "tokenizer.json"},
    {"[1,", STATUS_INVALID, "not valid JSON"},
    {"[]", STATUS_INVALID, "expected an object"},
    {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", STATUS_INVALID, "git lfs pull"},
    {"{" MODEL ",\"surprise\":1}", STATUS_UNSUPPORTED, "surprise"},
    {"{" MODEL ",\"version\":\"2.0\"}", STATUS_UNSUPPORTED, "version"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", STATUS_UNSUPPORTED,
     "model.type: \"WordPiece\""},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", STATUS_UNSUPPORTED, "\"Unigram\""},
    {WITH_MODEL("\"dropout\":0.1"), STATUS_UNSUPPORTED, "model.dropout"},
    {WITH_MODEL("\"continuing_subword_prefix\":\"##\""), STATUS_UNSUPPORTED,
     "continuing_subword_prefix"},
    {WITH_MODEL("\"other\":true"), STATUS_UNSUPPORTED, "model.other"},
    {WITH_MODEL("\"unk_token\":\"?\""), STATUS_INVALID, "unk_token"},
    {WITH_MODEL("\"byte_fallback\":1"), STATUS_INVALID, "byte_fallback"},
    {WITH_MERGES("[[\"a\",\"b\"],\"a b\"]"), STATUS_INVALID, "merges[1]"},
    {WITH_MERGES("[\"a b\",[\"a\",\"b\"]]"), STATUS_INVALID, "merges[1]"},
    {WITH_MERGES("[\"a b\",\"a\"]"), STATUS_INVALID, "merges[1]"},
    {WITH_MERGES("[\"a  b\"]"), STATUS_INVALID, "merges[0]"},
    {WITH_MERGES("[\"a c\"]"), STATUS_INVALID, "\"c\" is not in the vocabulary"},
    {WITH_MERGES("[\"b a\"]"), STATUS_INVALID, "\"ba\" is not in the vocabulary"},
    {WITH_MERGES("[]"), STATUS_INVALID, "no merges"},
    {WITH_MERGES("{}"), STATUS_INVALID, "merges"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[\"a b\"]}}",
     STATUS_INVALID, "same id"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", STATUS_INVALID,
     "model.vocab"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":16000000},\"merges\":[]}}", STATUS_INVALID,
     "unused"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1e99},\"merges\":[]}}", STATUS_INVALID,
     "model.vocab"},
    {"{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\"}}", STATUS_UNSUPPORTED,
     "normalizer.type: \"Precompiled\""},
    {"{" MODEL ",\"normalizer\":{\"type\":\"NFC\",\"x\":1}}", STATUS_UNSUPPORTED, "normalizer.x"},
    {"{" MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{"
     "\"type\":\"Nmt\"}]}}",
     STATUS_UNSUPPORTED, "normalizer.normalizers[1].type: \"Nmt\""},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}}", STATUS_UNSUPPORTED,
     "pre_tokenizer.type"},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\h\"},"
     "\"behavior\":\"Isolated\"}}",
     STATUS_UNSUPPORTED, "pre_tokenizer.pattern: regular expression: \\h"},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Glob\":\"*\"},\"behavior\":"
     "\"Isolated\"}}",
     STATUS_UNSUPPORTED, "pattern.Glob"},
    {"{" MODEL
     ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Odd\"}}",
     STATUS_UNSUPPORTED, "behavior"},
    {"{" MODEL ",\"post_processor\":{\"type\":\"Other\"}}", STATUS_UNSUPPORTED,
     "post_processor.type"},
    {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{"
     "\"id\":\"B\"}}]}}",
     STATUS_UNSUPPORTED, "single[0]"},
    {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
     "{\"id\":\"s\"}},{\"Sequence\":"
     "{\"id\":\"A\"}}],\"special_tokens\":{\"s\":{\"ids\":[9]}}}}",
     STATUS_INVALID, "does not exist"},
    {"{" MODEL ",\"decoder\":{\"type\":\"WordPiece\"}}", STATUS_UNSUPPORTED,
     "decoder.type: \"WordPiece\""},
    {"{" MODEL ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}", STATUS_INVALID,
     "added_tokens[0]"},
    {"{" MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"\"}]}", STATUS_INVALID,
     "added_tokens[0].content"},
    {"{" MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"color\":1}]}", STATUS_UNSUPPORTED,
     "added_tokens[0].color"},
};

static void test_tokenizer_bad_files_are_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(FILES); i++) {
        struct err e = {0};
        const enum status status = open_files("tokenizer.json", FILES[i].json, NULL, &e);
        if (status != FILES[i].status || !strstr(e.text, FILES[i].words))
            print_message("%s\n-> %s\n", FILES[i].json, e.text);
        assert_int_equal(status, FILES[i].status);
        assert_non_null(strstr(e.text, FILES[i].words));
    }
}

static void test_tokenizer_missing_files_say_the_way_out(void **state) {
    (void)state;
    struct err e = {0};
    assert_int_equal(open_files("tokenizer.model", "binary", NULL, &e), STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.text, "save_pretrained"));
    err_clear(&e);
    assert_int_equal(open_files("other", NULL, NULL, &e), STATUS_NOT_FOUND);
    assert_non_null(strstr(e.text, "has no tokenizer.json"));
}

static void test_tokenizer_config_that_disagrees_is_refused(void **state) {
    (void)state;
    struct err e = {0};
    const char *const json =
        "{" MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"<e>\",\"special\":true}]}";
    const char *const same =
        "{\"added_tokens_decoder\":{\"3\":{\"content\":\"<e>\",\"special\":true}}}";
    const char *const other =
        "{\"added_tokens_decoder\":{\"3\":{\"content\":\"<f>\",\"special\":true}}}";
    assert_int_equal(open_files("tokenizer.json", json, same, &e), STATUS_OK);
    assert_int_equal(open_files("tokenizer.json", json, other, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "added_tokens_decoder[3]"));
}

static void test_tokenizer_deep_nesting_is_refused(void **state) {
    (void)state;
    static const char *const PARTS[][2] = {{"normalizer", "normalizers"},
                                           {"pre_tokenizer", "pretokenizers"},
                                           {"post_processor", "processors"},
                                           {"decoder", "decoders"}};
    for (size_t i = 0; i < COUNT_OF(PARTS); i++) {
        struct str json = {0};
        struct err e = {0};
        str_appendf(&json, "{" MODEL ",\"%s\":", PARTS[i][0]);
        for (int k = 0; k < 100; k++) {
            str_appendf(&json, "{\"type\":\"Sequence\",\"%s\":[", PARTS[i][1]);
        }
        for (int k = 0; k < 100; k++) {
            str_append(&json, "]}");
        }
        str_append(&json, "}");
        assert_int_equal(open_files("tokenizer.json", str_text(&json), NULL, &e),
                         STATUS_UNSUPPORTED);
        assert_non_null(strstr(e.text, "nested too deep"));
        str_release(&json);
    }
}

static void test_tokenizer_invalid_text_is_refused(void **state) {
    (void)state;
    char *const folder = scratch_new();
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    struct err e = {0};
    mem_free(scratch_write(folder, "tokenizer.json", "{" MODEL "}", strlen("{" MODEL "}")));
    assert_int_equal(tokenizer_open(&t, folder, &e), STATUS_OK);
    scratch_free(folder);
    assert_int_equal(tokenizer_encode(t, "ab\xff", 3, SPECIAL_PARSE, false, &ids, &e),
                     STATUS_INVALID);
    assert_non_null(strstr(e.text, "byte 2"));
    err_clear(&e);
    struct str text = {0};
    assert_int_equal(tokenizer_decode(t, (const int32_t[]){-1}, 1, false, &text, &e),
                     STATUS_INVALID);
    str_release(&text);
    token_list_release(&ids);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_bad_files_are_refused_by_name),
        cmocka_unit_test(test_tokenizer_missing_files_say_the_way_out),
        cmocka_unit_test(test_tokenizer_config_that_disagrees_is_refused),
        cmocka_unit_test(test_tokenizer_deep_nesting_is_refused),
        cmocka_unit_test(test_tokenizer_invalid_text_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
