/* jinja_lex.c - the lexer of jinja_lex.h: one pass over the source, a mode for text and a mode for
 * inside of tags.
 *
 * Inside a tag brackets are counted: `}}` and `%}` end it only when none is open, so `{{ {'a': {}}
 * }}` works. Tags `raw` and comments never leave this file. */
#include "engine/text/jinja_lex.h"

#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/text/jinja_unicode.h"

enum { BRACKETS_MAX = 200 };

struct lexer {
    const char *text; /* normalized source */
    size_t len, at;
    struct region *region;
    struct token *tokens;
    size_t count, capacity;
    char brackets[BRACKETS_MAX]; /* the closing ones still awaited */
    int depth;
    size_t counted;       /* lines and columns were counted up to here */
    int32_t line, column; /* of `counted` */
    struct err *e;
};

static void place(struct lexer *x, size_t at, int32_t *line, int32_t *column) {
    ASSERT(at >= x->counted);
    for (; x->counted < at; x->counted++) {
        const unsigned char c = (unsigned char)x->text[x->counted];
        if (c == '\n') {
            x->line++;
            x->column = 1;
        } else if (x->counted + 1 == x->len ||
                   ((unsigned char)x->text[x->counted + 1] & 0xC0) != 0x80) {
            x->column++;
        }
    }
    *line = x->line;
    *column = x->column;
}

static enum status fail_at(struct lexer *x, size_t at, const char *message) {
    int32_t line, column;
    if (at < x->counted) {
        x->counted = 0;
        x->line = x->column = 1;
    }
    place(x, at, &line, &column);
    return err_set(x->e, STATUS_INVALID, "line %d, column %d: %s", line, column, message);
}

static void push(struct lexer *x, enum token_kind kind, size_t at, const char *text, size_t len) {
    x->tokens = mem_grow(x->tokens, x->count, &x->capacity, sizeof *x->tokens);
    struct token *const token = &x->tokens[x->count++];
    *token = (struct token){.kind = kind, .len = len};
    place(x, at, &token->line, &token->column);
    token->text = region_copy(x->region, text, len);
}

static bool looking_at(const struct lexer *x, size_t at, const char *what) {
    const size_t len = strlen(what);
    return x->len - at >= len && !memcmp(x->text + at, what, len);
}

/* Length of the white space that starts at `at`. */
static size_t space_at(const struct lexer *x, size_t at) {
    const size_t from = at;
    while (at < x->len) {
        uint32_t code;
        const int size = utf8_decode(x->text + at, x->len - at, &code);
        if (!python_is_space(code)) break;
        at += (size_t)size;
    }
    return at - from;
}

/* Pushes the text before a tag. `sign` is what follows the tag's opening; lstrip is for block and
 * comment tags. */
static void push_data(struct lexer *x, size_t from, size_t to, char sign, bool lstrip) {
    size_t end = to;
    if (sign == '-') {
        end = from + unicode_rstrip(x->text + from, to - from);
    } else if (sign != '+' && lstrip) {
        size_t start = to;
        while (start > from && x->text[start - 1] != '\n') {
            start--;
        }
        const bool line_start = start == 0 || x->text[start - 1] == '\n';
        if (line_start && unicode_rstrip(x->text + start, to - start) == 0) end = start;
    }
    if (end > from) push(x, TOKEN_DATA, from, x->text + from, end - from);
}

/* After a closing `%}` or `#}` at `at`: the first newline is dropped, or with '-' all white space.
 */
static size_t after_block(const struct lexer *x, size_t at, char sign) {
    if (sign == '-') return at + space_at(x, at);
    if (sign != '+' && at < x->len && x->text[at] == '\n') return at + 1;
    return at;
}

static char tag_sign(const struct lexer *x, size_t tag) {
    const char sign = tag + 2 < x->len ? x->text[tag + 2] : 0;
    return sign == '-' || sign == '+' ? sign : 0;
}

