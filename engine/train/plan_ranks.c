/* plan_ranks.c - one plan a class of ranks.
 *
 * What a rank holds all the time is found by opening its session, which is cheap, and remembered as
 * the fingerprint of its allocations. Pieces of a divided buffer never grow from one member of a
 * group to the next (comm_piece_of), so two members with the same fingerprint have it in common
 * with all between them: a search by halves finds where it changes. */
#include "engine/train/plan_ranks.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

static void full_rows(const struct plan_subject *s, bool eval, const struct layout *layout,
                      struct batch_shapes *out) {
    struct batch_options options = corpus_batch_options(s->spec, 0, eval);
    options.micro_rows = eval ? layout->eval_rows : layout->micro_rows;
    shapes_full(out, &options);
}

/* What the batcher would cut in that layout. */
static void find_shapes(void *context, bool eval, const struct layout *layout,
                        struct batch_shapes *out) {
    const struct plan_subject *const s = context;
    if (!s->corpus) {
        full_rows(s, eval, layout, out);
        return;
    }
    struct batcher *const b = eval ? &s->corpus->eval_batcher : &s->corpus->batcher;
    const int64_t rows = b->options.micro_rows, tokens = b->options.micro_tokens;
    batcher_cut(b, eval ? layout->eval_rows : layout->micro_rows, eval ? 0 : layout->micro_tokens);
    if (spec_data_world(s->spec) > PLAN_RANKS_MAX) {
        shapes_bound(out, b);
    } else {
        shapes_scan(out, b, eval ? b->steps_per_epoch : s->corpus->total_steps);
    }
    batcher_cut(b, rows, tokens);
}

static bool has_eval(const struct plan_subject *s) {
    return s->corpus ? s->corpus->has_eval : s->spec->data.eval_files.count > 0;
}

static void take_rank(struct plan_ranks *r, int64_t rank) {
    struct plan_subject *const s = &r->subject;
    s->options->rank = rank;
    if (s->corpus) corpus_take_rank(s->corpus, session_data_rank(s->spec, rank));
    r->source = (struct shape_source){s, s->corpus != NULL, find_shapes};
    r->request = (struct plan_request){.config = s->config,
                                       .options = s->options,
                                       .spec = s->spec,
                                       .layout = s->layout,
                                       .train = &r->train,
                                       .eval = has_eval(s) ? &r->eval : NULL,
                                       .source = &r->source,
                                       .counts_work = true};
}

/* Those of the ranks that share a row's work are the same, and so are those of all without data. */
static void take_shapes(struct plan_ranks *r, int64_t data_rank, int64_t *known) {
    const bool alike = !r->subject.corpus || spec_data_world(r->subject.spec) > PLAN_RANKS_MAX;
    if (*known == data_rank || (alike && *known >= 0)) return;
    find_shapes(&r->subject, false, r->subject.layout, &r->train);
    if (has_eval(&r->subject)) find_shapes(&r->subject, true, r->subject.layout, &r->eval);
    *known = data_rank;
}

static enum status fingerprint(struct plan_ranks *r, int64_t rank, uint64_t *out, struct err *e) {
    take_rank(r, rank);
    return plan_held(&r->request, out, e);
}

/* The fingerprints of members `low`..`high` of a shard group, whose ends are known. */
static enum status fill_between(struct plan_ranks *r, const struct mesh_place *place,
                                uint64_t *held, int64_t low, int64_t high, struct err *e) {
    if (high - low < 2) return STATUS_OK;
    if (held[low] == held[high]) {
        for (int64_t i = low + 1; i < high; i++) {
            held[i] = held[low];
        }
        return STATUS_OK;
    }
    const int64_t middle = low + (high - low) / 2;
    struct mesh_place at = *place;
    at.at[AXIS_SHARD] = middle;
    TRY(fingerprint(r, mesh_rank_of(&r->shape, &at), &held[middle], e));
    TRY(fill_between(r, place, held, low, middle, e));
    return fill_between(r, place, held, middle, high, e);
}

/* Of all members of the shard group of these tensor and pipeline places. */
static enum status fill_group(struct plan_ranks *r, const struct mesh_place *place, uint64_t *held,
                              struct err *e) {
    struct mesh_place at = *place;
    const int64_t last = r->shape.degree[AXIS_SHARD] - 1;
    at.at[AXIS_SHARD] = 0;
    TRY(fingerprint(r, mesh_rank_of(&r->shape, &at), &held[0], e));
    at.at[AXIS_SHARD] = last;
    if (last > 0) TRY(fingerprint(r, mesh_rank_of(&r->shape, &at), &held[last], e));
    return fill_between(r, place, held, 0, last, e);
}

