/* job_wishes.c - what the operator wants of a job while it runs: a remedy, one taken back, another
 * cap.
 *
 * The wish goes into the run directory's control.json, and the run answers with events: here is
 * only checked that there is a run to ask, and that the wish can be understood. A cap goes through
 * the supervisor, which knows what other jobs claim. */
#include <string.h>

#include "base/mem.h"
#include "engine/rundir.h"
#include "server/api/api.h"

enum { NAME_MAX_CHARS = 31 };

static enum status check_runs(const struct job_row *job, struct err *e) {
    FAIL_IF(strcmp(job->status, "running") != 0, STATUS_CONFLICT,
            "job %s is %s: only a job that runs can be told so", job->id, job->status);
    return STATUS_OK;
}

static enum status check_name(const char *name, const char *key, struct err *e) {
    const size_t length = name ? strlen(name) : 0;
    if (length > 0 && length <= NAME_MAX_CHARS &&
        strspn(name, "abcdefghijklmnopqrstuvwxyz_") == length)
        return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, key,
                         "%s must be the name of a remedy, such as \"micro_batch\"", key);
}

/* The remedies that a job waits to hear about are the only ones that can be answered. */
static enum status check_offered(const struct app *app, const struct job_row *job, const char *name,
                                 struct err *e) {
    cJSON *attention = NULL;
    TRY(job_attention(app->store, job, &attention, e));
    if (!attention) return STATUS_OK;
    struct str offered = {0};
    bool found = false;
    const cJSON *const remedies = json_member(attention, "remedies");
    for (const cJSON *one = remedies ? remedies->child : NULL; one; one = one->next) {
        const char *known = NULL;
        struct err ignored = {0};
        (void)json_get_string(one, "remedy", &known, &ignored);
        found = found || str_equal(known, name);
        str_appendf(&offered, "%s%s", offered.len ? ", " : "", known ? known : "?");
    }
    if (!found)
        err_set_param(e, STATUS_CONFLICT, "remedy", "job %s does not offer %s; it offers %s",
                      job->id, name, str_text(&offered));
    str_release(&offered);
    cJSON_Delete(attention);
    return found ? STATUS_OK : e->status;
}

static enum status remedy_wish(const struct app *app, const struct job_row *job, const cJSON *body,
                               cJSON *wish, struct err *e) {
    const char *name = NULL, *undo = NULL;
    bool accept = true;
    TRY(json_get_string(body, "remedy", &name, e));
    TRY(json_get_string(body, "undo", &undo, e));
    TRY(json_get_bool(body, "accept", &accept, e));
    FAIL_IF(!name == !undo, STATUS_INVALID,
            "the body must name a remedy with accept true or false, or one to undo: "
            "{\"remedy\":\"micro_batch\",\"accept\":true} or {\"undo\":\"micro_batch\"}");
    if (undo) {
        TRY(check_name(undo, "undo", e));
        json_add_string(wish, "undo", undo);
        return STATUS_OK;
    }
    TRY(check_name(name, "remedy", e));
    TRY(check_offered(app, job, name, e));
    cJSON *const remedy = cJSON_AddObjectToObject(wish, "remedy");
    json_add_string(remedy, "name", name);
    json_add_bool(remedy, "accept", accept);
    return STATUS_OK;
}

/* Where jobs share a device the cap is also a claim: the supervisor checks and writes it. */
static enum status give_cap(const struct app *app, const struct job_row *job, const cJSON *body,
                            struct err *e) {
    const cJSON *const wanted = json_member(body, "cap");
    struct spec_cap cap = {0};
    if (!wanted) {
        return err_set_param(e, STATUS_INVALID, "cap",
                             "the body must say {\"cap\":\"24GiB\"}, or a share such as \"90%%\"");
    }
    TRY(spec_cap_parse(&cap, wanted, "cap", e));
    return supervisor_change_cap(app->supervisor, job->id, &cap, e);
}

static enum status give_remedy(const struct app *app, const struct job_row *job, const cJSON *body,
                               struct err *e) {
    cJSON *wish = cJSON_CreateObject();
    char *run = NULL;
    enum status status = STATUS_OK;
    GUARD(remedy_wish(app, job, body, wish, e));
    run = store_run_folder(app->store, job->id);
    status = rundir_control_wish(run, wish, e);
    wish = NULL;
done:
    cJSON_Delete(wish);
    mem_free(run);
    return status;
}

/* What becomes of a body. */
typedef enum status wish_giver(const struct app *app, const struct job_row *job, const cJSON *body,
                               struct err *e);

static enum status take_wish(const struct app *app, const char *id, wish_giver *give,
                             const cJSON *body, struct err *e) {
    struct job_row job = {0};
    enum status status = store_job_get(app->store, id, &job, e);
    if (status == STATUS_OK) status = check_runs(&job, e);
    if (status == STATUS_OK) status = give(app, &job, body, e);
    job_row_release(&job);
    return status;
}

static enum status answer(const struct app *app, struct http_request *q, wish_giver *give,
                          struct http_reply *r, struct err *e) {
    const char *const id = q->parameters[0];
    cJSON *body = NULL, *job = NULL;
    struct job_row row = {0};
    TRY(json_parse(str_text(&q->body), q->body.len, "the request's body", &body, e));
    enum status status = take_wish(app, id, give, body, e);
    if (status == STATUS_OK) status = store_job_get(app->store, id, &row, e);
    if (status == STATUS_OK) status = job_to_json(app->store, &row, &job, e);
    if (status == STATUS_OK) http_reply_json(r, job);
    job_row_release(&row);
    cJSON_Delete(body);
    return status;
}

enum status api_jobs_remedy(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e) {
    return answer(context, q, give_remedy, r, e);
}

enum status api_jobs_cap(void *context, struct http_request *q, struct http_reply *r,
                         struct err *e) {
    return answer(context, q, give_cap, r, e);
}
