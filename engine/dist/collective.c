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

#include "base/mem.h"
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
static int64_t round_of(int64_t count, int64_t world) {
    return min_i64(comm_piece_of(count, COMM_PITCH, 0, world).count, ROUND_ELEMENTS / world);
}

static int64_t host_scratch_bytes(int64_t count, int64_t world) {
    return world > 1 ? world * round_of(count, world) * (int64_t)sizeof(float) : 0;
}

int64_t comm_scratch_bytes(enum device_kind kind, int64_t count, int64_t world) {
    return kind == DEVICE_CPU ? host_scratch_bytes(count, world) : 0;
}

/* The pieces of all ranks. Caller frees. */
static struct peers_piece *all_pieces(const struct comm *c, int64_t count) {
    struct peers_piece *const pieces = mem_new((size_t)c->world, sizeof *pieces);
    for (int64_t rank = 0; rank < c->world; rank++) {
        const struct comm_piece piece = comm_piece_of(count, COMM_PITCH, rank, c->world);
        pieces[rank] = (struct peers_piece){piece.first, piece.count};
    }
    return pieces;
}

/* The part of rank's piece that travels in the round that begins at `offset` of each piece. */
static struct comm_piece part_of(int64_t count, int64_t rank, int64_t world, int64_t offset) {
    const struct comm_piece piece = comm_piece_of(count, COMM_PITCH, rank, world);
    const int64_t most = round_of(count, world), left = piece.count - offset;
    if (left <= 0) return (struct comm_piece){.first = piece.first + piece.count};
    return (struct comm_piece){.first = piece.first + offset, .count = min_i64(left, most)};
}

/* Adds in the order of ranks; the own share lies in data itself until it is its turn. */
static void add_round(const struct comm *c, const float *shares, int64_t pitch, float *data,
                      int64_t count) {
#pragma omp parallel for schedule(static) if (count > 65536)
    for (int64_t i = 0; i < count; i++) {
        float sum = c->rank == 0 ? data[i] : shares[i];
        for (int64_t rank = 1; rank < c->world; rank++) {
            sum += rank == c->rank ? data[i] : shares[rank * pitch + i];
        }
        data[i] = sum;
    }
}

static enum status reduce_round(struct comm *c, const struct comm_scratch *scratch, float *data,
                                int64_t count, int64_t offset, struct err *e) {
    struct mpi_message *const messages = mem_new((size_t)c->world * 2, sizeof *messages);
    const int64_t pitch = round_of(count, c->world);
    const struct comm_piece mine = part_of(count, c->rank, c->world, offset);
    float *const shares = scratch->data;
    int64_t used = 0;
    for (int64_t step = 1; step < c->world; step++) {
        const int64_t peer = (c->rank + step) % c->world;
        const struct comm_piece theirs = part_of(count, peer, c->world, offset);
        messages[used++] = (struct mpi_message){
            .peer = peer, .data = shares + peer * pitch, .bytes = mine.count * 4};
        messages[used++] = (struct mpi_message){
            .peer = peer, .data = data + theirs.first, .bytes = theirs.count * 4, .sends = true};
    }
    const enum status status = mover_exchange(c, messages, used, e);
    mem_free(messages);
    if (status == STATUS_OK) add_round(c, shares, pitch, data + mine.first, mine.count);
    return status;
}

/* What the trainer does, for reports on this rank and on others; NULL: it computes. */
static void enter(struct comm *c, const char *name) {
    char text[160];
    snprintf(text, sizeof text, "%s%s%s", name ? name : "while the others computed",
             c->doing[0] ? " for " : "", c->doing);
    wire_doing(c->wire, text);
}

static enum status sum_on_host(struct comm *c, const struct comm_scratch *scratch, float *data,
                               int64_t count, struct err *e) {
    ASSERT(scratch->bytes >= host_scratch_bytes(count, c->world));
    const int64_t each = comm_piece_of(count, COMM_PITCH, 0, c->world).count;
    const int64_t round = round_of(count, c->world);
    enum status status = STATUS_OK;
    for (int64_t offset = 0; status == STATUS_OK && offset < each; offset += round) {
        status = reduce_round(c, scratch, data, count, offset, e);
    }
    return status;
}

