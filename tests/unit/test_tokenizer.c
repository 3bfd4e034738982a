/* test_tokenizer.c - ids and texts of tiny hand-made tokenizers, known by hand.
 *
 * Goal: the rules of BPE, added tokens, byte fallback, post-processors, decoders and offsets.
 * Method: a tokenizer.json is written into a scratch folder, opened, and asked; every test tells
 * one rule.
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

#define MARK "\xE2\x96\x81" /* U+2581 */
#define LOST "\xEF\xBF\xBD" /* U+FFFD */

static struct tokenizer *open_files(const char *json, const char *config) {
    char *const folder = scratch_new();
    struct tokenizer *t = NULL;
    struct err e = {0};
    mem_free(scratch_write(folder, "tokenizer.json", json, strlen(json)));
    if (config) mem_free(scratch_write(folder, "tokenizer_config.json", config, strlen(config)));
    const enum status status = tokenizer_open(&t, folder, &e);
    scratch_free(folder);
    if (status != STATUS_OK) print_message("%s\n", e.text);
    assert_int_equal(status, STATUS_OK);
    return t;
}

/* The ids (or the ends) as "1 2 3". */
static char *list_text(const struct token_list *list) {
    struct str out = {0};
    for (size_t i = 0; i < list->count; i++) {
        str_appendf(&out, "%s%d", i ? " " : "", list->ids[i]);
    }
    str_append(&out, "");
    return out.data ? str_take(&out) : mem_strdup("");
}

static void assert_ids_as(const struct tokenizer *t, const char *text, enum special_mode mode,
                          bool post, const char *expected) {
    struct token_list ids = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_encode(t, text, strlen(text), mode, post, &ids, &e), STATUS_OK);
    char *const got = list_text(&ids);
    if (strcmp(got, expected) != 0) print_message("text \"%s\"\n", text);
    assert_string_equal(got, expected);
    mem_free(got);
    token_list_release(&ids);
}

static void assert_ids(const struct tokenizer *t, const char *text, const char *expected) {
    assert_ids_as(t, text, SPECIAL_PARSE, false, expected);
}

static void assert_ends(const struct tokenizer *t, const char *text, const char *expected) {
    struct token_list ids = {0}, ends = {0};
    struct err e = {0};
    assert_int_equal(
        tokenizer_encode_offsets(t, text, strlen(text), SPECIAL_PARSE, &ids, &ends, &e), STATUS_OK);
    char *const got = list_text(&ends);
    assert_string_equal(got, expected);
    mem_free(got);
    token_list_release(&ids);
    token_list_release(&ends);
}

/* Both ways of decoding must give this text. */
static void assert_text(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip,
                        const char *expected) {
    struct str text = {0}, streamed = {0};
    struct token_stream *stream = NULL;
    struct err e = {0};
    assert_int_equal(tokenizer_decode(t, ids, count, skip, &text, &e), STATUS_OK);
    assert_string_equal(str_text(&text), expected);
    assert_int_equal(token_stream_new(&stream, t, skip, &e), STATUS_OK);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(token_stream_push(stream, ids[i], &streamed, &e), STATUS_OK);
        assert_int_equal(utf8_valid_prefix(str_text(&streamed), streamed.len), streamed.len);
    }
    assert_int_equal(token_stream_finish(stream, &streamed, &e), STATUS_OK);
    assert_string_equal(str_text(&streamed), expected);
    token_stream_free(stream);
    str_release(&text);
    str_release(&streamed);
}

static void assert_back(const struct tokenizer *t, const char *text, const char *expected) {
    struct token_list ids = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_encode(t, text, strlen(text), SPECIAL_PARSE, false, &ids, &e),
                     STATUS_OK);
    assert_text(t, ids.ids, ids.count, false, expected);
    token_list_release(&ids);
}

/* ---- a SentencePiece-style tokenizer: <unk> <s> </s>, 256 bytes, a few pieces ---- */

