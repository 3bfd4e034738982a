/* remedy.c - the ladder, climbed by planning.
 *
 * At each turn the gentlest rung that lowers the need is taken, from the top of the list again:
 * once training is smaller it may be evaluation that is largest, and the other way round. Every
 * rung taken lowers the need, so the climb ends. */
#include "engine/train/remedy.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/train/changed.h"

enum { LOSS_CHUNK_MIN = 16, SAMPLE_TOKENS_MIN = 16, MICRO_TOKENS_MIN = 16, ZERO_STAGE_MAX = 3 };

static const char *const NAMES[REMEDY_KIND_COUNT] = {
    [REMEDY_TRIM] = "trim",
    [REMEDY_EVAL_BATCH] = "eval_batch",
    [REMEDY_SAMPLE_LENGTH] = "sample_length",
    [REMEDY_MICRO_BATCH] = "micro_batch",
    [REMEDY_LOSS_CHUNK] = "loss_chunk",
    [REMEDY_CHECKPOINT_SOME] = "checkpoint_some",
    [REMEDY_CHECKPOINT_ALL] = "checkpoint_all",
    [REMEDY_OFFLOAD_ACTIVATIONS] = "offload_activations",
    [REMEDY_ZERO_STAGE] = "zero_stage",
    [REMEDY_OFFLOAD_OPTIMIZER] = "offload_optimizer",
    [REMEDY_OFFLOAD_PARAMS] = "offload_params",
};

const char *remedy_name(enum remedy_kind kind) {
    ASSERT(kind < REMEDY_KIND_COUNT);
    return NAMES[kind];
}

enum remedy_kind remedy_parse(const char *name) {
    int kind = 0;
    while (kind < REMEDY_KIND_COUNT && !str_equal(name, NAMES[kind])) {
        kind++;
    }
    return (enum remedy_kind)kind;
}

/* A search, and the shapes that were asked for last: candidates mostly share them. */
struct climb {
    const struct plan_request *request;
    const struct layout *now;
    int64_t capacity, host_room;
    struct batch_shapes train, eval;
    struct layout train_of, eval_of; /* of which the shapes are; zeroed: none yet */
};

static void find_shapes(struct climb *c, const struct layout *layout) {
    const struct plan_request *const r = c->request;
    const struct shape_source *const source = r->source;
    if (!source) {
        c->train = *r->train;
        if (r->eval) c->eval = *r->eval;
        return;
    }
    if (c->train_of.micro_rows != layout->micro_rows ||
        c->train_of.micro_tokens != layout->micro_tokens) {
        source->find(source->context, false, layout, &c->train);
        c->train_of = *layout;
    }
    if (r->eval && c->eval_of.eval_rows != layout->eval_rows) {
        source->find(source->context, true, layout, &c->eval);
        c->eval_of = *layout;
    }
}

static enum status plan_layout(struct climb *c, const struct layout *layout, struct plan *plan,
                               struct err *e) {
    find_shapes(c, layout);
    struct plan_request request = *c->request;
    request.layout = layout;
    request.train = &c->train;
    request.eval = c->request->eval ? &c->eval : NULL;
    return plan_make(plan, &request, e);
}

enum status remedy_plan(struct plan *plan, const struct plan_request *request,
                        const struct layout *layout, struct err *e) {
    struct climb *const c = mem_new(1, sizeof *c);
    c->request = request;
    const enum status status = plan_layout(c, layout, plan, e);
    mem_free(c);
    return status;
}

static bool take_half(int64_t *number, int64_t least) {
    if (*number <= least) return false;
    *number = *number / 2 > least ? *number / 2 : least;
    return true;
}

/* Fewer rows; and where samples are packed, of one row fewer tokens, down to a sample each. */
static bool take_half_micro(const struct plan_request *r, struct layout *layout) {
    if (!r->source) return false;
    if (layout->micro_tokens == 0 && take_half(&layout->micro_rows, 1)) return true;
    if (!r->source->cuts_tokens || !r->spec->data.packing ||
        !str_equal(r->spec->data.packing_strategy, "samples"))
        return false;
    if (layout->micro_tokens == 0) layout->micro_tokens = r->spec->data.max_length;
    return take_half(&layout->micro_tokens, MICRO_TOKENS_MIN);
}

