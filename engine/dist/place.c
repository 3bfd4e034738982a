/* place.c - which rank this process is, from the variables that launchers set.
 *
 * One table, in the order in which they are asked: MPI launchers first, because they may set the
 * names of others too. A launcher counts when it says how many ranks there are; what it then leaves
 * out is an error and never guessed, except the place on the machine, which only chooses devices.
 * SLURM counts inside a job step only: a shell of an allocation is not a rank. */
#include "engine/dist/comm.h"

#include <stddef.h>

#include "base/environment.h"
#include "base/mem.h"
#include "base/str.h"

static const struct launcher {
    enum comm_launcher launcher;
    const char *rank, *world, *local_rank, *local_world;
} LAUNCHERS[] = {
    {LAUNCHED_BY_MPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {LAUNCHED_BY_MPI, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {LAUNCHED_BY_NAME, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {LAUNCHED_BY_NAME, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
};

/* A whole number from `least` to `most`, or `preset` where the variable is not set. */
static enum status read_number(const char *name, int64_t least, int64_t most, int64_t *value,
                               struct err *e) {
    const char *const text = name ? environment(name) : NULL;
    if (!text) return STATUS_OK;
    TRY(str_to_i64(text, name, value, e));
    FAIL_IF(*value < least || *value > most, STATUS_INVALID,
            "the environment says %s=%lld, it must be from %lld to %lld", name, (long long)*value,
            (long long)least, (long long)most);
    return STATUS_OK;
}

static enum status read_launcher(const struct launcher *l, struct comm_place *place,
                                 struct err *e) {
    *place = (struct comm_place){.launcher = l->launcher, .rank = -1, .world = 1};
    TRY(read_number(l->world, 1, COMM_WORLD_MAX, &place->world, e));
    TRY(read_number(l->rank, 0, place->world - 1, &place->rank, e));
    FAIL_IF(place->rank < 0, STATUS_INVALID,
            "the environment says %s=%lld but not which of them this process is: set %s", l->world,
            (long long)place->world, l->rank);
    place->local_rank = place->rank;
    place->local_world = place->world;
    const bool told = l->local_world && environment(l->local_world);
    TRY(read_number(l->local_world, 1, place->world, &place->local_world, e));
    place->elsewhere = !told || place->local_world < place->world;
    place->local_told = l->local_rank && environment(l->local_rank);
    return read_number(l->local_rank, 0, place->local_world - 1, &place->local_rank, e);
}

enum status comm_place_read(struct comm_place *place, struct err *e) {
    *place = (struct comm_place){.world = 1, .local_world = 1, .launcher = LAUNCHED_ALONE};
    for (size_t i = 0; i < COUNT_OF(LAUNCHERS); i++) {
        if (environment(LAUNCHERS[i].world)) return read_launcher(&LAUNCHERS[i], place, e);
    }
    return STATUS_OK;
}
