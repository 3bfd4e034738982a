/* hands.h - the jobs in hand and what they claim: the one thing that the supervisor's thread and
 * the threads of requests share, under one lock.
 *
 * Claims are made again from spec, run directory and events whenever they are looked at; nothing
 * about them is remembered, so nothing about them can be lost. */
#ifndef PLIMSOLL_SERVER_RUN_HANDS_H
#define PLIMSOLL_SERVER_RUN_HANDS_H

#include <pthread.h>

#include "server/run/active.h"

struct hands {
    pthread_mutex_t lock; /* taken by the functions below */
    struct active **jobs; /* [count], in the order in which they were taken in hand. Changed by the
                             supervisor's thread alone, which may read it without the lock */
    int64_t count;
    size_t capacity;
    const struct run_place *place; /* borrowed */
};
void hands_init(struct hands *hands, const struct run_place *place);
void hands_release(struct hands *hands);

/* For the supervisor's thread. Takes a job in hand (takes ownership of the row), with its claim. */
struct active *hands_take(struct hands *hands, struct job_row *row);
/* Lets go of jobs[index]. */
void hands_drop(struct hands *hands, int64_t index);
/* Makes the claims of all jobs in hand again; true when one has changed. */
bool hands_look(struct hands *hands);
/* The first of the waiting rows, in their order, that may start beside what is in hand; -1: none.
 * why[i] becomes what holds the others back, in a sentence, or NULL; caller frees with mem_free. */
int64_t hands_next(struct hands *hands, const struct job_list *waiting, int64_t jobs_max,
                   char **why);

/* See supervisor_change_cap. Any thread. */
enum status hands_change_cap(struct hands *hands, const char *job_id, const struct spec_cap *cap,
                             struct err *e);

#endif
