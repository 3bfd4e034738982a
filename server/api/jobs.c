/* jobs.c - /v1/fine_tuning/jobs: creating, listing, and the three wishes.
 *
 * Nothing here changes a job's state: a wish is written down and the supervisor is woken. A
 * create call with an Idempotency-Key that was seen before gives the job that it made then. */
#include "server/api/api.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/run/follow.h"
#include "server/run/process.h"

enum { JOBS_PRESET = 20, KEY_MAX = 255, WISH_WAIT_MS = 3000, WISH_LOOK_MS = 20 };

/* FNV-1a, 64 bits: tells a repeated request from another one with the same key. Not a secret. */
static void hash_of(const struct str *text, char out[17]) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < text->len; i++) {
        hash = (hash ^ (unsigned char)text->data[i]) * 0x100000001B3u;
    }
    snprintf(out, 17, "%016llx", (unsigned long long)hash);
}

static enum status reply_job(const struct app *app, const char *id, struct http_reply *r,
                             struct err *e) {
    struct job_row row = {0};
    cJSON *job = NULL;
    TRY(store_job_get(app->store, id, &row, e));
    const enum status status = job_to_json(app->store, &row, &job, e);
    if (status == STATUS_OK) http_reply_json(r, job);
    job_row_release(&row);
    return status;
}

static enum status insert_job(struct store *store, struct job_row *row, const char *key,
                              const char *hash, struct err *e) {
    TRY(store_job_create(store, row, key, hash, e));
    TRY(follow_say(store, row, "info", "Created fine-tuning job", e));
    return follow_state(store, row, e);
}

/* The id of the job that this key has made already; NULL if there is none. */
static enum status find_repeated(const struct app *app, const char *key, const char *hash,
                                 char **id, struct err *e) {
    *id = NULL;
    if (!key) return STATUS_OK;
    FAIL_IF(strlen(key) > KEY_MAX, STATUS_INVALID, "the Idempotency-Key is longer than %d bytes",
            KEY_MAX);
    char *known = NULL;
    enum status status = store_job_by_key(app->store, key, id, &known, e);
    if (status == STATUS_OK && *id && !str_equal(known, hash)) {
        status = err_set(e, STATUS_CONFLICT,
                         "this Idempotency-Key was used for a different request, which made job %s",
                         *id);
    }
    mem_free(known);
    return status;
}

/* A request that is on its way to make a job. */
struct creation {
    const char *key; /* NULL: none */
    char hash[17];
    char *id; /* of the job, new or made before with the same key */
};

/* In one transaction: of two requests with one key the second finds what the first has made. */
static enum status insert_once(const struct app *app, struct job_row *row, struct creation *c,
                               struct err *e) {
    TRY(find_repeated(app, c->key, c->hash, &c->id, e));
    if (c->id) return STATUS_OK;
    TRY(insert_job(app->store, row, c->key, c->hash, e));
    c->id = mem_strdup(row->id);
    return STATUS_OK;
}

static enum status create(const struct app *app, const cJSON *body, struct creation *c,
                          struct err *e) {
    struct job_row row = {0};
    enum status status = job_from_body(app, body, &row, e);
    if (status == STATUS_OK) status = store_begin(app->store, e);
    if (status == STATUS_OK) {
        status = store_end(app->store, insert_once(app, &row, c, e), e);
    }
    job_row_release(&row);
    supervisor_wake(app->supervisor);
    return status;
}

enum status api_jobs_create(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e) {
    const struct app *const app = context;
    struct creation c = {.key = http_header(q, "Idempotency-Key")};
    cJSON *body = NULL;
    hash_of(&q->body, c.hash);
    TRY(json_parse(str_text(&q->body), q->body.len, "the request's body", &body, e));
    enum status status = find_repeated(app, c.key, c.hash, &c.id, e);
    if (status == STATUS_OK && !c.id) status = create(app, body, &c, e);
    if (status == STATUS_OK) status = reply_job(app, c.id, r, e);
    mem_free(c.id);
    cJSON_Delete(body);
    return status;
}

/* The query arguments metadata[key]=value; metadata=null wants jobs without any. */
static bool metadata_fits(const struct job_row *row, const void *context) {
    const struct http_request *const q = context;
    cJSON *const request = api_parsed(row->request);
    const cJSON *const metadata = json_member(request, "metadata");
    bool fits = true;
    for (int i = 0; i < q->query_count && fits; i++) {
        const char *const key = q->query[i].key;
        const size_t len = strlen(key);
        if (strcmp(key, "metadata") == 0) fits = !cJSON_IsObject(metadata);
        if (!str_starts_with(key, "metadata[") || key[len - 1] != ']') continue;
        char *name = mem_strndup(key + 9, len - 10);
        const cJSON *const value = json_member(metadata, name);
        fits = cJSON_IsString(value) && strcmp(value->valuestring, q->query[i].value) == 0;
        mem_free(name);
    }
    cJSON_Delete(request);
    return fits;
}

