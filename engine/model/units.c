/* units.c - see units.h: arithmetic, no memory of the device.
 *
 * A unit has its decayed elements first, and padding at its end. Units of narrow masters (with
 * stochastic rounding) come before the vectors, which are f32. */
#include "engine/model/units.h"

#include "base/mem.h"

/* Below so many elements one sum after backward costs less than what is lost for it: a step of one
 * micro-batch that is one graph. 1 GiB takes 5 ms between GPUs with NVLink. */
#define OVERLAP_ELEMENTS_MIN (INT64_C(256) << 20)

enum dtype units_value_dtype(const struct model *m, enum param_kind kind) {
    switch (kind) {
    case PARAM_WEIGHT:
    case PARAM_EMBEDDING: return m->options.weight_dtype;
    case PARAM_NORM:
    case PARAM_MAGNITUDE: return DTYPE_F32;
    case PARAM_BIAS:
    case PARAM_LORA_A:
    case PARAM_LORA_B: break;
    }
    return m->space->device->activation_dtype;
}

bool storage_is_narrow(const struct model *m, const struct storage *s) {
    return m->options.stochastic_rounding && units_value_dtype(m, s->kind) != DTYPE_F32;
}

bool storage_is_vector(const struct storage *s) {
    return s->kind == PARAM_NORM || s->kind == PARAM_BIAS || s->kind == PARAM_MAGNITUDE;
}

/* The ranks that share one copy of the parameters; NULL: there is no other. */
static const struct comm_group *sharers(const struct model *m) {
    const struct mesh *const mesh = m->options.mesh;
    return mesh && mesh->axis[AXIS_SHARD].world > 1 ? &mesh->axis[AXIS_SHARD] : NULL;
}

int64_t units_stage(const struct model *m) {
    return sharers(m) ? m->options.zero_stage : 0;
}

bool units_are_away(const struct model *m) {
    return m->options.full && m->options.param_offloading;
}

bool units_are_gathered(const struct model *m) {
    return m->options.full && (units_stage(m) == 3 || m->options.param_offloading);
}

bool units_are_divided(const struct model *m) {
    const struct model_options *const o = &m->options;
    const bool copies = o->weight_dtype != DTYPE_F32 && !o->stochastic_rounding;
    return units_are_gathered(m) || (units_stage(m) > 0 && o->full && copies);
}

static int64_t slot_of(const struct model *m, int64_t unit) {
    ASSERT(unit < m->config.layers && unit >= -UNITS_BESIDE);
    return unit >= 0 ? unit : m->config.layers - 1 - unit;
}

struct unit *unit_at(const struct model *m, int64_t unit) {
    return &m->units[slot_of(m, unit)];
}

struct storage_span units_span(const struct model *m, int64_t unit) {
    return m->spans[slot_of(m, unit)];
}

int64_t units_held(const struct model *m, const struct storage *s) {
    ASSERT(!units_are_divided(m) || s->unit == UNIT_VECTORS);
    if (!units_are_divided(m)) return s->flat_first;
    if (!m->units) return s->held_first;
    const struct unit *const vectors = unit_at(m, UNIT_VECTORS);
    return vectors->own_first + s->flat_first - vectors->first;
}

int64_t units_copied(const struct model *m, const struct storage *s) {
    if (units_are_away(m)) return units_held(m, s) - m->flat_from;
    return units_are_gathered(m) ? units_held(m, s) : s->flat_first;
}

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

static bool continues(const struct flat_part *a, const struct flat_part *b) {
    return a->decayed == b->decayed && a->narrow == b->narrow && a->away == b->away &&
           a->first + a->count == b->first && a->held + a->count == b->held &&
           a->summed + a->count == b->summed && a->copied + a->count == b->copied &&
           a->own + a->count == b->own;
}

