/* socket_links.c - see socket_links.h.
 *
 * The higher rank calls the lower one. Three words pass: the caller says who it is and the secret,
 * the other answers with the same, the caller says yes. Only then does the connection count on
 * either side; a caller that gets no answer (another program may listen at that address) hangs up
 * and tries the next address. */
#include "engine/dist/socket_links.h"

#include <poll.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/socket.h"
#include "engine/dist/attach.h"
#include "engine/dist/reach.h"
#include "engine/dist/rendezvous.h"
#include "engine/dist/wire.h"

enum {
    OPEN_MS = 60000,
    CONNECT_MS = 1000,
    ANSWER_MS = 5000,
    AGAIN_MS = 50,
    TURN_MS = 2,
    GUESTS_MORE = 16 /* strangers, beside one for each rank */
};
static const char YES = 'y';

/* What a rank tells all others before they connect. */
struct invitation {
    struct reach reach;
    char token[TOKEN_BYTES]; /* rank 0's counts */
};

/* A connection on which not all has been said. */
struct talk {
    int fd;
    int64_t attempt, began_ns;
    struct hello theirs;
    size_t heard; /* bytes of theirs */
};

struct meeting_of_links {
    struct links *links;
    struct comm *comm;
    struct hello mine;
    struct invitation *all; /* [world] */
    struct talk *calls;     /* [rank]: to the lower ranks */
    struct talk *guests;    /* [guest_count]: from higher ones */
    int64_t guest_count;
    int listener;
};

static void hang_up(struct talk *t) {
    socket_close(&t->fd);
    t->heard = 0;
    t->began_ns = clock_steady_ns();
}

static bool is_older(const struct talk *t, int64_t ms) {
    return clock_steady_ns() - t->began_ns > ms * 1000000;
}

static bool say(const struct talk *t, const void *bytes, size_t count) {
    return socket_send(t->fd, bytes, count) == (int64_t)count; /* a fresh connection takes it all */
}

/* 1: the other side's word is whole; 0: not yet; -1: it is gone. */
static int listen_to(struct talk *t) {
    const int64_t got =
        socket_receive(t->fd, (char *)&t->theirs + t->heard, sizeof t->theirs - t->heard);
    if (got < 0) return -1;
    t->heard += (size_t)got;
    return t->heard == sizeof t->theirs;
}

static bool is_one_of_us(const struct meeting_of_links *m, const struct hello *hello) {
    return memcmp(hello->token, m->mine.token, TOKEN_BYTES) == 0 && hello->world == m->mine.world &&
           hello->rank >= 0 && hello->rank < m->mine.world && hello->rank != m->mine.rank;
}

static void call(struct meeting_of_links *m, int64_t rank) {
    struct talk *const t = &m->calls[rank];
    struct err later = {0};
    if (t->attempt > 0 && !is_older(t, AGAIN_MS)) return;
    const enum status status =
        reach_try(&t->fd, &m->all[rank].reach, t->attempt++, CONNECT_MS, &later);
    t->began_ns = clock_steady_ns();
    t->heard = 0;
    if (status == STATUS_OK && !say(t, &m->mine, sizeof m->mine)) hang_up(t);
}

static void advance_call(struct meeting_of_links *m, int64_t rank) {
    struct talk *const t = &m->calls[rank];
    if (m->links->fds[rank] >= 0) return;
    if (t->fd < 0) {
        call(m, rank);
        return;
    }
    const int heard = listen_to(t);
    if (heard == 1 && is_one_of_us(m, &t->theirs) && t->theirs.rank == rank &&
        say(t, &YES, sizeof YES)) {
        m->links->fds[rank] = t->fd;
        t->fd = -1;
    } else if (heard != 0 || is_older(t, ANSWER_MS)) {
        hang_up(t);
    }
}

/* The last word of a caller. */
static void hear_yes(struct meeting_of_links *m, struct talk *t) {
    char word = 0;
    const int64_t got = socket_receive(t->fd, &word, sizeof word);
    if (got == 1 && word == YES && m->links->fds[t->theirs.rank] < 0) {
        m->links->fds[t->theirs.rank] = t->fd;
        t->fd = -1;
    } else if (got != 0) {
        hang_up(t);
    }
}

