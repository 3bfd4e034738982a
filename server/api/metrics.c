/* metrics.c - the series of a job, thinned out so that a chart of any length is drawn from a
 * bounded number of points and no spike is lost.
 *
 * The span of steps is cut into `points / 2` buckets. Of each bucket those rows stay in which a
 * series has its lowest or highest value, and the first row whose loss is not a number. One pass
 * over the rows in step order; 100,000 rows take some tens of milliseconds. */
#include "server/api/api.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "server/store/series.h"

enum { POINTS_PRESET = 800, POINTS_MAX = 20000, SAMPLES_MAX = 200 };
/* Series that decide what stays. The learning rate is smooth and rides along. */
enum { WATCHED = 4, KEPT_MAX = 2 * WATCHED + 1 };

/* Rows that stay of the present bucket: [0..WATCHED) lowest, [WATCHED..2*WATCHED) highest, last:
 * not a number. */
struct bucket {
    struct step_row rows[KEPT_MAX];
    bool set[KEPT_MAX];
};

/* Columns of text that grow while rows are seen. */
enum { STEP_COLUMNS = 6 };
struct steps {
    struct step_span span;
    int64_t buckets;
    int64_t present; /* index of the bucket being filled */
    struct bucket bucket;
    struct str columns[STEP_COLUMNS];
};

static const char *const STEP_NAMES[STEP_COLUMNS] = {
    "step", "loss", "grad_norm", "learning_rate", "tokens_per_second", "mean_token_accuracy"};

static void append_integer(struct str *column, int64_t value) {
    str_appendf(column, "%s%lld", column->len ? "," : "", (long long)value);
}

static void append_number(struct str *column, double value) {
    if (column->len) str_append_char(column, ',');
    if (isfinite(value)) {
        str_appendf(column, "%.9g", value);
    } else {
        str_append(column, "null");
    }
}

static void append_column(struct str *out, const char *name, const struct str *column, bool first) {
    str_appendf(out, "%s\"%s\":[", first ? "" : ",", name);
    str_append(out, str_text(column));
    str_append_char(out, ']');
}

static void write_step(struct steps *s, const struct step_row *row) {
    const double values[STEP_COLUMNS - 1] = {row->loss, row->grad_norm, row->learning_rate,
                                             row->tokens_per_second, row->accuracy};
    append_integer(&s->columns[0], row->step);
    for (int i = 1; i < STEP_COLUMNS; i++) {
        append_number(&s->columns[i], values[i - 1]);
    }
}

/* Writes the rows of the bucket in step order, each once. */
static void flush_bucket(struct steps *s) {
    int64_t written = INT64_MIN;
    for (;;) {
        const struct step_row *next = NULL;
        for (int i = 0; i < KEPT_MAX; i++) {
            const struct step_row *const row = &s->bucket.rows[i];
            if (!s->bucket.set[i] || row->step <= written) continue;
            if (!next || row->step < next->step) next = row;
        }
        if (!next) break;
        write_step(s, next);
        written = next->step;
    }
    s->bucket = (struct bucket){0};
}

static double watched_value(const struct step_row *row, int series) {
    const double values[WATCHED] = {row->loss, row->grad_norm, row->tokens_per_second,
                                    row->accuracy};
    return values[series];
}

static void put(struct bucket *b, int place, const struct step_row *row) {
    b->rows[place] = *row;
    b->set[place] = true;
}

static void see_step(const struct step_row *row, void *context) {
    struct steps *const s = context;
    const int64_t width = s->span.to - s->span.from + 1;
    const int64_t index =
        (int64_t)((double)(row->step - s->span.from) / (double)width * (double)s->buckets);
    if (index != s->present) flush_bucket(s);
    s->present = index;
    struct bucket *const b = &s->bucket;
    for (int i = 0; i < WATCHED; i++) {
        const double value = watched_value(row, i);
        if (!isfinite(value)) continue;
        const int high = WATCHED + i;
        if (!b->set[i] || value < watched_value(&b->rows[i], i)) put(b, i, row);
        if (!b->set[high] || value > watched_value(&b->rows[high], i)) put(b, high, row);
    }
    if (!isfinite(row->loss) && !b->set[2 * WATCHED]) put(b, 2 * WATCHED, row);
}

