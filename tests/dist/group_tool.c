/* group_tool.c - the exchanges of a group of ranks, held against what they must give, and timed:
 * group_tool FOLDER DEVICE [time]
 *
 * Every rank starts it, by mpirun or with RANK and WORLD_SIZE; they meet in FOLDER. DEVICE is cpu,
 * cuda (the GPU of the local rank) or cuda:N. The numbers are small whole ones, which every type
 * holds exactly, so results are compared bit by bit. `time` lets rank 0 print one JSON line for
 * each kind and size: seconds of a call and bytes of the whole buffer. Exit code 0: all was right.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/half.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/dist/mesh.h"
#include "engine/tensor/tensor.h"

enum { ROOM_BYTES = 1 << 22, TIMED_BYTES_MAX = 1 << 29, TIMED_CALLS = 10 };

struct tool {
    struct comm *comm;
    struct device *device;
    struct arena *arena;
    struct tensor_space space;
    struct tensor *room; /* what is exchanged */
    struct tensor *scratch_room;
    struct comm_scratch scratch;
    int64_t wrong, checked;
};

static float number_of(int64_t rank, int64_t i) {
    return (float)((i * 7 + rank * 3) % 11 - 5);
}

static void put(void *host, enum dtype dtype, int64_t i, float value) {
    if (dtype == DTYPE_F32) {
        ((float *)host)[i] = value;
    } else {
        ((uint16_t *)host)[i] = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
    }
}

static float get(const void *host, enum dtype dtype, int64_t i) {
    if (dtype == DTYPE_F32) return ((const float *)host)[i];
    const uint16_t bits = ((const uint16_t *)host)[i];
    return dtype == DTYPE_BF16 ? f32_from_bf16(bits) : f32_from_f16(bits);
}

/* Fills the buffer with this rank's numbers, or takes them back to compare. */
static enum status fill(struct tool *t, const struct comm_buffer *b, int64_t rank, struct err *e) {
    const int64_t bytes = b->count * dtype_bytes(b->dtype);
    void *const host = mem_new((size_t)bytes, 1);
    for (int64_t i = 0; i < b->count; i++) {
        put(host, b->dtype, i, number_of(rank, i));
    }
    const enum status status = device_upload(t->device, b->data, host, bytes, e);
    mem_free(host);
    return status;
}

typedef float expected_fn(const struct comm_group *g, int64_t owner, int64_t i);

static float sum_of(const struct comm_group *g, int64_t owner, int64_t i) {
    float sum = 0;
    (void)owner;
    for (int64_t m = 0; m < g->world; m++) {
        sum += number_of(comm_group_member(g, m), i);
    }
    return sum;
}

static float owners(const struct comm_group *g, int64_t owner, int64_t i) {
    return number_of(comm_group_member(g, owner), i);
}

/* Elements of all pieces, or of the own one only. */
static enum status compare(struct tool *t, const struct comm_group *g, const struct comm_buffer *b,
                           expected_fn *expected, bool own_only, struct err *e) {
    const int64_t bytes = b->count * dtype_bytes(b->dtype);
    const int64_t pitch = b->pitch ? b->pitch : COMM_PITCH;
    void *const host = mem_new((size_t)bytes, 1);
    const enum status status = device_download(t->device, host, b->data, bytes, e);
    for (int64_t m = 0; status == STATUS_OK && m < g->world; m++) {
        const struct comm_piece piece = comm_piece_of(b->count, pitch, m, g->world);
        if (own_only && m != g->rank) continue;
        for (int64_t i = piece.first; i < piece.first + piece.count; i++) {
            t->wrong += get(host, b->dtype, i) != expected(g, m, i);
            t->checked++;
        }
    }
    mem_free(host);
    return status;
}

static enum status check_buffer(struct tool *t, struct comm_group *g, const struct comm_buffer *b,
                                struct err *e) {
    const int64_t rank = t->comm->rank;
    int64_t ticket = 0;
    TRY(fill(t, b, rank, e));
    TRY(comm_all_reduce(g, t->device, &t->scratch, b, e));
    TRY(compare(t, g, b, sum_of, false, e));
    TRY(fill(t, b, rank, e));
    TRY(comm_reduce_scatter(g, t->device, &t->scratch, b, e));
    TRY(compare(t, g, b, sum_of, true, e));
    TRY(fill(t, b, rank, e));
    TRY(comm_aside_begin(g, e));
    TRY(comm_all_gather(g, t->device, b, e));
    TRY(comm_aside_end(g, &ticket, e));
    TRY(comm_aside_wait(g, ticket, e));
    return compare(t, g, b, owners, false, e);
}

