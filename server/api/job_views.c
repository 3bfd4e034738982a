/* job_views.c - looking at a job: events, checkpoints, stream, log, result.
 *
 * Nothing here changes anything. Event and checkpoint ids hold their number, so that a cursor
 * needs no look-up. */
#include "server/api/api.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/events.h"
#include "engine/rundir.h"
#include "server/run/results.h"
#include "server/web/zip.h"

enum {
    EVENTS_PRESET = 20,
    CHECKPOINTS_PRESET = 10,
    LOG_BYTES_PRESET = 65536,
    LOG_BYTES_MAX = 1 << 20
};

static const char *text_of(const cJSON *object, const char *key) {
    const char *value = NULL;
    struct err ignored = {0};
    (void)json_get_string(object, key, &value, &ignored);
    return value ? value : "";
}

static double number_of(const cJSON *object, const char *key) {
    double value = NAN;
    struct err ignored = {0};
    (void)json_get_f64(object, key, &value, &ignored);
    return value;
}

/* The step event in the words of OpenAI's metrics events. */
static cJSON *step_data(const cJSON *event) {
    static const char *const names[][2] = {{"step", "step"},
                                           {"total_steps", "total_steps"},
                                           {"train_loss", "loss"},
                                           {"train_mean_token_accuracy", "mean_token_accuracy"},
                                           {"learning_rate", "learning_rate"},
                                           {"grad_norm", "grad_norm"},
                                           {"tokens_per_second", "tokens_per_second"}};
    cJSON *const data = cJSON_CreateObject();
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        json_add_number(data, names[i][0], number_of(event, names[i][1]));
    }
    return data;
}

static double sum_of(const cJSON *groups, const char *key) {
    double sum = 0;
    const cJSON *group = NULL;
    cJSON_ArrayForEach(group, groups) {
        sum += number_of(group, key);
    }
    return sum;
}

/* The engine's own words where it has some. */
static void describe_memory(enum event_kind kind, const cJSON *event, struct str *out) {
    const double step = number_of(event, "step");
    if (kind == EVENT_OOM && *text_of(event, "explanation")) {
        str_appendf(out, "Out of memory at step %.0f. %s", step, text_of(event, "explanation"));
    } else if (kind == EVENT_OOM) {
        str_appendf(out, "Out of memory in %s: %.0f bytes asked for, %.0f of %.0f allocated",
                    text_of(event, "phase"), number_of(event, "requested"),
                    number_of(event, "allocated"), number_of(event, "capacity"));
    } else if (kind == EVENT_REMEDY) {
        str_append(out, text_of(event, "text"));
    } else if (kind == EVENT_ATTENTION) {
        str_appendf(out,
                    "Memory is short at step %.0f: the run waits for an answer, %d remedies are "
                    "offered",
                    step, cJSON_GetArraySize(json_member(event, "remedies")));
    } else if (kind == EVENT_HOLDINGS) {
        const cJSON *const groups = json_member(event, "groups");
        str_appendf(out, "In memory: %.0f parameters, %.0f of them trained",
                    sum_of(groups, "parameters"), sum_of(groups, "trained"));
    } else {
        char peak[24];
        const double bytes = number_of(event, "step_peak");
        str_appendf(out, "Step %.0f: at most %s of memory", step,
                    str_bytes(isfinite(bytes) ? (int64_t)bytes : 0, peak));
    }
}

static void describe(enum event_kind kind, const cJSON *event, struct str *out) {
    const double step = number_of(event, "step");
    switch (kind) {
    case EVENT_START:
        str_appendf(out, "Training on %.0f samples for %.0f steps", number_of(event, "samples"),
                    number_of(event, "total_steps"));
        if (number_of(event, "resumed_from_step") > 0) {
            str_appendf(out, ", continuing after step %.0f", number_of(event, "resumed_from_step"));
        }
        break;
    case EVENT_PHASE: str_appendf(out, "Phase: %s", text_of(event, "phase")); break;
    case EVENT_PROGRESS:
        str_appendf(out, "Encoding the data: %.0f %%, %.0f rows",
                    100 * number_of(event, "bytes") / number_of(event, "bytes_total"),
                    number_of(event, "rows"));
        break;
    case EVENT_STEP:
        str_appendf(out, "Step %.0f/%.0f: training loss=%.4g", step,
                    number_of(event, "total_steps"), number_of(event, "loss"));
        break;
    case EVENT_EVAL:
        str_appendf(out, "Step %.0f: validation loss=%.4g", step, number_of(event, "loss"));
        break;
    case EVENT_CHECKPOINT: str_appendf(out, "Checkpoint written at step %.0f", step); break;
    case EVENT_SAMPLE:
        str_appendf(out, "Sample at step %.0f: %s -> %s", step, text_of(event, "prompt"),
                    text_of(event, "text"));
        break;
    case EVENT_OOM:
    case EVENT_REMEDY:
    case EVENT_ATTENTION:
    case EVENT_HOLDINGS:
    case EVENT_MEMORY: describe_memory(kind, event, out); break;
    case EVENT_DONE: str_appendf(out, "The run has %s", text_of(event, "outcome")); break;
    default: str_append(out, text_of(event, "message"));
    }
}

