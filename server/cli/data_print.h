/* data_print.h - reports and rows of a data file as text for a terminal or a file.
 *
 * Pure functions from the API's JSON to text. What rows hold is shown and never acted on: control
 * characters and those that turn the writing direction appear as their code. */
#ifndef PLIMSOLL_SERVER_CLI_DATA_PRINT_H
#define PLIMSOLL_SERVER_CLI_DATA_PRINT_H

#include <stdbool.h>

#include "base/json.h"
#include "base/str.h"

struct data_style {
    bool colour; /* else trained tokens stand between brackets */
    bool ids;    /* one line a token */
};

/* Parses an answer so that a NUL in a row, which no C string can hold, is seen as U+2400. Caller
 * frees *out with cJSON_Delete. */
enum status data_read_answer(const char *text, cJSON **out, struct err *e);
/* True if a report or a preview holds a row that cannot be used. */
bool data_has_errors(const cJSON *answer);

/* Append the text of a file.report, of a file.preview. */
void data_print_report(struct str *out, const cJSON *report, const struct data_style *style);
void data_print_rows(struct str *out, const cJSON *preview, const struct data_style *style);

/* Appends text, made safe; line feeds and tabs stay where `lines` is set. */
void data_append_safe(struct str *out, const char *text, bool lines);

#endif