/* [pipeline][tensor][shard]; copies along the replicate axis are alike. */
static uint64_t *fingerprint_at(const struct plan_ranks *r, uint64_t *held,
                                const struct mesh_place *place) {
    const int64_t group =
        place->at[AXIS_PIPELINE] * r->shape.degree[AXIS_TENSOR] + place->at[AXIS_TENSOR];
    return held + group * r->shape.degree[AXIS_SHARD] + place->at[AXIS_SHARD];
}

/* Of all tensor places of a stage: where the first and the last hold the same, so do those between.
 */
static enum status fill_stage(struct plan_ranks *r, int64_t stage, uint64_t *held, struct err *e) {
    const size_t bytes = (size_t)r->shape.degree[AXIS_SHARD] * sizeof *held;
    const int64_t last = r->shape.degree[AXIS_TENSOR] - 1;
    struct mesh_place first = {{0}}, end = {{0}};
    first.at[AXIS_PIPELINE] = end.at[AXIS_PIPELINE] = stage;
    end.at[AXIS_TENSOR] = last;
    uint64_t *const known = fingerprint_at(r, held, &first);
    TRY(fill_group(r, &first, known, e));
    if (last > 0) TRY(fill_group(r, &end, fingerprint_at(r, held, &end), e));
    const bool alike = memcmp(known, fingerprint_at(r, held, &end), bytes) == 0;
    for (int64_t t = 1; t < last; t++) {
        end.at[AXIS_TENSOR] = t;
        uint64_t *const own = fingerprint_at(r, held, &end);
        if (alike) {
            memcpy(own, known, bytes);
        } else {
            TRY(fill_group(r, &end, own, e));
        }
    }
    return STATUS_OK;
}

static enum status fill_fingerprints(struct plan_ranks *r, uint64_t *held, struct err *e) {
    for (int64_t stage = 0; stage < r->shape.degree[AXIS_PIPELINE]; stage++) {
        TRY(fill_stage(r, stage, held, e));
    }
    return STATUS_OK;
}

static bool steps_equal(const struct step_shapes *a, const struct step_shapes *b) {
    const int64_t steps = step_shapes_count(a);
    bool equal = a->listed == b->listed && steps == step_shapes_count(b);
    for (int64_t i = 0; equal && i < steps; i++) {
        const int64_t micros = step_shapes_micros(a, i);
        equal = micros == step_shapes_micros(b, i);
        for (int64_t k = 0; equal && k < micros; k++) {
            equal = memcmp(step_shapes_at(a, i, k), step_shapes_at(b, i, k),
                           sizeof(struct batch_shape)) == 0;
        }
    }
    return equal;
}

/* In a pipeline it matters which micro-batches follow each other. */
static bool shapes_equal(const struct plan_ranks *r, const struct batch_shapes *a,
                         const struct batch_shapes *b) {
    const bool in_steps = r->shape.degree[AXIS_PIPELINE] > 1;
    return a->count == b->count &&
           memcmp(a->items, b->items, (size_t)a->count * sizeof a->items[0]) == 0 &&
           (!in_steps || steps_equal(&a->in_steps, &b->in_steps));
}

/* The class that this rank belongs to; NULL: a new one. The request is the rank's. */
static struct plan_class *find_class(struct plan_ranks *r, const struct plan_class *wanted) {
    for (int64_t i = 0; i < r->class_count; i++) {
        struct plan_class *const c = &r->classes[i];
        if (c->stage == wanted->stage && c->tensor == wanted->tensor && c->held == wanted->held &&
            c->speaks == wanted->speaks && shapes_equal(r, &c->train, &r->train) &&
            shapes_equal(r, &c->eval, &r->eval))
            return c;
    }
    return NULL;
}

/* Ranks that share the model make samples together. */
static bool speaks_alone(const struct plan_ranks *r) {
    return r->subject.spec->sample_prompts.count > 0 &&
           r->shape.degree[AXIS_PIPELINE] * r->shape.degree[AXIS_TENSOR] == 1;
}

/* Rows are divided among ranks that share a layer; not all have as many, unless the number of rows
 * is known to be divisible. */
static int64_t place_that_matters(const struct plan_ranks *r, const struct mesh_place *place) {
    const struct plan_subject *const s = &r->subject;
    const bool even = s->spec->data.max_length % r->shape.degree[AXIS_TENSOR] == 0;
    return even && !s->corpus ? 0 : place->at[AXIS_TENSOR];
}

