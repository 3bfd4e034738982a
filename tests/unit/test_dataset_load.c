/* test_dataset_load.c - goal: every format becomes the right tokens, what is cut or dropped is
 * counted, the first wrong line in file order is the error. Method: small files through
 * dataset_load with two small tokenizers (one adds BOS).
 * rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/unit/support_tokens.h"

#define IM(role, content) "^<|im_start|>" role "\n" content "^<|im_end|>\n"
#define ANSWER(content) "^<|im_start|>assistant\n[[" content "^<|im_end|>]]\n"

static const char CHATML[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static void test_dataset_B01_texts_get_one_bos_and_one_eos(void **state) {
    (void)state;
    struct token_case c = {
        .folder = "bos",
        .rows = "{\"text\":\"Yo a\"}\n{\"text\":\"<s>Yo a\"}\n{\"text\":\"Yo a</s>\"}\n"
                "{\"text\":\"<s>Yo a</s>\"}"};
    token_case_expect(&c,
                      "^<s>[[Yo a^</s>]]|^<s>[[Yo a^</s>]]|^<s>[[Yo a^</s>]]|^<s>[[Yo a^</s>]]");
    c.folder = "chatml"; /* no BOS: the first token has nothing before it */
    c.rows = "{\"text\":\"ab\"}\n{\"text\":\"ab<|im_end|>\"}";
    token_case_expect(&c, "a[[b^<|im_end|>]]|a[[b^<|im_end|>]]");
}

static void test_dataset_A10_texts_keep_special_spellings_as_text(void **state) {
    (void)state;
    struct dataset_counts counts;
    struct token_case c = {.folder = "bos", .rows = "{\"text\":\"a</s>b<s>\"}"};
    char *const shown = token_case_run(&c, &counts);
    assert_string_equal(shown, "^<s>[[a</s>b<s>^</s>]]");
    assert_int_equal(counts.control_tokens, 2);
    mem_free(shown);
    c.parse_special = true;
    token_case_expect(&c, "^<s>[[a^</s>b^<s>^</s>]]");
}

static void test_dataset_prompt_and_completion(void **state) {
    (void)state;
    struct token_case c = {.folder = "bos",
                           .chat = CHATML,
                           .rows = "{\"prompt\":\"Q: a\\nA:\",\"completion\":\" "
                                   "Yo\"}\n{\"prompt\":\"x\",\"completion\":\"\"}"};
    token_case_expect(&c, "^<s>Q: a\nA:[[ Yo^</s>]]");
    c.mask = MASK_ALL;
    token_case_expect(&c, "^<s>[[Q: a\nA: Yo^</s>]]");
    c.mask = MASK_ASSISTANT;
    c.folder = "chatml";
    c.rows = "{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
             "\"content\":\"b\"},"
             "{\"role\":\"user\",\"content\":\"c\"}],\"completion\":[{\"role\":\"assistant\","
             "\"content\":\"d\"}]}";
    token_case_expect(&c, IM("user", "a") IM("assistant", "b") IM("user", "c") ANSWER("d"));
    c.rows = "{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],\"completion\":\"d\"}";
    token_case_expect_refused(&c, "line 1: completion: must be a list of messages");
}

static void test_dataset_alpaca(void **state) {
    (void)state;
    const struct token_case c = {.folder = "chatml",
                                 .chat = CHATML,
                                 .rows = "{\"instruction\":\"do\",\"input\":\"it\",\"output\":"
                                         "\"ok\",\"text\":\"unused\",\"system\":\"S\","
                                         "\"history\":[[\"q\",\"r\"]]}\n{\"instruction\":\"go\","
                                         "\"input\":\"\",\"output\":\"on\"}"};
    token_case_expect(&c, IM("system", "S") IM("user", "q") ANSWER("r") IM("user", "do\nit")
                              ANSWER("ok") "|" IM("user", "go") ANSWER("on"));
}

