/* estimate.c - verdict, table of phases, overhead, host memory and time, as JSON.
 *
 * The keys are those that POST /v1/plan answers with; the command line and the page draw them. */
#include "engine/train/estimate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/train/measure.h"
#include "engine/train/overhead.h"
#include "kernels/cards.h"

/* What a card holds beside the arena before anything was measured on it: the context, and what the
 * libraries load at their first calls. Said to be assumed wherever it is shown. */
static const int64_t ASSUMED_OVERHEAD_BYTES = INT64_C(1) << 30;

static void place_named(struct estimate_place *p, const char *name) {
    snprintf(p->name, sizeof p->name, "%s", name);
}

/* Of a card: measured when one of its kind was used here before. */
static void take_overhead(struct estimate_place *p) {
    p->overhead = overhead_recall(p->name);
    p->overhead_measured = p->overhead >= 0;
    if (!p->overhead_measured) p->overhead = ASSUMED_OVERHEAD_BYTES;
}

static enum status use_card(struct estimate_place *p, const struct spec *spec, const char *name,
                            enum precision precision, struct err *e) {
    const struct card *const card = card_find(name);
    if (!card) {
        struct str known = {0};
        for (int i = 0; card_at(i); i++) {
            str_appendf(&known, "%s%s", i ? ", " : "", card_at(i)->id);
        }
        const enum status status =
            err_set_param(e, STATUS_NOT_FOUND, "card", "card \"%.60s\" is not known; known are %s",
                          name, str_text(&known));
        str_release(&known);
        return status;
    }
    place_named(p, card->name);
    p->rates = card_rates(card, precision);
    take_overhead(p);
    const int64_t there = card->memory_bytes - p->overhead;
    const int64_t cap = spec_cap_bytes(&spec->memory.cap, card->memory_bytes);
    p->capacity = cap > 0 && cap < there ? cap : there;
    p->from = cap > 0 && cap < there ? "memory.cap" : "card";
    return STATUS_OK;
}

/* The card that a spec's device names, where the machine has it. Asking makes no context on it. */
static bool find_card(const char *device, struct device_card *out, char *missing, size_t size) {
    struct device_cards cards;
    device_cards_find(&cards);
    for (int i = 0; i < cards.count; i++) {
        if (strcmp(cards.items[i].id, device) != 0) continue;
        *out = cards.items[i];
        return true;
    }
    snprintf(missing, size, "%s is not here%s%s; name a card or set memory.cap", device,
             cards.problem.status ? ": " : "", cards.problem.status ? cards.problem.text : "");
    return false;
}

static void use_gpu(struct estimate_place *p, const struct spec *spec, enum precision precision) {
    struct device_card gpu;
    struct err ignored = {0};
    char name[SPEC_DEVICE_MAX];
    spec_device_of(spec, 0, name);
    const bool here = find_card(name, &gpu, p->missing, sizeof p->missing);
    p->capacity = spec->memory.cap.bytes;
    if (p->capacity) p->from = "memory.cap";
    if (!here) return;
    const struct card *const card = card_find(gpu.name);
    place_named(p, gpu.name);
    if (rates_recall(&p->rates, gpu.name, precision, &ignored) != STATUS_OK) {
        p->rates = card ? card_rates(card, precision) : (struct rates){0};
    }
    take_overhead(p);
    if (gpu.free_bytes < 0) return;
    const int64_t there = gpu.free_bytes - p->overhead;
    const int64_t cap = spec_cap_bytes(&spec->memory.cap, gpu.total_bytes);
    p->capacity = cap > 0 && cap < there ? cap : there;
    p->from = cap > 0 && cap < there ? "memory.cap" : "device";
}

static enum status use_processor(struct estimate_place *p, const struct spec *spec,
                                 const struct device_options *options, struct err *e) {
    struct device *device = NULL;
    struct err ignored = {0};
    TRY(device_open(&device, spec->device, options, e));
    place_named(p, device->detail);
    /* This very process with its libraries loaded and no tensor yet. */
    p->overhead = host_resident();
    p->overhead_measured = p->overhead >= 0;
    if (rates_recall(&p->rates, device->detail, device->precision, &ignored) != STATUS_OK)
        p->rates = (struct rates){0};
    const enum status status =
        session_capacity(device, &spec->memory.cap, session_sharers(spec), &p->capacity, e);
    p->from = spec_cap_bytes(&spec->memory.cap, device->total_bytes) ? "memory.cap" : "device";
    device_close(device);
    return status;
}