static void add_part(struct model *m, const struct flat_part *part) {
    struct flat_part *const last = m->part_count ? &m->parts[m->part_count - 1] : NULL;
    if (part->count <= 0) return;
    if (last && continues(last, part)) {
        last->count += part->count;
        return;
    }
    m->parts = mem_grow(m->parts, m->part_count, &m->part_capacity, sizeof *m->parts);
    m->parts[m->part_count++] = *part;
}

/* Alone, what waits in host memory lies there as it lies among all, and vectors are one behind the
 * other. */
static void add_lone(struct model *m, struct storage *s, int64_t count) {
    const bool away = s->unit != UNIT_VECTORS;
    s->held_first = away ? s->flat_first : m->held_count;
    add_part(m, &(struct flat_part){.first = s->flat_first,
                                    .held = s->held_first,
                                    .copied = s->held_first,
                                    .summed = s->flat_first,
                                    .own = s->flat_first,
                                    .count = count,
                                    .decayed = s->decayed,
                                    .away = away});
    if (!away) m->held_count += count;
}

/* The storages that have all of this come next, in their order. unit: those of this one, or NULL.
 */
struct chosen {
    const int64_t *unit;
    bool decayed, narrow;
};

static void place_some(struct model *m, const struct chosen *c, bool shared) {
    const struct storage_span all = {0, m->storage_count};
    const struct storage_span span = c->unit ? units_span(m, *c->unit) : all;
    for (size_t i = span.first; i < span.end; i++) {
        struct storage *const s = &m->storages[i];
        if (!s->trainable || s->decayed != c->decayed || storage_is_narrow(m, s) != c->narrow ||
            (c->unit && s->unit != *c->unit) || (s->shared == s->rows * s->cols) != shared) {
            continue;
        }
        const int64_t count = round_up(s->rows * s->cols, FLAT_PITCH);
        s->flat_first = m->flat_count;
        m->flat_count += count;
        if (units_are_away(m) && !m->units) add_lone(m, s, count);
        m->trainable_count += s->rows * s->cols;
    }
}

/* What several ranks have alike stands together: one exchange sums its gradients (replicated.h). */
static void place(struct model *m, const struct chosen *c) {
    place_some(m, c, true);
    place_some(m, c, false);
}

/* Narrow ones first, and in each part decayed ones first, so that the optimizer needs a call a
 * part and no table. */
static void place_alone(struct model *m) {
    for (int part = 0; part < 4; part++) {
        const struct chosen chosen = {.narrow = part < 2, .decayed = part % 2 == 0};
        const int64_t first = m->flat_count;
        place(m, &chosen);
        if (chosen.narrow) m->narrow_count = m->flat_count;
        if (units_are_away(m)) continue; /* parts are there */
        add_part(m, &(struct flat_part){.first = first,
                                        .held = first,
                                        .copied = first,
                                        .summed = first,
                                        .own = first,
                                        .count = m->flat_count - first,
                                        .decayed = chosen.decayed,
                                        .narrow = chosen.narrow});
    }
    m->own_count = m->flat_count;
    if (units_are_away(m)) return;
    m->held_count = m->flat_count;
    m->flat_from = m->narrow_count;
}

/* What this rank owns of elements first..end of a unit. */
static void add_own(struct model *m, int64_t unit, int64_t first, int64_t end,
                    const struct chosen *of) {
    const struct unit *const u = unit_at(m, unit);
    const int64_t own_end = u->own.first + u->own.count;
    const int64_t begins = first > u->own.first ? first : u->own.first;
    const int64_t ends = end < own_end ? end : own_end;
    const int64_t own = u->own_first + begins - u->own.first;
    const int64_t whole = u->first + begins;
    const int64_t held = !units_are_divided(m)  ? whole
                         : unit == UNIT_VECTORS ? u->own_first + begins
                                                : own;
    add_part(m, &(struct flat_part){.first = whole,
                                    .held = held,
                                    .copied = units_are_away(m)       ? held - m->flat_from
                                              : units_are_gathered(m) ? held
                                                                      : whole,
                                    .summed = units_stage(m) >= 2 ? own : whole,
                                    .own = own,
                                    .count = ends - begins,
                                    .decayed = of->decayed,
                                    .narrow = of->narrow,
                                    .away = units_are_away(m) && unit != UNIT_VECTORS});
}

