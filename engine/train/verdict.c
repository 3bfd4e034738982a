/* verdict.c - the ladder and the advice of one plan, as JSON.
 *
 * Advice is planned through the spec: the keys that a user would set are set, and the run that
 * results is planned with its own ladder. Plans take milliseconds, so nothing is estimated. */
#include "engine/train/verdict.h"

#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/train/changed.h"

/* Logits of so few tokens do not count any more. */
enum { SMALL_CHUNK = 64 };

static void add_checkpointing(cJSON *set, const struct layout *layout, int64_t layers) {
    json_add_bool(set, "gradient_checkpointing", true);
    const bool all = layout->checkpointed_layers >= layers;
    if (!all) json_add_i64(set, "gradient_checkpointing_layers", layout->checkpointed_layers);
}

/* The keys that ask for this layout from the start. */
static cJSON *keys_of(const struct layout *l, const struct plan_request *r) {
    const struct layout asked = layout_of_spec(r->spec, r->config);
    cJSON *const set = cJSON_CreateObject();
    const int64_t rows = asked.micro_rows * r->spec->gradient_accumulation_steps;
    if (l->micro_tokens != asked.micro_tokens)
        json_add_i64(set, "micro_batch_tokens", l->micro_tokens);
    if (l->micro_rows != asked.micro_rows) {
        json_add_i64(set, "per_device_train_batch_size", l->micro_rows);
        json_add_i64(set, "gradient_accumulation_steps",
                     (rows + l->micro_rows - 1) / l->micro_rows);
    }
    if (l->eval_rows != asked.eval_rows)
        json_add_i64(set, "per_device_eval_batch_size", l->eval_rows);
    if (l->loss_chunk_rows != asked.loss_chunk_rows)
        json_add_i64(set, "loss_chunk_rows", l->loss_chunk_rows);
    if (l->checkpointed_layers != asked.checkpointed_layers)
        add_checkpointing(set, l, r->config->layers);
    if (l->activation_offloading != asked.activation_offloading)
        json_add_bool(set, "activation_offloading", l->activation_offloading);
    if (l->optimizer_offloading != asked.optimizer_offloading)
        json_add_bool(set, "optimizer_offloading", l->optimizer_offloading);
    if (l->zero_stage != asked.zero_stage)
        json_add_i64(cJSON_AddObjectToObject(set, "parallel"), "zero_stage", l->zero_stage);
    if (l->param_offloading != asked.param_offloading)
        json_add_bool(set, "param_offloading", l->param_offloading);
    return set;
}

/* As in events (remedy_list_to_json, which leaves out rungs of one kind but the last), with the
 * keys that ask for each. */
static void add_remedies(cJSON *json, const struct remedy_list *list,
                         const struct plan_request *request) {
    cJSON *const items = remedy_list_to_json(list);
    cJSON *item = items->child;
    for (int64_t i = 0; i < list->count && item; i++) {
        const struct remedy *const r = &list->items[i];
        if (i + 1 < list->count && list->items[i + 1].kind == r->kind) continue;
        json_add_i64(item, "need_bytes", plan_need(&r->plan));
        cJSON_AddItemToObject(item, "set", keys_of(&r->layout, request));
        item = item->next;
    }
    cJSON_AddItemToObject(json, "remedies", items);
    json_add_bool(json, "fits_with_remedies", list->fits);
}