/* One stage more, where there are ranks to divide among and the spec's rules allow it. It comes
 * late: a change of it makes the session anew, and adds exchange to every step. */
static bool take_next_stage(const struct plan_request *r, struct layout *layout) {
    if (spec_data_world(r->spec) == 1 || layout->zero_stage >= ZERO_STAGE_MAX) return false;
    struct changed c = {0};
    struct err refused = {0};
    cJSON *const keys = cJSON_CreateObject();
    json_add_i64(cJSON_AddObjectToObject(keys, "parallel"), "zero_stage", layout->zero_stage + 1);
    const bool allowed = changed_open(&c, r->spec, keys, &refused) == STATUS_OK;
    changed_close(&c);
    cJSON_Delete(keys);
    layout->zero_stage += allowed;
    return allowed;
}

bool remedy_divide(const struct plan_request *r, struct layout *layout) {
    bool more = false;
    while (take_next_stage(r, layout)) {
        more = true;
    }
    return more;
}

/* The next smaller step of a rung that goes by steps; false: there is none. */
static bool step_down(const struct plan_request *r, enum remedy_kind kind, struct layout *layout) {
    switch (kind) {
    case REMEDY_EVAL_BATCH: return r->eval && r->source && take_half(&layout->eval_rows, 1);
    case REMEDY_SAMPLE_LENGTH:
        return r->spec->sample_prompts.count > 0 &&
               take_half(&layout->sample_tokens, SAMPLE_TOKENS_MIN);
    case REMEDY_MICRO_BATCH: return take_half_micro(r, layout);
    case REMEDY_LOSS_CHUNK: return take_half(&layout->loss_chunk_rows, LOSS_CHUNK_MIN);
    case REMEDY_ZERO_STAGE: return take_next_stage(r, layout);
    default: return false;
    }
}

/* Whether the last step of such a rung lowers the need; if it does not, no step before it does. */
static enum status is_worth_it(struct climb *c, const struct remedy *from, enum remedy_kind kind,
                               bool *worth, struct err *e) {
    struct layout least = from->layout;
    int64_t steps = 0;
    while (step_down(c->request, kind, &least)) {
        steps++;
    }
    *worth = steps == 1; /* whoever takes it plans it */
    if (steps < 2) return STATUS_OK;
    struct plan *const plan = mem_new(1, sizeof *plan);
    const enum status status = plan_layout(c, &least, plan, e);
    *worth = status == STATUS_OK && plan_need(plan) < plan_need(&from->plan);
    mem_free(plan);
    return status;
}

/* Halves until the need is lower: a micro-batch may hold fewer rows than it could, and then the
 * first halving changes nothing. */
static enum status halve(struct climb *c, const struct remedy *from, struct remedy *to, bool *found,
                         struct err *e) {
    bool worth = false;
    TRY(is_worth_it(c, from, to->kind, &worth, e));
    while (worth && !*found && step_down(c->request, to->kind, &to->layout)) {
        TRY(plan_layout(c, &to->layout, &to->plan, e));
        *found = plan_need(&to->plan) < plan_need(&from->plan);
    }
    return STATUS_OK;
}

/* As few layers as are needed: only if that fits. */
static enum status checkpoint_some(struct climb *c, struct remedy *to, bool *found, struct err *e) {
    int64_t low = to->layout.checkpointed_layers + 1, high = c->request->config->layers - 1;
    struct remedy *const best = mem_new(1, sizeof *best);
    enum status status = STATUS_OK;
    while (status == STATUS_OK && low <= high) {
        /* The largest first: where even that does not fit, there is nothing to search. */
        const int64_t layers = *found ? low + (high - low) / 2 : high;
        to->layout.checkpointed_layers = layers;
        status = plan_layout(c, &to->layout, &to->plan, e);
        if (status != STATUS_OK) break;
        if (plan_need(&to->plan) <= c->capacity) {
            *found = true;
            *best = *to;
            high = layers - 1;
        } else if (!*found) {
            break;
        } else {
            low = layers + 1;
        }
    }
    if (*found) *to = *best;
    mem_free(best);
    return status;
}