static void test_dataset_C07_sharegpt_roles(void **state) {
    (void)state;
    struct token_case c = {.folder = "chatml",
                           .chat = CHATML,
                           .rows = "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{"
                                   "\"from\":\"gpt\",\"value\":\"b\"}]}\n"
                                   "{\"conversations\":[{\"from\":\"user\",\"value\":\"a\"},{"
                                   "\"from\":\"user\",\"value\":\"a2\"},"
                                   "{\"from\":\"assistant\",\"value\":\"b\"}],\"system\":\"S\"}\n"
                                   "{\"conversations\":[{\"from\":\"system\",\"value\":\"S\"},{"
                                   "\"from\":\"gpt\",\"value\":\"first\"}]}\n"
                                   "{\"conversations\":[{\"role\":\"user\",\"content\":\"a\"},{"
                                   "\"role\":\"assistant\",\"content\":\"b\"}]}"};
    token_case_expect(&c, IM("user", "a") ANSWER("b") "|" IM("system", "S") IM("user", "a")
                              IM("user", "a2") ANSWER("b") "|" IM("system", "S")
                                  ANSWER("first") "|" IM("user", "a") ANSWER("b"));
    c.rows = "{\"conversations\":[{\"from\":\"hummany\",\"value\":\"secret\"},{\"from\":\"gpt\","
             "\"value\":\"b\"}]}";
    token_case_expect_refused(&c, "line 1: conversations[0].from: unknown role \"hummany\"");
    c.rows = "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\",\"value\":"
             "\"b\"}]}\n{\"text\":\"secret\"}";
    token_case_expect_refused(
        &c,
        "line 2: the row is in format text, line 1 made the file sharegpt: one format per file");
    c.format = FORMAT_MESSAGES;
    token_case_expect_refused(&c,
                              "line 1: the row is in format sharegpt, the job asks for messages");
}

static void test_dataset_C06_cut_rows_are_counted(void **state) {
    (void)state;
    struct dataset_counts counts;
    struct token_case c = {
        .folder = "chatml",
        .chat = CHATML,
        .max_length = 27,
        .rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"abcdefghijklmnopqrst\"},{\"role\":"
                "\"assistant\",\"content\":\"x\"}]}\n"
                "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                "\"content\":\"bcdefghijkl\"}]}\n"};
    char *shown = token_case_run(&c, &counts);
    assert_string_equal(shown, IM("user", "a") "^<|im_start|>assistant\n[[bcdefgh]]");
    assert_int_equal(counts.rows, 2);
    assert_int_equal(counts.problems[ROW_CUT].rows, 1);
    assert_int_equal(counts.problems[ROW_ANSWER_CUT].rows, 1);
    assert_int_equal(counts.longest, 27);
    mem_free(shown);
    c.max_length = 15;
    token_case_expect_refused(
        &c, "all 2 rows have no token to train on: in 2 the answer lies beyond max_length 15");
}

static void test_dataset_long_texts_are_chunked_without_loss(void **state) {
    (void)state;
    struct dataset_counts counts;
    const struct token_case c = {
        .folder = "bos", .rows = "{\"text\":\"0123456789\"}", .max_length = 5};
    char *const shown = token_case_run(&c, &counts);
    /* Pieces overlap by one token, so that every token but BOS is predicted exactly once. */
    assert_string_equal(shown, "^<s>[[0123]]|3[[4567]]|7[[89^</s>]]");
    assert_int_equal(counts.samples, 3);
    assert_int_equal(counts.trained_tokens, 11);
    assert_int_equal(counts.problems[ROW_CUT].rows, 0);
    mem_free(shown);
}

static void test_dataset_the_first_wrong_line_is_the_error(void **state) {
    (void)state;
    struct str rows = {0};
    for (int i = 0; i < 3000; i++) {
        const bool wrong = i == 1700 || i == 1702 || i == 2999;
        str_appendf(&rows, wrong ? "{\"text\":%d}\n" : "{\"text\":\"row %d\"}\n", i);
    }
    struct token_case c = {.folder = "bos", .rows = str_text(&rows)};
    token_case_expect_refused(&c, "line 1701: text: must be a string, it is a number");
    str_release(&rows);
    c.rows = "{\"text\":\"a\"}\n\n{\"text\":\"secret\" \"}\n";
    token_case_expect_refused(&c, "rows.jsonl, line 3: not valid JSON at column 18");
    c.rows = "";
    token_case_expect_refused(&c, "has no rows");
    c.rows = "{\"text\":\"a\"}\n[1]\n";
    token_case_expect_refused(&c, "line 2: a row must be a JSON object, this is an array");
}

/* The outcome may not depend on the number of threads: a block boundary lies inside (1024 rows). */
static void test_dataset_order_is_the_files_order(void **state) {
    (void)state;
    struct str rows = {0};
    for (int i = 0; i < 2500; i++) {
        str_appendf(&rows, "{\"text\":\"%d\"}\n%s", i, i % 3 ? "" : "\n");
    }
    const struct token_case c = {.folder = "bos", .rows = str_text(&rows)};
    struct dataset d;
    struct err e = {0};
    assert_int_equal(token_case_load(&c, &d, &e), STATUS_OK);
    assert_int_equal(d.counts.samples, 2500);
    for (int i = 0; i < 2500; i++) {
        const struct sample s = dataset_sample(&d, i);
        int value = 0;
        for (int64_t k = 1; k + 1 < s.count; k++) {
            value = value * 10 + s.ids[k] - '0';
        }
        assert_int_equal(value, i);
        assert_int_equal(s.line, i + 1 + (i + 2) / 3);
    }
    dataset_release(&d);
    str_release(&rows);
}

