/* wire_internal.h - the inside of the host channel, shared by its few files.
 *
 * wire.c is the trainer's side, wire_thread.c the loop, wire_hub.c what rank 0 does with messages
 * and wire_loss.c how a loss is found and told. What lies under `mutex` is said below; all else
 * belongs to the thread. */
#ifndef PLIMSOLL_ENGINE_DIST_WIRE_INTERNAL_H
#define PLIMSOLL_ENGINE_DIST_WIRE_INTERNAL_H

#include <pthread.h>

#include "engine/dist/frame.h"
#include "engine/dist/rendezvous.h"
#include "engine/dist/wire.h"

enum { GUESTS_MAX = 64, JOIN_MS = 60000, GUEST_MS = 5000, FLUSH_MS = 1000 };

/* A record on its way from or to the trainer's thread. */
struct record {
    int64_t number; /* of the gather; 0: none yet */
    struct str data;
};

struct wire {
    struct comm_place place;
    struct comm_options options;
    pthread_t thread;
    bool started;
    int wake; /* eventfd: the trainer's thread has something */
    /* under mutex */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct record mine, result;
    bool joined, lost, stopping;
    struct loss loss;
    char doing[160];
    struct loss own; /* why this rank fails; status 0: it does not */
    /* the thread's */
    struct peer *peers;             /* [world]; rank 0 has all others, the rest only peers[0] */
    struct peer guests[GUESTS_MAX]; /* connections that have not said who they are */
    int listener;
    char token[TOKEN_BYTES];
    int64_t attempts; /* to reach rank 0 */
    int64_t began_ns, turned_ns, beat_ns, lost_ns, stopped_ns;
    int64_t number;    /* of the gather that is collected (hub), or to be sent next (others) */
    int64_t first_ns;  /* when its first record came; 0: none yet */
    struct str *parts; /* hub: [world] */
    bool *filled;      /* hub: [world] */
    int64_t filled_count;
};

static inline bool wire_is_hub(const struct wire *w) {
    return w->place.rank == 0;
}
static inline int64_t wire_ms_since(int64_t ns, int64_t now_ns) {
    return (now_ns - ns) / 1000000;
}

/* The loop; `context` is the wire. */
void *wire_serve(void *context);

/* wire_hub.c: connections that come, messages that came, and gathers that are whole. */
void hub_accept(struct wire *w);
void wire_read_all(struct wire *w);
void wire_take_mine(struct wire *w);
void hub_finish_gather(struct wire *w);

/* wire_loss.c */
void wire_lose(struct wire *w, int64_t rank, enum status status, const char *text);
void wire_lose_gone(struct wire *w, int64_t rank);
void wire_judge(struct wire *w);
void wire_tell_loss(struct wire *w);

#endif