enum status estimate_place_find(struct estimate_place *p, const struct spec *spec,
                                const struct device_options *options, const char *card,
                                struct err *e) {
    const bool gpu = card || str_starts_with(spec->device, "cuda");
    *p = (struct estimate_place){.overhead = -1};
    place_named(p, spec->device);
    if (card) {
        TRY(use_card(p, spec, card, options->precision, e));
    } else if (gpu) {
        use_gpu(p, spec, options->precision);
    } else {
        TRY(use_processor(p, spec, options, e));
    }
    p->links =
        links_find(gpu ? p->name : "cpu", spec->parallel.network, spec->parallel.gpus_per_node);
    return STATUS_OK;
}

/* PCI Express 4.0 x16 from page-locked memory: what cards reach that are not newer. */
#define BUS_BYTES_PER_SECOND 24e9

/* What comes over the bus comes beside the computing of its own part of the step. */
static double bus_wait(double computing, int64_t bytes) {
    return fmax(0, (double)bytes / BUS_BYTES_PER_SECOND - computing);
}

/* What is exchanged aside runs beside the computing of its own part of the step. */
static void add_part(struct step_time *t, double times, const struct device_work *work,
                     const struct exchange_time *said, const struct rates *rates) {
    const double computing = cost_seconds(work, rates, NULL);
    const double hidden = fmin(computing, said->aside);
    t->computing += times * computing;
    t->hidden += times * hidden;
    t->exchange += times * (said->plain + said->aside - hidden);
    t->bytes += times * said->bytes;
    t->across += times * said->across;
}

struct step_time estimate_step(const struct plan *plan, const struct rates *rates,
                               const struct links *links, const struct mesh_shape *shape) {
    struct step_time t = {.tokens = plan->tokens_per_step * (double)mesh_data_world(shape)};
    if (rates->counts[WORK_PRODUCT] == 0 || plan->micros_per_step <= 0) return t;
    const double lasts = fmin(plan->micros_per_step, 1);
    const struct exchange_time micro = links_time(links, &plan->micro_traffic),
                               last = links_time(links, &plan->last_traffic),
                               update = links_time(links, &plan->update_traffic);
    add_part(&t, plan->micros_per_step - lasts, &plan->micro_work, &micro, rates);
    add_part(&t, lasts, &plan->micro_work, &last, rates);
    /* A pipeline of p stages and m micro-batches is idle for p - 1 of m + p - 1 turns (Narayanan et
     * al. 2021, section 2.2), in either schedule. */
    t.waiting = (t.computing + t.exchange) * (double)(shape->degree[AXIS_PIPELINE] - 1) /
                plan->micros_per_step;
    add_part(&t, 1, &plan->update_work, &update, rates);
    t.bus = plan->micros_per_step *
                bus_wait(cost_seconds(&plan->micro_work, rates, NULL), plan->bus_micro) +
            bus_wait(cost_seconds(&plan->update_work, rates, NULL), plan->bus_update);
    t.seconds = t.computing + t.exchange + t.waiting + t.bus;
    return t;
}

static void add_verdict(cJSON *json, const struct plan *plan, const struct estimate_place *p) {
    const int64_t needed = plan_need(plan);
    char a[24], b[24], c[24], *text = NULL;
    cJSON *const verdict = cJSON_AddObjectToObject(json, "verdict");
    if (p->capacity <= 0) {
        cJSON_AddNullToObject(verdict, "fits");
        cJSON_AddNullToObject(verdict, "spare_bytes");
        text = str_format("it needs %s; whether that fits is not known: %s", str_bytes(needed, a),
                          p->missing);
    } else {
        const int64_t spare = p->capacity - needed;
        json_add_bool(verdict, "fits", spare >= 0);
        json_add_i64(verdict, "spare_bytes", spare);
        text = str_format(spare >= 0 ? "fits: it needs %s, %s are there, %s to spare"
                                     : "does not fit: it needs %s, %s are there, %s too much",
                          str_bytes(needed, a), str_bytes(p->capacity, b),
                          str_bytes(spare >= 0 ? spare : -spare, c));
    }
    json_add_string(verdict, "text", text);
    json_add_string(verdict, "capacity_from", p->from);
    json_add_string(verdict, "device", p->name);
    mem_free(text);
}

