/* collective.c - sums and copies of device buffers among ranks.
 *
 * GPUs that are peers do both by themselves (kernels/peers.h); what follows is about all others,
 * whose bytes go through MPI: those of the CPU as they lie, of shared GPUs by way of a mirror.
 *
 * A sum is a reduce-scatter (everyone gets the others' share of its own piece, and adds them in the
 * order of ranks) followed by an all-gather. Each element is added once, by one rank, in one order:
 * all ranks end with the same bits, which a library's own all-reduce does not promise. */
#include <stdio.h>
#include <string.h>

#include "base/half.h"
#include "base/mem.h"
#include "engine/dist/attach.h"
#include "engine/dist/mirror.h"
#include "engine/dist/mover.h"
#include "engine/dist/wire.h"
#include "kernels/peers.h"

/* Elements that all ranks together send to one rank at a time: enough to be limited by the memory
 * and not by messages, and small beside any model. */
enum { ROUND_ELEMENTS = 4 << 20 };

static int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

struct comm_piece comm_piece_of(int64_t count, int64_t pitch, int64_t rank, int64_t world) {
    ASSERT(count >= 0 && pitch > 0 && rank >= 0 && rank < world);
    const int64_t pitches = (count + pitch - 1) / pitch;
    const int64_t each = (pitches + world - 1) / world * pitch;
    const int64_t first = min_i64(rank * each, count), end = min_i64(first + each, count);
    return (struct comm_piece){.first = first, .count = end - first};
}

/* Elements of one piece that travel at a time. */
static int64_t round_of(int64_t count, int64_t pitch, int64_t world) {
    return min_i64(comm_piece_of(count, pitch, 0, world).count, ROUND_ELEMENTS / world);
}

static int64_t host_scratch_bytes(int64_t count, int64_t pitch, int64_t world) {
    return world > 1 ? world * round_of(count, pitch, world) * (int64_t)sizeof(float) : 0;
}

int64_t comm_scratch_bytes(enum device_kind kind, int64_t count, int64_t world) {
    return kind == DEVICE_CPU ? host_scratch_bytes(count, COMM_PITCH, world) : 0;
}

static int64_t pitch_of(const struct comm_buffer *b) {
    return b->pitch > 0 ? b->pitch : COMM_PITCH;
}

static struct comm_piece piece_of(const struct comm_buffer *b, int64_t rank, int64_t world) {
    return comm_piece_of(b->count, pitch_of(b), rank, world);
}

static char *element(const struct comm_buffer *b, int64_t index) {
    return (char *)b->data + index * dtype_bytes(b->dtype);
}

static int64_t bytes_of(const struct comm_buffer *b) {
    return b->count * dtype_bytes(b->dtype);
}

/* The pieces of all members. Caller frees. */
static struct peers_piece *all_pieces(const struct comm_group *g, const struct comm_buffer *b) {
    struct peers_piece *const pieces = mem_new((size_t)g->world, sizeof *pieces);
    for (int64_t rank = 0; rank < g->world; rank++) {
        const struct comm_piece piece = piece_of(b, rank, g->world);
        pieces[rank] = (struct peers_piece){piece.first, piece.count};
    }
    return pieces;
}

/* The part of a member's piece that travels in the round that begins at `offset` of each piece. */
static struct comm_piece part_of(const struct comm_buffer *b, int64_t rank, int64_t world,
                                 int64_t offset) {
    const struct comm_piece piece = piece_of(b, rank, world);
    const int64_t most = round_of(b->count, pitch_of(b), world), left = piece.count - offset;
    if (left <= 0) return (struct comm_piece){.first = piece.first + piece.count};
    return (struct comm_piece){.first = piece.first + offset, .count = min_i64(left, most)};
}

static float wide(const void *data, enum dtype dtype, int64_t i) {
    if (dtype == DTYPE_F32) return ((const float *)data)[i];
    const uint16_t bits = ((const uint16_t *)data)[i];
    return dtype == DTYPE_BF16 ? f32_from_bf16(bits) : f32_from_f16(bits);
}

