/* tensor.c - reference counts, pools and the arithmetic of arriving gradients.
 *
 * A gradient that two results share is copied only when one of them is added to. */
#include "engine/tensor/tensor.h"

#include "base/mem.h"

enum { POOL_CHUNK_ITEMS = 256 };

struct pool_chunk {
    struct pool_chunk *next;
    struct tensor tensors[POOL_CHUNK_ITEMS];
    struct gradient gradients[POOL_CHUNK_ITEMS];
};

static void add_chunk(struct tensor_space *space) {
    struct pool_chunk *const chunk = mem_new(1, sizeof *chunk);
    chunk->next = space->chunks;
    space->chunks = chunk;
    for (int i = 0; i < POOL_CHUNK_ITEMS; i++) {
        chunk->tensors[i].next_free = space->free_tensors;
        space->free_tensors = &chunk->tensors[i];
        chunk->gradients[i].next_free = space->free_gradients;
        space->free_gradients = &chunk->gradients[i];
    }
}

enum status tensor_space_init(struct tensor_space *space, struct device *device,
                              struct arena *arena, struct err *e) {
    *space = (struct tensor_space){.device = device, .arena = arena};
    if (device->workspace_bytes == 0) return STATUS_OK;
    struct arena_block *block = NULL;
    TRY(arena_alloc(arena, device->workspace_bytes, CATEGORY_WORKSPACE, &block, e));
    device_set_workspace(device, block->data);
    return STATUS_OK;
}

void tensor_space_release(struct tensor_space *space) {
    if (!space) return;
    ASSERT(space->live_tensors == 0);
    ASSERT(space->live_gradients == 0);
    while (space->chunks) {
        struct pool_chunk *const next = space->chunks->next;
        mem_free(space->chunks);
        space->chunks = next;
    }
    *space = (struct tensor_space){0};
}

static struct tensor *take_tensor(struct tensor_space *space) {
    if (!space->free_tensors) add_chunk(space);
    struct tensor *const t = space->free_tensors;
    space->free_tensors = t->next_free;
    space->live_tensors++;
    *t = (struct tensor){.space = space, .references = 1};
    return t;
}

enum status tensor_new(struct tensor_space *space, enum dtype dtype, int64_t rows, int64_t cols,
                       enum category category, struct tensor **out, struct err *e) {
    ASSERT(rows >= 0 && cols >= 0);
    struct arena_block *block = NULL;
    TRY(arena_alloc(space->arena, rows * cols * dtype_bytes(dtype), category, &block, e));
    struct tensor *const t = take_tensor(space);
    t->dtype = dtype;
    t->rows = rows;
    t->cols = cols;
    t->data = block->data;
    t->block = block;
    *out = t;
    return STATUS_OK;
}

struct tensor *tensor_view_flat(struct tensor *owner, int64_t first, int64_t rows, int64_t cols) {
    ASSERT(first >= 0 && first + rows * cols <= tensor_count(owner));
    struct tensor *const t = take_tensor(owner->space);
    t->dtype = owner->dtype;
    t->rows = rows;
    t->cols = cols;
    t->data = (char *)owner->data + first * dtype_bytes(owner->dtype);
    t->owner = tensor_retain(owner);
    return t;
}

struct tensor *tensor_view_rows(struct tensor *owner, int64_t first, int64_t rows) {
    ASSERT(first + rows <= owner->rows);
    return tensor_view_flat(owner, first * owner->cols, rows, owner->cols);
}

struct tensor *tensor_retain(struct tensor *t) {
    ASSERT(t->references > 0);
    t->references++;
    return t;
}

void tensor_release(struct tensor *t) {
    if (!t) return;
    ASSERT(t->references > 0);
    if (--t->references > 0) return;
    struct tensor_space *const space = t->space;
    arena_free(space->arena, t->block);
    tensor_release(t->owner);
    gradient_release(t->gradient);
    t->next_free = space->free_tensors;
    space->free_tensors = t;
    space->live_tensors--;
}