static enum status place_rank(struct plan_ranks *r, int64_t rank, uint64_t held, struct err *e) {
    const struct mesh_place place = mesh_place_of(&r->shape, rank);
    const struct plan_class wanted = {.first = rank,
                                      .stage = place.at[AXIS_PIPELINE],
                                      .tensor = place_that_matters(r, &place),
                                      .held = held,
                                      .speaks = rank == 0 && speaks_alone(r)};
    struct plan_class *c = find_class(r, &wanted);
    if (!c) {
        r->classes =
            mem_grow(r->classes, (size_t)r->class_count, &r->class_capacity, sizeof *r->classes);
        c = &r->classes[r->class_count++];
        *c = wanted;
        c->train = r->train;
        c->eval = r->eval;
        take_rank(r, rank);
        TRY(plan_make(&c->plan, &r->request, e));
    }
    c->count++;
    r->class_of[rank] = c - r->classes;
    if (rank > 0 && plan_need(&c->plan) <= plan_need(&r->plan)) return STATUS_OK;
    r->plan = c->plan;
    r->neediest = rank;
    return STATUS_OK;
}

enum status plan_ranks_make(struct plan_ranks *r, const struct plan_subject *subject,
                            struct err *e) {
    int64_t known = -1;
    r->subject = *subject;
    r->shape = session_shape(subject->spec);
    r->world = mesh_world(&r->shape);
    r->class_of = mem_new((size_t)r->world, sizeof *r->class_of);
    uint64_t *const held = mem_new((size_t)r->world, sizeof *held);
    enum status status = fill_fingerprints(r, held, e);
    for (int64_t rank = 0; status == STATUS_OK && rank < r->world; rank++) {
        const struct mesh_place place = mesh_place_of(&r->shape, rank);
        take_rank(r, rank);
        take_shapes(r, mesh_data_rank(&r->shape, &place), &known);
        status = place_rank(r, rank, *fingerprint_at(r, held, &place), e);
    }
    mem_free(held);
    TRY(status);
    take_rank(r, r->neediest);
    known = -1;
    take_shapes(r, session_data_rank(subject->spec, r->neediest), &known);
    return STATUS_OK;
}

void plan_ranks_release(struct plan_ranks *r) {
    if (!r) return;
    mem_free(r->class_of);
    mem_free(r->classes);
    *r = (struct plan_ranks){0};
}

const struct plan *plan_ranks_slowest(const struct plan_ranks *r,
                                      const struct estimate_place *place) {
    const struct plan *slowest = &r->plan;
    double longest = 0;
    for (int64_t i = 0; i < r->class_count; i++) {
        const struct plan *const plan = &r->classes[i].plan;
        const double seconds = estimate_step(plan, &place->rates, &place->links, &r->shape).seconds;
        if (seconds <= longest) continue;
        longest = seconds;
        slowest = plan;
    }
    return slowest;
}

static void add_bytes(cJSON *item, const struct plan *plan) {
    json_add_i64(item, "planned_peak_bytes", plan->stats.allocated_peak);
    json_add_i64(item, "planned_reserved_bytes", plan->stats.reserved_peak);
    json_add_i64(item, "planned_need_bytes", plan_need(plan));
}

cJSON *plan_ranks_to_json(const struct plan_ranks *r) {
    cJSON *const list = cJSON_CreateArray();
    for (int64_t i = 0; i < r->world && i < PLAN_RANKS_MAX; i++) {
        cJSON *const item = cJSON_CreateObject();
        json_add_i64(item, "rank", i);
        add_bytes(item, &r->classes[r->class_of[i]].plan);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

/* "0-7, 16-23 and 12 more" */
static char *ranks_text(const struct plan_ranks *r, int64_t class) {
    enum { RANGES_MAX = 6 };
    struct str text = {0};
    int64_t told = 0;
    int ranges = 0;
    for (int64_t i = 0; i < r->world && ranges < RANGES_MAX; i++) {
        if (r->class_of[i] != class) continue;
        int64_t end = i;
        while (end + 1 < r->world && r->class_of[end + 1] == class) {
            end++;
        }
        str_appendf(&text, "%s%lld", ranges ? ", " : "", (long long)i);
        if (end > i) str_appendf(&text, "-%lld", (long long)end);
        told += end - i + 1;
        ranges++;
        i = end;
    }
    const int64_t left = r->classes[class].count - told;
    if (left > 0) str_appendf(&text, " and %lld more", (long long)left);
    return str_take(&text);
}

cJSON *plan_classes_to_json(const struct plan_ranks *r) {
    cJSON *const list = cJSON_CreateArray();
    for (int64_t i = 0; i < r->class_count; i++) {
        cJSON *const item = cJSON_CreateObject();
        char *const text = ranks_text(r, i);
        json_add_string(item, "ranks", text);
        mem_free(text);
        json_add_i64(item, "count", r->classes[i].count);
        json_add_i64(item, "stage", r->classes[i].stage);
        json_add_i64(item, "first_layer", r->classes[i].plan.first_layer);
        json_add_i64(item, "end_layer", r->classes[i].plan.end_layer);
        add_bytes(item, &r->classes[i].plan);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}
