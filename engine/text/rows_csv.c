/* rows_csv.c - a state machine over bytes, and records to JSON.
 *
 * A record is scanned once, its fields collected on the way, so that a field that does not fit into
 * what has been read so far costs nothing but waiting for more. */
#include "engine/text/rows_csv.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/text/chat.h"
#include "engine/text/rows_json.h"

enum state { FIELD_START, PLAIN, QUOTED, QUOTE_SEEN, RETURN_SEEN };
enum { COLUMNS_MAX = 1000, NAME_SHOWN = 40 };

void csv_release(struct csv *c) {
    if (!c) return;
    for (size_t i = 0; i < c->name_count; i++) {
        mem_free(c->names[i]);
    }
    mem_free(c->names);
    mem_free(c->fields);
    str_release(&c->text);
    str_release(&c->json);
    *c = (struct csv){0};
}

static bool is_known_name(const char *name, size_t len) {
    static const char *const KNOWN[] = {"text",       "messages",    "conversations",   "prompt",
                                        "completion", "instruction", "output",          "chosen",
                                        "rejected",   "question",    "chosen_response", "input"};
    for (size_t i = 0; i < COUNT_OF(KNOWN); i++) {
        if (strlen(KNOWN[i]) == len && memcmp(KNOWN[i], name, len) == 0) return true;
    }
    return false;
}

/* Whether a field of the line, cut at this separator, is a name that rows know. */
static bool names_with(const char *text, size_t len, char separator) {
    size_t begin = 0;
    for (size_t at = 0; at <= len; at++) {
        if (at < len && text[at] != separator) continue;
        size_t from = begin, to = at;
        if (to - from >= 2 && text[from] == '"' && text[to - 1] == '"') from++, to--;
        if (is_known_name(text + from, to - from)) return true;
        begin = at + 1;
    }
    return false;
}

enum csv_guess csv_guess(const char *text, size_t len) {
    const char *const newline = memchr(text, '\n', len);
    if (newline) len = (size_t)(newline - text);
    if (len && text[len - 1] == '\r') len--;
    if (names_with(text, len, ',')) return CSV_COMMA;
    if (names_with(text, len, '\t')) return CSV_TAB;
    return names_with(text, len, ';') ? CSV_SEMICOLON : CSV_NO;
}

static void begin_field(struct csv *c) {
    c->fields = mem_grow(c->fields, c->count, &c->capacity, sizeof *c->fields);
    c->fields[c->count++] = (struct csv_field){
        .begin = c->text.len, .end = c->text.len, .line = c->line, .column = c->column};
    c->state = FIELD_START;
}

void csv_begin(struct csv *c, int64_t line) {
    c->line = line;
    c->column = 1;
    c->offset = c->count = 0;
    str_clear(&c->text);
    begin_field(c);
}

static enum status flaw(const struct csv *c, const char *what, struct err *e) {
    return err_set(e, STATUS_INVALID, "not well-formed CSV at column %lld: %s",
                   (long long)c->column, what);
}

/* One byte outside of quotes. */
static enum status step_outside(struct csv *c, char byte, bool *done, struct err *e) {
    if (c->state == RETURN_SEEN && byte != '\n')
        return flaw(c, "a carriage return without a line feed: save the file with other line ends",
                    e);
    if (byte == '"') {
        if (c->state == FIELD_START) {
            c->state = QUOTED;
            return STATUS_OK;
        }
        return flaw(c, "a quote inside a field: put the whole field in quotes and double it", e);
    }
    if (byte == '\n' || byte == ',') {
        c->fields[c->count - 1].end = c->text.len;
        *done = byte == '\n';
        return STATUS_OK;
    }
    if (byte == '\r') {
        c->state = RETURN_SEEN;
        return STATUS_OK;
    }
    if (c->state == QUOTE_SEEN)
        return flaw(c, "text after the quote that closes a field: a quote inside must be doubled",
                    e);
    c->state = PLAIN;
    str_append_char(&c->text, byte);
    return STATUS_OK;
}

static void step_quoted(struct csv *c, char byte) {
    if (byte == '"') {
        c->state = QUOTE_SEEN;
    } else {
        str_append_char(&c->text, byte);
    }
}

static enum status step(struct csv *c, char byte, bool *done, struct err *e) {
    if (c->state == QUOTED) {
        step_quoted(c, byte);
    } else if (c->state == QUOTE_SEEN && byte == '"') {
        c->state = QUOTED; /* a doubled quote */
        str_append_char(&c->text, byte);
    } else {
        TRY(step_outside(c, byte, done, e));
    }
    c->offset++;
    c->column += ((unsigned char)byte & 0xC0) != 0x80;
    if (byte == '\n') {
        c->line++;
        c->column = 1;
    }
    if (byte == ',' && c->state != QUOTED) {
        FAIL_IF(c->count == COLUMNS_MAX, STATUS_INVALID, "the record has more than %d fields",
                COLUMNS_MAX);
        begin_field(c);
    }
    return STATUS_OK;
}

