/* jinja_json.c - the reader of jinja_json.h: recursive descent over the bytes, VALUE_DEPTH_MAX
 * levels deep at most.
 *
 * Numbers keep their spelling, so that big integers and 1.0 come out as they went in. */
#include "engine/text/jinja_json.h"

#include <string.h>

#include "base/mem.h"
#include "base/str.h"

struct reader {
    struct region *region;
    const char *text, *what;
    size_t len, at;
    int depth;
    struct err *e;
};

static enum status fail(struct reader *x, const char *message) {
    return err_set(x->e, STATUS_INVALID, "%s: JSON, byte %zu: %s", x->what, x->at, message);
}

static void skip_space(struct reader *x) {
    while (x->at < x->len && (x->text[x->at] == ' ' || x->text[x->at] == '\n' ||
                              x->text[x->at] == '\t' || x->text[x->at] == '\r')) {
        x->at++;
    }
}

static bool skip_char(struct reader *x, char c) {
    if (x->at >= x->len || x->text[x->at] != c) return false;
    x->at++;
    return true;
}

static enum status read_hex4(struct reader *x, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < 4; i++) {
        const char c = x->at < x->len ? x->text[x->at] : 0;
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return fail(x, "\\u needs four hexadecimal digits");
        *code = *code * 16 + (uint32_t)digit;
        x->at++;
    }
    return STATUS_OK;
}

static enum status read_escape(struct reader *x, struct str *out) {
    static const char FROM[] = "\"\\/nrtbf";
    static const char TO[] = "\"\\/\n\r\t\b\f";
    const char c = x->at < x->len ? x->text[x->at++] : 0;
    const char *const simple = c ? strchr(FROM, c) : NULL;
    if (simple) {
        str_append_char(out, TO[simple - FROM]);
        return STATUS_OK;
    }
    if (c != 'u') return fail(x, "this escape is not known");
    uint32_t code, low;
    TRY(read_hex4(x, &code));
    if (code >= 0xD800 && code < 0xDC00 && skip_char(x, '\\') && skip_char(x, 'u')) {
        TRY(read_hex4(x, &low));
        if (low < 0xDC00 || low > 0xDFFF)
            return fail(x, "a high surrogate is not followed by a low one");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code >= 0xD800 && code < 0xE000) return fail(x, "a lone surrogate is not a character");
    str_append_utf8(out, code);
    return STATUS_OK;
}

/* With the opening quote already skipped. */
static enum status read_string(struct reader *x, struct value *out) {
    const size_t from = x->at;
    while (x->at < x->len && x->text[x->at] != '"' && x->text[x->at] != '\\' &&
           (unsigned char)x->text[x->at] >= 0x20) {
        x->at++;
    }
    if (x->at < x->len && x->text[x->at] == '"') {
        *out = value_string(x->region, x->text + from, x->at++ - from);
        return STATUS_OK;
    }
    struct str text = {0};
    enum status status = STATUS_OK;
    str_append_bytes(&text, x->text + from, x->at - from);
    while (status == STATUS_OK && !skip_char(x, '"')) {
        if (x->at >= x->len) {
            status = fail(x, "a string is not closed");
        } else if ((unsigned char)x->text[x->at] < 0x20) {
            status = fail(x, "a control character stands in a string");
        } else if (skip_char(x, '\\')) {
            status = read_escape(x, &text);
        } else {
            str_append_char(&text, x->text[x->at++]);
        }
    }
    if (status == STATUS_OK) *out = value_string(x->region, str_text(&text), text.len);
    str_release(&text);
    return status;
}

static size_t skip_digits(struct reader *x) {
    const size_t from = x->at;
    while (x->at < x->len && x->text[x->at] >= '0' && x->text[x->at] <= '9') {
        x->at++;
    }
    return x->at - from;
}

