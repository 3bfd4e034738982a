/* transfer.c - bytes between host and card, through a ring of pinned buffers.
 *
 * The copy engine reads pinned memory only; from any other memory the driver would copy by itself,
 * in small pieces and waiting for each. So an upload copies into a slot of the ring, with several
 * threads when it is large, lets the copy engine take it from there and goes on with the next slot;
 * it returns when the caller's memory has been read, not when the card has it. Small uploads share
 * a slot, so that the host waits for the card only once in many of them. Everything goes through
 * the one stream: a kernel that is asked for later sees the bytes. Downloads wait for their own
 * event. */
#include "kernels/cuda/cuda.h"

#include <omp.h>
#include <string.h>

#include "base/mem.h"

/* 16 MiB take the copy engine about 300 us, long enough to hide the host's part of the next slot;
 * four, so that neither side waits for the other's jitter. */
enum { SLOT_COUNT = 4, SLOT_BYTES = 16 << 20 };
/* Pieces inside a slot begin at multiples of this. */
enum { PIECE_BYTES = 256 };
/* One thread copies about 10 GB/s and the bus takes 55. Below the limit threads cost more to wake
 * than they save. */
enum { THREADS_MAX = 8, THREADED_BYTES_MIN = 1 << 20 };

struct slot {
    char *host;
    cudaEvent_t taken; /* after the last copy from or to this slot */
};

struct cuda_transfer {
    struct slot slots[SLOT_COUNT];
    int current;
    int64_t used; /* bytes of the current slot */
};

enum status cuda_transfer_open(struct device *device, struct err *e) {
    struct cuda_state *state = cuda_state_of(device);
    struct cuda_transfer *transfer = state->transfer = mem_new(1, sizeof *transfer);
    for (int i = 0; i < SLOT_COUNT; i++) {
        struct slot *slot = &transfer->slots[i];
        void *host = NULL;
        TRY(cuda_check(device, cudaHostAlloc(&host, SLOT_BYTES, cudaHostAllocDefault),
                       "pinning host memory for transfers", e));
        slot->host = host;
        TRY(cuda_check(
            device,
            cudaEventCreateWithFlags(&slot->taken, cudaEventDisableTiming | cudaEventBlockingSync),
            "opening", e));
    }
    return STATUS_OK;
}

void cuda_transfer_close(struct device *device) {
    struct cuda_state *state = cuda_state_of(device);
    if (!state->transfer) return;
    for (int i = 0; i < SLOT_COUNT; i++) {
        const struct slot *slot = &state->transfer->slots[i];
        if (slot->taken) (void)cudaEventDestroy(slot->taken);
        if (slot->host) (void)cudaFreeHost(slot->host);
    }
    mem_free(state->transfer);
    state->transfer = NULL;
}

/* Room for `bytes` (at most SLOT_BYTES) in the current slot, or in the next one once its last copy
 * is done. */