enum status api_jobs_list(void *context, struct http_request *q, struct http_reply *r,
                          struct err *e) {
    const struct app *const app = context;
    struct page page;
    struct job_list list = {0};
    TRY(api_page_of(q, JOBS_PRESET, &page, e));
    const struct job_filter filter = {metadata_fits, q};
    enum status status = store_job_list(app->store, &page, filter, &list, e);
    cJSON *data = cJSON_CreateArray();
    for (int64_t i = 0; i < list.count && status == STATUS_OK; i++) {
        cJSON *job = NULL;
        status = job_to_json(app->store, &list.rows[i], &job, e);
        if (job) cJSON_AddItemToArray(data, job);
    }
    http_reply_json(r, api_list(data, list.more));
    job_list_release(&list);
    return status;
}

enum status api_jobs_get(void *context, struct http_request *q, struct http_reply *r,
                         struct err *e) {
    return reply_job(context, q->parameters[0], r, e);
}

static bool is_one_of(const char *status, const char *const *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(status, list[i]) == 0) return true;
    }
    return false;
}

static enum status check_wish(const struct job_row *job, const char *wish, struct err *e) {
    static const char *const living[] = {"queued", "validating_files", "running", "paused"};
    static const char *const going[] = {"queued", "validating_files", "running"};
    if (strcmp(wish, "resume") == 0) {
        static const char *const stopped[] = {"paused", "failed"};
        FAIL_IF(!is_one_of(job->status, stopped, COUNT_OF(stopped)), STATUS_CONFLICT,
                "job %s is %s, only a paused or failed job can be resumed", job->id, job->status);
    } else if (strcmp(wish, "pause") == 0) {
        FAIL_IF(!is_one_of(job->status, going, COUNT_OF(going)), STATUS_CONFLICT,
                "job %s is %s, it cannot be paused", job->id, job->status);
    } else {
        FAIL_IF(!is_one_of(job->status, living, COUNT_OF(living)), STATUS_CONFLICT,
                "job %s has already %s", job->id,
                strcmp(job->status, "cancelled") == 0 ? "been cancelled" : job->status);
    }
    return STATUS_OK;
}

/* Wishes about jobs without a process are fulfilled at once, so the answer should already show it.
 */
static enum status wait_for_wish(const struct app *app, const char *id, struct err *e) {
    for (int waited_ms = 0; waited_ms < WISH_WAIT_MS; waited_ms += WISH_LOOK_MS) {
        struct job_row row = {0};
        TRY(store_job_get(app->store, id, &row, e));
        const bool open = row.wish && strcmp(row.status, "running") != 0;
        job_row_release(&row);
        if (!open) return STATUS_OK;
        process_pause_ms(WISH_LOOK_MS);
    }
    return STATUS_OK;
}

static enum status take_wish(const struct app *app, const char *id, const char *wish,
                             struct err *e) {
    struct job_row row = {0};
    TRY(store_begin(app->store, e));
    enum status status = store_job_get(app->store, id, &row, e);
    /* A repeated cancel of a job that is on its way there is fine: official clients repeat after a
     * lost answer. */
    const bool again = status == STATUS_OK &&
                       (str_equal(row.wish, wish) ||
                        (strcmp(wish, "cancel") == 0 && strcmp(row.status, "cancelled") == 0));
    if (status == STATUS_OK && !again) status = check_wish(&row, wish, e);
    if (status == STATUS_OK && !again) status = store_job_wish(app->store, id, wish, e);
    job_row_release(&row);
    return store_end(app->store, status, e);
}

static enum status wish_for(const struct app *app, struct http_request *q, const char *wish,
                            struct http_reply *r, struct err *e) {
    const char *const id = q->parameters[0];
    TRY(take_wish(app, id, wish, e));
    supervisor_wake(app->supervisor);
    TRY(wait_for_wish(app, id, e));
    return reply_job(app, id, r, e);
}

enum status api_jobs_cancel(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e) {
    return wish_for(context, q, "cancel", r, e);
}

enum status api_jobs_pause(void *context, struct http_request *q, struct http_reply *r,
                           struct err *e) {
    return wish_for(context, q, "pause", r, e);
}

enum status api_jobs_resume(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e) {
    return wish_for(context, q, "resume", r, e);
}
