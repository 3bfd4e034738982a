/* run_plan.c - what `plimsoll-engine plan` answers: a run up to the point where it would need a
 * device, and what is known then.
 *
 * The same calls as a run's, in the same order, so that a plan refuses what the run would refuse.
 */
#include <string.h>

#include "base/mem.h"
#include "engine/train/corpus_report.h"
#include "engine/train/run_parts.h"

static cJSON *plan_json(const struct plan *plan, const struct corpus *corpus,
                        const struct spec *spec, int64_t capacity) {
    const struct dataset_counts *const c = &corpus->train.counts;
    cJSON *const json = plan_to_json(plan, capacity);
    json_add_i64(json, "total_steps", corpus->total_steps);
    json_add_i64(json, "steps_per_epoch", corpus->batcher.steps_per_epoch);
    json_add_i64(json, "rows", c->rows);
    json_add_i64(json, "samples", c->samples);
    json_add_i64(json, "tokens", c->tokens);
    json_add_i64(json, "trained_tokens", c->trained_tokens);
    json_add_string(json, "format", data_format_name(corpus->train.format));
    cJSON_AddItemToObject(json, "counts", report_counts(c, &spec->data.train_files));
    if (corpus->has_eval)
        cJSON_AddItemToObject(json, "eval_counts",
                              report_counts(&corpus->eval.counts, &spec->data.eval_files));
    cJSON_AddItemToObject(json, "warnings", report_lines(tokenizer_warnings(corpus->tokenizer)));
    cJSON_AddItemToObject(json, "spec", spec_to_json(spec));
    return json;
}

/* What a run would have. With memory.cap the device itself need not be there: a plan for a GPU can
 * be made anywhere. */
static enum status capacity_of(const struct run *r, int64_t *capacity, struct err *e) {
    struct device *device = NULL;
    *capacity = r->spec.memory.cap.bytes;
    if (*capacity) return STATUS_OK;
    TRY(device_open(&device, r->spec.device, &r->options.device, e));
    const enum status status = session_capacity(device, &r->spec.memory.cap, capacity, e);
    device_close(device);
    return status;
}

enum status run_plan(const char *spec_path, const char *folder, cJSON **out, struct err *e) {
    struct run *const r = mem_new(1, sizeof *r);
    int64_t capacity = 0;
    enum status status = STATUS_OK;
    if (folder) GUARD(event_log_open(&r->log, folder, 0, e));
    GUARD(run_read_spec(r, spec_path, e));
    GUARD(run_read_corpus(r, e));
    GUARD(run_make_plan(r, e));
    GUARD(capacity_of(r, &capacity, e));
    *out = plan_json(&r->plan, &r->corpus, &r->spec, capacity);
done:
    run_close(r);
    mem_free(r);
    return status;
}