/* The file ends inside the record. */
static enum status finish(struct csv *c, struct err *e) {
    const struct csv_field *const last = &c->fields[c->count - 1];
    if (c->state == QUOTED) {
        const int64_t line = last->line;
        c->column = last->column;
        c->line = line;
        return flaw(c, "the quote that opens this field is never closed", e);
    }
    c->fields[c->count - 1].end = c->text.len;
    return STATUS_OK;
}

enum status csv_scan(struct csv *c, const char *text, size_t len, bool ended, bool *done,
                     struct err *e) {
    *done = false;
    while (c->offset < len && !*done) {
        if (c->state == QUOTED) { /* most bytes of a data file are here */
            const char *const rest = text + c->offset;
            size_t plain = 0;
            while (plain < len - c->offset && rest[plain] != '"' && rest[plain] != '\n') {
                c->column += ((unsigned char)rest[plain++] & 0xC0) != 0x80;
            }
            str_append_bytes(&c->text, rest, plain);
            c->offset += plain;
            if (c->offset == len) break;
        }
        TRY(step(c, text[c->offset], done, e));
    }
    if (*done || !ended) return STATUS_OK;
    *done = true;
    return finish(c, e);
}

/* An error about a field stands where the field begins. */
static enum status field_flaw(struct csv *c, size_t index, const char *what, struct err *e) {
    c->line = c->fields[index].line;
    c->column = c->fields[index].column;
    const char *const name = c->names && index < c->name_count ? c->names[index] : "";
    const size_t len =
        strlen(name) < NAME_SHOWN ? strlen(name) : utf8_valid_prefix(name, NAME_SHOWN);
    return err_set(e, STATUS_INVALID, "not well-formed CSV at column %lld%s%.*s%s: %s",
                   (long long)c->column, len ? " (field \"" : "", (int)len, name, len ? "\")" : "",
                   what);
}

static const char *field_text(const struct csv *c, size_t index) {
    return str_text(&c->text) + c->fields[index].begin;
}

static size_t field_len(const struct csv *c, size_t index) {
    return c->fields[index].end - c->fields[index].begin;
}

static enum status check_utf8(struct csv *c, size_t index, struct err *e) {
    const size_t len = field_len(c, index);
    if (c->lenient || utf8_valid_prefix(field_text(c, index), len) == len) return STATUS_OK;
    return field_flaw(c, index, "bytes that are not valid UTF-8: save the file as UTF-8", e);
}

static enum status take_header(struct csv *c, struct err *e) {
    c->names = mem_new(c->count, sizeof *c->names);
    for (size_t i = 0; i < c->count; i++) {
        const size_t len = field_len(c, i);
        if (len == 0 || memchr(field_text(c, i), 0, len))
            return field_flaw(c, i, "a column without a name: the first line must name them", e);
        if (utf8_valid_prefix(field_text(c, i), len) != len)
            return field_flaw(c, i, "bytes that are not valid UTF-8: save the file as UTF-8", e);
        c->names[i] = mem_strndup(field_text(c, i), len);
        c->name_count = i + 1;
        for (size_t k = 0; k < i; k++) {
            if (str_equal(c->names[k], c->names[i]))
                return field_flaw(c, i, "two columns have this name", e);
        }
    }
    return STATUS_OK;
}

/* Columns whose fields are JSON, as no CSV has lists of its own. */
static bool holds_json(const char *name) {
    static const char *const NAMES[] = {"messages", "conversations",    "functions",
                                        "history",  "preferred_output", "non_preferred_output"};
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        if (str_equal(name, NAMES[i])) return true;
    }
    return false;
}

static enum status append_json_field(struct csv *c, size_t index, struct err *e) {
    const char *text = field_text(c, index);
    size_t len = field_len(c, index);
    struct row_json json = {0};
    struct err inner = {0};
    chat_trim(&text, &len);
    if (len == 0) {
        str_append(&c->json, "null");
        return STATUS_OK;
    }
    enum status status = row_json_parse(&json, &(struct row){text, len, 1}, &inner);
    if (status != STATUS_OK) status = field_flaw(c, index, inner.text, e);
    if (status == STATUS_OK) str_append_bytes(&c->json, text, len);
    row_json_release(&json);
    return status;
}

enum status csv_take(struct csv *c, struct err *e) {
    if (!c->names) return take_header(c, e);
    if (c->count != c->name_count) {
        const size_t last = c->count < c->name_count ? c->count - 1 : c->name_count;
        char what[96];
        const int len = snprintf(what, sizeof what, "the record has %zu fields, the first line %zu",
                                 c->count, c->name_count);
        ASSERT(len > 0);
        return field_flaw(c, last, what, e);
    }
    str_clear(&c->json);
    str_append_char(&c->json, '{');
    for (size_t i = 0; i < c->count; i++) {
        if (i) str_append_char(&c->json, ',');
        TRY(check_utf8(c, i, e));
        chat_append_quoted(&c->json, c->names[i], strlen(c->names[i]));
        str_append_char(&c->json, ':');
        if (holds_json(c->names[i])) {
            TRY(append_json_field(c, i, e));
        } else {
            chat_append_quoted(&c->json, field_text(c, i), field_len(c, i));
        }
    }
    str_append_char(&c->json, '}');
    return STATUS_OK;
}
