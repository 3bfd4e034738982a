/* comm.c - opening, closing and the host channel's front.
 *
 * A world of one, and the planner's world in which nobody is there, have neither wire nor mover:
 * each function then only does what concerns the caller alone. */
#include "engine/dist/comm.h"

#include <omp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/socket.h"
#include "engine/dist/frame.h"
#include "engine/dist/mover.h"
#include "engine/dist/wire.h"
#include "kernels/peers.h"

static enum status check_place(int64_t rank, int64_t world, struct err *e) {
    FAIL_IF(world < 1 || world > COMM_WORLD_MAX, STATUS_INVALID,
            "a run of %lld ranks is not possible, it may have 1 to %d", (long long)world,
            COMM_WORLD_MAX);
    FAIL_IF(rank < 0 || rank >= world, STATUS_INVALID,
            "rank %lld does not exist among %lld ranks, they count from 0", (long long)rank,
            (long long)world);
    return STATUS_OK;
}

enum status comm_open_planned(struct comm **out, int64_t rank, int64_t world, struct err *e) {
    TRY(check_place(rank, world, e));
    struct comm *const c = mem_new(1, sizeof *c);
    *c = (struct comm){.rank = rank, .world = world, .local_rank = rank, .local_world = world};
    *out = c;
    return STATUS_OK;
}

/* Ranks of one machine share its cores, unless the user or the launcher has divided them. */
static void share_cores(const struct comm *c) {
    if (environment("OMP_NUM_THREADS")) return;
    const int threads = omp_get_max_threads() / (int)c->local_world;
    omp_set_num_threads(threads > 1 ? threads : 1);
}

/* What each tells all before the device data have a way. */
struct arrival {
    char machine[80], host[HOST_NAME_MAX_BYTES];
    int64_t pid;
    bool can_mpi;
};

static void count_local(struct comm *c, const struct arrival *all) {
    int64_t before = 0, here = 0;
    for (int64_t rank = 0; rank < c->world; rank++) {
        if (strcmp(all[rank].machine, all[c->rank].machine) != 0) continue;
        before += rank < c->rank;
        here++;
    }
    c->local_rank = before;
    c->local_world = here;
}

/* Who is where, and whether all can go through MPI. */
static enum status get_to_know(struct comm *c, const struct comm_place *place, bool *mpi,
                               bool *elsewhere, struct err *e) {
    struct arrival mine = {.can_mpi = mover_can_mpi(place), .pid = getpid()};
    struct arrival *const all = mem_new((size_t)c->world, sizeof *all);
    struct str machine = {0};
    socket_machine(&machine);
    snprintf(mine.machine, sizeof mine.machine, "%s", str_text(&machine));
    str_release(&machine);
    socket_host_name(mine.host, sizeof mine.host);
    const enum status status = comm_gather(c, &mine, sizeof mine, all, e);
    *mpi = true;
    *elsewhere = mine.machine[0] == 0;
    for (int64_t rank = 0; rank < c->world; rank++) {
        if (status == STATUS_OK) wire_know(c->wire, rank, all[rank].pid, all[rank].host);
        *mpi = *mpi && all[rank].can_mpi;
        *elsewhere = *elsewhere || strcmp(all[rank].machine, all[0].machine) != 0;
    }
    if (status == STATUS_OK && !place->local_told) count_local(c, all);
    mem_free(all);
    return status;
}

/* The same network for the libraries that look for one themselves. */
static void choose_network(void) {
    const char *const interfaces = environment("PLIMSOLL_INTERFACE");
    if (!interfaces) return;
    char *const exactly = str_format("=%s", interfaces); /* NCCL would take it for a beginning */
    environment_preset("OMPI_MCA_btl_tcp_if_include", interfaces);
    environment_preset("NCCL_SOCKET_IFNAME", exactly);
    mem_free(exactly);
}

enum status comm_open(struct comm **out, const struct comm_place *place,
                      const struct comm_options *options, struct err *e) {
    TRY(comm_open_planned(out, place->rank, place->world, e));
    struct comm *const c = *out;
    struct comm_place found = *place;
    bool mpi = false;
    c->options = *options;
    c->local_rank = place->local_rank;
    c->local_world = place->local_world;
    if (place->world == 1) return STATUS_OK;
    choose_network();
    comm_doing(c, "the start");
    TRY(wire_open(&c->wire, place, options, e));
    TRY(get_to_know(c, place, &mpi, &found.elsewhere, e));
    share_cores(c);
    /* GPUs may do without; comm_attach knows. */
    if (mover_open(&c->mover, c, &found, mpi, &c->no_mover) != STATUS_OK) {
        mover_close(c->mover, false);
        c->mover = NULL;
    }
    return STATUS_OK;
}

/* Leaving a group of GPUs waits for all, so first it must be sure that all come. */
void comm_detach(struct comm *c) {
    struct err ignored = {0};
    if (!c || !c->peers) return;
    const bool in_order = !c->abandoned && comm_barrier(c, &ignored) == STATUS_OK;
    device_peers_close(c->peers, in_order);
    c->peers = NULL;
}

void comm_close(struct comm *c) {
    if (!c) return;
    struct err ignored = {0};
    /* MPI ends by waiting for all, so first it must be sure that all come. */
    const bool in_order = !c->abandoned && comm_barrier(c, &ignored) == STATUS_OK;
    mover_close(c->mover, in_order);
    wire_close(c->wire);
    mem_free(c);
}

void comm_abandon(struct comm *c, const struct err *why) {
    if (!c) return;
    c->abandoned = true;
    if (c->wire) wire_abandon(c->wire, why);
}

void comm_doing(struct comm *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->doing, sizeof c->doing, format, args);
    va_end(args);
}

void comm_set_patience(struct comm *c, int64_t patience_ms) {
    c->options.patience_ms = patience_ms;
    if (c->wire) wire_set_patience(c->wire, patience_ms);
}

enum status comm_check(const struct comm *c, struct err *e) {
    return c->wire ? wire_check(c->wire, e) : STATUS_OK;
}

enum status comm_gather(struct comm *c, const void *mine, int64_t bytes, void *all, struct err *e) {
    ASSERT(bytes >= 0 && bytes <= COMM_RECORD_MAX);
    if (c->wire) {
        char text[160];
        snprintf(text, sizeof text, "while the others met for %s", c->doing);
        wire_doing(c->wire, text);
        const int64_t began = clock_steady_ns();
        const enum status status = wire_gather(c->wire, mine, bytes, all, e);
        c->waited_ns += clock_steady_ns() - began;
        snprintf(text, sizeof text, "while the others computed for %s", c->doing);
        wire_doing(c->wire, text);
        return status;
    }
    for (int64_t rank = 0; bytes > 0 && rank < c->world; rank++) {
        memcpy((char *)all + rank * bytes, mine, (size_t)bytes);
    }
    return STATUS_OK;
}

enum status comm_barrier(struct comm *c, struct err *e) {
    return comm_gather(c, NULL, 0, NULL, e);
}
