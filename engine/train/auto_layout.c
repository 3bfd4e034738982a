/* auto_layout.c - every layout planned, one picked, and why.
 *
 * A layout that does not fit as asked is tried with fewer rows at a time, fewer logits, checkpoints
 * and offloaded activations: steps of the ladder (remedy.h), which the run then climbs by itself
 * and more finely. Where even the last step does not fit, nothing else is tried. */
#include "engine/train/auto_layout.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/train/changed.h"
#include "engine/train/remedy.h"
#include "kernels/cards.h"

enum { KEPT_BYTES_MAX = 4096, LOSS_CHUNK = 256 };
static const char KEPT[] = "auto_layout.json";
/* More than the estimate of time was wrong by on cards where it was held against runs: a fifth
 * (tests/memory/plan_time.mjs). */
static const double CLEARLY = 1.25;

/* One search. */
struct search {
    const struct auto_run *run;
    const struct estimate_place *place;
    struct plan_ranks *plans;
};

bool auto_layout_is_open(const struct spec *spec) {
    return strcmp(spec->parallel.layout, "auto") == 0;
}

void auto_ranks_take(struct spec *spec, bool by_card) {
    if (spec->parallel.ranks != SPEC_AUTO) return;
    spec->parallel.ranks = 1;
    if (strcmp(spec->device, "cuda") != 0) return;
    struct device_cards cards;
    device_cards_find(&cards);
    if (cards.count > 0) spec->parallel.ranks = cards.count;
    if (by_card) spec->parallel.ranks = spec->parallel.gpus_per_node;
}

/* ---- one candidate ------------------------------------------------------------------------- */

enum { STEP_COUNT = 5 };
/* As asked, and with more and more of what leaves learning alone. */
static struct layout step_of(const struct spec *spec, const struct model_config *config,
                             const struct layout *asked, int step) {
    struct layout l = *asked;
    if (step >= 1) l.micro_rows = 1;
    if (step >= 1 && spec->data.eval_files.count > 0) l.eval_rows = 1;
    if (step >= 2 && l.loss_chunk_rows > LOSS_CHUNK) l.loss_chunk_rows = LOSS_CHUNK;
    if (step >= 3) l.checkpointed_layers = config->layers;
    if (step >= 4) l.activation_offloading = str_starts_with(spec->device, "cuda");
    return l;
}

static enum status plan_step_of(struct search *s, struct changed *c, const struct layout *layout,
                                struct auto_candidate *out, struct err *e) {
    const struct plan_subject subject = {.spec = &c->spec,
                                         .config = s->run->config,
                                         .options = &c->options,
                                         .layout = layout,
                                         .corpus = s->run->corpus};
    plan_ranks_release(s->plans);
    TRY(plan_ranks_make(s->plans, &subject, e));
    out->layout = *layout;
    out->need = plan_need(&s->plans->plan);
    out->fits = out->need <= s->place->capacity;
    out->time = estimate_step(plan_ranks_slowest(s->plans, s->place), &s->place->rates,
                              &s->place->links, &s->plans->shape);
    out->tokens_per_second = out->time.seconds > 0 ? out->time.tokens / out->time.seconds : 0;
    return STATUS_OK;
}

static enum status plan_steps_of(struct search *s, struct changed *c, struct auto_candidate *out,
                                 struct err *e) {
    out->asked = layout_of_spec(&c->spec, s->run->config);
    const bool changes = strcmp(c->spec.memory.on_oom, "off") != 0;
    const int last = changes ? STEP_COUNT - 1 : 0;
    const struct layout least = step_of(&c->spec, s->run->config, &out->asked, last);
    TRY(plan_step_of(s, c, &least, out, e));
    if (!out->fits || last == 0) return STATUS_OK;
    struct layout before = least;
    for (int step = 0; step < last; step++) {
        const struct layout layout = step_of(&c->spec, s->run->config, &out->asked, step);
        if (layout_equal(&layout, &before)) continue;
        before = layout;
        TRY(plan_step_of(s, c, &layout, out, e));
        if (out->fits) return STATUS_OK;
    }
    return plan_step_of(s, c, &least, out, e);
}

