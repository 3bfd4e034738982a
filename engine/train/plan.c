/* plan.c - planning by running.
 *
 * There is no formula here, and no second description of the model: only the trainer's own
 * calls, in the order in which a run makes them. */
#include "engine/train/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "engine/model/shard_weights.h"
#include "engine/model/weights.h"
#include "engine/train/cost.h"
#include "engine/train/generate.h"
#include "engine/train/pipeline.h"

static const char *const PART_NAMES[PLAN_PART_COUNT] = {
    [PLAN_LOAD] = "load",
    [PLAN_TRAIN] = "train",
    [PLAN_EVAL] = "eval",
    [PLAN_SAMPLES] = "samples",
};

const char *plan_part_name(enum plan_part part) {
    ASSERT(part < PLAN_PART_COUNT);
    return PART_NAMES[part];
}

static struct layout layout_of(const struct plan_request *r) {
    return r->layout ? *r->layout : layout_of_spec(r->spec, r->config);
}

static struct step_options step_of(struct session *s, const struct plan_request *r) {
    return (struct step_options){
        .layout = layout_of(r),
        .loss_scale = optimizer_loss_scale(&s->optimizer),
        .totals = optimizer_totals(&s->optimizer),
        .graphs = &s->graphs,
        .order = pipeline_kind_parse(r->spec->parallel.pipeline_parallel_schedule),
        .seed = (uint64_t)r->spec->seed,
        .grad_scale = 1};
}

/* The micro-batches of a planned step: those of `steps`, or all the same. */
struct planned {
    struct batch *batch;
    const struct step_shapes *steps;
    int64_t step;
    bool goes_on; /* more micro-batches of the step follow */
};

static const struct batch *planned_micro(void *context, int64_t micro) {
    const struct planned *const p = context;
    if (p->steps) shape_batch(step_shapes_at(p->steps, p->step, micro), p->batch);
    return p->batch;
}

static enum status micros_of(struct session *s, const struct plan_request *r, struct planned *p,
                             int64_t micros, struct err *e) {
    struct step_options options = step_of(s, r);
    struct step_sums sums = {0};
    if (pipeline_is_on(&s->model)) {
        const struct pipeline_source source = {planned_micro, p, micros};
        return pipeline_train(&s->model, &source, &options, &sums, e);
    }
    for (int64_t i = 0; i < micros; i++) {
        options.last = i + 1 == micros && !p->goes_on;
        TRY(step_train(&s->model, planned_micro(p, i), &options, &sums, e));
    }
    return STATUS_OK;
}

static enum status one_step(struct session *s, const struct plan_request *r, struct planned *p,
                            int64_t micros, struct err *e) {
    struct optimizer_report report;
    TRY(optimizer_zero_grad(&s->optimizer, e));
    TRY(micros_of(s, r, p, micros, e));
    arena_enter(s->arena, PHASE_OPTIMIZER);
    TRY(optimizer_sum_gradients(&s->optimizer, e));
    TRY(optimizer_step(&s->optimizer, r->spec->learning_rate, &report, e));
    arena_settle(s->arena);
    return STATUS_OK;
}

enum status plan_step(struct session *s, const struct plan_request *r, struct batch *batch,
                      int64_t micros, struct err *e) {
    struct planned same = {.batch = batch};
    return one_step(s, r, &same, micros, e);
}

static enum status train_shape(struct session *s, const struct plan_request *r, struct batch *batch,
                               struct err *e) {
    TRY(plan_step(s, r, batch, 1, e));
    return plan_step(s, r, batch, 1, e);
}

static enum status eval_shape(struct session *s, const struct plan_request *r,
                              const struct batch *batch, struct err *e) {
    const struct step_options options = step_of(s, r);
    struct step_sums sums = {0};
    return step_evaluate(&s->model, batch, &options, &sums, NULL, e);
}

/* Remembers the moment when memory was fullest. */
struct watch {
    struct session *session;
    struct plan *plan; /* or NULL */
    int64_t peak;
};

static void look(struct watch *w, enum plan_part part, const struct batch_shape *shape) {
    struct arena_stats stats;
    arena_get_stats(w->session->arena, &stats);
    if (!w->plan || stats.allocated_peak <= w->peak) return;
    w->peak = stats.allocated_peak;
    w->plan->peak_part = part;
    w->plan->peak_shape = *shape;
}