static void put(void *data, enum dtype dtype, int64_t i, float value) {
    if (dtype == DTYPE_F32) {
        ((float *)data)[i] = value;
    } else {
        ((uint16_t *)data)[i] = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
    }
}

/* Adds in the order of members; the own share lies in `own` itself until it is its turn. `pitch`
 * elements lie between the shares. */
static void add_round(const struct comm_group *g, const void *shares, int64_t pitch,
                      const struct comm_buffer *own) {
    const enum dtype dtype = own->dtype;
#pragma omp parallel for schedule(static) if (own->count > 65536)
    for (int64_t i = 0; i < own->count; i++) {
        float sum = g->rank == 0 ? wide(own->data, dtype, i) : wide(shares, dtype, i);
        for (int64_t rank = 1; rank < g->world; rank++) {
            sum +=
                rank == g->rank ? wide(own->data, dtype, i) : wide(shares, dtype, rank * pitch + i);
        }
        put(own->data, dtype, i, sum);
    }
}

static enum status reduce_round(struct comm_group *g, const struct comm_scratch *scratch,
                                const struct comm_buffer *b, int64_t offset, struct err *e) {
    struct mpi_message *const messages = mem_new((size_t)g->world * 2, sizeof *messages);
    const int64_t pitch = round_of(b->count, pitch_of(b), g->world), size = dtype_bytes(b->dtype);
    const struct comm_piece mine = part_of(b, g->rank, g->world, offset);
    char *const shares = scratch->data;
    int64_t used = 0;
    for (int64_t step = 1; step < g->world; step++) {
        const int64_t peer = (g->rank + step) % g->world;
        const struct comm_piece theirs = part_of(b, peer, g->world, offset);
        messages[used++] = (struct mpi_message){.peer = comm_group_member(g, peer),
                                                .data = shares + peer * pitch * size,
                                                .bytes = mine.count * size};
        messages[used++] = (struct mpi_message){.peer = comm_group_member(g, peer),
                                                .data = element(b, theirs.first),
                                                .bytes = theirs.count * size,
                                                .sends = true};
    }
    const enum status status = mover_exchange(g->comm, messages, used, e);
    mem_free(messages);
    const struct comm_buffer own = {element(b, mine.first), b->dtype, mine.count, 0};
    if (status == STATUS_OK) add_round(g, shares, pitch, &own);
    return status;
}

/* What the trainer does, for reports on this rank and on others; NULL: it computes. */
static void enter(const struct comm_group *g, const char *name) {
    const struct comm *const c = g->comm;
    char text[160];
    if (!c->wire) return;
    snprintf(text, sizeof text, "%s%s%s", name ? name : "while the others computed",
             c->doing[0] ? " for " : "", c->doing);
    wire_doing(c->wire, text);
}

static enum status sum_on_host(struct comm_group *g, const struct comm_scratch *scratch,
                               const struct comm_buffer *b, struct err *e) {
    ASSERT(scratch->bytes >= host_scratch_bytes(b->count, pitch_of(b), g->world));
    const int64_t each = piece_of(b, 0, g->world).count;
    const int64_t round = round_of(b->count, pitch_of(b), g->world);
    enum status status = STATUS_OK;
    for (int64_t offset = 0; status == STATUS_OK && offset < each; offset += round) {
        status = reduce_round(g, scratch, b, offset, e);
    }
    return status;
}

static enum status sum_in_mirror(struct comm_group *g, struct device *device,
                                 const struct comm_buffer *b, struct err *e) {
    struct mirror m;
    enum status status = mirror_open(&m, device, b->data, bytes_of(b), e);
    mirror_add_scratch(&m, host_scratch_bytes(b->count, pitch_of(b), g->world));
    const struct comm_buffer here = {m.host, b->dtype, b->count, b->pitch};
    if (status == STATUS_OK) status = sum_on_host(g, &m.scratch, &here, e);
    return mirror_close(&m, status, e);
}