static enum status plan_candidate(struct search *s, struct auto_candidate *out, struct err *e) {
    struct changed c = {0};
    struct err refused = {0};
    out->set = layout_choice_keys(&out->choice, s->run->spec);
    enum status status = changed_open(&c, s->run->spec, out->set, &refused);
    if (status == STATUS_OK && s->run->corpus)
        status = corpus_cut(s->run->corpus, &c.spec, s->run->config, &refused);
    if (status == STATUS_OK) status = plan_steps_of(s, &c, out, &refused);
    changed_close(&c);
    if (status == STATUS_OK) return STATUS_OK;
    if (status != STATUS_INVALID && status != STATUS_UNSUPPORTED) {
        *e = refused;
        return status;
    }
    out->refused = mem_strdup(refused.text);
    return STATUS_OK;
}

/* ---- the choice ---------------------------------------------------------------------------- */

/* With the same tensor and pipeline degrees the lowest stage that fits is enough. */
static bool is_needless(const struct auto_layouts *f, const struct layout_choice *c) {
    for (int i = 0; i < f->count && c->rung == RUNG_REST && !c->shard; i++) {
        const struct auto_candidate *const o = &f->items[i];
        if (o->fits && o->choice.tensor == c->tensor && o->choice.pipeline == c->pipeline &&
            !o->choice.shard)
            return true;
    }
    return false;
}

/* Offloading is the last resort. */
static bool is_enough(const struct auto_layouts *f, const struct layout_choice *c) {
    for (int i = 0; i < f->count && c->rung == RUNG_OFFLOAD; i++) {
        if (f->items[i].fits && f->items[i].choice.rung != RUNG_OFFLOAD) return true;
    }
    return false;
}

static enum status plan_all(struct search *s, struct auto_layouts *f, struct err *e) {
    struct layout_choice choices[LAYOUTS_MAX];
    const struct spec *const spec = s->run->spec;
    const int count = layouts_list(spec->parallel.ranks, spec->parallel.gpus_per_node,
                                   s->run->config->layers, choices);
    f->items = mem_new((size_t)count, sizeof *f->items);
    for (int i = 0; i < count; i++) {
        if (is_needless(f, &choices[i]) || is_enough(f, &choices[i])) continue;
        struct auto_candidate *const c = &f->items[f->count];
        *c = (struct auto_candidate){.choice = choices[i]};
        f->count++;
        TRY(plan_candidate(s, c, e));
    }
    return STATUS_OK;
}

static bool is_faster(const struct auto_candidate *a, const struct auto_candidate *b) {
    return a->tokens_per_second > b->tokens_per_second;
}

/* The first rung on which something fits, there the fastest; of ZeRO's stages the lowest. -1: none.
 */
static int first_of(const struct auto_layouts *f) {
    int best = -1;
    for (int i = 0; i < f->count; i++) {
        const struct auto_candidate *const c = &f->items[i];
        if (!c->fits) continue;
        if (best < 0) {
            best = i;
        } else if (c->choice.rung == f->items[best].choice.rung && c->choice.rung >= RUNG_REST &&
                   is_faster(c, &f->items[best])) {
            best = i;
        }
    }
    return best;
}

static int fastest_of(const struct auto_layouts *f) {
    int best = -1;
    for (int i = 0; i < f->count; i++) {
        if (f->items[i].fits && (best < 0 || is_faster(&f->items[i], &f->items[best]))) best = i;
    }
    return best;
}

static int smallest_of(const struct auto_layouts *f) {
    int best = -1;
    for (int i = 0; i < f->count; i++) {
        const struct auto_candidate *const c = &f->items[i];
        if (!c->refused && (best < 0 || c->need < f->items[best].need)) best = i;
    }
    return best;
}

/* Why nothing gentler was taken. */
static void say_rung(struct str *text, const struct auto_layouts *f, int64_t capacity) {
    const struct auto_candidate *const c = &f->items[f->picked], *const data = &f->items[0];
    char need[24], there[24];
    str_bytes(data->need, need);
    str_bytes(capacity, there);
    switch (c->choice.rung) {
    case RUNG_DATA:
        str_append(text,
                   c->choice.ranks > 1
                       ? "Every rank can hold the whole model, and then only gradients travel."
                       : "There is one rank, and it holds everything.");
        return;
    case RUNG_ZERO:
        str_appendf(text,
                    "With a whole model on every rank %s would be needed of %s: stage %lld is the "
                    "lowest that fits.",
                    need, there, (long long)c->choice.zero_stage);
        return;
    case RUNG_REST:
        str_appendf(text,
                    "A whole model needs %s of %s, and no ZeRO stage over all ranks is enough; of "
                    "the rest this is the fastest by the estimate.",
                    need, there);
        return;
    case RUNG_OFFLOAD:
        str_appendf(text, "Nothing else fits into %s: %s wait in host memory.", there,
                    c->choice.offloads_weights ? "weights" : "the states of AdamW");
        return;
    }
}

