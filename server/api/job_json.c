/* job_json.c - the Job object: OpenAI's members, all of them always there, and ours in
 * `plimsoll`.
 *
 * It is made from the row alone, at the moment it is asked for; the stream's `job` events carry
 * it, too, so that what the page shows and what a script reads can never differ. */
#include "server/api/api.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/events.h"
#include "server/run/follow.h"

static void add_time(cJSON *object, const char *key, int64_t seconds) {
    if (seconds) {
        json_add_i64(object, key, seconds);
    } else {
        cJSON_AddNullToObject(object, key);
    }
}

/* Moves a member of the stored request over. */
static void add_from(cJSON *job, cJSON *request, const char *key) {
    cJSON *const item = cJSON_DetachItemFromObjectCaseSensitive(request, key);
    cJSON_AddItemToObject(job, key, item ? item : cJSON_CreateNull());
}

static double seconds_left(const struct job_row *row) {
    if (strcmp(row->status, "running") != 0 || row->total_steps <= row->step) return NAN;
    return (double)(row->total_steps - row->step) * row->step_seconds;
}

static bool is_asking(const struct job_row *row) {
    return str_equal(row->status, "running") && str_equal(row->phase, FOLLOW_PHASE_ATTENTION);
}

static void see_attention(const struct latest_row *row, void *context) {
    cJSON **const out = context;
    if (*out || strcmp(row->kind, event_kind_name(EVENT_ATTENTION)) != 0) return;
    *out = api_parsed(row->data);
}

enum status job_attention(struct store *store, const struct job_row *job, cJSON **out,
                          struct err *e) {
    *out = NULL;
    if (!is_asking(job)) return STATUS_OK;
    return store_latest_scan(store, job->number, (struct latest_seer){see_attention, out}, e);
}

static enum status add_ours(struct store *store, cJSON *job, const struct job_row *row,
                            struct err *e) {
    cJSON *const ours = cJSON_AddObjectToObject(job, "plimsoll");
    const cJSON *const error = json_member(job, "error");
    const char *error_status = NULL;
    cJSON *attention = NULL;
    if (cJSON_IsObject(error)) TRY(json_get_string(error, "code", &error_status, e));
    json_add_string(ours, "phase",
                    row->wish && strcmp(row->wish, "resume") ? "stopping" : row->phase);
    json_add_i64(ours, "step", row->step);
    json_add_i64(ours, "total_steps", row->total_steps);
    json_add_number(ours, "loss", row->loss);
    json_add_number(ours, "first_loss", row->first_loss);
    json_add_number(ours, "tokens_per_second", row->tokens_per_second);
    json_add_number(ours, "eta_seconds", seconds_left(row));
    cJSON_AddItemToObject(ours, "memory", api_parsed(row->memory));
    TRY(job_attention(store, row, &attention, e));
    cJSON_AddItemToObject(ours, "attention", attention ? attention : cJSON_CreateNull());
    cJSON_AddItemToObject(ours, "plan", api_parsed(row->plan));
    cJSON_AddItemToObject(ours, "spec", api_parsed(row->spec));
    add_time(ours, "started_at", row->started_at);
    json_add_number(ours, "run_seconds", (double)row->run_ms / 1000);
    json_add_i64(ours, "seq", row->seq);
    json_add_i64(ours, "crashes", row->crashes);
    json_add_string(ours, "result", row->result);
    json_add_string(ours, "error_status", error_status);
    if (strcmp(row->status, "queued") != 0) {
        cJSON_AddNullToObject(ours, "queue_position");
        return STATUS_OK;
    }
    int64_t ahead = 0;
    TRY(store_job_ahead(store, row, &ahead, e));
    json_add_i64(ours, "queue_position", ahead + 1);
    return STATUS_OK;
}

enum status job_to_json(struct store *store, const struct job_row *row, cJSON **out,
                        struct err *e) {
    cJSON *const job = cJSON_CreateObject();
    cJSON *request = api_parsed(row->request);
    json_add_string(job, "id", row->id);
    json_add_string(job, "object", "fine_tuning.job");
    json_add_i64(job, "created_at", row->created_at);
    add_time(job, "finished_at", row->finished_at);
    const double left = seconds_left(row);
    add_time(job, "estimated_finish", isfinite(left) ? clock_unix_ms() / 1000 + (int64_t)left : 0);
    json_add_string(job, "model", row->model);
    json_add_string(job, "fine_tuned_model", row->fine_tuned_model);
    json_add_string(job, "organization_id", "org-local");
    /* It waits for a person, though its process is there. */
    const bool asks = is_asking(row);
    json_add_string(job, "status", asks ? "paused" : row->status);
    json_add_string(job, "training_file", row->training_file);
    cJSON *const files = cJSON_AddArrayToObject(job, "result_files");
    if (row->results_file) cJSON_AddItemToArray(files, cJSON_CreateString(row->results_file));
    if (row->trained_tokens) {
        json_add_i64(job, "trained_tokens", row->trained_tokens);
    } else {
        cJSON_AddNullToObject(job, "trained_tokens");
    }
    static const char *const kept[] = {"validation_file", "seed",     "hyperparameters", "method",
                                       "integrations",    "metadata", "suffix"};
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        add_from(job, request, kept[i]);
    }
    cJSON_AddItemToObject(job, "error", api_parsed(row->error));
    cJSON_Delete(request);
    const enum status status = add_ours(store, job, row, e);
    if (status != STATUS_OK) {
        cJSON_Delete(job);
        return status;
    }
    *out = job;
    return STATUS_OK;
}

enum status job_render_event(struct store *store, const char *job_id, const struct event_row *event,
                             struct str *out, struct err *e) {
    if (strcmp(event->kind, "job") != 0) {
        str_append(out, event->data);
        return STATUS_OK;
    }
    struct job_row row = {0};
    cJSON *job = NULL;
    TRY(store_job_get(store, job_id, &row, e));
    const enum status status = job_to_json(store, &row, &job, e);
    if (status == STATUS_OK) json_append(out, job);
    cJSON_Delete(job);
    job_row_release(&row);
    return status;
}
