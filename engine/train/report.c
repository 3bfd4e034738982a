/* report.c - events from the trainer's numbers.
 *
 * The fields are listed in engine/events.h. */
#include "engine/train/report.h"

#include "base/mem.h"
#include "engine/train/corpus_report.h"

enum status report_phase(struct event_log *log, const char *phase, struct err *e) {
    cJSON *const fields = cJSON_CreateObject();
    json_add_string(fields, "phase", phase);
    return event_write(log, EVENT_PHASE, fields, e);
}

enum status report_log(struct event_log *log, const char *level, const char *message,
                       struct err *e) {
    cJSON *const fields = cJSON_CreateObject();
    json_add_string(fields, "level", level);
    json_add_string(fields, "message", message);
    return event_write(log, EVENT_LOG, fields, e);
}

enum status report_start(struct event_log *log, const struct start_report *r, struct err *e) {
    const struct dataset_counts *const c = &r->corpus->train.counts;
    cJSON *const fields = cJSON_CreateObject();
    json_add_i64(fields, "total_steps", r->corpus->total_steps);
    json_add_i64(fields, "steps_per_epoch", r->corpus->batcher.steps_per_epoch);
    json_add_number(fields, "num_train_epochs", r->spec->num_train_epochs);
    json_add_i64(fields, "rows", c->rows);
    json_add_i64(fields, "samples", c->samples);
    json_add_i64(fields, "tokens", c->tokens);
    json_add_i64(fields, "trained_tokens", c->trained_tokens);
    json_add_i64(fields, "longest", c->longest);
    cJSON_AddItemToObject(fields, "counts", report_counts(c, &r->spec->data.train_files));
    json_add_i64(fields, "planned_peak_bytes", r->plan->stats.allocated_peak);
    json_add_i64(fields, "capacity_bytes", r->capacity);
    json_add_i64(fields, "parameters", r->plan->parameters);
    json_add_i64(fields, "trainable_parameters", r->plan->trainable_parameters);
    json_add_string(fields, "device", r->device->detail);
    json_add_i64(fields, "resumed_from_step", r->resumed_from_step);
    return event_write(log, EVENT_START, fields, e);
}

enum status report_alloc_conf(struct event_log *log, const struct alloc_conf *conf, struct err *e) {
    struct str text = {0};
    alloc_conf_describe(conf, &text);
    const enum status status = text.len ? report_log(log, "info", str_text(&text), e) : STATUS_OK;
    str_release(&text);
    return status;
}

static double ratio(double a, int64_t b) {
    return b > 0 ? a / (double)b : 0;
}

/* Who is slow, and whether it has more to do. */
static void add_parts(cJSON *fields, const struct gang_part *parts, int64_t ranks) {
    cJSON *const list = cJSON_AddArrayToObject(fields, "ranks");
    for (int64_t rank = 0; rank < ranks; rank++) {
        cJSON *const one = cJSON_CreateObject();
        json_add_i64(one, "tokens", parts[rank].tokens);
        json_add_i64(one, "trained_tokens", parts[rank].trained);
        json_add_number(one, "seconds", parts[rank].seconds);
        json_add_number(one, "waited_seconds", parts[rank].waited);
        cJSON_AddItemToArray(list, one);
    }
}

enum status report_step(struct event_log *log, const struct step_report *r, struct err *e) {
    cJSON *const fields = cJSON_CreateObject();
    json_add_i64(fields, "step", r->step);
    json_add_i64(fields, "total_steps", r->total_steps);
    event_add_number(fields, "epoch", r->epoch);
    event_add_number(fields, "loss", r->loss);
    event_add_number(fields, "grad_norm", r->grad_norm);
    event_add_number(fields, "learning_rate", r->learning_rate);
    event_add_number(fields, "mean_token_accuracy", ratio((double)r->correct, r->trained_tokens));
    json_add_i64(fields, "tokens", r->tokens);
    json_add_i64(fields, "trained_tokens", r->trained_tokens);
    event_add_number(fields, "tokens_per_second",
                     r->seconds > 0 ? (double)r->tokens / r->seconds : 0);
    event_add_number(fields, "seconds", r->seconds);
    if (r->ranks > 1) add_parts(fields, r->parts, r->ranks);
    return event_write(log, EVENT_STEP, fields, e);
}

enum status report_skipped(struct event_log *log, const struct loss_scaling *scaling, int64_t step,
                           struct err *e) {
    char *text = str_format("the update of step %lld was skipped: its gradient overflowed in fp16; "
                            "the loss scale is now %.0f, %lld updates were skipped so far",
                            (long long)step, scaling->scale, (long long)scaling->skipped);
    const enum status status = report_log(log, "warn", text, e);
    mem_free(text);
    return status;
}

enum status report_eval(struct event_log *log, int64_t step, const struct step_sums *sums,
                        double seconds, struct err *e) {
    cJSON *const fields = cJSON_CreateObject();
    json_add_i64(fields, "step", step);
    event_add_number(fields, "loss", ratio(sums->loss, sums->trained));
    event_add_number(fields, "mean_token_accuracy", ratio((double)sums->correct, sums->trained));
    json_add_i64(fields, "trained_tokens", sums->trained);
    event_add_number(fields, "seconds", seconds);
    return event_write(log, EVENT_EVAL, fields, e);
}

void report_error(struct event_log *log, const struct err *failure) {
    cJSON *const fields = cJSON_CreateObject();
    /* A library's words for a lack of memory, and then what they mean. */
    const char *const meaning = diagnosis_translate(failure->text, NULL);
    char *message = meaning ? str_format("%s. %s", failure->text, meaning) : NULL;
    json_add_string(fields, "status", status_name(failure->status));
    json_add_string(fields, "message", message ? message : failure->text);
    mem_free(message);
    json_add_string(fields, "param", failure->param[0] ? failure->param : NULL);
    struct err ignored = {0}; /* the log itself may be what failed; the exit code still says so */
    event_write(log, EVENT_ERROR, fields, &ignored);
}
