/* tokenizer_json.c - tokenizer.json in parts: the two large members and the rest.
 *
 * Finding two members of one object only takes counting brackets and stepping over strings; whether
 * the rest is JSON is for the parser of the rest to say. When it is not, the whole file is parsed
 * once more, because only then the line in the error is the line in the file. */
#include "engine/text/tokenizer_json.h"

#include <string.h>

#include "base/mem.h"

static const char BOM[] = "\xEF\xBB\xBF";

/* A place in the text. `what` names the text in errors. */
struct json_cursor {
    const char *text, *what;
    size_t len, at;
};

/* "not valid JSON at line 3, column 9". */

static enum status json_flaw(const struct json_cursor *c, struct err *e) {
    int line = 1, column = 1;
    for (size_t i = 0; i < c->at && i < c->len; i++) {
        line += c->text[i] == '\n';
        column = c->text[i] == '\n' ? 1 : column + 1;
    }
    return err_set(e, STATUS_INVALID, "%s: not valid JSON at line %d, column %d", c->what, line,
                   column);
}

/* The next character that is not white space, or '\0' at the end. */
static char json_peek(struct json_cursor *c) {
    while (c->at < c->len && (c->text[c->at] == ' ' || c->text[c->at] == '\n' ||
                              c->text[c->at] == '\r' || c->text[c->at] == '\t')) {
        c->at++;
    }
    return c->at < c->len ? c->text[c->at] : '\0';
}

/* Takes `wanted` if it is next. */
static bool json_take(struct json_cursor *c, char wanted) {
    const bool there = json_peek(c) == wanted && c->at < c->len;
    if (there) c->at++;
    return there;
}

/* ---- strings ---- */

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits behind \u, or -1. */
static int32_t take_unit(struct json_cursor *c) {
    int32_t unit = 0;
    if (c->len - c->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const int digit = hex_value(c->text[c->at + (size_t)i]);
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    c->at += 4;
    return unit;
}

static enum status take_unicode(struct json_cursor *c, struct str *out, struct err *e) {
    int32_t code = take_unit(c);
    if (code < 0 || (code >= 0xDC00 && code < 0xE000)) return json_flaw(c, e);
    if (code >= 0xD800 && code < 0xDC00) {
        const bool escape = c->len - c->at > 2 && memcmp(c->text + c->at, "\\u", 2) == 0;
        if (escape) c->at += 2;
        const int32_t low = escape ? take_unit(c) : -1;
        if (low < 0xDC00 || low >= 0xE000) return json_flaw(c, e);
        code = 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00);
    }
    str_append_utf8(out, (uint32_t)code);
    return STATUS_OK;
}

/* The cursor is behind the backslash. */
static enum status take_escape(struct json_cursor *c, struct str *out, struct err *e) {
    static const char NAMES[] = "\"\\/bfnrt", VALUES[] = "\"\\/\b\f\n\r\t";
    if (c->at >= c->len) return json_flaw(c, e);
    const char name = c->text[c->at];
    const char *const known = name ? strchr(NAMES, name) : NULL;
    if (!known && name != 'u') return json_flaw(c, e);
    c->at++;
    if (!known) return take_unicode(c, out, e);
    str_append_char(out, VALUES[known - NAMES]);
    return STATUS_OK;
}

/* Takes a string and appends what it says; it may hold NUL bytes. */
static enum status json_take_string(struct json_cursor *c, struct str *out, struct err *e) {
    if (!json_take(c, '"')) return json_flaw(c, e);
    for (;;) {
        size_t to = c->at;
        while (to < c->len && c->text[to] != '"' && c->text[to] != '\\') {
            to++;
        }
        str_append_bytes(out, c->text + c->at, to - c->at);
        c->at = to;
        if (c->at >= c->len) return json_flaw(c, e);
        if (c->text[c->at++] == '"') return STATUS_OK;
        TRY(take_escape(c, out, e));
    }
}

/* ---- the two large members ---- */

static enum status bad_id(const struct json_cursor *c, const char *token, struct err *e) {
    return err_set(e, STATUS_INVALID,
                   "%s: model.vocab: the id of \"%.80s\" is not a whole number below %d", c->what,
                   token, TOKEN_ID_LIMIT);
}

/* Digits only, and what ends a number must follow. */
static enum status take_id(struct json_cursor *c, const char *token, int32_t *out, struct err *e) {
    int32_t id = 0;
    size_t digits = 0;
    json_peek(c);
    for (; c->at < c->len && c->text[c->at] >= '0' && c->text[c->at] <= '9'; c->at++, digits++) {
        id = id * 10 + (c->text[c->at] - '0');
        if (id >= TOKEN_ID_LIMIT) return bad_id(c, token, e);
    }
    const char next = json_peek(c);
    if (digits == 0 || (next != ',' && next != '}')) return bad_id(c, token, e);
    *out = id;
    return STATUS_OK;
}