static const char *level_of(enum event_kind kind, const cJSON *event) {
    if (kind == EVENT_ERROR) return "error";
    if (kind == EVENT_OOM || kind == EVENT_ATTENTION) return "warn";
    const char *const level = text_of(event, "level");
    return *level ? level : "info";
}

/* Event ids hold the sequence number, so that a cursor needs no look-up. */
static cJSON *event_to_json(const struct job_row *job, const struct event_row *row) {
    cJSON *event = api_parsed(row->data);
    const enum event_kind kind = event_kind_parse(row->kind);
    struct str message = {0};
    char *id = str_format("ftevent-%lld-%lld", (long long)job->number, (long long)row->seq);
    cJSON *const out = cJSON_CreateObject();
    describe(kind, event, &message);
    json_add_string(out, "object", "fine_tuning.job.event");
    json_add_string(out, "id", id);
    json_add_i64(out, "created_at", row->time_ms / 1000);
    json_add_string(out, "level", level_of(kind, event));
    json_add_string(out, "message", str_text(&message));
    json_add_string(out, "type", kind == EVENT_STEP ? "metrics" : "message");
    if (kind == EVENT_STEP) {
        cJSON_AddItemToObject(out, "data", step_data(event));
        cJSON_Delete(event);
    } else {
        cJSON_AddItemToObject(out, "data", event);
    }
    mem_free(id);
    str_release(&message);
    return out;
}

static enum status seq_of_cursor(const struct job_row *job, const char *after, int64_t *seq,
                                 struct err *e) {
    *seq = INT64_MAX;
    if (!after) return STATUS_OK;
    char *prefix = str_format("ftevent-%lld-", (long long)job->number);
    const bool ours = str_starts_with(after, prefix);
    struct err bad = {0};
    const bool fine = ours && str_to_i64(after + strlen(prefix), "after", seq, &bad) == STATUS_OK;
    mem_free(prefix);
    if (fine) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, "after", "after: %.80s is no event of job %s", after,
                         job->id);
}

static enum status list_events(const struct app *app, const struct http_request *q,
                               const struct job_row *job, struct http_reply *r, struct err *e) {
    struct page page;
    struct event_cursor at = {.job = job->number, .kinds = http_query(q, "kinds")};
    struct event_row *rows = NULL;
    int64_t count = 0;
    TRY(api_page_of(q, EVENTS_PRESET, &page, e));
    TRY(seq_of_cursor(job, page.after, &at.seq, e));
    at.limit = page.limit + 1;
    const enum status status = store_events_before(app->store, at, &rows, &count, e);
    cJSON *data = cJSON_CreateArray();
    for (int64_t i = 0; i < count && i < page.limit; i++) {
        cJSON_AddItemToArray(data, event_to_json(job, &rows[i]));
    }
    http_reply_json(r, api_list(data, count > page.limit));
    event_rows_free(rows, count);
    return status;
}

enum status api_jobs_events(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e) {
    const struct app *const app = context;
    struct job_row job = {0};
    TRY(store_job_get(app->store, q->parameters[0], &job, e));
    const enum status status = list_events(app, q, &job, r, e);
    job_row_release(&job);
    return status;
}

/* A page of checkpoints that is being gathered. */
struct checkpoints {
    const struct job_row *job;
    const char *run; /* its run directory */
    cJSON *data;
    int64_t limit, count;
};

/* save_total_limit removes old checkpoints; only those that are still there are listed. */
static bool still_there(const struct checkpoints *c, const char *path) {
    char *folder = file_join(c->run, path);
    const bool found = file_exists(folder);
    mem_free(folder);
    return found;
}

