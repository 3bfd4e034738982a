/* test_template.c - the chat template interpreter: small templates with the output that Jinja 3
 * gives when it is set up as Hugging Face does, the limits, and errors that say where.
 *
 * Method: a table of template and output; failures by their text. Spans and folders have their own
 * cases. rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/text/template.h"

static enum status render(const char *source, const char *tools, struct str *out,
                          struct template_spans *spans, struct err *e) {
    struct chat_template *t = NULL;
    const struct template_inputs inputs = {
        .messages_json = "[{\"role\":\"user\",\"content\":\"h\\u00e9\",\"n\":1.0,"
                         "\"i\":123456789012345678901234567890}]",
        .tools_json = tools,
        .variables_json = "{\"bos_token\":\"<s>\"}",
        .add_generation_prompt = true};
    enum status status = chat_template_parse(&t, source, strlen(source), "t", e);
    if (status == STATUS_OK) status = chat_template_render_spans(t, &inputs, out, spans, e);
    chat_template_free(t);
    return status;
}

static const struct {
    const char *source, *output;
} VECTORS[] = {
    {"{{ true }} {{ none }} {{ 1.0 }} {{ 3/2 }} {{ 7//2 }}", "True None 1.0 1.5 3"},
    {"{{ {'k':'v',\"q\":'it\\'s'} }}", "{'k': 'v', 'q': \"it's\"}"},
    {"{{ 'x' ~ 1 ~ none }}", "x1None"},
    {"{{ 'a' is iterable }}{{ 'a' is sequence }}{{ {} is mapping }}", "TrueTrueTrue"},
    {"{{ u }}|{{ u is defined }}", "|False"},
    {"{{ [1,2][5] is defined }}", "False"},
    {"{% set x=1 %}{% for i in [1,2] %}{% set x=x+i %}{% endfor %}{{x}}", "1"},
    {"{% set n=namespace(x=1) %}{% for i in [1,2] %}{% set n.x=n.x+i %}{% endfor %}{{n.x}}", "4"},
    {"{% for x in [1,2,3] if x!=2 %}{{loop.index}}{{loop.last}},{% endfor %}", "1False,2True,"},
    {"  {% if true %}  x\n  {% endif %}\ny\n", "  x\ny"},
    {"a\n  {# c #}\nb", "a\nb"},
    {"{{ '\u00e9<'|tojson }}", "\"\u00e9<\""},
    {"{{ {'a':[1,{'b':2}],'e':[],'o':{}}|tojson(indent=2) }}",
     "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"e\": [],\n  \"o\": {}\n}"},
    {"{{ 'a,b,,c'.split(',') }}", "['a', 'b', '', 'c']"},
    {"{{ ' a  b '.split() }}{{ 'a b  c '.split(none, 1) }}", "['a', 'b']['a', 'b  c ']"},
    {"{{ none|default('d') }}{{ ''|default('d',true) }}{{ 1 if false }}|", "Noned|"},
    {"{{ -7 // 2 }} {{ -7 % 3 }}", "-4 2"},
    {"{% for i in [1,2,3] %}{% if i==2 %}{% continue %}{% endif %}{{i}}{% endfor %}", "13"},
    {"{% macro m(a,b='z') %}[{{a}}{{b}}]{% endmacro %}{{ m('q') }}{{ m(a='1',b=2) }}", "[qz][12]"},
    {"{{ 'abc'[::-1] }}{{ 'it''s' }}{{ range(5)[1:3] }}", "cbaitsrange(1, 3)"},
    {"{{ messages[0].n }} {{ messages[0].i|tojson }} {{ messages[0].content|length }}",
     "1.0 123456789012345678901234567890 2"},
    {"{{ {'items':1}.items() }}{{ {'items':1}['items'] }}", "dict_items([('items', 1)])1"},
    {"{{ tools }}{{ documents is none }}{{ pad_token is defined }}{{ bos_token }}",
     "NoneTrueFalse<s>"},
    {"{% raw %}{{ x }}{% endraw %}{% set q %}a{% endset %}{{ q }}{% filter upper %}b{% endfilter "
     "%}",
     "{{ x }}aB"},
    {"{% macro m() %}<{{ caller('c') }}>{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}",
     "<c>"},
    {"{{ strftime_now('%Y') }}{{ '<'|safe + '<' }}{{ [1e16, 1e-5, 0.1 + 0.2] }}",
     "1970<&lt;[1e+16, 1e-05, 0.30000000000000004]"},
};

static void test_template_vectors_render_as_jinja_does(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(VECTORS); i++) {
        struct str out = {0};
        struct err e = {0};
        if (render(VECTORS[i].source, NULL, &out, NULL, &e) != STATUS_OK)
            fail_msg("%s: %s", VECTORS[i].source, e.text);
        assert_string_equal(str_text(&out), VECTORS[i].output);
        str_release(&out);
    }
}

static const struct {
    const char *source;
    enum status status;
    const char *text;
} FAILURES[] = {
    {"a\n{{ raise_exception('boom') }}", STATUS_INVALID, "t: line 2, column 19: boom"},
    {"{{ 'a' + none }}", STATUS_INVALID, "column 8: + between a str and a NoneType"},
    {"{{ u.a }}", STATUS_INVALID, "\"u\" is undefined"},
    {"x\n  {% include 'a' %}", STATUS_UNSUPPORTED,
     "line 2, column 6: the tag \"include\" is not supported"},
    {"{{ 1|pprint }}", STATUS_UNSUPPORTED, "the filter \"pprint\" is not supported"},
    {"{{ 1 is sunny }}", STATUS_UNSUPPORTED, "the test \"sunny\" is not supported"},
    {"{{ 'a'.zfill(3) }}", STATUS_UNSUPPORTED, "the method str.zfill is not supported"},
    {"{{ messages.append(1) }}", STATUS_INVALID, "\"append\" of a list is not allowed"},
    {"{{ messages[0].update({}) }}", STATUS_INVALID, "\"update\" of a dict is not allowed"},
    {"{% for a in b recursive %}{% endfor %}", STATUS_UNSUPPORTED, "recursive loops"},
    {"{% if true %}", STATUS_INVALID,
     "line 1, column 14: the block that begins here lacks its \"endif\""},
    {"{{ 9223372036854775807 + 1 }}", STATUS_UNSUPPORTED, "does not fit into 64 bits"},
    {"{% break %}", STATUS_INVALID, "break stands outside of a loop"},
    {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", STATUS_INVALID, "too deep"},
    {"{% set q=range(9999) %}{% for a in q %}{% for b in q %}{% endfor %}{% endfor %}",
     STATUS_INVALID, "runs too long"},
    {"{{ 'abcdefgh' * 99999999 }}", STATUS_INVALID, "longer than 64 MiB"},
    {"{% set n=namespace(s='aaaaaaaaaa') %}{% for i in range(99) %}{% set n.s=n.s+n.s %}{% endfor "
     "%}",
     STATUS_INVALID, "limit"},
};

static void test_template_failures_say_where_and_why(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(FAILURES); i++) {
        struct str out = {0};
        struct err e = {0};
        assert_int_equal(render(FAILURES[i].source, NULL, &out, NULL, &e), FAILURES[i].status);
        if (!strstr(e.text, FAILURES[i].text)) fail_msg("%s: \"%s\"", FAILURES[i].source, e.text);
        assert_int_equal(out.len, 0);
        str_release(&out);
    }
}

/* The last question is found by walking backwards, as templates with reasoning do, and what comes
 * before it loses its thoughts. A template that cannot be parsed gives an error with its place, and
 * no other template instead. */