static void choose(struct auto_layouts *f, int64_t capacity) {
    const int first = first_of(f), fastest = fastest_of(f);
    struct str text = {0};
    char least[24], there[24];
    if (first < 0) {
        f->picked = smallest_of(f);
        if (f->picked < 0) return;
        str_appendf(&text, "No layout fits; this one needs least: %s of %s.",
                    str_bytes(f->items[f->picked].need, least), str_bytes(capacity, there));
    } else if (f->items[fastest].tokens_per_second > CLEARLY * f->items[first].tokens_per_second) {
        char *const name = layout_choice_name(&f->items[first].choice);
        f->picked = fastest;
        str_appendf(&text,
                    "By the estimate it is %.1f times as fast as the simplest that fits, %s.",
                    f->items[fastest].tokens_per_second / f->items[first].tokens_per_second, name);
        mem_free(name);
    } else {
        f->picked = first;
        say_rung(&text, f, capacity);
    }
    f->why = str_take(&text);
}

/* ---- taking it ----------------------------------------------------------------------------- */

static void replace_word(char **at, const char *word) {
    mem_free(*at);
    *at = mem_strdup(word);
}

static void take_numbers(struct spec *spec, const struct spec *from) {
    spec->parallel.ranks = from->parallel.ranks;
    spec->parallel.zero_stage = from->parallel.zero_stage;
    spec->parallel.tensor_parallel_degree = from->parallel.tensor_parallel_degree;
    spec->parallel.pipeline_parallel_degree = from->parallel.pipeline_parallel_degree;
    spec->parallel.data_parallel_shard_degree = from->parallel.data_parallel_shard_degree;
    spec->per_device_train_batch_size = from->per_device_train_batch_size;
    spec->gradient_accumulation_steps = from->gradient_accumulation_steps;
    spec->optimizer_offloading = from->optimizer_offloading;
    spec->param_offloading = from->param_offloading;
    replace_word(&spec->parallel.layout, "given");
}

static enum status take(const struct auto_run *run, const cJSON *keys, struct err *e) {
    struct changed c = {0};
    const enum status status = changed_open(&c, run->spec, keys, e);
    if (status == STATUS_OK) take_numbers(run->spec, &c.spec);
    changed_close(&c);
    TRY(status);
    session_options_release(run->options);
    TRY(session_options_read(run->options, run->spec, e));
    *run->layout = layout_of_spec(run->spec, run->config);
    return run->corpus ? corpus_cut(run->corpus, run->spec, run->config, e) : STATUS_OK;
}

enum status auto_layout_find(const struct auto_run *run, const struct estimate_place *place,
                             struct auto_layouts *f, struct err *e) {
    *f = (struct auto_layouts){.picked = -1};
    if (!auto_layout_is_open(run->spec)) return STATUS_OK;
    if (place->capacity <= 0)
        return err_set_param(e, STATUS_INVALID, "parallel.layout",
                             "parallel.layout auto needs to know the memory: %s", place->missing);
    struct search s = {run, place, mem_new(1, sizeof *s.plans)};
    enum status status = plan_all(&s, f, e);
    plan_ranks_release(s.plans);
    mem_free(s.plans);
    TRY(status);
    choose(f, place->capacity);
    if (f->picked < 0)
        return err_set_param(e, STATUS_UNSUPPORTED, "parallel.layout",
                             "parallel.layout auto: no layout of %lld ranks is possible: %.800s",
                             (long long)run->spec->parallel.ranks, f->items[0].refused);
    return take(run, f->items[f->picked].set, e);
}

void auto_layouts_release(struct auto_layouts *f) {
    for (int i = 0; i < f->count; i++) {
        cJSON_Delete(f->items[i].set);
        mem_free(f->items[i].refused);
    }
    mem_free(f->items);
    mem_free(f->why);
    *f = (struct auto_layouts){0};
}

/* ---- telling and keeping it ---------------------------------------------------------------- */

