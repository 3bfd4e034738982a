/* jinja_format.c - Python's "..." % values, with the conversions s, r, d, i, f, x and %%, a width,
 * a precision and the flags - and 0.
 *
 * The rest is refused by name. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_render.h"
#include "engine/text/jinja_unicode.h"

enum { FIELD_WORK = 256 }; /* bytes of copying that reading and writing one field is worth */

enum { WIDTH_MAX = 1000 };

struct field {
    bool left, zero;
    int width, precision; /* -1: not given */
    char conversion;
};

static int read_number(const struct text *format, size_t *at) {
    int number = 0;
    while (*at < format->len && format->data[*at] >= '0' && format->data[*at] <= '9' &&
           number < WIDTH_MAX) {
        number = number * 10 + (format->data[(*at)++] - '0');
    }
    return number;
}

/* What stands behind the percent sign. */
static enum status read_field(struct render *r, const struct text *format, size_t *at,
                              struct field *out) {
    *out = (struct field){.width = 0, .precision = -1};
    for (; *at < format->len && (format->data[*at] == '-' || format->data[*at] == '0'); (*at)++) {
        out->left |= format->data[*at] == '-';
        out->zero |= format->data[*at] == '0';
    }
    out->width = read_number(format, at);
    if (*at < format->len && format->data[*at] == '.') {
        (*at)++;
        out->precision = read_number(format, at);
    }
    RENDER_FAIL_IF(r, *at >= format->len, STATUS_INVALID,
                   "the format ends in the middle of a conversion");
    out->conversion = format->data[(*at)++];
    RENDER_FAIL_IF(r, out->width >= WIDTH_MAX || out->precision >= WIDTH_MAX, STATUS_INVALID,
                   "a width of the format is above %d", WIDTH_MAX);
    return STATUS_OK;
}

static enum status print_number(struct render *r, const struct field *f, const struct value *v,
                                struct str *out) {
    RENDER_FAIL_IF(r, !value_is_number(v), STATUS_INVALID, "%%%c needs a number, not a %s",
                   f->conversion, value_type_name(v));
    if (f->conversion == 'f') {
        str_appendf(out, "%.*f", f->precision < 0 ? 6 : f->precision, value_number(v));
        return STATUS_OK;
    }
    RENDER_FAIL_IF(r, f->precision >= 0, STATUS_UNSUPPORTED,
                   "a precision of integers is not supported");
    RENDER_FAIL_IF(r,
                   v->kind == VALUE_FLOAT && (f->conversion == 'x' ||
                                              !(value_number(v) > -9e18 && value_number(v) < 9e18)),
                   STATUS_INVALID, "%%%c needs an integer that fits into 64 bits", f->conversion);
    const long long number =
        v->kind == VALUE_FLOAT ? (long long)v->as.number : (long long)value_integer(v);
    if (f->conversion == 'x') {
        RENDER_FAIL_IF(r, number < 0, STATUS_UNSUPPORTED,
                       "%%x of a negative number is not supported");
        str_appendf(out, "%llx", (unsigned long long)number);
    } else {
        str_appendf(out, "%lld", number);
    }
    return STATUS_OK;
}

static enum status print_field(struct render *r, const struct field *f, const struct value *v,
                               struct str *out) {
    switch (f->conversion) {
    case 's': return print_value(r, out, v);
    case 'r': return print_repr(r, out, v, VALUE_DEPTH_MAX);
    case 'd':
    case 'i':
    case 'f':
    case 'x': return print_number(r, f, v, out);
    default:
        RENDER_FAIL(r, STATUS_UNSUPPORTED, "the conversion %%%c is not supported", f->conversion);
    }
}

static void append_padded(struct str *out, const struct field *f, const struct str *text) {
    const bool is_text = f->conversion == 's' || f->conversion == 'r';
    const char *const data = str_text(text);
    size_t len = text->len;
    if (is_text && f->precision >= 0) len = utf8_skip(data, len, (size_t)f->precision);
    const size_t chars = utf8_count(data, len);
    const size_t padding = (size_t)f->width > chars ? (size_t)f->width - chars : 0;
    const bool zeros = f->zero && !f->left && !is_text;
    const size_t sign = zeros && len && data[0] == '-';
    str_append_bytes(out, data, sign);
    for (size_t i = 0; i < padding && !f->left; i++) {
        str_append_char(out, zeros ? '0' : ' ');
    }
    str_append_bytes(out, data + sign, len - sign);
    for (size_t i = 0; i < padding && f->left; i++) {
        str_append_char(out, ' ');
    }
}

static enum status append_field(struct render *r, const struct field *f, const struct value *v,
                                struct str *out) {
    struct str text = {0};
    const enum status status = print_field(r, f, v, &text);
    if (status == STATUS_OK) append_padded(out, f, &text);
    str_release(&text);
    return status;
}

static enum status format_all(struct render *r, const struct text *format,
                              const struct value *items, size_t count, struct str *out) {
    size_t used = 0;
    TRY(render_work(r, format->len));
    for (size_t at = 0; at < format->len;) {
        const char *const plain = format->data + at;
        const char *const percent = memchr(plain, '%', format->len - at);
        if (percent != plain) { /* everything up to the next field at once */
            const size_t len = percent ? (size_t)(percent - plain) : format->len - at;
            str_append_bytes(out, plain, len);
            at += len;
            continue;
        }
        at++;
        TRY(render_work(r, FIELD_WORK));
        struct field field;
        TRY(read_field(r, format, &at, &field));
        if (field.conversion == '%') {
            str_append_char(out, '%');
            continue;
        }
        RENDER_FAIL_IF(r, used == count, STATUS_INVALID,
                       "the format needs more than the %zu values given", count);
        TRY(append_field(r, &field, &items[used++], out));
    }
    RENDER_FAIL_IF(r, used < count, STATUS_INVALID,
                   "the format uses only %zu of the %zu values given", used, count);
    return STATUS_OK;
}

enum status format_percent(struct render *r, const struct text *format, const struct value *values,
                           struct value *out) {
    const bool is_tuple =
        values->kind == VALUE_SEQUENCE && values->as.sequence->type == SEQUENCE_TUPLE;
    struct str text = {0};
    const enum status status = format_all(r, format, is_tuple ? values->as.sequence->items : values,
                                          is_tuple ? values->as.sequence->count : 1, &text);
    if (status == STATUS_OK) return string_from(r, &text, out);
    str_release(&text);
    return status;
}
