/* files.c - /v1/files.
 *
 * A file is checked by the engine before its upload is answered, so that the answer already tells
 * whether it can be trained on, and if not, which line is wrong. It is stored under a name made
 * here: the user's file name is data and goes nowhere near a path. */
#include "server/api/api.h"

#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/run/process.h"

/* A big file takes the engine a while to read; the official client waits ten minutes. */
enum {
    CHECK_LIMIT_MS = 500000,
    REPORT_BYTES_MAX = 1 << 20,
    FILE_NAME_MAX = 512,
    LIST_PRESET = 10000
};

static cJSON *to_json(const struct file_row *row) {
    cJSON *file = cJSON_CreateObject();
    json_add_string(file, "id", row->id);
    json_add_string(file, "object", "file");
    json_add_i64(file, "bytes", row->bytes);
    json_add_i64(file, "created_at", row->created_at);
    json_add_string(file, "filename", row->filename);
    json_add_string(file, "purpose", row->purpose);
    json_add_string(file, "status", row->status);
    json_add_string(file, "status_details", row->details);
    if (row->report) cJSON_AddItemToObject(file, "plimsoll", api_parsed(row->report));
    return file;
}

/* The last endings of the user's name that say how to read the file; the rest of the name goes
 * nowhere near a path. */
static const char *extension_of(const char *filename) {
    static const char *const known[] = {".jsonl.gz", ".jsonl.zst", ".jsonl", ".json", ".csv.gz",
                                        ".csv",      ".parquet",   ".txt",   ".gz",   ".zst"};
    const size_t len = strlen(filename);
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        const size_t part = strlen(known[i]);
        if (len >= part && strcasecmp(filename + len - part, known[i]) == 0) return known[i];
    }
    return ".jsonl";
}

/* "line 4: messages: ..." from the report's first error. */
static char *describe(const cJSON *error) {
    int64_t line = 0;
    const char *field = NULL, *message = NULL;
    struct err ignored = {0};
    (void)json_get_i64(error, "line", &line, &ignored);
    (void)json_get_string(error, "field", &field, &ignored);
    (void)json_get_string(error, "message", &message, &ignored);
    struct str text = {0};
    if (line > 0) str_appendf(&text, "line %lld: ", (long long)line);
    if (field && *field && !(message && str_starts_with(message, field))) {
        str_appendf(&text, "%s: ", field);
    }
    str_append(&text, message ? message : "not usable");
    return str_take(&text);
}

/* Runs the check and fills status, details and report. */
static enum status check(const struct app *app, struct file_row *row, struct err *e) {
    const char *const argv[] = {app->engine, "check", row->path, NULL};
    struct process_output output = {0};
    cJSON *report = NULL;
    struct str text = {0};
    enum status status = STATUS_OK;
    const struct process_question question = {
        .argv = argv, .bytes_max = REPORT_BYTES_MAX, .limit_ms = CHECK_LIMIT_MS};
    GUARD(process_capture(&question, &output, e));
    GUARD_IF(output.exit_code != 0, STATUS_INTERNAL, "checking the file failed (exit code %d): %s",
             output.exit_code, str_text(&output.err));
    GUARD(json_parse(str_text(&output.out), output.out.len, "the check's report", &report, e));
    const cJSON *const first = cJSON_GetArrayItem(json_member(report, "errors"), 0);
    json_append(&text, report);
    row->report = str_take(&text);
    row->status = mem_strdup(first ? "error" : "processed");
    row->details = first ? describe(first) : NULL;
done:
    cJSON_Delete(report);
    str_release(&text);
    process_output_release(&output);
    return status;
}

static enum status checked_purpose(const struct multipart *form, struct err *e) {
    const char *const purpose = multipart_value(form, "purpose");
    if (!purpose) {
        return err_set_param(e, STATUS_INVALID, "purpose",
                             "the field `purpose` is missing: fine-tune");
    }
    if (strcmp(purpose, "fine-tune") != 0) {
        return err_set_param(e, STATUS_INVALID, "purpose",
                             "purpose is \"%.40s\"; this server keeps files for fine-tune",
                             purpose);
    }
    return STATUS_OK;
}

