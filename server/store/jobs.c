/* jobs.c - rows of jobs.
 *
 * The order of columns is that of SQL_JOB_COLUMNS and SQL_JOB_UPDATE in sql.h; a new column is
 * added to the struct, to both statements and to the two functions that read and bind. */
#include "server/store/store.h"

#include "base/mem.h"
#include "server/store/store_open.h"

void job_row_release(struct job_row *row) {
    if (!row) return;
    char *const texts[] = {row->id,    row->model,     row->training_file,    row->status,
                           row->phase, row->wish,      row->request,          row->spec,
                           row->plan,  row->rank_boot, row->memory,           row->outcome,
                           row->error, row->result,    row->fine_tuned_model, row->results_file};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        mem_free(texts[i]);
    }
    *row = (struct job_row){0};
}

void job_list_release(struct job_list *list) {
    if (!list) return;
    for (int64_t i = 0; i < list->count; i++) {
        job_row_release(&list->rows[i]);
    }
    mem_free(list->rows);
    *list = (struct job_list){0};
}

static char *text_of(const struct db_query *q, int column) {
    return mem_strdup(db_text(q, column));
}

static void read_row(const struct db_query *q, struct job_row *out) {
    int c = 0;
    *out = (struct job_row){0};
    out->number = db_i64(q, c++);
    out->id = text_of(q, c++);
    out->created_at = db_i64(q, c++);
    out->queued_ms = db_i64(q, c++);
    out->started_at = db_i64(q, c++);
    out->finished_at = db_i64(q, c++);
    out->status = text_of(q, c++);
    out->phase = text_of(q, c++);
    out->wish = text_of(q, c++);
    out->request = text_of(q, c++);
    out->spec = text_of(q, c++);
    out->plan = text_of(q, c++);
    out->rank_pid = db_i64(q, c++);
    out->rank_start = db_i64(q, c++);
    out->rank_boot = text_of(q, c++);
    out->event_offset = db_i64(q, c++);
    out->seq = db_i64(q, c++);
    out->step = db_i64(q, c++);
    out->total_steps = db_i64(q, c++);
    out->loss = db_f64(q, c++);
    out->first_loss = db_f64(q, c++);
    out->tokens_per_second = db_f64(q, c++);
    out->step_seconds = db_f64(q, c++);
    out->trained_tokens = db_i64(q, c++);
    out->memory = text_of(q, c++);
    out->outcome = text_of(q, c++);
    out->error = text_of(q, c++);
    out->crashes = db_i64(q, c++);
    out->crash_step = db_i64(q, c++);
    out->result = text_of(q, c++);
    out->fine_tuned_model = text_of(q, c++);
    out->results_file = text_of(q, c++);
    out->run_ms = db_i64(q, c++);
    out->model = text_of(q, c++);
    out->training_file = text_of(q, c++);
}

/* Reads the rows that a bound statement gives, up to `limit` that the filter keeps. */
static enum status gather_rows(struct db_query *q, struct job_filter filter, int64_t limit,
                               struct job_list *out, struct err *e) {
    size_t capacity = 0;
    bool row = false;
    enum status status = STATUS_OK;
    *out = (struct job_list){0};
    while ((status = db_step(q, &row, e)) == STATUS_OK && row) {
        struct job_row one;
        read_row(q, &one);
        const bool wanted = !filter.keep || filter.keep(&one, filter.context);
        out->more = wanted && out->count == limit;
        if (!wanted || out->more) job_row_release(&one);
        if (out->more) break;
        if (!wanted) continue;
        out->rows = mem_grow(out->rows, (size_t)out->count, &capacity, sizeof *out->rows);
        out->rows[out->count++] = one;
    }
    return status;
}

enum status store_job_create(struct store *store, struct job_row *row, const char *key,
                             const char *request_hash, struct err *e) {
    struct db_query q = db_query(store->db, SQL_JOB_INSERT);
    db_bind_text(&q, row->id);
    db_bind_i64(&q, row->created_at);
    db_bind_i64(&q, row->queued_ms);
    db_bind_text(&q, row->status);
    db_bind_text(&q, row->phase);
    db_bind_text(&q, row->request);
    db_bind_text(&q, row->spec);
    db_bind_text(&q, row->model);
    db_bind_text(&q, row->training_file);
    db_bind_text(&q, key);
    db_bind_text(&q, request_hash);
    TRY(db_run(&q, NULL, e));
    struct job_row fresh = {0};
    TRY(store_job_get(store, row->id, &fresh, e));
    job_row_release(row);
    *row = fresh;
    return STATUS_OK;
}

enum status store_job_by_key(struct store *store, const char *key, char **id, char **request_hash,
                             struct err *e) {
    bool found = false;
    *id = *request_hash = NULL;
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_JOB_BY_KEY);
    db_bind_text(&q, key);
    const enum status status = db_step(&q, &found, e);
    if (found) {
        *id = text_of(&q, 0);
        *request_hash = text_of(&q, 1);
    }
    db_unlock(store->db);
    return status;
}

enum status store_job_get(struct store *store, const char *id, struct job_row *out, struct err *e) {
    bool found = false;
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_JOB_GET);
    db_bind_text(&q, id);
    const enum status status = db_step(&q, &found, e);
    if (found) read_row(&q, out);
    db_unlock(store->db);
    if (status == STATUS_OK && !found) {
        return err_set_param(e, STATUS_NOT_FOUND, "fine_tuning_job_id",
                             "No such fine-tuning job: %s", id);
    }
    return status;
}