static void test_template_B04_reversed_slices_work_and_broken_templates_are_refused(void **state) {
    (void)state;
    static const char SOURCE[] =
        "{%- set ns = namespace(last=messages|length - 1, looking=true) %}"
        "{%- for m in messages[::-1] %}{%- set at = (messages|length - 1) - loop.index0 %}"
        "{%- if ns.looking and m.role == 'user' %}{%- set ns.looking = false %}"
        "{%- set ns.last = at %}{%- endif %}{%- endfor %}"
        "{%- for m in messages %}{{- m.role[0] ~ ':' }}"
        "{%- if loop.index0 < ns.last %}{{- m.content.split('</t>')[-1].lstrip() }}"
        "{%- else %}{{- m.content }}{%- endif %}{{- ';' }}{%- endfor %}{{ 'abc'[::-1] }}";
    const struct template_inputs inputs = {
        .messages_json = "[{\"role\":\"user\",\"content\":\"q1\"},{\"role\":\"assistant\","
                         "\"content\":\"<t>r1</t> a1\"},{\"role\":\"user\",\"content\":\"q2\"},"
                         "{\"role\":\"assistant\",\"content\":\"<t>r2</t> a2\"}]"};
    struct chat_template *t = NULL;
    struct str out = {0};
    struct err e = {0};
    assert_int_equal(chat_template_parse(&t, SOURCE, strlen(SOURCE), "t", &e), STATUS_OK);
    assert_int_equal(chat_template_render(t, &inputs, &out, &e), STATUS_OK);
    assert_string_equal(str_text(&out), "u:q1;a:a1;u:q2;a:<t>r2</t> a2;cba");
    chat_template_free(t);
    str_release(&out);
    t = NULL;
    static const char BROKEN[] = "a\n{{ messages[::-1 }}";
    assert_int_equal(chat_template_parse(&t, BROKEN, strlen(BROKEN), "t", &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "t: line 2, column "));
    assert_null(t);
}

