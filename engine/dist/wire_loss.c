/* wire_loss.c - how a lost rank is found, named and told to all.
 *
 * Three ways to be lost: the connection closes (the process died), nothing comes for silence_ms (it
 * is stopped, or its machine or network is), or it lives and does not join a gather for
 * patience_ms. The first loss that a rank knows of is the one it reports; the hub passes it on. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/dist/wire_internal.h"

void wire_know(struct wire *w, int64_t rank, int64_t pid, const char *host) {
    pthread_mutex_lock(&w->mutex);
    w->peers[rank].pid = pid;
    snprintf(w->peers[rank].host, sizeof w->peers[rank].host, "%s", host);
    pthread_mutex_unlock(&w->mutex);
}

const char *wire_name(struct wire *w, int64_t rank, char buffer[160]) {
    const struct peer *const p = &w->peers[rank];
    char process[40] = "";
    pthread_mutex_lock(&w->mutex);
    if (p->pid) snprintf(process, sizeof process, " (process %lld", (long long)p->pid);
    const bool elsewhere = p->pid && w->place.elsewhere;
    snprintf(buffer, 160, "rank %lld%s%s%s%s", (long long)rank, process, elsewhere ? " on " : "",
             elsewhere ? p->host : "", p->pid ? ")" : "");
    pthread_mutex_unlock(&w->mutex);
    return buffer;
}

/* ", while the others met for step 7", or nothing. */
static void append_doing(struct wire *w, char *text, size_t size) {
    const size_t len = strlen(text);
    pthread_mutex_lock(&w->mutex);
    if (w->doing[0]) snprintf(text + len, size - len, ", %s", w->doing);
    pthread_mutex_unlock(&w->mutex);
}

/* Passes it on: the hub to all, a member to the hub. */
static void pass_on(struct wire *w, const struct loss *loss) {
    for (int64_t i = 0; i < w->place.world; i++) {
        if (w->peers[i].fd >= 0) peer_put(&w->peers[i], FRAME_LOST, loss->rank, loss, sizeof *loss);
    }
}

void wire_lose(struct wire *w, int64_t rank, enum status status, const char *text) {
    if (w->lost_ns) return;
    w->lost_ns = clock_steady_ns();
    w->loss = (struct loss){.rank = rank, .status = status};
    snprintf(w->loss.text, sizeof w->loss.text, "%s", text);
    pass_on(w, &w->loss);
}

void wire_lose_gone(struct wire *w, int64_t rank) {
    struct peer *const p = &w->peers[rank];
    const bool expected = p->left || w->stopped_ns;
    peer_release(p);
    /* Before all are here a member only knows that it did not get through, and tries again. */
    if (expected || (!w->joined && !wire_is_hub(w))) return;
    char name[160], text[ERR_TEXT_MAX];
    snprintf(text, sizeof text, "%s is gone: its process ended without a word",
             wire_name(w, rank, name));
    append_doing(w, text, sizeof text);
    wire_lose(w, rank, STATUS_LOST, text);
}

static void lose_silent(struct wire *w, int64_t rank) {
    char name[160], text[ERR_TEXT_MAX];
    snprintf(text, sizeof text,
             "%s has given no sign of life for %.1f s: it is stopped, or its machine or the "
             "network is",
             wire_name(w, rank, name), (double)w->options.silence_ms / 1000);
    append_doing(w, text, sizeof text);
    wire_lose(w, rank, STATUS_LOST, text);
}

static void judge_silence(struct wire *w, int64_t now) {
    for (int64_t i = 0; i < w->place.world; i++) {
        struct peer *const p = &w->peers[i];
        const int64_t silent_ms = wire_ms_since(p->heard_ns, now);
        if (p->fd < 0 || p->left) continue;
        if (!w->joined && !wire_is_hub(w)) {
            if (silent_ms > GUEST_MS) peer_release(p); /* an old port, and somebody else's by now */
        } else if (silent_ms > w->options.silence_ms) {
            lose_silent(w, i);
        }
    }
}

static void judge_joining(struct wire *w, int64_t now) {
    if (w->joined || wire_ms_since(w->began_ns, now) < JOIN_MS) return;
    int64_t missing = 0;
    while (wire_is_hub(w) && missing + 1 < w->place.world &&
           (missing == 0 || w->peers[missing].fd >= 0)) {
        missing++;
    }
    char text[ERR_TEXT_MAX];
    snprintf(text, sizeof text,
             "rank %lld of %lld has not come within %d s: all ranks must be started in the same "
             "run directory, and must reach each other over the network",
             (long long)missing, (long long)w->place.world, JOIN_MS / 1000);
    wire_lose(w, missing, STATUS_LOST, text);
}

/* Only the hub sees who is missing. */
static void judge_patience(struct wire *w, int64_t now) {
    if (!wire_is_hub(w) || !w->first_ns) return;
    pthread_mutex_lock(&w->mutex);
    const int64_t patience_ms = w->options.patience_ms;
    pthread_mutex_unlock(&w->mutex);
    if (wire_ms_since(w->first_ns, now) < patience_ms) return;
    int64_t missing = 0;
    while (missing + 1 < w->place.world && w->filled[missing]) {
        missing++;
    }
    char name[160], text[ERR_TEXT_MAX];
    snprintf(text, sizeof text, "%s lives but has not joined the others for %lld s",
             wire_name(w, missing, name), (long long)(patience_ms / 1000));
    append_doing(w, text, sizeof text);
    wire_lose(w, missing, STATUS_LOST, text);
}

/* What the trainer's thread has found. */
static void judge_own(struct wire *w) {
    pthread_mutex_lock(&w->mutex);
    const struct loss own = w->own;
    pthread_mutex_unlock(&w->mutex);
    if (own.status != STATUS_OK) wire_lose(w, own.rank, own.status, own.text);
}

void wire_judge(struct wire *w) {
    const int64_t now = clock_steady_ns();
    judge_own(w);
    if (w->lost_ns) return;
    judge_joining(w, now);
    judge_silence(w, w->turned_ns); /* this thread may have been stopped since the turn began */
    judge_patience(w, now);
}

/* Once: the callback first, so that what it writes is there when the process ends. */
void wire_tell_loss(struct wire *w) {
    if (!w->lost_ns || w->lost) return;
    struct err why = {0};
    err_set(&why, w->loss.status, "%s", w->loss.text);
    if (w->options.lost && w->loss.rank != w->place.rank) w->options.lost(w->options.context, &why);
    pthread_mutex_lock(&w->mutex);
    w->lost = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}
