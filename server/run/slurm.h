/* slurm.h - a run as a job of Slurm: the script that sbatch gets, the job's number, ending it.
 *
 * slurm.sh and slurm.job in the run directory; the number survives the server there. */
#ifndef PLIMSOLL_SERVER_RUN_SLURM_H
#define PLIMSOLL_SERVER_RUN_SLURM_H

#include "base/err.h"

/* Paths; the caller frees each with mem_free. */
char *slurm_script(const char *run);
char *slurm_job_file(const char *run);
/* Writes the script, which starts the ranks with srun, and forgets the job before. */
enum status slurm_prepare(const char *engine, const char *run, struct err *e);
/* Asks Slurm to end the job whose number is in the run directory, if there is one; its ranks are
 * killed wherever they are. Waits a few seconds at most. */
void slurm_cancel(const char *scancel, const char *run);

#endif