static enum status lex_comment(struct lexer *x, size_t from) {
    const size_t start = from + 2 + (size_t)(tag_sign(x, from) != 0);
    const char *const end = memmem(x->text + start, x->len - start, "#}", 2);
    if (!end) return fail_at(x, from, "this comment is not closed with #}");
    const size_t at = (size_t)(end - x->text);
    x->at = after_block(x, at + 2, at > start ? x->text[at - 1] : 0);
    return STATUS_OK;
}

/* If a `raw` tag starts at `from` (its `{%`), finds where its text starts. */
static bool raw_begins(const struct lexer *x, size_t from, size_t *text_from) {
    size_t at = from + 2;
    if (at < x->len && (x->text[at] == '-' || x->text[at] == '+')) at++;
    at += space_at(x, at);
    if (!looking_at(x, at, "raw")) return false;
    at += 3;
    at += space_at(x, at);
    const bool strip = looking_at(x, at, "-%}");
    if (!strip && !looking_at(x, at, "%}")) return false;
    at += strip ? 3 : 2;
    *text_from = strip ? at + space_at(x, at) : at;
    return true;
}

/* Finds the `endraw` tag from `at` on; its parts come back through the pointers. */
static bool raw_ends(const struct lexer *x, size_t at, size_t *tag, size_t *after) {
    for (; at + 2 <= x->len; at++) {
        if (!looking_at(x, at, "{%")) continue;
        size_t p = at + 2;
        if (p < x->len && (x->text[p] == '-' || x->text[p] == '+')) p++;
        p += space_at(x, p);
        if (!looking_at(x, p, "endraw")) continue;
        p += 6;
        p += space_at(x, p);
        const char sign = p < x->len ? x->text[p] : 0;
        if (sign == '-' || sign == '+') p++;
        if (!looking_at(x, p, "%}")) continue;
        *tag = at;
        *after = after_block(x, p + 2, sign);
        return true;
    }
    return false;
}

/* Text up to the next tag; leaves x->at behind the tag's opening. */
static enum status lex_text(struct lexer *x, bool *inside) {
    const size_t from = x->at;
    size_t tag = from;
    for (; tag < x->len; tag++) {
        if (x->text[tag] != '{' || tag + 1 >= x->len) continue;
        if (strchr("{%#", x->text[tag + 1]) && x->text[tag + 1]) break;
    }
    if (tag >= x->len) {
        if (x->len > from) push(x, TOKEN_DATA, from, x->text + from, x->len - from);
        x->at = x->len;
        return STATUS_OK;
    }
    const char kind = x->text[tag + 1];
    const char sign = tag_sign(x, tag);
    push_data(x, from, tag, sign, kind != '{');
    size_t raw_from, raw_to, after;
    if (kind == '#') return lex_comment(x, tag);
    if (kind == '%' && raw_begins(x, tag, &raw_from)) {
        if (!raw_ends(x, raw_from, &raw_to, &after)) {
            return fail_at(x, tag, "this raw block is not closed with endraw");
        }
        push_data(x, raw_from, raw_to, tag_sign(x, raw_to), true);
        x->at = after;
        return STATUS_OK;
    }
    push(x, kind == '{' ? TOKEN_PRINT_BEGIN : TOKEN_BLOCK_BEGIN, tag, "", 0);
    x->at = tag + 2 + (size_t)(sign != 0);
    *inside = true;
    return STATUS_OK;
}