void tensor_drop(struct tensor **t) {
    tensor_release(*t);
    *t = NULL;
}

int64_t tensor_count(const struct tensor *t) {
    return t->rows * t->cols;
}

int64_t tensor_bytes(const struct tensor *t) {
    return tensor_count(t) * dtype_bytes(t->dtype);
}

float *tensor_f32(const struct tensor *t) {
    ASSERT(t->dtype == DTYPE_F32);
    return t->data;
}

int32_t *tensor_i32(const struct tensor *t) {
    ASSERT(t->dtype == DTYPE_I32);
    return t->data;
}

struct matrix tensor_matrix(const struct tensor *t) {
    return (struct matrix){.data = t->data, .dtype = t->dtype, .ld = t->cols};
}

enum status tensor_fill_zero(struct tensor *t, struct err *e) {
    return device_fill_zero(t->space->device, t->data, tensor_bytes(t), e);
}

enum status tensor_upload(struct tensor *t, const void *host, struct err *e) {
    return device_upload(t->space->device, t->data, host, tensor_bytes(t), e);
}

enum status tensor_download(const struct tensor *t, void *host, struct err *e) {
    return device_download(t->space->device, host, t->data, tensor_bytes(t), e);
}

void tensor_want_gradient(struct tensor *t) {
    if (t->gradient) return;
    struct tensor_space *const space = t->space;
    if (!space->free_gradients) add_chunk(space);
    struct gradient *const g = space->free_gradients;
    space->free_gradients = g->next_free;
    space->live_gradients++;
    *g = (struct gradient){.space = space, .rows = t->rows, .cols = t->cols, .references = 1};
    t->gradient = g;
}

struct gradient *gradient_retain(struct gradient *g) {
    if (g) g->references++;
    return g;
}

void gradient_release(struct gradient *g) {
    if (!g) return;
    ASSERT(g->references > 0);
    if (--g->references > 0) return;
    struct tensor_space *const space = g->space;
    tensor_release(g->value);
    g->value = NULL;
    g->next_free = space->free_gradients;
    space->free_gradients = g;
    space->live_gradients--;
}

static enum status new_value(struct gradient *g, struct tensor **out, struct err *e) {
    return tensor_new(g->space, DTYPE_F32, g->rows, g->cols, CATEGORY_ACTIVATIONS, out, e);
}

enum status gradient_target(struct gradient *g, struct tensor **value, bool *accumulate,
                            struct err *e) {
    *accumulate = g->value != NULL;
    if (!g->value) {
        TRY(new_value(g, &g->value, e));
    } else if (!g->persistent && g->value->references > 1) {
        struct tensor *own = NULL;
        TRY(new_value(g, &own, e));
        const enum status status =
            device_copy(g->space->device, own->data, g->value->data, tensor_bytes(own), e);
        tensor_release(g->value);
        g->value = own;
        TRY(status);
    }
    *value = g->value;
    return STATUS_OK;
}

enum status gradient_add(struct gradient *g, struct tensor *contribution, struct err *e) {
    ASSERT(contribution->rows == g->rows && contribution->cols == g->cols);
    if (!g->value) {
        g->value = tensor_retain(contribution);
        return STATUS_OK;
    }
    struct tensor *value = NULL;
    bool accumulate = false;
    TRY(gradient_target(g, &value, &accumulate, e));
    ASSERT(accumulate);
    const struct add_args add = {.count = tensor_count(value),
                                 .a = tensor_f32(value),
                                 .b = tensor_f32(contribution),
                                 .out = tensor_f32(value)};
    return device_add(g->space->device, &add, e);
}

struct tensor *gradient_take(struct gradient *g) {
    ASSERT(!g->persistent);
    struct tensor *const value = g->value;
    g->value = NULL;
    return value;
}
