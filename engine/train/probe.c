/* probe.c - the two ramps.
 *
 * A session is opened once for the way up, and once for each new layout on the way down: what a
 * session holds must be as in a run of that layout. Each rung is a micro-batch of full rows. */
#include "engine/train/probe.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/weights.h"
#include "engine/train/remedy.h"

enum { STEPS = 3, SHORTEST = 16, LENGTHS = 4, CAP_STEP_PERCENT = 5 };

struct probe {
    const struct plan_request *asked;
    struct spec spec; /* a shallow copy: nothing is learned and nothing is said */
    struct session_options options;
    struct layout layout; /* that was asked for */
    int64_t capacity;
    bool all_equal;
};

/* A micro-batch, and how it is run. */
struct rung {
    int64_t rows, length, micros;
    struct layout layout;
    struct plan_request request;
    struct batch_shapes shapes;
    struct plan plan;
};

static void full_rows(struct batch_shapes *shapes, int64_t rows, int64_t length) {
    const struct batch_options options = {
        .micro_rows = rows, .global_rows = rows, .max_length = length};
    shapes_full(shapes, &options);
}

/* For remedies: what is tried must be what is planned. */
static void find_full_rows(void *context, bool eval, const struct layout *layout,
                           struct batch_shapes *out) {
    const struct probe *const p = context;
    full_rows(out, eval ? layout->eval_rows : layout->micro_rows, p->spec.data.max_length);
}

static void set_rung(struct rung *g, const struct probe *p, const struct layout *layout,
                     int64_t rows, int64_t length) {
    *g = (struct rung){.rows = rows, .length = length, .micros = 1, .layout = *layout};
    full_rows(&g->shapes, rows, length);
    g->request = *p->asked;
    g->request.spec = &p->spec;
    g->request.options = &p->options;
    g->request.layout = &g->layout;
    g->request.train = &g->shapes;
    g->request.eval = NULL;
    g->request.counts_work = false;
}

static enum status open_loaded(struct probe *p, struct session *s, const struct layout *layout,
                               int64_t capacity, struct err *e) {
    struct weights_report report;
    const struct session_place place = {
        .device = p->spec.device, .cap = {.bytes = capacity}, .train = true};
    const struct session_source source = {.model = p->spec.model,
                                          .adapter = p->spec.adapter_name_or_path,
                                          .seed = (uint64_t)p->spec.seed};
    session_take_layout(&p->options, layout);
    TRY(session_open(s, &place, p->asked->config, &p->options, e));
    return session_load(s, &source, &report, e);
}

/* Tokens a second in the fastest of STEPS steps after a first one. */
static enum status time_rung(struct session *s, const struct rung *g, double *speed,
                             struct err *e) {
    struct batch batch = {0};
    enum status status = STATUS_OK;
    double best = HUGE_VAL;
    shape_batch(&g->shapes.items[0], &batch);
    for (int i = 0; i <= STEPS && status == STATUS_OK; i++) {
        const int64_t began = clock_steady_ns();
        status = plan_step(s, &g->request, &batch, g->micros, e);
        if (i > 0) best = fmin(best, (double)(clock_steady_ns() - began) * 1e-9);
    }
    batch_release(&batch);
    *speed = (double)(g->rows * g->length * g->micros) / best;
    return status;
}

static int64_t peak_of(const struct session *s) {
    struct arena_stats stats;
    arena_get_stats(s->arena, &stats);
    return stats.allocated_peak;
}

/* One rung up; *planned, like the session's own peak, only grows. */
static enum status climb(struct probe *p, struct session *s, struct rung *g, int64_t *planned,
                         cJSON *entry, struct err *e) {
    double speed = 0;
    TRY(plan_make(&g->plan, &g->request, e));
    if (g->plan.stats.allocated_peak > *planned) *planned = g->plan.stats.allocated_peak;
    const bool fits = plan_need(&g->plan) <= p->capacity;
    json_add_i64(entry, "rows", g->rows);
    json_add_i64(entry, "length", g->length);
    json_add_i64(entry, "tokens", g->rows * g->length);
    json_add_i64(entry, "planned_peak_bytes", *planned);
    json_add_bool(entry, "fits", fits);
    if (!fits) return STATUS_OK;
    TRY(time_rung(s, g, &speed, e));
    const bool equal = peak_of(s) == *planned;
    p->all_equal = p->all_equal && equal;
    json_add_i64(entry, "measured_peak_bytes", peak_of(s));
    json_add_bool(entry, "equal", equal);
    json_add_number(entry, "tokens_per_second", speed);
    return STATUS_OK;
}

/* Lengths first, at one row; then rows at the full length. False after the last. */
static bool next_size(const struct probe *p, int index, int64_t *rows, int64_t *length) {
    const int64_t whole = p->spec.data.max_length;
    if (index < LENGTHS) {
        *rows = 1;
        *length = whole >> (LENGTHS - 1 - index);
        if (*length < SHORTEST) *length = whole < SHORTEST ? whole : SHORTEST;
        return true;
    }
    *rows = INT64_C(1) << (index - LENGTHS + 1);
    *length = whole;
    if (*rows >= 2 * p->layout.micro_rows) return false;
    if (*rows > p->layout.micro_rows) *rows = p->layout.micro_rows;
    return true;
}