static struct advice_facts facts_of(const struct plan *plan, const struct plan_request *r,
                                    int64_t capacity) {
    const int64_t *const held = plan->stats.phase_categories[PHASE_LOAD];
    const struct layout layout = r->layout ? *r->layout : layout_of_spec(r->spec, r->config);
    return (struct advice_facts){
        .capacity = capacity,
        .need = plan_need(plan),
        .weights = held[CATEGORY_WEIGHTS],
        .optimizer = held[CATEGORY_OPTIMIZER],
        .ranks = r->spec->parallel.ranks,
        .zero_stage = layout.zero_stage,
        .states = held[CATEGORY_ADAPTERS] + held[CATEGORY_GRADIENTS] + held[CATEGORY_OPTIMIZER],
        .longest = r->spec->data.max_length,
        .rows = layout.micro_rows,
        .accumulation = r->spec->gradient_accumulation_steps,
        .full = r->options->model.full,
        .wide = r->options->model.weight_dtype == DTYPE_F32,
        .gpu = str_starts_with(r->spec->device, "cuda"),
        .checkpointing = layout.checkpointed_layers == r->config->layers,
        .offloading = layout.activation_offloading,
        .rounding = r->spec->stochastic_rounding,
        .quantised = r->options->model.quant != QUANT_NONE,
    };
}

/* A run that follows advice, and the shapes that it has: full rows, cut at its own length. */
struct followed {
    struct changed run;
    const struct plan_request *asked;
};

/* Shapes of the data, no longer than the changed run would have them. */
static void changed_shapes(void *context, bool eval, const struct layout *layout,
                           struct batch_shapes *out) {
    const struct followed *const c = context;
    const struct shape_source *const source = c->asked->source;
    if (source) {
        source->find(source->context, eval, layout, out);
    } else {
        *out = eval ? *c->asked->eval : *c->asked->train;
    }
    shapes_cut(out, eval ? layout->eval_rows : layout->micro_rows, c->run.spec.data.max_length);
}

/* Where advice leads, with the remedies that it takes. */
struct outcome {
    struct plan plan;
    struct layout layout;
    bool fits;
};

/* The layout of least memory. */
static struct layout smallest(const struct plan_request *r, const struct layout *asked) {
    struct layout l = *asked;
    l.micro_rows = 1;
    if (r->eval) l.eval_rows = 1;
    if (l.loss_chunk_rows > SMALL_CHUNK) l.loss_chunk_rows = SMALL_CHUNK;
    l.checkpointed_layers = r->config->layers;
    l.activation_offloading = str_starts_with(r->spec->device, "cuda");
    l.optimizer_offloading = true;
    l.param_offloading = l.param_offloading || remedy_can_offload_params(r);
    return l;
}

/* The ladder is climbed only where its end can fit. */
static enum status follow(struct outcome *out, const struct plan_request *request,
                          const struct layout *asked, int64_t capacity, struct err *e) {
    struct remedy_list list = {0};
    out->layout = smallest(request, asked);
    TRY(remedy_plan(&out->plan, request, &out->layout, e));
    out->fits = plan_need(&out->plan) <= capacity;
    if (!out->fits && remedy_divide(request, &out->layout)) {
        TRY(remedy_plan(&out->plan, request, &out->layout, e));
        out->fits = plan_need(&out->plan) <= capacity;
    }
    if (!out->fits) return STATUS_OK;
    const enum status status = remedies_find(&list, request, asked, capacity, e);
    if (status == STATUS_OK && list.fits) {
        const struct remedy *const last = list.count > 0 ? &list.items[list.count - 1] : NULL;
        out->plan = last ? last->plan : list.now;
        out->layout = last ? last->layout : *asked;
    }
    remedy_list_release(&list);
    return status;
}

/* One field has two names. */
static const char *name_of(enum remedy_kind kind, const struct outcome *o, int64_t layers) {
    const bool all = kind == REMEDY_CHECKPOINT_SOME && o->layout.checkpointed_layers == layers;
    return remedy_name(all ? REMEDY_CHECKPOINT_ALL : kind);
}

static void add_outcome(cJSON *item, const struct outcome *o, const struct layout *asked,
                        const struct plan *before, int64_t layers) {
    json_add_i64(item, "need_bytes", plan_need(&o->plan));
    json_add_bool(item, "fits", o->fits);
    json_add_number(item, "cost", before->flops > 0 ? o->plan.flops / before->flops : 1);
    cJSON *const with = cJSON_AddArrayToObject(item, "with");
    int after = -1;
    for (;;) {
        const enum remedy_kind kind = remedy_difference(asked, &o->layout, after);
        if (kind == REMEDY_KIND_COUNT) return;
        cJSON_AddItemToArray(with, cJSON_CreateString(name_of(kind, o, layers)));
        after = (int)kind;
    }
}

