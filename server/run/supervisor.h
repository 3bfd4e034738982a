/* supervisor.h - the one thread that starts runs, follows them and decides what becomes of their
 * jobs.
 *
 * Only it changes a job's state. Everyone else writes a wish into the store and wakes it. */
#ifndef PLIMSOLL_SERVER_RUN_SUPERVISOR_H
#define PLIMSOLL_SERVER_RUN_SUPERVISOR_H

#include <stdbool.h>

#include "base/err.h"
#include "server/store/store.h"

struct supervisor;

struct supervisor_config {
    struct store *store;
    const char *engine; /* path of plimsoll-engine */
    /* Called after something new is in the database. */
    void (*news)(void *context);
    void *context;
};
/* Makes the supervisor without its thread; wakes are kept until it starts. Everything in `config`
 * is borrowed. */
struct supervisor *supervisor_new(const struct supervisor_config *config);
/* Starts the thread. It first takes up what a server before this one has left: a run that still
 * lives is followed again, one that has ended is judged, one that was cut off is continued. */
enum status supervisor_start(struct supervisor *s, struct err *e);
/* A job was created or a wish was written: look now. Any thread. */
void supervisor_wake(struct supervisor *s);
/* Ends the thread, if it runs, and frees everything. The run that is going on keeps running, for
 * the next server to find; with `stop_jobs` it is asked to write a checkpoint and stop, and will be
 * continued at the next start. */
void supervisor_stop(struct supervisor *s, bool stop_jobs);

#endif