static void place_unit(struct model *m, int64_t unit) {
    struct unit *const u = unit_at(m, unit);
    const struct comm_group *const g = units_stage(m) > 0 ? sharers(m) : NULL;
    struct chosen chosen = {.unit = &unit, .decayed = true};
    chosen.narrow = m->options.stochastic_rounding && unit != UNIT_VECTORS;
    u->first = m->flat_count;
    place(m, &chosen);
    const int64_t decayed = m->flat_count - u->first;
    chosen.decayed = false;
    place(m, &chosen);
    u->used = m->flat_count - u->first;
    u->count = round_up(u->used, g ? g->world * COMM_PITCH : COMM_PITCH);
    u->own = g ? comm_piece_of(u->count, COMM_PITCH, g->rank, g->world)
               : (struct comm_piece){.count = u->count};
    u->own_first = m->own_count;
    m->own_count += u->own.count;
    m->flat_count = u->first + u->count;
    if (unit == UNIT_VECTORS) m->flat_from = units_are_away(m) ? u->own_first : m->narrow_count;
    chosen.decayed = true;
    add_own(m, unit, 0, decayed, &chosen);
    chosen.decayed = u->used == decayed; /* padding joins what is before it */
    add_own(m, unit, decayed, u->count, &chosen);
    if (chosen.narrow) m->narrow_count = units_are_divided(m) ? m->own_count : m->flat_count;
    m->held_count = units_are_divided(m) ? u->own_first : m->flat_count;
}

bool units_overlap(const struct model *m) {
    const enum overlap overlap = m->options.overlap;
    int64_t trained = 0;
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (s->trainable) trained += s->rows * s->cols;
    }
    return units_stage(m) < 2 && (overlap == OVERLAP_ALWAYS ||
                                  (overlap == OVERLAP_AUTO && trained >= OVERLAP_ELEMENTS_MIN));
}

/* Where nothing is done unit by unit, all is one: an update is a few calls and exchanges then. */
static bool is_one_unit(const struct model *m) {
    return units_stage(m) < 2 && !units_are_divided(m) && !units_overlap(m) &&
           m->options.reduce_dtype == DTYPE_F32;
}

/* A layer's matrices are its unit. So are biases without an f32 master, since what is f32 comes
 * last. */
static void choose_units(struct model *m) {
    const bool one = is_one_unit(m);
    for (size_t i = 0; i < m->storage_count; i++) {
        struct storage *const s = &m->storages[i];
        const bool joins = storage_is_vector(s) || (one && s->trainable);
        if (joins && !storage_is_narrow(m, s)) s->unit = UNIT_VECTORS;
    }
}

static void find_spans(struct model *m) {
    m->spans = mem_new((size_t)m->config.layers + UNITS_BESIDE, sizeof *m->spans);
    for (size_t i = 0; i < m->storage_count; i++) {
        struct storage_span *const span = &m->spans[slot_of(m, m->storages[i].unit)];
        if (span->end == 0) span->first = i;
        span->end = i + 1;
    }
}

void units_place(struct model *m) {
    const struct mesh *const mesh = m->options.mesh;
    choose_units(m);
    find_spans(m);
    if (!mesh || mesh->data.world == 1) {
        place_alone(m);
        return;
    }
    m->units = mem_new((size_t)m->config.layers + UNITS_BESIDE, sizeof *m->units);
    for (int64_t i = 0; i < m->config.layers; i++) {
        place_unit(m, i);
    }
    for (int64_t unit = -1; unit >= -UNITS_BESIDE; unit--) {
        place_unit(m, unit);
    }
    if (units_are_divided(m)) m->held_count += unit_at(m, UNIT_VECTORS)->count;
}
