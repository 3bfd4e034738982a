/* api.h - the REST API: one file per resource, one function per route.
 *
 * Shapes are those of OpenAI's fine-tuning API; what is ours lives in a member `plimsoll` of each
 * object. Handlers run on many threads and share nothing but the store. */
#ifndef PLIMSOLL_SERVER_API_API_H
#define PLIMSOLL_SERVER_API_API_H

#include "server/app.h"
#include "server/web/http.h"

/* The table of routes. */
const struct http_route *api_routes(int64_t *count);
/* The page. */
enum status api_page(void *context, struct http_request *q, struct http_reply *r, struct err *e);

/* One function per route, all of one form; `context` is a struct app. */
enum status api_files_create(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e);
enum status api_files_list(void *context, struct http_request *q, struct http_reply *r,
                           struct err *e);
enum status api_files_get(void *context, struct http_request *q, struct http_reply *r,
                          struct err *e);
enum status api_files_delete(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e);
enum status api_files_content(void *context, struct http_request *q, struct http_reply *r,
                              struct err *e);
enum status api_files_report(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e);
enum status api_files_preview(void *context, struct http_request *q, struct http_reply *r,
                              struct err *e);
enum status api_jobs_create(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e);
enum status api_jobs_list(void *context, struct http_request *q, struct http_reply *r,
                          struct err *e);
enum status api_jobs_get(void *context, struct http_request *q, struct http_reply *r,
                         struct err *e);
enum status api_jobs_cancel(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e);
enum status api_jobs_pause(void *context, struct http_request *q, struct http_reply *r,
                           struct err *e);
enum status api_jobs_resume(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e);
enum status api_jobs_remedy(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e);
enum status api_jobs_cap(void *context, struct http_request *q, struct http_reply *r,
                         struct err *e);
enum status api_jobs_events(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e);
enum status api_jobs_checkpoints(void *context, struct http_request *q, struct http_reply *r,
                                 struct err *e);
enum status api_jobs_stream(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e);
enum status api_jobs_metrics(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e);
enum status api_jobs_memory(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e);
enum status api_jobs_memory_record(void *context, struct http_request *q, struct http_reply *r,
                                   struct err *e);
enum status api_jobs_memory_timeline(void *context, struct http_request *q, struct http_reply *r,
                                     struct err *e);
enum status api_jobs_memory_snapshot(void *context, struct http_request *q, struct http_reply *r,
                                     struct err *e);
enum status api_jobs_memory_summary(void *context, struct http_request *q, struct http_reply *r,
                                    struct err *e);
enum status api_jobs_log(void *context, struct http_request *q, struct http_reply *r,
                         struct err *e);
enum status api_jobs_adapter(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e);
enum status api_models_list(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e);
enum status api_models_get(void *context, struct http_request *q, struct http_reply *r,
                           struct err *e);
enum status api_models_delete(void *context, struct http_request *q, struct http_reply *r,
                              struct err *e);
enum status api_devices_list(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e);
enum status api_plan_create(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e);
enum status api_system_get(void *context, struct http_request *q, struct http_reply *r,
                           struct err *e);
enum status api_system_spec(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e);
enum status api_prometheus(void *context, struct http_request *q, struct http_reply *r,
                           struct err *e);
enum status api_system_health(void *context, struct http_request *q, struct http_reply *r,
                              struct err *e);

/* after, limit of a list; `limit` is the preset. */
enum status api_page_of(const struct http_request *q, int64_t limit, struct page *out,
                        struct err *e);
/* {"object":"list","data":[...],"first_id","last_id","has_more"}; takes ownership of `data`. */
cJSON *api_list(cJSON *data, bool has_more);
/* Parses stored JSON text; NULL gives JSON null. Takes nothing. */
cJSON *api_parsed(const char *text);

/* A base model or a fine-tuned one. Release with model_ref_release. */
struct model_ref {
    char *folder;  /* of the base model, or of the result of a full fine-tuning */
    char *adapter; /* folder of the adapter on top of it, or NULL */
};
void model_ref_release(struct model_ref *ref);
/* STATUS_NOT_FOUND names the models that are there. */
enum status model_find(const struct app *app, const char *id, struct model_ref *out, struct err *e);
/* The name of the base model where there is exactly one; else STATUS_INVALID names those there are.
 * Caller frees with mem_free. */
enum status model_only(const struct app *app, char **id, struct err *e);

/* The whole Job object. */
enum status job_to_json(struct store *store, const struct job_row *job, cJSON **out, struct err *e);
/* The question that a running job waits to be answered (its attention event); NULL: there is none.
 * Caller frees with cJSON_Delete. */
enum status job_attention(struct store *store, const struct job_row *job, cJSON **out,
                          struct err *e);
/* For sse_open: the data of one event. */
enum status job_render_event(struct store *store, const char *job_id, const struct event_row *event,
                             struct str *out, struct err *e);
/* Checks the body of a create call and turns it into what is stored: request and spec, both JSON
 * text in `row`, with id, model, training_file, status and times filled in. */
enum status job_from_body(const struct app *app, const cJSON *body, struct job_row *row,
                          struct err *e);
/* Checks the body of a plan: that of a create call, in which training_file may be missing and the
 * model only known by name, "card" and "probe". */
struct plan_body {
    char *spec;       /* JSON text; the caller frees it with mem_free */
    const char *card; /* points into the body, or NULL */
    bool by_name;     /* the model is not here */
    bool probe;       /* try it with real steps */
};
enum status plan_from_body(const struct app *app, const cJSON *body, struct plan_body *plan,
                           struct err *e);
/* The metrics object; see metrics.c. */
struct metrics_request {
    int64_t points, from_step, to_step;
};
enum status metrics_write(struct store *store, const struct job_row *job,
                          const struct metrics_request *request, struct str *out, struct err *e);

#endif
