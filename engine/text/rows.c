/* rows.c - cutting a stream of bytes into rows. One window over the file: what lies before `at` is
 * done with, and the window moves on by shifting the rest to the front before it is filled again.
 */
#include "engine/text/rows.h"

#include <string.h>
#include <strings.h>

#include "base/mem.h"

enum { FILL_BYTES = 1 << 20 };

/* "a.csv", also packed. */
static bool is_named(const char *path, const char *ending) {
    static const char *const PACKINGS[] = {"", ".gz", ".zst"};
    const size_t len = strlen(path), ending_len = strlen(ending);
    for (size_t i = 0; i < COUNT_OF(PACKINGS); i++) {
        const size_t packing_len = strlen(PACKINGS[i]);
        if (len < ending_len + packing_len) continue;
        const char *const at = path + len - packing_len - ending_len;
        if (strncasecmp(at, ending, ending_len) == 0 && str_ends_with(path, PACKINGS[i]))
            return true;
    }
    return false;
}

enum status rows_open(struct rows *r, const char *path, struct err *e) {
    *r = (struct rows){
        .line = 1, .csv_named = is_named(path, ".csv"), .tsv_named = is_named(path, ".tsv")};
    return row_source_open(&r->source, path, e);
}

void rows_close(struct rows *r) {
    if (!r) return;
    row_source_close(&r->source);
    mem_free(r->buffer);
    csv_release(&r->csv);
    *r = (struct rows){0};
}

