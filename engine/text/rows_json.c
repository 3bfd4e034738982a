/* rows_json.c - a strict JSON parser without recursion: a loop, a state and a stack.
 *
 * It validates everything and copies nothing: most values of a data file are only looked at in
 * passing, and a stack of our own cannot be overrun by a hostile file. */
#include "engine/text/rows_json.h"

#include <string.h>

#include "base/mem.h"

enum state { WANT_VALUE, WANT_FIRST_KEY, WANT_KEY, WANT_FIRST_ELEMENT, HAVE_VALUE };

/* One run of the parser. `flaw` is set once, with `at` on the offending byte. */
struct parser {
    struct row_json *json;
    size_t at;
    const char *flaw;
    uint32_t open[ROW_DEPTH_MAX]; /* indexes of open containers */
    int depth;
};

static const char UNFINISHED[] = "the line ends before its JSON does: write one object per line "
                                 "(not pretty-printed), and see that the file is not "
                                 "cut off";

static bool fail(struct parser *p, const char *flaw) {
    p->flaw = flaw;
    return false;
}

static bool at_end(const struct parser *p) {
    return p->at >= p->json->len;
}

/* The byte at the cursor; 0 at the end (a NUL in the text is a flaw wherever it is looked at). */
static char peek(const struct parser *p) {
    return at_end(p) ? 0 : p->json->text[p->at];
}

