/* test_dataset_options.c - goal: what a user can ask for (split, merged, repaired rows, dropped
 * messages) does what it says and is counted with its first lines; the loop over files visits what
 * its visitor asked for; CSV loads in every format. Method: small files through dataset_load and
 * dataset_each.
 * rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/text/encode.h"
#include "engine/text/rows_repair.h"
#include "tests/unit/support_tokens.h"

#define IM(role, content) "^<|im_start|>" role "\n" content "^<|im_end|>\n"
#define ANSWER(content) "^<|im_start|>assistant\n[[" content "^<|im_end|>]]\n"
#define SILENT(content) "^<|im_start|>assistant\n" content "^<|im_end|>\n"
#define MESSAGE(role, content) "{\"role\":\"" role "\",\"content\":\"" content "\"}"
#define MESSAGES(list) "{\"messages\":[" list "]}\n"

static const char CHATML[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* Keeps reasoning in the last answer only, as Qwen3. */
static const char FORGETTING[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1].strip() }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* Writes the system message only when there is nothing after the first question. */
static const char DROPPING[] =
    "{% for m in messages %}{% if m.role != 'system' or messages | length == 2 %}<|im_start|>"
    "{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* What a visitor saw, in words. */
static enum status note(void *context, const struct row_outcome *o, struct err *e) {
    struct str *const out = context;
    (void)e;
    str_appendf(out, "%lld.%lld/%lld@%lld ", (long long)o->row, (long long)o->part,
                (long long)o->parts, (long long)o->line);
    if (o->error) str_appendf(out, "!%s ", o->error->text);
    for (int i = 0; i < ROW_PROBLEM_COUNT; i++) {
        if (o->problems >> i & 1) str_appendf(out, "%s ", row_problem_name((enum row_problem)i));
    }
    if (o->encoded) str_appendf(out, "%zu[%s]", o->encoded->ids.count, str_text(&o->encoded->text));
    str_append_char(out, '|');
    return STATUS_OK;
}

static char *visit(const char *rows, const struct dataset_visitor *wanted) {
    char *const folder = scratch_new();
    char *const path = scratch_write(folder, "rows.jsonl", rows, strlen(rows));
    struct tokenizer *tokenizer = NULL;
    struct str out = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_open(&tokenizer, "tests/unit/data/dataset/bos", &e), STATUS_OK);
    const struct dataset_options options = {
        .max_length = 5, .vocab = 1000, .tokenizer = tokenizer, .keep_text = true};
    struct dataset_visitor visitor = *wanted;
    visitor.context = &out;
    visitor.row = note;
    if (dataset_each(&(char *){path}, 1, &options, &visitor, &e) != STATUS_OK)
        str_appendf(&out, "!!%s", strstr(e.text, "line"));
    tokenizer_free(tokenizer);
    mem_free(path);
    scratch_free(folder);
    return str_take(&out);
}

static void expect_visits(const char *rows, const struct dataset_visitor *wanted,
                          const char *expected) {
    char *const got = visit(rows, wanted);
    if (!str_equal(got, expected)) fail_msg("\ngot      %s\nexpected %s", got, expected);
    mem_free(got);
}

static const char FOUR[] = "{\"prompt\":\"a\",\"completion\":\"b\"}\n\n{\"prompt\":1}\n"
                           "{\"prompt\":\"abcd\",\"completion\":\"e\"}\n"
                           "{\"prompt\":\"a\",\"completion\":\"bcde\",\"id\":1}\n";

static void test_dataset_each_goes_on_when_asked(void **state) {
    (void)state;
    const struct dataset_visitor all = {.go_on = true}, first = {0};
    expect_visits(
        FOUR, &all,
        "0.0/1@1 4[ab]|1.0/1@3 !completion: is missing (format prompt_completion) invalid "
        "|2.0/1@4 answer_cut 7[abcde]|3.0/1@5 cut extra_keys 7[abcde]|");
    expect_visits(FOUR, &first,
                  "0.0/1@1 4[ab]|!!line 3: completion: is missing (format prompt_completion)");
    expect_visits("", &all, "0.0/1@1 !the file has no rows invalid |");
    expect_visits("[{\"text\":\"a\"},", &all,
                  "0.0/1@1 3[a]|1.0/1@1 !the array is not closed: the file is cut off invalid |");
}

