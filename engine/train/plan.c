/* plan.c - planning by running.
 *
 * There is no formula here, and no second description of the model: only the trainer's own
 * calls, in the order in which a run makes them. */
#include "engine/train/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "engine/train/generate.h"

static struct layout layout_of(const struct plan_request *r) {
    return r->layout ? *r->layout : layout_of_spec(r->spec, r->config);
}

static struct step_options step_of(struct session *s, const struct plan_request *r) {
    return (struct step_options){.layout = layout_of(r),
                                 .loss_scale = optimizer_loss_scale(&s->optimizer),
                                 .totals = optimizer_totals(&s->optimizer),
                                 .graphs = &s->graphs,
                                 .seed = (uint64_t)r->spec->seed,
                                 .grad_scale = 1};
}

static enum status train_shape(struct session *s, const struct plan_request *r,
                               const struct batch *batch, struct err *e) {
    const struct step_options options = step_of(s, r);
    for (int step = 0; step < 2; step++) {
        struct step_sums sums = {0};
        struct optimizer_report report;
        TRY(optimizer_zero_grad(&s->optimizer, e));
        TRY(step_train(&s->model, batch, &options, &sums, e));
        arena_enter(s->arena, PHASE_OPTIMIZER);
        TRY(optimizer_sum_gradients(&s->optimizer, e));
        TRY(optimizer_step(&s->optimizer, r->spec->learning_rate, &report, e));
        arena_settle(s->arena);
    }
    return STATUS_OK;
}

static enum status eval_shape(struct session *s, const struct plan_request *r,
                              const struct batch *batch, struct err *e) {
    const struct step_options options = step_of(s, r);
    struct step_sums sums = {0};
    return step_evaluate(&s->model, batch, &options, &sums, NULL, e);
}

static enum status train_shapes(struct session *s, const struct plan_request *request,
                                struct err *e) {
    struct batch batch = {0};
    enum status status = STATUS_OK;
    for (int64_t i = 0; status == STATUS_OK && i < request->train->count; i++) {
        shape_batch(&request->train->items[i], &batch);
        status = train_shape(s, request, &batch, e);
    }
    batch_release(&batch);
    return status;
}

static enum status other_shapes(struct session *s, const struct plan_request *request,
                                struct err *e) {
    struct batch batch = {0};
    enum status status = STATUS_OK;
    for (int64_t i = 0; status == STATUS_OK && request->eval && i < request->eval->count; i++) {
        shape_batch(&request->eval->items[i], &batch);
        status = eval_shape(s, request, &batch, e);
    }
    /* Rank 0 speaks for all. */
    const bool speaks = request->options->rank == 0 && request->spec->sample_prompts.count > 0;
    if (status == STATUS_OK && speaks) {
        status = generate_plan(&s->model, layout_of(request).sample_tokens, e);
    }
    batch_release(&batch);
    return status;
}

enum status plan_steps(struct session *s, const struct plan_request *request, struct err *e) {
    TRY(train_shapes(s, request, e));
    return other_shapes(s, request, e);
}

/* Every shape is trained twice. */
static double flops_per_token(const struct session *s, const struct batch_shapes *shapes) {
    double tokens = 0;
    for (int64_t i = 0; i < shapes->count; i++) {
        tokens += 2 * (double)shapes->items[i].tokens;
    }
    return tokens > 0 ? s->device->flops / tokens : 0;
}

int64_t plan_need(const struct plan *plan) {
    return plan->stats.extent_peak;
}

enum status plan_make(struct plan *plan, const struct plan_request *request, struct err *e) {
    *plan = (struct plan){0};
    char device[64];
    const char *const kind = str_starts_with(request->spec->device, "cuda") ? "cuda" : "cpu";
    snprintf(device, sizeof device, "null:%s", kind);
    struct session s = {0};
    const struct session_place place = {.device = device, .train = true};
    enum status status = session_open(&s, &place, request->config, request->options, e);
    if (status == STATUS_OK) s.device->flops = 0;
    if (status == STATUS_OK) status = train_shapes(&s, request, e);
    if (status == STATUS_OK) plan->flops = flops_per_token(&s, request->train);
    if (status == STATUS_OK) status = other_shapes(&s, request, e);
    if (status == STATUS_OK) {
        arena_get_stats(s.arena, &plan->stats);
        plan->parameters = s.model.parameter_count;
        plan->trainable_parameters = s.model.trainable_count;
    }
    session_close(&s);
    return status;
}

cJSON *plan_to_json(const struct plan *plan, int64_t capacity) {
    const struct arena_stats *const s = &plan->stats;
    cJSON *const json = cJSON_CreateObject();
    json_add_i64(json, "planned_peak_bytes", s->allocated_peak);
    json_add_i64(json, "planned_reserved_bytes", s->reserved_peak);
    json_add_i64(json, "capacity_bytes", capacity);
    json_add_bool(json, "fits", s->reserved_peak <= capacity);
    json_add_string(json, "peak_phase", phase_name(s->peak_phase));
    cJSON *const categories = cJSON_AddObjectToObject(json, "categories_at_peak");
    for (int i = 0; i < CATEGORY_COUNT; i++) {
        json_add_i64(categories, category_name((enum category)i), s->at_peak[i]);
    }
    cJSON *const phases = cJSON_AddObjectToObject(json, "phases");
    for (int i = 0; i < PHASE_COUNT; i++) {
        if (s->phase_peak[i]) json_add_i64(phases, phase_name((enum phase)i), s->phase_peak[i]);
    }
    json_add_i64(json, "parameters", plan->parameters);
    json_add_i64(json, "trainable_parameters", plan->trainable_parameters);
    return json;
}
