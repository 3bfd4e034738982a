/* api.c - the table of routes, and what lists have in common.
 *
 * The table is the one place where a path is tied to its handler; everything else about a request
 * (limits, keys, methods) follows from its row. */
#include "server/api/api.h"

#include <string.h>

#include "base/mem.h"
#include "server/web/static.h"

#define JOBS "/v1/fine_tuning/jobs"

static const struct http_route ROUTES[] = {
    {"POST", "/v1/files", api_files_create, BODY_UPLOAD, false},
    {"GET", "/v1/files", api_files_list, BODY_NONE, false},
    {"GET", "/v1/files/:id", api_files_get, BODY_NONE, false},
    {"DELETE", "/v1/files/:id", api_files_delete, BODY_NONE, false},
    {"GET", "/v1/files/:id/content", api_files_content, BODY_NONE, false},
    {"GET", "/v1/files/:id/report", api_files_report, BODY_NONE, false},
    {"GET", "/v1/files/:id/preview", api_files_preview, BODY_NONE, false},
    {"POST", JOBS, api_jobs_create, BODY_JSON, false},
    {"GET", JOBS, api_jobs_list, BODY_NONE, false},
    {"GET", JOBS "/:id", api_jobs_get, BODY_NONE, false},
    {"POST", JOBS "/:id/cancel", api_jobs_cancel, BODY_JSON, false},
    {"POST", JOBS "/:id/pause", api_jobs_pause, BODY_JSON, false},
    {"POST", JOBS "/:id/resume", api_jobs_resume, BODY_JSON, false},
    {"POST", JOBS "/:id/remedy", api_jobs_remedy, BODY_JSON, false},
    {"POST", JOBS "/:id/cap", api_jobs_cap, BODY_JSON, false},
    {"GET", JOBS "/:id/events", api_jobs_events, BODY_NONE, false},
    {"GET", JOBS "/:id/checkpoints", api_jobs_checkpoints, BODY_NONE, false},
    {"GET", JOBS "/:id/stream", api_jobs_stream, BODY_NONE, false},
    {"GET", JOBS "/:id/metrics", api_jobs_metrics, BODY_NONE, false},
    {"GET", JOBS "/:id/memory", api_jobs_memory, BODY_NONE, false},
    {"GET", JOBS "/:id/memory/timeline", api_jobs_memory_timeline, BODY_NONE, false},
    {"POST", JOBS "/:id/memory/snapshot", api_jobs_memory_record, BODY_JSON, false},
    {"GET", JOBS "/:id/memory/snapshot", api_jobs_memory_snapshot, BODY_NONE, false},
    {"GET", JOBS "/:id/memory/summary", api_jobs_memory_summary, BODY_NONE, false},
    {"GET", JOBS "/:id/log", api_jobs_log, BODY_NONE, false},
    {"GET", JOBS "/:id/adapter", api_jobs_adapter, BODY_NONE, false},
    {"GET", "/v1/models", api_models_list, BODY_NONE, false},
    {"GET", "/v1/models/:id", api_models_get, BODY_NONE, false},
    {"DELETE", "/v1/models/:id", api_models_delete, BODY_NONE, false},
    {"POST", "/v1/plan", api_plan_create, BODY_JSON, false},
    {"GET", "/v1/devices", api_devices_list, BODY_NONE, false},
    {"GET", "/v1/spec", api_system_spec, BODY_NONE, false},
    {"GET", "/v1/system", api_system_get, BODY_NONE, false},
    {"GET", "/metrics", api_prometheus, BODY_NONE, false},
    {"GET", "/healthz", api_system_health, BODY_NONE, true},
};

const struct http_route *api_routes(int64_t *count) {
    *count = COUNT_OF(ROUTES);
    return ROUTES;
}

enum status api_page(void *context, struct http_request *q, struct http_reply *r, struct err *e) {
    const struct app *const app = context;
    return static_serve(app->web, q, r, e);
}

enum status api_page_of(const struct http_request *q, int64_t limit, struct page *out,
                        struct err *e) {
    *out = (struct page){.after = http_query(q, "after"), .limit = limit};
    const struct http_bounds bounds = {1, 10000};
    return http_query_i64(q, "limit", bounds, &out->limit, e);
}

cJSON *api_list(cJSON *data, bool has_more) {
    cJSON *list = cJSON_CreateObject();
    const char *first = NULL, *last = NULL;
    struct err ignored = {0};
    const int count = cJSON_GetArraySize(data);
    if (count) {
        (void)json_get_string(cJSON_GetArrayItem(data, 0), "id", &first, &ignored);
        (void)json_get_string(cJSON_GetArrayItem(data, count - 1), "id", &last, &ignored);
    }
    json_add_string(list, "object", "list");
    json_add_string(list, "first_id", first);
    json_add_string(list, "last_id", last);
    cJSON_AddItemToObject(list, "data", data);
    json_add_bool(list, "has_more", has_more);
    return list;
}

cJSON *api_parsed(const char *text) {
    cJSON *value = NULL;
    struct err ignored = {0};
    if (!text || json_parse(text, strlen(text), "", &value, &ignored) != STATUS_OK) {
        return cJSON_CreateNull();
    }
    return value;
}
