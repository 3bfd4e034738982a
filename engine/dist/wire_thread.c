/* wire_thread.c - the loop of the host channel's thread.
 *
 * One turn: look at every connection, do what messages ask, send, judge who is lost. It turns at
 * least every quarter of a second, so every deadline is kept to that. A thread that was away itself
 * (the machine slept, the whole run was stopped and continued) judges nobody by that time. */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/dist/wire_internal.h"

enum { TURN_MS = 250, TURN_JOINING_MS = 20, BEAT_MS = 1000 };

static void watch(struct pollfd *fds, nfds_t *count, int fd, bool writes) {
    if (fd < 0) return;
    fds[(*count)++] = (struct pollfd){.fd = fd, .events = POLLIN | (writes ? POLLOUT : 0)};
}

/* Sleeps until something comes. */
static void wait_turn(struct wire *w, struct pollfd *fds) {
    nfds_t count = 0;
    uint64_t wakes;
    watch(fds, &count, w->wake, false);
    watch(fds, &count, w->listener, false);
    for (int64_t i = 0; i < w->place.world; i++) {
        watch(fds, &count, w->peers[i].fd, w->peers[i].out.len > 0);
    }
    for (int i = 0; i < GUESTS_MAX; i++) {
        watch(fds, &count, w->guests[i].fd, false);
    }
    (void)poll(fds, count, w->joined ? TURN_MS : TURN_JOINING_MS);
    (void)!read(w->wake, &wakes, sizeof wakes);
}

/* The time that this thread was away is nobody's silence. */
static void notice_absence(struct wire *w) {
    const int64_t now = clock_steady_ns();
    if (wire_ms_since(w->turned_ns, now) > w->options.silence_ms / 2) {
        for (int64_t i = 0; i < w->place.world; i++) {
            w->peers[i].heard_ns = now;
        }
    }
    w->turned_ns = now;
}

static void beat(struct wire *w) {
    const int64_t now = clock_steady_ns();
    const int64_t every = w->options.silence_ms / 8 < BEAT_MS ? w->options.silence_ms / 8 : BEAT_MS;
    if (wire_ms_since(w->beat_ns, now) < every) return;
    w->beat_ns = now;
    for (int64_t i = 0; i < w->place.world; i++) {
        /* What waits to be sent is a sign of life too, and must not pile up. */
        if (w->peers[i].fd >= 0 && w->peers[i].out.len == 0)
            peer_put(&w->peers[i], FRAME_BEAT, 0, NULL, 0);
    }
}

/* A member looks for the hub until it has found it. */
static void seek_hub(struct wire *w) {
    struct err later = {0};
    if (wire_is_hub(w) || w->peers[0].fd >= 0 || w->lost || w->joined) return;
    if (rendezvous_try(&w->peers[0], w->options.folder, &w->place, w->attempts++, &later) !=
        STATUS_OK)
        peer_release(&w->peers[0]);
}

static void flush(struct wire *w) {
    for (int64_t i = 0; i < w->place.world; i++) {
        struct peer *const p = &w->peers[i];
        if (p->fd >= 0 && !peer_flush(p)) wire_lose_gone(w, i);
    }
}

static bool all_sent(const struct wire *w) {
    for (int64_t i = 0; i < w->place.world; i++) {
        if (w->peers[i].fd >= 0 && w->peers[i].out.len > 0) return false;
    }
    return true;
}

/* Rank 0 goes last, so that nobody takes its leaving for a loss. */
static bool all_left(const struct wire *w) {
    for (int64_t i = 1; i < w->place.world && wire_is_hub(w); i++) {
        if (w->peers[i].fd >= 0 && !w->peers[i].left) return false;
    }
    return true;
}

/* True when the trainer's thread has asked for the end and everything is said. */
static bool may_stop(struct wire *w) {
    pthread_mutex_lock(&w->mutex);
    const bool stopping = w->stopping, lost = w->lost;
    pthread_mutex_unlock(&w->mutex);
    if (!stopping) return false;
    const int64_t now = clock_steady_ns();
    if (!w->stopped_ns) {
        w->stopped_ns = now;
        for (int64_t i = 0; i < w->place.world && !lost; i++) {
            if (w->peers[i].fd >= 0) peer_put(&w->peers[i], FRAME_BYE, 0, NULL, 0);
        }
        flush(w);
    }
    const int64_t waited = wire_ms_since(w->stopped_ns, now);
    if (lost) return all_sent(w) || waited > FLUSH_MS;
    return (all_sent(w) && all_left(w)) || waited > w->options.silence_ms;
}

/* The trainer's thread had its time to end the process in good order, and is somewhere where it
 * cannot hear. */
static void leave_when_stuck(const struct wire *w) {
    if (w->lost_ns && wire_ms_since(w->lost_ns, clock_steady_ns()) > COMM_GRACE_MS)
        environment_leave(w->options.exit_code);
}

void *wire_serve(void *context) {
    struct wire *const w = context;
    struct pollfd *const fds = mem_new((size_t)w->place.world + GUESTS_MAX + 2, sizeof *fds);
    w->turned_ns = clock_steady_ns();
    do {
        seek_hub(w);
        wait_turn(w, fds);
        notice_absence(w);
        hub_accept(w);
        wire_read_all(w);
        wire_take_mine(w);
        hub_finish_gather(w);
        beat(w);
        flush(w);
        wire_judge(w);
        wire_tell_loss(w);
        leave_when_stuck(w);
    } while (!may_stop(w));
    mem_free(fds);
    return NULL;
}