static void test_dataset_chat_rows_without_template_are_refused(void **state) {
    (void)state;
    struct token_case c = {.folder = "chatml",
                           .rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
                                   "\"assistant\",\"content\":\"b\"}]}"};
    token_case_expect_refused(&c, "the model has no chat template");
    c.rows = "{\"text\":\"abc\"}";
    c.vocab = 98;
    token_case_expect_refused(&c, "line 1: token id 98 is outside the model's vocabulary of 98");
}

static void test_dataset_rows_of_other_trainings_are_refused_by_name(void **state) {
    (void)state;
    struct token_case c = {.folder = "chatml", .chat = CHATML};
    c.rows = "{\"prompt\":\"a\",\"completion\":\"b\",\"label\":true}";
    token_case_expect_refused(&c, "KTO data");
    c.rows = "{\"prompt\":\"a\"}";
    token_case_expect_refused(&c, "completion: is missing");
    c.rows = "{\"input_ids\":[1,2]}";
    token_case_expect_refused(&c, "tokenised already");
    c.rows = "{\"mesages\":[]}";
    token_case_expect_refused(&c, "no known format: a row needs \"messages\"");
}

static void test_dataset_fields_are_checked_by_path(void **state) {
    (void)state;
    static const struct {
        const char *rows, *text;
    } CASES[] = {
        {"{\"messages\":[]}", "messages: the list is empty"},
        {"{\"messages\":\"secret\"}", "messages: must be an array, it is a string"},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content: is missing"},
        {"{\"messages\":[{\"content\":\"secret\"}]}", "messages[0].role: is missing"},
        {"{\"messages\":[{\"role\":\"User\",\"content\":\"secret\"}]}",
         "messages[0].role: unknown role \"User\""},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]"
         "}]}",
         "messages[0].content[0]: a content part of type \"image_url\": only text"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"b\",\"weight\":0.5}]}",
         "messages[0].weight: must be 0 or 1"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"b\",\"weigth\":0}]}",
         "messages[0].weigth: unknown key, did you mean \"weight\"?"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"b\",\"weight\":1}]}",
         "messages[0].weight: a user message cannot"},
        {"{\"messages\":[{\"role\":\"user\",\"role\":\"user\",\"content\":\"b\"}]}",
         "messages[0].role: the key is there twice"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":null}]}",
         "messages[0].content: is missing"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"b\"}],\"tool\":[]}",
         "tool: unknown key, did you mean \"tools\"?"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"b\"}],\"tools\":{}}",
         "tools: must be an array"},
        {"{\"instruction\":\"a\",\"output\":3}", "output: must be a string, it is a number"},
        {"{\"instruction\":\"a\",\"output\":\"b\",\"history\":[[\"a\"]]}",
         "history[0]: must be a pair"},
        {"{\"conversations\":[{\"from\":\"gpt\",\"value\":5}]}",
         "conversations[0].value: must be a string"},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        const struct token_case c = {.folder = "chatml", .chat = CHATML, .rows = CASES[i].rows};
        token_case_expect_refused(&c, CASES[i].text);
    }
}

static void test_dataset_other_spellings_of_messages(void **state) {
    (void)state;
    struct dataset_counts counts;
    const struct token_case c = {
        .folder = "chatml",
        .chat = CHATML,
        .rows = "{\"id\":7,\"messages\":[{\"role\":\"developer\",\"content\":\"S\"},{\"role\":"
                "\"user\",\"content\":["
                "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},"
                "{\"role\":\"assistant\",\"content\":\"c\",\"refusal\":null,\"audio\":null}]}"};
    char *const shown = token_case_run(&c, &counts);
    assert_string_equal(shown, IM("system", "S") IM("user", "ab") ANSWER("c"));
    assert_int_equal(counts.problems[ROW_EXTRA_KEYS].rows, 1);
    mem_free(shown);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dataset_B01_texts_get_one_bos_and_one_eos),
        cmocka_unit_test(test_dataset_A10_texts_keep_special_spellings_as_text),
        cmocka_unit_test(test_dataset_prompt_and_completion),
        cmocka_unit_test(test_dataset_alpaca),
        cmocka_unit_test(test_dataset_C07_sharegpt_roles),
        cmocka_unit_test(test_dataset_C06_cut_rows_are_counted),
        cmocka_unit_test(test_dataset_long_texts_are_chunked_without_loss),
        cmocka_unit_test(test_dataset_the_first_wrong_line_is_the_error),
        cmocka_unit_test(test_dataset_order_is_the_files_order),
        cmocka_unit_test(test_dataset_chat_rows_without_template_are_refused),
        cmocka_unit_test(test_dataset_rows_of_other_trainings_are_refused_by_name),
        cmocka_unit_test(test_dataset_fields_are_checked_by_path),
        cmocka_unit_test(test_dataset_other_spellings_of_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
