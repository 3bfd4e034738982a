/* series.c - the event stream and the series in sqlite.
 *
 * A scan holds the store's lock, so it does nothing but hand rows to its caller. */
#include "server/store/series.h"

#include "base/mem.h"
#include "server/store/store_open.h"

enum { PRUNE_EVERY = 1000 };

static const char *const CATEGORIES[MEMORY_CATEGORIES] = {
    "weights",     "adapters",  "gradients",     "optimizer",
    "activations", "workspace", "communication", "staging",
};

static const char *const VALUES[MEMORY_VALUES] = {
    [MEMORY_ALLOCATED] = "allocated",
    [MEMORY_RESERVED] = "reserved",
    [MEMORY_PEAK] = "peak",
    [MEMORY_STEP_PEAK] = "step_peak",
    [MEMORY_CAPACITY] = "capacity",
    [MEMORY_LARGEST_FREE] = "largest_free_block",
    [MEMORY_OVERHEAD] = "overhead",
    [MEMORY_OTHERS] = "others",
    [MEMORY_DEVICE_USED] = "device_used",
    [MEMORY_DEVICE_TOTAL] = "device_total",
    [MEMORY_HOST_USED] = "host_used",
};

const char *memory_value_name(enum memory_value value) {
    ASSERT(value < MEMORY_VALUES);
    return VALUES[value];
}

const char *memory_category_name(int index) {
    ASSERT(index >= 0 && index < MEMORY_CATEGORIES);
    return CATEGORIES[index];
}

void event_rows_free(struct event_row *rows, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        mem_free(rows[i].kind);
        mem_free(rows[i].data);
    }
    mem_free(rows);
}

static enum status prune(struct store *store, int64_t job, int64_t seq, struct err *e) {
    struct db_query q = db_query(store->db, SQL_EVENT_PRUNE);
    db_bind_i64(&q, job);
    db_bind_i64(&q, seq);
    TRY(db_run(&q, NULL, e));
    q = db_query(store->db, SQL_EVENT_PRUNED);
    db_bind_i64(&q, job);
    db_bind_i64(&q, seq);
    return db_run(&q, NULL, e);
}

static enum status add_event(struct store *store, struct job_row *job, const struct event_row *row,
                             struct err *e) {
    struct db_query q = db_query(store->db, SQL_EVENT_INSERT);
    db_bind_i64(&q, job->number);
    db_bind_i64(&q, job->seq + 1);
    db_bind_text(&q, row->kind);
    db_bind_i64(&q, row->time_ms);
    db_bind_text(&q, row->data);
    TRY(db_run(&q, NULL, e));
    job->seq++;
    if (job->seq % PRUNE_EVERY || job->seq <= EVENTS_KEPT) return STATUS_OK;
    return prune(store, job->number, job->seq - EVENTS_KEPT, e);
}

enum status store_event_add(struct store *store, struct job_row *job, const char *kind,
                            int64_t time_ms, const char *data, struct err *e) {
    char *const kind_copy = mem_strdup(kind);
    char *const data_copy = mem_strdup(data);
    const struct event_row row = {.kind = kind_copy, .data = data_copy, .time_ms = time_ms};
    db_lock(store->db);
    const enum status status = add_event(store, job, &row, e);
    db_unlock(store->db);
    mem_free(kind_copy);
    mem_free(data_copy);
    return status;
}

static enum status read_events(struct store *store, enum sql_name name, struct event_cursor at,
                               struct event_row **rows, int64_t *count, struct err *e) {
    size_t capacity = 0;
    bool row = false;
    enum status status = STATUS_OK;
    *rows = NULL;
    *count = 0;
    db_lock(store->db);
    struct db_query q = db_query(store->db, name);
    db_bind_i64(&q, at.job);
    db_bind_i64(&q, at.seq);
    if (name == SQL_EVENT_OF_KINDS) db_bind_text(&q, at.kinds);
    db_bind_i64(&q, at.limit);
    while ((status = db_step(&q, &row, e)) == STATUS_OK && row) {
        *rows = mem_grow(*rows, (size_t)*count, &capacity, sizeof **rows);
        (*rows)[(*count)++] = (struct event_row){
            .seq = db_i64(&q, 0),
            .kind = mem_strdup(db_text(&q, 1)),
            .time_ms = db_i64(&q, 2),
            .data = mem_strdup(db_text(&q, 3)),
        };
    }
    db_unlock(store->db);
    return status;
}

enum status store_events_after(struct store *store, struct event_cursor at, struct event_row **rows,
                               int64_t *count, struct err *e) {
    return read_events(store, SQL_EVENT_AFTER, at, rows, count, e);
}