static void add_when(cJSON *json, const struct plan *plan) {
    cJSON *const when = cJSON_AddObjectToObject(json, "when");
    json_add_string(when, "part", plan_part_name(plan->peak_part));
    json_add_string(when, "phase", phase_name(plan->stats.peak_phase));
    json_add_i64(when, "tokens", plan->peak_shape.tokens);
    json_add_i64(when, "trained_tokens", plan->peak_shape.trained);
    json_add_i64(when, "documents", plan->peak_shape.segments);
    json_add_i64(when, "longest", plan->peak_shape.max_seqlen);
}

static void add_beside(cJSON *json, const struct plan *plan, const struct estimate_place *p) {
    cJSON *const overhead = cJSON_AddObjectToObject(json, "overhead");
    if (p->overhead < 0) {
        cJSON_AddNullToObject(overhead, "bytes");
    } else {
        json_add_i64(overhead, "bytes", p->overhead);
    }
    json_add_string(overhead, "from",
                    p->overhead < 0        ? "unknown"
                    : p->overhead_measured ? "measured"
                                           : "assumed");
    cJSON *const host = cJSON_AddObjectToObject(json, "host");
    json_add_i64(host, "staging_load_bytes", plan->staged_load);
    json_add_i64(host, "staging_train_bytes", plan->staged_train);
}

static void add_classes(cJSON *time, const double by_class[WORK_CLASS_COUNT]) {
    cJSON *const classes = cJSON_AddObjectToObject(time, "seconds_by_class");
    for (int i = 0; i < WORK_CLASS_COUNT; i++) {
        json_add_number(classes, work_class_name((enum work_class)i), by_class[i]);
    }
}

static void add_link(cJSON *json, const char *key, const struct link_speed *link) {
    cJSON *const item = cJSON_AddObjectToObject(json, key);
    json_add_string(item, "name", link->name);
    json_add_number(item, "bytes_per_second", link->bytes_per_second);
    json_add_string(item, "from", link->from);
}

static void add_exchange(cJSON *time, const struct step_time *t, const struct links *links) {
    cJSON *const exchange = cJSON_AddObjectToObject(time, "exchange");
    json_add_number(exchange, "bytes_per_step", t->bytes);
    json_add_number(exchange, "seconds", t->exchange);
    json_add_number(exchange, "hidden_seconds", t->hidden);
    json_add_number(exchange, "between_machines_seconds", t->across);
    json_add_i64(exchange, "ranks_per_machine", links->ranks_per_node);
    add_link(exchange, "link", &links->node);
    add_link(exchange, "network", &links->network);
}

static void add_time(cJSON *json, const struct estimate_subject *s,
                     const struct estimate_place *p) {
    const struct device_work work = plan_step_work(s->slowest);
    const struct step_time t = estimate_step(s->slowest, &p->rates, &p->links, &s->shape);
    cJSON *const time = cJSON_AddObjectToObject(json, "time");
    json_add_number(time, "flops_per_step", cost_flops(&work));
    json_add_number(time, "tokens_per_step", t.tokens);
    json_add_number(time, "micro_batches_per_step", s->slowest->micros_per_step);
    if (t.seconds <= 0) {
        cJSON_AddNullToObject(time, "seconds_per_step");
        json_add_string(time, "rates", "unknown");
        return;
    }
    double by_class[WORK_CLASS_COUNT], of_update[WORK_CLASS_COUNT];
    (void)cost_seconds(&s->slowest->micro_work, &p->rates, by_class);
    (void)cost_seconds(&s->slowest->update_work, &p->rates, of_update);
    for (int i = 0; i < WORK_CLASS_COUNT; i++) {
        by_class[i] = s->slowest->micros_per_step * by_class[i] + of_update[i];
    }
    json_add_number(time, "seconds_per_step", t.seconds);
    json_add_number(time, "tokens_per_second", t.tokens / t.seconds);
    if (s->total_steps > 0)
        json_add_number(time, "seconds_total", t.seconds * (double)s->total_steps);
    json_add_string(time, "rates", p->rates.measured ? "measured" : "published");
    json_add_string(time, "rates_of", p->rates.name);
    add_classes(time, by_class);
    if (mesh_world(&s->shape) == 1) return;
    add_exchange(time, &t, &p->links);
    json_add_number(time, "pipeline_waits_seconds", t.waiting);
    json_add_number(time, "bus_waits_seconds", t.bus);
}

void estimate_add(cJSON *json, const struct estimate_subject *s, const struct estimate_place *p) {
    add_verdict(json, s->plan, p);
    add_when(json, s->plan);
    add_beside(json, s->plan, p);
    add_time(json, s, p);
}