static enum status read_number(struct reader *x, struct value *out) {
    const size_t from = x->at;
    bool is_float = false;
    (void)skip_char(x, '-');
    if (!skip_char(x, '0') && !skip_digits(x)) return fail(x, "a value is expected here");
    if (skip_char(x, '.')) {
        is_float = true;
        if (!skip_digits(x)) return fail(x, "digits are expected after the point");
    }
    if (skip_char(x, 'e') || skip_char(x, 'E')) {
        is_float = true;
        if (!skip_char(x, '+')) (void)skip_char(x, '-');
        if (!skip_digits(x)) return fail(x, "digits are expected in the exponent");
    }
    const struct value text = value_string(x->region, x->text + from, x->at - from);
    if (is_float) {
        double number = 0;
        if (str_to_f64(text.as.text->data, "number", &number, NULL) != STATUS_OK) {
            return fail(x, "this number is out of range");
        }
        *out = value_float(number);
        return STATUS_OK;
    }
    int64_t integer = 0;
    if (str_to_i64(text.as.text->data, "number", &integer, NULL) == STATUS_OK) {
        *out = value_int(integer);
    } else {
        *out = text;
        out->kind = VALUE_BIG;
    }
    return STATUS_OK;
}

static enum status read_value(struct reader *x, struct value *out);

static enum status read_array(struct reader *x, struct value *out) {
    struct sequence *const list = sequence_new(x->region, SEQUENCE_LIST, 0);
    *out = value_sequence(list);
    skip_space(x);
    if (skip_char(x, ']')) return STATUS_OK;
    do {
        struct value item;
        TRY(read_value(x, &item));
        sequence_push(x->region, list, item);
    } while (skip_char(x, ','));
    return skip_char(x, ']') ? STATUS_OK : fail(x, "\",\" or \"]\" is expected");
}

static enum status read_object(struct reader *x, struct value *out) {
    struct dict *const dict = dict_new(x->region);
    *out = value_dict(dict);
    skip_space(x);
    if (skip_char(x, '}')) return STATUS_OK;
    do {
        struct value key, value;
        skip_space(x);
        if (!skip_char(x, '"')) return fail(x, "a key in quotes is expected");
        TRY(read_string(x, &key));
        skip_space(x);
        if (!skip_char(x, ':')) return fail(x, "\":\" is expected");
        TRY(read_value(x, &value));
        dict_set(x->region, dict, key, value);
    } while (skip_char(x, ','));
    return skip_char(x, '}') ? STATUS_OK : fail(x, "\",\" or \"}\" is expected");
}

static bool skip_word(struct reader *x, const char *word) {
    const size_t len = strlen(word);
    if (x->len - x->at < len || memcmp(x->text + x->at, word, len)) return false;
    x->at += len;
    return true;
}

static enum status read_plain(struct reader *x, struct value *out) {
    if (skip_char(x, '"')) return read_string(x, out);
    if (skip_word(x, "null")) {
        *out = value_none();
        return STATUS_OK;
    }
    if (skip_word(x, "true")) {
        *out = value_bool(true);
        return STATUS_OK;
    }
    if (skip_word(x, "false")) {
        *out = value_bool(false);
        return STATUS_OK;
    }
    return read_number(x, out);
}

/* A value and the white space on both sides of it. */
static enum status read_value(struct reader *x, struct value *out) {
    skip_space(x);
    if (x->depth >= VALUE_DEPTH_MAX) return fail(x, "it nests too deep (limit 200 levels)");
    x->depth++;
    if (skip_char(x, '[')) {
        TRY(read_array(x, out));
    } else if (skip_char(x, '{')) {
        TRY(read_object(x, out));
    } else {
        TRY(read_plain(x, out));
    }
    x->depth--;
    skip_space(x);
    return STATUS_OK;
}

enum status jinja_json_read(struct region *region, const char *text, size_t len, const char *what,
                            struct value *out, struct err *e) {
    struct reader x = {.region = region, .text = text, .what = what, .len = len, .e = e};
    x.at = utf8_valid_prefix(text, len);
    if (x.at < len) return fail(&x, "it is not valid UTF-8");
    x.at = 0;
    TRY(read_value(&x, out));
    return x.at == len ? STATUS_OK : fail(&x, "there is more text after the value");
}
