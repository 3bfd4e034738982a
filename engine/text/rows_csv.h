/* rows_csv.h - CSV (RFC 4180) as rows: a first record of names, then one row a record, handed on as
 * the JSON object that it stands for, so that everything after reading knows one form only.
 *
 * Strict: quotes begin a field or stand doubled inside one, every record has as many fields as the
 * first, lines end in LF or CRLF. Whatever else a file does is refused with line and column,
 * because a reader that guesses shifts texts into wrong columns in silence. */
#ifndef PLIMSOLL_ENGINE_TEXT_ROWS_CSV_H
#define PLIMSOLL_ENGINE_TEXT_ROWS_CSV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* A field of the record that is being read. */
struct csv_field {
    size_t begin, end; /* of its text in csv.text */
    int64_t line, column;
};

/* A record in the making, and the names. The fields are its own. */
struct csv {
    char **names; /* NULL before the header is read */
    size_t name_count;
    bool lenient; /* bytes that are not UTF-8 are left to whoever repairs them */
    /* the record */
    int state;
    size_t offset;        /* of the next byte to look at, from where the record begins */
    int64_t line, column; /* of that byte */
    struct str text;      /* of all fields, unquoted */
    struct csv_field *fields;
    size_t count, capacity;
    struct str json;
};
void csv_release(struct csv *c);

enum csv_guess { CSV_NO, CSV_COMMA, CSV_TAB, CSV_SEMICOLON };
/* Whether the first line of a file holds names of columns that rows are made of. */
enum csv_guess csv_guess(const char *text, size_t len);

/* Begins a record on a line. */
void csv_begin(struct csv *c, int64_t line);
/* Goes on in the bytes of the record text[0..len), which may have become more since the last call;
 * `ended`: there will be no more. *done: the record is complete and has c->offset bytes. An error
 * stands at c->line and names the column. */
enum status csv_scan(struct csv *c, const char *text, size_t len, bool ended, bool *done,
                     struct err *e);
/* Takes the complete record for the header, or makes c->json of it. Errors as for csv_scan. */
enum status csv_take(struct csv *c, struct err *e);

#endif
