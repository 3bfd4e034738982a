/* prometheus.c - GET /metrics: the server and the jobs that run, in the text format that Prometheus
 * scrapes (version 0.0.4).
 *
 * Names follow its conventions: a unit at the end, counters end in _total. What is not known is
 * left out, because a gauge of 0 would be a lie. Only running jobs have numbers of their own, so
 * the number of series stays small whatever the history. A family's samples must stand together. */
#include "server/api/api.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "server/store/series.h"

/* The bytes of a label's value may be any; these three have to be escaped. */
static void append_label_value(struct str *out, const char *value) {
    for (; *value; value++) {
        if (*value == '\n') {
            str_append(out, "\\n");
            continue;
        }
        if (*value == '\\' || *value == '"') str_append_char(out, '\\');
        str_append_char(out, *value);
    }
}

static void append_family(struct str *out, const char *name, const char *type, const char *help) {
    str_appendf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void append_number(struct str *out, double value) {
    str_appendf(out, " %.17g\n", value);
}

static double steps_done(const struct job_row *job) {
    return (double)job->step;
}
static double steps_in_all(const struct job_row *job) {
    return (double)job->total_steps;
}
static double loss(const struct job_row *job) {
    return job->loss;
}
static double tokens_per_second(const struct job_row *job) {
    return job->tokens_per_second;
}
static double step_seconds(const struct job_row *job) {
    return job->step_seconds;
}

static const struct job_family {
    const char *name, *help;
    double (*value)(const struct job_row *job); /* NaN: not known */
} JOB_FAMILIES[] = {
    {"plimsoll_job_step", "Steps done.", steps_done},
    {"plimsoll_job_steps", "Steps to do in all.", steps_in_all},
    {"plimsoll_job_loss", "Training loss of the newest step.", loss},
    {"plimsoll_job_tokens_per_second", "Speed of the newest step.", tokens_per_second},
    {"plimsoll_job_step_seconds", "Smoothed time of a step.", step_seconds},
};

/* With a sample of each job whose value is known; nothing when none is. */
static void append_of_jobs(struct str *out, const struct job_list *jobs,
                           const struct job_family *family) {
    bool begun = false;
    for (int64_t i = 0; i < jobs->count; i++) {
        const double value = family->value(&jobs->rows[i]);
        if (!isfinite(value)) continue;
        if (!begun) append_family(out, family->name, "gauge", family->help);
        begun = true;
        str_appendf(out, "%s{job=\"", family->name);
        append_label_value(out, jobs->rows[i].id);
        str_append(out, "\"}");
        append_number(out, value);
    }
}

static void append_jobs(struct str *out, const struct job_list *jobs) {
    if (jobs->count == 0) return;
    append_family(out, "plimsoll_job_info", "gauge", "A job that runs; always 1.");
    for (int64_t i = 0; i < jobs->count; i++) {
        const struct job_row *const job = &jobs->rows[i];
        str_append(out, "plimsoll_job_info{job=\"");
        append_label_value(out, job->id);
        str_append(out, "\",model=\"");
        append_label_value(out, job->model);
        str_append(out, "\",phase=\"");
        append_label_value(out, job->phase);
        str_append(out, "\"} 1\n");
    }
    for (size_t i = 0; i < COUNT_OF(JOB_FAMILIES); i++) {
        append_of_jobs(out, jobs, &JOB_FAMILIES[i]);
    }
}

/* Two families that each need all jobs and ranks together: their samples are gathered side by side.
 */
struct memory_text {
    const struct job_row *job;
    struct str values, categories;
};

static void append_sample(struct str *out, const char *name, const struct memory_text *m,
                          int64_t rank, const char *label, const char *value) {
    str_appendf(out, "%s{job=\"", name);
    append_label_value(out, m->job->id);
    str_appendf(out, "\",rank=\"%lld\",%s=\"%s\"}", (long long)rank, label, value);
}

static double number_of(const cJSON *object, const char *key) {
    double value = NAN;
    struct err ignored = {0};
    (void)json_get_f64(object, key, &value, &ignored);
    return value;
}

static void see_latest(const struct latest_row *row, void *context) {
    struct memory_text *const m = context;
    if (!str_equal(row->kind, "memory")) return;
    cJSON *event = api_parsed(row->data);
    for (int i = 0; i < MEMORY_VALUES; i++) {
        const char *const name = memory_value_name((enum memory_value)i);
        const double bytes = number_of(event, name);
        if (!isfinite(bytes)) continue;
        append_sample(&m->values, "plimsoll_job_memory_bytes", m, row->rank, "kind", name);
        append_number(&m->values, bytes);
    }
    const cJSON *const categories = json_member(event, "step_categories");
    for (int i = 0; i < MEMORY_CATEGORIES; i++) {
        const char *const name = memory_category_name(i);
        const double bytes = number_of(categories, name);
        if (!isfinite(bytes)) continue;
        append_sample(&m->categories, "plimsoll_job_memory_peak_bytes", m, row->rank, "category",
                      name);
        append_number(&m->categories, bytes);
    }
    cJSON_Delete(event);
}

static enum status append_memory(struct str *out, struct store *store, const struct job_list *jobs,
                                 struct err *e) {
    struct memory_text m = {0};
    enum status status = STATUS_OK;
    for (int64_t i = 0; i < jobs->count && status == STATUS_OK; i++) {
        m.job = &jobs->rows[i];
        status = store_latest_scan(store, m.job->number, (struct latest_seer){see_latest, &m}, e);
    }
    if (m.values.len) {
        append_family(out, "plimsoll_job_memory_bytes", "gauge",
                      "Memory of a rank and of its device at the newest step.");
        str_append(out, str_text(&m.values));
        append_family(out, "plimsoll_job_memory_peak_bytes", "gauge",
                      "What a rank held when the newest step was fullest, by category.");
        str_append(out, str_text(&m.categories));
    }
    str_release(&m.values);
    str_release(&m.categories);
    return status;
}

static void see_count(const char *status, int64_t count, void *context) {
    str_appendf(context, "plimsoll_jobs{status=\"%s\"} %lld\n", status, (long long)count);
}

enum status api_prometheus(void *context, struct http_request *q, struct http_reply *r,
                           struct err *e) {
    (void)q;
    const struct app *const app = context;
    struct str *const out = &r->body;
    struct job_list jobs = {0};
    append_family(out, "plimsoll_info", "gauge", "The version of the server; always 1.");
    str_append(out, "plimsoll_info{version=\"" PLIMSOLL_VERSION "\"} 1\n");
    append_family(out, "plimsoll_uptime_seconds", "gauge", "Since the server was started.");
    str_append(out, "plimsoll_uptime_seconds");
    append_number(out, (double)(clock_unix_ms() - app->started_ms) / 1000);
    append_family(out, "plimsoll_jobs", "gauge", "Jobs by status.");
    TRY(store_job_counts(app->store, see_count, out, e));
    r->content_type = "text/plain; version=0.0.4; charset=utf-8";
    TRY(store_job_pick(app->store, JOB_ACTIVE, INT64_MAX, &jobs, e));
    append_jobs(out, &jobs);
    const enum status status = append_memory(out, app->store, &jobs, e);
    job_list_release(&jobs);
    return status;
}
