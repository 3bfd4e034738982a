/* jinja_filters.c - filters on strings and single values.
 *
 * Filters on sequences are in jinja_filters_list.c. */
#include "engine/text/jinja_filters.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_strings.h"
#include "engine/text/jinja_unicode.h"

#define FILTER(name)                                                                               \
    static enum status name(struct render *r, const struct value *self, const struct args *args,   \
                            struct value *out)

static enum status change_case(struct render *r, const struct value *self, enum letter_case to,
                               struct value *out) {
    struct value text;
    TRY(value_to_string(r, self, &text));
    return text_change_case(r, text.as.text, to, TITLE_FILTER, out);
}
FILTER(filter_upper) {
    (void)args;
    return change_case(r, self, CASE_UPPER, out);
}
FILTER(filter_lower) {
    (void)args;
    return change_case(r, self, CASE_LOWER, out);
}
FILTER(filter_title) {
    (void)args;
    return change_case(r, self, CASE_TITLE, out);
}
FILTER(filter_capitalize) {
    (void)args;
    return change_case(r, self, CASE_CAPITALIZE, out);
}

FILTER(filter_trim) {
    struct value text;
    const struct text *characters = NULL;
    TRY(value_to_string(r, self, &text));
    if (args->at[0].kind != VALUE_ABSENT && args->at[0].kind != VALUE_NONE) {
        TRY(want_text(r, &args->at[0], "the argument of trim", &characters));
    }
    TRY(text_strip(r, text.as.text, characters, true, true, out));
    out->markup = text.markup;
    return STATUS_OK;
}

FILTER(filter_string) {
    (void)args;
    return value_to_string(r, self, out);
}

FILTER(filter_safe) {
    (void)args;
    TRY(value_to_string(r, self, out));
    out->markup = true;
    return STATUS_OK;
}

FILTER(filter_replace) {
    struct value text, from, to;
    int64_t count;
    TRY(value_to_string(r, self, &text));
    TRY(value_to_string(r, &args->at[0], &from));
    TRY(value_to_string(r, &args->at[1], &to));
    TRY(want_integer(r, &args->at[2], "the count", -1, &count));
    return text_replace(r, text.as.text, from.as.text, to.as.text, count, out);
}

FILTER(filter_default) {
    const bool use =
        self->kind == VALUE_UNDEFINED || (value_is_true(&args->at[1]) && !value_is_true(self));
    *out = !use                               ? *self
           : args->at[0].kind == VALUE_ABSENT ? value_string(&r->region, "", 0)
                                              : args->at[0];
    return STATUS_OK;
}

/* The text put before lines: a string, or that many blanks. */
static enum status indent_width(struct render *r, const struct value *v, struct value *out) {
    if (v->kind == VALUE_STRING) {
        *out = *v;
        return STATUS_OK;
    }
    int64_t width;
    TRY(want_integer(r, v, "the width", 4, &width));
    RENDER_FAIL_IF(r, width > 1000, STATUS_INVALID, "a width of %lld is too large",
                   (long long)width);
    struct str blanks = {0};
    for (int64_t i = 0; i < width; i++) {
        str_append_char(&blanks, ' ');
    }
    return string_from(r, &blanks, out);
}

/* Lines after the first are indented; empty ones only when asked. */
FILTER(filter_indent) {
    struct value source, prefix;
    struct sequence *lines = NULL;
    TRY(value_to_string(r, self, &source));
    TRY(indent_width(r, &args->at[0], &prefix));
    struct value with_end;
    struct str text = {0};
    str_append_bytes(&text, source.as.text->data, source.as.text->len);
    str_append_char(&text, '\n');
    TRY(string_from(r, &text, &with_end));
    TRY(text_lines(r, with_end.as.text, false, &lines));
    const bool first = value_is_true(&args->at[1]), blank = value_is_true(&args->at[2]);
    for (size_t i = 0; i < lines->count && text.len <= TEMPLATE_OUTPUT_MAX; i++) {
        const struct text *const line = lines->items[i].as.text;
        if (i) str_append_char(&text, '\n');
        if (i ? blank || line->len : first)
            str_append_bytes(&text, prefix.as.text->data, prefix.as.text->len);
        str_append_bytes(&text, line->data, line->len);
    }
    return string_from(r, &text, out);
}

