/* launch.c - see launch.h. The engine answers with JSON on stdout and with its last words on
 * stderr; both are kept in the run directory, so that a server that comes back can read them too.
 */
#include "server/run/launch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "server/run/follow.h"
#include "server/run/outcome.h"
#include "server/run/results.h"

enum { PLAN_BYTES_MAX = 4 << 20, LOG_TAIL_BYTES = 1000 };

static enum status write_spec(const char *run, const char *spec, struct err *e) {
    cJSON *value = NULL;
    TRY(json_parse(spec, strlen(spec), "spec", &value, e));
    char *path = rundir_spec(run);
    const enum status status = json_write_file(path, value, e);
    mem_free(path);
    cJSON_Delete(value);
    return status;
}

enum status launch_plan(const char *engine, const char *run, const char *spec,
                        struct rank_identity *process, struct err *e) {
    enum status status = STATUS_OK;
    char *spec_path = rundir_spec(run);
    char *plan = file_join(run, "plan.json");
    char *log = file_join(run, "plan.log");
    GUARD(file_make_folder(run, e));
    GUARD(write_spec(run, spec, e));
    GUARD(file_remove_all(plan, e));
    GUARD(file_remove_all(log, e));
    const char *const argv[] = {engine, "plan", spec_path, run, NULL};
    const struct process_command command = {.argv = argv, .stdout_path = plan, .stderr_path = log};
    GUARD(process_start(&command, process, e));
done:
    mem_free(spec_path);
    mem_free(plan);
    mem_free(log);
    return status;
}

bool launch_read_error(const cJSON *error, struct err *out) {
    const char *name = NULL, *message = NULL, *param = NULL;
    struct err ignored = {0};
    if (!cJSON_IsObject(error)) return false;
    (void)json_get_string(error, "status", &name, &ignored);
    (void)json_get_string(error, "message", &message, &ignored);
    (void)json_get_string(error, "param", &param, &ignored);
    if (!message) return false;
    enum status status = name ? status_from_name(name) : STATUS_INTERNAL;
    if (status == STATUS_OK || status == STATUS_COUNT) status = STATUS_INTERNAL;
    err_set_param(out, status, param ? param : "", "%s", message);
    return true;
}

/* "off" forbids the changes that would make it fit. */
static bool may_change(const cJSON *plan) {
    const char *on_oom = NULL;
    struct err ignored = {0};
    const cJSON *const memory = json_member(json_member(plan, "spec"), "memory");
    return json_get_string(memory, "on_oom", &on_oom, &ignored) == STATUS_OK && on_oom &&
           strcmp(on_oom, "off") != 0;
}

static enum status refuse_unfit(const cJSON *plan, struct err *e) {
    bool fits = true, would_fit = false;
    double needed = NAN, capacity = NAN;
    char a[24], b[24];
    TRY(json_get_bool(plan, "fits", &fits, e));
    TRY(json_get_bool(plan, "fits_with_remedies", &would_fit, e));
    TRY(json_get_f64(plan, "planned_need_bytes", &needed, e));
    TRY(json_get_f64(plan, "capacity_bytes", &capacity, e));
    if (fits || (would_fit && may_change(plan))) return STATUS_OK;
    FAIL_IF(isnan(needed) || isnan(capacity), STATUS_OOM, "the run does not fit into memory");
    FAIL_IF(would_fit, STATUS_OOM,
            "the run does not fit: it would need %s and %s are there. Nothing was started. It can "
            "be made to fit without changing what is learned: set memory.on_oom to auto or ask",
            str_bytes((int64_t)needed, a), str_bytes((int64_t)capacity, b));
    return err_set(e, STATUS_OOM,
                   "the run does not fit: it would need %s and %s are there, and no change that "
                   "leaves the loss curve alone is enough. Nothing was started. Smaller: "
                   "data.max_length, r; or finetuning_type lora",
                   str_bytes((int64_t)needed, a), str_bytes((int64_t)capacity, b));
}