static const struct batch_shape *largest_of(const struct step_shapes *steps, int64_t step) {
    const struct batch_shape *largest = step_shapes_at(steps, step, 0);
    for (int64_t i = 1; i < step_shapes_micros(steps, step); i++) {
        const struct batch_shape *const s = step_shapes_at(steps, step, i);
        if (s->tokens > largest->tokens) largest = s;
    }
    return largest;
}

/* Without data all micro-batches are the same, and 1f1b repeats itself once every stage has one. */
static int64_t planned_micros(const struct session *s, const struct plan_request *r,
                              const struct step_shapes *steps, int64_t step) {
    const int64_t micros = step_shapes_micros(steps, step);
    const int64_t enough = 2 * (s->mesh.shape.degree[AXIS_PIPELINE] + 1);
    const bool repeats =
        pipeline_kind_parse(r->spec->parallel.pipeline_parallel_schedule) == PIPELINE_1F1B;
    return r->train->exact && !steps->listed && repeats && micros > enough ? enough : micros;
}

/* In a pipeline several micro-batches are in memory at a time: whole steps, each twice. */
static enum status train_steps(struct watch *w, const struct plan_request *request,
                               struct batch *batch, struct err *e) {
    const struct step_shapes *const steps = &request->train->in_steps;
    for (int64_t i = 0; i < step_shapes_count(steps); i++) {
        struct planned planned = {.batch = batch, .steps = steps, .step = i};
        for (int times = 0; times < 2; times++) {
            TRY(one_step(w->session, request, &planned,
                         planned_micros(w->session, request, steps, i), e));
        }
        look(w, PLAN_TRAIN, largest_of(steps, i));
    }
    return STATUS_OK;
}

static enum status train_shapes(struct watch *w, const struct plan_request *request,
                                struct batch *batch, struct err *e) {
    if (pipeline_is_on(&w->session->model)) return train_steps(w, request, batch, e);
    for (int64_t i = 0; i < request->train->count; i++) {
        shape_batch(&request->train->items[i], batch);
        TRY(train_shape(w->session, request, batch, e));
        look(w, PLAN_TRAIN, &request->train->items[i]);
    }
    /* A rank that never has anything to train takes part all the same. */
    return request->train->count == 0 ? step_idle(&w->session->model, true, e) : STATUS_OK;
}

static enum status eval_shapes(struct watch *w, const struct plan_request *request,
                               struct batch *batch, struct err *e) {
    for (int64_t i = 0; request->eval && i < request->eval->count; i++) {
        shape_batch(&request->eval->items[i], batch);
        TRY(eval_shape(w->session, request, batch, e));
        look(w, PLAN_EVAL, &request->eval->items[i]);
    }
    return STATUS_OK;
}

/* Every shape, or in a pipeline every step, is trained twice. */
static double flops_per_token(const struct session *s, const struct plan_request *request) {
    const struct batch_shapes *const shapes = request->train;
    double tokens = 0;
    const struct step_shapes *const steps = &shapes->in_steps;
    const bool whole_steps = pipeline_is_on(&s->model);
    for (int64_t i = 0; !whole_steps && i < shapes->count; i++) {
        tokens += 2 * (double)shapes->items[i].tokens;
    }
    for (int64_t i = 0; whole_steps && i < step_shapes_count(steps); i++) {
        for (int64_t k = 0; k < planned_micros(s, request, steps, i); k++) {
            tokens += 2 * (double)step_shapes_at(steps, i, k)->tokens;
        }
    }
    return tokens > 0 ? s->device->flops / tokens : 0;
}

int64_t plan_need(const struct plan *plan) {
    return plan->stats.extent_peak;
}