/* ---- inside a tag ---- */

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Decodes one escape; *at stands on the character after the backslash. */
static enum status lex_escape(struct lexer *x, size_t *at, size_t end, struct str *out) {
    static const char FROM[] = "ntrabfv\\'\"";
    static const char TO[] = "\n\t\r\a\b\f\v\\'\"";
    const size_t start = *at - 1;
    const char c = x->text[(*at)++];
    const char *const simple = strchr(FROM, c);
    if (c && simple) {
        str_append_char(out, TO[simple - FROM]);
        return STATUS_OK;
    }
    if (c == '\n') return STATUS_OK;
    if (c >= '0' && c <= '7') {
        uint32_t code = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *at < end && x->text[*at] >= '0' && x->text[*at] <= '7'; i++) {
            code = code * 8 + (uint32_t)(x->text[(*at)++] - '0');
        }
        str_append_utf8(out, code);
        return STATUS_OK;
    }
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (!digits) {
        str_append_char(out, '\\');
        (*at)--;
        return c == 'N' ? fail_at(x, start, "the escape \\N is not supported") : STATUS_OK;
    }
    uint32_t code = 0;
    for (int i = 0; i < digits; i++) {
        const int value = *at < end ? hex_value(x->text[*at]) : -1;
        if (value < 0) return fail_at(x, start, "this escape lacks hexadecimal digits");
        code = code * 16 + (uint32_t)value;
        (*at)++;
    }
    if (code >= 0x110000 || (code >= 0xD800 && code < 0xE000)) {
        return fail_at(x, start, "this escape is not a Unicode character");
    }
    str_append_utf8(out, code);
    return STATUS_OK;
}

static enum status lex_string(struct lexer *x) {
    const size_t from = x->at;
    const char quote = x->text[from];
    size_t end = from + 1;
    while (end < x->len && x->text[end] != quote) {
        end += x->text[end] == '\\' ? 2 : 1;
    }
    if (end >= x->len) return fail_at(x, from, "this string is not closed");
    struct str text = {0};
    enum status status = STATUS_OK;
    for (size_t at = from + 1; at < end && status == STATUS_OK;) {
        const char c = x->text[at++];
        if (c == '\\') {
            status = lex_escape(x, &at, end, &text);
        } else {
            str_append_char(&text, c);
        }
    }
    if (status == STATUS_OK) push(x, TOKEN_STRING, from, str_text(&text), text.len);
    str_release(&text);
    x->at = end + 1;
    return status;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static size_t digits_at(const struct lexer *x, size_t at) {
    const size_t from = at;
    while (at < x->len &&
           (is_digit(x->text[at]) ||
            (x->text[at] == '_' && at > from && at + 1 < x->len && is_digit(x->text[at + 1])))) {
        at++;
    }
    return at - from;
}

/* Decimal integers and floats; underscores are dropped. Other bases are left to the error below. */
static enum status lex_number(struct lexer *x) {
    const size_t from = x->at;
    size_t at = from + digits_at(x, from);
    bool is_float = false;
    const bool after_dot = from > 0 && x->text[from - 1] == '.';
    if (!after_dot && at + 1 < x->len && x->text[at] == '.' && is_digit(x->text[at + 1])) {
        at += 1 + digits_at(x, at + 1);
        is_float = true;
    }
    if (!after_dot && at < x->len && (x->text[at] | 32) == 'e') {
        size_t p = at + 1;
        if (p < x->len && (x->text[p] == '+' || x->text[p] == '-')) p++;
        if (digits_at(x, p)) {
            at = p + digits_at(x, p);
            is_float = true;
        }
    }
    if (at == from + 1 && x->text[from] == '0' && at < x->len && strchr("xXoObB", x->text[at]) &&
        x->text[at]) {
        return fail_at(x, from, "numbers in base 16, 8 or 2 are not supported");
    }
    if (!is_float && x->text[from] == '0' && at > from + 1 &&
        strspn(x->text + from, "0_") < at - from) {
        return fail_at(x, from, "a decimal integer may not begin with 0");
    }
    struct str digits = {0};
    for (size_t i = from; i < at; i++) {
        if (x->text[i] != '_') str_append_char(&digits, x->text[i]);
    }
    push(x, is_float ? TOKEN_FLOAT : TOKEN_INTEGER, from, str_text(&digits), digits.len);
    str_release(&digits);
    x->at = at;
    return STATUS_OK;
}

static enum status lex_sign(struct lexer *x) {
    static const char *const SIGNS[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                        "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                        ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (size_t i = 0; i < COUNT_OF(SIGNS); i++) {
        if (!looking_at(x, x->at, SIGNS[i])) continue;
        const char c = SIGNS[i][0];
        const char *const opening = strchr("([{", c);
        if (opening) {
            if (x->depth == BRACKETS_MAX) return fail_at(x, x->at, "brackets are nested too deep");
            x->brackets[x->depth++] = ")]}"[opening - "([{"];
        }
        if (strchr(")]}", c)) {
            if (!x->depth || x->brackets[x->depth - 1] != c)
                return fail_at(x, x->at, "this bracket was not opened");
            x->depth--;
        }
        push(x, TOKEN_SIGN, x->at, SIGNS[i], strlen(SIGNS[i]));
        x->at += strlen(SIGNS[i]);
        return STATUS_OK;
    }
    return fail_at(x, x->at, "this character has no meaning here");
}

static bool name_byte(char c, bool first) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (unsigned char)c >= 0x80 || (!first && is_digit(c));
}

