/* moves.h - a job's way from one state to the next: row, message and `job` event in one
 * transaction, and everybody who looks is told.
 *
 * The states and who may enter them stand above active.c. Only the supervisor's thread moves jobs.
 */
#ifndef PLIMSOLL_SERVER_RUN_MOVES_H
#define PLIMSOLL_SERVER_RUN_MOVES_H

#include <stdbool.h>

#include "server/store/store.h"

/* What every job of a server has in common. All borrowed. */
struct run_place {
    struct store *store;
    const char *engine; /* path of plimsoll-engine */
    /* Called after something new is in the database. */
    void (*news)(void *context);
    /* Bytes of a device's memory, -1: unknown. Called from any thread. */
    int64_t (*total_bytes)(const char *device, void *context);
    void *context;
};

/* The row's own words for its state. */
void move_set_state(struct job_row *job, const char *status, const char *phase);
/* True when this is what the user wants of the job. */
bool move_is_wished(const struct job_row *job, const char *wish);

/* What is said to the user with a move. */
struct move_words {
    const char *level; /* info | warn | error */
    const char *message;
};
/* Writes the row as it is, with the words and a `job` event. */
enum status move_job(const struct run_place *place, struct job_row *job, struct move_words words,
                     struct err *e);
/* Moves into a state without a process (queued, paused, succeeded, failed, cancelled): the wish is
 * fulfilled. */
enum status move_settle(const struct run_place *place, struct job_row *job, const char *status,
                        struct move_words words, struct err *e);
/* Into failed, for this reason. */
enum status move_settle_failed(const struct run_place *place, struct job_row *job,
                               const struct err *reason, struct err *e);

/* Fulfils the wishes about jobs that have no process: queued -> cancelled | paused, paused | failed
 * -> queued | cancelled. */
enum status move_settle_wished(const struct run_place *place, struct err *e);

#endif