static void advance_guest(struct meeting_of_links *m, struct talk *t) {
    if (t->fd < 0) {
        *t = (struct talk){.fd = socket_accept(m->listener), .began_ns = clock_steady_ns()};
        if (t->fd < 0) return;
    }
    if (t->heard == sizeof t->theirs) {
        hear_yes(m, t);
    } else {
        const int heard = listen_to(t);
        const bool fine =
            heard == 0 || (heard == 1 && is_one_of_us(m, &t->theirs) &&
                           t->theirs.rank > m->mine.rank && say(t, &m->mine, sizeof m->mine));
        if (!fine) hang_up(t);
    }
    if (t->fd >= 0 && is_older(t, 2 * ANSWER_MS)) hang_up(t);
}

/* The first rank without a connection, or -1. */
static int64_t first_missing(const struct links *l) {
    for (int64_t rank = 0; rank < l->world; rank++) {
        if (rank != l->rank && l->fds[rank] < 0) return rank;
    }
    return -1;
}

static enum status meet_all(struct meeting_of_links *m, struct err *e) {
    const int64_t began = clock_steady_ns();
    int64_t missing;
    while ((missing = first_missing(m->links)) >= 0) {
        for (int64_t rank = 0; rank < m->mine.rank; rank++) {
            advance_call(m, rank);
        }
        for (int64_t i = 0; i < m->guest_count; i++) {
            advance_guest(m, &m->guests[i]);
        }
        TRY(wire_check(m->comm->wire, e));
        FAIL_IF(clock_steady_ns() - began > OPEN_MS * (int64_t)1000000, STATUS_UNSUPPORTED,
                "no connection to rank %lld (%s %s port %lld) for device data within %d s: the "
                "ranks must reach each other on any port. PLIMSOLL_INTERFACE chooses the network",
                (long long)missing, m->all[missing].reach.machine, m->all[missing].reach.addresses,
                (long long)m->all[missing].reach.port, OPEN_MS / 1000);
        (void)poll(NULL, 0, TURN_MS);
    }
    return STATUS_OK;
}

static enum status invite(struct meeting_of_links *m, bool elsewhere, struct err *e) {
    struct comm *const c = m->comm;
    struct invitation mine = {0};
    int port = 0;
    enum status status = socket_listen(&m->listener, !elsewhere, &port, e);
    if (status == STATUS_OK) status = reach_fill(&mine.reach, elsewhere, port, e);
    if (status == STATUS_OK) status = socket_random(mine.token, TOKEN_BYTES, e);
    TRY(comm_agree(c, status, e));
    return comm_gather(c, &mine, sizeof mine, m->all, e);
}

static struct talk *new_talks(int64_t count) {
    struct talk *const talks = mem_new((size_t)count + 1, sizeof *talks);
    for (int64_t i = 0; i < count; i++) {
        talks[i].fd = -1;
    }
    return talks;
}

static void free_talks(struct talk *talks, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        socket_close(&talks[i].fd);
    }
    mem_free(talks);
}

enum status links_open(struct links *out, struct comm *c, bool elsewhere, struct err *e) {
    const struct comm_place place = {.rank = c->rank, .world = c->world};
    struct meeting_of_links m = {.links = out,
                                 .comm = c,
                                 .all = mem_new((size_t)c->world, sizeof *m.all),
                                 .calls = new_talks(c->rank),
                                 .guest_count = c->world + GUESTS_MORE,
                                 .guests = new_talks(c->world + GUESTS_MORE),
                                 .listener = -1};
    *out = (struct links){
        .rank = c->rank, .world = c->world, .fds = mem_new((size_t)c->world, sizeof *out->fds)};
    for (int64_t rank = 0; rank < c->world; rank++) {
        out->fds[rank] = -1;
    }
    enum status status = invite(&m, elsewhere, e);
    if (status == STATUS_OK) {
        m.mine = rendezvous_hello(&place, m.all[0].token);
        status = comm_agree(c, meet_all(&m, e), e);
    }
    socket_close(&m.listener);
    free_talks(m.calls, c->rank);
    free_talks(m.guests, m.guest_count);
    mem_free(m.all);
    return status;
}

void links_close(struct links *l) {
    for (int64_t rank = 0; l->fds && rank < l->world; rank++) {
        socket_close(&l->fds[rank]);
    }
    mem_free(l->fds);
    *l = (struct links){0};
}
