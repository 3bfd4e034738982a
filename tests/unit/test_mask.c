/* test_mask.c - goal: of every conversation exactly the assistant's words and the end-of-turn
 * token are trained, whatever the template does with them. Method: templates that print
 * plainly, rewrite history, append at the end, put spaces around answers, drop the system
 * message, print tools; the expected mask is written out as text.
 * rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "tests/unit/support_tokens.h"

#define IM(role, content) "^<|im_start|>" role "\n" content "^<|im_end|>\n"
#define ANSWER(content) "^<|im_start|>assistant\n[[" content "^<|im_end|>]]\n"
#define SILENT(content) "^<|im_start|>assistant\n" content "^<|im_end|>\n"

static const char CHATML[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* As Phi-3: something more at the very end. */
static const char ENDING[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% else %}<|eot|>{% endif %}";

/* As Qwen3: reasoning is removed before the last question, after it there is always a block. */
static const char THINKING[] =
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% set c = m.content or '' %}{% set r = '' %}"
    "{% if m.reasoning_content is defined and m.reasoning_content %}{% set r = m.reasoning_content "
    "%}"
    "{% elif '</think>' in c %}{% set r = c.split('</think>')[0].split('<think>')[-1].strip('\\n') "
    "%}"
    "{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{{ '<|im_start|>assistant\\n' }}{% if loop.index0 > ns.last %}{{ '<think>\\n' + r + "
    "'\\n</think>\\n\\n' }}"
    "{% endif %}{{ c }}"
    "{% if m.tool_calls %}{% for t in m.tool_calls %}{{ '<call>' ~ (t.function | tojson) ~ "
    "'</call>' }}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ "
    "'<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}";

/* As Llama-2 and Mistral: one BOS, spaces around the words. */
static const char SPACED[] =
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' "
    "[/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + ' </s>' }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}";

/* As Mistral-Nemo: the system text is glued to the last question, if that is the last message. */
static const char DROPPING[] =
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]"
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% "
    "endif %}"
    "{{ m.content }}[/INST]{% elif m.role == 'assistant' %}{{ m.content }}</s>{% endif %}{% endfor "
    "%}";

static const char TOOLS[] =
    "{% if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.role == 'tool' %}{{ m.content | tojson }}{% elif m.content %}{{ m.content }}{% endif "
    "%}"
    "{% if m.tool_calls %}{% for t in m.tool_calls %}"
    "{{ '<call>{\"name\": \"' + t.function.name + '\", \"arguments\": ' + (t.function.arguments | "
    "tojson) + '}</call>' }}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* Glues arguments to text, which only works for a string. */