static void see_checkpoint(const struct checkpoint_row *row, void *context) {
    struct checkpoints *const c = context;
    if (!still_there(c, row->path) || c->count++ >= c->limit) return;
    cJSON *const item = cJSON_CreateObject();
    char *id = str_format("ftckpt_%lld_%lld", (long long)c->job->number, (long long)row->step);
    char *model = str_format("%s:ckpt-step-%lld",
                             c->job->fine_tuned_model ? c->job->fine_tuned_model : c->job->id,
                             (long long)row->step);
    json_add_string(item, "object", "fine_tuning.job.checkpoint");
    json_add_string(item, "id", id);
    json_add_i64(item, "created_at", row->created_at);
    json_add_string(item, "fine_tuning_job_id", c->job->id);
    json_add_string(item, "fine_tuned_model_checkpoint", model);
    json_add_i64(item, "step_number", row->step);
    cJSON *const metrics = cJSON_AddObjectToObject(item, "metrics");
    json_add_i64(metrics, "step", row->step);
    if (isfinite(row->loss)) json_add_number(metrics, "train_loss", row->loss);
    if (isfinite(row->accuracy))
        json_add_number(metrics, "train_mean_token_accuracy", row->accuracy);
    if (isfinite(row->eval_loss)) json_add_number(metrics, "full_valid_loss", row->eval_loss);
    if (isfinite(row->eval_accuracy)) {
        json_add_number(metrics, "full_valid_mean_token_accuracy", row->eval_accuracy);
    }
    cJSON *const ours = cJSON_AddObjectToObject(item, "plimsoll");
    json_add_string(ours, "path", row->path);
    cJSON_AddItemToArray(c->data, item);
    mem_free(id);
    mem_free(model);
}

static enum status list_checkpoints(const struct app *app, const struct http_request *q,
                                    const struct job_row *job, struct http_reply *r,
                                    struct err *e) {
    struct page page;
    int64_t below = INT64_MAX;
    TRY(api_page_of(q, CHECKPOINTS_PRESET, &page, e));
    if (page.after) {
        const char *const step = strrchr(page.after, '_');
        TRY(str_to_i64(step ? step + 1 : "", "after", &below, e));
    }
    char *run = store_run_folder(app->store, job->id);
    struct checkpoints c = {
        .job = job, .run = run, .data = cJSON_CreateArray(), .limit = page.limit};
    const enum status status = store_checkpoint_scan(
        app->store, job->number, below, (struct checkpoint_seer){see_checkpoint, &c}, e);
    http_reply_json(r, api_list(c.data, c.count > c.limit));
    mem_free(run);
    return status;
}

enum status api_jobs_checkpoints(void *context, struct http_request *q, struct http_reply *r,
                                 struct err *e) {
    const struct app *const app = context;
    struct job_row job = {0};
    TRY(store_job_get(app->store, q->parameters[0], &job, e));
    const enum status status = list_checkpoints(app, q, &job, r, e);
    job_row_release(&job);
    return status;
}

enum status api_jobs_stream(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e) {
    const struct app *const app = context;
    struct sse_request request = {
        .store = app->store, .job_id = q->parameters[0], .after = -1, .render = job_render_event};
    const char *const last = http_header(q, "Last-Event-ID");
    const struct http_bounds bounds = {0, INT64_MAX};
    if (last) {
        TRY(str_to_i64(last, "Last-Event-ID", &request.after, e));
    } else {
        TRY(http_query_i64(q, "after", bounds, &request.after, e));
    }
    return sse_open(app->hub, &request, r, e);
}

enum status api_jobs_log(void *context, struct http_request *q, struct http_reply *r,
                         struct err *e) {
    const struct app *const app = context;
    struct job_row job = {0};
    int64_t bytes = LOG_BYTES_PRESET;
    const struct http_bounds bounds = {1, LOG_BYTES_MAX};
    TRY(http_query_i64(q, "bytes", bounds, &bytes, e));
    TRY(store_job_get(app->store, q->parameters[0], &job, e));
    char *run = store_run_folder(app->store, job.id);
    char *path = rundir_log(run, 0);
    results_log_tail(path, (size_t)bytes, &r->body);
    r->content_type = "text/plain; charset=utf-8";
    mem_free(path);
    mem_free(run);
    job_row_release(&job);
    return STATUS_OK;
}

static enum status send_result(const struct app *app, const struct job_row *job,
                               struct http_reply *r, struct err *e) {
    FAIL_IF(!job->result || strcmp(job->status, "succeeded") != 0, STATUS_CONFLICT,
            "job %s is %s and has no result to download", job->id, job->status);
    FAIL_IF(!file_name_is_plain(job->result), STATUS_INTERNAL,
            "the result of %s has no usable name", job->id);
    char *run = store_run_folder(app->store, job->id);
    char *folder = file_join(run, job->result);
    const enum status status = zip_open(folder, job->result, &r->stream, e);
    mem_free(folder);
    mem_free(run);
    TRY(status);
    char *disposition = str_format("attachment; filename=\"%s-%s.zip\"", job->id, job->result);
    http_reply_header(r, "Content-Disposition", disposition);
    mem_free(disposition);
    r->content_type = "application/zip";
    return STATUS_OK;
}

enum status api_jobs_adapter(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e) {
    const struct app *const app = context;
    struct job_row job = {0};
    TRY(store_job_get(app->store, q->parameters[0], &job, e));
    const enum status status = send_result(app, &job, r, e);
    job_row_release(&job);
    return status;
}