static void skip_space(struct parser *p) {
    while (!at_end(p)) {
        const char c = p->json->text[p->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') break;
        p->at++;
    }
}

static struct row_value *add_value(struct parser *p, enum row_kind kind) {
    struct row_json *const j = p->json;
    if (j->count >= ROW_VALUES_MAX) {
        fail(p, "the row has too many JSON values");
        return NULL;
    }
    j->values = mem_grow(j->values, j->count, &j->capacity, sizeof *j->values);
    struct row_value *const value = &j->values[j->count++];
    *value = (struct row_value){
        .begin = (uint32_t)p->at, .kind = (uint8_t)kind, .next = (uint32_t)j->count};
    return value;
}

/* Four hex digits at text[at..]; -1 if they are not there. */
static int32_t hex4(const char *text, size_t len, size_t at) {
    if (at + 4 > len) return -1;
    int32_t value = 0;
    for (size_t i = at; i < at + 4; i++) {
        const char c = text[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static bool is_low_surrogate(int32_t code) {
    return code >= 0xDC00 && code < 0xE000;
}

/* The cursor is on a backslash inside a string. */
static bool parse_escape(struct parser *p) {
    const char *const text = p->json->text;
    const size_t len = p->json->len;
    if (p->at + 1 >= len) {
        p->at = len;
        return fail(p, UNFINISHED);
    }
    if (text[p->at + 1] != 'u') {
        if (!text[p->at + 1] || !strchr("\"\\/bfnrt", text[p->at + 1])) {
            return fail(p, "a backslash escape that JSON does not know");
        }
        p->at += 2;
        return true;
    }
    const int32_t code = hex4(text, len, p->at + 2);
    if (code < 0) return fail(p, "\\u needs four hexadecimal digits");
    size_t width = 6;
    if (code >= 0xD800 && code < 0xE000) {
        const bool pair = code < 0xDC00 && p->at + 7 < len && text[p->at + 6] == '\\' &&
                          text[p->at + 7] == 'u' && is_low_surrogate(hex4(text, len, p->at + 8));
        if (!pair)
            return fail(
                p, "half of a surrogate pair (\\ud800 to \\udfff): it stands for no character");
        width = 12;
    }
    p->at += width;
    return true;
}

/* The first byte at or after `at` that is not plain ASCII of a string: a quote, backslash, control
 * character, or the start of a longer character. Most of a data file goes through this loop. */
static size_t skip_plain(const char *text, size_t at, size_t len) {
    while (at < len) {
        const unsigned char c = (unsigned char)text[at];
        if (c < 0x20 || c >= 0x80 || c == '"' || c == '\\') break;
        at++;
    }
    return at;
}

/* The cursor is on the opening quote. */
static bool parse_string(struct parser *p) {
    struct row_value *const value = add_value(p, ROW_STRING);
    if (!value) return false;
    const char *const text = p->json->text;
    const size_t len = p->json->len;
    p->at++;
    while ((p->at = skip_plain(text, p->at, len)) < len) {
        const unsigned char c = (unsigned char)text[p->at];
        if (c == '"') {
            value->end = (uint32_t)++p->at;
            return true;
        }
        if (c < 0x20) {
            return fail(p, "a control character or line break inside a string: write it as \\n, "
                           "\\t or \\u00XX");
        }
        if (c == '\\') {
            value->escaped = true;
            if (!parse_escape(p)) return false;
            continue;
        }
        uint32_t code;
        const int width = utf8_decode(text + p->at, len - p->at, &code);
        if (width == 0) return fail(p, "bytes that are not valid UTF-8: save the file as UTF-8");
        p->at += (size_t)width;
    }
    return fail(p, UNFINISHED);
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool skip_digits(struct parser *p) {
    const size_t start = p->at;
    while (is_digit(peek(p))) {
        p->at++;
    }
    return p->at > start;
}

static bool parse_number(struct parser *p) {
    struct row_value *const value = add_value(p, ROW_NUMBER);
    if (!value) return false;
    if (peek(p) == '-') p->at++;
    if (peek(p) == '0') {
        p->at++;
    } else if (!skip_digits(p)) {
        return fail(p, "not a JSON number");
    }
    if (peek(p) == '.') {
        p->at++;
        if (!skip_digits(p)) return fail(p, "a number needs digits after its point");
    }
    if (peek(p) == 'e' || peek(p) == 'E') {
        p->at++;
        if (peek(p) == '+' || peek(p) == '-') p->at++;
        if (!skip_digits(p)) return fail(p, "a number needs digits in its exponent");
    }
    value->end = (uint32_t)p->at;
    return true;
}

static bool parse_word(struct parser *p) {
    static const struct {
        const char *text;
        enum row_kind kind;
    } WORDS[] = {{"null", ROW_NULL}, {"true", ROW_TRUE}, {"false", ROW_FALSE}};
    for (size_t i = 0; i < COUNT_OF(WORDS); i++) {
        const size_t len = strlen(WORDS[i].text);
        if (p->json->len - p->at < len || memcmp(p->json->text + p->at, WORDS[i].text, len) != 0)
            continue;
        struct row_value *const value = add_value(p, WORDS[i].kind);
        if (!value) return false;
        p->at += len;
        value->end = (uint32_t)p->at;
        return true;
    }
    const char c = peek(p);
    if (at_end(p)) return fail(p, UNFINISHED);
    if (c == '\'') return fail(p, "single quotes: JSON strings are in double quotes");
    if (c == ']' || c == '}') return fail(p, "a value is missing here (a comma too many?)");
    return fail(p, "expected a JSON value");
}

static bool open_container(struct parser *p, enum row_kind kind) {
    if (p->depth == ROW_DEPTH_MAX) return fail(p, "the JSON is nested too deeply");
    if (!add_value(p, kind)) return false;
    p->open[p->depth++] = (uint32_t)p->json->count - 1;
    p->at++;
    return true;
}

static void close_container(struct parser *p) {
    ASSERT(p->depth > 0);
    struct row_value *const value = &p->json->values[p->open[--p->depth]];
    value->end = (uint32_t)++p->at;
    value->next = (uint32_t)p->json->count;
}

static bool parse_value(struct parser *p, enum state *state) {
    const char c = peek(p);
    if (c == '{' || c == '[') {
        *state = c == '{' ? WANT_FIRST_KEY : WANT_FIRST_ELEMENT;
        return open_container(p, c == '{' ? ROW_OBJECT : ROW_ARRAY);
    }
    *state = HAVE_VALUE;
    if (c == '"') return parse_string(p);
    if (c == '-' || is_digit(c)) return parse_number(p);
    return parse_word(p);
}

static bool parse_key(struct parser *p) {
    const char c = peek(p);
    if (at_end(p)) return fail(p, UNFINISHED);
    if (c == '}') return fail(p, "a comma too many before }");
    if (c == '\'') return fail(p, "single quotes: JSON keys are in double quotes");
    if (c != '"') return fail(p, "a key must be in double quotes");
    if (!parse_string(p)) return false;
    skip_space(p);
    if (at_end(p)) return fail(p, UNFINISHED);
    if (peek(p) != ':') return fail(p, "expected : after a key");
    p->at++;
    return true;
}

/* After a value inside a container: a comma or the container's end. */
static bool parse_separator(struct parser *p, enum state *state) {
    const bool object = p->json->values[p->open[p->depth - 1]].kind == ROW_OBJECT;
    const char c = peek(p);
    if (at_end(p)) return fail(p, UNFINISHED);
    if (c == (object ? '}' : ']')) {
        close_container(p);
        return true;
    }
    if (c != ',') {
        return fail(p, object ? "expected , or } (a quote inside a string is written \\\")"
                              : "expected , or ] (a quote inside a string is written \\\")");
    }
    p->at++;
    *state = object ? WANT_KEY : WANT_VALUE;
    return true;
}

static bool parse_step(struct parser *p, enum state *state) {
    skip_space(p);
    switch (*state) {
    case WANT_VALUE: return parse_value(p, state);
    case WANT_FIRST_ELEMENT:
        if (peek(p) != ']') return parse_value(p, state);
        close_container(p);
        *state = HAVE_VALUE;
        return true;
    case WANT_FIRST_KEY:
        if (peek(p) == '}') {
            close_container(p);
            *state = HAVE_VALUE;
            return true;
        }
        *state = WANT_VALUE;
        return parse_key(p);
    case WANT_KEY: *state = WANT_VALUE; return parse_key(p);
    case HAVE_VALUE: return parse_separator(p, state);
    }
    return false;
}

/* Columns count characters, as editors do. */
static enum status report_flaw(struct row_json *j, const struct parser *p, int64_t line,
                               struct err *e) {
    int64_t column = 1;
    const size_t stop = p->at < j->len ? p->at : j->len;
    for (size_t i = 0; i < stop; i++) {
        const bool newline = j->text[i] == '\n';
        line += newline;
        column = newline ? 1 : column + (((unsigned char)j->text[i] & 0xC0) != 0x80);
    }
    j->flaw_line = line;
    return err_set(e, STATUS_INVALID, "not valid JSON at column %lld: %s", (long long)column,
                   p->flaw);
}

enum status row_json_parse(struct row_json *j, const struct row *row, struct err *e) {
    j->text = row->text;
    j->len = row->len;
    j->count = 0;
    j->flaw_line = row->line;
    ASSERT(row->len < UINT32_MAX);
    struct parser p = {.json = j};
    enum state state = WANT_VALUE;
    do {
        if (!parse_step(&p, &state)) return report_flaw(j, &p, row->line, e);
    } while (p.depth > 0 || state != HAVE_VALUE);
    skip_space(&p);
    if (!at_end(&p)) {
        p.flaw = "there is more text after the end of the JSON value: write one object per line";
        return report_flaw(j, &p, row->line, e);
    }
    return STATUS_OK;
}

void row_json_release(struct row_json *j) {
    if (!j) return;
    mem_free(j->values);
    *j = (struct row_json){0};
}

enum row_kind row_kind(const struct row_json *j, size_t value) {
    ASSERT(value < j->count);
    return (enum row_kind)j->values[value].kind;
}

const char *row_kind_name(enum row_kind kind) {
    static const char *const NAMES[] = {"null",     "true or false", "true or false", "a number",
                                        "a string", "an array",      "an object"};
    return NAMES[kind];
}

void row_append_raw(const struct row_json *j, size_t value, struct str *out) {
    const struct row_value *const v = &j->values[value];
    str_append_bytes(out, j->text + v->begin, v->end - v->begin);
}

/* Decodes one escape at text[at] (validated before); returns its width. */
static size_t append_escape(const char *text, size_t len, size_t at, struct str *out) {
    static const char NAMES[] = "\"\\/bfnrt", VALUES[] = "\"\\/\b\f\n\r\t";
    if (text[at + 1] != 'u') {
        str_append_char(out, VALUES[strchr(NAMES, text[at + 1]) - NAMES]);
        return 2;
    }
    const int32_t code = hex4(text, len, at + 2);
    if (code < 0xD800 || code >= 0xE000) {
        str_append_utf8(out, (uint32_t)code);
        return 6;
    }
    const int32_t low = hex4(text, len, at + 8);
    str_append_utf8(out, 0x10000u + ((uint32_t)(code - 0xD800) << 10) + (uint32_t)(low - 0xDC00));
    return 12;
}

void row_append_string(const struct row_json *j, size_t value, struct str *out) {
    const struct row_value *const v = &j->values[value];
    ASSERT(v->kind == ROW_STRING);
    const char *const text = j->text;
    size_t at = v->begin + 1;
    const size_t end = v->end - 1;
    while (at < end) {
        const char *const slash = v->escaped ? memchr(text + at, '\\', end - at) : NULL;
        const size_t plain = slash ? (size_t)(slash - text) : end;
        str_append_bytes(out, text + at, plain - at);
        at = plain;
        if (slash) at += append_escape(text, end, at, out);
    }
}

bool row_string_is(const struct row_json *j, size_t value, const char *text) {
    const struct row_value *const v = &j->values[value];
    const size_t len = strlen(text);
    if (!v->escaped)
        return v->end - v->begin - 2 == len && memcmp(j->text + v->begin + 1, text, len) == 0;
    struct str decoded = {0};
    row_append_string(j, value, &decoded);
    const bool same = decoded.len == len && memcmp(str_text(&decoded), text, len) == 0;
    str_release(&decoded);
    return same;
}

size_t row_first(const struct row_json *j, size_t container) {
    return container + 1 < j->values[container].next ? container + 1 : 0;
}

size_t row_after(const struct row_json *j, size_t container, size_t child) {
    const bool object = j->values[container].kind == ROW_OBJECT;
    const size_t next = j->values[object ? child + 1 : child].next;
    return next < j->values[container].next ? next : 0;
}

enum status row_member(const struct row_json *j, size_t object, const char *key, size_t *value,
                       struct err *e) {
    ASSERT(row_kind(j, object) == ROW_OBJECT);
    *value = 0;
    for (size_t k = row_first(j, object); k; k = row_after(j, object, k)) {
        if (!row_string_is(j, k, key)) continue;
        if (*value) return err_set_param(e, STATUS_INVALID, key, "%s: the key is there twice", key);
        *value = k + 1;
    }
    return STATUS_OK;
}