enum status store_events_before(struct store *store, struct event_cursor at,
                                struct event_row **rows, int64_t *count, struct err *e) {
    return read_events(store, at.kinds ? SQL_EVENT_OF_KINDS : SQL_EVENT_BEFORE, at, rows, count, e);
}

enum status store_events_lost(struct store *store, int64_t job, int64_t seq, bool *lost,
                              struct err *e) {
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_EVENT_LOST);
    db_bind_i64(&q, job);
    db_bind_i64(&q, seq);
    const enum status status = db_step(&q, lost, e);
    db_unlock(store->db);
    return status;
}

/* Runs the bound statement and gives the lock back. */
static enum status run_and_unlock(struct store *store, struct db_query *q, struct err *e) {
    const enum status status = db_run(q, NULL, e);
    db_unlock(store->db);
    return status;
}

static struct db_query lock_and_query(struct store *store, enum sql_name name, int64_t job) {
    db_lock(store->db);
    struct db_query q = db_query(store->db, name);
    db_bind_i64(&q, job);
    return q;
}

enum status store_step_put(struct store *store, int64_t job, const struct step_row *row,
                           struct err *e) {
    struct db_query q = lock_and_query(store, SQL_STEP_PUT, job);
    db_bind_i64(&q, row->step);
    db_bind_f64(&q, row->loss);
    db_bind_f64(&q, row->grad_norm);
    db_bind_f64(&q, row->learning_rate);
    db_bind_f64(&q, row->tokens_per_second);
    db_bind_f64(&q, row->accuracy);
    return run_and_unlock(store, &q, e);
}

enum status store_memory_put(struct store *store, int64_t job, const struct memory_row *row,
                             struct err *e) {
    struct db_query q = lock_and_query(store, SQL_MEMORY_PUT, job);
    db_bind_i64(&q, row->rank);
    db_bind_i64(&q, row->step);
    db_bind_i64(&q, row->time_ms);
    for (int i = 0; i < MEMORY_VALUES; i++) {
        db_bind_i64(&q, row->values[i]);
    }
    for (int i = 0; i < MEMORY_CATEGORIES; i++) {
        db_bind_i64(&q, row->categories[i]);
    }
    return run_and_unlock(store, &q, e);
}

enum status store_latest_put(struct store *store, int64_t job, const struct latest_row *row,
                             struct err *e) {
    struct db_query q = lock_and_query(store, SQL_LATEST_PUT, job);
    db_bind_i64(&q, row->rank);
    db_bind_text(&q, row->kind);
    db_bind_i64(&q, row->time_ms);
    db_bind_text(&q, row->data);
    return run_and_unlock(store, &q, e);
}

enum status store_latest_scan(struct store *store, int64_t job, struct latest_seer seer,
                              struct err *e) {
    bool row = false;
    enum status status = STATUS_OK;
    struct db_query q = lock_and_query(store, SQL_LATEST_LIST, job);
    while ((status = db_step(&q, &row, e)) == STATUS_OK && row) {
        const struct latest_row one = {.rank = db_i64(&q, 0),
                                       .kind = db_text(&q, 1),
                                       .time_ms = db_i64(&q, 2),
                                       .data = db_text(&q, 3)};
        seer.see(&one, seer.context);
    }
    db_unlock(store->db);
    return status;
}

enum status store_eval_put(struct store *store, int64_t job, const struct eval_row *row,
                           struct err *e) {
    struct db_query q = lock_and_query(store, SQL_EVAL_PUT, job);
    db_bind_i64(&q, row->step);
    db_bind_f64(&q, row->loss);
    db_bind_f64(&q, row->accuracy);
    return run_and_unlock(store, &q, e);
}

enum status store_sample_put(struct store *store, int64_t job, const struct sample_row *row,
                             struct err *e) {
    struct db_query q = lock_and_query(store, SQL_SAMPLE_PUT, job);
    db_bind_i64(&q, row->step);
    db_bind_text(&q, row->prompt);
    db_bind_text(&q, row->text);
    return run_and_unlock(store, &q, e);
}

enum status store_checkpoint_put(struct store *store, int64_t job, const struct checkpoint_row *row,
                                 struct err *e) {
    struct db_query q = lock_and_query(store, SQL_CHECKPOINT_PUT, job);
    db_bind_i64(&q, row->step);
    db_bind_i64(&q, row->created_at);
    db_bind_text(&q, row->path);
    return run_and_unlock(store, &q, e);
}