static bool can_offload(const struct plan_request *r, const struct layout *layout) {
    return str_starts_with(r->spec->device, "cuda") && layout->checkpointed_layers > 0;
}

bool remedy_can_offload_params(const struct plan_request *r) {
    const struct spec *const s = r->spec;
    const bool one = spec_data_world(s) == 1 ||
                     (s->parallel.zero_stage == 3 && s->parallel.data_parallel_shard_degree != 1);
    return str_starts_with(s->device, "cuda") &&
           (r->options->model.lora || (one && !s->stochastic_rounding));
}

/* What goes to the host must find room there, or it would swap. */
static bool host_has_room(const struct climb *c, const struct remedy *from,
                          const struct remedy *to) {
    const bool one_memory = str_equal(c->request->spec->device, "cpu");
    const int64_t wanted = to->plan.staged_train + (one_memory ? plan_need(&to->plan) : 0);
    return !c->host_room || to->plan.staged_train <= from->plan.staged_train ||
           wanted <= c->host_room;
}

/* The rung `kind` from a layout whose plan is known; *found: it lowers the need. */
static enum status try_rung(struct climb *c, const struct remedy *from, enum remedy_kind kind,
                            struct remedy *to, bool *found, struct err *e) {
    const int64_t layers = c->request->config->layers;
    *to = *from;
    to->kind = kind;
    *found = false;
    if (kind == REMEDY_TRIM) return STATUS_OK;
    if (kind == REMEDY_CHECKPOINT_SOME) {
        TRY(checkpoint_some(c, to, found, e));
        *found = *found && plan_need(&to->plan) < plan_need(&from->plan);
        return STATUS_OK;
    }
    if (kind < REMEDY_CHECKPOINT_SOME || kind == REMEDY_ZERO_STAGE)
        return halve(c, from, to, found, e);
    if (kind == REMEDY_CHECKPOINT_ALL) {
        to->layout.checkpointed_layers = layers;
    } else if (kind == REMEDY_OFFLOAD_ACTIVATIONS) {
        to->layout.activation_offloading = can_offload(c->request, &to->layout);
    } else if (kind == REMEDY_OFFLOAD_OPTIMIZER) {
        to->layout.optimizer_offloading = true;
    } else {
        to->layout.param_offloading =
            to->layout.param_offloading || remedy_can_offload_params(c->request);
    }
    if (layout_equal(&to->layout, &from->layout)) return STATUS_OK;
    TRY(plan_layout(c, &to->layout, &to->plan, e));
    *found = plan_need(&to->plan) < plan_need(&from->plan) && host_has_room(c, from, to);
    return STATUS_OK;
}

static const char *stage_sentence(int64_t stage) {
    static const char *const SENTENCES[ZERO_STAGE_MAX + 1] = {
        "Every rank holds the whole model, its gradients and AdamW's states.",
        "Ranks divide AdamW's states among them (ZeRO stage 1).",
        "Ranks divide gradients and AdamW's states among them (ZeRO stage 2).",
        "Ranks divide weights, gradients and AdamW's states among them (ZeRO stage 3); layers "
        "travel when they are needed."};
    ASSERT(stage >= 0 && stage <= ZERO_STAGE_MAX);
    return SENTENCES[stage];
}

