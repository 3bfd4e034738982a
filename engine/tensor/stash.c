/* stash.c - tensors that wait in host memory between forward and backward, carried there and back
 * beside the computation.
 *
 * Host memory comes in slabs of the device's own kind (page-locked on a GPU, which takes long), is
 * cut into pieces and kept as long as the space: whatever the shapes of later steps, no more is
 * taken than the most that ever waited at once. It is not the arena's: the plan is about the
 * device. A null device takes it too, and nobody touches it. */
#include "engine/tensor/internal.h"

#include "base/mem.h"

/* A piece takes the bus 150 us, a slab the system 30 ms. */
enum { PIECE_BYTES = 8 << 20, SLAB_PIECES = 8, SLAB_BYTES = SLAB_PIECES * PIECE_BYTES };

struct piece {
    char *data;
    struct piece *next;
};

struct slab {
    void *data;
    struct slab *next;
    struct piece pieces[SLAB_PIECES];
};

struct stash {
    struct tensor_space *space;
    struct piece *pieces; /* in the order of the bytes */
    struct shape shape;
    struct tensor *back; /* on its way back, or there */
    struct stash *next_free;
};

struct stash_pool {
    struct slab *slabs;
    struct piece *free_pieces;
    struct stash *free_stashes;
};

static enum status add_slab(struct tensor_space *space, struct err *e) {
    struct stash_pool *const pool = space->stashes;
    struct slab *const slab = mem_new(1, sizeof *slab);
    if (device_stage_new(space->device, SLAB_BYTES, &slab->data, e) != STATUS_OK) {
        mem_free(slab);
        return err_prefix(e,
                          "activation_offloading wants more host memory than the %lld MiB that it "
                          "has; train on shorter or fewer rows at a time, or turn it off",
                          (long long)(space->host_bytes >> 20));
    }
    slab->next = pool->slabs;
    pool->slabs = slab;
    for (int i = SLAB_PIECES; i-- > 0;) {
        slab->pieces[i] = (struct piece){.data = (char *)slab->data + (int64_t)i * PIECE_BYTES,
                                         .next = pool->free_pieces};
        pool->free_pieces = &slab->pieces[i];
    }
    space->host_bytes += SLAB_BYTES;
    return STATUS_OK;
}

static enum status take_pieces(struct tensor_space *space, int64_t bytes, struct piece **out,
                               struct err *e) {
    struct piece **at = out;
    for (int64_t first = 0; first < bytes; first += PIECE_BYTES) {
        if (!space->stashes->free_pieces) TRY(add_slab(space, e));
        struct piece *const piece = space->stashes->free_pieces;
        space->stashes->free_pieces = piece->next;
        piece->next = NULL;
        *at = piece;
        at = &piece->next;
    }
    return STATUS_OK;
}

static struct stash *new_stash(struct tensor_space *space) {
    if (!space->stashes) space->stashes = mem_new(1, sizeof *space->stashes);
    struct stash *s = space->stashes->free_stashes;
    if (s) {
        space->stashes->free_stashes = s->next_free;
    } else {
        s = mem_new(1, sizeof *s);
    }
    *s = (struct stash){.space = space};
    space->live_stashes++;
    return s;
}

/* Whoever takes the pieces next sends to them: after what is on its way back from them. */
void stash_release(struct stash *s) {
    if (!s) return;
    struct err ignored = {0}; /* the device's own error is told by the next operation */
    if (s->back) (void)device_copies_wait(s->space->device, &ignored);
    struct stash_pool *const pool = s->space->stashes;
    while (s->pieces) {
        struct piece *const piece = s->pieces;
        s->pieces = piece->next;
        piece->next = pool->free_pieces;
        pool->free_pieces = piece;
    }
    tensor_drop(&s->back);
    s->space->live_stashes--;
    s->next_free = pool->free_stashes;
    pool->free_stashes = s;
}

void stash_pool_free(struct tensor_space *space) {
    struct stash_pool *const pool = space->stashes;
    if (!pool) return;
    struct err ignored = {0}; /* after an error copies may be on their way */
    (void)device_synchronize(space->device, &ignored);
    while (pool->slabs) {
        struct slab *const slab = pool->slabs;
        pool->slabs = slab->next;
        device_stage_free(space->device, slab->data);
        mem_free(slab);
    }
    while (pool->free_stashes) {
        struct stash *const s = pool->free_stashes;
        pool->free_stashes = s->next_free;
        mem_free(s);
    }
    mem_free(pool);
    space->stashes = NULL;
}

/* A copy is made of whole rows, their tails included: one run of bytes. */
static int64_t all_bytes(const struct tensor *t) {
    return t->rows * t->ld * dtype_bytes(t->dtype);
}

/* Piece by piece, between the tensor and the host. */
static enum status carry(const struct stash *s, const struct tensor *t, bool back, struct err *e) {
    struct device *const device = s->space->device;
    const int64_t bytes = all_bytes(t);
    int64_t first = 0;
    for (const struct piece *p = s->pieces; p; p = p->next, first += PIECE_BYTES) {
        char *const at = (char *)t->data + first;
        const int64_t count = bytes - first < PIECE_BYTES ? bytes - first : PIECE_BYTES;
        TRY(back ? device_fetch(device, at, p->data, count, e)
                 : device_stash(device, p->data, at, count, e));
    }
    return STATUS_OK;
}

enum status stash_send(const struct tensor *t, struct stash **out, struct err *e) {
    ASSERT(!t->owner); /* what lies between the rows of a view belongs to others */
    struct stash *const s = new_stash(t->space);
    s->shape =
        (struct shape){.dtype = t->dtype, .rows = t->rows, .cols = t->cols, .tail = tensor_tail(t)};
    enum status status = take_pieces(t->space, all_bytes(t), &s->pieces, e);
    if (status == STATUS_OK) status = carry(s, t, false, e);
    if (status == STATUS_OK) {
        *out = s;
    } else {
        stash_release(s);
    }
    return status;
}

enum status stash_recall(struct stash *s, struct err *e) {
    if (s->back) return STATUS_OK;
    TRY(tensor_make(s->space, &s->shape, CATEGORY_ACTIVATIONS, &s->back, e));
    return carry(s, s->back, true, e);
}

enum status stash_take(struct stash *s, struct tensor **out, struct err *e) {
    TRY(stash_recall(s, e));
    TRY(device_copies_wait(s->space->device, e));
    *out = s->back;
    s->back = NULL;
    return STATUS_OK;
}
