/* tensor.c - reference counts, pools, views and recipes.
 *
 * A record is taken from a pool and goes back to it with its last reference; the arithmetic of
 * arriving gradients is in gradient.c. */
#include "engine/tensor/tensor.h"

#include "base/mem.h"
#include "engine/tensor/internal.h"

enum { POOL_CHUNK_ITEMS = 256 };

struct pool_chunk {
    struct pool_chunk *next;
    struct tensor tensors[POOL_CHUNK_ITEMS];
    struct gradient gradients[POOL_CHUNK_ITEMS];
    struct recipe recipes[POOL_CHUNK_ITEMS];
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
        chunk->recipes[i].next_free = space->free_recipes;
        space->free_recipes = &chunk->recipes[i];
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
    ASSERT(space->live_recipes == 0);
    ASSERT(space->live_stashes == 0);
    stash_pool_free(space);
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

struct gradient *pool_gradient(struct tensor_space *space) {
    if (!space->free_gradients) add_chunk(space);
    struct gradient *const g = space->free_gradients;
    space->free_gradients = g->next_free;
    space->live_gradients++;
    *g = (struct gradient){.space = space, .references = 1};
    return g;
}

void pool_return_gradient(struct gradient *g) {
    struct tensor_space *const space = g->space;
    g->next_free = space->free_gradients;
    space->free_gradients = g;
    space->live_gradients--;
}

static int64_t pitch_of(const struct shape *shape) {
    if (shape->tail == 0) return shape->cols;
    return (shape->cols + shape->tail + TAIL_PITCH - 1) / TAIL_PITCH * TAIL_PITCH;
}

enum status tensor_make(struct tensor_space *space, const struct shape *shape,
                        enum category category, struct tensor **out, struct err *e) {
    ASSERT(shape->rows >= 0 && shape->cols >= 0 && shape->tail >= 0);
    struct arena_block *block = NULL;
    const int64_t ld = pitch_of(shape);
    TRY(arena_alloc(space->arena, shape->rows * ld * dtype_bytes(shape->dtype), category, &block,
                    e));
    struct tensor *const t = take_tensor(space);
    t->dtype = shape->dtype;
    t->rows = shape->rows;
    t->cols = shape->cols;
    t->ld = ld;
    t->data = block->data;
    t->block = block;
    *out = t;
    return STATUS_OK;
}

enum status tensor_new(struct tensor_space *space, enum dtype dtype, int64_t rows, int64_t cols,
                       enum category category, struct tensor **out, struct err *e) {
    const struct shape shape = {.dtype = dtype, .rows = rows, .cols = cols};
    return tensor_make(space, &shape, category, out, e);
}

enum status tensor_activation(struct tensor_space *space, int64_t rows, int64_t cols, int64_t tail,
                              struct tensor **out, struct err *e) {
    const struct shape shape = {
        .dtype = space->device->activation_dtype, .rows = rows, .cols = cols, .tail = tail};
    return tensor_make(space, &shape, CATEGORY_ACTIVATIONS, out, e);
}

struct tensor *tensor_hollow(struct tensor_space *space, enum dtype dtype, int64_t rows,
                             int64_t cols) {
    struct tensor *const t = take_tensor(space);
    t->dtype = dtype;
    t->rows = rows;
    t->cols = t->ld = cols;
    return t;
}

struct tensor *tensor_without_bytes(struct tensor_space *space, int64_t rows, int64_t cols) {
    return tensor_hollow(space, space->device->activation_dtype, rows, cols);
}

static struct tensor *view(struct tensor *owner, int64_t first, int64_t rows, int64_t cols,
                           int64_t ld) {
    struct tensor *const t = take_tensor(owner->space);
    t->dtype = owner->dtype;
    t->rows = rows;
    t->cols = cols;
    t->ld = ld;
    t->data = owner->data ? (char *)owner->data + first * dtype_bytes(owner->dtype) : NULL;
    t->owner = tensor_retain(owner);
    return t;
}

struct tensor *tensor_view_flat(struct tensor *owner, int64_t first, int64_t rows, int64_t cols) {
    ASSERT(owner->ld == owner->cols || owner->rows == 1);
    ASSERT(first >= 0 && first + rows * cols <= tensor_count(owner));
    return view(owner, first, rows, cols, cols);
}

struct tensor *tensor_view_rows(struct tensor *owner, int64_t first, int64_t rows) {
    ASSERT(first >= 0 && first + rows <= owner->rows);
    return view(owner, first * owner->ld, rows, owner->cols, owner->ld);
}

struct tensor *tensor_view_block(struct tensor *owner, int64_t first_row, int64_t rows,
                                 int64_t first_col, int64_t cols) {
    ASSERT(first_row >= 0 && first_row + rows <= owner->rows);
    ASSERT(first_col >= 0 && first_col + cols <= owner->ld);
    return view(owner, first_row * owner->ld + first_col, rows, cols, owner->ld);
}

struct tensor *tensor_view_bytes(struct tensor *owner, int64_t first_byte, enum dtype dtype,
                                 int64_t rows, int64_t cols) {
    ASSERT(owner->rows == 1 && first_byte % dtype_bytes(dtype) == 0);
    ASSERT(first_byte + rows * cols * dtype_bytes(dtype) <= tensor_bytes(owner));
    struct tensor *const t = view(owner, 0, rows, cols, cols);
    t->dtype = dtype;
    t->data = (char *)owner->data + first_byte;
    return t;
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
    recipe_release(t->recipe);
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

int64_t tensor_tail(const struct tensor *t) {
    return t->owner ? 0 : t->ld - t->cols;
}

float *tensor_f32(const struct tensor *t) {
    ASSERT(t->dtype == DTYPE_F32);
    return t->data;
}

int32_t *tensor_i32(const struct tensor *t) {
    ASSERT(t->dtype == DTYPE_I32);
    return t->data;
}

struct matrix tensor_matrix_at(const struct tensor *t, int64_t row, int64_t col) {
    return (struct matrix){.data = (char *)t->data + (row * t->ld + col) * dtype_bytes(t->dtype),
                           .dtype = t->dtype,
                           .ld = t->ld};
}

struct matrix tensor_matrix(const struct tensor *t) {
    return tensor_matrix_at(t, 0, 0);
}

static bool has_gaps(const struct tensor *t) {
    return t->ld != t->cols && t->rows > 1;
}

enum status tensor_fill_zero(struct tensor *t, struct err *e) {
    ASSERT(!has_gaps(t) || !t->owner); /* the gaps of a view belong to others */
    const int64_t bytes = has_gaps(t) ? t->rows * t->ld * dtype_bytes(t->dtype) : tensor_bytes(t);
    return device_fill_zero(t->space->device, t->data, bytes, e);
}

enum status tensor_convert(struct tensor *to, const struct tensor *from, float scale,
                           struct err *e) {
    ASSERT(to->rows == from->rows && to->cols == from->cols);
    const struct convert_args args = {.rows = to->rows,
                                      .cols = to->cols,
                                      .scale = scale,
                                      .src = tensor_matrix(from),
                                      .dst = tensor_matrix(to)};
    return device_convert(to->space->device, &args, e);
}

enum status tensor_copy(struct tensor *to, const struct tensor *from, struct err *e) {
    ASSERT(to->rows == from->rows && to->cols == from->cols && to->dtype == from->dtype);
    if (has_gaps(to) || has_gaps(from)) return tensor_convert(to, from, 1, e);
    return device_copy(to->space->device, to->data, from->data, tensor_bytes(to), e);
}

enum status tensor_add(struct tensor *out, const struct tensor *a, const struct tensor *b,
                       struct err *e) {
    const struct add_args args = {.rows = out->rows,
                                  .cols = out->cols,
                                  .dtype = out->dtype,
                                  .a = a->data,
                                  .ld_a = a->ld,
                                  .b = b->data,
                                  .ld_b = b->ld,
                                  .out = out->data,
                                  .ld_out = out->ld};
    return device_add(out->space->device, &args, e);
}

static struct transfer transfer_of(const struct tensor *t, void *host) {
    const int64_t size = dtype_bytes(t->dtype);
    return (struct transfer){.device = t->data,
                             .device_pitch = t->ld * size,
                             .host = host,
                             .host_pitch = t->cols * size,
                             .width = t->cols * size,
                             .rows = t->rows};
}

enum status tensor_upload(struct tensor *t, const void *host, struct err *e) {
    struct device *const device = t->space->device;
    if (!has_gaps(t)) return device_upload(device, t->data, host, tensor_bytes(t), e);
    const struct transfer rows = transfer_of(t, (void *)host);
    return device_upload_rows(device, &rows, e);
}

enum status tensor_download(const struct tensor *t, void *host, struct err *e) {
    struct device *const device = t->space->device;
    if (!has_gaps(t)) return device_download(device, host, t->data, tensor_bytes(t), e);
    const struct transfer rows = transfer_of(t, host);
    return device_download_rows(device, &rows, e);
}

struct recipe *pool_recipe(struct tensor_space *space) {
    if (!space->free_recipes) add_chunk(space);
    struct recipe *const r = space->free_recipes;
    space->free_recipes = r->next_free;
    space->live_recipes++;
    *r = (struct recipe){.space = space, .references = 1};
    return r;
}

struct recipe *recipe_attach(struct tensor *t, struct tensor *const *from, int count) {
    ASSERT(!t->recipe && count <= RECIPE_FROM_MAX);
    struct recipe *const r = pool_recipe(t->space);
    r->dtype = t->dtype;
    r->rows = t->rows;
    r->cols = t->cols;
    for (int i = 0; i < count; i++) {
        r->from[i] = from[i] ? tensor_retain(from[i]) : NULL;
    }
    t->recipe = r;
    return r;
}

struct recipe *recipe_retain(struct recipe *r) {
    r->references++;
    return r;
}

void recipe_release(struct recipe *r) {
    if (!r) return;
    ASSERT(r->references > 0);
    if (--r->references > 0) return;
    struct tensor_space *const space = r->space;
    for (int i = 0; i < RECIPE_FROM_MAX; i++) {
        tensor_release(r->from[i]);
    }
    recipe_release(r->inner);
    r->next_free = space->free_recipes;
    space->free_recipes = r;
    space->live_recipes--;
}

enum status recipe_make(const struct recipe *r, struct tensor **out, struct err *e) {
    TRY(tensor_new(r->space, r->dtype, r->rows, r->cols, CATEGORY_ACTIVATIONS, out, e));
    return r->make(r, *out, e);
}
