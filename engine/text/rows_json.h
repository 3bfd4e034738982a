/* rows_json.h - the JSON text of one row as a flat list of values that point into it. Nothing is
 * converted before it is asked for: numbers stay texts (1 and 1.0 apart, any size), strings may
 * hold NUL, key order is kept. This is why rows do not go through cJSON, which loses all three.
 *
 * Strict RFC 8259: valid UTF-8, no lone surrogates, depth at most ROW_DEPTH_MAX. A key that is
 * written twice in one object is an error when it is looked up: which one was meant would be a
 * guess. */
#ifndef PLIMSOLL_ENGINE_TEXT_ROWS_JSON_H
#define PLIMSOLL_ENGINE_TEXT_ROWS_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "engine/text/rows.h"

/* Deeper than any schema of a tool; more values than any conversation. Both bound what a row can
 * cost. */
enum { ROW_DEPTH_MAX = 200, ROW_VALUES_MAX = 2 << 20 };

enum row_kind { ROW_NULL, ROW_FALSE, ROW_TRUE, ROW_NUMBER, ROW_STRING, ROW_ARRAY, ROW_OBJECT };

/* A value. Children of a container follow it; an object's are key, value, key, value. */
struct row_value {
    uint32_t begin, end; /* its text, quotes included */
    uint32_t next;       /* index of the value after it and all that is in it */
    uint8_t kind;        /* enum row_kind */
    bool escaped;        /* a string with a backslash in it */
};

/* A parsed row; values[0] is the row itself. Memory is reused by the next parse. */
struct row_json {
    const char *text;
    size_t len;
    struct row_value *values;
    size_t count, capacity;
    int64_t flaw_line; /* after an error: the physical line it is on */
};

/* Parses exactly one JSON value. `row` must stay while `j` is used. STATUS_INVALID names the column
 * and what is wrong. Caller frees with row_json_release, also after an error. */
enum status row_json_parse(struct row_json *j, const struct row *row, struct err *e);
void row_json_release(struct row_json *j);

enum row_kind row_kind(const struct row_json *j, size_t value);
/* What a kind is called in an error: "a string". */
const char *row_kind_name(enum row_kind kind);
/* Appends the value's text as it is written. */
void row_append_raw(const struct row_json *j, size_t value, struct str *out);
/* Appends what a string says; it may hold NUL bytes. */
void row_append_string(const struct row_json *j, size_t value, struct str *out);
/* Whether a string says exactly this. */
bool row_string_is(const struct row_json *j, size_t value, const char *text);
/* Finds the member of an object: *value is 0 when there is none. STATUS_INVALID when the key is
 * there twice. */
enum status row_member(const struct row_json *j, size_t object, const char *key, size_t *value,
                       struct err *e);
/* For loops over the children of a container: for (v = row_first(j, c); v; v = row_after(j, c, v)).
 * In an object they step from key to key; the value of key k is k + 1. */
size_t row_first(const struct row_json *j, size_t container);
size_t row_after(const struct row_json *j, size_t container, size_t child);

#endif
