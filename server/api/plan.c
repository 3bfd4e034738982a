/* plan.c - /v1/plan: what a job would need, before it is made.
 *
 * The engine answers, in a process of its own with a deadline, and what it prints is passed on: the
 * plan is the engine on a device that computes nothing, so there is nothing to add. The spec goes
 * to it on stdin. Nothing is stored. */
#include "server/api/api.h"

#include <string.h>

#include "base/mem.h"
#include "server/run/launch.h"
#include "server/run/process.h"

enum {
    PLAN_LIMIT_MS = 120000,  /* of a model with data; without, it takes milliseconds */
    PROBE_LIMIT_MS = 600000, /* of some dozen real steps, of a model that is loaded first */
    PLACE_LIMIT_MS = 30000,  /* for a place at the gate */
    PLAN_BYTES_MAX = 4 << 20,
    BUSY_CODE = 503
};

static enum status refused(const struct process_output *output, struct err *e) {
    cJSON *answer = NULL;
    struct err unread = {0};
    (void)json_parse(str_text(&output->out), output->out.len, "answer", &answer, &unread);
    const bool said = launch_read_error(json_member(answer, "error"), e);
    cJSON_Delete(answer);
    if (said) return e->status;
    return err_set(e, STATUS_INTERNAL, "planning gave no answer (exit code %d): %s",
                   output->exit_code, str_text(&output->err));
}

static enum status ask(const struct app *app, const struct plan_body *plan,
                       const struct http_request *q, struct str *answer, struct err *e) {
    const struct str input = {.data = plan->spec, .len = strlen(plan->spec)};
    const char *argv[9] = {app->engine, "plan", "-"};
    int argc = 3;
    if (plan->by_name) argv[argc++] = "--by-name";
    if (plan->card) argv[argc++] = "--card";
    if (plan->card) argv[argc++] = plan->card;
    if (plan->probe) argv[argc++] = "--probe";
    const struct process_question question = {.argv = argv,
                                              .input = &input,
                                              .bytes_max = PLAN_BYTES_MAX,
                                              .limit_ms =
                                                  plan->probe ? PROBE_LIMIT_MS : PLAN_LIMIT_MS,
                                              .gone = http_client_gone,
                                              .context = q};
    struct process_output output = {0};
    enum status status = STATUS_OK;
    GUARD(process_capture(&question, &output, e));
    if (output.exit_code != 0) GUARD(refused(&output, e));
    GUARD_IF(output.out.len < 2 || output.out.data[0] != '{', STATUS_INTERNAL,
             "the engine's plan is no JSON object");
    str_append(answer, "{\"object\":\"plan\",");
    str_append_bytes(answer, output.out.data + 1, output.out.len - 1);
done:
    process_output_release(&output);
    return status;
}

/* Real steps take a device from whoever is on it. */
static enum status check_idle(const struct app *app, const struct plan_body *plan, struct err *e) {
    struct job_list active = {0};
    if (!plan->probe) return STATUS_OK;
    TRY(store_job_pick(app->store, JOB_ACTIVE, 1, &active, e));
    enum status status = STATUS_OK;
    if (active.count > 0)
        status = err_set_param(e, STATUS_CONFLICT, "probe",
                               "job %s is running: a probe makes real steps and would take memory "
                               "and time from it; ask again when it is done",
                               active.rows[0].id);
    job_list_release(&active);
    return status;
}

enum status api_plan_create(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e) {
    const struct app *const app = context;
    struct plan_body plan = {0};
    cJSON *body = NULL;
    TRY(json_parse(str_text(&q->body), q->body.len, "the request's body", &body, e));
    enum status status = STATUS_OK;
    GUARD(plan_from_body(app, body, &plan, e));
    GUARD(check_idle(app, &plan, e));
    r->code = BUSY_CODE;
    GUARD(gate_enter(app->plans, PLACE_LIMIT_MS, e));
    r->code = 0;
    status = ask(app, &plan, q, &r->body, e);
    gate_leave(app->plans);
done:
    mem_free(plan.spec);
    cJSON_Delete(body);
    return status;
}
