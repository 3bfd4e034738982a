/* test_dataset_preference.c - goal: every spelling of a preference is read into prompt, better and
 * worse answer, what is wrong is named by its field, the check accepts and counts such files, and
 * a run that would train on them is refused with what can be done. Method: rows through
 * data_row_read, dataset_check and dataset_load.
 * rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/text/dataset_row.h"
#include "tests/unit/support_tokens.h"

static void show_chat(const struct chat *chat, struct str *out) {
    for (size_t i = 0; i < chat->count; i++) {
        str_appendf(out, "%s%s:%s",
                    i == 0             ? ""
                    : i == chat->given ? " # "
                                       : " ",
                    chat_role_name(chat->messages[i].role), str_text(&chat->messages[i].content));
    }
}

/* "prompt # better ~ worse", or "!" and the error. */
static char *read_row(const char *text) {
    struct row_json json = {0};
    struct data_row row = {0};
    struct err e = {0};
    struct str out = {0};
    enum data_format format = FORMAT_AUTO;
    enum status status = row_json_parse(&json, &(struct row){text, strlen(text), 1}, &e);
    if (status == STATUS_OK) status = data_row_detect(&json, &format, &e);
    if (status == STATUS_OK) assert_int_equal(format, FORMAT_PREFERENCE);
    if (status == STATUS_OK) status = data_row_read(&row, &json, format, 0, &e);
    if (status != STATUS_OK) {
        str_appendf(&out, "!%s", e.text);
    } else if (row.is_chat) {
        show_chat(&row.chat, &out);
        str_append(&out, " ~ ");
        show_chat(&row.rejected_chat, &out);
    } else {
        str_appendf(&out, "%s # %s ~ %s", str_text(&row.prompt), str_text(&row.text),
                    str_text(&row.rejected_text));
    }
    if (status == STATUS_OK) assert_int_equal(row.extra_keys, 0);
    data_row_release(&row);
    row_json_release(&json);
    return str_take(&out);
}

static void expect(const char *row, const char *expected) {
    char *const got = read_row(row);
    if (!str_equal(got, expected)) fail_msg("\ngot      %s\nexpected %s", got, expected);
    mem_free(got);
}

static void expect_refused(const char *row, const char *expected) {
    char *const got = read_row(row);
    if (got[0] != '!' || !strstr(got, expected)) fail_msg("\ngot %s\nexpected %s", got, expected);
    assert_null(strstr(got, "secret"));
    mem_free(got);
}

#define SAYS(role, content) "{\"role\":\"" role "\",\"content\":\"" content "\"}"
#define TURN(from, value) "{\"from\":\"" from "\",\"value\":\"" value "\"}"

static void test_dataset_preference_in_every_spelling(void **state) {
    (void)state;
    expect("{\"prompt\":\"p\",\"chosen\":\"a\",\"rejected\":\"b\"}", "p # a ~ b");
    expect("{\"prompt\":[" SAYS("user", "p") "],\"chosen\":[" SAYS(
               "assistant", "a") "],\"rejected\":[" SAYS("assistant", "b") "]}",
           "user:p # assistant:a ~ assistant:b");
    expect("{\"chosen\":[" SAYS("user", "p") "," SAYS("assistant", "a") "],\"rejected\":[" SAYS(
               "user", "p") "," SAYS("assistant", "b") "]}",
           "user:p # assistant:a ~ user:p # assistant:b");
    expect("{\"input\":{\"messages\":[" SAYS(
               "user", "p") "],\"tools\":[],\"parallel_tool_calls\":true},"
                            "\"preferred_output\":[" SAYS(
                                "assistant", "a") "],\"non_preferred_output\":[" SAYS("assistant",
                                                                                      "b") "]}",
           "user:p # assistant:a ~ assistant:b");
    expect("{\"instruction\":\"do\",\"input\":\"it\",\"chosen\":\"a\",\"rejected\":\"b\"}",
           "do\nit # a ~ b");
    expect("{\"conversations\":[" TURN("human", "p") "],\"chosen\":" TURN(
               "gpt", "a") ",\"rejected\":" TURN("gpt", "b") "}",
           "user:p # assistant:a ~ assistant:b");
    expect("{\"system\":\"s\",\"question\":\"p\",\"chosen_response\":\"a\",\"rejected_response\":"
           "\"b\"}",
           "s\np # a ~ b");
    expect("{\"messages\":[" SAYS("user", "p") "],\"chosen\":" SAYS(
               "assistant", "a") ",\"rejected\":" SAYS("assistant", "b") "}",
           "user:p # assistant:a ~ assistant:b");
    expect("{\"prompt\":\"p\",\"chosen\":[" SAYS("assistant", "a") "],\"rejected\":[" SAYS(
               "assistant", "b") "]}",
           "user:p # assistant:a ~ assistant:b");
}

