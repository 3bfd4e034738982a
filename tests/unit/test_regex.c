/* test_regex.c - the patterns of tokenizer files mean here what they mean to their own engine.
 *
 * Goal: the splits of six real pre-tokenizer patterns on traps (white space, digits, case, marks),
 * the rewritten escapes, and that what is not understood is refused.
 * Method: tables of text and expected pieces, joined by a bar.
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
#include "engine/text/regex.h"

#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

enum family { GPT2, LLAMA3, QWEN2, QWEN35, TEKKEN, O200K, FAMILY_COUNT };
static const char *const PATTERNS[FAMILY_COUNT] = {
    [GPT2] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    [LLAMA3] =
        SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL,
    [QWEN2] = SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL,
    [QWEN35] = SUFFIX
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL,
    [TEKKEN] = UPPER "*" LOWER "+|" UPPER "+" LOWER "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL,
    [O200K] = UPPER "*" LOWER "+" SUFFIX "?|" UPPER "+" LOWER "*" SUFFIX
                    "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL,
};

/* Pieces by family; NULL: as the family before. */
static const struct {
    const char *text, *pieces[FAMILY_COUNT];
} VECTORS[] = {
    {"I'LL don't we've",
     {"I|'|LL| don|'t| we|'ve", "I|'LL| don|'t| we|'ve", NULL, NULL, NULL, "I'LL| don't| we've"}},
    {"a  b", {"a| | b"}},
    {"a   b ", {"a|  | b| "}},
    {"x\n\n  y", {"x|\n\n | y", "x|\n\n| | y"}},
    {"  \n \n z", {"  \n \n| z"}},
    {" \t\tq", {" \t|\t|q", " \t|\tq"}},
    {"12345678", {"12345678", "123|456|78", "1|2|3|4|5|6|7|8", NULL, NULL, "123|456|78"}},
    {"v1.20", {"v|1|.|20", NULL, "v|1|.|2|0", NULL, NULL, "v|1|.|20"}},
    {"->(x):\n\n", {"->(|x|):|\n\n", "->(|x|):\n\n"}},
    {"(x):\n", {"(|x|):|\n", "(x|):\n"}},
    {"->", {"->"}},
    {"foo/bar//", {"foo|/|bar|//", "foo|/bar|//"}},
    {"HelloWorld eBay pH", {"HelloWorld| eBay| pH", NULL, NULL, NULL, "Hello|World| e|Bay| p|H"}},
    {"你好，世界123",
     {"你好|，|世界|123", "你好|，世界|123", "你好|，世界|1|2|3", NULL, NULL, "你好|，世界|123"}},
    {"e\u0301a", {"e|\u0301|a", "e|\u0301a", NULL, "e\u0301a"}},
    {"\U0001f642\U0001f44d\U0001f3fda", {"\U0001f642\U0001f44d\U0001f3fd|a"}},
    {"a\u00a0b\u3000c", {"a|\u00a0|b|\u3000|c", "a|\u00a0b|\u3000c"}},
    {"\u0661\u0662\u0663\u0664 \u00bd",
     {"\u0661\u0662\u0663\u0664| \u00bd", "\u0661\u0662\u0663|\u0664| |\u00bd",
      "\u0661|\u0662|\u0663|\u0664| |\u00bd", NULL, NULL, "\u0661\u0662\u0663|\u0664| |\u00bd"}},
    {"\r\n\r\n a", {"\r\n\r\n| a"}},
    {"...\n\n\n", {"...|\n\n\n", "...\n\n\n"}},
    {"<@@im_end@@>", {"<@@|im|_|end|@@>", "<@@|im|_end|@@>"}},
};

static char *pieces_of(const char *pattern, const char *text) {
    struct regex *regex = NULL;
    struct err e = {0};
    struct str out = {0};
    assert_int_equal(regex_open(&regex, pattern, &e), STATUS_OK);
    struct regex_state *const state = regex_state_new();
    size_t at = 0;
    struct regex_match m = {0};
    while (at < strlen(text)) {
        assert_int_equal(regex_find(regex, state, text, strlen(text), at, &m, &e), STATUS_OK);
        assert_true(m.found && m.from == at && m.to > at);
        if (at > 0) str_append_char(&out, '|');
        str_append_bytes(&out, text + m.from, m.to - m.from);
        at = m.to;
    }
    regex_state_free(state);
    regex_free(regex);
    return str_take(&out);
}

static void test_regex_A04_families_split_as_published(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(VECTORS); i++) {
        const char *expected = NULL;
        for (int family = 0; family < FAMILY_COUNT; family++) {
            if (VECTORS[i].pieces[family]) expected = VECTORS[i].pieces[family];
            char *const got = pieces_of(PATTERNS[family], VECTORS[i].text);
            if (strcmp(got, expected) != 0)
                print_message("family %d, \"%s\"\n", family, VECTORS[i].text);
            assert_string_equal(got, expected);
            mem_free(got);
        }
    }
}