static enum status ramp_up(struct probe *p, cJSON *list, struct err *e) {
    struct session s = {0};
    struct rung *const g = mem_new(1, sizeof *g);
    int64_t rows = 0, length = 0, planned = 0;
    bool fits = true;
    enum status status = open_loaded(p, &s, &p->layout, p->capacity, e);
    for (int i = 0; status == STATUS_OK && fits && next_size(p, i, &rows, &length); i++) {
        cJSON *const entry = cJSON_CreateObject();
        cJSON_AddItemToArray(list, entry);
        set_rung(g, p, &p->layout, rows, length);
        status = climb(p, &s, g, &planned, entry, e);
        fits = cJSON_IsTrue(json_member(entry, "fits"));
    }
    session_close(&s);
    mem_free(g);
    return status;
}

/* What is left of a run whose capacity is lowered. */
struct lowered {
    struct session session;
    struct layout layout; /* of the open session */
    double speed;
    bool open;
};

/* Trains at this capacity with the layout of the last remedy. */
static enum status train_lowered(struct probe *p, struct lowered *l, struct rung *g,
                                 int64_t capacity, cJSON *entry, struct err *e) {
    const bool same = l->open && layout_equal(&l->layout, &g->layout);
    if (!same) {
        session_close(&l->session);
        l->open = true;
        l->layout = g->layout;
        TRY(open_loaded(p, &l->session, &g->layout, capacity, e));
        TRY(time_rung(&l->session, g, &l->speed, e));
    }
    json_add_i64(entry, "measured_peak_bytes", peak_of(&l->session));
    json_add_number(entry, "tokens_per_second", l->speed);
    return STATUS_OK;
}

static void set_lowered(struct rung *g, const struct probe *p, const struct remedy_list *found) {
    const struct remedy *const last = found->count > 0 ? &found->items[found->count - 1] : NULL;
    const struct layout layout = last ? last->layout : p->layout;
    set_rung(g, p, &layout, layout.micro_rows, p->spec.data.max_length);
    g->micros = (spec_step_rows(&p->spec) + g->rows - 1) / g->rows;
    g->plan = last ? last->plan : found->now;
}

/* One step down; *fits is false when no remedy is enough. */
static enum status lower(struct probe *p, struct lowered *l, int64_t capacity, cJSON *entry,
                         bool *fits, struct err *e) {
    struct remedy_list found = {0};
    struct rung *const g = mem_new(1, sizeof *g);
    set_rung(g, p, &p->layout, p->layout.micro_rows, p->spec.data.max_length);
    struct plan_request request = g->request;
    const struct shape_source source = {p, false, find_full_rows};
    request.source = &source;
    enum status status = remedies_find(&found, &request, &p->layout, capacity, e);
    *fits = status == STATUS_OK && found.fits;
    cJSON *const names = cJSON_AddArrayToObject(entry, "remedies");
    json_add_i64(entry, "capacity_bytes", capacity);
    json_add_bool(entry, "fits", *fits);
    for (int64_t i = 0; i < found.count; i++) {
        if (i + 1 < found.count && found.items[i + 1].kind == found.items[i].kind) continue;
        cJSON_AddItemToArray(names, cJSON_CreateString(remedy_name(found.items[i].kind)));
    }
    if (*fits) {
        set_lowered(g, p, &found);
        cJSON_AddItemToObject(entry, "layout", layout_to_json(&g->layout));
        json_add_i64(entry, "need_bytes", plan_need(&g->plan));
        status = train_lowered(p, l, g, capacity, entry, e);
    }
    remedy_list_release(&found);
    mem_free(g);
    return status;
}

static enum status ramp_down(struct probe *p, cJSON *list, struct err *e) {
    struct lowered *const l = mem_new(1, sizeof *l);
    struct rung *const g = mem_new(1, sizeof *g);
    bool fits = true;
    set_rung(g, p, &p->layout, p->layout.micro_rows, p->spec.data.max_length);
    enum status status = plan_make(&g->plan, &g->request, e);
    const int64_t need = plan_need(&g->plan);
    const int64_t most = need < p->capacity ? need : p->capacity;
    for (int percent = 100; status == STATUS_OK && fits && percent > 0;
         percent -= CAP_STEP_PERCENT) {
        cJSON *const entry = cJSON_CreateObject();
        cJSON_AddItemToArray(list, entry);
        json_add_number(entry, "share", percent / 100.0);
        status =
            lower(p, l, most / 100 * percent + (percent == 100 ? most % 100 : 0), entry, &fits, e);
    }
    session_close(&l->session);
    mem_free(l);
    mem_free(g);
    return status;
}

enum status probe_run(const struct plan_request *request, int64_t capacity, cJSON **out,
                      struct err *e) {
    struct probe p = {.asked = request,
                      .spec = *request->spec,
                      .options = *request->options,
                      .layout = request->layout ? *request->layout
                                                : layout_of_spec(request->spec, request->config),
                      .capacity = capacity,
                      .all_equal = true};
    FAIL_IF(p.spec.parallel.ranks > 1, STATUS_UNSUPPORTED,
            "a probe trains on one rank: set parallel.ranks to 1");
    p.spec.learning_rate = 0;
    p.spec.sample_prompts = (struct spec_strings){0};
    cJSON *const json = cJSON_CreateObject();
    cJSON *const up = cJSON_AddArrayToObject(json, "ramp"), *const down =
                                                                cJSON_AddArrayToObject(json, "cap");
    enum status status = ramp_up(&p, up, e);
    if (status == STATUS_OK) status = ramp_down(&p, down, e);
    json_add_bool(json, "all_equal", p.all_equal);
    if (status == STATUS_OK) {
        *out = json;
    } else {
        cJSON_Delete(json);
    }
    return status;
}
