/* rows.h - the rows of a data file: one JSON object a line, the elements of one JSON array, or the
 * records of a CSV file (rows_csv.h), which are given as JSON objects. Gives texts and physical
 * line numbers; what the texts say is not looked at here.
 *
 * Accepted: CRLF, blank lines, a UTF-8 byte-order mark, a last line without newline, gzip, zstd.
 * Memory is bounded by ROW_BYTES_MAX, whatever the file's size. Error texts name neither path nor
 * line (the caller knows both: rows->line) and never show what a row says. */
#ifndef PLIMSOLL_ENGINE_TEXT_ROWS_H
#define PLIMSOLL_ENGINE_TEXT_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/text/rows_csv.h"
#include "engine/text/rows_source.h"

/* A row longer than this is refused: longer than any context window, and short enough to hold in
 * memory. */
enum { ROW_BYTES_MAX = 64 << 20 };

/* One row. `text` is not terminated. */
struct row {
    const char *text;
    size_t len;
    int64_t line; /* physical line it begins on, from 1 */
};

/* An open file of rows. The fields are its own, except `line`, `bytes` and `array`, which may be
 * read. */
struct rows {
    struct row_source source;
    char *buffer;
    size_t capacity, at, end;
    int64_t line;              /* of the byte at `at`, from 1: where an error is */
    int64_t bytes;             /* unpacked so far */
    bool ended;                /* the source has nothing more */
    bool begun;                /* the start of the file has been looked at */
    bool array;                /* the file is one JSON array */
    bool csv_named, tsv_named; /* by the file's name */
    bool is_csv;
    struct csv csv;
    bool finished; /* the array's closing bracket has been read */
    int64_t elements;
};

/* Opens the file; errors of row_source_open. Afterwards r->csv.lenient may be set, for who repairs
 * what is not UTF-8. */
enum status rows_open(struct rows *r, const char *path, struct err *e);
void rows_close(struct rows *r);
/* Reads the next row; *found is false at the end. row->text points into `r` until the next call.
 * STATUS_INVALID: wrong encoding, row too long, array not well formed, packed data damaged; reading
 * cannot go on after it. */
enum status rows_next(struct rows *r, struct row *row, bool *found, struct err *e);

#endif
