/* shard_weights.c - see shard_weights.h.
 *
 * A gathered unit is one buffer, so that an exchange is one call; its storages are told where
 * in it they lie, and read like any other. Pieces come aside (group.h), into memory that nobody
 * else has: a unit that is let go of while it comes is waited for.
 *
 * With param_offloading what is kept waits in host memory (Rajbhandari et al. 2021): it comes
 * over the bus while the unit before is computed, and is gathered, where ranks share it, when
 * its turn is. What is trained waits in two buffers for all units (params_away): a rank's pieces
 * one behind the other, or alone as in the flat buffers, where a unit is one run or a few. */
#include "engine/model/shard_weights.h"

#include "base/mem.h"
#include "engine/model/quantised.h"
#include "engine/model/units.h"

/* What is rounded at a time where both ends wait in host memory. */
enum { REFRESH_ELEMENTS = 4 << 20 };

struct weight_unit {
    int64_t elements;     /* padded so that all ranks keep as much; 0: nothing is divided here */
    struct tensor *piece; /* [1, elements / world] kept of what is frozen, or NULL */
    enum dtype dtype;     /* of what is kept */
    char *host;           /* the same in page-locked host memory, or NULL */
    struct tensor *whole; /* [1, elements] while the unit is gathered, filled, or on its way */
    bool coming;          /* over the bus: device_copies_wait */
    bool arriving;        /* from other ranks: comm_aside_wait */
    int64_t ticket;
};

struct weight_shards {
    struct weight_unit *units; /* [layers + UNITS_BESIDE] */
};

bool weights_are_sharded(const struct model *m) {
    return m->weight_shards && units_stage(m) == 3;
}

bool weights_come_and_go(const struct model *m) {
    return units_stage(m) == 3 || m->options.param_offloading;
}

bool storage_is_divided(const struct model *m, const struct storage *s) {
    return units_are_divided(m) && s->trainable && s->unit != UNIT_VECTORS;
}

bool storage_is_sharded(const struct model *m, const struct storage *s) {
    if (!weights_come_and_go(m)) return false;
    return m->options.full ? storage_is_divided(m, s)
                           : s->kind == PARAM_WEIGHT || s->kind == PARAM_EMBEDDING;
}

bool tails_are_gathered(const struct model *m, const struct storage *weight) {
    return weight->tail > 0 && storage_is_sharded(m, weight) && !storage_is_quantised(weight);
}

static struct weight_unit *unit_of(const struct model *m, int64_t unit) {
    ASSERT(unit < m->config.layers && unit >= -UNITS_BESIDE);
    return &m->weight_shards->units[unit >= 0 ? unit : m->config.layers - 1 - unit];
}

static struct comm_group *sharers(const struct model *m) {
    return &m->options.mesh->axis[AXIS_SHARD];
}

/* Of the ranks that keep a piece each. */
static int64_t world_of(const struct model *m) {
    const bool divided = units_stage(m) == 3 || (m->units && units_are_divided(m));
    return divided ? sharers(m)->world : 1;
}

static int64_t rank_of(const struct model *m) {
    return world_of(m) > 1 ? sharers(m)->rank : 0;
}

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

int64_t tail_pitch(const struct storage *s) {
    return round_up(s->cols + s->tail, TAIL_PITCH);
}

/* What travels: codes and scales as words, or numbers. */
static struct tensor *stored_in(const struct storage *s, bool masters) {
    if (storage_is_quantised(s)) return s->quantised.bytes;
    return masters ? s->master : s->value;
}

/* With tails the whole matrix travels, room for adapters included. */
static int64_t elements_of(const struct storage *s) {
    if (storage_is_quantised(s)) return round_up(s->quantised.layout.bytes / 4, FLAT_PITCH);
    if (s->tail > 0) return (s->rows + s->tail) * tail_pitch(s);
    return round_up(s->rows * s->cols, FLAT_PITCH);
}

