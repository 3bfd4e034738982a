/* system.c - /v1/system (the machine), /v1/spec (the keys of a run), /healthz.
 *
 * All are read at the moment they are asked for; the page polls the first and builds its form
 * from the second. */
#include "server/api/api.h"

#include "base/mem.h"
#include "engine/spec.h"
#include "server/run/monitor.h"

/* The page asks every few seconds; who holds a card's memory does not change that fast. */
enum { CARDS_AGE_MS = 30000 };

struct counts {
    cJSON *json;
    int64_t running;
};

static void see_count(const char *status, int64_t count, void *context) {
    struct counts *const counts = context;
    json_add_i64(counts->json, status, count);
    if (str_equal(status, "running") || str_equal(status, "validating_files"))
        counts->running += count;
}

enum status api_system_get(void *context, struct http_request *q, struct http_reply *r,
                           struct err *e) {
    (void)q;
    const struct app *const app = context;
    cJSON *system = cJSON_CreateObject();
    json_add_string(system, "object", "plimsoll.system");
    json_add_string(system, "version", PLIMSOLL_VERSION);
    json_add_number(system, "uptime_seconds", (double)(clock_unix_ms() - app->started_ms) / 1000);
    struct counts counts = {.json = cJSON_AddObjectToObject(system, "jobs")};
    const enum status status = store_job_counts(app->store, see_count, &counts, e);
    cJSON *cards = devices_list(app->devices, app->engine, CARDS_AGE_MS);
    const struct monitor_view view = {
        .data_folder = store_folder(app->store), .cards = cards, .running = counts.running};
    monitor_add(system, &view);
    cJSON_Delete(cards);
    http_reply_json(r, system);
    return status;
}

enum status api_system_spec(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e) {
    (void)context;
    (void)q;
    (void)e;
    http_reply_json(r, api_list(spec_keys_to_json(), false));
    return STATUS_OK;
}

enum status api_system_health(void *context, struct http_request *q, struct http_reply *r,
                              struct err *e) {
    (void)q;
    const struct app *const app = context;
    int64_t ahead = 0;
    const struct job_row none = {0};
    TRY(store_job_ahead(app->store, &none, &ahead, e)); /* the store answers */
    str_append(&r->body, "{\"status\":\"ok\"}\n");
    return STATUS_OK;
}