static enum status run_steps(struct session *s, const struct plan_request *request,
                             struct plan *plan, struct err *e) {
    const struct spec *const spec = request->spec;
    const int64_t length = layout_of(request).sample_tokens;
    const struct batch_shape none = {0}, sample = {length, 1, 1, length};
    struct watch w = {.session = s, .plan = plan};
    struct batch batch = {0};
    enum status status = STATUS_OK;
    look(&w, PLAN_LOAD, &none);
    s->device->flops = 0;
    GUARD(train_shapes(&w, request, &batch, e));
    if (plan) plan->flops = flops_per_token(s, request);
    GUARD(eval_shapes(&w, request, &batch, e));
    /* Rank 0 speaks for all, unless it needs their weights or layers. */
    const bool together =
        weights_are_sharded(&s->model) || pipeline_is_on(&s->model) || s->model.group;
    if ((request->options->rank == 0 || together) && spec->sample_prompts.count > 0)
        GUARD(generate_plan(&s->model, length, e));
    look(&w, PLAN_SAMPLES, &sample);
    /* Both go through host memory: what is held meanwhile is what is held between steps. */
    arena_enter(s->arena, PHASE_CHECKPOINT);
    arena_enter(s->arena, PHASE_EXPORT);
done:
    batch_release(&batch);
    return status;
}

enum status plan_steps(struct session *s, const struct plan_request *request, struct err *e) {
    return run_steps(s, request, NULL, e);
}

static struct device_work work_since(const struct device *device, const struct device_work *then) {
    struct device_work work = device->work;
    for (int i = 0; i < WORK_CLASS_COUNT; i++) {
        for (int k = 0; k < WORK_SIZES; k++) {
            work.cells[i][k].flops -= then->cells[i][k].flops;
            work.cells[i][k].bytes -= then->cells[i][k].bytes;
            work.cells[i][k].calls -= then->cells[i][k].calls;
        }
    }
    return work;
}

/* The work and traffic of an average micro-batch that is not the first of its step, and of an
 * update with the sum of gradients before it. */
static enum status count_work(struct session *s, const struct plan_request *request,
                              struct plan *plan, struct err *e) {
    if (!request->counts_work || request->train->micros == 0) return STATUS_OK;
    plan->micros_per_step = (double)request->train->micros / (double)request->train->steps;
    plan->tokens_per_step = request->train->sums.tokens / (double)request->train->steps;
    const struct batch_shape mean = shapes_mean(request->train);
    struct batch batch = {0};
    struct planned same = {.batch = &batch, .goes_on = true};
    struct optimizer_report report;
    enum status status = STATUS_OK;
    struct device_work *const work = &s->device->work;
    shape_batch(&mean, &batch);
    const struct traffic_book nothing = {.count = 0};
    struct device_work before = *work;
    struct traffic_book said = traffic_since(s->comm, &nothing);
    GUARD(micros_of(s, request, &same, 1, e));
    plan->micro_work = work_since(s->device, &before);
    plan->micro_traffic = traffic_since(s->comm, &said);
    said = traffic_since(s->comm, &nothing);
    same.goes_on = false;
    GUARD(micros_of(s, request, &same, 1, e));
    plan->last_traffic = traffic_since(s->comm, &said);
    before = *work;
    said = traffic_since(s->comm, &nothing);
    GUARD(optimizer_sum_gradients(&s->optimizer, e));
    GUARD(optimizer_step(&s->optimizer, request->spec->learning_rate, &report, e));
    GUARD(optimizer_zero_grad(&s->optimizer, e));
    plan->update_work = work_since(s->device, &before);
    plan->update_traffic = traffic_since(s->comm, &said);
done:
    batch_release(&batch);
    return status;
}

static enum status fill(struct plan *plan, struct session *s, const struct plan_request *request,
                        struct err *e) {
    const struct session_source source = {.adapter = request->spec->adapter_name_or_path,
                                          .seed = (uint64_t)request->spec->seed};
    TRY(session_load_nothing(s, &source, e));
    TRY(run_steps(s, request, plan, e));
    arena_get_stats(s->arena, &plan->stats);
    plan->parameters = s->model.parameter_count;
    plan->trainable_parameters = s->model.trainable_count + s->model.trainable_elsewhere;
    plan->first_layer = s->model.options.first_layer;
    plan->end_layer = s->model.options.end_layer;
    plan->staged_load = weights_staging_bytes(&s->model);
    plan->staged_train = s->space.host_bytes;
    plan->bus_micro = shard_bus_bytes(&s->model);
    plan->bus_update = away_bytes(&s->optimizer.away);
    return count_work(s, request, plan, e);
}