static enum status sum_of_peers(struct comm_group *g, const struct comm_buffer *b, struct err *e) {
    struct peers_piece *const pieces = all_pieces(g, b);
    const struct peers_data data = {b->data, b->dtype};
    const enum status status = device_peers_sum_pieces(g->peers, &data, pieces, e);
    mem_free(pieces);
    return status;
}

/* Whether anything has to travel at all. */
static bool moves(const struct comm_group *g, int64_t count) {
    return g->world > 1 && count > 0 && g->comm->wire;
}

enum status comm_reduce_scatter(struct comm_group *g, struct device *device,
                                const struct comm_scratch *scratch, const struct comm_buffer *b,
                                struct err *e) {
    comm_count(g, TRAFFIC_REDUCE_SCATTER, bytes_of(b));
    if (!moves(g, b->count)) return STATUS_OK;
    enter(g, "while the others summed");
    const enum status status = g->peers                     ? sum_of_peers(g, b, e)
                               : device->kind != DEVICE_CPU ? sum_in_mirror(g, device, b, e)
                                                            : sum_on_host(g, scratch, b, e);
    enter(g, NULL);
    return status;
}

/* Own piece to all, theirs to here. */
static enum status share_on_host(struct comm_group *g, const struct comm_buffer *b, struct err *e) {
    struct mpi_message *const messages = mem_new((size_t)g->world * 2, sizeof *messages);
    const int64_t size = dtype_bytes(b->dtype);
    int64_t used = 0;
    for (int64_t step = 1; step < g->world; step++) {
        const int64_t peer = (g->rank + step) % g->world;
        for (int sends = 0; sends < 2; sends++) {
            const struct comm_piece piece = piece_of(b, sends ? g->rank : peer, g->world);
            messages[used++] = (struct mpi_message){.peer = comm_group_member(g, peer),
                                                    .data = element(b, piece.first),
                                                    .bytes = piece.count * size,
                                                    .sends = sends == 1};
        }
    }
    const enum status status = mover_exchange(g->comm, messages, used, e);
    mem_free(messages);
    return status;
}

static enum status share_in_mirror(struct comm_group *g, struct device *device,
                                   const struct comm_buffer *b, struct err *e) {
    struct mirror m;
    enum status status = mirror_open(&m, device, b->data, bytes_of(b), e);
    const struct comm_buffer here = {m.host, b->dtype, b->count, b->pitch};
    if (status == STATUS_OK) status = share_on_host(g, &here, e);
    return mirror_close(&m, status, e);
}

static enum status share_of_peers(struct comm_group *g, const struct comm_buffer *b,
                                  struct err *e) {
    struct peers_piece *const pieces = all_pieces(g, b);
    const struct peers_data data = {b->data, b->dtype};
    const enum status status = device_peers_share_pieces(g->peers, &data, pieces, e);
    mem_free(pieces);
    return status;
}

enum status comm_all_gather(struct comm_group *g, struct device *device,
                            const struct comm_buffer *b, struct err *e) {
    comm_count(g, TRAFFIC_ALL_GATHER, bytes_of(b));
    if (!moves(g, b->count)) return STATUS_OK;
    enter(g, "while the others exchanged pieces");
    const enum status status = g->peers                     ? share_of_peers(g, b, e)
                               : device->kind != DEVICE_CPU ? share_in_mirror(g, device, b, e)
                                                            : share_on_host(g, b, e);
    enter(g, NULL);
    return status;
}

enum status comm_all_reduce(struct comm_group *g, struct device *device,
                            const struct comm_scratch *scratch, const struct comm_buffer *b,
                            struct err *e) {
    if (g->peers && moves(g, b->count)) {
        const struct peers_data data = {b->data, b->dtype};
        comm_count(g, TRAFFIC_ALL_REDUCE, bytes_of(b));
        TRY(comm_check(g->comm, e));
        TRY(device_peers_check(g->peers, e));
        return device_peers_sum(g->peers, &data, b->count, e);
    }
    TRY(comm_reduce_scatter(g, device, scratch, b, e));
    return comm_all_gather(g, device, b, e);
}