static struct tokenizer *open_pieces(const char *front) {
    struct str json = {0};
    str_appendf(&json, "{\"version\":\"1.0\",%s,\"added_tokens\":[", front);
    static const char *const CONTROL[] = {"<unk>", "<s>", "</s>"};
    for (int i = 0; i < 3; i++) {
        str_appendf(&json,
                    "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                    "\"rstrip\":false,"
                    "\"normalized\":false,\"special\":true}",
                    i ? "," : "", i, CONTROL[i]);
    }
    str_append(&json, "],\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{"
                      "\"SpecialToken\":{\"id\":\"<s>\","
                      "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],"
                      "\"special_tokens\":{\"<s>\":{\"id\":"
                      "\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}},\"decoder\":{\"type\":"
                      "\"Sequence\",\"decoders\":[{\"type\":"
                      "\"Replace\",\"pattern\":{\"String\":\"" MARK
                      "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":"
                      "\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
                      "\",\"start\":1,\"stop\":0}]},\"model\":{\"type\":\"BPE\","
                      "\"dropout\":null,\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_"
                      "fallback\":true,\"vocab\":{\"<unk>\":0,"
                      "\"<s>\":1,\"</s>\":2");
    for (int i = 0; i < 256; i++) {
        str_appendf(&json, ",\"<0x%02X>\":%d", i, i + 3);
    }
    str_append(&json, ",\"" MARK "\":259,\"h\":260,\"i\":261,\"" MARK "h\":262,\"" MARK
                      "hi\":263,\"" MARK MARK "\":264},"
                      "\"merges\":[\"" MARK " h\",\"" MARK "h i\",\"" MARK " " MARK "\"]}}");
    struct tokenizer *const t = open_files(str_text(&json), NULL);
    str_release(&json);
    return t;
}

static const char PREPEND[] =
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
    "\"" MARK "\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK
    "\"}]},\"pre_tokenizer\":null";
static const char FIRST[] =
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" MARK
    "\",\"prepend_scheme\":\"first\",\"split\":false}";

static void test_tokenizer_A08_prepend_encodes_like_sentencepiece(void **state) {
    (void)state;
    static const char *const VECTORS[][2] = {
        {"hi", "1 263"},
        {"hi\n", "1 263 13"},
        {" hi", "1 259 263"},
        {"  hi", "1 264 263"},
        {"\u00e9", "1 259 198 172"},
        {"\U0001f642", "1 259 243 162 156 133"},
        {"", "1"},
        {"hi hi", "1 263 263"},
        {"\thi", "1 259 12 260 261"},
    };
    struct tokenizer *const t = open_pieces(PREPEND);
    for (size_t i = 0; i < COUNT_OF(VECTORS); i++) {
        assert_ids_as(t, VECTORS[i][0], SPECIAL_PARSE, true, VECTORS[i][1]);
        assert_back(t, VECTORS[i][0], VECTORS[i][0]);
    }
    assert_ids(t, "hi<s>hi", "263 1 263");
    assert_back(t, " hi", " hi");
    assert_ends(t, "hi \u00e9<s>hi", "2 3 4 5 8 10");
    assert_int_equal(tokenizer_count_special(t, "a<s>b</s>", 9), 2);
    tokenizer_free(t);
}

static void test_tokenizer_A08_metaspace_first_marks_only_the_start(void **state) {
    (void)state;
    struct tokenizer *const t = open_pieces(FIRST);
    assert_ids(t, "hi<s>hi", "263 1 260 261");
    assert_ids(t, "hi", "263");
    assert_ids(t, " hi", "263"); /* the same ids, so the space is lost: as the original does */
    tokenizer_free(t);
}

static void test_tokenizer_broken_byte_runs_become_replacement_characters(void **state) {
    (void)state;
    struct tokenizer *const t = open_pieces(PREPEND);
    assert_text(t, (const int32_t[]){198}, 1, false, LOST);
    assert_text(t, (const int32_t[]){198, 172}, 2, false, "\u00e9");
    assert_text(t, (const int32_t[]){1, 263, 198, 172, 2}, 5, true, "hi\u00e9");
    assert_text(t, (const int32_t[]){243, 162, 263}, 3, false, LOST LOST " hi");
    tokenizer_free(t);
}