static enum status take_entries(struct json_cursor *c, struct entries *out, struct err *e) {
    json_take(c, '{');
    out->there = true;
    if (json_take(c, '}')) return STATUS_OK;
    do {
        const size_t from = out->text.len;
        struct entry entry = {0};
        TRY(json_take_string(c, &out->text, e));
        if (!json_take(c, ':')) return json_flaw(c, e);
        TRY(take_id(c, str_text(&out->text) + from, &entry.id, e));
        entry.to = out->text.len;
        FAIL_IF(entry.to - from > TOKEN_BYTES_MAX, STATUS_INVALID,
                "%s: model.vocab: the token with id %d is %zu bytes long, at most %d", c->what,
                entry.id, entry.to - from, TOKEN_BYTES_MAX);
        out->items = mem_grow(out->items, out->count, &out->capacity, sizeof *out->items);
        out->items[out->count++] = entry;
    } while (json_take(c, ','));
    return json_take(c, '}') ? STATUS_OK : json_flaw(c, e);
}

/* ["a", "b"] */
static enum status take_pair(struct json_cursor *c, struct merges *m, struct merge *merge,
                             struct err *e) {
    static const char ENDS[] = ",]";
    json_take(c, '[');
    for (int i = 0; i < 2; i++) {
        const bool string = json_peek(c) == '"';
        if (string) TRY(json_take_string(c, &m->text, e));
        if (i == 0) merge->middle = m->text.len;
        FAIL_IF(!string || !json_take(c, ENDS[i]), STATUS_INVALID,
                "%s: model.merges[%zu]: expected a pair of strings", c->what,
                m->count + m->skipped);
    }
    return STATUS_OK;
}

/* "a b": the one space is taken out. */
static enum status take_line(struct json_cursor *c, struct merges *m, struct merge *merge,
                             struct err *e) {
    TRY(json_take_string(c, &m->text, e));
    char *const text = m->text.data + merge->from;
    const size_t len = m->text.len - merge->from;
    if (m->count == 0 && !m->skipped && len >= 8 && memcmp(text, "#version", 8) == 0) {
        m->skipped = 1;
        str_truncate(&m->text, merge->from);
        return STATUS_OK;
    }
    char *const space = memchr(text, ' ', len);
    const size_t left = space ? (size_t)(space - text) : len;
    FAIL_IF(!space || memchr(space + 1, ' ', len - left - 1), STATUS_INVALID,
            "%s: model.merges[%zu]: \"%.*s\" is not two parts with one space", c->what,
            m->count + m->skipped, (int)(len < 80 ? len : 80), text);
    memmove(space, space + 1, len - left - 1);
    str_truncate(&m->text, m->text.len - 1);
    merge->middle = merge->from + left;
    return STATUS_OK;
}

static enum status take_merge(struct json_cursor *c, struct merges *m, bool pairs, struct err *e) {
    struct merge merge = {.from = m->text.len};
    const char next = json_peek(c);
    const size_t index = m->count + m->skipped, skipped = m->skipped;
    FAIL_IF(next != '"' && next != '[', STATUS_INVALID,
            "%s: model.merges[%zu]: expected a string or a pair of strings", c->what, index);
    FAIL_IF(pairs != (next == '['), STATUS_INVALID,
            "%s: model.merges[%zu]: this merge is %s, the ones before are not; one spelling must "
            "be used throughout",
            c->what, index, pairs ? "not a pair" : "not a string");
    TRY(pairs ? take_pair(c, m, &merge, e) : take_line(c, m, &merge, e));
    if (m->skipped != skipped) return STATUS_OK;
    merge.to = m->text.len;
    m->items = mem_grow(m->items, m->count, &m->capacity, sizeof *m->items);
    m->items[m->count++] = merge;
    return STATUS_OK;
}

static enum status take_merges(struct json_cursor *c, struct merges *m, struct err *e) {
    json_take(c, '[');
    m->there = true;
    if (json_take(c, ']')) return STATUS_OK;
    const bool pairs = json_peek(c) == '[';
    do {
        TRY(take_merge(c, m, pairs, e));
    } while (json_take(c, ','));
    return json_take(c, ']') ? STATUS_OK : json_flaw(c, e);
}

/* ---- the whole file ---- */

static enum status skip_string(struct json_cursor *c, struct err *e) {
    for (c->at++; c->at < c->len; c->at++) {
        if (c->text[c->at] == '"') {
            c->at++;
            return STATUS_OK;
        }
        c->at += c->text[c->at] == '\\';
    }
    c->at = c->len;
    return json_flaw(c, e);
}