static void test_dataset_each_gives_a_window(void **state) {
    (void)state;
    const struct dataset_visitor one = {.go_on = true, .rows_first = 2, .rows_max = 1};
    expect_visits(FOUR, &one, "2.0/1@4 answer_cut 7[abcde]|");
    const struct dataset_visitor rest = {.rows_first =
                                             3}; /* a wrong row outside is not looked at */
    expect_visits(FOUR, &rest, "3.0/1@5 cut extra_keys 7[abcde]|");
    const struct dataset_visitor beyond = {.rows_first = 9};
    expect_visits(FOUR, &beyond, "");
}

static void test_dataset_problems_have_names_and_sentences(void **state) {
    (void)state;
    for (int i = 0; i < ROW_PROBLEM_COUNT; i++) {
        const char *const name = row_problem_name((enum row_problem)i);
        const char *const sentence = row_problem_sentence((enum row_problem)i);
        assert_true(strlen(name) > 2 &&
                    strspn(name, "abcdefghijklmnopqrstuvwxyz_") == strlen(name));
        assert_true(strlen(sentence) > 10 && str_ends_with(sentence, "."));
    }
}

static void test_dataset_C05_invalid_text_is_replaced_on_request(void **state) {
    (void)state;
    struct dataset_counts counts;
    struct token_case c = {
        .folder = "bos",
        .rows =
            "{\"text\":\"a\\ud83dz\"}\n{\"text\":\"\\ude42\\ud83d\"}\n{\"text\":\"\xED\xA0\xBD\"}\n"
            "{\"text\":\"b\xFF\"}\n{\"text\":\"\\ud83d\\ude42 \\\\ud83d\"}\n{\"text\":\"ok\"}\n"};
    token_case_expect_refused(&c, "line 1: not valid JSON at column 11: half of a surrogate pair");
    c.replace_invalid_utf8 = true;
    char *const shown = token_case_run(&c, &counts);
    assert_true(shown[0] != '!');
    assert_int_equal(counts.rows, 6);
    const struct row_tally *const tally = &counts.problems[ROW_REPLACED_TEXT];
    assert_int_equal(tally->rows, 4);
    assert_int_equal(tally->first[0].line, 1);
    assert_int_equal(tally->first[2].line, 3);
    mem_free(shown);
    c.rows = "text,x\n\"a\xFF\",\xC3\n"; /* and in a table */
    char *const table = token_case_run(&c, &counts);
    assert_int_equal(counts.problems[ROW_REPLACED_TEXT].rows, 1);
    assert_int_equal(counts.tokens, 6); /* <s> a, three bytes, </s> */
    mem_free(table);
}

static void test_rows_repair_C05_leaves_nothing_that_is_no_text(void **state) {
    (void)state;
    static const struct {
        const char *text, *expected;
        int64_t replaced;
    } CASES[] = {
        {"plain \xC3\xA4 \\n \\u00e4 \\ud83d\\ude42", "plain \xC3\xA4 \\n \\u00e4 \\ud83d\\ude42",
         0},
        {"\\ud83dx\\ude42", "\\ufffdx\\ufffd", 2},
        {"\\ud83d\\ud83d\\ude42", "\\ufffd\\ud83d\\ude42", 1},
        {"\\\\ud83d \\u12", "\\\\ud83d \\u12", 0}, /* an escaped backslash; not an escape */
        {"\\\xFFx\\", "\\\xEF\xBF\xBDx\\", 1},
        {"\xED\xA0\xBD", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 3},
        {"\xF0\x9F\x99z\xE2\x82", "\xEF\xBF\xBDz\xEF\xBF\xBD", 2},
        {"\xC0\xAF\xF5", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 3},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct str out = {0};
        assert_int_equal(rows_repair(CASES[i].text, strlen(CASES[i].text), &out),
                         CASES[i].replaced);
        assert_string_equal(str_text(&out), CASES[i].expected);
        str_release(&out);
    }
}