enum status store_job_update(struct store *store, const struct job_row *row, struct err *e) {
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_JOB_UPDATE);
    db_bind_i64(&q, row->queued_ms);
    db_bind_i64(&q, row->started_at);
    db_bind_i64(&q, row->finished_at);
    db_bind_text(&q, row->status);
    db_bind_text(&q, row->phase);
    db_bind_text(&q, row->plan);
    db_bind_i64(&q, row->rank_pid);
    db_bind_i64(&q, row->rank_start);
    db_bind_text(&q, row->rank_boot);
    db_bind_i64(&q, row->event_offset);
    db_bind_i64(&q, row->seq);
    db_bind_i64(&q, row->step);
    db_bind_i64(&q, row->total_steps);
    db_bind_f64(&q, row->loss);
    db_bind_f64(&q, row->first_loss);
    db_bind_f64(&q, row->tokens_per_second);
    db_bind_f64(&q, row->step_seconds);
    db_bind_i64(&q, row->trained_tokens);
    db_bind_text(&q, row->memory);
    db_bind_text(&q, row->outcome);
    db_bind_text(&q, row->error);
    db_bind_i64(&q, row->crashes);
    db_bind_i64(&q, row->crash_step);
    db_bind_text(&q, row->result);
    db_bind_text(&q, row->fine_tuned_model);
    db_bind_text(&q, row->results_file);
    db_bind_i64(&q, row->run_ms);
    db_bind_text(&q, row->spec);
    db_bind_i64(&q, row->number);
    const enum status status = db_run(&q, NULL, e);
    db_unlock(store->db);
    return status;
}

enum status store_rank_get(struct store *store, int64_t job, int64_t rank, int64_t *offset,
                           struct err *e) {
    bool found = false;
    *offset = 0;
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_RANK_GET);
    db_bind_i64(&q, job);
    db_bind_i64(&q, rank);
    const enum status status = db_step(&q, &found, e);
    if (found) *offset = db_i64(&q, 0);
    db_unlock(store->db);
    return status;
}

enum status store_rank_put(struct store *store, int64_t job, int64_t rank, int64_t offset,
                           struct err *e) {
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_RANK_PUT);
    db_bind_i64(&q, job);
    db_bind_i64(&q, rank);
    db_bind_i64(&q, offset);
    const enum status status = db_run(&q, NULL, e);
    db_unlock(store->db);
    return status;
}

enum status store_job_wish(struct store *store, const char *id, const char *wish, struct err *e) {
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_JOB_WISH);
    db_bind_text(&q, wish);
    db_bind_text(&q, id);
    const enum status status = db_run(&q, NULL, e);
    db_unlock(store->db);
    return status;
}

enum status store_job_wish_get(struct store *store, int64_t number, char **wish, struct err *e) {
    bool found = false;
    *wish = NULL;
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_JOB_WISH_GET);
    db_bind_i64(&q, number);
    const enum status status = db_step(&q, &found, e);
    if (found) *wish = text_of(&q, 0);
    db_unlock(store->db);
    return status;
}

enum status store_job_pick(struct store *store, enum job_pick pick, int64_t limit,
                           struct job_list *out, struct err *e) {
    static const enum sql_name names[] = {
        [JOB_ACTIVE] = SQL_JOB_ACTIVE,
        [JOB_QUEUED] = SQL_JOB_QUEUED,
        [JOB_WISHED] = SQL_JOB_WISHED,
    };
    const struct job_filter all = {0};
    db_lock(store->db);
    struct db_query q = db_query(store->db, names[pick]);
    const enum status status = gather_rows(&q, all, limit, out, e);
    db_unlock(store->db);
    return status;
}

enum status store_job_list(struct store *store, const struct page *page, struct job_filter filter,
                           struct job_list *out, struct err *e) {
    int64_t number = INT64_MAX;
    *out = (struct job_list){0};
    if (page->after) {
        struct job_row row = {0};
        TRY(store_job_get(store, page->after, &row, e));
        number = row.number;
        job_row_release(&row);
    }
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_JOB_LIST);
    db_bind_i64(&q, number);
    const enum status status = gather_rows(&q, filter, page->limit, out, e);
    db_unlock(store->db);
    return status;
}

enum status store_job_ahead(struct store *store, const struct job_row *row, int64_t *ahead,
                            struct err *e) {
    bool found = false;
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_JOB_AHEAD);
    db_bind_i64(&q, row->queued_ms);
    db_bind_i64(&q, row->number);
    const enum status status = db_step(&q, &found, e);
    *ahead = found ? db_i64(&q, 0) : 0;
    db_unlock(store->db);
    return status;
}

enum status store_job_counts(struct store *store,
                             void (*see)(const char *status, int64_t count, void *context),
                             void *context, struct err *e) {
    bool row = false;
    enum status status = STATUS_OK;
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_JOB_COUNTS);
    while ((status = db_step(&q, &row, e)) == STATUS_OK && row) {
        see(db_text(&q, 0), db_i64(&q, 1), context);
    }
    db_unlock(store->db);
    return status;
}

enum status store_job_tuned(struct store *store, const char *name, struct job_list *out,
                            struct err *e) {
    const struct job_filter all = {0};
    db_lock(store->db);
    struct db_query q = db_query(store->db, name ? SQL_JOB_BY_TUNED : SQL_JOB_TUNED);
    if (name) db_bind_text(&q, name);
    const enum status status = gather_rows(&q, all, INT64_MAX, out, e);
    db_unlock(store->db);
    return status;
}

enum status store_job_untune(struct store *store, const struct job_row *row, struct err *e) {
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_JOB_UNTUNE);
    db_bind_i64(&q, row->number);
    const enum status status = db_run(&q, NULL, e);
    db_unlock(store->db);
    return status;
}