/* What this rank keeps of a frozen unit. */
static int64_t kept_bytes(const struct model *m, const struct weight_unit *u) {
    return u->elements / world_of(m) * dtype_bytes(u->dtype);
}

static enum status take_host_memory(struct model *m, int64_t bytes, char **out, struct err *e) {
    void *host = NULL;
    if (device_stage_new(m->space->device, bytes, &host, e) != STATUS_OK) {
        return err_prefix(e,
                          "param_offloading wants %lld MiB of host memory more than the %lld MiB "
                          "that it has",
                          (long long)(bytes >> 20), (long long)(m->space->host_bytes >> 20));
    }
    *out = host;
    m->space->host_bytes += bytes;
    return STATUS_OK;
}

static int64_t masters_bytes(const struct params_away *a) {
    return a->count * dtype_bytes(a->masters_dtype);
}

static int64_t copies_bytes(const struct params_away *a) {
    return a->count * dtype_bytes(a->copies_dtype);
}

/* Room for what is trained. */
static enum status open_away(struct model *m, struct err *e) {
    struct params_away *const a = &m->away;
    const enum dtype read = m->options.weight_dtype;
    if (!units_are_away(m)) return STATUS_OK;
    FAIL_IF(m->options.stochastic_rounding, STATUS_UNSUPPORTED,
            "param_offloading with finetuning_type full keeps f32 masters in host memory: turn "
            "stochastic_rounding off");
    FAIL_IF(m->units && units_stage(m) != 3, STATUS_UNSUPPORTED,
            "param_offloading with finetuning_type full is for one copy of the model: it needs "
            "parallel.zero_stage 3 where ranks train different rows");
    a->count = m->own_count;
    a->masters_dtype = DTYPE_F32;
    a->copies_dtype = read;
    TRY(take_host_memory(m, masters_bytes(a), &a->masters, e));
    if (read == DTYPE_F32) return STATUS_OK;
    return take_host_memory(m, copies_bytes(a), &a->copies, e);
}

static void give_back(struct model *m, char *host, int64_t bytes) {
    if (!host) return;
    struct err ignored = {0}; /* after an error copies may be on their way */
    (void)device_synchronize(m->space->device, &ignored);
    device_stage_free(m->space->device, host);
    m->space->host_bytes -= bytes;
}

static void close_away(struct model *m) {
    struct params_away *const a = &m->away;
    give_back(m, a->masters, masters_bytes(a));
    give_back(m, a->copies, copies_bytes(a));
    *a = (struct params_away){0};
}

static enum status open_unit(struct model *m, int64_t unit, struct err *e) {
    struct weight_unit *const u = unit_of(m, unit);
    const int64_t world = world_of(m);
    u->dtype = m->options.weight_dtype;
    if (m->units && units_are_divided(m)) {
        u->elements = unit == UNIT_VECTORS ? 0 : unit_at(m, unit)->count;
        return STATUS_OK;
    }
    enum dtype dtype = m->options.weight_dtype;
    const struct storage_span span = units_span(m, unit);
    for (size_t i = span.first; i < span.end; i++) {
        const struct storage *const s = &m->storages[i];
        if (s->unit != unit || !storage_is_sharded(m, s)) continue;
        u->elements += elements_of(s);
        if (storage_is_quantised(s)) dtype = DTYPE_I32; /* all of a layer are, or none */
    }
    u->elements = round_up(u->elements, world * COMM_PITCH);
    if (u->elements == 0) return STATUS_OK;
    u->dtype = dtype;
    if (units_are_away(m)) return STATUS_OK;
    if (m->options.param_offloading) return take_host_memory(m, kept_bytes(m, u), &u->host, e);
    return tensor_new(m->space, dtype, 1, u->elements / world, CATEGORY_WEIGHTS, &u->piece, e);
}