/* ---- byte-level ---- */

#define BYTE_LEVEL                                                                                 \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"    \
    "\"decoder\":{\"type\":\"ByteLevel\"}"

static void test_tokenizer_A01_whole_piece_is_looked_up_only_with_ignore_merges(void **state) {
    (void)state;
    static const char *const FLAGS[][2] = {{"true", "4"}, {"false", "3 2"}, {NULL, "3 2"}};
    for (size_t i = 0; i < COUNT_OF(FLAGS); i++) {
        char *const json = str_format("{\"model\":{\"type\":\"BPE\",%s%s%s\"vocab\":{\"a\":0,\"b\":"
                                      "1,\"c\":2,\"ab\":3,\"abc\":4},"
                                      "\"merges\":[\"a b\"]}}",
                                      FLAGS[i][0] ? "\"ignore_merges\":" : "",
                                      FLAGS[i][0] ? FLAGS[i][0] : "", FLAGS[i][0] ? "," : "");
        struct tokenizer *const t = open_files(json, NULL);
        assert_ids(t, "abc", FLAGS[i][1]);
        tokenizer_free(t);
        mem_free(json);
    }
}

static void test_tokenizer_A02_merges_in_both_spellings_are_equal(void **state) {
    (void)state;
    static const char *const MERGES[] = {"\"#version: 0.2\",\"a b\",\"ab c\",\"c c\"",
                                         "[\"a\",\"b\"],[\"ab\",\"c\"],[\"c\",\"c\"]"};
    for (size_t i = 0; i < COUNT_OF(MERGES); i++) {
        char *const json = str_format("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,"
                                      "\"c\":2,\"ab\":3,\"abc\":4,\"cc\":5},"
                                      "\"merges\":[%s]}}",
                                      MERGES[i]);
        struct tokenizer *const t = open_files(json, NULL);
        assert_ids(t, "abcccab", "4 5 3");
        tokenizer_free(t);
        mem_free(json);
    }
}

static void test_tokenizer_lowest_rank_merges_first_then_leftmost(void **state) {
    (void)state;
    struct tokenizer *const t = open_files("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":"
                                           "1,\"c\":2,\"ab\":3,\"bc\":4,\"aa\":5},"
                                           "\"merges\":[\"b c\",\"a b\",\"a a\"]}}",
                                           NULL);
    assert_ids(t, "abc", "0 4");
    assert_ids(t, "aaa", "5 0");
    struct str text = {0};
    struct token_list ids = {0};
    struct err e = {0};
    /* Long pieces take another way through the merges, to the same ids. */
    for (int i = 0; i < 20001; i++) {
        str_append(&text, "a");
    }
    assert_int_equal(tokenizer_encode(t, text.data, text.len, SPECIAL_PARSE, false, &ids, &e),
                     STATUS_OK);
    assert_int_equal(ids.count, 10001);
    assert_int_equal(ids.ids[9999], 5);
    assert_int_equal(ids.ids[10000], 0);
    token_list_release(&ids);
    str_release(&text);
    tokenizer_free(t);
}

static void test_tokenizer_A06_members_behind_byte_level_see_its_alphabet(void **state) {
    (void)state;
    struct tokenizer *const t =
        open_files("{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
                   "\"Punctuation\",\"behavior\":\"Contiguous\"},"
                   "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_"
                   "regex\":true},{\"type\":\"Digits\","
                   "\"individual_digits\":false},{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[0-9]"
                   "[0-9][0-9]\"},\"behavior\":\"Isolated\","
                   "\"invert\":false}]},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":"
                   "\"BPE\",\"ignore_merges\":true,\"vocab\":{\"x\":0,"
                   "\"\u0120\":1,\"123\":2,\"45\":3,\"\xC3\x82\":4,\"\xC2\xB2\":5,"
                   "\"\xC3\x82\xC2\xB2\":6,\"\u012012345\":7,\"12345\":8},\"merges\":[]}}",
                   NULL);
    assert_ids(t, "x 12345", "0 1 2 3");
    assert_ids(t, "\xC2\xB2", "4 5");
    assert_ends(t, "x\xC2\xB2", "1 2 3");
    assert_back(t, "x 12345\xC2\xB2", "x 12345\xC2\xB2");
    tokenizer_free(t);
}

