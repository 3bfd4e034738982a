/* load.c - the pipeline from mapped files to the device.
 *
 * Work is cut into pieces of at most PIECE_ELEMENTS, in order. Readers take the next piece as soon
 * as its place in the ring is free (page faults and conversion are what takes time, and they run
 * side by side); the calling thread uploads pieces in order, because devices have one thread. What
 * is small is done by the calling thread alone. */
#include "engine/model/load.h"

#include <pthread.h>
#include <unistd.h>

#include "base/mem.h"

enum { PIECE_ELEMENTS = 1 << 20, THREADS_MAX = 8, SLOTS_PER_THREAD = 2 };
enum { SLOTS_MAX = THREADS_MAX * SLOTS_PER_THREAD };
/* Below this, starting threads takes longer than reading. */
#define ALONE_ELEMENTS_MAX INT64_C(4194304)

/* Elements [first, first + rows * cols) of an item; `row` is where they go, cols is a whole row of
 * a matrix with gaps, and a run of elements of one without. */
struct piece {
    const struct load_item *item;
    int64_t first, row, rows, cols;
};

struct loader {
    struct piece *pieces;
    size_t count, capacity;
    size_t taken, uploaded; /* pieces, in order */
    size_t slot_count;
    void *slots[SLOTS_MAX];
    bool ready[SLOTS_MAX];
    bool stopped; /* an error, or all done */
    struct err error;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static bool has_gaps(const struct tensor *t) {
    return t->rows > 1 && t->ld != t->cols;
}

static void add_piece(struct loader *l, const struct piece *piece) {
    l->pieces = mem_grow(l->pieces, l->count, &l->capacity, sizeof *l->pieces);
    l->pieces[l->count++] = *piece;
}

static void cut(struct loader *l, const struct load_item *item) {
    const struct tensor *const t = item->to;
    ASSERT(item->from->elements == tensor_count(t));
    if (!has_gaps(t)) {
        for (int64_t first = 0; first < tensor_count(t); first += PIECE_ELEMENTS) {
            const int64_t left = tensor_count(t) - first;
            add_piece(l, &(struct piece){.item = item,
                                         .first = first,
                                         .rows = 1,
                                         .cols = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS});
        }
        return;
    }
    ASSERT(t->cols <= PIECE_ELEMENTS);
    const int64_t block = PIECE_ELEMENTS / t->cols;
    for (int64_t row = 0; row < t->rows; row += block) {
        const int64_t left = t->rows - row;
        add_piece(l, &(struct piece){.item = item,
                                     .first = row * t->cols,
                                     .row = row,
                                     .rows = left < block ? left : block,
                                     .cols = t->cols});
    }
}

static enum status read_piece(const struct piece *p, void *out, struct err *e) {
    const int64_t count = p->rows * p->cols;
    switch (p->item->to->dtype) {
    case DTYPE_BF16: return st_read_bf16(p->item->from, p->first, count, out, e);
    case DTYPE_F16: return st_read_f16(p->item->from, p->first, count, out, e);
    default: return st_read_f32(p->item->from, p->first, count, out, e);
    }
}

static enum status upload_piece(const struct piece *p, void *host, struct err *e) {
    const struct tensor *const t = p->item->to;
    const int64_t size = dtype_bytes(t->dtype);
    if (!has_gaps(t)) {
        return device_upload(t->space->device, (char *)t->data + p->first * size, host,
                             p->cols * size, e);
    }
    const struct transfer rows = {.device = tensor_matrix_at(t, p->row, 0).data,
                                  .device_pitch = t->ld * size,
                                  .host = host,
                                  .host_pitch = p->cols * size,
                                  .width = p->cols * size,
                                  .rows = p->rows};
    return device_upload_rows(t->space->device, &rows, e);
}

static void stop(struct loader *l, const struct err *error) {
    pthread_mutex_lock(&l->lock);
    if (error && l->error.status == STATUS_OK) l->error = *error;
    l->stopped = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* The next piece whose place in the ring is free; false when there is no more to do. */
static bool take(struct loader *l, size_t *index) {
    pthread_mutex_lock(&l->lock);
    while (!l->stopped && l->taken < l->count && l->taken >= l->uploaded + l->slot_count) {
        pthread_cond_wait(&l->changed, &l->lock);
    }
    const bool any = !l->stopped && l->taken < l->count;
    if (any) *index = l->taken++;
    pthread_mutex_unlock(&l->lock);
    return any;
}

static void *read_pieces(void *context) {
    struct loader *const l = context;
    size_t index = 0;
    while (take(l, &index)) {
        struct err error = {0};
        const size_t slot = index % l->slot_count;
        if (read_piece(&l->pieces[index], l->slots[slot], &error) != STATUS_OK) {
            stop(l, &error);
            break;
        }
        pthread_mutex_lock(&l->lock);
        l->ready[slot] = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

/* Waits for a piece; false after an error of a reader. */
static bool wait_ready(struct loader *l, size_t slot) {
    pthread_mutex_lock(&l->lock);
    while (!l->stopped && !l->ready[slot]) {
        pthread_cond_wait(&l->changed, &l->lock);
    }
    const bool ready = !l->stopped;
    l->ready[slot] = false;
    pthread_mutex_unlock(&l->lock);
    return ready;
}

static void free_slot(struct loader *l) {
    pthread_mutex_lock(&l->lock);
    l->uploaded++;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static enum status upload_all(struct loader *l, struct err *e) {
    for (size_t i = 0; i < l->count; i++) {
        const size_t slot = i % l->slot_count;
        if (!wait_ready(l, slot)) break;
        const enum status status = upload_piece(&l->pieces[i], l->slots[slot], e);
        free_slot(l);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status load_alone(const struct loader *l, void *buffer, struct err *e) {
    for (size_t i = 0; i < l->count; i++) {
        TRY(read_piece(&l->pieces[i], buffer, e));
        TRY(upload_piece(&l->pieces[i], buffer, e));
    }
    return STATUS_OK;
}

static int thread_count(void) {
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return processors < 1 ? 1 : processors > THREADS_MAX ? THREADS_MAX : (int)processors;
}

static enum status load_together(struct loader *l, int wanted, struct err *e) {
    pthread_t threads[THREADS_MAX];
    int started = 0;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    while (started < wanted && pthread_create(&threads[started], NULL, read_pieces, l) == 0) {
        started++;
    }
    /* Not one thread to be had: then without. */
    enum status status = started ? upload_all(l, e) : load_alone(l, l->slots[0], e);
    stop(l, NULL);
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    if (status == STATUS_OK && l->error.status != STATUS_OK) {
        *e = l->error;
        status = l->error.status;
    }
    return status;
}

enum status load_items(const struct load_item *items, size_t count, struct err *e) {
    struct loader *const l = mem_new(1, sizeof *l);
    int64_t elements = 0;
    for (size_t i = 0; i < count; i++) {
        cut(l, &items[i]);
        elements += tensor_count(items[i].to);
    }
    const int threads = elements > ALONE_ELEMENTS_MAX ? thread_count() : 0;
    l->slot_count = threads ? (size_t)threads * SLOTS_PER_THREAD : 1;
    const int64_t largest = elements < PIECE_ELEMENTS ? elements : PIECE_ELEMENTS;
    for (size_t i = 0; i < l->slot_count; i++) {
        l->slots[i] = mem_new((size_t)largest, sizeof(float));
    }
    const enum status status =
        threads ? load_together(l, threads, e) : load_alone(l, l->slots[0], e);
    for (size_t i = 0; i < l->slot_count; i++) {
        mem_free(l->slots[i]);
    }
    mem_free(l->pieces);
    mem_free(l);
    return status;
}