void remedy_sentence(enum remedy_kind kind, const struct layout *from, const struct layout *to,
                     int64_t layers, char text[REMEDY_TEXT_MAX]) {
    long long a = 0, b = 0;
    const char *format = "";
    switch (kind) {
    case REMEDY_TRIM: format = "Memory that nothing uses is given back."; break;
    case REMEDY_EVAL_BATCH:
        a = from->eval_rows, b = to->eval_rows;
        format = "Evaluation takes %2$lld row%3$s at a time, not %1$lld; training is not touched.";
        break;
    case REMEDY_SAMPLE_LENGTH:
        a = from->sample_tokens, b = to->sample_tokens;
        format = "Samples have at most %2$lld token%3$s with their prompts, not %1$lld.";
        break;
    case REMEDY_MICRO_BATCH:
        a = from->micro_rows, b = to->micro_rows;
        format =
            "A micro-batch has %2$lld row%3$s, not %1$lld; the samples of a step stay the same.";
        if (to->micro_tokens == from->micro_tokens) break;
        b = to->micro_tokens;
        format = b ? "A micro-batch has at most %2$lld tokens, not what %1$lld rows hold; the "
                     "samples of a step stay the same."
                   : "A micro-batch has what its rows hold; the samples of a step stay the same.";
        break;
    case REMEDY_LOSS_CHUNK:
        a = from->loss_chunk_rows, b = to->loss_chunk_rows;
        format = "Logits exist for %2$lld token%3$s at a time, not %1$lld.";
        break;
    case REMEDY_CHECKPOINT_SOME:
    case REMEDY_CHECKPOINT_ALL:
        a = from->checkpointed_layers, b = to->checkpointed_layers;
        if (b == 0) {
            format = "Activations of all layers are kept.";
        } else if (b < layers) {
            format =
                "Activations of %2$lld layer%3$s are computed again in backward, not of %1$lld.";
        } else {
            format = "Activations of all %2$lld layers are computed again in backward, not of "
                     "%1$lld.";
        }
        break;
    case REMEDY_OFFLOAD_ACTIVATIONS:
        format = to->activation_offloading ? "Inputs of checkpointed layers wait in host memory."
                                           : "Inputs of checkpointed layers stay on the device.";
        break;
    case REMEDY_ZERO_STAGE: format = stage_sentence(to->zero_stage); break;
    case REMEDY_OFFLOAD_OPTIMIZER:
        format = to->optimizer_offloading
                     ? "AdamW's states wait in host memory; updates are slower."
                     : "AdamW's states stay on the device.";
        break;
    case REMEDY_OFFLOAD_PARAMS:
        format = to->param_offloading
                     ? "Weights wait in host memory and come layer by layer; steps are slower."
                     : "Weights stay on the device.";
        break;
    case REMEDY_KIND_COUNT: break;
    }
    snprintf(text, REMEDY_TEXT_MAX, format, a, b, b == 1 ? "" : "s");
}

void remedy_list_add(struct remedy_list *list, const struct remedy *rung) {
    list->items = mem_grow(list->items, (size_t)list->count, &list->capacity, sizeof *list->items);
    list->items[list->count++] = *rung;
}

/* The layout before the rungs of this kind that the list ends with: what people compare with. */
static const struct layout *series_begin(const struct climb *c, const struct remedy_list *list,
                                         enum remedy_kind kind) {
    int64_t i = list->count;
    while (i > 0 && list->items[i - 1].kind == kind) {
        i--;
    }
    return i > 0 ? &list->items[i - 1].layout : c->now;
}

/* What waits in host memory comes over the bus. */
static void add_price(struct remedy *r) {
    const bool params = r->kind == REMEDY_OFFLOAD_PARAMS;
    const int64_t bytes = params                                ? r->plan.bus_micro
                          : r->kind == REMEDY_OFFLOAD_OPTIMIZER ? r->plan.bus_update
                                                                : 0;
    char amount[24];
    const size_t length = strlen(r->text);
    if (bytes == 0) return;
    snprintf(r->text + length, sizeof r->text - length, " %s come over the bus in %s.",
             str_bytes(bytes, amount), params ? "a micro-batch" : "an update");
}

/* Takes the gentlest rung that helps; *found: there was one. */
static enum status climb_once(struct climb *c, struct remedy_list *list, struct remedy *at,
                              bool *found, struct err *e) {
    struct remedy *const to = mem_new(1, sizeof *to);
    enum status status = STATUS_OK;
    *found = false;
    for (int kind = 0; status == STATUS_OK && !*found && kind < REMEDY_KIND_COUNT; kind++) {
        if (list->excluded & 1u << kind) continue;
        status = try_rung(c, at, (enum remedy_kind)kind, to, found, e);
    }
    if (status == STATUS_OK && *found) {
        to->fits = plan_need(&to->plan) <= c->capacity;
        to->cost = list->now.flops > 0 ? to->plan.flops / list->now.flops : 1;
        remedy_sentence(to->kind, series_begin(c, list, to->kind), &to->layout,
                        c->request->config->layers, to->text);
        add_price(to);
        remedy_list_add(list, to);
        *at = *to;
    }
    mem_free(to);
    return status;
}

