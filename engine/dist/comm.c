/* comm.c - opening, closing and the host channel's front.
 *
 * A world of one, and the planner's world in which nobody is there, have neither wire nor mover:
 * each function then only does what concerns the caller alone. */
#include "engine/dist/comm.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

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

enum status comm_open(struct comm **out, const struct comm_place *place,
                      const struct comm_options *options, struct err *e) {
    FAIL_IF(place->world > 1, STATUS_UNSUPPORTED, "%lld ranks were started; this version runs one",
            (long long)place->world);
    TRY(comm_open_planned(out, place->rank, place->world, e));
    (*out)->options = *options;
    return STATUS_OK;
}

void comm_close(struct comm *c) {
    mem_free(c);
}

void comm_abandon(struct comm *c, const char *why) {
    (void)c, (void)why;
}

void comm_end_gang(struct comm *c, int exit_code) {
    (void)c, (void)exit_code;
}

void comm_doing(struct comm *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->doing, sizeof c->doing, format, args);
    va_end(args);
}

enum status comm_check(const struct comm *c, struct err *e) {
    (void)c, (void)e;
    return STATUS_OK;
}

enum status comm_gather(struct comm *c, const void *mine, int64_t bytes, void *all, struct err *e) {
    ASSERT(bytes >= 0 && bytes <= COMM_RECORD_MAX);
    (void)e;
    for (int64_t rank = 0; rank < c->world; rank++) {
        memcpy((char *)all + rank * bytes, mine, (size_t)bytes);
    }
    return STATUS_OK;
}

enum status comm_barrier(struct comm *c, struct err *e) {
    return comm_gather(c, NULL, 0, NULL, e);
}