static void test_dataset_C07_neighbours_of_one_role_are_merged_on_request(void **state) {
    (void)state;
    struct dataset_counts counts;
    struct token_case c = {
        .folder = "chatml",
        .chat = CHATML,
        .rows = MESSAGES(MESSAGE("user", "a") "," MESSAGE("user", "b") "," MESSAGE(
            "assistant", "c") "," MESSAGE("assistant", "d") "," MESSAGE("user", "e"))
            MESSAGES(MESSAGE("user", "a") "," MESSAGE("assistant", "b"))};
    token_case_expect(&c, IM("user", "a") IM("user", "b") ANSWER("c") ANSWER("d")
                              IM("user", "e") "|" IM("user", "a") ANSWER("b"));
    c.merge_turns = true;
    char *const shown = token_case_run(&c, &counts);
    assert_string_equal(shown, IM("user", "a\n\nb") ANSWER("c\n\nd")
                                   IM("user", "e") "|" IM("user", "a") ANSWER("b"));
    assert_int_equal(counts.problems[ROW_MERGED_TURNS].rows, 1);
    mem_free(shown);
    /* Of two answers one is not trained; a prompt ends where the completion begins. */
    c.rows =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
        "\"b\",\"weight\":0},{\"role\":\"assistant\",\"content\":\"c\"}]}\n";
    token_case_expect(&c, IM("user", "a") SILENT("b") ANSWER("c"));
    c.rows = "{\"prompt\":[" MESSAGE("user", "a") "," MESSAGE("user", "b") "," MESSAGE(
        "assistant", "c") "],\"completion\":[" MESSAGE("assistant", "d") "]}";
    token_case_expect(&c, IM("user", "a\n\nb") SILENT("c") ANSWER("d"));
}

static void test_dataset_B07_answers_become_rows_of_their_own_on_request(void **state) {
    (void)state;
    struct dataset_counts counts;
    struct token_case c = {
        .folder = "chatml",
        .chat = FORGETTING,
        .rows = MESSAGES(MESSAGE("user", "q1") "," MESSAGE(
            "assistant", "<think>r1</think>a1") "," MESSAGE("user", "q2") "," MESSAGE("assistant",
                                                                                      "<think>r2</"
                                                                                      "think>a2"))};
    token_case_expect(&c,
                      IM("user", "q1") ANSWER("a1") IM("user", "q2") ANSWER("<think>r2</think>a2"));
    c.split_turns = true;
    char *const shown = token_case_run(&c, &counts);
    assert_string_equal(shown, IM("user", "q1") ANSWER("<think>r1</think>a1") "|" IM("user", "q1")
                                   SILENT("a1") IM("user", "q2") ANSWER("<think>r2</think>a2"));
    assert_int_equal(counts.rows, 1);
    assert_int_equal(counts.samples, 2);
    mem_free(shown);
    c.rows = "{\"messages\":[" MESSAGE(
        "user", "a") ",{\"role\":\"assistant\",\"content\":\"b\","
                     "\"weight\":0}," MESSAGE("user", "c") "," MESSAGE("assistant", "d") "]}";
    token_case_expect(&c, IM("user", "a") SILENT("b") IM("user", "c") ANSWER("d"));
}

static void test_dataset_B06_dropped_messages_are_counted_on_request(void **state) {
    (void)state;
    struct dataset_counts counts;
    struct token_case c = {
        .folder = "chatml",
        .chat = DROPPING,
        .rows = MESSAGES(MESSAGE("user", "a") "," MESSAGE("assistant", "b")) "\n" MESSAGES(
            MESSAGE("system", "S") "," MESSAGE("user", "a") "," MESSAGE("assistant", "b"))};
    token_case_expect_refused(&c, "line 3: messages[0]: the chat template leaves out this system "
                                  "message, the model would never see it "
                                  "(data.fold_system puts one in front of the first question; "
                                  "data.max_rows_dropped_message");
    c.drop_messages = true;
    char *const shown = token_case_run(&c, &counts);
    assert_string_equal(shown, IM("user", "a") ANSWER("b") "|" IM("user", "a") ANSWER("b"));
    assert_int_equal(counts.problems[ROW_DROPPED_MESSAGE].rows, 1);
    assert_int_equal(counts.problems[ROW_DROPPED_MESSAGE].first[0].line, 3);
    mem_free(shown);
}