static enum status write_steps(struct store *store, const struct job_row *job,
                               const struct metrics_request *request, struct str *out,
                               struct err *e) {
    struct steps s = {.span = {request->from_step, request->to_step}, .present = -1};
    bool empty = true;
    TRY(store_series_range(store, SERIES_STEPS, job->number, &s.span, &empty, e));
    const int64_t width = s.span.to - s.span.from + 1;
    s.buckets = request->points / 2;
    if (empty || width <= request->points) s.buckets = empty ? 1 : width; /* every row stays */
    const enum status status =
        empty ? STATUS_OK
              : store_step_scan(store, job->number, s.span, (struct step_seer){see_step, &s}, e);
    flush_bucket(&s);
    str_append(out, "\"steps\":{");
    for (int i = 0; i < STEP_COLUMNS; i++) {
        append_column(out, STEP_NAMES[i], &s.columns[i], i == 0);
        str_release(&s.columns[i]);
    }
    str_append_char(out, '}');
    return status;
}

/* Memory is thinned by whole rows: of each bucket the one with the highest peak of a step and the
 * one with the highest allocation. Ranks come one after the other, each an object of its own; rank
 * 0 is the member `memory`, and holds the others in `ranks`. */
struct memory {
    struct step_span span;
    int64_t buckets, present, rank;
    struct memory_row peak, allocated;
    bool set;
    struct str step, time_ms, columns[MEMORY_VALUES], categories[MEMORY_CATEGORIES];
    struct str first, others; /* the finished objects: of rank 0, of the rest with commas between */
};

/* Whole bytes: as a double with nine digits they would not come back the same. */
static void append_known(struct str *column, int64_t value) {
    if (value >= 0) {
        append_integer(column, value);
    } else {
        append_number(column, NAN);
    }
}

static void write_memory_row(struct memory *m, const struct memory_row *row) {
    append_integer(&m->step, row->step);
    append_integer(&m->time_ms, row->time_ms);
    for (int i = 0; i < MEMORY_VALUES; i++) {
        append_known(&m->columns[i], row->values[i]);
    }
    for (int i = 0; i < MEMORY_CATEGORIES; i++) {
        append_integer(&m->categories[i], row->categories[i]);
    }
}

static void flush_memory(struct memory *m) {
    if (!m->set) return;
    const bool peak_first = m->peak.step <= m->allocated.step;
    write_memory_row(m, peak_first ? &m->peak : &m->allocated);
    if (m->peak.step != m->allocated.step)
        write_memory_row(m, peak_first ? &m->allocated : &m->peak);
    m->set = false;
}

/* The columns of the present rank become an object without its closing brace. */
static void finish_rank(struct memory *m) {
    flush_memory(m);
    struct str *const out = m->rank == 0 ? &m->first : &m->others;
    if (out->len) str_append_char(out, ',');
    str_appendf(out, "{\"rank\":%lld,", (long long)m->rank);
    append_column(out, "step", &m->step, true);
    append_column(out, "time_ms", &m->time_ms, false);
    str_clear(&m->step);
    str_clear(&m->time_ms);
    for (int i = 0; i < MEMORY_VALUES; i++) {
        append_column(out, memory_value_name((enum memory_value)i), &m->columns[i], false);
        str_clear(&m->columns[i]);
    }
    str_append(out, ",\"categories\":{");
    for (int i = 0; i < MEMORY_CATEGORIES; i++) {
        append_column(out, memory_category_name(i), &m->categories[i], i == 0);
        str_clear(&m->categories[i]);
    }
    str_append(out, m->rank == 0 ? "}" : "}}");
}

static void see_memory(const struct memory_row *row, void *context) {
    struct memory *const m = context;
    if (row->rank != m->rank) {
        finish_rank(m);
        m->rank = row->rank;
        m->present = -1;
    }
    const int64_t width = m->span.to - m->span.from + 1;
    const int64_t index =
        (int64_t)((double)(row->step - m->span.from) / (double)width * (double)m->buckets);
    if (index != m->present) flush_memory(m);
    m->present = index;
    const enum memory_value peak = MEMORY_STEP_PEAK, held = MEMORY_ALLOCATED;
    if (!m->set || row->values[peak] > m->peak.values[peak]) m->peak = *row;
    if (!m->set || row->values[held] > m->allocated.values[held]) m->allocated = *row;
    m->set = true;
}

