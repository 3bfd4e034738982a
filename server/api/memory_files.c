/* memory_files.c - one step's memory: asking a run to record it, and what it wrote as downloads:
 * the timeline, the snapshot for PyTorch's viewer, the summary table.
 *
 * The files are the engine's (engine/train/watching.h); nothing of them is read here. */
#include <fcntl.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/rundir.h"
#include "server/api/api.h"

enum { RANKS_MAX = 4096 };

/* One of the files that a rank writes. */
struct memory_file {
    char *(*path)(const char *run, int64_t rank);
    const char *what, *content_type;
    const char *download; /* end of the file's name, or NULL: it is shown */
};

static enum status send_file(const struct app *app, struct http_request *q, struct http_reply *r,
                             const struct memory_file *file, struct err *e) {
    struct job_row job = {0};
    int64_t rank = 0;
    const struct http_bounds bounds = {0, RANKS_MAX};
    TRY(http_query_i64(q, "rank", bounds, &rank, e));
    TRY(store_job_get(app->store, q->parameters[0], &job, e));
    char *run = store_run_folder(app->store, job.id);
    char *path = file->path(run, rank);
    enum status status = STATUS_OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    GUARD_IF(fd < 0, STATUS_NOT_FOUND,
             "there is no %s of rank %lld of job %s: ask for one with POST "
             "/v1/fine_tuning/jobs/%s/memory/snapshot while the job runs; it is of the next step",
             file->what, (long long)rank, job.id, job.id);
    r->fd_plus_1 = fd + 1;
    r->content_type = file->content_type;
    GUARD(file_size(path, &r->fd_bytes, e));
    if (file->download) {
        char *disposition = str_format("attachment; filename=\"%s-rank%lld%s\"", job.id,
                                       (long long)rank, file->download);
        http_reply_header(r, "Content-Disposition", disposition);
        mem_free(disposition);
    }
done:
    mem_free(path);
    mem_free(run);
    job_row_release(&job);
    return status;
}

/* An older snapshot must not be taken for the one that was asked for. */
static enum status remove_old(const char *run, struct err *e) {
    char **names = NULL;
    size_t count = 0;
    char *folder = rundir_memory(run);
    enum status status = file_is_folder(folder) ? file_list(folder, &names, &count, e) : STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        if (!str_starts_with(names[i], "snapshot.")) continue;
        char *path = file_join(folder, names[i]);
        status = file_remove_all(path, e);
        mem_free(path);
    }
    file_names_free(names, count);
    mem_free(folder);
    return status;
}

enum status api_jobs_memory_record(void *context, struct http_request *q, struct http_reply *r,
                                   struct err *e) {
    const struct app *const app = context;
    struct job_row job = {0};
    TRY(store_job_get(app->store, q->parameters[0], &job, e));
    char *run = store_run_folder(app->store, job.id);
    enum status status = STATUS_OK;
    GUARD_IF(!str_equal(job.status, "running"), STATUS_CONFLICT,
             "job %s is %s: a snapshot is recorded while a job runs", job.id, job.status);
    GUARD(remove_old(run, e));
    cJSON *const wish = cJSON_CreateObject();
    json_add_bool(wish, "snapshot", true);
    GUARD(rundir_control_wish(run, wish, e));
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "object", "plimsoll.memory.snapshot");
    json_add_string(json, "job", job.id);
    json_add_string(json, "message", "The next step is recorded; then GET this address.");
    r->code = 202;
    http_reply_json(r, json);
done:
    mem_free(run);
    job_row_release(&job);
    return status;
}

enum status api_jobs_memory_timeline(void *context, struct http_request *q, struct http_reply *r,
                                     struct err *e) {
    static const struct memory_file FILE = {rundir_timeline, "timeline", NULL, NULL};
    return send_file(context, q, r, &FILE, e);
}

enum status api_jobs_memory_snapshot(void *context, struct http_request *q, struct http_reply *r,
                                     struct err *e) {
    static const struct memory_file FILE = {rundir_snapshot, "snapshot", "application/octet-stream",
                                            ".pickle"};
    return send_file(context, q, r, &FILE, e);
}

enum status api_jobs_memory_summary(void *context, struct http_request *q, struct http_reply *r,
                                    struct err *e) {
    static const struct memory_file FILE = {rundir_summary, "summary", "text/plain; charset=utf-8",
                                            NULL};
    return send_file(context, q, r, &FILE, e);
}
