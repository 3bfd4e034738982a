/* load.c - the pipeline from mapped files to the device.
 *
 * Work is cut into pieces of at most PIECE_ELEMENTS, in order. Readers take the next piece as soon
 * as its place in the ring is free (page faults and conversion are what takes time, and they run
 * side by side); the calling thread uploads pieces in order, because devices have one thread. The
 * ring is memory that the device reads by itself, and the last PENDING pieces are still on their
 * way when the next is read. What is small is done by the calling thread alone. */
#include "engine/model/load_internal.h"

#include <pthread.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/start_trace.h"

enum { THREADS_MAX = 14, PENDING = 4 };
/* One that is being filled and half a one that is filled for each thread, and those on their way:
 * pinning memory costs half a second a GiB. */
enum { SLOTS_MAX = THREADS_MAX + THREADS_MAX / 2 + PENDING };
/* Below this, starting threads takes longer than reading. */
#define ALONE_ELEMENTS_MAX INT64_C(4194304)

struct loader {
    struct device *device;
    struct piece *pieces;
    size_t count, capacity;
    size_t taken, uploaded; /* pieces, in order; uploaded: read by the device */
    size_t slot_count;
    char *ring; /* of all slots */
    void *slots[SLOTS_MAX];
    bool ready[SLOTS_MAX];
    bool stopped; /* an error, or all done */
    struct err error;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static int64_t item_rows(const struct load_item *item) {
    return item->layout ? item->layout->parts[item->part].rows : item->to->rows;
}

static int64_t item_cols(const struct load_item *item) {
    return item->layout ? item->layout->cols : item->to->cols;
}

static int64_t item_elements(const struct load_item *item) {
    return item_rows(item) * item_cols(item);
}

static bool has_gaps(const struct load_item *item) {
    const struct tensor *const t = item->to;
    if (item->layout) return load_quant_by_rows(item);
    return t->rows > 1 && (t->ld != t->cols || (item->pitch > 0 && item->pitch != t->cols));
}

static void add_piece(struct loader *l, const struct piece *piece) {
    l->pieces = mem_grow(l->pieces, l->count, &l->capacity, sizeof *l->pieces);
    l->pieces[l->count++] = *piece;
}

static void cut_runs(struct loader *l, const struct piece *like, int64_t elements) {
    struct piece piece = *like;
    piece.rows = 1;
    for (; piece.first < elements; piece.first += PIECE_ELEMENTS) {
        const int64_t left = elements - piece.first;
        piece.cols = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS;
        add_piece(l, &piece);
    }
}

static void cut_rows(struct loader *l, const struct piece *like, int64_t rows, int64_t cols) {
    ASSERT(cols <= PIECE_ELEMENTS);
    struct piece piece = *like;
    piece.cols = cols;
    const int64_t block = PIECE_ELEMENTS / cols;
    for (; piece.row < rows; piece.row += block) {
        const int64_t left = rows - piece.row;
        piece.first = piece.row * cols;
        piece.rows = left < block ? left : block;
        add_piece(l, &piece);
    }
}

static void cut(struct loader *l, const struct load_item *item) {
    const int64_t rows = item_rows(item), cols = item_cols(item);
    ASSERT(item->from->elements >= item->first + rows * cols);
    const struct piece like = {.item = item,
                               .scales = item->layout ? load_quant_scales(item) : NULL};
    if (has_gaps(item)) {
        cut_rows(l, &like, rows, cols);
    } else {
        cut_runs(l, &like, rows * cols);
    }
    l->pieces[l->count - 1].last = true;
}

/* Stored elements without gaps. */
static enum status read_run(const struct load_item *item, int64_t first, int64_t count, void *out,
                            struct err *e) {
    const struct st_tensor *const from = item->from;
    switch (item->to->dtype) {
    case DTYPE_BF16: return st_read_bf16(from, first, count, out, e);
    case DTYPE_F16: return st_read_f16(from, first, count, out, e);
    default: return st_read_f32(from, first, count, out, e);
    }
}

static enum status read_piece(const struct piece *p, void *out, struct err *e) {
    const struct load_item *const item = p->item;
    if (item->layout) return load_quant_read(p, out, e);
    const bool strided = item->pitch > 0 && item->pitch != p->cols && has_gaps(item);
    const int64_t stored = st_dtype_bytes(item->from->dtype), own = dtype_bytes(item->to->dtype);
    const int64_t first = item->first + (strided ? p->row * item->pitch : p->first);
    const int64_t span = strided ? (p->rows - 1) * item->pitch + p->cols : p->rows * p->cols;
    file_map_populate(item->from->data + first * stored, (size_t)(span * stored));
    if (!strided) return read_run(item, first, span, out, e);
    for (int64_t row = 0; row < p->rows; row++) {
        TRY(read_run(item, first + row * item->pitch, p->cols, (char *)out + row * p->cols * own,
                     e));
    }
    return STATUS_OK;
}

static enum status upload_piece(const struct piece *p, void *host, struct err *e) {
    if (p->item->layout) return load_quant_upload(p, host, e);
    const struct tensor *const t = p->item->to;
    const int64_t size = dtype_bytes(t->dtype);
    const bool gaps = has_gaps(p->item);
    const struct transfer rows = {.device = gaps ? tensor_matrix_at(t, p->row, 0).data
                                                 : (char *)t->data + p->first * size,
                                  .device_pitch = (gaps ? t->ld : p->cols) * size,
                                  .host = host,
                                  .host_pitch = p->cols * size,
                                  .width = p->cols * size,
                                  .rows = p->rows};
    return device_stage_upload(t->space->device, &rows, e);
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
    if (any) {
        *index = l->taken++;
        load_quant_begin(&l->pieces[*index]);
    }
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

/* The first `read` pieces were read by the device. */
static void free_slots(struct loader *l, size_t read) {
    pthread_mutex_lock(&l->lock);
    l->uploaded = read;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static enum status upload_all(struct loader *l, struct err *e) {
    for (size_t i = 0; i < l->count; i++) {
        const size_t slot = i % l->slot_count;
        if (!wait_ready(l, slot)) break;
        TRY(upload_piece(&l->pieces[i], l->slots[slot], e));
        TRY(device_stage_wait(l->device, PENDING, e));
        if (i >= PENDING) free_slots(l, i - PENDING + 1);
    }
    return STATUS_OK;
}

static enum status load_alone(const struct loader *l, void *buffer, struct err *e) {
    for (size_t i = 0; i < l->count; i++) {
        load_quant_begin(&l->pieces[i]);
        TRY(read_piece(&l->pieces[i], buffer, e));
        TRY(upload_piece(&l->pieces[i], buffer, e));
        TRY(device_stage_wait(l->device, 0, e));
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

static size_t slots_for(int64_t elements) {
    if (elements <= ALONE_ELEMENTS_MAX) return 1;
    const int threads = thread_count();
    return (size_t)(threads + threads / 2 + PENDING);
}

/* No slot is larger than what is loaded. */
static int64_t slot_bytes(int64_t elements, int64_t element_bytes) {
    return (elements < PIECE_ELEMENTS ? elements : PIECE_ELEMENTS) * element_bytes;
}

int64_t load_staging_bytes(int64_t elements, int64_t element_bytes) {
    return (int64_t)slots_for(elements) * slot_bytes(elements, element_bytes);
}

/* Memory for the ring. */
static enum status open_ring(struct loader *l, const struct load_item *items, size_t count,
                             int64_t elements, struct err *e) {
    int64_t size = 0;
    for (size_t i = 0; i < count; i++) {
        const int64_t own = items[i].layout ? LOAD_QUANT_BYTES : dtype_bytes(items[i].to->dtype);
        if (own > size) size = own;
    }
    const int64_t slot = slot_bytes(elements, size);
    void *ring = NULL;
    TRY(device_stage_new(l->device, (int64_t)l->slot_count * slot, &ring, e));
    l->ring = ring;
    for (size_t i = 0; i < l->slot_count; i++) {
        l->slots[i] = l->ring + (int64_t)i * slot;
    }
    return STATUS_OK;
}

enum status load_items(const struct load_item *items, size_t count, struct err *e) {
    if (count == 0) return STATUS_OK;
    struct loader *const l = mem_new(1, sizeof *l);
    l->device = items[0].to->space->device;
    int64_t elements = 0;
    for (size_t i = 0; i < count; i++) {
        ASSERT(items[i].to->space->device == l->device);
        cut(l, &items[i]);
        elements += item_elements(&items[i]);
    }
    const int threads = elements > ALONE_ELEMENTS_MAX ? thread_count() : 0;
    l->slot_count = slots_for(elements);
    enum status status = open_ring(l, items, count, elements, e);
    if (threads) start_trace("ring ready, loading begins");
    if (status == STATUS_OK)
        status = threads ? load_together(l, threads, e) : load_alone(l, l->slots[0], e);
    /* Also after an error: what is on its way still reads the ring. */
    struct err ignored = {0};
    const enum status waited = device_stage_wait(l->device, 0, status == STATUS_OK ? e : &ignored);
    device_stage_free(l->device, l->ring);
    for (size_t i = 0; i < l->count; i++) {
        if (l->pieces[i].last) load_quant_free(l->pieces[i].scales);
    }
    mem_free(l->pieces);
    mem_free(l);
    return status == STATUS_OK ? waited : status;
}
