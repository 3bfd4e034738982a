/* jinja_print.c - Python's str() and repr(), character for character: what a template prints is
 * what a model learns.
 *
 * Floats have the shortest text that reads back, lists and dicts their repr. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_render.h"
#include "engine/text/jinja_unicode.h"

static enum status check_size(struct render *r, const struct str *out) {
    RENDER_FAIL_IF(r, out->len > TEMPLATE_OUTPUT_MAX, STATUS_INVALID,
                   "the template prints too much (limit %d MiB)", TEMPLATE_OUTPUT_MAX >> 20);
    return render_work(r, 0);
}

/* The digits of the shortest decimal that reads back as the same number, and its exponent: d.ddd x
 * 10^exponent. */
static void shortest_digits(double number, char digits[32], int *exponent) {
    for (int precision = 0; precision <= 16; precision++) {
        char *const text = str_format("%.*e", precision, number);
        double back = 0;
        const bool same = str_to_f64(text, "number", &back, NULL) == STATUS_OK && back == number;
        size_t count = 0;
        const char *c = text;
        for (; *c && *c != 'e'; c++) {
            if (*c != '.') digits[count++] = *c;
        }
        digits[count] = 0;
        int64_t power = 0;
        (void)str_to_i64(c + (c[1] == '+' ? 2 : 1), "exponent", &power, NULL);
        *exponent = (int)power;
        mem_free(text);
        if (same) break;
    }
    size_t len = strlen(digits);
    while (len > 1 && digits[len - 1] == '0') {
        digits[--len] = 0;
    }
}

void print_float(struct str *out, double number) {
    if (isnan(number)) {
        str_append(out, "nan");
        return;
    }
    if (signbit(number)) str_append_char(out, '-');
    const double size = fabs(number);
    if (isinf(size) || size == 0) {
        str_append(out, size == 0 ? "0.0" : "inf");
        return;
    }
    char digits[32];
    int exponent = 0;
    shortest_digits(size, digits, &exponent);
    const int count = (int)strlen(digits);
    if (exponent < -4 || exponent >= 16) {
        str_append_bytes(out, digits, 1);
        if (count > 1) str_appendf(out, ".%s", digits + 1);
        str_appendf(out, "e%c%02d", exponent < 0 ? '-' : '+', exponent < 0 ? -exponent : exponent);
        return;
    }
    if (exponent < 0) {
        str_append(out, "0.");
        for (int i = -1; i > exponent; i--) {
            str_append_char(out, '0');
        }
        str_append(out, digits);
        return;
    }
    for (int i = 0; i <= exponent || i < count; i++) {
        if (i == exponent + 1) str_append_char(out, '.');
        str_append_char(out, i < count ? digits[i] : '0');
    }
    if (count <= exponent + 1) str_append(out, ".0");
}