static enum status sum_in_mirror(struct comm *c, struct device *device, float *data, int64_t count,
                                 struct err *e) {
    struct mirror m;
    enum status status = mirror_open(&m, device, data, count * (int64_t)sizeof *data, e);
    mirror_add_scratch(&m, host_scratch_bytes(count, c->world));
    if (status == STATUS_OK) status = sum_on_host(c, &m.scratch, m.host, count, e);
    return mirror_close(&m, status, e);
}

static enum status sum_of_peers(struct comm *c, float *data, int64_t count, struct err *e) {
    struct peers_piece *const pieces = all_pieces(c, count);
    const enum status status = device_peers_sum_pieces(c->peers, data, pieces, e);
    mem_free(pieces);
    return status;
}

static bool moves(const struct comm *c) {
    return c->mover || c->peers;
}

enum status comm_reduce_scatter(struct comm *c, struct device *device,
                                const struct comm_scratch *scratch, float *data, int64_t count,
                                struct err *e) {
    if (!moves(c)) return STATUS_OK;
    enter(c, "while the others summed gradients");
    const enum status status = c->peers ? sum_of_peers(c, data, count, e)
                               : device->kind != DEVICE_CPU
                                   ? sum_in_mirror(c, device, data, count, e)
                                   : sum_on_host(c, scratch, data, count, e);
    enter(c, NULL);
    return status;
}

/* One owner's part, at most a round of it. */
static enum status reduce_part(struct comm *c, const struct comm_scratch *scratch, int64_t owner,
                               const struct comm_owned *owned, const struct comm_slice *part,
                               struct err *e) {
    struct mpi_message *const messages = mem_new((size_t)c->world, sizeof *messages);
    const int64_t pitch = round_of(owned->count, c->world), bytes = part->count * 4;
    float *const shares = scratch->data;
    int64_t used = 0;
    for (int64_t rank = 0; owner == c->rank && rank < c->world; rank++) {
        if (rank == owner) continue;
        messages[used++] =
            (struct mpi_message){.peer = rank, .data = shares + rank * pitch, .bytes = bytes};
    }
    if (owner != c->rank)
        messages[used++] = (struct mpi_message){
            .peer = owner, .data = (void *)(uintptr_t)part->from, .bytes = bytes, .sends = true};
    const enum status status = mover_exchange(c, messages, used, e);
    mem_free(messages);
    if (status != STATUS_OK || owner != c->rank) return status;
    float *const mine = shares + owner * pitch;
    memcpy(mine, part->from, (size_t)bytes);
    add_round(c, shares, pitch, mine, part->count);
    float *const into =
        owned->piece + part->first - comm_piece_of(owned->count, COMM_PITCH, owner, c->world).first;
#pragma omp parallel for schedule(static) if (part->count > 65536)
    for (int64_t i = 0; i < part->count; i++) {
        into[i] += mine[i];
    }
    return STATUS_OK;
}

static enum status reduce_slice(struct comm *c, const struct comm_scratch *scratch,
                                const struct comm_slice *slice, const struct comm_owned *owned,
                                struct err *e) {
    const int64_t round = round_of(owned->count, c->world);
    int64_t first = slice->first;
    while (first < slice->first + slice->count) {
        const int64_t owner = first / comm_piece_of(owned->count, COMM_PITCH, 0, c->world).count;
        const struct comm_piece piece = comm_piece_of(owned->count, COMM_PITCH, owner, c->world);
        const int64_t end = min_i64(slice->first + slice->count, piece.first + piece.count);
        const struct comm_slice part = {slice->from + (first - slice->first), first,
                                        min_i64(end - first, round)};
        TRY(reduce_part(c, scratch, owner, owned, &part, e));
        first += part.count;
    }
    return STATUS_OK;
}