enum status shard_weights_open(struct model *m, struct err *e) {
    if (!weights_come_and_go(m) && !units_are_divided(m)) return STATUS_OK;
    TRY(open_away(m, e));
    m->weight_shards = mem_new(1, sizeof *m->weight_shards);
    m->weight_shards->units =
        mem_new((size_t)m->config.layers + UNITS_BESIDE, sizeof *m->weight_shards->units);
    for (int64_t unit = -UNITS_BESIDE; unit < m->config.layers; unit++) {
        TRY(open_unit(m, unit, e));
    }
    return STATUS_OK;
}

void shard_weights_close(struct model *m) {
    close_away(m);
    if (!m->weight_shards) return;
    for (int64_t unit = -UNITS_BESIDE; unit < m->config.layers; unit++) {
        struct weight_unit *const u = unit_of(m, unit);
        shard_let_go(m, unit);
        tensor_release(u->piece);
        give_back(m, u->host, kept_bytes(m, u));
    }
    mem_free(m->weight_shards->units);
    mem_free(m->weight_shards);
    m->weight_shards = NULL;
}

int64_t shard_bus_bytes(const struct model *m) {
    int64_t bytes = 0;
    if (!m->weight_shards || !m->options.param_offloading) return 0;
    for (int64_t unit = -UNITS_BESIDE; unit < m->config.layers; unit++) {
        const bool tied = unit == UNIT_EMBEDDING && m->head == m->embedding;
        bytes += kept_bytes(m, unit_of(m, unit)) * (unit >= 0 || tied ? 2 : 1);
    }
    return bytes;
}

static char *element(char *base, enum dtype dtype, int64_t index) {
    return base ? base + index * dtype_bytes(dtype) : NULL;
}

/* The next adapter that rides in the tails of a weight, from `index` on; NULL: there is none. It is
 * declared before the next weight. */
static const struct storage *next_tail(const struct model *m, size_t weight, size_t *index) {
    while (*index < m->storage_count && m->storages[*index].kind != PARAM_WEIGHT) {
        const struct storage *const s = &m->storages[(*index)++];
        if (s->inside == (int64_t)weight) return s;
    }
    return NULL;
}

static void place_tails(struct model *m, size_t weight, char *data) {
    struct tensor *const whole = m->storages[weight].augmented;
    const struct storage *s;
    whole->data = data;
    for (size_t i = weight + 1; (s = next_tail(m, weight, &i));) {
        const int64_t at = s->inside_row * whole->ld + s->inside_col;
        if (s->value) s->value->data = element(data, s->value->dtype, at);
    }
}

/* Tells the unit's storages where their masters, or what forward reads of them, lie; NULL: nowhere.
 */
static void place(struct model *m, int64_t unit, const struct tensor *whole, bool masters) {
    const struct storage_span span = units_span(m, unit);
    int64_t first = 0;
    for (size_t i = span.first; i < span.end; i++) {
        const struct storage *const s = &m->storages[i];
        if (s->unit != unit) continue;
        const bool chosen = masters ? storage_is_divided(m, s) : storage_is_sharded(m, s);
        struct tensor *const t = stored_in(s, masters);
        if (!chosen || !s->value || !t) continue;
        if (s->trainable && m->units) first = s->flat_first - unit_at(m, unit)->first;
        t->data = element(whole ? whole->data : NULL, t->dtype, first);
        if (tails_are_gathered(m, s)) place_tails(m, i, t->data);
        first += elements_of(s);
    }
}

/* Adapters are whole everywhere: what came of their places is made anew. */
static enum status make_tails(struct model *m, int64_t unit, struct err *e) {
    const struct storage_span span = units_span(m, unit);
    const struct storage *s;
    for (size_t weight = span.first; weight < span.end; weight++) {
        const struct storage *const w = &m->storages[weight];
        if (w->unit != unit || !tails_are_gathered(m, w)) continue;
        for (size_t i = weight + 1; (s = next_tail(m, weight, &i));) {
            TRY(tensor_convert(s->value, s->master, s->scale, e));
        }
    }
    return STATUS_OK;
}

/* What this rank keeps of a unit, of masters or of what forward reads. */
struct kept {
    char *data;
    bool away; /* it is host memory */
    enum dtype dtype;
    int64_t first, count; /* of the unit */
};