static enum status plan_advice(cJSON *item, const cJSON *keys, const struct plan *plan,
                               const struct plan_request *request, int64_t capacity,
                               struct err *e) {
    struct followed c = {.asked = request};
    struct outcome *const outcome = mem_new(1, sizeof *outcome);
    enum status status = STATUS_OK;
    GUARD(changed_open(&c.run, request->spec, keys, e));
    c.run.options.rank = request->options->rank;
    const bool cuts = request->source && request->source->cuts_tokens;
    const struct shape_source source = {&c, cuts, changed_shapes};
    const struct layout layout = layout_of_spec(&c.run.spec, request->config);
    struct plan_request changed = *request;
    changed.spec = &c.run.spec;
    changed.options = &c.run.options;
    changed.layout = &layout;
    changed.source = &source;
    changed.counts_work = false;
    GUARD(follow(outcome, &changed, &layout, capacity, e));
    add_outcome(item, outcome, &layout, plan, request->config->layers);
done:
    mem_free(outcome);
    changed_close(&c.run);
    return status;
}

static enum status add_advice_item(cJSON *items, enum advice_kind kind, const struct plan *plan,
                                   const struct plan_request *request,
                                   const struct advice_facts *facts, struct err *e) {
    cJSON *const item = cJSON_CreateObject(), *const keys = advice_keys(kind, facts);
    char *const text = advice_sentence(kind, facts);
    cJSON_AddItemToArray(items, item);
    json_add_string(item, "advice", advice_name(kind));
    json_add_string(item, "text", text);
    mem_free(text);
    struct err refused = {0};
    enum status status = STATUS_UNSUPPORTED;
    cJSON_AddItemToObject(item, "set", keys ? keys : cJSON_CreateNull());
    if (keys) status = plan_advice(item, keys, plan, request, facts->capacity, &refused);
    if (status == STATUS_OK) return STATUS_OK;
    if (keys && status != STATUS_INVALID && status != STATUS_UNSUPPORTED) {
        *e = refused;
        return status;
    }
    /* Nothing to plan, or keys that do not go with the rest of this spec. */
    static const char *const OPEN[] = {"need_bytes", "fits", "cost"};
    for (size_t i = 0; i < COUNT_OF(OPEN); i++) {
        cJSON_AddNullToObject(item, OPEN[i]);
    }
    json_add_string(item, "refused", keys ? refused.text : NULL);
    return STATUS_OK;
}

static enum status add_advice(cJSON *json, const struct plan *plan,
                              const struct plan_request *request, int64_t capacity, struct err *e) {
    cJSON *const items = cJSON_AddArrayToObject(json, "advice");
    const struct advice_facts facts = facts_of(plan, request, capacity);
    enum advice_kind kinds[ADVICE_KIND_COUNT];
    const int count = advice_choose(&facts, kinds);
    for (int i = 0; i < count; i++) {
        TRY(add_advice_item(items, kinds[i], plan, request, &facts, e));
    }
    return STATUS_OK;
}

enum status verdict_add(cJSON *json, const struct plan *plan, const struct plan_request *request,
                        int64_t capacity, struct err *e) {
    struct remedy_list list = {0};
    const struct layout layout =
        request->layout ? *request->layout : layout_of_spec(request->spec, request->config);
    if (capacity <= 0) {
        cJSON_AddArrayToObject(json, "remedies");
        cJSON_AddArrayToObject(json, "advice");
        return STATUS_OK;
    }
    struct plan_request untimed = *request;
    untimed.counts_work = false;
    const enum status status = remedies_find(&list, &untimed, &layout, capacity, e);
    if (status == STATUS_OK) add_remedies(json, &list, request);
    remedy_list_release(&list);
    TRY(status);
    return add_advice(json, plan, request, capacity, e);
}