static void memory_release(struct memory *m) {
    str_release(&m->step);
    str_release(&m->time_ms);
    for (int i = 0; i < MEMORY_VALUES; i++) {
        str_release(&m->columns[i]);
    }
    for (int i = 0; i < MEMORY_CATEGORIES; i++) {
        str_release(&m->categories[i]);
    }
    str_release(&m->first);
    str_release(&m->others);
}

static enum status write_memory(struct store *store, const struct job_row *job,
                                const struct metrics_request *request, struct str *out,
                                struct err *e) {
    struct memory m = {.span = {request->from_step, request->to_step}, .present = -1};
    bool empty = true;
    TRY(store_series_range(store, SERIES_MEMORY, job->number, &m.span, &empty, e));
    const int64_t width = m.span.to - m.span.from + 1;
    m.buckets = request->points / 2;
    if (empty || width <= request->points) m.buckets = empty ? 1 : width;
    const enum status status = empty ? STATUS_OK
                                     : store_memory_scan(store, job->number, m.span,
                                                         (struct memory_seer){see_memory, &m}, e);
    finish_rank(&m);
    str_append(out, ",\"memory\":");
    str_append(out, str_text(&m.first));
    str_appendf(out, ",\"ranks\":[%s]}", str_text(&m.others));
    memory_release(&m);
    return status;
}

struct evals {
    struct str step, loss, accuracy;
};

static void see_eval(const struct eval_row *row, void *context) {
    struct evals *const v = context;
    append_integer(&v->step, row->step);
    append_number(&v->loss, row->loss);
    append_number(&v->accuracy, row->accuracy);
}

static enum status write_evals(struct store *store, const struct job_row *job,
                               const struct metrics_request *request, struct str *out,
                               struct err *e) {
    struct evals v = {0};
    const struct step_span span = {request->from_step, request->to_step};
    const enum status status =
        store_eval_scan(store, job->number, span, (struct eval_seer){see_eval, &v}, e);
    str_append(out, ",\"eval\":{");
    append_column(out, "step", &v.step, true);
    append_column(out, "loss", &v.loss, false);
    append_column(out, "mean_token_accuracy", &v.accuracy, false);
    str_append_char(out, '}');
    str_release(&v.step);
    str_release(&v.loss);
    str_release(&v.accuracy);
    return status;
}

static void see_sample(const struct sample_row *row, void *context) {
    cJSON *const sample = cJSON_CreateObject();
    json_add_i64(sample, "step", row->step);
    json_add_string(sample, "prompt", row->prompt);
    json_add_string(sample, "text", row->text);
    cJSON_AddItemToArray(context, sample);
}

static enum status write_samples(struct store *store, const struct job_row *job, struct str *out,
                                 struct err *e) {
    cJSON *samples = cJSON_CreateArray();
    const enum status status = store_sample_scan(store, job->number, SAMPLES_MAX,
                                                 (struct sample_seer){see_sample, samples}, e);
    str_append(out, ",\"samples\":");
    json_append(out, samples);
    cJSON_Delete(samples);
    return status;
}

enum status metrics_write(struct store *store, const struct job_row *job,
                          const struct metrics_request *request, struct str *out, struct err *e) {
    str_appendf(out, "{\"object\":\"plimsoll.metrics\",\"job\":\"%s\",\"seq\":%lld,", job->id,
                (long long)job->seq);
    TRY(write_steps(store, job, request, out, e));
    TRY(write_evals(store, job, request, out, e));
    TRY(write_memory(store, job, request, out, e));
    TRY(write_samples(store, job, out, e));
    str_append(out, "}\n");
    return STATUS_OK;
}

enum status api_jobs_metrics(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e) {
    const struct app *const app = context;
    struct metrics_request request = {
        .points = POINTS_PRESET, .from_step = 0, .to_step = INT64_MAX};
    const struct http_bounds points = {16, POINTS_MAX}, any = {0, INT64_MAX};
    TRY(http_query_i64(q, "points", points, &request.points, e));
    TRY(http_query_i64(q, "from_step", any, &request.from_step, e));
    TRY(http_query_i64(q, "to_step", any, &request.to_step, e));
    struct job_row job = {0};
    TRY(store_job_get(app->store, q->parameters[0], &job, e));
    const enum status status = metrics_write(app->store, &job, &request, &r->body, e);
    job_row_release(&job);
    return status;
}