static void test_dataset_preference_flaws_are_named(void **state) {
    (void)state;
    expect_refused("{\"prompt\":\"p\",\"chosen\":\"secret\"}", "rejected: is missing");
    expect_refused("{\"prompt\":\"p\",\"rejected\":\"secret\"}", "chosen: is missing");
    expect_refused("{\"chosen\":\"secret\",\"rejected\":\"b\"}", "prompt: is missing");
    expect_refused("{\"prompt\":\"p\",\"chosen\":\"\",\"rejected\":\"b\"}", "chosen: is empty");
    expect_refused("{\"prompt\":\"p\",\"chosen\":\"secret\",\"rejected\":\"secret\"}",
                   "rejected: says the same as \"chosen\"");
    expect_refused("{\"prompt\":\"p\",\"chosen\":\"a\",\"rejected\":[]}",
                   "rejected: must be of the same kind as \"chosen\"");
    expect_refused("{\"prompt\":\"p\",\"chosen\":3,\"rejected\":4}",
                   "chosen: must be a text, a message or a list of messages, it is a number");
    expect_refused("{\"prompt\":[],\"chosen\":\"a\",\"rejected\":\"b\"}",
                   "prompt: must be a string, as the answers are; it is an array");
    expect_refused(
        "{\"chosen\":[" SAYS("user", "p") "," SAYS("assistant", "a") "],\"rejected\":[" SAYS(
            "user", "q") "," SAYS("assistant", "b") "]}",
        "prompt: is missing, and \"chosen\" and \"rejected\" do not begin with the same");
    expect_refused("{\"prompt\":\"p\",\"chosen\":[" SAYS("user", "a") "],\"rejected\":[" SAYS(
                       "assistant", "b") "]}",
                   "chosen: has no assistant message");
    expect_refused("{\"prompt\":\"p\",\"question\":\"p\",\"chosen\":\"a\",\"rejected\":\"b\"}",
                   "question: \"prompt\" says the same, keep one");
    expect_refused("{\"input\":{},\"preferred_output\":[],\"non_preferred_output\":[]}",
                   "input.messages: is missing");
    expect_refused("{\"prompt\":\"p\",\"chosen\":\"a\",\"rejected\":\"b\",\"promt\":1,\"chosn\":2,"
                   "\"tool\":3}",
                   "tool: unknown key, did you mean \"tools\"?");
}

static void test_dataset_preference_is_checked_and_counted(void **state) {
    (void)state;
    static const char ROWS[] = "{\"prompt\":\"p\",\"chosen\":\"a\",\"rejected\":\"b\"}\n"
                               "{\"prompt\":\"p\",\"chosen\":\"a\"}\n{\"text\":\"x\"}\n";
    char *const folder = scratch_new();
    char *const path = scratch_write(folder, "rows.jsonl", ROWS, sizeof ROWS - 1);
    cJSON *report = NULL;
    struct str text = {0};
    assert_int_equal(dataset_check(path, 5, &report, NULL), STATUS_OK);
    json_append(&text, report);
    assert_non_null(strstr(text.data, "\"format\":\"preference\",\"rows\":3"));
    assert_non_null(strstr(text.data, "\"error_count\":2"));
    assert_non_null(strstr(text.data, "rejected: is missing"));
    assert_non_null(strstr(text.data, "in format text, line 1 made the file preference"));
    cJSON_Delete(report);
    str_release(&text);
    mem_free(path);
    scratch_free(folder);
}

static void test_dataset_preference_is_not_trained_on(void **state) {
    (void)state;
    const struct token_case c = {.folder = "bos",
                                 .rows = "{\"prompt\":\"p\",\"chosen\":\"a\",\"rejected\":\"b\"}"};
    token_case_expect_refused(&c, "line 1: this is preference data (chosen, rejected), which "
                                  "supervised fine-tuning cannot use: to train on the better "
                                  "answers, write each row as \"prompt\" and \"completion\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dataset_preference_in_every_spelling),
        cmocka_unit_test(test_dataset_preference_flaws_are_named),
        cmocka_unit_test(test_dataset_preference_is_checked_and_counted),
        cmocka_unit_test(test_dataset_preference_is_not_trained_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
