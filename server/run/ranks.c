/* ranks.c - see ranks.h.
 *
 * What a launcher should do differently here is said through Open MPI's own variables, so that the
 * command line is the one that every MPI understands. A user's own settings stay. */
#include "server/run/ranks.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

int64_t ranks_of_spec(const char *spec) {
    cJSON *value = NULL;
    struct err ignored = {0};
    int64_t ranks = 1;
    if (spec && json_parse(spec, strlen(spec), "spec", &value, &ignored) == STATUS_OK)
        (void)json_get_i64(json_member(value, "parallel"), "ranks", &ranks, &ignored);
    cJSON_Delete(value);
    return ranks >= 1 ? ranks : 1;
}

/* The first program of this name in PATH, or NULL. Caller frees. */
static char *find_program(const char *name) {
    const char *at = environment("PATH");
    while (at && *at) {
        const size_t len = strcspn(at, ":");
        char *const folder = mem_strndup(at, len), *const path = file_join(folder, name);
        mem_free(folder);
        if (len > 0 && access(path, X_OK) == 0) return path;
        mem_free(path);
        at += len + (at[len] == ':');
    }
    return NULL;
}

/* The ranks share this machine's cores. */
static char *threads_setting(int64_t ranks) {
    const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    return str_format("OMP_NUM_THREADS=%lld", (long long)(cores > ranks ? cores / ranks : 1));
}

enum status ranks_command_make(struct ranks_command *command, const char *engine, const char *run,
                               int64_t ranks, struct err *e) {
    *command = (struct ranks_command){.argv = {engine, "run", run}};
    if (ranks == 1) return STATUS_OK;
    command->mpirun = find_program("mpirun");
    if (!command->mpirun)
        return err_set_param(e, STATUS_UNSUPPORTED, "parallel.ranks",
                             "parallel.ranks is %lld: mpirun, which starts the ranks, is not "
                             "installed here; install openmpi-bin, or set parallel.ranks to 1",
                             (long long)ranks);
    command->count = str_format("%lld", (long long)ranks);
    command->threads = threads_setting(ranks);
    *command = (struct ranks_command){
        .argv = {command->mpirun, "-n", command->count, engine, "run", run},
        /* Root is what a container runs as; ranks may be more than cores; and a rank's threads may
           use all of its share, wherever that is. */
        .environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                        "OMPI_MCA_rmaps_base_oversubscribe=1",
                        "OMPI_MCA_hwloc_base_binding_policy=none", command->threads},
        .mpirun = command->mpirun,
        .count = command->count,
        .threads = command->threads};
    return STATUS_OK;
}

void ranks_command_release(struct ranks_command *command) {
    mem_free(command->mpirun);
    mem_free(command->count);
    mem_free(command->threads);
    *command = (struct ranks_command){0};
}

void ranks_kill(const char *run, int64_t ranks) {
    for (int64_t rank = 0; rank < ranks; rank++) {
        struct rank_identity identity = {0};
        struct err ignored = {0};
        if (rundir_identity(run, rank, &identity, &ignored) == STATUS_OK &&
            rank_is_alive(&identity))
            process_signal(&identity, SIGKILL);
    }
}
