/* shard.c - see shard.h.
 *
 * The buffers of units come and go with the walk through the tape, in the same order on every
 * device: they are in the plan like everything else. Sums run aside (group.h): a unit's buffer
 * stays until the next unit ends. */
#include "engine/model/shard.h"

#include "base/mem.h"
#include "engine/model/shard_weights.h"
#include "engine/model/units.h"

struct shards {
    struct comm_scratch scratch;
    struct tensor *scratch_memory;
    struct tensor **buffers; /* [layers + UNITS_BESIDE] of units that are begun, or on their way */
    int64_t pending;         /* the unit that is on its way, or UNIT_NONE */
    int64_t ticket;
};

bool shard_is_on(const struct model *m) {
    return m->shards && units_stage(m) >= 2;
}

static struct tensor **buffer_of(const struct model *m, int64_t unit) {
    return &m->shards->buffers[unit_at(m, unit) - m->units];
}

/* The ranks that share one copy; without division all copies are one. */
static struct comm_group *summers(const struct model *m) {
    struct mesh *const mesh = m->options.mesh;
    return units_stage(m) > 0 ? &mesh->axis[AXIS_SHARD] : &mesh->data;
}

/* Those that own the same pieces of other copies; NULL: nobody does. */
static struct comm_group *replicas(const struct model *m) {
    struct comm_group *const g = &m->options.mesh->axis[AXIS_REPLICATE];
    return units_stage(m) > 0 && g->world > 1 ? g : NULL;
}

static int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t scratch_bytes(const struct model *m) {
    const enum device_kind kind = m->space->device->kind;
    const struct comm_group *const others = replicas(m);
    int64_t largest = units_stage(m) > 0 ? 0 : m->flat_count;
    for (int64_t unit = -UNITS_BESIDE; unit < m->config.layers; unit++) {
        largest = max_i64(largest, unit_at(m, unit)->count);
    }
    return max_i64(comm_scratch_bytes(kind, largest, summers(m)->world),
                   others ? comm_scratch_bytes(kind, m->own_count, others->world) : 0);
}

enum status shard_open(struct model *m, struct err *e) {
    if (!m->units || m->flat_count == 0) return STATUS_OK;
    m->shards = mem_new(1, sizeof *m->shards);
    m->shards->pending = UNIT_NONE;
    m->shards->buffers =
        mem_new((size_t)m->config.layers + UNITS_BESIDE, sizeof *m->shards->buffers);
    const int64_t bytes = scratch_bytes(m);
    if (bytes == 0) return STATUS_OK;
    TRY(tensor_new(m->space, DTYPE_F32, 1, bytes / dtype_bytes(DTYPE_F32), CATEGORY_COMMUNICATION,
                   &m->shards->scratch_memory, e));
    m->shards->scratch = (struct comm_scratch){m->shards->scratch_memory->data, bytes};
    return STATUS_OK;
}

void shard_close(struct model *m) {
    if (!m->shards) return;
    shard_drop(m);
    tensor_release(m->shards->scratch_memory);
    mem_free(m->shards->buffers);
    mem_free(m->shards);
    m->shards = NULL;
}

/* The next storage of the unit that is trained, from `index` on; NULL: there is none. */
static struct storage *next_of(const struct model *m, int64_t unit, size_t *index) {
    while (*index < m->storage_count) {
        struct storage *const s = &m->storages[(*index)++];
        if (s->trainable && s->unit == unit) return s;
    }
    return NULL;
}

enum status shard_begin(struct model *m, int64_t unit, struct err *e) {
    if (!shard_is_on(m) || unit_at(m, unit)->count == 0 || *buffer_of(m, unit)) return STATUS_OK;
    struct tensor **const buffer = buffer_of(m, unit);
    const struct unit *const u = unit_at(m, unit);
    const struct storage *s;
    TRY(tensor_new(m->space, DTYPE_F32, 1, u->count, CATEGORY_GRADIENTS, buffer, e));
    for (size_t i = 0; (s = next_of(m, unit, &i));) {
        struct gradient *const g = s->value->gradient;
        ASSERT(!g->value);
        g->value = tensor_view_flat(*buffer, s->flat_first - u->first, s->rows, s->cols);
        g->stale = true;
    }
    return STATUS_OK;
}

