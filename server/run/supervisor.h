/* supervisor.h - the one thread that starts runs, several beside each other where their memory
 * allows, follows them and decides what becomes of their jobs.
 *
 * Only it changes a job's state. Everyone else writes a wish into the store and wakes it. */
#ifndef PLIMSOLL_SERVER_RUN_SUPERVISOR_H
#define PLIMSOLL_SERVER_RUN_SUPERVISOR_H

#include <stdbool.h>

#include "base/err.h"
#include "server/run/moves.h"

enum { SUPERVISOR_JOBS_PRESET = 4, SUPERVISOR_JOBS_MAX = 64 };

struct supervisor;
struct spec_cap;

struct supervisor_config {
    struct run_place place;
    int64_t jobs_max; /* so many are planned or run at a time, 1 to SUPERVISOR_JOBS_MAX */
};
/* Makes the supervisor without its thread; wakes are kept until it starts. Everything in `config`
 * is borrowed. */
struct supervisor *supervisor_new(const struct supervisor_config *config);
/* Starts the thread. It first takes up what a server before this one has left: runs that still live
 * are followed again, those that have ended are judged, those that were cut off are continued. */
enum status supervisor_start(struct supervisor *s, struct err *e);
/* A job was created or a wish was written: look now. Any thread. */
void supervisor_wake(struct supervisor *s);
/* Gives a running job another cap (written into its run directory, as the engine reads it) and
 * changes its claim with it. STATUS_CONFLICT when the job is not in hand, and when the cap is more
 * than the other jobs on its devices leave. Any thread. */
enum status supervisor_change_cap(struct supervisor *s, const char *job_id,
                                  const struct spec_cap *cap, struct err *e);
/* Ends the thread, if it runs, and frees everything. Runs that are going on keep running, for the
 * next server to find; with `stop_jobs` they are asked to write a checkpoint and stop, and will be
 * continued at the next start. */
void supervisor_stop(struct supervisor *s, bool stop_jobs);

#endif
