/* ranks.h - a run of several processes, here or elsewhere: who starts them, the command for it, and
 * ending those that are left.
 *
 * To the supervisor a run is one process of this machine in every case: the rank itself, mpirun,
 * `sbatch --wait`, or the engine attending to ranks that somebody else starts. */
#ifndef PLIMSOLL_SERVER_RUN_RANKS_H
#define PLIMSOLL_SERVER_RUN_RANKS_H

#include "server/run/process.h"

enum ranks_launcher { RANKS_LOCAL, RANKS_MPI, RANKS_SLURM, RANKS_EXTERNAL };

/* parallel.* of a job's spec. Zeroed, and released, it is one rank here. */
struct ranks_terms {
    int64_t ranks;
    enum ranks_launcher launcher;
    char *hostfile;
};
struct ranks_terms ranks_terms_of(const char *spec);
void ranks_terms_release(struct ranks_terms *terms);
/* The process that is watched is not the rank itself. */
bool ranks_are_led(const struct ranks_terms *terms);

/* What the user has to know or to do when it is started: ". Waiting for ..."; nothing for ranks
 * here. */
void ranks_say_start(const struct ranks_terms *terms, const char *run, struct str *out);

/* What to start. argv and environment end with NULL; all is owned. */
struct ranks_command {
    char **argv, **environment;
    int64_t argc, settings;
    char *stdout_path; /* NULL: nowhere */
};
/* `plimsoll-engine run RUN` for all ranks. STATUS_UNSUPPORTED where the program that starts them is
 * not here, STATUS_NOT_FOUND where the hostfile is not. For Slurm it writes RUN/slurm.sh. Release
 * also after an error. */
enum status ranks_command_make(struct ranks_command *command, const struct ranks_terms *terms,
                               const char *engine, const char *run, struct err *e);
void ranks_command_release(struct ranks_command *command);

/* Ends every rank that is within reach: those of this machine by a signal, those of a job of Slurm
 * by scancel. Those on hosts of mpirun end with mpirun. */
void ranks_kill(const char *run, const struct ranks_terms *terms);
/* True while a process is one of the ranks, on any machine. */
bool ranks_any_there(const char *run, const struct ranks_terms *terms);

#endif