static struct kept kept_of(const struct model *m, int64_t unit, bool masters) {
    const struct weight_unit *const u = unit_of(m, unit);
    const int64_t each = u->elements / world_of(m);
    struct kept kept = {.first = each * rank_of(m), .count = each};
    if (m->away.count > 0) {
        const struct params_away *const a = &m->away;
        const bool copies = !masters && a->copies;
        kept.away = true;
        kept.dtype = copies ? a->copies_dtype : a->masters_dtype;
        kept.data = element(copies ? a->copies : a->masters, kept.dtype,
                            m->units ? unit_at(m, unit)->own_first : 0);
        return kept;
    }
    if (u->host) {
        kept.data = u->host;
        kept.away = true;
        kept.dtype = u->dtype;
        return kept;
    }
    const struct tensor *from = u->piece;
    int64_t at = 0;
    if (units_are_divided(m)) {
        from = m->narrow_count > 0 ? m->flat_narrow : m->flat;
        if (!masters && m->copies) from = m->copies;
        at = unit_at(m, unit)->own_first;
    }
    kept.dtype = from->dtype;
    kept.data = (char *)from->data + at * dtype_bytes(from->dtype);
    return kept;
}

/* Elements of a unit that lie together in what is kept of it. */
struct kept_run {
    size_t next;             /* storage to look at */
    int64_t at, seen, count; /* of the unit, and behind what was looked at */
    int64_t first;           /* of what is kept */
};

/* What is kept is one run, or alone, of what is trained, what its storages are in the order of all.
 */
static bool next_run(const struct model *m, int64_t unit, const struct kept *kept,
                     struct kept_run *run) {
    run->count = 0;
    if (m->units || m->away.count == 0) {
        run->at = kept->first;
        run->count = run->next == 0 ? kept->count : 0;
        run->next = 1;
        return run->count > 0;
    }
    const struct storage_span span = units_span(m, unit);
    if (run->next < span.first) run->next = span.first;
    for (; run->next < span.end; run->next++) {
        const struct storage *const s = &m->storages[run->next];
        if (s->unit != unit || !storage_is_divided(m, s)) continue;
        if (run->count > 0 && s->flat_first != run->first + run->count) return true;
        if (run->count == 0) {
            run->at = run->seen;
            run->first = s->flat_first;
        }
        run->count += elements_of(s);
        run->seen += elements_of(s);
    }
    return run->count > 0;
}

/* Over the bus, between the whole unit and what waits of it. */
static enum status carry(struct model *m, int64_t unit, const struct kept *kept, bool away,
                         struct err *e) {
    struct device *const device = m->space->device;
    const struct tensor *const whole = unit_of(m, unit)->whole;
    const int64_t size = dtype_bytes(kept->dtype);
    struct kept_run run = {0};
    while (next_run(m, unit, kept, &run)) {
        char *const there = kept->data + run.first * size;
        char *const here = element(whole->data, whole->dtype, run.at);
        TRY(away ? device_stash(device, there, here, run.count * size, e)
                 : device_fetch(device, here, there, run.count * size, e));
    }
    return away ? device_copies_wait(device, e) : STATUS_OK; /* its memory is the next unit's */
}

/* Between the whole unit and what is kept of it. */
static enum status copy_piece(struct model *m, int64_t unit, const struct kept *kept, bool keep,
                              struct err *e) {
    const int64_t size = dtype_bytes(kept->dtype);
    struct device *const device = m->space->device;
    char *const inside = (char *)unit_of(m, unit)->whole->data + kept->first * size;
    if (kept->away) return carry(m, unit, kept, keep, e);
    return device_copy(device, keep ? kept->data : inside, keep ? inside : kept->data,
                       kept->count * size, e);
}

/* Masters are what is filled, where there are any. */
static bool fills_masters(const struct model *m) {
    return units_are_divided(m);
}