/* Gets more bytes behind `end`. Positions relative to `at` stay valid, pointers do not. */
static enum status fill(struct rows *r, struct err *e) {
    if (r->at > 0) {
        memmove(r->buffer, r->buffer + r->at, r->end - r->at);
        r->end -= r->at;
        r->at = 0;
    }
    if (r->capacity - r->end < FILL_BYTES) {
        r->capacity = r->capacity ? r->capacity * 2 : 2 * FILL_BYTES;
        r->buffer = mem_resize(r->buffer, r->capacity, 1);
    }
    size_t count = 0;
    TRY(row_source_read(&r->source, r->buffer + r->end, FILL_BYTES, &count, e));
    r->end += count;
    r->bytes += (int64_t)count;
    r->ended = count == 0;
    return STATUS_OK;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The length without white space at the end. */
static size_t trimmed(const char *text, size_t len) {
    while (len && is_space(text[len - 1])) {
        len--;
    }
    return len;
}

static bool is_line_end(char c) {
    return c == '\r' || c == '\n';
}

/* Moves `at` to the next byte that is not to be skipped, counting lines; *found is false at the end
 * of the file. */
static enum status skip(struct rows *r, bool (*skipped)(char), bool *found, struct err *e) {
    for (;;) {
        while (r->at < r->end && skipped(r->buffer[r->at])) {
            r->line += r->buffer[r->at++] == '\n';
        }
        *found = r->at < r->end;
        if (*found || r->ended) return STATUS_OK;
        TRY(fill(r, e));
    }
}

static enum status skip_space(struct rows *r, bool *found, struct err *e) {
    return skip(r, is_space, found, e);
}

static const char *foreign_encoding(const unsigned char *s, size_t len) {
    if (len >= 4 && memcmp(s, "\xff\xfe\0\0", 4) == 0) return "UTF-32 (little endian)";
    if (len >= 4 && memcmp(s, "\0\0\xfe\xff", 4) == 0) return "UTF-32 (big endian)";
    if (len >= 2 && memcmp(s, "\xff\xfe", 2) == 0) return "UTF-16 (little endian)";
    if (len >= 2 && memcmp(s, "\xfe\xff", 2) == 0) return "UTF-16 (big endian)";
    if (len >= 2 && (s[0] == '{' || s[0] == '[') && s[1] == 0) return "UTF-16 (little endian)";
    if (len >= 2 && s[0] == 0 && (s[1] == '{' || s[1] == '[')) return "UTF-16 (big endian)";
    return NULL;
}

static enum status too_long(struct err *e) {
    return err_set(e, STATUS_INVALID, "the row is longer than %d MiB, the limit for one row",
                   ROW_BYTES_MAX >> 20);
}

/* Reads one record; *found is false at the end of the file. */
static enum status next_record(struct rows *r, bool *found, struct err *e) {
    bool done = false;
    TRY(skip(r, is_line_end, found, e)); /* blank lines; spaces belong to the first field */
    if (!*found) return STATUS_OK;
    csv_begin(&r->csv, r->line);
    for (;;) {
        const enum status status =
            csv_scan(&r->csv, r->buffer + r->at, r->end - r->at, r->ended, &done, e);
        if (status != STATUS_OK) r->line = r->csv.line;
        TRY(status);
        if (r->csv.offset > ROW_BYTES_MAX) return too_long(e);
        if (done) break;
        TRY(fill(r, e));
    }
    const int64_t after = r->csv.line;
    const enum status status = csv_take(&r->csv, e);
    r->at += r->csv.offset;
    r->line = status == STATUS_OK ? after : r->csv.line;
    return status;
}

static enum status next_csv(struct rows *r, struct row *row, bool *found, struct err *e) {
    TRY(next_record(r, found, e));
    if (!*found) return STATUS_OK;
    *row = (struct row){str_text(&r->csv.json), r->csv.json.len, r->csv.fields[0].line};
    if (row->len > ROW_BYTES_MAX) return too_long(e);
    return STATUS_OK;
}

/* What does not begin like JSON may be a table. */
static enum status begin_csv(struct rows *r, struct err *e) {
    bool found;
    const enum csv_guess guess = csv_guess(r->buffer + r->at, r->end - r->at);
    FAIL_IF(r->tsv_named || (guess == CSV_TAB && !r->csv_named), STATUS_UNSUPPORTED,
            "the file is a table with tabs between its fields: save it as CSV, with commas, or as "
            "JSON Lines");
    FAIL_IF(guess == CSV_SEMICOLON && !r->csv_named, STATUS_UNSUPPORTED,
            "the file is a table with semicolons between its fields: save it as CSV, with commas, "
            "or as JSON Lines");
    r->is_csv = r->csv_named || guess == CSV_COMMA;
    return r->is_csv ? next_record(r, &found, e) : STATUS_OK;
}

static enum status begin(struct rows *r, struct err *e) {
    while (r->end < 4 && !r->ended) {
        TRY(fill(r, e));
    }
    const char *const encoding = foreign_encoding((const unsigned char *)r->buffer, r->end);
    FAIL_IF(encoding, STATUS_INVALID, "the file is %s, save it as UTF-8", encoding);
    if (r->end >= 3 && memcmp(r->buffer, "\xef\xbb\xbf", 3) == 0) r->at = 3;
    bool found;
    TRY(skip_space(r, &found, e));
    r->begun = true;
    if (!found) return STATUS_OK;
    const char first = r->buffer[r->at];
    r->array = first == '[';
    r->at += r->array;
    return first == '[' || first == '{' ? STATUS_OK : begin_csv(r, e);
}

static enum status next_line(struct rows *r, struct row *row, bool *found, struct err *e) {
    TRY(skip_space(r, found, e));
    if (!*found) return STATUS_OK;
    size_t seen = 0;
    const char *newline = NULL;
    for (;;) {
        newline = memchr(r->buffer + r->at + seen, '\n', r->end - r->at - seen);
        if (newline || r->ended) break;
        seen = r->end - r->at;
        if (seen > ROW_BYTES_MAX) return too_long(e);
        TRY(fill(r, e));
    }
    const size_t stop = newline ? (size_t)(newline - r->buffer) : r->end;
    const size_t len = stop - r->at;
    if (len > ROW_BYTES_MAX) return too_long(e);
    *row = (struct row){r->buffer + r->at, trimmed(r->buffer + r->at, len), r->line};
    r->line += newline != NULL;
    r->at = newline ? stop + 1 : stop;
    return STATUS_OK;
}

/* Where in the JSON text of an element the scan is. */
struct scan {
    size_t offset; /* from rows->at */
    int64_t depth, lines;
    bool in_string, escaped;
};

/* Goes on to the comma or bracket that ends the element. True when it is there. */
static bool scan_element(const struct rows *r, struct scan *s) {
    const char *const text = r->buffer + r->at;
    const size_t len = r->end - r->at;
    for (; s->offset < len; s->offset++) {
        const char c = text[s->offset];
        s->lines += c == '\n';
        if (s->in_string) {
            if (c == '"' && !s->escaped) s->in_string = false;
            s->escaped = c == '\\' && !s->escaped;
        } else if (c == '"') {
            s->in_string = true;
        } else if (c == '{' || c == '[') {
            s->depth++;
        } else if (s->depth > 0 && (c == '}' || c == ']')) {
            s->depth--;
        } else if (s->depth == 0 && (c == ',' || c == ']')) {
            return true;
        }
    }
    return false;
}

static enum status array_end(struct rows *r, bool *found, struct err *e) {
    r->at++;
    r->finished = true;
    TRY(skip_space(r, found, e));
    FAIL_IF(*found, STATUS_INVALID, "there is more text after the end of the array");
    return STATUS_OK;
}

static enum status next_element(struct rows *r, struct row *row, bool *found, struct err *e) {
    *found = false;
    if (r->finished) return STATUS_OK;
    TRY(skip_space(r, found, e));
    FAIL_IF(!*found, STATUS_INVALID, "the array is not closed: the file is cut off");
    if (r->buffer[r->at] == ']' && r->elements == 0) return array_end(r, found, e);
    if (r->elements > 0) { /* scan_element left `at` on the separator */
        if (r->buffer[r->at] == ']') return array_end(r, found, e);
        r->at++;
        TRY(skip_space(r, found, e));
        FAIL_IF(!*found, STATUS_INVALID, "the array is not closed: the file is cut off");
    }
    const char first = r->buffer[r->at];
    FAIL_IF(first == ',' || first == ']', STATUS_INVALID, "a comma with no row after it");
    struct scan s = {0};
    while (!scan_element(r, &s)) {
        FAIL_IF(r->ended, STATUS_INVALID, "the array is not closed: the file is cut off");
        if (s.offset > ROW_BYTES_MAX) return too_long(e);
        TRY(fill(r, e));
    }
    if (s.offset > ROW_BYTES_MAX) return too_long(e);
    *row = (struct row){r->buffer + r->at, trimmed(r->buffer + r->at, s.offset), r->line};
    r->at += s.offset;
    r->line += s.lines;
    r->elements++;
    return STATUS_OK;
}

enum status rows_next(struct rows *r, struct row *row, bool *found, struct err *e) {
    *found = false;
    if (!r->begun) TRY(begin(r, e));
    if (r->is_csv) return next_csv(r, row, found, e);
    return r->array ? next_element(r, row, found, e) : next_line(r, row, found, e);
}