static enum status take(struct device *device, int64_t bytes, char **at, struct err *e) {
    struct cuda_transfer *t = cuda_state_of(device)->transfer;
    ASSERT(bytes <= SLOT_BYTES);
    if (t->used + bytes > SLOT_BYTES) {
        t->current = (t->current + 1) % SLOT_COUNT;
        t->used = 0;
        TRY(cuda_check(device, cudaEventSynchronize(t->slots[t->current].taken), "transfer", e));
    }
    *at = t->slots[t->current].host + t->used;
    t->used += (bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
    return STATUS_OK;
}

/* Says that a copy of the current slot was asked for. */
static enum status mark(struct device *device, const char *operation, struct err *e) {
    const struct cuda_state *state = cuda_state_of(device);
    const struct cuda_transfer *t = state->transfer;
    return cuda_check(device, cudaEventRecord(t->slots[t->current].taken, state->stream), operation,
                      e);
}

/* Rows between two places of host memory; a block of bytes is one row. */
struct block {
    char *to;
    int64_t to_pitch;
    const char *from;
    int64_t from_pitch;
    int64_t width, rows;
};

/* One thread's share: of the rows, or of the bytes of a single one. */
static void copy_share(const struct block *b, int64_t share, int64_t shares) {
    if (b->rows == 1) {
        const int64_t first = b->width * share / shares, last = b->width * (share + 1) / shares;
        memcpy(b->to + first, b->from + first, (size_t)(last - first));
        return;
    }
    for (int64_t i = b->rows * share / shares; i < b->rows * (share + 1) / shares; i++) {
        memcpy(b->to + i * b->to_pitch, b->from + i * b->from_pitch, (size_t)b->width);
    }
}

static void copy_block(const struct block *b) {
    const int available = omp_get_max_threads();
    const int threads = b->width * b->rows < THREADED_BYTES_MIN ? 1
                        : available < THREADS_MAX               ? available
                                                                : THREADS_MAX;
    if (threads <= 1) {
        copy_share(b, 0, 1);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < threads; i++) {
        copy_share(b, i, threads);
    }
}

/* How a transfer is cut: whole rows that fit a slot together, or, where one row is larger than a
 * slot, pieces of a row. Piece `index` of `pieces`. */
struct cut {
    int64_t rows_each, pieces_per_row, pieces;
};

static struct cut cut_of(const struct transfer *t) {
    struct cut cut = {.rows_each = SLOT_BYTES / t->width, .pieces_per_row = 1};
    if (cut.rows_each == 0) {
        cut.rows_each = 1;
        cut.pieces_per_row = (t->width + SLOT_BYTES - 1) / SLOT_BYTES;
    }
    cut.pieces = (t->rows + cut.rows_each - 1) / cut.rows_each * cut.pieces_per_row;
    return cut;
}

static struct transfer piece_of(const struct transfer *t, const struct cut *cut, int64_t index) {
    const int64_t row = index / cut->pieces_per_row * cut->rows_each;
    const int64_t byte = index % cut->pieces_per_row * SLOT_BYTES;
    struct transfer piece = *t;
    piece.device = (char *)t->device + row * t->device_pitch + byte;
    piece.host = (char *)t->host + row * t->host_pitch + byte;
    piece.rows = t->rows - row < cut->rows_each ? t->rows - row : cut->rows_each;
    if (cut->pieces_per_row > 1)
        piece.width = t->width - byte < SLOT_BYTES ? t->width - byte : SLOT_BYTES;
    return piece;
}

/* Dense rows are one long row: fewer, larger copies. */
static struct transfer flattened(const struct transfer *t) {
    struct transfer flat = *t;
    if (t->rows > 1 && t->host_pitch == t->width && t->device_pitch == t->width) {
        flat.width = t->width * t->rows;
        flat.rows = 1;
    }
    return flat;
}

static enum status upload(struct device *device, const struct transfer *transfer, struct err *e) {
    static const char operation[] = "upload";
    const struct cuda_state *state = cuda_state_of(device);
    const struct transfer t = flattened(transfer);
    const struct cut cut = cut_of(&t);
    for (int64_t i = 0; i < cut.pieces; i++) {
        const struct transfer p = piece_of(&t, &cut, i);
        char *pinned = NULL;
        TRY(take(device, p.width * p.rows, &pinned, e));
        copy_block(&(struct block){.to = pinned,
                                   .to_pitch = p.width,
                                   .from = p.host,
                                   .from_pitch = p.host_pitch,
                                   .width = p.width,
                                   .rows = p.rows});
        const cudaError_t error =
            p.rows == 1 ? cudaMemcpyAsync(p.device, pinned, (size_t)p.width, cudaMemcpyHostToDevice,
                                          state->stream)
                        : cudaMemcpy2DAsync(p.device, (size_t)p.device_pitch, pinned,
                                            (size_t)p.width, (size_t)p.width, (size_t)p.rows,
                                            cudaMemcpyHostToDevice, state->stream);
        TRY(cuda_check(device, error, operation, e));
        TRY(mark(device, operation, e));
    }
    return cuda_launched(device, operation, e);
}

/* A piece of a download on its way: where in the ring, and who says that it has arrived. */
struct arrival {
    char *pinned;
    cudaEvent_t event;
};

static enum status ask(struct device *device, const struct transfer *p, struct arrival *arrival,
                       struct err *e) {
    const struct cuda_state *state = cuda_state_of(device);
    TRY(take(device, p->width * p->rows, &arrival->pinned, e));
    arrival->event = state->transfer->slots[state->transfer->current].taken;
    const cudaError_t error =
        p->rows == 1 ? cudaMemcpyAsync(arrival->pinned, p->device, (size_t)p->width,
                                       cudaMemcpyDeviceToHost, state->stream)
                     : cudaMemcpy2DAsync(arrival->pinned, (size_t)p->width, p->device,
                                         (size_t)p->device_pitch, (size_t)p->width, (size_t)p->rows,
                                         cudaMemcpyDeviceToHost, state->stream);
    TRY(cuda_check(device, error, "download", e));
    return mark(device, "download", e);
}

/* Up to all slots are on their way while the oldest is copied out. */
static enum status download(struct device *device, const struct transfer *transfer, struct err *e) {
    const struct transfer t = flattened(transfer);
    const struct cut cut = cut_of(&t);
    struct arrival arrivals[SLOT_COUNT];
    int64_t asked = 0;
    for (int64_t done = 0; done < cut.pieces; done++) {
        for (; asked < cut.pieces && asked - done < SLOT_COUNT; asked++) {
            const struct transfer p = piece_of(&t, &cut, asked);
            TRY(ask(device, &p, &arrivals[asked % SLOT_COUNT], e));
        }
        const struct arrival *arrival = &arrivals[done % SLOT_COUNT];
        TRY(cuda_check(device, cudaEventSynchronize(arrival->event), "download", e));
        const struct transfer p = piece_of(&t, &cut, done);
        copy_block(&(struct block){.to = p.host,
                                   .to_pitch = p.host_pitch,
                                   .from = arrival->pinned,
                                   .from_pitch = p.width,
                                   .width = p.width,
                                   .rows = p.rows});
    }
    return STATUS_OK;
}

enum status cuda_upload(struct device *device, void *to, const void *from, int64_t bytes,
                        struct err *e) {
    /* struct transfer serves both ways, so its host side is not const; an upload only reads it. */
    return upload(device,
                  &(struct transfer){
                      .device = to, .host = (void *)(uintptr_t)from, .width = bytes, .rows = 1},
                  e);
}

enum status cuda_download(struct device *device, void *to, const void *from, int64_t bytes,
                          struct err *e) {
    return download(device,
                    &(struct transfer){
                        .device = (void *)(uintptr_t)from, .host = to, .width = bytes, .rows = 1},
                    e);
}

enum status cuda_upload_rows(struct device *device, const struct transfer *t, struct err *e) {
    return upload(device, t, e);
}

enum status cuda_download_rows(struct device *device, const struct transfer *t, struct err *e) {
    return download(device, t, e);
}

enum status cuda_copy(struct device *device, void *to, const void *from, int64_t bytes,
                      struct err *e) {
    TRY(cuda_check(device,
                   cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice,
                                   cuda_state_of(device)->stream),
                   "copy", e));
    return cuda_launched(device, "copy", e);
}

enum status cuda_fill_zero(struct device *device, void *at, int64_t bytes, struct err *e) {
    TRY(cuda_check(device, cudaMemsetAsync(at, 0, (size_t)bytes, cuda_state_of(device)->stream),
                   "fill_zero", e));
    return cuda_launched(device, "fill_zero", e);
}