enum status comm_reduce_to_owners(struct comm *c, struct device *device,
                                  const struct comm_scratch *scratch,
                                  const struct comm_slice *slice, const struct comm_owned *owned,
                                  struct err *e) {
    if (!c->wire) return STATUS_OK;
    FAIL_IF(device->kind != DEVICE_CPU, STATUS_UNSUPPORTED,
            "parallel.zero_stage 2 works on the device cpu only in this version, it is %s",
            device->name);
    ASSERT(scratch->bytes >= host_scratch_bytes(owned->count, c->world));
    enter(c, "while the others summed gradients");
    const enum status status = reduce_slice(c, scratch, slice, owned, e);
    enter(c, NULL);
    return status;
}

/* Own piece to all, theirs to here; long pieces in several messages, in order. */
static int64_t gather_messages(const struct comm *c, char *data, int64_t element_bytes,
                               int64_t count, struct mpi_message *messages) {
    int64_t used = 0;
    for (int64_t step = 1; step < c->world; step++) {
        const int64_t peer = (c->rank + step) % c->world;
        const int64_t ranks[] = {peer, c->rank};
        for (int sends = 0; sends < 2; sends++) {
            const struct comm_piece piece =
                comm_piece_of(count, COMM_PITCH, ranks[sends], c->world);
            char *at = data + piece.first * element_bytes;
            int64_t left = piece.count * element_bytes;
            for (; left > 0; left -= MPI_MESSAGE_MAX, at += MPI_MESSAGE_MAX) {
                if (messages) {
                    messages[used] = (struct mpi_message){.peer = peer,
                                                          .data = at,
                                                          .bytes = min_i64(left, MPI_MESSAGE_MAX),
                                                          .sends = sends == 1};
                }
                used++;
            }
        }
    }
    return used;
}

static enum status share_on_host(struct comm *c, void *data, int64_t element_bytes, int64_t count,
                                 struct err *e) {
    const int64_t needed = gather_messages(c, data, element_bytes, count, NULL);
    struct mpi_message *const messages = mem_new((size_t)needed, sizeof *messages);
    gather_messages(c, data, element_bytes, count, messages);
    const enum status status = mover_exchange(c, messages, needed, e);
    mem_free(messages);
    return status;
}

static enum status share_in_mirror(struct comm *c, struct device *device, void *data,
                                   int64_t element_bytes, int64_t count, struct err *e) {
    struct mirror m;
    enum status status = mirror_open(&m, device, data, count * element_bytes, e);
    if (status == STATUS_OK) status = share_on_host(c, m.host, element_bytes, count, e);
    return mirror_close(&m, status, e);
}

static enum status share_of_peers(struct comm *c, void *data, int64_t element_bytes, int64_t count,
                                  struct err *e) {
    struct peers_piece *const pieces = all_pieces(c, count);
    const enum status status = device_peers_share_pieces(c->peers, data, element_bytes, pieces, e);
    mem_free(pieces);
    return status;
}

enum status comm_all_gather(struct comm *c, struct device *device, void *data,
                            int64_t element_bytes, int64_t count, struct err *e) {
    if (!moves(c)) return STATUS_OK;
    enter(c, "while the others exchanged pieces");
    const enum status status = c->peers ? share_of_peers(c, data, element_bytes, count, e)
                               : device->kind != DEVICE_CPU
                                   ? share_in_mirror(c, device, data, element_bytes, count, e)
                                   : share_on_host(c, data, element_bytes, count, e);
    enter(c, NULL);
    return status;
}

enum status comm_all_reduce(struct comm *c, struct device *device,
                            const struct comm_scratch *scratch, float *data, int64_t count,
                            struct err *e) {
    if (c->peers) {
        TRY(comm_check(c, e));
        TRY(device_peers_check(c->peers, e));
        return device_peers_sum(c->peers, data, count, e);
    }
    TRY(comm_reduce_scatter(c, device, scratch, data, count, e));
    return comm_all_gather(c, device, data, (int64_t)sizeof *data, count, e);
}