static void test_tokenizer_byte_level_decodes_lossy_and_streams_whole_characters(void **state) {
    (void)state;
    struct tokenizer *const t =
        open_files("{" BYTE_LEVEL
                   ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"\u00c3\":0,\"\u00a9\":1,\"\u0120\":2,"
                   "\"a\":3,\"\u00f0\":4,\"\u0141\":5,\"\u0120a\":6},\"merges\":[\"\u0120 a\"]},"
                   "\"added_tokens\":[{\"id\":7,\"content\":\"<|end \u4f60|>\",\"special\":true}]}",
                   NULL);
    assert_ids(t, "\u00e9 a", "0 1 6");
    assert_ends(t, "\u00e9 a", "1 2 4");
    assert_text(t, (const int32_t[]){0, 1, 6, 0}, 4, false, "\u00e9 a" LOST);
    assert_text(t, (const int32_t[]){0, 3}, 2, false, LOST "a");
    assert_text(t, (const int32_t[]){4, 5, 3}, 3, false,
                LOST "a"); /* one for the maximal bad part F0 9F */
    assert_text(t, (const int32_t[]){3, 7, 3}, 3, false, "a<|end \u4f60|>a");
    assert_text(t, (const int32_t[]){3, 7, 3}, 3, true, "aa");
    assert_text(t, (const int32_t[]){3, 99}, 2, true, "a" LOST);
    assert_int_equal(tokenizer_dropped(t), 0);
    assert_ids(t, "axa", "3 3"); /* x has no token, and the file names none for such */
    assert_int_equal(tokenizer_dropped(t), 1);
    tokenizer_free(t);
}

/* ---- added tokens ---- */

static void test_tokenizer_added_tokens_obey_their_flags(void **state) {
    (void)state;
    struct tokenizer *const t = open_files(
        "{\"added_tokens\":[{\"id\":10,\"content\":\"<l>\",\"lstrip\":true,\"special\":true},{"
        "\"id\":11,\"content\":\"<r>\",\"rstrip\":true,"
        "\"special\":true},{\"id\":12,\"content\":\"cat\",\"single_word\":true,\"normalized\":"
        "false},{\"id\":13,\"content\":\"<think>\","
        "\"normalized\":false},{\"id\":14,\"content\":\"<thinking>\",\"normalized\":false}],"
        "\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"vocab\":{\"a\":0,\" "
        "\":1,\"aa\":2,\"c\":3,\"t\":4,\"?\":5},\"merges\":[\"a a\"]}}",
        NULL);
    assert_ids(t, "a  <l> a", "0 10 1 0");
    assert_ids(t, "a <r>  a", "0 1 11 0");
    assert_ids(t, "<r> <l> a", "11 10 1 0");
    assert_ends(t, "a <r>  a", "1 2 7 8");
    assert_ids(t, "cat", "12");
    assert_ids(t, "a cat", "0 1 12");
    assert_ids(t, "acat", "0 3 0 4");
    assert_ids(t, "cat\u00e9", "3 0 4 5");
    assert_ids(t, "<thinking><think>", "14 13"); /* the longest */
    /* What users wrote: special tokens are text, other added tokens are not. */
    assert_ids_as(t, "a<r>a<think>", SPECIAL_TEXT, false, "0 5 5 5 0 13");
    assert_int_equal(tokenizer_count_special(t, "a<r>a<think>", 12), 1);
    assert_true(tokenizer_is_special(t, 11));
    assert_false(tokenizer_is_special(t, 13));
    assert_int_equal(tokenizer_id(t, "<think>"), 13);
    assert_string_equal(tokenizer_token(t, 14), "<thinking>");
    assert_null(tokenizer_token(t, 7));
    assert_int_equal(tokenizer_size(t), 15);
    tokenizer_free(t);
}