enum status shard_fill_begin(struct model *m, int64_t unit, struct err *e) {
    if (!m->weight_shards || unit_of(m, unit)->elements == 0) return STATUS_OK;
    struct weight_unit *const u = unit_of(m, unit);
    const struct kept kept = kept_of(m, unit, fills_masters(m));
    ASSERT(!u->whole);
    TRY(tensor_new(m->space, kept.dtype, 1, u->elements, CATEGORY_WEIGHTS, &u->whole, e));
    place(m, unit, u->whole, fills_masters(m));
    return tensor_fill_zero(u->whole, e);
}

enum status shard_fill_end(struct model *m, int64_t unit, struct err *e) {
    if (!m->weight_shards || unit_of(m, unit)->elements == 0) return STATUS_OK;
    const struct kept kept = kept_of(m, unit, fills_masters(m));
    const enum status status = copy_piece(m, unit, &kept, true, e);
    place(m, unit, NULL, fills_masters(m));
    shard_let_go(m, unit);
    return status;
}

void shard_let_go(struct model *m, int64_t unit) {
    if (!m->weight_shards || !unit_of(m, unit)->whole) return;
    struct weight_unit *const u = unit_of(m, unit);
    struct err ignored = {0}; /* a lost rank is told by the next exchange */
    if (u->coming) (void)device_copies_wait(m->space->device, &ignored);
    if (u->arriving) (void)comm_aside_wait(sharers(m), u->ticket, &ignored);
    u->coming = u->arriving = false;
    place(m, unit, NULL, false);
    tensor_drop(&u->whole);
}

/* The pieces of all that share the unit. */
static enum status exchange(struct model *m, struct weight_unit *u, struct err *e) {
    const struct comm_buffer whole = {u->whole->data, u->whole->dtype, u->elements, 0};
    if (world_of(m) == 1) return STATUS_OK;
    TRY(comm_aside_begin(sharers(m), e));
    TRY(comm_all_gather(sharers(m), m->space->device, &whole, e));
    TRY(comm_aside_end(sharers(m), &u->ticket, e));
    u->arriving = true;
    return STATUS_OK;
}

/* Begins to gather. */
static enum status call(struct model *m, int64_t unit, struct err *e) {
    struct weight_unit *const u = unit_of(m, unit);
    if (u->elements == 0 || u->whole) return STATUS_OK;
    const struct kept kept = kept_of(m, unit, false);
    TRY(tensor_new(m->space, kept.dtype, 1, u->elements, CATEGORY_WEIGHTS, &u->whole, e));
    place(m, unit, u->whole, false);
    TRY(copy_piece(m, unit, &kept, false, e));
    u->coming = kept.away;
    return kept.away ? STATUS_OK : exchange(m, u, e);
}

enum status shard_gather(struct model *m, int64_t unit, int64_t next, struct err *e) {
    if (!weights_come_and_go(m)) return STATUS_OK;
    struct weight_unit *const u = unit_of(m, unit);
    TRY(call(m, unit, e));
    const bool made = u->coming || u->arriving;
    if (u->coming) {
        TRY(device_copies_wait(m->space->device, e));
        u->coming = false;
        TRY(exchange(m, u, e));
    }
    if (u->arriving) TRY(comm_aside_wait(sharers(m), u->ticket, e));
    u->arriving = false;
    if (made) TRY(make_tails(m, unit, e));
    return next == UNIT_NONE ? STATUS_OK : call(m, next, e);
}

/* copies[to..] = flat[from..], this many. */
static enum status copy_masters(const struct model *m, int64_t from, int64_t to, int64_t count,
                                struct err *e) {
    const struct tensor *const flat = m->flat, *const copies = m->copies;
    const struct convert_args args = {
        .rows = 1,
        .cols = count,
        .scale = 1,
        .src = {element(flat->data, flat->dtype, from), flat->dtype, count},
        .dst = {element(copies->data, copies->dtype, to), copies->dtype, count}};
    return count > 0 ? device_convert(m->space->device, &args, e) : STATUS_OK;
}