/* Layers are all checkpointed, or as asked. */
static cJSON *changes_of(const struct auto_candidate *c) {
    cJSON *const with = cJSON_CreateArray();
    for (int after = -1;;) {
        enum remedy_kind kind = remedy_difference(&c->asked, &c->layout, after);
        if (kind == REMEDY_KIND_COUNT) return with;
        after = (int)kind;
        if (kind == REMEDY_CHECKPOINT_SOME) kind = REMEDY_CHECKPOINT_ALL;
        if (kind != REMEDY_EVAL_BATCH)
            cJSON_AddItemToArray(with, cJSON_CreateString(remedy_name(kind)));
    }
}

static cJSON *candidate_to_json(const struct auto_candidate *c) {
    cJSON *const item = cJSON_CreateObject();
    char *const name = layout_choice_name(&c->choice);
    json_add_string(item, "layout", name);
    mem_free(name);
    cJSON_AddItemToObject(item, "set", cJSON_Duplicate(c->set, true));
    if (c->refused) {
        cJSON_AddNullToObject(item, "need_bytes");
        cJSON_AddNullToObject(item, "fits");
    } else {
        json_add_i64(item, "need_bytes", c->need);
        json_add_bool(item, "fits", c->fits);
    }
    if (c->fits && c->tokens_per_second > 0) {
        json_add_number(item, "tokens_per_second", c->tokens_per_second);
        json_add_number(item, "seconds_per_step", c->time.seconds);
        json_add_number(item, "exchange_seconds", c->time.exchange);
        json_add_number(item, "hidden_seconds", c->time.hidden);
        json_add_number(item, "waiting_seconds", c->time.waiting);
    } else {
        cJSON_AddNullToObject(item, "tokens_per_second");
    }
    cJSON_AddItemToObject(item, "with", changes_of(c));
    json_add_string(item, "refused", c->refused);
    return item;
}

cJSON *auto_layouts_to_json(const struct auto_layouts *f) {
    if (f->count == 0) return NULL;
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "why", f->why);
    json_add_i64(json, "picked", f->picked);
    cJSON *const items = cJSON_AddArrayToObject(json, "candidates");
    for (int i = 0; i < f->count; i++) {
        cJSON_AddItemToArray(items, candidate_to_json(&f->items[i]));
    }
    return json;
}

enum status auto_layout_keep(const struct spec *spec, const char *folder, struct err *e) {
    const struct layout_choice choice = {.ranks = spec->parallel.ranks,
                                         .zero_stage = spec->parallel.zero_stage,
                                         .shard = spec->parallel.data_parallel_shard_degree,
                                         .tensor = spec->parallel.tensor_parallel_degree,
                                         .pipeline = spec->parallel.pipeline_parallel_degree,
                                         .offloads_optimizer = spec->optimizer_offloading,
                                         .offloads_weights = spec->param_offloading};
    cJSON *const keys = layout_choice_keys(&choice, spec);
    char *const path = file_join(folder, KEPT);
    cJSON_DeleteItemFromObjectCaseSensitive(keys, "gradient_accumulation_steps");
    cJSON_DeleteItemFromObjectCaseSensitive(keys, "per_device_train_batch_size");
    json_add_i64(keys, "gradient_accumulation_steps", spec->gradient_accumulation_steps);
    if (spec->per_device_train_batch_size != SPEC_AUTO)
        json_add_i64(keys, "per_device_train_batch_size", spec->per_device_train_batch_size);
    const enum status status = json_write_file(path, keys, e);
    mem_free(path);
    cJSON_Delete(keys);
    return status;
}

enum status auto_layout_recall(struct spec *spec, const char *folder, bool *found, struct err *e) {
    char *const path = file_join(folder, KEPT);
    cJSON *keys = NULL;
    struct changed c = {0};
    enum status status = STATUS_OK;
    *found = file_exists(path);
    if (!*found) goto done;
    GUARD(json_read_file(path, KEPT_BYTES_MAX, &keys, e));
    GUARD_IF(!cJSON_IsObject(keys), STATUS_INVALID, "%s: not an object of keys", path);
    GUARD(changed_open(&c, spec, keys, e));
    take_numbers(spec, &c.spec);
done:
    changed_close(&c);
    cJSON_Delete(keys);
    mem_free(path);
    return status;
}
