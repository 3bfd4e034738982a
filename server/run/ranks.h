/* ranks.h - a run of several processes: how many there are, the command that starts them all, and
 * ending those that their launcher left behind.
 *
 * To the supervisor a run is one process in either case: the rank itself, or mpirun. */
#ifndef PLIMSOLL_SERVER_RUN_RANKS_H
#define PLIMSOLL_SERVER_RUN_RANKS_H

#include "server/run/process.h"

/* parallel.ranks of a job's spec, 1 when it says nothing. */
int64_t ranks_of_spec(const char *spec);

/* What to start. argv ends with NULL and borrows engine and run; so does environment. */
struct ranks_command {
    const char *argv[8];
    const char *environment[8];
    char *mpirun, *count, *threads;
};
/* `plimsoll-engine run RUN`, by mpirun when there are several ranks. STATUS_UNSUPPORTED where there
 * is no mpirun. Release also after an error. */
enum status ranks_command_make(struct ranks_command *command, const char *engine, const char *run,
                               int64_t ranks, struct err *e);
void ranks_command_release(struct ranks_command *command);

/* Kills every rank that still lives. */
void ranks_kill(const char *run, int64_t ranks);

#endif
