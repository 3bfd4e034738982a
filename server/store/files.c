/* files.c - rows of uploaded files and of results.
 *
 * Deleting takes the row first: a crash in between leaves a file without a row, which the next
 * start removes. */
#include "server/store/store.h"

#include "base/file.h"
#include "base/mem.h"
#include "server/store/store_open.h"

void file_row_release(struct file_row *row) {
    if (!row) return;
    char *const texts[] = {row->id,      row->filename, row->purpose, row->status,
                           row->details, row->report,   row->path};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        mem_free(texts[i]);
    }
    *row = (struct file_row){0};
}

static void read_row(const struct db_query *q, struct file_row *out) {
    *out = (struct file_row){
        .number = db_i64(q, 0),
        .id = mem_strdup(db_text(q, 1)),
        .created_at = db_i64(q, 2),
        .filename = mem_strdup(db_text(q, 3)),
        .purpose = mem_strdup(db_text(q, 4)),
        .bytes = db_i64(q, 5),
        .status = mem_strdup(db_text(q, 6)),
        .details = mem_strdup(db_text(q, 7)),
        .report = mem_strdup(db_text(q, 8)),
        .path = mem_strdup(db_text(q, 9)),
    };
}

enum status store_file_put(struct store *store, const struct file_row *row, struct err *e) {
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_FILE_INSERT);
    db_bind_text(&q, row->id);
    db_bind_i64(&q, row->created_at);
    db_bind_text(&q, row->filename);
    db_bind_text(&q, row->purpose);
    db_bind_i64(&q, row->bytes);
    db_bind_text(&q, row->status);
    db_bind_text(&q, row->details);
    db_bind_text(&q, row->report);
    db_bind_text(&q, row->path);
    const enum status status = db_run(&q, NULL, e);
    db_unlock(store->db);
    return status;
}

enum status store_file_get(struct store *store, const char *id, struct file_row *out,
                           struct err *e) {
    bool found = false;
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_FILE_GET);
    db_bind_text(&q, id);
    const enum status status = db_step(&q, &found, e);
    if (found) read_row(&q, out);
    db_unlock(store->db);
    if (status == STATUS_OK && !found) {
        return err_set_param(e, STATUS_NOT_FOUND, "file_id", "No such file: %s", id);
    }
    return status;
}

static enum status refuse_if_used(struct store *store, const char *id, struct err *e) {
    bool used = false;
    struct db_query q = db_query(store->db, SQL_JOB_USES_FILE);
    db_bind_text(&q, id);
    TRY(db_step(&q, &used, e));
    FAIL_IF(used, STATUS_CONFLICT, "file %s is needed by job %s: cancel the job first", id,
            db_text(&q, 0));
    return STATUS_OK;
}

/* What was kept about the file: keys of inspections that begin with "report:<id>:". */
static enum status forget_reports(struct store *store, const char *id, struct err *e) {
    char *const prefix = str_format("report:%s:", id);
    struct db_query q = db_query(store->db, SQL_INSPECTION_FORGET);
    db_bind_text(&q, prefix);
    const enum status status = db_run(&q, NULL, e);
    mem_free(prefix);
    return status;
}

static enum status delete_row(struct store *store, const char *id, struct err *e) {
    TRY(refuse_if_used(store, id, e));
    TRY(forget_reports(store, id, e));
    struct db_query q = db_query(store->db, SQL_FILE_DELETE);
    db_bind_text(&q, id);
    return db_run(&q, NULL, e);
}

enum status store_file_delete(struct store *store, const char *id, struct err *e) {
    struct file_row row = {0};
    TRY(store_file_get(store, id, &row, e));
    enum status status = store_begin(store, e);
    if (status == STATUS_OK) status = store_end(store, delete_row(store, id, e), e);
    /* The row first: a crash in between leaves an orphan, which the next start removes. */
    if (status == STATUS_OK) status = file_remove_all(row.path, e);
    file_row_release(&row);
    return status;
}

/* The number of the row the page begins after. */
static enum status cursor(struct store *store, const struct page *page, int64_t *number,
                          struct err *e) {
    *number = page->ascending ? 0 : INT64_MAX;
    if (!page->after) return STATUS_OK;
    struct file_row row = {0};
    TRY(store_file_get(store, page->after, &row, e));
    *number = row.number;
    file_row_release(&row);
    return STATUS_OK;
}

void file_list_release(struct file_list *list) {
    if (!list) return;
    for (int64_t i = 0; i < list->count; i++) {
        file_row_release(&list->rows[i]);
    }
    mem_free(list->rows);
    *list = (struct file_list){0};
}

enum status store_file_list(struct store *store, const char *purpose, const struct page *page,
                            struct file_list *out, struct err *e) {
    *out = (struct file_list){0};
    int64_t number = 0;
    TRY(cursor(store, page, &number, e));
    db_lock(store->db);
    struct db_query q =
        db_query(store->db, page->ascending ? SQL_FILE_LIST_ASC : SQL_FILE_LIST_DESC);
    db_bind_text(&q, purpose);
    db_bind_i64(&q, number);
    db_bind_i64(&q, page->limit + 1);
    size_t capacity = 0;
    bool row = false;
    enum status status = STATUS_OK;
    while ((status = db_step(&q, &row, e)) == STATUS_OK && row) {
        out->more = out->count == page->limit;
        if (out->more) break;
        out->rows = mem_grow(out->rows, (size_t)out->count, &capacity, sizeof *out->rows);
        read_row(&q, &out->rows[out->count++]);
    }
    db_unlock(store->db);
    return status;
}