struct device_work plan_step_work(const struct plan *plan) {
    struct device_work work = plan->update_work;
    cost_add(&work, plan->micros_per_step, &plan->micro_work);
    return work;
}

static enum status open_null(struct session *s, const struct plan_request *request, struct err *e) {
    char device[64];
    const char *const kind = str_starts_with(request->spec->device, "cuda") ? "cuda" : "cpu";
    snprintf(device, sizeof device, "null:%s", kind);
    const struct session_place place = {.device = device, .train = true};
    struct session_options options = *request->options;
    const struct layout layout = layout_of(request);
    session_take_layout(&options, &layout);
    return session_open(s, &place, request->config, &options, e);
}

enum status plan_make(struct plan *plan, const struct plan_request *request, struct err *e) {
    *plan = (struct plan){0};
    struct session s = {0};
    enum status status = open_null(&s, request, e);
    if (status == STATUS_OK) status = fill(plan, &s, request, e);
    session_close(&s);
    return status;
}

enum status plan_held(const struct plan_request *request, uint64_t *out, struct err *e) {
    struct session s = {0};
    struct arena_stats stats;
    const enum status status = open_null(&s, request, e);
    if (status == STATUS_OK) arena_get_stats(s.arena, &stats);
    if (status == STATUS_OK) *out = stats.trace;
    session_close(&s);
    return status;
}

static cJSON *categories_of(const int64_t bytes[CATEGORY_COUNT]) {
    cJSON *const json = cJSON_CreateObject();
    for (int i = 0; i < CATEGORY_COUNT; i++) {
        json_add_i64(json, category_name((enum category)i), bytes[i]);
    }
    return json;
}

static void add_phases(cJSON *json, const struct arena_stats *s) {
    cJSON *const peaks = cJSON_AddObjectToObject(json, "phases");
    cJSON *const table = cJSON_AddArrayToObject(json, "phase_table");
    for (int i = 0; i < PHASE_COUNT; i++) {
        if (!s->phase_peak[i]) continue;
        const char *const name = phase_name((enum phase)i);
        cJSON *const row = cJSON_CreateObject();
        json_add_i64(peaks, name, s->phase_peak[i]);
        json_add_string(row, "phase", name);
        json_add_i64(row, "peak_bytes", s->phase_peak[i]);
        json_add_i64(row, "logits_bytes", s->phase_followed[i]);
        cJSON_AddItemToObject(row, "categories", categories_of(s->phase_categories[i]));
        cJSON_AddItemToArray(table, row);
    }
}

cJSON *plan_to_json(const struct plan *plan, int64_t capacity) {
    const struct arena_stats *const s = &plan->stats;
    char trace[24];
    cJSON *const json = cJSON_CreateObject();
    json_add_i64(json, "planned_peak_bytes", s->allocated_peak);
    json_add_i64(json, "planned_reserved_bytes", s->reserved_peak);
    json_add_i64(json, "planned_need_bytes", plan_need(plan));
    if (capacity > 0) {
        json_add_i64(json, "capacity_bytes", capacity);
        json_add_bool(json, "fits", plan_need(plan) <= capacity);
    } else {
        cJSON_AddNullToObject(json, "capacity_bytes");
        cJSON_AddNullToObject(json, "fits");
    }
    json_add_string(json, "peak_phase", phase_name(s->peak_phase));
    cJSON_AddItemToObject(json, "categories_at_peak", categories_of(s->at_peak));
    json_add_i64(json, "logits_peak_bytes", s->followed_peak);
    add_phases(json, s);
    json_add_i64(json, "bus_bytes_per_micro_batch", plan->bus_micro);
    json_add_i64(json, "bus_bytes_per_update", plan->bus_update);
    json_add_i64(json, "parameters", plan->parameters);
    json_add_i64(json, "trainable_parameters", plan->trainable_parameters);
    snprintf(trace, sizeof trace, "%016llx", (unsigned long long)s->trace);
    json_add_i64(json, "allocations", (int64_t)s->allocations);
    json_add_string(json, "trace", trace);
    return json;
}