enum status store_series_range(struct store *store, enum series_kind kind, int64_t job,
                               struct step_span *span, bool *empty, struct err *e) {
    bool row = false;
    struct db_query q =
        lock_and_query(store, kind == SERIES_STEPS ? SQL_STEP_RANGE : SQL_MEMORY_RANGE, job);
    db_bind_i64(&q, span->from);
    db_bind_i64(&q, span->to);
    const enum status status = db_step(&q, &row, e);
    *empty = !row || !db_text(&q, 0);
    if (!*empty) *span = (struct step_span){db_i64(&q, 0), db_i64(&q, 1)};
    db_unlock(store->db);
    return status;
}

static struct db_query query_span(struct store *store, enum sql_name name, int64_t job,
                                  struct step_span span) {
    struct db_query q = lock_and_query(store, name, job);
    db_bind_i64(&q, span.from);
    db_bind_i64(&q, span.to);
    return q;
}

enum status store_step_scan(struct store *store, int64_t job, struct step_span span,
                            struct step_seer seer, struct err *e) {
    bool row = false;
    enum status status = STATUS_OK;
    struct db_query q = query_span(store, SQL_STEP_SCAN, job, span);
    while ((status = db_step(&q, &row, e)) == STATUS_OK && row) {
        const struct step_row one = {
            .step = db_i64(&q, 0),
            .loss = db_f64(&q, 1),
            .grad_norm = db_f64(&q, 2),
            .learning_rate = db_f64(&q, 3),
            .tokens_per_second = db_f64(&q, 4),
            .accuracy = db_f64(&q, 5),
        };
        seer.see(&one, seer.context);
    }
    db_unlock(store->db);
    return status;
}

enum status store_memory_scan(struct store *store, int64_t job, struct step_span span,
                              struct memory_seer seer, struct err *e) {
    bool row = false;
    enum status status = STATUS_OK;
    struct db_query q = query_span(store, SQL_MEMORY_SCAN, job, span);
    while ((status = db_step(&q, &row, e)) == STATUS_OK && row) {
        struct memory_row one = {
            .rank = db_i64(&q, 0), .step = db_i64(&q, 1), .time_ms = db_i64(&q, 2)};
        for (int i = 0; i < MEMORY_VALUES; i++) {
            one.values[i] = db_text(&q, 3 + i) ? db_i64(&q, 3 + i) : -1;
        }
        for (int i = 0; i < MEMORY_CATEGORIES; i++) {
            one.categories[i] = db_i64(&q, 3 + MEMORY_VALUES + i);
        }
        seer.see(&one, seer.context);
    }
    db_unlock(store->db);
    return status;
}

enum status store_eval_scan(struct store *store, int64_t job, struct step_span span,
                            struct eval_seer seer, struct err *e) {
    bool row = false;
    enum status status = STATUS_OK;
    struct db_query q = query_span(store, SQL_EVAL_LIST, job, span);
    while ((status = db_step(&q, &row, e)) == STATUS_OK && row) {
        const struct eval_row one = {
            .step = db_i64(&q, 0), .loss = db_f64(&q, 1), .accuracy = db_f64(&q, 2)};
        seer.see(&one, seer.context);
    }
    db_unlock(store->db);
    return status;
}

enum status store_sample_scan(struct store *store, int64_t job, int64_t limit,
                              struct sample_seer seer, struct err *e) {
    bool row = false;
    enum status status = STATUS_OK;
    struct db_query q = lock_and_query(store, SQL_SAMPLE_LIST, job);
    db_bind_i64(&q, limit);
    while ((status = db_step(&q, &row, e)) == STATUS_OK && row) {
        const struct sample_row one = {
            .step = db_i64(&q, 0), .prompt = db_text(&q, 1), .text = db_text(&q, 2)};
        seer.see(&one, seer.context);
    }
    db_unlock(store->db);
    return status;
}

enum status store_checkpoint_scan(struct store *store, int64_t job, int64_t below,
                                  struct checkpoint_seer seer, struct err *e) {
    bool row = false;
    enum status status = STATUS_OK;
    struct db_query q = lock_and_query(store, SQL_CHECKPOINT_LIST, job);
    db_bind_i64(&q, below);
    while ((status = db_step(&q, &row, e)) == STATUS_OK && row) {
        const struct checkpoint_row one = {
            .step = db_i64(&q, 0),
            .created_at = db_i64(&q, 1),
            .path = db_text(&q, 2),
            .loss = db_f64(&q, 3),
            .accuracy = db_f64(&q, 4),
            .eval_loss = db_f64(&q, 5),
            .eval_accuracy = db_f64(&q, 6),
        };
        seer.see(&one, seer.context);
    }
    db_unlock(store->db);
    return status;
}