static enum status fill_zero(const struct model *m, float *at, int64_t count, struct err *e) {
    if (count == 0) return STATUS_OK;
    return device_fill_zero(m->space->device, at, count * dtype_bytes(DTYPE_F32), e);
}

/* What nobody wrote is zero, gaps included: they are summed, and their squares too. */
static enum status fill_rest(const struct model *m, int64_t unit, struct err *e) {
    const struct unit *const u = unit_at(m, unit);
    float *const all = tensor_f32(*buffer_of(m, unit));
    const struct storage *s;
    for (size_t i = 0; (s = next_of(m, unit, &i));) {
        struct gradient *const g = s->value->gradient;
        const int64_t count = s->rows * s->cols, gap = (FLAT_PITCH - count % FLAT_PITCH);
        if (g->stale) TRY(tensor_fill_zero(g->value, e));
        TRY(fill_zero(m, tensor_f32(g->value) + count, gap % FLAT_PITCH, e));
    }
    return fill_zero(m, all + u->used, u->count - u->used, e);
}

static void take_back(const struct model *m, int64_t unit) {
    const struct storage *s;
    for (size_t i = 0; (s = next_of(m, unit, &i));) {
        struct gradient *const g = s->value->gradient;
        tensor_drop(&g->value);
        g->stale = false;
    }
}

/* Begins to sum a unit that lies at `data`: the own piece of it, or without division all. */
static enum status begin_sum(const struct model *m, const struct unit *u, float *data,
                             struct err *e) {
    struct comm_group *const g = summers(m);
    struct device *const device = m->space->device;
    const struct comm_buffer b = {data, DTYPE_F32, u->count, 0};
    TRY(comm_aside_begin(g, e));
    const enum status status = (units_stage(m) > 0 ? comm_reduce_scatter : comm_all_reduce)(
        g, device, &m->shards->scratch, &b, e);
    TRY(status);
    return comm_aside_end(g, &m->shards->ticket, e);
}

static enum status add_piece(const struct model *m, int64_t unit, struct err *e) {
    const struct unit *const u = unit_at(m, unit);
    float *const own = tensor_f32(m->gradients) + u->own_first;
    const struct add_args add = {.rows = 1,
                                 .cols = u->own.count,
                                 .dtype = DTYPE_F32,
                                 .a = own,
                                 .ld_a = u->own.count,
                                 .b = tensor_f32(*buffer_of(m, unit)) + u->own.first,
                                 .ld_b = u->own.count,
                                 .out = own,
                                 .ld_out = u->own.count};
    return device_add(m->space->device, &add, e);
}

enum status shard_finish(struct model *m, struct err *e) {
    if (!shard_is_on(m) || m->shards->pending == UNIT_NONE) return STATUS_OK;
    const int64_t unit = m->shards->pending;
    TRY(comm_aside_wait(summers(m), m->shards->ticket, e));
    TRY(add_piece(m, unit, e));
    m->shards->pending = UNIT_NONE;
    tensor_drop(buffer_of(m, unit));
    return STATUS_OK;
}

enum status shard_end(struct model *m, int64_t unit, struct err *e) {
    if (!shard_is_on(m) || !*buffer_of(m, unit)) return STATUS_OK;
    TRY(shard_finish(m, e));
    TRY(fill_rest(m, unit, e));
    take_back(m, unit);
    m->shards->pending = unit;
    return begin_sum(m, unit_at(m, unit), tensor_f32(*buffer_of(m, unit)), e);
}