/* True, and behind the end, when the tag closes here. */
static bool tag_ends(struct lexer *x, bool print) {
    const char *const close = print ? "}}" : "%}";
    const char c = x->text[x->at];
    const bool sign = (c == '-' || (c == '+' && !print)) && looking_at(x, x->at + 1, close);
    if (!sign && !looking_at(x, x->at, close)) return false;
    push(x, print ? TOKEN_PRINT_END : TOKEN_BLOCK_END, x->at, "", 0);
    x->at += sign ? 3 : 2;
    if (print) {
        x->at += sign ? space_at(x, x->at) : 0;
    } else {
        x->at = after_block(x, x->at, sign ? c : 0);
    }
    return true;
}

static enum status lex_tag(struct lexer *x, bool print) {
    const size_t opened = x->at;
    while (true) {
        x->at += space_at(x, x->at);
        if (x->at >= x->len)
            return fail_at(x, opened, print ? "this {{ is not closed" : "this {% is not closed");
        if (!x->depth && tag_ends(x, print)) return STATUS_OK;
        const char c = x->text[x->at];
        if (c == '\'' || c == '"') {
            TRY(lex_string(x));
        } else if (is_digit(c)) {
            TRY(lex_number(x));
        } else if (name_byte(c, true)) {
            const size_t from = x->at;
            while (x->at < x->len && name_byte(x->text[x->at], false) && !space_at(x, x->at)) {
                x->at += (size_t)utf8_length_at(x->text + x->at);
            }
            push(x, TOKEN_NAME, from, x->text + from, x->at - from);
        } else {
            TRY(lex_sign(x));
        }
    }
}

/* Newlines as LF, without the last one. */
static char *normalize(const char *source, size_t len, struct region *region, size_t *out_len) {
    char *const text = region_copy(region, source, len);
    size_t count = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r') {
            text[count++] = '\n';
            if (i + 1 < len && source[i + 1] == '\n') i++;
        } else {
            text[count++] = source[i];
        }
    }
    if (count && text[count - 1] == '\n') count--;
    text[count] = 0;
    *out_len = count;
    return text;
}

enum status jinja_lex(struct token_stream *out, const char *source, size_t len,
                      struct region *region, struct err *e) {
    struct lexer x = {.region = region, .line = 1, .column = 1, .e = e};
    x.text = normalize(source, len, region, &x.len);
    enum status status = STATUS_OK;
    const size_t valid = utf8_valid_prefix(x.text, x.len);
    if (valid < x.len) GUARD(fail_at(&x, valid, "the template is not valid UTF-8"));
    while (x.at < x.len) {
        bool inside = false;
        GUARD(lex_text(&x, &inside));
        if (inside) GUARD(lex_tag(&x, x.tokens[x.count - 1].kind == TOKEN_PRINT_BEGIN));
    }
    push(&x, TOKEN_END, x.len, "", 0);
    out->tokens = region_alloc(region, x.count, sizeof *out->tokens);
    memcpy(out->tokens, x.tokens, x.count * sizeof *out->tokens);
    out->count = x.count;
done:
    mem_free(x.tokens);
    return status;
}