/* Case B05. */
static void test_template_B05_generation_blocks_give_spans(void **state) {
    (void)state;
    static const char SOURCE[] =
        "{% for m in messages %}{% if m.role=='x' %}{% break %}{% endif %}u:{% generation %}"
        "{{ m.content }}{% endgeneration %};{% endfor %}{% if add_generation_prompt %}P{% endif %}";
    struct str out = {0};
    struct err e = {0};
    struct template_spans spans = {0};
    assert_int_equal(render(SOURCE, NULL, &out, &spans, &e), STATUS_OK);
    assert_string_equal(str_text(&out), "u:h\u00e9;P");
    assert_int_equal(spans.count, 1);
    assert_int_equal(spans.items[0].begin, 2);
    assert_int_equal(spans.items[0].end, 5);
    template_spans_release(&spans);
    str_release(&out);
}

static void expect_from_folder(const char *folder, const char *tools, const char *expected) {
    struct chat_template *t = NULL;
    struct err e = {0};
    struct str out = {0};
    const struct template_inputs inputs = {.messages_json = "[]", .tools_json = tools};
    assert_int_equal(chat_template_open(&t, folder, &e), STATUS_OK);
    assert_int_equal(chat_template_render(t, &inputs, &out, &e), STATUS_OK);
    assert_string_equal(str_text(&out), expected);
    str_release(&out);
    chat_template_free(t);
}

/* Case B11. */
static void test_template_B11_of_a_folder_is_chosen_by_file_then_by_name(void **state) {
    (void)state;
    static const char LIST[] = "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},"
                               "{\"name\":\"default\",\"template\":\"D\"}]}";
    static const char FOLDER[] = "build-test-template";
    struct err e = {0};
    struct chat_template *t = NULL;
    assert_int_equal(file_make_folder(FOLDER, &e), STATUS_OK);
    assert_int_equal(chat_template_open(&t, FOLDER, &e), STATUS_NOT_FOUND);
    assert_int_equal(
        file_write_atomic("build-test-template/tokenizer_config.json", LIST, strlen(LIST), &e),
        STATUS_OK);
    expect_from_folder(FOLDER, NULL, "D");
    expect_from_folder(FOLDER, "[]", "T");
    assert_int_equal(file_write_atomic("build-test-template/chat_template.jinja", "F", 1, &e),
                     STATUS_OK);
    expect_from_folder(FOLDER, "[]", "F");
    assert_int_equal(file_remove_all(FOLDER, &e), STATUS_OK);
}

static void test_template_json_inputs_are_strict(void **state) {
    (void)state;
    static const char *const BAD[] = {"[1,]",  "[\"\\ud800\"]", "[NaN]",     "[01]",
                                      "[1] x", "[\"a\nb\"]",    "{\"a\" 1}", ""};
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        struct chat_template *t = NULL;
        struct err e = {0};
        struct str out = {0};
        const struct template_inputs inputs = {.messages_json = BAD[i]};
        assert_int_equal(chat_template_parse(&t, "x", 1, "t", &e), STATUS_OK);
        assert_int_equal(chat_template_render(t, &inputs, &out, &e), STATUS_INVALID);
        assert_non_null(strstr(e.text, "messages: JSON, byte"));
        chat_template_free(t);
        str_release(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_template_vectors_render_as_jinja_does),
        cmocka_unit_test(test_template_failures_say_where_and_why),
        cmocka_unit_test(test_template_B04_reversed_slices_work_and_broken_templates_are_refused),
        cmocka_unit_test(test_template_B05_generation_blocks_give_spans),
        cmocka_unit_test(test_template_B11_of_a_folder_is_chosen_by_file_then_by_name),
        cmocka_unit_test(test_template_json_inputs_are_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