/* To the next, from the one before, in a ring. */
static enum status check_messages(struct tool *t, struct comm_group *g, int64_t count,
                                  struct err *e) {
    float *const data = tensor_f32(t->room);
    const struct comm_buffer sent = {data, DTYPE_F32, count, 0};
    const struct comm_buffer received = {data + count, DTYPE_F32, count, 0};
    const int64_t before = (g->rank + g->world - 1) % g->world, bytes = count * 4;
    const struct comm_message messages[] = {
        {(g->rank + 1) % g->world, sent.data, bytes, true},
        {before, received.data, bytes, false},
    };
    if (g->world == 1) return STATUS_OK;
    TRY(fill(t, &sent, t->comm->rank, e));
    TRY(comm_exchange(g, t->device, messages, COUNT_OF(messages), e));
    float *const host = mem_new((size_t)count, sizeof *host);
    const enum status status = device_download(t->device, host, received.data, bytes, e);
    for (int64_t i = 0; status == STATUS_OK && i < count; i++) {
        t->wrong += host[i] != owners(g, before, i);
        t->checked++;
    }
    mem_free(host);
    return status;
}

static enum status check_group(struct tool *t, struct comm_group *g, struct err *e) {
    static const enum dtype DTYPES[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    static const int64_t COUNTS[] = {1, 63, 64, 640, 4097, 100000}, PITCHES[] = {0, 48};
    for (size_t d = 0; d < COUNT_OF(DTYPES); d++) {
        for (size_t i = 0; i < COUNT_OF(COUNTS) * COUNT_OF(PITCHES); i++) {
            const struct comm_buffer b = {t->room->data, DTYPES[d], COUNTS[i / 2], PITCHES[i % 2]};
            TRY(check_buffer(t, g, &b, e));
        }
    }
    TRY(check_messages(t, g, 1, e));
    return check_messages(t, g, 100000, e);
}

/* Every way to cut this world into tensor, shard, replicate and pipeline. */
static enum status check_meshes(struct tool *t, struct err *e) {
    const int64_t world = t->comm->world;
    for (int64_t code = 0; code < world * world * world; code++) {
        const struct mesh_shape shape = {
            {code % world + 1, code / world % world + 1, code / world / world + 1, 1}};
        struct mesh_shape whole = shape;
        if (world % mesh_world(&shape) != 0) continue;
        whole.degree[AXIS_PIPELINE] = world / mesh_world(&shape);
        struct mesh mesh;
        enum status status = mesh_open(&mesh, t->comm, t->device, &whole, e);
        for (int axis = 0; status == STATUS_OK && axis < AXIS_COUNT; axis++) {
            status = check_group(t, &mesh.axis[axis], e);
        }
        if (status == STATUS_OK) status = check_group(t, &mesh.data, e);
        if (status == STATUS_OK) status = check_group(t, &mesh.ends, e);
        mesh_close(&mesh);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status call(struct tool *t, struct comm_group *g, enum traffic_kind kind,
                        const struct comm_buffer *b, struct err *e) {
    const int64_t peer = g->rank ^ 1;
    const struct comm_message message = {peer, b->data, b->count * 4, g->rank % 2 == 0};
    switch (kind) {
    case TRAFFIC_REDUCE_SCATTER: return comm_reduce_scatter(g, t->device, &t->scratch, b, e);
    case TRAFFIC_ALL_GATHER: return comm_all_gather(g, t->device, b, e);
    case TRAFFIC_ALL_REDUCE: return comm_all_reduce(g, t->device, &t->scratch, b, e);
    case TRAFFIC_MESSAGE:
        return peer < g->world ? comm_exchange(g, t->device, &message, 1, e) : STATUS_OK;
    case TRAFFIC_KIND_COUNT: break;
    }
    return STATUS_INTERNAL;
}

static enum status time_calls(struct tool *t, struct comm_group *g, enum traffic_kind kind,
                              int64_t bytes, struct err *e) {
    static const char *const NAMES[TRAFFIC_KIND_COUNT] = {"reduce_scatter", "all_gather",
                                                          "all_reduce", "message"};
    const struct comm_buffer b = {t->room->data, DTYPE_F32, bytes / 4, 0};
    int64_t began = 0;
    for (int i = -2; i < TIMED_CALLS; i++) { /* two to warm up */
        if (i == 0) {
            TRY(device_synchronize(t->device, e));
            TRY(comm_barrier(t->comm, e));
            began = clock_steady_ns();
        }
        TRY(call(t, g, kind, &b, e));
    }
    TRY(device_synchronize(t->device, e));
    const double seconds = (double)(clock_steady_ns() - began) * 1e-9 / TIMED_CALLS;
    if (t->comm->rank == 0)
        printf("{\"kind\":\"%s\",\"ranks\":%lld,\"bytes\":%lld,\"seconds\":%.3e,\"gb_s\":%.2f}\n",
               NAMES[kind], (long long)g->world, (long long)bytes, seconds,
               (double)bytes / seconds * 1e-9);
    return STATUS_OK;
}

static enum status time_all(struct tool *t, struct err *e) {
    const struct mesh_shape shape = {{1, t->comm->world, 1, 1}};
    const int64_t most = t->device->kind == DEVICE_CUDA ? TIMED_BYTES_MAX : TIMED_BYTES_MAX >> 5;
    struct mesh mesh;
    enum status status = mesh_open(&mesh, t->comm, t->device, &shape, e);
    for (int kind = 0; kind < TRAFFIC_KIND_COUNT; kind++) {
        for (int64_t bytes = 1 << 14; status == STATUS_OK && bytes <= most; bytes *= 8) {
            status = time_calls(t, &mesh.data, (enum traffic_kind)kind, bytes, e);
        }
    }
    mesh_close(&mesh);
    return status;
}

static enum status open_tool(struct tool *t, const char *folder, const char *device, bool times,
                             struct err *e) {
    struct comm_place place;
    const struct device_options options = {.precision = PRECISION_F32};
    const struct comm_options comm = {
        .folder = folder, .silence_ms = COMM_SILENCE_MS, .patience_ms = 60000, .exit_code = 76};
    char name[32];
    TRY(comm_place_read(&place, e));
    snprintf(name, sizeof name, "%s", device);
    if (str_equal(device, "cuda")) snprintf(name, sizeof name, "cuda:%d", (int)place.local_rank);
    TRY(comm_open(&t->comm, &place, &comm, e));
    TRY(device_open(&t->device, name, &options, e));
    TRY(comm_attach(t->comm, t->device, e));
    TRY(arena_open(&t->arena, t->device, (int64_t)3 << 30, e));
    TRY(tensor_space_init(&t->space, t->device, t->arena, e));
    const int64_t bytes = times ? TIMED_BYTES_MAX : ROOM_BYTES;
    t->scratch.bytes = comm_scratch_bytes(t->device->kind, bytes / 4, place.world);
    TRY(tensor_new(&t->space, DTYPE_F32, 1, bytes / 4, CATEGORY_STAGING, &t->room, e));
    TRY(tensor_new(&t->space, DTYPE_F32, 1, t->scratch.bytes / 4, CATEGORY_COMMUNICATION,
                   &t->scratch_room, e));
    t->scratch.data = t->scratch_room->data;
    return tensor_fill_zero(t->room, e);
}

static void close_tool(struct tool *t, bool in_order, const struct err *e) {
    if (!in_order && t->comm) comm_abandon(t->comm, e);
    tensor_drop(&t->room);
    tensor_drop(&t->scratch_room);
    if (t->space.device) tensor_space_release(&t->space);
    arena_close(t->arena);
    comm_detach(t->comm);
    device_close(t->device);
    comm_close(t->comm);
}

int main(int argc, char **argv) {
    struct err e = {0};
    struct tool t = {0};
    const bool times = argc == 4 && strcmp(argv[3], "time") == 0;
    if (argc != 3 && !times) {
        fputs("usage: group_tool FOLDER DEVICE [time]\n", stderr);
        return 2;
    }
    enum status status = open_tool(&t, argv[1], argv[2], times, &e);
    if (status == STATUS_OK) status = times ? time_all(&t, &e) : check_meshes(&t, &e);
    close_tool(&t, status == STATUS_OK, &e);
    if (status != STATUS_OK) fprintf(stderr, "group_tool: %s\n", e.text);
    if (!times) printf("%lld numbers, %lld wrong\n", (long long)t.checked, (long long)t.wrong);
    return status == STATUS_OK && t.wrong == 0 && (times || t.checked > 0) ? 0 : 1;
}