/* The name as data: valid UTF-8, no control characters, of sane length. */
static enum status checked_name(const char *name, struct err *e) {
    const size_t len = strlen(name);
    bool fine = len > 0 && len <= FILE_NAME_MAX && utf8_valid_prefix(name, len) == len;
    for (size_t i = 0; i < len && fine; i++) {
        fine = (unsigned char)name[i] >= 0x20 && name[i] != 0x7F;
    }
    if (fine) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, "file",
                         "the file's name must be 1 to %d bytes of printable text", FILE_NAME_MAX);
}

static enum status keep_file(const struct app *app, struct http_request *q, struct file_row *row,
                             struct err *e) {
    char *arrived = mem_strdup(q->upload.path);
    enum status status = file_writer_commit(&q->upload, e);
    if (status == STATUS_OK) status = file_rename(arrived, row->path, e);
    mem_free(arrived);
    if (status == STATUS_OK) status = check(app, row, e);
    if (status == STATUS_OK) status = store_file_put(app->store, row, e);
    struct err ignored = {0};
    if (status != STATUS_OK) (void)file_remove_all(row->path, &ignored);
    return status;
}

enum status api_files_create(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e) {
    const struct app *const app = context;
    TRY(checked_purpose(&q->form, e));
    TRY(checked_name(q->form.file_name, e));
    if (q->upload.bytes == 0) {
        return err_set_param(e, STATUS_INVALID, "file", "%s is empty", q->form.file_name);
    }
    char id[64];
    store_new_id(id, "file-");
    struct file_row row = {
        .id = mem_strdup(id),
        .filename = mem_strdup(q->form.file_name),
        .purpose = mem_strdup("fine-tune"),
        .bytes = (int64_t)q->upload.bytes,
        .created_at = clock_unix_ms() / 1000,
        .path = store_file_path(app->store, id, extension_of(q->form.file_name)),
    };
    const enum status status = keep_file(app, q, &row, e);
    if (status == STATUS_OK) http_reply_json(r, to_json(&row));
    file_row_release(&row);
    return status;
}

enum status api_files_list(void *context, struct http_request *q, struct http_reply *r,
                           struct err *e) {
    const struct app *const app = context;
    struct page page;
    TRY(api_page_of(q, LIST_PRESET, &page, e));
    const char *const order = http_query(q, "order");
    page.ascending = order && strcmp(order, "asc") == 0;
    struct file_list list = {0};
    const enum status status =
        store_file_list(app->store, http_query(q, "purpose"), &page, &list, e);
    cJSON *data = cJSON_CreateArray();
    for (int64_t i = 0; i < list.count; i++) {
        cJSON_AddItemToArray(data, to_json(&list.rows[i]));
    }
    http_reply_json(r, api_list(data, list.more));
    file_list_release(&list);
    return status;
}

enum status api_files_get(void *context, struct http_request *q, struct http_reply *r,
                          struct err *e) {
    const struct app *const app = context;
    struct file_row row = {0};
    TRY(store_file_get(app->store, q->parameters[0], &row, e));
    http_reply_json(r, to_json(&row));
    file_row_release(&row);
    return STATUS_OK;
}

enum status api_files_delete(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e) {
    const struct app *const app = context;
    TRY(store_file_delete(app->store, q->parameters[0], e));
    cJSON *reply = cJSON_CreateObject();
    json_add_string(reply, "id", q->parameters[0]);
    json_add_string(reply, "object", "file");
    json_add_bool(reply, "deleted", true);
    http_reply_json(r, reply);
    return STATUS_OK;
}

enum status api_files_content(void *context, struct http_request *q, struct http_reply *r,
                              struct err *e) {
    const struct app *const app = context;
    struct file_row row = {0};
    TRY(store_file_get(app->store, q->parameters[0], &row, e));
    const int fd = open(row.path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    const enum status status =
        fd < 0 ? err_set(e, STATUS_NOT_FOUND, "the content of %s is gone", row.id)
               : file_size(row.path, &r->fd_bytes, e);
    if (fd >= 0) r->fd_plus_1 = fd + 1;
    r->content_type = "application/octet-stream";
    http_reply_header(r, "Content-Disposition", "attachment");
    file_row_release(&row);
    return status;
}
