/* dataset_check.c - what can be said about a data file without a model, for uploads: encoding,
 * JSON, format, fields. Goes on after a bad row, so that one upload shows many errors; stops only
 * where rows can no longer be told apart. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/dataset.h"
#include "engine/text/dataset_row.h"
#include "engine/text/rows.h"
#include "engine/text/rows_json.h"

enum { GROUPS_MAX = 20, FIRST_ROWS = 3, FIRST_ROW_BYTES_MAX = 64 << 10 };

/* Errors that differ only in their place: "412 rows: messages[].role: unknown role" says more than
 * the first fifty of them. */
struct error_group {
    char *message;
    int64_t rows, first_line;
};

struct check {
    cJSON *errors, *first_rows;
    struct error_group groups[GROUPS_MAX];
    int64_t group_count;
    int64_t errors_max, error_count, rows, rows_extra_keys;
    enum data_format format;
    int64_t first_line;
    struct row_json json;
};

/* The message without the numbers of a place: "messages[3]" and "column 17" lose them. */
static char *message_kind(const char *message) {
    struct str kind = {0};
    for (const char *at = message; *at; at++) {
        const bool place = at > message && (at[-1] == '[' || at[-1] == ' ');
        const size_t digits = place ? strspn(at, "0123456789") : 0;
        if (digits && (at[digits] == ']' || at[digits] == ':' || at[digits] == ' ')) {
            str_append_char(&kind, 'N');
            at += digits - 1;
        } else {
            str_append_char(&kind, *at);
        }
    }
    return str_take(&kind);
}

static void count_error(struct check *c, int64_t line, const char *message) {
    char *const kind = message_kind(message);
    int64_t i = 0;
    while (i < c->group_count && !str_equal(c->groups[i].message, kind)) {
        i++;
    }
    if (i < GROUPS_MAX) {
        if (i == c->group_count) {
            c->groups[c->group_count++] =
                (struct error_group){.message = mem_strdup(kind), .first_line = line};
        }
        c->groups[i].rows++;
    }
    mem_free(kind);
}

static cJSON *groups_to_json(struct check *c) {
    cJSON *const list = cJSON_CreateArray();
    for (int64_t i = 0; i < c->group_count; i++) {
        cJSON *const item = cJSON_CreateObject();
        json_add_string(item, "message", c->groups[i].message);
        json_add_i64(item, "rows", c->groups[i].rows);
        json_add_i64(item, "first_line", c->groups[i].first_line);
        cJSON_AddItemToArray(list, item);
        mem_free(c->groups[i].message);
    }
    return list;
}

static void add_error(struct check *c, int64_t line, const struct err *flaw) {
    count_error(c, line, flaw->text);
    if (c->error_count++ >= c->errors_max) return;
    cJSON *const item = cJSON_CreateObject();
    json_add_i64(item, "line", line);
    json_add_string(item, "field", flaw->param[0] ? flaw->param : NULL);
    json_add_string(item, "message", flaw->text);
    cJSON_AddItemToArray(c->errors, item);
}

/* Rows are shown as their own text, exactly; cJSON would round their numbers. */
static void show_row(struct check *c, const struct row *row) {
    if (cJSON_GetArraySize(c->first_rows) >= FIRST_ROWS || row->len > FIRST_ROW_BYTES_MAX) return;
    char *const text = mem_strndup(row->text, row->len);
    cJSON_AddItemToArray(c->first_rows, cJSON_CreateRaw(text));
    mem_free(text);
}

static void check_row(struct check *c, const struct row *row) {
    struct err flaw = {0};
    struct data_row read = {0};
    c->rows++;
    enum status status = row_json_parse(&c->json, row, &flaw);
    if (status == STATUS_OK) show_row(c, row);
    if (status == STATUS_OK && c->format == FORMAT_AUTO) {
        status = data_row_detect(&c->json, &c->format, &flaw);
        c->first_line = row->line;
    }
    if (status == STATUS_OK)
        status = data_row_read(&read, &c->json, c->format, c->first_line, &flaw);
    if (status != STATUS_OK) add_error(c, c->json.flaw_line, &flaw);
    c->rows_extra_keys += read.extra_keys > 0;
    data_row_release(&read);
}

static void check_rows(struct check *c, struct rows *rows) {
    for (;;) {
        struct err flaw = {0};
        struct row row;
        bool found;
        if (rows_next(rows, &row, &found, &flaw) != STATUS_OK) {
            add_error(c, rows->line, &flaw);
            return;
        }
        if (!found) break;
        check_row(c, &row);
    }
    if (c->rows == 0) add_error(c, 1, &(struct err){.text = "the file has no rows"});
}

enum status dataset_check(const char *path, int64_t errors_max, cJSON **report, struct err *e) {
    struct rows rows = {0};
    struct err flaw = {0};
    int64_t bytes = 0;
    *report = NULL;
    TRY(file_size(path, &bytes, e));
    const enum status opening = rows_open(&rows, path, &flaw);
    FAIL_IF(opening != STATUS_OK && opening != STATUS_UNSUPPORTED, opening, "%s", flaw.text);
    struct check c = {
        .errors_max = errors_max, .errors = cJSON_CreateArray(), .first_rows = cJSON_CreateArray()};
    if (opening == STATUS_OK) {
        check_rows(&c, &rows);
    } else {
        add_error(&c, 1, &flaw);
    }
    rows_close(&rows);
    row_json_release(&c.json);
    *report = cJSON_CreateObject();
    json_add_string(*report, "format", c.format == FORMAT_AUTO ? NULL : data_format_name(c.format));
    json_add_i64(*report, "rows", c.rows);
    json_add_i64(*report, "bytes", bytes);
    json_add_i64(*report, "rows_extra_keys", c.rows_extra_keys);
    json_add_i64(*report, "error_count", c.error_count);
    cJSON_AddItemToObject(*report, "first_rows", c.first_rows);
    cJSON_AddItemToObject(*report, "error_groups", groups_to_json(&c));
    cJSON_AddItemToObject(*report, "errors", c.errors);
    return STATUS_OK;
}
