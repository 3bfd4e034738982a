/* shard_weights.c - see shard_weights.h.
 *
 * A gathered layer is one buffer, so that an exchange is one message for each pair of ranks; its
 * storages are told where in it they lie, and read like any other. */
#include "engine/model/shard_weights.h"

#include "base/mem.h"

struct weight_unit {
    int64_t elements;
    struct tensor *piece; /* [1, elements of this rank] kept */
    struct tensor *whole; /* [1, elements] while the layer is gathered */
};

struct weight_shards {
    struct weight_unit *units; /* [layers] */
};

bool weights_are_sharded(const struct model *m) {
    return m->weight_shards != NULL;
}

bool storage_is_sharded(const struct model *m, const struct storage *s) {
    return m->weight_shards && s->unit >= 0 && s->kind == PARAM_WEIGHT && !s->trainable;
}

static int64_t elements_of(const struct storage *s) {
    return (s->rows * s->cols + FLAT_PITCH - 1) / FLAT_PITCH * FLAT_PITCH;
}

static struct comm_piece piece_of(const struct model *m, const struct weight_unit *u) {
    const struct comm_group *const g = &m->options.mesh->data;
    return comm_piece_of(u->elements, COMM_PITCH, g->rank, g->world);
}

enum status shard_weights_open(struct model *m, struct err *e) {
    if (m->options.zero_stage < 3 || !m->options.mesh || m->options.mesh->data.world == 1)
        return STATUS_OK;
    FAIL_IF(m->options.full || m->options.use_dora || m->space->device->lora_tails,
            STATUS_UNSUPPORTED,
            "parallel.zero_stage 3 works with LoRA (not DoRA) on the device cpu in this version");
    m->weight_shards = mem_new(1, sizeof *m->weight_shards);
    m->weight_shards->units = mem_new((size_t)m->config.layers, sizeof *m->weight_shards->units);
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (storage_is_sharded(m, s)) m->weight_shards->units[s->unit].elements += elements_of(s);
    }
    for (int64_t i = 0; i < m->config.layers; i++) {
        struct weight_unit *const u = &m->weight_shards->units[i];
        const int64_t count = piece_of(m, u).count;
        TRY(tensor_new(m->space, m->options.weight_dtype, 1, count ? count : 1, CATEGORY_WEIGHTS,
                       &u->piece, e));
    }
    return STATUS_OK;
}

void shard_weights_close(struct model *m) {
    if (!m->weight_shards) return;
    for (int64_t i = 0; i < m->config.layers; i++) {
        shard_let_go(m, i);
        tensor_release(m->weight_shards->units[i].piece);
    }
    mem_free(m->weight_shards->units);
    mem_free(m->weight_shards);
    m->weight_shards = NULL;
}

/* Tells the layer's storages where they lie; NULL: nowhere. */
static void place(struct model *m, int64_t layer, const struct tensor *whole) {
    int64_t first = 0;
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (s->unit != layer || !storage_is_sharded(m, s) || !s->value) continue;
        s->value->data =
            whole ? (char *)whole->data + first * dtype_bytes(m->options.weight_dtype) : NULL;
        first += elements_of(s);
    }
}

enum status shard_fill_begin(struct model *m, int64_t layer, struct err *e) {
    if (!m->weight_shards) return STATUS_OK;
    struct weight_unit *const u = &m->weight_shards->units[layer];
    ASSERT(!u->whole);
    TRY(tensor_new(m->space, m->options.weight_dtype, 1, u->elements, CATEGORY_WEIGHTS, &u->whole,
                   e));
    place(m, layer, u->whole);
    return STATUS_OK;
}

void shard_let_go(struct model *m, int64_t layer) {
    if (!m->weight_shards || !m->weight_shards->units[layer].whole) return;
    place(m, layer, NULL);
    tensor_drop(&m->weight_shards->units[layer].whole);
}

/* This rank's piece between the whole layer and what is kept of it. */
static enum status copy_piece(struct model *m, struct weight_unit *u, bool keep, struct err *e) {
    const struct comm_piece piece = piece_of(m, u);
    const int64_t size = dtype_bytes(m->options.weight_dtype);
    char *const inside = (char *)u->whole->data + piece.first * size;
    if (piece.count == 0) return STATUS_OK;
    return device_copy(m->space->device, keep ? (void *)u->piece->data : inside,
                       keep ? inside : u->piece->data, piece.count * size, e);
}

enum status shard_fill_end(struct model *m, int64_t layer, struct err *e) {
    if (!m->weight_shards) return STATUS_OK;
    const enum status status = copy_piece(m, &m->weight_shards->units[layer], true, e);
    shard_let_go(m, layer);
    return status;
}

enum status shard_gather(struct model *m, int64_t layer, struct err *e) {
    if (!m->weight_shards || m->weight_shards->units[layer].whole) return STATUS_OK;
    struct weight_unit *const u = &m->weight_shards->units[layer];
    TRY(shard_fill_begin(m, layer, e));
    TRY(copy_piece(m, u, false, e));
    const struct comm_buffer whole = {u->whole->data, m->options.weight_dtype, u->elements, 0};
    return comm_all_gather(&m->options.mesh->data, m->space->device, &whole, e);
}

enum status shard_walk(struct model *m, struct err *e) {
    for (int64_t i = 0; m->weight_shards && i < m->config.layers; i++) {
        TRY(shard_gather(m, i, e));
        shard_let_go(m, i);
    }
    return STATUS_OK;
}