static bool matches_all(const char *pattern, const char *text) {
    struct regex *regex = NULL;
    struct err e = {0};
    struct regex_match m = {0};
    assert_int_equal(regex_open(&regex, pattern, &e), STATUS_OK);
    struct regex_state *const s = regex_state_new();
    assert_int_equal(regex_find(regex, s, text, strlen(text), 0, &m, &e), STATUS_OK);
    regex_state_free(s);
    regex_free(regex);
    return m.found && m.from == 0 && m.to == strlen(text);
}

static void test_regex_space_is_unicode_white_space(void **state) {
    (void)state;
    static const char *const SPACES[] = {"\t",     "\v",     "\f",     " ",      "\xC2\x85",
                                         "\u00a0", "\u1680", "\u2000", "\u200a", "\u2028",
                                         "\u2029", "\u202f", "\u205f", "\u3000"};
    static const char *const OTHERS[] = {"\x1c", "\x1f", "\u180e", "\u200b", "\ufeff", "a"};
    for (size_t i = 0; i < COUNT_OF(SPACES); i++) {
        assert_true(matches_all("\\s", SPACES[i]));
        assert_false(matches_all("[^\\s]", SPACES[i]));
    }
    for (size_t i = 0; i < COUNT_OF(OTHERS); i++) {
        assert_false(matches_all("\\s", OTHERS[i]));
        assert_true(matches_all("\\S", OTHERS[i]));
        assert_true(matches_all("[\\S]", OTHERS[i]));
    }
}

static void test_regex_escapes_mean_what_the_original_means(void **state) {
    (void)state;
    assert_true(matches_all("\\v", "\x0b"));
    assert_false(matches_all("\\v", "\n"));
    assert_true(matches_all("\\u4e00\\x{4e01}\\x41", "\u4e00\u4e01A"));
    assert_true(
        matches_all("\\p{N}{1,3}+", "1234567")); /* a repeat of the repeat, not possessive */
    assert_true(matches_all("a++b?+", "aab"));
    assert_true(matches_all("\\p{Han}", "漢"));
    assert_false(matches_all("\\p{Han}", "\u3001")); /* Han only by script extension */
    assert_true(matches_all("\\w+", "ae\u0301_9\u24d0"));
    assert_true(matches_all("\\ba\\b", "a"));
    assert_true(matches_all("\\s++$", "  "));
    assert_true(matches_all("(?i:'LL)", "'ll"));
}

static void test_regex_unknown_constructs_are_refused(void **state) {
    (void)state;
    static const char *const REFUSED[] = {"[a&&b]", "[a[b]]",  "\\h",     "\\K",         "\\1",
                                          "(?i)a",  "(?<n>a)", "(?m:a)",  "a**",         "{2}",
                                          "a{,3}",  "\\pL",    "\\p{^L}", "[[:alpha:]]", "[]a]",
                                          "\\G",    "\\R",     "(*FAIL)", "[\\W]",       "\\x80"};
    static const char *const BROKEN[] = {"(a",    "a)",       "[a",  "\\p{NoSuchScript}",
                                         "[z-a]", "(?<=a+)b", "\xff"};
    for (size_t i = 0; i < COUNT_OF(REFUSED) + COUNT_OF(BROKEN); i++) {
        const bool refused = i < COUNT_OF(REFUSED);
        const char *const pattern = refused ? REFUSED[i] : BROKEN[i - COUNT_OF(REFUSED)];
        struct regex *regex = NULL;
        struct err e = {0};
        const enum status status = regex_open(&regex, pattern, &e);
        if (status == STATUS_OK) print_message("%s\n", pattern);
        assert_int_equal(status, refused ? STATUS_UNSUPPORTED : STATUS_INVALID);
        assert_non_null(strstr(e.text, "regular expression"));
    }
}

static void test_regex_exponential_pattern_gives_up(void **state) {
    (void)state;
    struct regex *regex = NULL;
    struct err e = {0};
    struct regex_match m = {0};
    const char *const text = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac";
    assert_int_equal(regex_open(&regex, "(?:a|aa)+(?:b|\\s)", &e), STATUS_OK);
    struct regex_state *const s = regex_state_new();
    assert_int_equal(regex_find(regex, s, text, strlen(text), 0, &m, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "gave up"));
    regex_state_free(s);
    regex_free(regex);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex_A04_families_split_as_published),
        cmocka_unit_test(test_regex_space_is_unicode_white_space),
        cmocka_unit_test(test_regex_escapes_mean_what_the_original_means),
        cmocka_unit_test(test_regex_unknown_constructs_are_refused),
        cmocka_unit_test(test_regex_exponential_pattern_gives_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