static void append_quoted(struct str *out, const struct text *text) {
    const bool has_single = memchr(text->data, '\'', text->len) != NULL;
    const bool has_double = memchr(text->data, '"', text->len) != NULL;
    const char quote = has_single && !has_double ? '"' : '\'';
    str_append_char(out, quote);
    for (size_t at = 0; at < text->len;) {
        uint32_t code = 0;
        const int size = utf8_decode(text->data + at, text->len - at, &code);
        if (code == (uint32_t)quote || code == '\\') {
            str_appendf(out, "\\%c", (char)code);
        } else if (code == '\n' || code == '\r' || code == '\t') {
            str_append(out, code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t");
        } else if (unicode_is_printable(code)) {
            str_append_bytes(out, text->data + at, (size_t)size);
        } else {
            str_appendf(out,
                        code < 0x100     ? "\\x%02x"
                        : code < 0x10000 ? "\\u%04x"
                                         : "\\U%08x",
                        code);
        }
        at += (size_t)size;
    }
    str_append_char(out, quote);
}

static enum status repr_sequence(struct render *r, struct str *out, const struct sequence *s,
                                 int depth) {
    static const char *const OPEN[] = {"[",           "(", "", "dict_keys([", "dict_values([",
                                       "dict_items(["};
    static const char *const CLOSE[] = {"]", ")", "", "])", "])", "])"};
    if (s->type == SEQUENCE_RANGE) {
        str_appendf(out, "range(%lld, %lld", (long long)s->start, (long long)s->stop);
        if (s->step != 1) str_appendf(out, ", %lld", (long long)s->step);
        str_append_char(out, ')');
        return STATUS_OK;
    }
    str_append(out, OPEN[s->type]);
    for (size_t i = 0; i < s->count; i++) {
        if (i) str_append(out, ", ");
        TRY(print_repr(r, out, &s->items[i], depth - 1));
    }
    if (s->type == SEQUENCE_TUPLE && s->count == 1) str_append_char(out, ',');
    str_append(out, CLOSE[s->type]);
    return STATUS_OK;
}

static enum status repr_dict(struct render *r, struct str *out, const struct dict *d, int depth) {
    str_append_char(out, '{');
    for (size_t i = 0; i < d->count; i++) {
        if (i) str_append(out, ", ");
        TRY(print_repr(r, out, &d->entries[i].key, depth - 1));
        str_append(out, ": ");
        TRY(print_repr(r, out, &d->entries[i].value, depth - 1));
    }
    str_append_char(out, '}');
    return STATUS_OK;
}

enum status print_repr(struct render *r, struct str *out, const struct value *v, int depth) {
    RENDER_FAIL_IF(r, depth <= 0, STATUS_INVALID, "a printed value nests too deep (limit %d)",
                   VALUE_DEPTH_MAX);
    TRY(check_size(r, out));
    switch (v->kind) {
    case VALUE_UNDEFINED: str_append(out, "Undefined"); return STATUS_OK;
    case VALUE_NONE: str_append(out, "None"); return STATUS_OK;
    case VALUE_BOOL: str_append(out, v->as.truth ? "True" : "False"); return STATUS_OK;
    case VALUE_INT: str_appendf(out, "%lld", (long long)v->as.integer); return STATUS_OK;
    case VALUE_FLOAT: print_float(out, v->as.number); return STATUS_OK;
    case VALUE_BIG: str_append_bytes(out, v->as.text->data, v->as.text->len); return STATUS_OK;
    case VALUE_STRING:
        if (v->markup) str_append(out, "Markup(");
        append_quoted(out, v->as.text);
        if (v->markup) str_append(out, ")");
        return render_work(r, v->as.text->len);
    case VALUE_SEQUENCE: return repr_sequence(r, out, v->as.sequence, depth);
    case VALUE_DICT: return repr_dict(r, out, v->as.dict, depth);
    case VALUE_NAMESPACE:
        str_append(out, "<Namespace ");
        TRY(repr_dict(r, out, v->as.names, depth));
        str_append_char(out, '>');
        return STATUS_OK;
    default:
        RENDER_FAIL(r, STATUS_UNSUPPORTED, "printing a %s is not supported", value_type_name(v));
    }
}

enum status print_value(struct render *r, struct str *out, const struct value *v) {
    if (v->kind == VALUE_UNDEFINED) return STATUS_OK;
    if (v->kind != VALUE_STRING) return print_repr(r, out, v, VALUE_DEPTH_MAX);
    TRY(render_work(r, v->as.text->len));
    str_append_bytes(out, v->as.text->data, v->as.text->len);
    return check_size(r, out);
}

enum status value_to_string(struct render *r, const struct value *v, struct value *out) {
    if (v->kind == VALUE_STRING) {
        *out = *v;
        return STATUS_OK;
    }
    struct str text = {0};
    const enum status status = print_value(r, &text, v);
    if (status == STATUS_OK) return string_from(r, &text, out);
    str_release(&text);
    return status;
}

enum status string_from(struct render *r, struct str *buffer, struct value *out) {
    enum status status = check_size(r, buffer);
    if (status == STATUS_OK) {
        *out = value_string(&r->region, str_text(buffer), buffer->len);
        status = render_work(r, buffer->len);
    }
    str_release(buffer);
    return status;
}
