/* devices.c - /v1/devices: the CPU and the GPUs of this machine, as the engine tells.
 *
 * The server itself knows nothing of GPUs. The engine is asked at most once in KEPT_MS, and by one
 * request at a time: whoever comes meanwhile waits for the same answer. */
#include "server/api/devices.h"

#include <pthread.h>

#include "base/host.h"
#include "base/mem.h"
#include "server/api/api.h"
#include "server/run/launch.h"

/* Free memory changes when a job starts; a person who looks again a little later sees it. */
enum { KEPT_MS = 5000, DEVICES_LIMIT_MS = 20000, DEVICES_BYTES_MAX = 1 << 20 };
/* Who only wants to mention the cards does not wait long for a driver that hangs, nor every time.
 */
enum { MENTION_LIMIT_MS = 3000, MENTION_PAUSE_MS = 60000 };

struct devices_known {
    pthread_mutex_t lock;
    int64_t asked_ns;           /* 0: never */
    int64_t failed_ns;          /* of the newest mention that got no answer; 0: none */
    char *text;                 /* the engine's JSON */
    pthread_mutex_t sizes_lock; /* held for a moment only, never while the engine is asked */
    char *sizes;                /* the first answer: how large devices are never changes */
};

struct devices_known *devices_known_new(void) {
    struct devices_known *const known = mem_new(1, sizeof *known);
    pthread_mutex_init(&known->lock, NULL);
    pthread_mutex_init(&known->sizes_lock, NULL);
    return known;
}

void devices_known_free(struct devices_known *known) {
    if (!known) return;
    pthread_mutex_destroy(&known->lock);
    pthread_mutex_destroy(&known->sizes_lock);
    mem_free(known->text);
    mem_free(known->sizes);
    mem_free(known);
}

static enum status ask_engine(const char *engine, int64_t limit_ms, char **text, struct err *e) {
    const char *const argv[] = {engine, "devices", NULL};
    const struct process_question question = {
        .argv = argv, .bytes_max = DEVICES_BYTES_MAX, .limit_ms = limit_ms};
    struct process_output output = {0};
    cJSON *json = NULL;
    enum status status = STATUS_OK;
    GUARD(process_capture(&question, &output, e));
    GUARD(json_parse(str_text(&output.out), output.out.len, "the engine's devices", &json, e));
    if (launch_read_error(json_member(json, "error"), e)) GUARD(e->status);
    GUARD_IF(!cJSON_IsArray(json_member(json, "devices")), STATUS_INTERNAL,
             "the engine's answer lists no devices");
    *text = str_take(&output.out);
done:
    cJSON_Delete(json);
    process_output_release(&output);
    return status;
}

/* How old an answer may be, and how long one waits for a new one. */
struct patience {
    int64_t age_ms, limit_ms;
};
static const struct patience PATIENT = {KEPT_MS, DEVICES_LIMIT_MS};

/* With the lock held. */
static enum status refresh(struct devices_known *known, const char *engine,
                           struct patience patience, struct err *e) {
    const int64_t now = clock_steady_ns();
    if (known->asked_ns && now - known->asked_ns < patience.age_ms * INT64_C(1000000))
        return STATUS_OK;
    char *text = NULL;
    TRY(ask_engine(engine, patience.limit_ms, &text, e));
    mem_free(known->text);
    known->text = text;
    known->asked_ns = clock_steady_ns();
    pthread_mutex_lock(&known->sizes_lock);
    if (!known->sizes) known->sizes = mem_strdup(text);
    pthread_mutex_unlock(&known->sizes_lock);
    return STATUS_OK;
}

/* For who can do without an answer. */
static enum status refresh_mention(struct devices_known *known, const char *engine, int64_t age_ms,
                                   struct err *e) {
    const struct patience patience = {age_ms, MENTION_LIMIT_MS};
    const int64_t now = clock_steady_ns();
    FAIL_IF(known->failed_ns && now - known->failed_ns < MENTION_PAUSE_MS * INT64_C(1000000),
            STATUS_TIMEOUT, "the engine did not say lately what devices there are");
    const enum status status = refresh(known, engine, patience, e);
    known->failed_ns = status == STATUS_OK ? 0 : clock_steady_ns();
    return status;
}

cJSON *devices_list(struct devices_known *known, const char *engine, int64_t age_ms) {
    struct err ignored = {0};
    pthread_mutex_lock(&known->lock);
    const enum status status = refresh_mention(known, engine, age_ms, &ignored);
    cJSON *const told = status == STATUS_OK ? api_parsed(known->text) : NULL;
    pthread_mutex_unlock(&known->lock);
    cJSON *const list = cJSON_DetachItemFromObjectCaseSensitive(told, "devices");
    cJSON_Delete(told);
    return list ? list : cJSON_CreateNull();
}

static int64_t total_in(const char *text, const char *device) {
    cJSON *const told = api_parsed(text);
    const cJSON *one = NULL;
    int64_t total = -1;
    cJSON_ArrayForEach(one, json_member(told, "devices")) {
        const char *id = NULL;
        struct err ignored = {0};
        (void)json_get_string(one, "id", &id, &ignored);
        if (str_equal(id, device)) (void)json_get_i64(one, "total_bytes", &total, &ignored);
    }
    cJSON_Delete(told);
    return total;
}

int64_t devices_total(struct devices_known *known, const char *engine, const char *device) {
    if (str_equal(device, "cpu")) return host_memory().total;
    struct err ignored = {0};
    pthread_mutex_lock(&known->sizes_lock);
    const bool asks = !known->sizes;
    pthread_mutex_unlock(&known->sizes_lock);
    if (asks) {
        pthread_mutex_lock(&known->lock);
        (void)refresh_mention(known, engine, KEPT_MS, &ignored);
        pthread_mutex_unlock(&known->lock);
    }
    pthread_mutex_lock(&known->sizes_lock);
    const int64_t total = known->sizes ? total_in(known->sizes, device) : -1;
    pthread_mutex_unlock(&known->sizes_lock);
    return total;
}

enum status api_devices_list(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e) {
    (void)q;
    const struct app *const app = context;
    struct devices_known *const known = app->devices;
    pthread_mutex_lock(&known->lock);
    const enum status status = refresh(known, app->engine, PATIENT, e);
    cJSON *const told = status == STATUS_OK ? api_parsed(known->text) : NULL;
    pthread_mutex_unlock(&known->lock);
    TRY(status);
    cJSON *const list = api_list(cJSON_DetachItemFromObjectCaseSensitive(told, "devices"), false);
    cJSON_AddItemToObject(list, "driver", cJSON_DetachItemFromObjectCaseSensitive(told, "driver"));
    cJSON_AddItemToObject(list, "reason", cJSON_DetachItemFromObjectCaseSensitive(told, "reason"));
    cJSON_Delete(told);
    http_reply_json(r, list);
    return STATUS_OK;
}
