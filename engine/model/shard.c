/* shard.c - see shard.h.
 *
 * The buffers of units come and go with the walk through the tape, in the same order on every
 * device: they are in the plan like everything else. */
#include "engine/model/shard.h"

#include "base/mem.h"
#include "engine/model/shard_weights.h"

struct shards {
    struct comm_scratch scratch;
    struct tensor *scratch_memory;
    struct tensor **buffers; /* [layers + 1] of units that are begun; the last is UNIT_REST's */
};

bool shard_is_on(const struct model *m) {
    return m->shards != NULL;
}

static struct tensor **buffer_of(const struct model *m, int64_t unit) {
    return &m->shards->buffers[unit == UNIT_REST ? m->config.layers : unit];
}

enum status shard_open(struct model *m, struct err *e) {
    const struct comm_group *const g = m->options.mesh ? &m->options.mesh->data : NULL;
    if (m->options.zero_stage < 2 || !g || g->world == 1 || m->flat_count == 0) return STATUS_OK;
    FAIL_IF(m->narrow_count > 0, STATUS_UNSUPPORTED,
            "parallel.zero_stage %lld does not go with stochastic_rounding in this version",
            (long long)m->options.zero_stage);
    m->shards = mem_new(1, sizeof *m->shards);
    m->shards->buffers = mem_new((size_t)m->config.layers + 1, sizeof *m->shards->buffers);
    m->own = comm_piece_of(m->flat_count, COMM_PITCH, g->rank, g->world);
    const int64_t bytes = comm_scratch_bytes(m->space->device->kind, m->flat_count, g->world);
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

static int64_t elements_of(const struct storage *s) {
    return (s->rows * s->cols + FLAT_PITCH - 1) / FLAT_PITCH * FLAT_PITCH;
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
    if (!m->shards) return STATUS_OK;
    struct tensor **const buffer = buffer_of(m, unit);
    const struct storage *s;
    int64_t elements = 0, first = 0;
    ASSERT(!*buffer);
    for (size_t i = 0; (s = next_of(m, unit, &i));) {
        elements += elements_of(s);
    }
    if (elements == 0) return STATUS_OK;
    TRY(tensor_new(m->space, DTYPE_F32, 1, elements, CATEGORY_GRADIENTS, buffer, e));
    for (size_t i = 0; (s = next_of(m, unit, &i));) {
        struct gradient *const g = s->value->gradient;
        ASSERT(!g->value);
        g->value = tensor_view_flat(*buffer, first, s->rows, s->cols);
        g->stale = true;
        first += elements_of(s);
    }
    return STATUS_OK;
}

static enum status give_away(const struct model *m, const struct storage *s, struct err *e) {
    struct gradient *const g = s->value->gradient;
    if (g->stale) TRY(tensor_fill_zero(g->value, e));
    const struct comm_slice slice = {
        .from = tensor_f32(g->value), .first = s->flat_first, .count = s->rows * s->cols};
    return comm_reduce_to_owners(&m->options.mesh->data, m->space->device, &m->shards->scratch,
                                 &slice,
                                 &(struct comm_owned){m->flat_count, tensor_f32(m->gradients)}, e);
}

static void take_back(const struct model *m, int64_t unit) {
    const struct storage *s;
    for (size_t i = 0; (s = next_of(m, unit, &i));) {
        struct gradient *const g = s->value->gradient;
        tensor_drop(&g->value);
        g->stale = false;
    }
    tensor_drop(buffer_of(m, unit));
}

enum status shard_end(struct model *m, int64_t unit, struct err *e) {
    if (!m->shards || !*buffer_of(m, unit)) return STATUS_OK;
    const struct storage *s;
    for (size_t i = 0; (s = next_of(m, unit, &i));) {
        TRY(give_away(m, s, e));
    }
    take_back(m, unit);
    return STATUS_OK;
}

enum status shard_idle(struct model *m, struct err *e) {
    if (!m->shards) return STATUS_OK;
    TRY(shard_begin(m, UNIT_REST, e));
    TRY(shard_walk(m, e));
    for (int64_t i = m->config.layers - 1; i >= 0; i--) {
        TRY(shard_gather(m, i, e));
        TRY(shard_begin(m, i, e));
        shard_let_go(m, i);
        TRY(shard_end(m, i, e));
    }
    return shard_end(m, UNIT_REST, e);
}

void shard_drop(struct model *m) {
    if (!m->shards) return;
    for (int64_t unit = UNIT_REST; unit < m->config.layers; unit++) {
        if (*buffer_of(m, unit)) take_back(m, unit);
        if (unit != UNIT_REST) shard_let_go(m, unit);
    }
}