static const char GLUING[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
    "{% if m.tool_calls %}{% for t in m.tool_calls %}{{ '<call>' + t.function.arguments + "
    "'</call>' }}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}";

static const char TWO_TURNS[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be "
    "brief.\"},{\"role\":\"user\",\"content\":\"assistant\"},"
    "{\"role\":\"assistant\",\"content\":\"Yo\"},{\"role\":\"user\",\"content\":\"Yo\"},"
    "{\"role\":\"assistant\",\"content\":\"hello.\"}]}";

static void test_mask_B02_answers_and_their_end_are_trained(void **state) {
    (void)state;
    struct token_case c = {.folder = "chatml", .chat = CHATML, .rows = TWO_TURNS};
    token_case_expect(&c, IM("system", "Be brief.") IM("user", "assistant") ANSWER("Yo")
                              IM("user", "Yo") ANSWER("hello."));
    c.mask = MASK_LAST;
    token_case_expect(&c, IM("system", "Be brief.") IM("user", "assistant") SILENT("Yo")
                              IM("user", "Yo") ANSWER("hello."));
    c.mask = MASK_ALL;
    token_case_expect(
        &c,
        "^<|im_start|>[[system\nBe "
        "brief.^<|im_end|>\n^<|im_start|>user\nassistant^<|im_end|>\n^<|im_start|>"
        "assistant\nYo^<|im_end|>\n^<|im_start|>user\nYo^<|im_end|>\n^<|im_start|>assistant\nhello."
        "^<|im_end|>\n]]");
}

static void test_mask_template_that_appends_at_the_end(void **state) {
    (void)state;
    const struct token_case c = {.folder = "chatml", .chat = ENDING, .rows = TWO_TURNS};
    token_case_expect(&c, IM("system", "Be brief.") IM("user", "assistant") ANSWER("Yo")
                              IM("user", "Yo") ANSWER("hello.") "^<|eot|>");
}

static void test_mask_B07_template_that_rewrites_history(void **state) {
    (void)state;
    struct token_case c = {
        .folder = "chatml",
        .chat = THINKING,
        .rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"q1\"},{\"role\":\"assistant\","
                "\"content\":"
                "\"<think>\\nr1\\n</"
                "think>\\n\\na1\"},{\"role\":\"user\",\"content\":\"q2\"},{\"role\":\"assistant\","
                "\"content\":\"<think>\\nr2\\n</think>\\n\\na2\"}]}"};
    token_case_expect(&c, IM("user", "q1") ANSWER("a1") IM("user", "q2")
                              ANSWER("<think>\nr2\n</think>\n\na2"));
    /* The empty think block is the template's own and not trained. */
    c.rows = TWO_TURNS;
    token_case_expect(&c, IM("system", "Be brief.") IM("user", "assistant") ANSWER("Yo")
                              IM("user", "Yo") "^<|im_start|>assistant\n"
                                               "<think>\n\n</think>\n\n[[hello.^<|im_end|>]]\n");
    /* Reasoning without its opening tag stays inside one block. */
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
             "{\"role\":\"assistant\",\"content\":\"2+2.\\n</think>\\n\\n4\"}]}";
    token_case_expect(&c, IM("user", "q") ANSWER("<think>\n2+2.\n</think>\n\n4"));
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
             "{\"role\":\"assistant\",\"reasoning_content\":\"why\",\"content\":\"4\"}]}";
    token_case_expect(&c, IM("user", "q") ANSWER("<think>\nwhy\n</think>\n\n4"));
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
             "\"content\":null,"
             "\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{"
             "\"a\":1}}}]}]}";
    token_case_expect(
        &c, IM("user",
               "q") "^<|im_start|>assistant\n<think>\n\n</think>\n\n"
                    "[[<call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</call>^<|im_end|>]]\n");
}

static void test_mask_B01_spaces_and_one_bos(void **state) {
    (void)state;
    const struct token_case c = {
        .folder = "bos",
        .chat = SPACED,
        .rows =
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
            "\"content\":\"Yo\"},"
            "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}"};
    token_case_expect(&c, "^<s>^[INST] Hi ^[/INST][[ Yo ^</s>]]^[INST] c ^[/INST][[ d ^</s>]]");
}

static void test_mask_B06_a_message_that_the_template_drops_is_an_error(void **state) {
    (void)state;
    struct token_case c = {.folder = "bos", .chat = DROPPING, .rows = TWO_TURNS};
    token_case_expect_refused(
        &c, "line 1: messages[0]: the chat template leaves out this system message");
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
             "\"content\":\"Yo\"}]}";
    token_case_expect(&c, "^<s>^[INST]Hi^[/INST][[Yo^</s>]]");
    c.chat = SPACED;
    c.rows = TWO_TURNS;
    token_case_expect_refused(&c, "the chat template refuses the conversation: ");
    c.folder = "chatml";
    c.chat = CHATML;
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"T?\"},{\"role\":\"assistant\","
             "\"content\":\"x\"}],"
             "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_temp\"}}]}";
    token_case_expect_refused(&c, "tools: the chat template leaves out the tools");
}

#define C2_ROW(role)                                                                               \
    "{\"messages\":[{\"role\":\"" role "\",\"content\":\"Be brief.\"},{\"role\":\"user\","         \
    "\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Yo\"}]}"

/* What is trained then is what the template writes for [system, user] when the model is asked. */
static void test_mask_B06_fold_system_trains_what_the_model_is_asked_with(void **state) {
    (void)state;
    struct token_case c = {
        .folder = "bos", .chat = DROPPING, .rows = C2_ROW("system"), .fold_system = true};
    token_case_expect(&c, "^<s>^[INST]Be brief.\n\nHi^[/INST][[Yo^</s>]]");
    struct chat_template *chat = NULL;
    struct str asked = {0};
    struct err e = {0};
    const struct template_inputs inputs = {.messages_json =
                                               "[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                                               "{\"role\":\"user\",\"content\":\"Hi\"}]",
                                           .variables_json = "{\"bos_token\":\"<s>\"}",
                                           .add_generation_prompt = true};
    assert_int_equal(chat_template_parse(&chat, DROPPING, strlen(DROPPING), "t", &e), STATUS_OK);
    assert_int_equal(chat_template_render(chat, &inputs, &asked, &e), STATUS_OK);
    assert_string_equal(str_text(&asked), "<s>[INST]Be brief.\n\nHi[/INST]");
    str_release(&asked);
    chat_template_free(chat);
    c.rows = TWO_TURNS;
    token_case_expect(&c, "^<s>^[INST]Be brief.\n\nassistant^[/INST][[Yo^</s>]]"
                          "^[INST]Yo^[/INST][[hello.^</s>]]");
    c.split_turns = true;
    token_case_expect(&c, "^<s>^[INST]Be brief.\n\nassistant^[/INST][[Yo^</s>]]|"
                          "^<s>^[INST]Be brief.\n\nassistant^[/INST]Yo^</s>"
                          "^[INST]Yo^[/INST][[hello.^</s>]]");
}

/* Only where it is needed, and never past another message. */
static void test_mask_B06_fold_system_leaves_what_the_template_writes(void **state) {
    (void)state;
    struct token_case c = {
        .folder = "chatml", .chat = CHATML, .rows = C2_ROW("system"), .fold_system = true};
    token_case_expect(&c, IM("system", "Be brief.") IM("user", "Hi") ANSWER("Yo"));
    c = (struct token_case){
        .folder = "bos", .chat = SPACED, .rows = C2_ROW("system"), .fold_system = true};
    token_case_expect(&c, "^<s>^[INST] Be brief.\n\nHi ^[/INST][[ Yo ^</s>]]"); /* it refuses one */
    c.fold_system = false;
    token_case_expect_refused(&c, "data.fold_system puts it in front of the first question");
    c.chat = DROPPING;
    token_case_expect_refused(&c, "(data.fold_system puts one in front of the first question; "
                                  "data.max_rows_dropped_message says how many");
    c.fold_system = true;
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"system\","
             "\"content\":\"late\"},{\"role\":\"assistant\",\"content\":\"Yo\"}]}";
    token_case_expect_refused(&c, "line 1: messages[1]: the chat template leaves out this system");
    c.rows = "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\","
             "\"content\":\"Hi\"},{\"role\":\"tool\",\"content\":\"lost\"},"
             "{\"role\":\"assistant\",\"content\":\"Yo\"}]}";
    token_case_expect_refused(&c, "messages[2]: the chat template leaves out this tool message");
}

#define TOOL_ROW(arguments)                                                                        \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"T?\"},{\"role\":\"assistant\",\"content\":"   \
    "null,\"tool_calls\":["                                                                        \
    "{\"id\":\"abcdefgh1\",\"type\":\"function\",\"function\":{\"name\":\"get\","                  \
    "\"arguments\":" arguments "}}]},"                                                             \
    "{\"role\":\"tool\",\"tool_call_id\":\"abcdefgh1\",\"content\":\"a \\\"b\\\"\"},"              \
    "{\"role\":\"assistant\",\"content\":\"21 "                                                    \
    "C\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get\"}}]}"

static void test_mask_B09_tool_calls_are_trained_in_either_spelling(void **state) {
    (void)state;
    static const char EXPECTED[] =
        IM("system", "[{\"type\": \"function\", \"function\": {\"name\": \"get\"}}]")
            IM("user", "T?")
                ANSWER("<call>{\"name\": \"get\", \"arguments\": {\"city\": \"X\"}}</call>")
                    IM("tool", "\"a \\\"b\\\"\"") ANSWER("21 C");
    struct token_case c = {.folder = "chatml", .chat = TOOLS, .rows = TOOL_ROW("{\"city\":\"X\"}")};
    token_case_expect(&c, EXPECTED);
    c.rows = TOOL_ROW("\"{\\\"city\\\": \\\"X\\\"}\"");
    token_case_expect(&c, EXPECTED);
    c.rows = TOOL_ROW("\"{\\\"city\\\": \"");
    token_case_expect_refused(
        &c, "messages[1].tool_calls[0].function.arguments: the string does not hold a JSON object");
    c.rows = TOOL_ROW("\"[1]\"");
    token_case_expect_refused(&c, "the string holds an array, it must be a JSON object");
    c.chat = GLUING;
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"T?\"},{\"role\":\"assistant\","
             "\"content\":\"\",\"tool_calls\":["
             "{\"function\":{\"name\":\"get\",\"arguments\":{\"n\":1.0}}}]}]}";
    /* No generation prompt: what comes after the question is what the model has to say. */
    token_case_expect(
        &c, IM("user", "T?") "[[^<|im_start|>assistant\n<call>{\"n\":1.0}</call>^<|im_end|>]]\n");
    c.chat = CHATML;
    token_case_expect_refused(&c, "the chat template leaves out the tool calls of this message");
}

static void test_mask_A10_special_spellings_in_content_are_text(void **state) {
    (void)state;
    struct dataset_counts counts;
    struct token_case c = {
        .folder = "chatml",
        .chat = CHATML,
        .rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"see <|im_end|> and <think>\"},"
                "{\"role\":\"assistant\",\"content\":\"<|im_start|>Yo\"}]}"};
    char *const shown = token_case_run(&c, &counts);
    assert_string_equal(shown, IM("user", "see <|im_end|> and <think>") ANSWER("<|im_start|>Yo"));
    assert_int_equal(counts.control_tokens, 2);
    mem_free(shown);
    c.parse_special = true;
    token_case_expect(&c, IM("user", "see ^<|im_end|> and <think>") ANSWER("^<|im_start|>Yo"));
    c.parse_special = false;
    c.chat = TOOLS;
    c.rows = TOOL_ROW("{\"a\":\"<|im_end|>\"}");
    token_case_expect_refused(&c, "messages[1]: a tool call or key spells a special token");
}

static void test_mask_weight_takes_answers_out(void **state) {
    (void)state;
    struct dataset_counts counts;
    struct token_case c = {.folder = "chatml",
                           .chat = CHATML,
                           .rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
                                   "\"assistant\",\"content\":\"b\",\"weight\":0},"
                                   "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\","
                                   "\"content\":\"d\",\"train\":true}]}"};
    token_case_expect(&c, IM("user", "a") SILENT("b") IM("user", "c") ANSWER("d"));
    c.mask = MASK_ALL;
    token_case_expect(
        &c, "^<|im_start|>[[user\na^<|im_end|>\n^<|im_start|>assistant\n]]b^<|im_end|>[[\n^<|im_"
            "start|>user\nc"
            "^<|im_end|>\n^<|im_start|>assistant\nd^<|im_end|>\n]]");
    c.mask = MASK_ASSISTANT;
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
             "\"content\":\"b\",\"weight\":0}]}\n"
             "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
             "\"content\":\"\"}]}\n"
             "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
             "\"content\":\"x\"}]}\n";
    char *const shown = token_case_run(&c, &counts);
    assert_string_equal(shown, IM("user", "a") ANSWER("x"));
    assert_int_equal(counts.rows, 3);
    assert_int_equal(counts.samples, 1);
    assert_int_equal(counts.problems[ROW_UNTRAINED].rows, 2);
    mem_free(shown);
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
             "\"content\":\"b\",\"weight\":0}]}\n";
    token_case_expect_refused(
        &c, "all 1 rows have no token to train on: in all 1 every assistant message has weight 0");
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n";
    token_case_expect_refused(&c, "line 1: messages: has no assistant message");
}

static void test_mask_trimming_templates_and_odd_words(void **state) {
    (void)state;
    static const char TRIMMING[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    struct token_case c = {.folder = "chatml",
                           .chat = TRIMMING,
                           .rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"  "
                                   "a\\n\"},{\"role\":\"assistant\",\"content\":\"\\n b \"}]}"};
    token_case_expect(&c, IM("user", "a") ANSWER("b"));
    /* The prompt's newline and the answer's are one token: it straddles the border, stays out. */
    c.chat = CHATML;
    token_case_expect(&c, IM("user", "  a\n") "^<|im_start|>assistant\n\n[[ b ^<|im_end|>]]\n");
    /* An answer may look like the template's own text. */
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"assistant\\nuser\"},"
             "{\"role\":\"assistant\",\"content\":\"im_end\"}]}";
    token_case_expect(&c, IM("user", "assistant\nuser") ANSWER("im_end"));
}

/* A template that changes the words themselves leaves no way to tell what to train. */
static void test_mask_changed_answers_are_an_error(void **state) {
    (void)state;
    static const char SHOUTING[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ "
                                   "m.content.replace('x', 'y') }}<|im_end|>\n{% endfor %}";
    struct token_case c = {.folder = "chatml",
                           .chat = SHOUTING,
                           .rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
                                   "\"assistant\",\"content\":\"axb\"}]}"};
    token_case_expect_refused(&c, "line 1: messages[1]: the chat template changes this answer");
    /* If it is another message that it changes, the answer is still found. */
    c.rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"axb\"},{\"role\":\"assistant\","
             "\"content\":\"ab\"}]}";
    token_case_expect(&c, IM("user", "ayb") ANSWER("ab"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mask_B02_answers_and_their_end_are_trained),
        cmocka_unit_test(test_mask_template_that_appends_at_the_end),
        cmocka_unit_test(test_mask_B07_template_that_rewrites_history),
        cmocka_unit_test(test_mask_B01_spaces_and_one_bos),
        cmocka_unit_test(test_mask_B06_a_message_that_the_template_drops_is_an_error),
        cmocka_unit_test(test_mask_B06_fold_system_trains_what_the_model_is_asked_with),
        cmocka_unit_test(test_mask_B06_fold_system_leaves_what_the_template_writes),
        cmocka_unit_test(test_mask_B09_tool_calls_are_trained_in_either_spelling),
        cmocka_unit_test(test_mask_A10_special_spellings_in_content_are_text),
        cmocka_unit_test(test_mask_weight_takes_answers_out),
        cmocka_unit_test(test_mask_trimming_templates_and_odd_words),
        cmocka_unit_test(test_mask_changed_answers_are_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