void launch_say_changes(const char *plan, struct str *out) {
    cJSON *value = NULL;
    struct err ignored = {0};
    bool fits = true;
    if (json_parse(plan, strlen(plan), "plan", &value, &ignored) == STATUS_OK)
        (void)json_get_bool(value, "fits", &fits, &ignored);
    const cJSON *const remedies = json_member(value, "remedies");
    for (const cJSON *one = fits || !remedies ? NULL : remedies->child; one; one = one->next) {
        const char *text = NULL;
        if (json_get_string(one, "text", &text, &ignored) != STATUS_OK || !text) continue;
        str_append(out, out->len ? " "
                                 : "As asked it would not fit; what is learned stays the "
                                   "same with these changes. ");
        str_append(out, text);
    }
    cJSON_Delete(value);
}

/* No JSON came: the process's end and its log must do. */
static enum status plan_is_missing(const char *run, struct process_end end, struct err *e) {
    char how[96];
    struct str log = {0};
    char *path = file_join(run, "plan.log");
    results_log_tail(path, LOG_TAIL_BYTES, &log);
    err_set(e, STATUS_INTERNAL, "planning the run gave no answer: the process was %s. %s",
            process_end_text(end, how), str_text(&log));
    str_release(&log);
    mem_free(path);
    return e->status;
}

enum status launch_read_plan(const char *run, struct process_end end, char **plan, struct err *e) {
    enum status status = STATUS_OK;
    cJSON *value = NULL;
    struct err unread = {0};
    struct str text = {0};
    char *path = file_join(run, "plan.json");
    if (json_read_file(path, PLAN_BYTES_MAX, &value, &unread) != STATUS_OK) {
        GUARD(plan_is_missing(run, end, e));
    }
    const cJSON *const error = json_member(value, "error");
    if (launch_read_error(error, e)) GUARD(e->status);
    const bool fine =
        end.state == PROCESS_GONE || (end.state == PROCESS_EXITED && end.exit_code == 0);
    if (!fine) GUARD(plan_is_missing(run, end, e));
    GUARD(refuse_unfit(value, e));
    cJSON_DeleteItemFromObjectCaseSensitive(value, "spec"); /* the job has it already */
    json_append(&text, value);
    *plan = str_take(&text);
done:
    cJSON_Delete(value);
    str_release(&text);
    mem_free(path);
    return status;
}

bool launch_is_about_here(const struct ranks_terms *terms, const struct err *error) {
    return terms->launcher != RANKS_LOCAL &&
           (error->status == STATUS_OOM || error->status == STATUS_DEVICE ||
            error->status == STATUS_UNSUPPORTED);
}

enum status launch_ranks(const char *engine, const char *run, const struct ranks_terms *terms,
                         struct rank_identity *process, struct err *e) {
    struct ranks_command start = {0};
    char *log = rundir_log(run, 0);
    enum status status = STATUS_OK;
    GUARD(rundir_clear_control(run, e));
    GUARD(ranks_command_make(&start, terms, engine, run, e));
    const struct process_command command = {.argv = (const char *const *)start.argv,
                                            .stdout_path = start.stdout_path,
                                            .stderr_path = log,
                                            .environment = (const char *const *)start.environment};
    GUARD(process_start(&command, process, e));
done:
    ranks_command_release(&start);
    mem_free(log);
    return status;
}

void launch_name_result(struct job_row *job) {
    cJSON *outcome = NULL;
    const char *result = NULL, *suffix = NULL;
    struct err ignored = {0};
    if (job->outcome && json_parse(job->outcome, strlen(job->outcome), "outcome", &outcome,
                                   &ignored) == STATUS_OK) {
        (void)json_get_string(outcome, "result", &result, &ignored);
    }
    row_text(&job->result, result);
    cJSON_Delete(outcome);
    if (!job->result) return;
    cJSON *request = NULL;
    if (json_parse(job->request, strlen(job->request), "request", &request, &ignored) ==
        STATUS_OK) {
        (void)json_get_string(request, "suffix", &suffix, &ignored);
    }
    const char *base = job->model;
    size_t base_len = strlen(base);
    if (str_starts_with(base, "ft:")) { /* tuned again: the name stays that of the base */
        base += 3;
        base_len = strcspn(base, ":");
    }
    const size_t id_len = strlen(job->id);
    char *name = str_format("ft:%.*s:%s:%s", (int)base_len, base, suffix ? suffix : "none",
                            job->id + (id_len > 8 ? id_len - 8 : 0));
    mem_free(job->fine_tuned_model);
    job->fine_tuned_model = name;
    cJSON_Delete(request);
}