static void test_dataset_B06_folded_system_messages_are_counted(void **state) {
    (void)state;
    struct dataset_counts counts;
    struct token_case c = {
        .folder = "chatml",
        .chat = DROPPING,
        .fold_system = true,
        .rows = MESSAGES(MESSAGE("user", "a") "," MESSAGE("assistant", "b")) "\n" MESSAGES(
            MESSAGE("system", "S") "," MESSAGE("user", "a") "," MESSAGE("assistant", "b"))};
    for (int drop = 0; drop < 2; drop++) { /* folding comes before dropping */
        c.drop_messages = drop;
        char *const shown = token_case_run(&c, &counts);
        assert_string_equal(shown,
                            IM("user", "a") ANSWER("b") "|" IM("user", "S\n\na") ANSWER("b"));
        assert_int_equal(counts.problems[ROW_FOLDED_SYSTEM].rows, 1);
        assert_int_equal(counts.problems[ROW_FOLDED_SYSTEM].first[0].line, 3);
        assert_int_equal(counts.problems[ROW_DROPPED_MESSAGE].rows, 0);
        mem_free(shown);
    }
    c.drop_messages = true;
    c.rows =
        MESSAGES(MESSAGE("user", "a") "," MESSAGE("system", "S") "," MESSAGE("assistant", "b"));
    mem_free(token_case_run(&c, &counts));
    assert_int_equal(counts.problems[ROW_FOLDED_SYSTEM].rows, 0);
    assert_int_equal(counts.problems[ROW_DROPPED_MESSAGE].rows, 1);
}

static void test_dataset_B09_arguments_as_text_are_noted(void **state) {
    (void)state;
    static const char GLUING[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
        "{% for t in m.tool_calls or [] %}{{ '<call>' + t.function.arguments }}{% endfor %}"
        "<|im_end|>\n{% endfor %}";
    struct dataset_counts counts;
    struct token_case c = {
        .folder = "chatml",
        .chat = GLUING,
        .rows = "{\"messages\":[" MESSAGE(
            "user", "T?") ",{\"role\":\"assistant\",\"content\":null,"
                          "\"tool_calls\":[{\"function\":{\"name\":\"get\",\"arguments\":{\"n\":1}}"
                          "}]}]}\n" MESSAGES(MESSAGE("user", "a") "," MESSAGE("assistant", "b"))};
    char *const shown = token_case_run(&c, &counts);
    assert_non_null(strstr(shown, "<call>{\"n\":1}"));
    assert_int_equal(counts.problems[ROW_ARGUMENTS_AS_TEXT].rows, 1);
    mem_free(shown);
}

static void test_dataset_csv_in_every_format(void **state) {
    (void)state;
    struct token_case c = {.folder = "chatml", .chat = CHATML};
    c.rows = "instruction,input,output\ndo,it,\"o,k\"\ngo,,on\n";
    token_case_expect(&c, IM("user", "do\nit") ANSWER("o,k") "|" IM("user", "go") ANSWER("on"));
    c.rows = "id,messages\n1,\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"a\"\"},"
             "{\"\"role\"\":\"\"assistant\"\",\"\"content\"\":\"\"b\"\"}]\"\n";
    token_case_expect(&c, IM("user", "a") ANSWER("b"));
    c.rows = "prompt,completion\nx,y\nx,\n";
    token_case_expect(&c, "x[[y^<|im_end|>]]");
    c.folder = "bos";
    c.rows = "\xEF\xBB\xBFtext\r\n\"a\r\nb\"\r\n";
    token_case_expect(&c, "^<s>[[a\r\nb^</s>]]");
    c.rows = "text\na\n\"secret\n";
    token_case_expect_refused(&c, "rows.jsonl, line 3: not well-formed CSV at column 1");
    c.rows = "prompt,answer\na,b\n";
    token_case_expect_refused(&c, "line 2: completion: is missing");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dataset_each_goes_on_when_asked),
        cmocka_unit_test(test_dataset_each_gives_a_window),
        cmocka_unit_test(test_dataset_problems_have_names_and_sentences),
        cmocka_unit_test(test_dataset_C05_invalid_text_is_replaced_on_request),
        cmocka_unit_test(test_rows_repair_C05_leaves_nothing_that_is_no_text),
        cmocka_unit_test(test_dataset_C07_neighbours_of_one_role_are_merged_on_request),
        cmocka_unit_test(test_dataset_B07_answers_become_rows_of_their_own_on_request),
        cmocka_unit_test(test_dataset_B06_dropped_messages_are_counted_on_request),
        cmocka_unit_test(test_dataset_B06_folded_system_messages_are_counted),
        cmocka_unit_test(test_dataset_B09_arguments_as_text_are_noted),
        cmocka_unit_test(test_dataset_csv_in_every_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