/* ---- numbers ---- */

FILTER(filter_abs) {
    (void)args;
    RENDER_FAIL_IF(r, !value_is_number(self), STATUS_INVALID, "abs needs a number, not a %s",
                   value_type_name(self));
    if (self->kind == VALUE_FLOAT) {
        *out = value_float(fabs(self->as.number));
        return STATUS_OK;
    }
    *out = value_int(value_integer(self));
    return value_integer(self) < 0 ? value_negate(r, self, out) : STATUS_OK;
}

/* The number in a string with white space around it; false if there is none. */
static bool parse_number(const struct value *v, bool *is_integer, int64_t *integer,
                         double *number) {
    const struct text *const text = v->as.text;
    const size_t begin = unicode_lstrip(text->data, text->len);
    const size_t len = unicode_rstrip(text->data + begin, text->len - begin);
    if (!len || len > 400 || strspn(text->data + begin, "+-0123456789.eE") < len) return false;
    char *const copy = mem_strndup(text->data + begin, len);
    *is_integer = str_to_i64(copy, "number", integer, NULL) == STATUS_OK;
    const bool is_float = str_to_f64(copy, "number", number, NULL) == STATUS_OK;
    mem_free(copy);
    return *is_integer || is_float;
}

FILTER(filter_int) {
    int64_t integer = 0;
    double number = 0;
    bool is_integer = false;
    RENDER_FAIL_IF(r,
                   value_is_true(&args->at[1]) &&
                       !(args->at[1].kind == VALUE_INT && args->at[1].as.integer == 10),
                   STATUS_UNSUPPORTED, "int with another base than 10 is not supported");
    RENDER_FAIL_IF(r, self->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s",
                   self->as.undefined->message);
    *out = args->at[0].kind == VALUE_ABSENT ? value_int(0) : args->at[0];
    if (self->kind == VALUE_BIG) {
        *out = *self;
    } else if (self->kind == VALUE_STRING) {
        if (!parse_number(self, &is_integer, &integer, &number)) return STATUS_OK;
        if (is_integer) *out = value_int(integer);
    } else if (self->kind == VALUE_FLOAT) {
        number = self->as.number;
        if (!isfinite(number)) return STATUS_OK;
    } else if (value_is_number(self)) {
        *out = value_int(value_integer(self));
        return STATUS_OK;
    } else {
        return STATUS_OK;
    }
    if (is_integer || self->kind == VALUE_BIG) return STATUS_OK;
    RENDER_FAIL_IF(r, !(fabs(number) < 9e18), STATUS_UNSUPPORTED,
                   "int: the number does not fit into 64 bits");
    *out = value_int((int64_t)number);
    return STATUS_OK;
}

FILTER(filter_float) {
    int64_t integer = 0;
    double number = 0;
    bool is_integer = false;
    RENDER_FAIL_IF(r, self->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s",
                   self->as.undefined->message);
    *out = args->at[0].kind == VALUE_ABSENT ? value_float(0) : args->at[0];
    if (value_is_number(self)) *out = value_float(value_number(self));
    if (self->kind == VALUE_STRING && parse_number(self, &is_integer, &integer, &number))
        *out = value_float(number);
    return STATUS_OK;
}

FILTER(filter_round) {
    RENDER_FAIL_IF(r, !value_is_number(self), STATUS_INVALID, "round needs a number, not a %s",
                   value_type_name(self));
    RENDER_FAIL_IF(r, args->at[1].kind != VALUE_ABSENT && !value_is_text(&args->at[1], "common"),
                   STATUS_UNSUPPORTED, "round is supported with the method \"common\" only");
    int64_t precision;
    TRY(want_integer(r, &args->at[0], "the precision", 0, &precision));
    RENDER_FAIL_IF(r, precision < 0 || precision > 15, STATUS_UNSUPPORTED,
                   "the precision must be 0 to 15");
    /* correctly rounded through decimal digits, as Python's round */
    char *const text = str_format("%.*f", (int)precision, value_number(self));
    double number = 0;
    const enum status status = str_to_f64(text, "number", &number, NULL);
    mem_free(text);
    *out = value_float(status == STATUS_OK ? number : value_number(self));
    return STATUS_OK;
}