enum status remedies_find(struct remedy_list *list, const struct plan_request *request,
                          const struct layout *now, int64_t capacity, struct err *e) {
    struct climb *const c = mem_new(1, sizeof *c);
    struct remedy *const at = mem_new(1, sizeof *at);
    *list = (struct remedy_list){.excluded = list->excluded, .host_room = list->host_room};
    c->request = request;
    c->capacity = capacity;
    c->host_room = list->host_room;
    c->now = now;
    at->layout = *now;
    enum status status = plan_layout(c, now, &at->plan, e);
    list->now = at->plan;
    bool found = true;
    at->fits = plan_need(&at->plan) <= capacity;
    while (status == STATUS_OK && found && !at->fits) {
        status = climb_once(c, list, at, &found, e);
    }
    list->fits = status == STATUS_OK && at->fits;
    mem_free(at);
    mem_free(c);
    return status;
}

void remedy_list_release(struct remedy_list *list) {
    if (!list) return;
    mem_free(list->items);
    *list = (struct remedy_list){0};
}

cJSON *remedy_list_to_json(const struct remedy_list *list) {
    cJSON *const remedies = cJSON_CreateArray();
    for (int64_t i = 0; i < list->count; i++) {
        const struct remedy *const rung = &list->items[i];
        if (i + 1 < list->count && list->items[i + 1].kind == rung->kind) continue;
        cJSON *const one = cJSON_CreateObject();
        json_add_string(one, "remedy", remedy_name(rung->kind));
        json_add_i64(one, "peak", plan_need(&rung->plan));
        json_add_number(one, "cost", rung->cost);
        json_add_string(one, "text", rung->text);
        json_add_bool(one, "fits", rung->fits);
        cJSON_AddItemToObject(one, "layout", layout_to_json(&rung->layout));
        cJSON_AddItemToObject(one, "plan", plan_to_json(&rung->plan, 0));
        cJSON_AddItemToArray(remedies, one);
    }
    return remedies;
}

struct layout remedy_undo(const struct layout *now, const struct layout *asked,
                          enum remedy_kind kind) {
    struct layout to = *now;
    switch (kind) {
    case REMEDY_EVAL_BATCH: to.eval_rows = asked->eval_rows; break;
    case REMEDY_SAMPLE_LENGTH: to.sample_tokens = asked->sample_tokens; break;
    case REMEDY_MICRO_BATCH:
        to.micro_rows = asked->micro_rows;
        to.micro_tokens = asked->micro_tokens;
        break;
    case REMEDY_LOSS_CHUNK: to.loss_chunk_rows = asked->loss_chunk_rows; break;
    case REMEDY_CHECKPOINT_SOME:
    case REMEDY_CHECKPOINT_ALL:
        to.checkpointed_layers = asked->checkpointed_layers;
        /* There is nothing to offload without checkpoints. */
        if (to.checkpointed_layers == 0) to.activation_offloading = false;
        break;
    case REMEDY_OFFLOAD_ACTIVATIONS: to.activation_offloading = asked->activation_offloading; break;
    case REMEDY_ZERO_STAGE: to.zero_stage = asked->zero_stage; break;
    case REMEDY_OFFLOAD_OPTIMIZER: to.optimizer_offloading = asked->optimizer_offloading; break;
    case REMEDY_OFFLOAD_PARAMS: to.param_offloading = asked->param_offloading; break;
    case REMEDY_TRIM:
    case REMEDY_KIND_COUNT: break;
    }
    return to;
}

enum remedy_kind remedy_difference(const struct layout *a, const struct layout *b, int after) {
    for (int kind = after + 1; kind < REMEDY_KIND_COUNT; kind++) {
        /* One field has two names; the weaker one is enough to find it. */
        if (kind == REMEDY_CHECKPOINT_ALL) continue;
        struct layout to = remedy_undo(a, b, (enum remedy_kind)kind);
        if (kind == REMEDY_CHECKPOINT_SOME) to.activation_offloading = a->activation_offloading;
        if (!layout_equal(&to, a)) return (enum remedy_kind)kind;
    }
    return REMEDY_KIND_COUNT;
}
