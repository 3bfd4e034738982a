/* moves.c - see moves.h.
 *
 * A move that the store refuses leaves the row ahead of the database: the caller reads it again. */
#include "server/run/moves.h"

#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "server/run/follow.h"

void move_set_state(struct job_row *job, const char *status, const char *phase) {
    row_text(&job->status, status);
    row_text(&job->phase, phase);
}

bool move_is_wished(const struct job_row *job, const char *wish) {
    return job->wish && strcmp(job->wish, wish) == 0;
}

enum status move_job(const struct run_place *place, struct job_row *job, struct move_words words,
                     struct err *e) {
    struct store *const store = place->store;
    TRY(store_begin(store, e));
    enum status status = follow_say(store, job, words.level, words.message, e);
    if (status == STATUS_OK) status = follow_state(store, job, e);
    status = store_end(store, status, e);
    place->news(place->context);
    return status;
}

enum status move_settle(const struct run_place *place, struct job_row *job, const char *status,
                        struct move_words words, struct err *e) {
    move_set_state(job, status, status);
    job->rank_pid = job->rank_start = 0;
    row_text(&job->rank_boot, NULL);
    const bool waits = strcmp(status, "paused") == 0 || strcmp(status, "queued") == 0;
    if (!waits) job->finished_at = clock_unix_ms() / 1000;
    TRY(store_begin(place->store, e));
    enum status result = store_job_wish(place->store, job->id, NULL, e);
    if (result == STATUS_OK) result = move_job(place, job, words, e);
    result = store_end(place->store, result, e);
    place->news(place->context);
    return result;
}

static void set_error(struct job_row *job, const struct err *error) {
    cJSON *object = cJSON_CreateObject();
    json_add_string(object, "code", status_name(error->status));
    json_add_string(object, "message", error->text);
    json_add_string(object, "param", error->param[0] ? error->param : NULL);
    struct str text = {0};
    json_append(&text, object);
    cJSON_Delete(object);
    mem_free(job->error);
    job->error = str_take(&text);
}

enum status move_settle_failed(const struct run_place *place, struct job_row *job,
                               const struct err *reason, struct err *e) {
    set_error(job, reason);
    char *message = str_format("The job failed: %s", reason->text);
    const enum status status =
        move_settle(place, job, "failed", (struct move_words){"error", message}, e);
    mem_free(message);
    return status;
}

static enum status settle_wish(const struct run_place *place, struct job_row *job, struct err *e) {
    if (move_is_wished(job, "cancel"))
        return move_settle(place, job, "cancelled", (struct move_words){"info", "Cancelled"}, e);
    if (move_is_wished(job, "pause"))
        return move_settle(place, job, "paused", (struct move_words){"info", "Paused"}, e);
    job->queued_ms = clock_unix_ms();
    job->crashes = 0;
    job->finished_at = 0;
    row_text(&job->error, NULL);
    return move_settle(place, job, "queued",
                       (struct move_words){"info", "Resumed: waiting for its turn"}, e);
}

/* One at a time, since each look shows the newest wish. */
enum status move_settle_wished(const struct run_place *place, struct err *e) {
    bool more = true;
    while (more) {
        struct job_list list = {0};
        enum status status = store_job_pick(place->store, JOB_WISHED, 1, &list, e);
        if (status == STATUS_OK && list.count > 0) status = settle_wish(place, &list.rows[0], e);
        more = list.more;
        job_list_release(&list);
        TRY(status);
    }
    return STATUS_OK;
}
