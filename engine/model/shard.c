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
    struct tensor *narrow;   /* [1, largest unit] bf16, or NULL: gradients travel as they are */
    struct tensor **buffers; /* [layers + UNITS_BESIDE] of units that are begun, or on their way */
    int64_t pending;         /* the unit that is on its way, or UNIT_NONE */
    int64_t ticket;
    bool overlaps; /* gradients are whole, and the last micro-batch of a step sums them */
    bool early;    /* it is the one at hand */
};

bool shard_is_on(const struct model *m) {
    return m->shards && units_stage(m) >= 2;
}

void shard_expect(struct model *m, bool last) {
    if (m->shards) m->shards->early = last && m->shards->overlaps;
}

bool shard_has_marks(const struct model *m) {
    return m->shards && (shard_is_on(m) || m->shards->early);
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

static char *at(const struct tensor *t, int64_t element) {
    return (char *)t->data + element * dtype_bytes(t->dtype);
}

static int64_t largest_unit(const struct model *m) {
    int64_t largest = 0;
    for (int64_t unit = -UNITS_BESIDE; unit < m->config.layers; unit++) {
        largest = max_i64(largest, unit_at(m, unit)->count);
    }
    return largest;
}

static int64_t scratch_bytes(const struct model *m) {
    const enum device_kind kind = m->space->device->kind;
    const struct comm_group *const others = replicas(m);
    const int64_t largest = units_stage(m) > 0 ? largest_unit(m) : m->flat_count;
    return max_i64(comm_scratch_bytes(kind, largest, summers(m)->world),
                   others ? comm_scratch_bytes(kind, m->own_count, others->world) : 0);
}

enum status shard_open(struct model *m, struct err *e) {
    if (!m->units || m->flat_count == 0) return STATUS_OK;
    m->shards = mem_new(1, sizeof *m->shards);
    m->shards->pending = UNIT_NONE;
    m->shards->overlaps = units_overlap(m);
    m->shards->buffers =
        mem_new((size_t)m->config.layers + UNITS_BESIDE, sizeof *m->shards->buffers);
    if (m->options.reduce_dtype != DTYPE_F32)
        TRY(tensor_new(m->space, m->options.reduce_dtype, 1, largest_unit(m),
                       CATEGORY_COMMUNICATION, &m->shards->narrow, e));
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
    tensor_release(m->shards->narrow);
    mem_free(m->shards->buffers);
    mem_free(m->shards);
    m->shards = NULL;
}

/* The next storage of the unit that is trained, from `index` on; NULL: there is none. */
static struct storage *next_of(const struct model *m, int64_t unit, size_t *index) {
    const struct storage_span span = units_span(m, unit);
    if (*index < span.first) *index = span.first;
    while (*index < span.end) {
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

/* What nobody wrote is zero. In a buffer of its own gaps too: they are summed, and so are their
 * squares. */
static enum status fill_rest(const struct model *m, int64_t unit, bool gaps, struct err *e) {
    const struct unit *const u = unit_at(m, unit);
    const struct storage *s;
    for (size_t i = 0; (s = next_of(m, unit, &i));) {
        struct gradient *const g = s->value->gradient;
        const int64_t count = s->rows * s->cols, rest = count % FLAT_PITCH;
        if (g->stale) TRY(tensor_fill_zero(g->value, e));
        g->stale = false;
        if (gaps && rest > 0) TRY(fill_zero(m, tensor_f32(g->value) + count, FLAT_PITCH - rest, e));
    }
    if (!gaps) return STATUS_OK;
    return fill_zero(m, tensor_f32(*buffer_of(m, unit)) + u->used, u->count - u->used, e);
}

static void take_back(const struct model *m, int64_t unit) {
    const struct storage *s;
    for (size_t i = 0; (s = next_of(m, unit, &i));) {
        struct gradient *const g = s->value->gradient;
        tensor_drop(&g->value);
        g->stale = false;
    }
}

/* Between f32 and what gradients travel in. */
static enum status convert(const struct model *m, float *wide, struct comm_piece of, bool narrows,
                           struct err *e) {
    const struct tensor *const narrow = m->shards->narrow;
    const struct matrix a = {wide, DTYPE_F32, of.count},
                        b = {at(narrow, of.first), narrow->dtype, of.count};
    const struct convert_args args = {
        .rows = 1, .cols = of.count, .scale = 1, .src = narrows ? a : b, .dst = narrows ? b : a};
    return device_convert(m->space->device, &args, e);
}

/* Where a unit's gradients are: in a buffer of their own, or among all. */
static float *gradients_of(const struct model *m, int64_t unit) {
    if (shard_is_on(m)) return tensor_f32(*buffer_of(m, unit));
    return tensor_f32(m->gradients) + unit_at(m, unit)->first;
}

/* Begins to sum a unit: the own piece of it, or without division all. */
static enum status begin_sum(const struct model *m, int64_t unit, struct err *e) {
    struct comm_group *const g = summers(m);
    const struct tensor *const narrow = m->shards->narrow;
    struct comm_buffer b = {gradients_of(m, unit), DTYPE_F32, unit_at(m, unit)->count, 0};
    if (narrow) {
        TRY(convert(m, b.data, (struct comm_piece){.count = b.count}, true, e));
        b.data = narrow->data;
        b.dtype = narrow->dtype;
    }
    TRY(comm_aside_begin(g, e));
    TRY((units_stage(m) > 0 ? comm_reduce_scatter : comm_all_reduce)(g, m->space->device,
                                                                     &m->shards->scratch, &b, e));
    return comm_aside_end(g, &m->shards->ticket, e);
}

static enum status end_sum(const struct model *m, int64_t unit, struct err *e) {
    const struct comm_piece own = unit_at(m, unit)->own;
    TRY(comm_aside_wait(summers(m), m->shards->ticket, e));
    if (!m->shards->narrow) return STATUS_OK;
    return convert(m, gradients_of(m, unit) + own.first, own, false, e);
}

/* Own pieces become the sum over all copies of the parameters. */
static enum status sum_copies(const struct model *m, float *data, int64_t count, struct err *e) {
    const struct tensor *const narrow = m->shards->narrow;
    const int64_t most = narrow ? tensor_count(narrow) : count;
    if (!replicas(m)) return STATUS_OK;
    for (int64_t first = 0; first < count; first += most) {
        const int64_t left = count - first;
        const struct comm_piece part = {.count = left < most ? left : most};
        if (narrow) TRY(convert(m, data + first, part, true, e));
        const struct comm_buffer b = {narrow ? narrow->data : data + first,
                                      narrow ? narrow->dtype : DTYPE_F32, part.count, 0};
        TRY(comm_all_reduce(replicas(m), m->space->device, &m->shards->scratch, &b, e));
        if (narrow) TRY(convert(m, data + first, part, false, e));
    }
    return STATUS_OK;
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
    if (!m->shards || m->shards->pending == UNIT_NONE) return STATUS_OK;
    const int64_t unit = m->shards->pending;
    TRY(end_sum(m, unit, e));
    m->shards->pending = UNIT_NONE;
    if (!shard_is_on(m)) return STATUS_OK;
    TRY(add_piece(m, unit, e));
    tensor_drop(buffer_of(m, unit));
    return STATUS_OK;
}

enum status shard_end(struct model *m, int64_t unit, struct err *e) {
    if (!shard_has_marks(m) || unit_at(m, unit)->count == 0) return STATUS_OK;
    const bool divided = shard_is_on(m);
    ASSERT(!divided || *buffer_of(m, unit));
    /* Sums of whole gradients are waited for at the end, unless they share a buffer. */
    if (divided || m->shards->narrow) TRY(shard_finish(m, e));
    TRY(fill_rest(m, unit, divided, e));
    if (divided) take_back(m, unit);
    m->shards->pending = unit;
    return begin_sum(m, unit, e);
}

/* In the order of a micro-batch: the head's gradients come first. */
enum status shard_idle(struct model *m, struct err *e) {
    const int64_t head = shard_head(m);
    if (!m->shards) return STATUS_OK;
    if (m->forgets && m->shards->early) {
        TRY(tensor_fill_zero(m->gradients, e));
        m->forgets = false;
    }
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
    return shard_is_on(m) ? shard_finish(m, e) : STATUS_OK;
}

void shard_drop(struct model *m) {
    struct err ignored = {0}; /* the first error counts */
    const bool divided = shard_is_on(m);
    if (divided && m->shards->pending != UNIT_NONE)
        (void)comm_aside_wait(summers(m), m->shards->ticket, &ignored);
    for (int64_t unit = -UNITS_BESIDE; unit < m->config.layers; unit++) {
        if (divided && *buffer_of(m, unit)) {
            take_back(m, unit);
            tensor_drop(buffer_of(m, unit));
        }
        shard_let_go(m, unit);
    }
    if (divided) m->shards->pending = UNIT_NONE;
}

/* Whole gradients: as they are and without division in one go, else by units. */
static enum status sum_whole(struct model *m, struct err *e) {
    if (units_stage(m) == 0 && !m->shards->narrow) {
        const struct comm_buffer b = {tensor_f32(m->gradients), DTYPE_F32, m->flat_count, 0};
        return comm_all_reduce(summers(m), m->space->device, &m->shards->scratch, &b, e);
    }
    for (int64_t unit = -UNITS_BESIDE; unit < m->config.layers; unit++) {
        if (unit_at(m, unit)->count == 0) continue;
        TRY(begin_sum(m, unit, e));
        TRY(end_sum(m, unit, e));
    }
    return STATUS_OK;
}

enum status shard_sum(struct model *m, struct err *e) {
    if (!m->shards) return STATUS_OK;
    if (shard_is_on(m)) return sum_copies(m, tensor_f32(m->gradients), m->own_count, e);
    TRY(m->shards->early ? shard_finish(m, e) : sum_whole(m, e));
    m->shards->early = false;
    for (int64_t unit = -UNITS_BESIDE; unit < m->config.layers; unit++) {
        const struct unit *const u = unit_at(m, unit);
        if (u->count > 0) TRY(sum_copies(m, gradients_of(m, unit) + u->own.first, u->own.count, e));
    }
    return STATUS_OK;
}

static enum status share(const struct model *m, const struct tensor *of, int64_t first,
                         const struct unit *u, struct err *e) {
    const struct comm_buffer b = {at(of, first), of->dtype, u->count, 0};
    return comm_all_gather(summers(m), m->space->device, &b, e);
}

enum status shard_share(struct model *m, struct err *e) {
    for (int64_t unit = -UNITS_BESIDE; units_stage(m) > 0 && unit < m->config.layers; unit++) {
        const struct unit *const u = unit_at(m, unit);
        const bool vectors = unit == UNIT_VECTORS;
        const int64_t held = units_are_divided(m) ? u->own_first : u->first;
        const bool narrow = held < m->narrow_count;
        const int64_t copied = units_are_away(m)       ? held - m->flat_from
                               : units_are_gathered(m) ? held
                                                       : u->first;
        if (u->count == 0) continue;
        if (!units_are_divided(m) || vectors)
            TRY(share(m, narrow ? m->flat_narrow : m->flat, narrow ? held : held - m->flat_from, u,
                      e));
        if (m->copies && !narrow && (!units_are_gathered(m) || vectors))
            TRY(share(m, m->copies, copied, u, e));
    }
    return STATUS_OK;
}
