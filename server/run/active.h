/* active.h - one job that is being planned or run: its process, its events, its way through the
 * states.
 *
 * All functions are for the supervisor's thread. `id`, `terms` and the run directory never change
 * while the job is in hand; what is known of its claim is guarded by hands.h. */
#ifndef PLIMSOLL_SERVER_RUN_ACTIVE_H
#define PLIMSOLL_SERVER_RUN_ACTIVE_H

#include "engine/events.h"
#include "server/run/claim.h"
#include "server/run/moves.h"
#include "server/run/process.h"
#include "server/run/ranks.h"

struct active {
    const struct run_place *place;
    char *id;
    char *run; /* its run directory */
    struct claim_terms terms;
    struct claim claim;
    int64_t capacity_told; /* of a rank, in its newest event of memory; -1: none yet */
    int64_t held_bytes;    /* of the host, in its processes: active_held */
    struct job_row job;
    struct rank_identity rank; /* of the planner, the one rank, or the launcher of several */
    bool has_process;
    struct event_reader reader;
    struct ranks_terms led;      /* of the job's spec: who starts the ranks, and how many */
    int64_t outcome_ns;          /* since when the ranks' last word is known; 0: it is not */
    struct event_reader *others; /* [led.ranks]; of those beyond 0; NULL: there are none */
    int64_t term_sent_ns;        /* 0: not asked to stop */
    int64_t watched_ns;          /* since when run_ms has been counted */
    int64_t rest_until_ns;       /* after trouble with the store or the disk */
    bool stale;                  /* then `job` is ahead of the database: active_again comes first */
    struct process_end end; /* how the last process ended; gone when no process has been watched */
    bool disk_full;         /* at that moment: then neither an event nor a log could be written */
};

/* Takes a row into hand: also after a restart of the server, so nothing may assume a fresh job.
 * Takes ownership of the row. Free with active_free. */
struct active *active_new(const struct run_place *place, struct job_row *row);
void active_free(struct active *a);

/* queued -> validating_files: starts the planner. */
enum status active_begin(struct active *a, struct err *e);

/* What the server is about. */
struct active_orders {
    bool stopping;  /* nothing new is started */
    bool stop_jobs; /* and what runs is asked to write a checkpoint and stop */
};
/* Looks once at the wish, the process and its events, and does what follows from them. */
enum status active_advance(struct active *a, struct active_orders orders, struct err *e);
/* Reads the row again after the store failed in the middle of something. A process that was started
 * meanwhile and that nobody has recorded is killed. */
enum status active_again(struct active *a, struct err *e);

bool active_is_planning(const struct active *a);
/* False: it has left the states that are held in hand. */
bool active_is_going(const struct active *a);
/* Memory of the host that its processes hold now. */
int64_t active_held(const struct active *a);

#endif
