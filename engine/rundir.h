/* rundir.h - the run directory, the whole contract between server and engine. One of the three
 * headers the server knows.
 *
 *   spec.json              what to run; the file alone reproduces the run
 *   ranks.json             while ranks of a run look for each other: where rank 0 is, and a secret
 *   slurm.job, slurm.sh    of a job of Slurm: its number, what it runs
 *   control.json           what the operator wants, polled each step: see struct run_control
 *   events.<rank>.jsonl    see events.h
 *   rank.<n>.pid           {"pid","start_time","boot_id","host"}; the rank holds an exclusive flock
 *                          on it
 *   rank.<n>.log           stderr of the rank
 *   memory/                timeline.<n>.json, snapshot.<n>.pickle, summary.<n>.txt: see watching.h
 *   checkpoints/step-N/    written under a temporary name, synced, manifest with hashes, renamed
 *   adapter/ or model/     the result
 *
 * Exit codes of a rank: 0 the run is done; RUN_EXIT_STOPPED stopped on request after writing a
 * checkpoint; RUN_EXIT_FAILED failed, the reason is the last `error` event; RUN_EXIT_LOST another
 * rank was lost, the last `error` event names it; anything else (a signal too) is a crash. Starting
 * a rank again in the same directory continues from the newest complete checkpoint. */
#ifndef PLIMSOLL_ENGINE_RUNDIR_H
#define PLIMSOLL_ENGINE_RUNDIR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "engine/spec.h"

enum {
    RUN_EXIT_DONE = 0,
    RUN_EXIT_FAILED = 1,
    RUN_EXIT_USAGE = 2,
    RUN_EXIT_STOPPED = 75,
    RUN_EXIT_LOST = 76
};

/* Paths; the caller frees each with mem_free. */
char *rundir_spec(const char *run);
char *rundir_control(const char *run);
char *rundir_events(const char *run, int64_t rank);
char *rundir_pid(const char *run, int64_t rank);
char *rundir_log(const char *run, int64_t rank);
char *rundir_memory(const char *run);
char *rundir_timeline(const char *run, int64_t rank);
char *rundir_snapshot(const char *run, int64_t rank);
char *rundir_summary(const char *run, int64_t rank);
char *rundir_checkpoints(const char *run);
char *rundir_checkpoint(const char *run, int64_t step);
/* The step of a checkpoint folder name "step-N", or -1. */
int64_t rundir_checkpoint_step(const char *name);

/* Which process a rank is, so that a recycled pid is never mistaken for it. */
struct rank_identity {
    int64_t pid;
    int64_t start_time; /* field 22 of /proc/<pid>/stat */
    char boot_id[40];
    char host[64]; /* for people; "" in files of earlier versions */
};
/* Writes rank.<n>.pid for this process and locks it; *lock_fd stays open for the life of the rank.
 * STATUS_CONFLICT if another living rank holds it. */
enum status rundir_claim(const char *run, int64_t rank, int *lock_fd, struct err *e);
/* The identity in the file; STATUS_NOT_FOUND when there is none. */
enum status rundir_identity(const char *run, int64_t rank, struct rank_identity *out,
                            struct err *e);
/* True if exactly that process still lives on this machine. */
bool rank_is_alive(const struct rank_identity *identity);
/* True while a process is this rank, on whatever machine: the lock tells. */
bool rundir_rank_is_held(const char *run, int64_t rank);

/* What control.json may say. "stop" and "cap" hold as long as they are there; the others are done
 * once, when the file is another one than before ("serial" makes it so).
 *   {"stop": true}            as SIGTERM
 *   {"cap": "90%"}            another memory.cap, from the next step on
 *   {"remedy": {"name": "micro_batch", "accept": true}} answers `attention`, or asks for it
 *   {"undo": "micro_batch"}   takes a remedy back, where the plan allows it
 *   {"snapshot": true}        writes memory/ of the next step
 */
struct run_control {
    bool stop, snapshot;
    bool has_cap;
    struct spec_cap cap;
    char remedy[32], undo[32]; /* "" when absent */
    bool accept;
};
/* Reads it. A file that is missing is an empty wish; one that is broken is STATUS_INVALID. *fresh
 * (may be NULL): the file is another one than at the last call with this `mark`, which starts
 * zeroed. */
enum status rundir_control_read(const char *run, uint64_t *mark, bool *fresh,
                                struct run_control *out, struct err *e);
/* Writes a wish: stop and cap that are there already stay, what is done once is replaced. Takes
 * ownership of the object. */
enum status rundir_control_wish(const char *run, cJSON *wish, struct err *e);

/* Asks the run to stop, reads and clears the wishes: a cap that was set outlives the process. */
enum status rundir_request_stop(const char *run, struct err *e);
bool rundir_stop_requested(const char *run);
enum status rundir_clear_control(const char *run, struct err *e);

#endif
