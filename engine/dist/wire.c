/* wire.c - the trainer's side of the host channel.
 *
 * It hands records to the thread and sleeps on a condition; the thread wakes it with the answer or
 * with a loss. It never touches a connection itself. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/socket.h"
#include "engine/dist/wire_internal.h"

static void wake(const struct wire *w) {
    const uint64_t one = 1;
    (void)!write(w->wake, &one, sizeof one);
}

static struct wire *wire_new(const struct comm_place *place, const struct comm_options *options) {
    struct wire *const w = mem_new(1, sizeof *w);
    pthread_condattr_t attributes;
    *w = (struct wire){.place = *place,
                       .options = *options,
                       .listener = -1,
                       .number = 1,
                       .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                       .began_ns = clock_steady_ns(),
                       .peers = mem_new((size_t)place->world, sizeof *w->peers),
                       .parts = mem_new((size_t)place->world, sizeof *w->parts),
                       .filled = mem_new((size_t)place->world, sizeof *w->filled)};
    for (int64_t i = 0; i < place->world; i++) {
        w->peers[i] = (struct peer){.fd = -1, .rank = i};
    }
    for (int i = 0; i < GUESTS_MAX; i++) {
        w->guests[i].fd = -1;
    }
    pthread_mutex_init(&w->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return w;
}

/* Waits a little for the thread to change something; the caller holds the mutex. */
static void wait_changed(struct wire *w) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 1; /* only a bound: every change wakes */
    pthread_cond_timedwait(&w->changed, &w->mutex, &until);
}

static enum status loss_error(const struct loss *loss, struct err *e) {
    return err_set(e, loss->status, "%s", loss->text);
}

/* All have come, or the thread has given up: it keeps the deadline. */
static enum status wait_joined(struct wire *w, struct err *e) {
    pthread_mutex_lock(&w->mutex);
    while (!w->joined && !w->lost) {
        wait_changed(w);
    }
    const bool lost = w->lost;
    pthread_mutex_unlock(&w->mutex);
    return lost ? loss_error(&w->loss, e) : STATUS_OK;
}

static enum status start(struct wire *w, struct err *e) {
    FAIL_IF(w->wake < 0, STATUS_IO, "the system gives no eventfd for the ranks' channel");
    if (wire_is_hub(w))
        TRY(rendezvous_open(&w->listener, w->token, w->options.folder, &w->place, e));
    FAIL_IF(pthread_create(&w->thread, NULL, wire_serve, w) != 0, STATUS_IO,
            "cannot start the thread that talks to the other ranks");
    w->started = true;
    return wait_joined(w, e);
}

enum status wire_open(struct wire **out, const struct comm_place *place,
                      const struct comm_options *options, struct err *e) {
    ASSERT(place->world > 1);
    *out = wire_new(place, options);
    return start(*out, e);
}

void wire_doing(struct wire *w, const char *doing) {
    pthread_mutex_lock(&w->mutex);
    snprintf(w->doing, sizeof w->doing, "%s", doing);
    pthread_mutex_unlock(&w->mutex);
}

void wire_set_patience(struct wire *w, int64_t patience_ms) {
    pthread_mutex_lock(&w->mutex);
    w->options.patience_ms = patience_ms;
    pthread_mutex_unlock(&w->mutex);
}

enum status wire_check(struct wire *w, struct err *e) {
    pthread_mutex_lock(&w->mutex);
    const bool lost = w->lost;
    pthread_mutex_unlock(&w->mutex);
    return lost ? loss_error(&w->loss, e) : STATUS_OK;
}

enum status wire_gather(struct wire *w, const void *mine, int64_t bytes, void *all, struct err *e) {
    const size_t whole = (size_t)(bytes * w->place.world);
    pthread_mutex_lock(&w->mutex);
    const int64_t number = w->mine.number + 1;
    w->mine.number = number;
    str_clear(&w->mine.data);
    if (bytes) str_append_bytes(&w->mine.data, mine, (size_t)bytes);
    wake(w);
    while (w->result.number < number && !w->lost) {
        wait_changed(w);
    }
    const bool there = w->result.number == number && w->result.data.len == whole;
    if (there && whole) memcpy(all, w->result.data.data, whole);
    const bool lost = w->lost;
    pthread_mutex_unlock(&w->mutex);
    if (there) return STATUS_OK;
    FAIL_IF(!lost, STATUS_INTERNAL, "a gather of %lld bytes from each rank came back with %zu",
            (long long)bytes, w->result.data.len);
    return loss_error(&w->loss, e);
}

enum status wire_report(struct wire *w, int64_t rank, const char *text, struct err *e) {
    pthread_mutex_lock(&w->mutex);
    if (!w->lost && !w->own.status) {
        w->own = (struct loss){.rank = rank, .status = STATUS_LOST};
        snprintf(w->own.text, sizeof w->own.text, "%s%s%s", text, w->doing[0] ? ", " : "",
                 w->doing);
    }
    wake(w);
    while (!w->lost) {
        wait_changed(w);
    }
    pthread_mutex_unlock(&w->mutex);
    return loss_error(&w->loss, e);
}

void wire_abandon(struct wire *w, const struct err *why) {
    pthread_mutex_lock(&w->mutex);
    if (!w->lost && !w->own.status) {
        w->own = (struct loss){.rank = w->place.rank, .status = why->status};
        if (w->own.status == STATUS_OK) w->own.status = STATUS_INTERNAL;
        snprintf(w->own.text, sizeof w->own.text, "rank %lld: %.900s", (long long)w->place.rank,
                 why->text);
    }
    w->stopping = true;
    wake(w);
    pthread_mutex_unlock(&w->mutex);
}

void wire_close(struct wire *w) {
    if (!w) return;
    struct err ignored = {0};
    if (w->started && wire_check(w, &ignored) == STATUS_OK && !w->stopping)
        (void)wire_gather(w, NULL, 0, NULL, &ignored); /* nobody leaves while others still talk */
    pthread_mutex_lock(&w->mutex);
    w->stopping = true;
    wake(w);
    pthread_mutex_unlock(&w->mutex);
    if (w->started) pthread_join(w->thread, NULL);
    for (int64_t i = 0; i < w->place.world; i++) {
        peer_release(&w->peers[i]);
        str_release(&w->parts[i]);
    }
    for (int i = 0; i < GUESTS_MAX; i++) {
        peer_release(&w->guests[i]);
    }
    socket_close(&w->listener);
    if (w->wake >= 0) close(w->wake);
    str_release(&w->mine.data);
    str_release(&w->result.data);
    mem_free(w->peers);
    mem_free(w->parts);
    mem_free(w->filled);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    mem_free(w);
}