/* Copies of all masters, as many at a time as both have room for on the device. */
static enum status refresh_in(const struct model *m, struct tensor *const rooms[2], struct err *e) {
    const struct params_away *const a = &m->away;
    struct device *const device = m->space->device;
    const int64_t most = tensor_count(rooms[0]);
    for (int64_t at = 0; at < a->count; at += most) {
        const int64_t left = a->count - at, count = left < most ? left : most;
        const struct convert_args args = {.rows = 1,
                                          .cols = count,
                                          .scale = 1,
                                          .src = {rooms[0]->data, a->masters_dtype, count},
                                          .dst = {rooms[1]->data, a->copies_dtype, count}};
        TRY(device_fetch(device, rooms[0]->data, element(a->masters, a->masters_dtype, at),
                         count * dtype_bytes(a->masters_dtype), e));
        TRY(device_copies_wait(device, e));
        TRY(device_convert(device, &args, e));
        TRY(device_stash(device, element(a->copies, a->copies_dtype, at), rooms[1]->data,
                         count * dtype_bytes(a->copies_dtype), e));
        TRY(device_copies_wait(device, e));
    }
    return STATUS_OK;
}

static enum status refresh_away(struct model *m, struct err *e) {
    const struct params_away *const a = &m->away;
    const int64_t most = a->count < REFRESH_ELEMENTS ? a->count : REFRESH_ELEMENTS;
    struct tensor *rooms[2] = {0};
    if (!a->copies) return STATUS_OK;
    struct tensor_space *const space = m->space;
    enum status status =
        tensor_new(space, a->masters_dtype, 1, most, CATEGORY_STAGING, &rooms[0], e);
    if (status == STATUS_OK)
        status = tensor_new(space, a->copies_dtype, 1, most, CATEGORY_STAGING, &rooms[1], e);
    if (status == STATUS_OK) status = refresh_in(m, rooms, e);
    tensor_release(rooms[0]);
    tensor_release(rooms[1]);
    return status;
}

enum status shard_refresh(struct model *m, struct err *e) {
    if (units_are_away(m)) return refresh_away(m, e);
    if (!units_are_divided(m) || !m->copies) return STATUS_OK;
    if (units_are_gathered(m)) /* copies lie as masters do */
        return copy_masters(m, 0, 0, unit_at(m, UNIT_VECTORS)->own_first, e);
    for (int64_t unit = UNIT_HEAD; unit < m->config.layers; unit++) {
        const struct unit *const u = unit_at(m, unit);
        const struct comm_buffer b = {element(m->copies->data, m->copies->dtype, u->first),
                                      m->copies->dtype, u->count, 0};
        TRY(copy_masters(m, u->own_first, u->first + u->own.first, u->own.count, e));
        if (u->count > 0) TRY(comm_all_gather(sharers(m), m->space->device, &b, e));
    }
    return STATUS_OK;
}

int64_t shard_head(const struct model *m) {
    return m->head == m->embedding ? UNIT_EMBEDDING : UNIT_HEAD;
}

int64_t shard_after(const struct model *m, int64_t layer) {
    return layer + 1 < m->config.layers ? layer + 1 : shard_head(m);
}

int64_t shard_before(int64_t layer) {
    return layer > 0 ? layer - 1 : UNIT_NONE;
}

enum status shard_walk(struct model *m, bool training, struct err *e) {
    if (!weights_are_sharded(m)) return STATUS_OK;
    TRY(shard_gather(m, UNIT_EMBEDDING, 0, e));
    shard_let_go(m, UNIT_EMBEDDING);
    for (int64_t i = 0; i < m->config.layers; i++) {
        TRY(shard_gather(m, i, shard_after(m, i), e));
        if (!training || !m->options.keeps_gathered) shard_let_go(m, i);
    }
    TRY(shard_gather(m, shard_head(m), UNIT_NONE, e));
    shard_let_go(m, shard_head(m));
    return STATUS_OK;
}