static void test_tokenizer_unknown_characters_fuse_only_when_told(void **state) {
    (void)state;
    static const char *const EXPECTED[][2] = {{"true", "1 0 1"}, {"false", "1 1 0 1"}};
    for (size_t i = 0; i < COUNT_OF(EXPECTED); i++) {
        char *const json = str_format("{\"model\":{\"type\":\"BPE\",\"unk_token\":\"?\",\"fuse_"
                                      "unk\":%s,\"vocab\":{\"a\":0,\"?\":1,\"aa\":2},"
                                      "\"merges\":[\"a a\"]}}",
                                      EXPECTED[i][0]);
        struct tokenizer *const t = open_files(json, NULL);
        assert_ids(t, "xyaz", EXPECTED[i][1]);
        assert_ends(t, "xyaz", i == 0 ? "2 3 4" : "1 2 3 4");
        tokenizer_free(t);
        mem_free(json);
    }
}

/* ---- normalizer, post-processor, config ---- */

static void test_tokenizer_normal_form_keeps_offsets_around_the_change(void **state) {
    (void)state;
    struct tokenizer *const t = open_files("{\"normalizer\":{\"type\":\"NFC\"},\"model\":{\"type\":"
                                           "\"BPE\",\"vocab\":{\"a\":0,\"\u00e9\":1,\"b\":2,"
                                           "\"ab\":3},\"merges\":[\"a b\"]}}",
                                           NULL);
    assert_ids(t, "ae\u0301b", "0 1 2");
    assert_ends(t, "ae\u0301b", "1 4 5");
    assert_ends(t, "a\u00e9b", "1 3 4");
    tokenizer_free(t);
}

static void test_tokenizer_A11_nested_post_processor_adds_bos_but_no_eos(void **state) {
    (void)state;
    struct tokenizer *const t = open_files(
        "{\"added_tokens\":[{\"id\":4,\"content\":\"<b>\",\"special\":true},{\"id\":5,\"content\":"
        "\"<e>\",\"special\":true}],\"post_processor\":"
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
        "\"trim_offsets\":false,\"use_regex\":true},"
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"TemplateProcessing\",\"single\":[{"
        "\"SpecialToken\":{\"id\":\"<b>\",\"type_id\":0}},"
        "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<b>\":{"
        "\"id\":\"<b>\",\"ids\":[4],\"tokens\":[\"<b>\"]}}}]}]},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"h\":0,\"i\":1,\"hi\":2},\"merges\":[\"h i\"]}}",
        "{\"add_eos_token\":true,\"bos_token\":\"<b>\",\"eos_token\":{\"content\":\"<e>\"},"
        "\"tokenizer_class\":\"PreTrainedTokenizerFast\"}");
    assert_ids_as(t, "hi", SPECIAL_PARSE, true, "4 2");
    assert_string_equal(tokenizer_named_token(t, "eos_token"), "<e>");
    assert_null(tokenizer_named_token(t, "pad_token"));
    assert_non_null(strstr(tokenizer_notes(t), "add_eos_token is true"));
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_A08_prepend_encodes_like_sentencepiece),
        cmocka_unit_test(test_tokenizer_A08_metaspace_first_marks_only_the_start),
        cmocka_unit_test(test_tokenizer_broken_byte_runs_become_replacement_characters),
        cmocka_unit_test(test_tokenizer_A01_whole_piece_is_looked_up_only_with_ignore_merges),
        cmocka_unit_test(test_tokenizer_A02_merges_in_both_spellings_are_equal),
        cmocka_unit_test(test_tokenizer_lowest_rank_merges_first_then_leftmost),
        cmocka_unit_test(test_tokenizer_A06_members_behind_byte_level_see_its_alphabet),
        cmocka_unit_test(test_tokenizer_byte_level_decodes_lossy_and_streams_whole_characters),
        cmocka_unit_test(test_tokenizer_added_tokens_obey_their_flags),
        cmocka_unit_test(test_tokenizer_unknown_characters_fuse_only_when_told),
        cmocka_unit_test(test_tokenizer_normal_form_keeps_offsets_around_the_change),
        cmocka_unit_test(test_tokenizer_A11_nested_post_processor_adds_bos_but_no_eos),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