/* ---- tojson ---- */

static enum status json_separators(struct render *r, const struct value *v,
                                   struct json_style *style) {
    static const struct text COMMA = {.len = 1, .chars = 1, .data = ","};
    static const struct text COMMA_SPACE = {.len = 2, .chars = 2, .data = ", "};
    static const struct text COLON_SPACE = {.len = 2, .chars = 2, .data = ": "};
    style->item_separator = style->is_indented ? &COMMA : &COMMA_SPACE;
    style->key_separator = &COLON_SPACE;
    if (v->kind == VALUE_ABSENT || v->kind == VALUE_NONE) return STATUS_OK;
    const struct sequence *pair = NULL;
    TRY(value_iterate(r, v, &pair));
    RENDER_FAIL_IF(r, pair->count != 2, STATUS_INVALID,
                   "tojson: separators must be a pair of strings");
    TRY(want_text(r, &pair->items[0], "a separator", &style->item_separator));
    return want_text(r, &pair->items[1], "a separator", &style->key_separator);
}

FILTER(filter_tojson) {
    struct json_style style = {.ascii = value_is_true(&args->at[0]),
                               .sort_keys = value_is_true(&args->at[3])};
    struct value indent = args->at[1];
    style.is_indented = indent.kind != VALUE_ABSENT && indent.kind != VALUE_NONE;
    if (style.is_indented) TRY(indent_width(r, &args->at[1], &indent));
    style.indent = style.is_indented ? indent.as.text : NULL;
    TRY(json_separators(r, &args->at[2], &style));
    struct str text = {0};
    const enum status status = print_json(r, &text, self, &style);
    if (status == STATUS_OK) return string_from(r, &text, out);
    str_release(&text);
    return status;
}

FILTER(filter_wordcount) {
    (void)args;
    struct value text;
    TRY(value_to_string(r, self, &text));
    TRY(render_work(r, text.as.text->len));
    int64_t words = 0;
    for (size_t at = 0; at < text.as.text->len;) {
        const char *const data = text.as.text->data + at;
        const size_t left = text.as.text->len - at;
        const size_t space = unicode_lstrip(data, left);
        words += space == 0 && (at == 0 || unicode_rstrip(text.as.text->data, at) < at);
        at += space ? space : (size_t)utf8_length_at(data);
    }
    *out = value_int(words);
    return STATUS_OK;
}

FILTER(filter_format) {
    struct value text;
    RENDER_FAIL_IF(r, args->keyword_count, STATUS_UNSUPPORTED,
                   "format with named arguments is not supported");
    TRY(value_to_string(r, self, &text));
    struct sequence *const values = sequence_new(&r->region, SEQUENCE_TUPLE, args->count);
    for (size_t i = 0; i < args->count; i++) {
        sequence_push(&r->region, values, args->items[i]);
    }
    const struct value tuple = value_sequence(values);
    return format_percent(r, text.as.text, &tuple, out);
}

const struct builtin *jinja_filter(const char *name) {
    static const struct builtin ROWS[] = {
        {"upper", "", filter_upper},
        {"lower", "", filter_lower},
        {"title", "", filter_title},
        {"capitalize", "", filter_capitalize},
        {"trim", "|chars", filter_trim},
        {"string", "", filter_string},
        {"safe", "", filter_safe},
        {"replace", "old new|count", filter_replace},
        {"default", "|default_value boolean", filter_default},
        {"d", "|default_value boolean", filter_default},
        {"indent", "|width first blank", filter_indent},
        {"abs", "", filter_abs},
        {"int", "|default base", filter_int},
        {"float", "|default", filter_float},
        {"round", "|precision method", filter_round},
        {"tojson", "|ensure_ascii indent separators sort_keys", filter_tojson},
        {"wordcount", "", filter_wordcount},
        {"format", "*", filter_format},
    };
    const struct builtin *const row = builtin_find(ROWS, COUNT_OF(ROWS), name, strlen(name));
    return row ? row : builtin_find(LIST_FILTERS, LIST_FILTER_COUNT, name, strlen(name));
}