/* In the order of a micro-batch: the head's gradients come first. */
enum status shard_idle(struct model *m, struct err *e) {
    if (!m->shards) return STATUS_OK;
    const int64_t head = shard_head(m);
    TRY(shard_walk(m, true, e));
    TRY(shard_begin(m, head, e));
    if (head == UNIT_HEAD) TRY(shard_end(m, head, e));
    TRY(shard_begin(m, UNIT_VECTORS, e));
    for (int64_t i = m->config.layers - 1; i >= 0; i--) {
        TRY(shard_gather(m, i, shard_before(i), e));
        TRY(shard_begin(m, i, e));
        shard_let_go(m, i);
        TRY(shard_end(m, i, e));
    }
    TRY(shard_begin(m, UNIT_EMBEDDING, e));
    TRY(shard_end(m, UNIT_EMBEDDING, e));
    TRY(shard_end(m, UNIT_VECTORS, e));
    return shard_finish(m, e);
}

void shard_drop(struct model *m) {
    struct err ignored = {0}; /* the first error counts */
    if (m->shards && m->shards->pending != UNIT_NONE)
        (void)comm_aside_wait(summers(m), m->shards->ticket, &ignored);
    for (int64_t unit = -UNITS_BESIDE; m->units && unit < m->config.layers; unit++) {
        if (m->shards && *buffer_of(m, unit)) {
            take_back(m, unit);
            tensor_drop(buffer_of(m, unit));
        }
        shard_let_go(m, unit);
    }
    if (m->shards) m->shards->pending = UNIT_NONE;
}

/* Whole gradients: without division in one go, else by units. */
static enum status sum_whole(struct model *m, struct err *e) {
    struct device *const device = m->space->device;
    float *const all = tensor_f32(m->gradients);
    if (units_stage(m) == 0) {
        const struct comm_buffer b = {all, DTYPE_F32, m->flat_count, 0};
        return comm_all_reduce(summers(m), device, &m->shards->scratch, &b, e);
    }
    for (int64_t i = 0; i < m->config.layers + UNITS_BESIDE; i++) {
        const struct unit *const u = &m->units[i];
        const struct comm_buffer own = {all + u->first + u->own.first, DTYPE_F32, u->own.count, 0};
        if (u->count == 0) continue;
        TRY(begin_sum(m, u, all + u->first, e));
        TRY(comm_aside_wait(summers(m), m->shards->ticket, e));
        if (!replicas(m)) continue;
        TRY(comm_all_reduce(replicas(m), device, &m->shards->scratch, &own, e));
    }
    return STATUS_OK;
}

enum status shard_sum(struct model *m, struct err *e) {
    if (!m->shards) return STATUS_OK;
    if (!shard_is_on(m)) return sum_whole(m, e);
    const struct comm_buffer own = {tensor_f32(m->gradients), DTYPE_F32, m->own_count, 0};
    if (!replicas(m)) return STATUS_OK; /* summed unit by unit already */
    return comm_all_reduce(replicas(m), m->space->device, &m->shards->scratch, &own, e);
}

static char *at(const struct tensor *t, int64_t element) {
    return (char *)t->data + element * dtype_bytes(t->dtype);
}

enum status shard_share(struct model *m, struct err *e) {
    struct device *const device = m->space->device;
    for (int64_t unit = -UNITS_BESIDE; units_stage(m) > 0 && unit < m->config.layers; unit++) {
        const struct unit *const u = unit_at(m, unit);
        if (u->count == 0 || (units_are_divided(m) && unit != UNIT_VECTORS)) continue;
        const int64_t held = units_are_divided(m) ? u->own_first : u->first;
        const bool narrow = held < m->narrow_count;
        const struct tensor *const from = narrow ? m->flat_narrow : m->flat;
        const struct comm_buffer masters = {at(from, narrow ? held : held - m->narrow_count),
                                            from->dtype, u->count, 0};
        TRY(comm_all_gather(summers(m), device, &masters, e));
        if (!m->copies || narrow) continue;
        const struct comm_buffer copies = {at(m->copies, held), m->copies->dtype, u->count, 0};
        TRY(comm_all_gather(summers(m), device, &copies, e));
    }
    return STATUS_OK;
}