/* What a search for the end of a value must look at. */
static const bool COUNTS[256] = {
    ['"'] = true, ['['] = true, [']'] = true, ['{'] = true, ['}'] = true, [','] = true};

/* Takes whatever value is next, without looking whether it is well made. */
static enum status json_skip(struct json_cursor *c, struct err *e) {
    int64_t depth = 0;
    json_peek(c);
    while (c->at < c->len) {
        const char next = c->text[c->at];
        const bool opens = next == '{' || next == '[', closes = next == '}' || next == ']';
        if (depth == 0 && (closes || next == ',')) return STATUS_OK;
        if (next == '"') {
            TRY(skip_string(c, e));
        } else {
            c->at++;
        }
        depth += opens - closes;
        if (depth == 0 && (closes || next == '"')) return STATUS_OK;
        while (c->at < c->len && !COUNTS[(unsigned char)c->text[c->at]]) {
            c->at++;
        }
    }
    return depth == 0 ? STATUS_OK : json_flaw(c, e);
}

/* Whether the quoted text at `from` is this key. */
static bool key_is(const struct json_cursor *c, size_t from, size_t len, const char *key) {
    const size_t key_len = strlen(key);
    return len == key_len + 2 && memcmp(c->text + from + 1, key, key_len) == 0;
}

/* Steps to the value of the next member whose key is written `key`; *found false at the end. */
static enum status find_member(struct json_cursor *c, const char *key, bool *found, struct err *e) {
    *found = false;
    while (json_peek(c) == '"') {
        const size_t begin = c->at;
        TRY(skip_string(c, e));
        *found = key_is(c, begin, c->at - begin, key);
        if (!json_take(c, ':')) return json_flaw(c, e);
        if (*found) return STATUS_OK;
        TRY(json_skip(c, e));
        if (!json_take(c, ',')) break;
    }
    return STATUS_OK;
}

/* Reads model.vocab and model.merges; a value of another kind stays where it is. */
static enum status take_model(struct json_cursor *c, struct tokenizer_file *file, struct err *e) {
    if (!json_take(c, '{')) return STATUS_OK;
    while (json_peek(c) == '"') {
        const size_t key = c->at;
        TRY(skip_string(c, e));
        const size_t key_len = c->at - key;
        if (!json_take(c, ':')) return json_flaw(c, e);
        const char next = json_peek(c);
        const bool vocab = key_is(c, key, key_len, "vocab") && next == '{' && !file->entries.there;
        const bool merges = key_is(c, key, key_len, "merges") && next == '[' && !file->merges.there;
        const size_t from = c->at;
        if (vocab) {
            TRY(take_entries(c, &file->entries, e));
        } else if (merges) {
            TRY(take_merges(c, &file->merges, e));
        } else {
            TRY(json_skip(c, e));
        }
        if (vocab || merges) file->taken[file->taken_count++] = (struct taken){from, c->at};
        if (!json_take(c, ',')) break;
    }
    return STATUS_OK;
}

/* The file without the two parts; null stands where they were. */
static void append_rest(const struct tokenizer_file *file, struct str *rest) {
    size_t done = 0;
    for (int i = 0; i < file->taken_count; i++) {
        str_append_bytes(rest, str_text(&file->text) + done, file->taken[i].from - done);
        str_append(rest, "null");
        done = file->taken[i].to;
    }
    str_append_bytes(rest, str_text(&file->text) + done, file->text.len - done);
}

static enum status take_parts(struct tokenizer_file *file, const char *what, struct err *e) {
    struct json_cursor c = {str_text(&file->text), what, file->text.len, 0};
    bool found = false;
    if (str_starts_with(c.text, BOM)) c.at = sizeof BOM - 1;
    if (!json_take(&c, '{')) return STATUS_OK;
    TRY(find_member(&c, "model", &found, e));
    return found ? take_model(&c, file, e) : STATUS_OK;
}

enum status tokenizer_file_parse(struct tokenizer_file *file, const char *what, struct err *e) {
    struct str rest = {0};
    struct err inner = {0};
    enum status status = take_parts(file, what, &inner);
    if (status == STATUS_OK) {
        append_rest(file, &rest);
        status = json_parse(str_text(&rest), rest.len, what, &file->rest, &inner);
    }
    str_release(&rest);
    if (status == STATUS_OK) return status;
    cJSON *whole = NULL;
    TRY(json_parse(str_text(&file->text), file->text.len, what, &whole, e));
    cJSON_Delete(whole);
    return err_set(e, STATUS_INVALID, "%s", inner.text);
}

void tokenizer_file_release(struct tokenizer_file *file) {
    str_release(&file->text);
    cJSON_Delete(file->rest);
    str_release(&file->entries.text);
    mem_free(file->entries.items);
    str_release(&file->merges.text);
    mem_free(file->merges.items);
    *file = (struct tokenizer_file){0};
}
