/* socket_mover.c - see socket_mover.h.
 *
 * The trainer's thread moves the bytes itself, straight from and into device memory, whenever it
 * looks; what nobody reads yet waits in the system's buffers. Each message has a head that says its
 * length, so ranks that do not make the same calls are found and never misread. Who is lost is the
 * host channel's business (wire.h): a connection that closes waits for its word, and only a
 * connection that is broken while both ranks live speaks for itself. */
#include "engine/dist/socket_mover.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/socket.h"
#include "engine/dist/socket_links.h"

enum { HEAD_MAGIC = 0x504c4d44, REST_MS = 20, LOOK_MS = 500, GRACE_MS = 1000 };

struct head {
    int64_t magic, bytes;
};

/* One direction of one connection: how far the posted messages have come. */
struct stream {
    int64_t at;   /* index of the message on its way; the count: all are done */
    int64_t done; /* bytes of it, head included */
    struct head head;
};

struct socket_mover {
    struct links links;
    int64_t silence_ms;
    struct mpi_message *messages;
    int64_t count, capacity;
    struct stream *sends, *receives; /* [world] */
    int64_t *gone_ns;                /* [world]: since when a connection is closed; 0: it is not */
    struct pollfd *fds;              /* [world] */
    int64_t looked_ns;
};

enum status socket_mover_open(struct socket_mover **out, struct comm *c, bool elsewhere,
                              struct err *e) {
    struct socket_mover *const m = *out = mem_new(1, sizeof *m);
    const size_t world = (size_t)c->world;
    *m = (struct socket_mover){.silence_ms = c->options.silence_ms,
                               .sends = mem_new(world, sizeof *m->sends),
                               .receives = mem_new(world, sizeof *m->receives),
                               .gone_ns = mem_new(world, sizeof *m->gone_ns),
                               .fds = mem_new(world, sizeof *m->fds)};
    return links_open(&m->links, c, elsewhere, e);
}

void socket_mover_close(void *state) {
    struct socket_mover *const m = state;
    if (!m) return;
    links_close(&m->links);
    mem_free(m->messages);
    mem_free(m->sends);
    mem_free(m->receives);
    mem_free(m->gone_ns);
    mem_free(m->fds);
    mem_free(m);
}

/* The next message with this rank from `at` on. */
static int64_t next_message(const struct socket_mover *m, int64_t peer, bool sends, int64_t at) {
    while (at < m->count && (m->messages[at].peer != peer || m->messages[at].sends != sends)) {
        at++;
    }
    return at;
}

bool socket_mover_post(void *state, const struct mpi_message *messages, int count,
                       char why[MPI_MODULE_TEXT]) {
    struct socket_mover *const m = state;
    (void)why;
    if (count > m->capacity) {
        m->messages = mem_resize(m->messages, (size_t)count, sizeof *m->messages);
        m->capacity = count;
    }
    m->count = count;
    if (count > 0) memcpy(m->messages, messages, (size_t)count * sizeof *messages);
    for (int64_t peer = 0; peer < m->links.world; peer++) {
        m->sends[peer] = (struct stream){.at = next_message(m, peer, true, 0)};
        m->receives[peer] = (struct stream){.at = next_message(m, peer, false, 0)};
    }
    return true;
}

static bool is_whole(const struct stream *s, const struct mpi_message *message) {
    return s->done == (int64_t)sizeof s->head + message->bytes;
}

/* Both: bytes moved now, 0 for none, -1 when the other side is gone. */
static int64_t send_some(int fd, struct stream *s, const struct mpi_message *message) {
    const int64_t head = sizeof s->head;
    s->head = (struct head){HEAD_MAGIC, message->bytes};
    const char *const from = s->done < head ? (const char *)&s->head + s->done
                                            : (const char *)message->data + (s->done - head);
    if (s->done < head && message->bytes > 0)
        return socket_send_more(fd, from, (size_t)(head - s->done));
    const int64_t left = (s->done < head ? head : head + message->bytes) - s->done;
    return socket_send(fd, from, (size_t)left);
}

static int64_t receive_some(int fd, struct stream *s, const struct mpi_message *message) {
    const int64_t head = sizeof s->head;
    char *const into =
        s->done < head ? (char *)&s->head + s->done : (char *)message->data + (s->done - head);
    const int64_t left = (s->done < head ? head : head + message->bytes) - s->done;
    return socket_receive(fd, into, (size_t)left);
}

/* A head that has just become whole must say what is expected. */
static bool head_fits(const struct stream *s, const struct mpi_message *message,
                      char why[MPI_MODULE_TEXT]) {
    if (s->done != (int64_t)sizeof s->head) return true;
    if (s->head.magic == HEAD_MAGIC && s->head.bytes == message->bytes) return true;
    snprintf(why, MPI_MODULE_TEXT,
             "rank %lld sends %lld bytes where %lld are expected: all ranks must run the same "
             "plimsoll-engine with the same files",
             (long long)message->peer, (long long)s->head.bytes, (long long)message->bytes);
    return false;
}

/* As far as the connection goes now. False: `why` says what is wrong. */
static bool move(struct socket_mover *m, int64_t peer, bool sends, char why[MPI_MODULE_TEXT]) {
    struct stream *const s = sends ? &m->sends[peer] : &m->receives[peer];
    const int fd = m->links.fds[peer];
    while (s->at < m->count) {
        const struct mpi_message *const message = &m->messages[s->at];
        const int64_t moved = sends ? send_some(fd, s, message) : receive_some(fd, s, message);
        if (moved < 0 && !m->gone_ns[peer]) m->gone_ns[peer] = clock_steady_ns();
        if (moved <= 0) return true;
        s->done += moved;
        if (!sends && !head_fits(s, message, why)) return false;
        if (!is_whole(s, message)) continue;
        *s = (struct stream){.at = next_message(m, peer, sends, s->at + 1)};
    }
    return true;
}

static bool is_busy(const struct socket_mover *m, int64_t peer) {
    return m->sends[peer].at < m->count || m->receives[peer].at < m->count;
}

/* A closed connection whose rank lives, or one that nobody answers at the other end. The host
 * channel speaks first, if it can: its words say more. */
static bool is_broken(struct socket_mover *m, int64_t peer, char why[MPI_MODULE_TEXT]) {
    const int64_t gone_ns = m->gone_ns[peer];
    const int64_t silent_ms = gone_ns ? (clock_steady_ns() - gone_ns) / 1000000
                                      : socket_unanswered_ms(m->links.fds[peer]);
    if (silent_ms <= m->silence_ms + GRACE_MS) return false;
    snprintf(why, MPI_MODULE_TEXT,
             gone_ns ? "its connection has been closed for %.1f s"
                     : "its machine has not answered for %.1f s",
             (double)silent_ms / 1000);
    return true;
}

static bool find_broken(struct socket_mover *m, int64_t *late, char why[MPI_MODULE_TEXT]) {
    const int64_t now = clock_steady_ns();
    if ((now - m->looked_ns) / 1000000 < LOOK_MS) return false;
    m->looked_ns = now;
    for (int64_t peer = 0; peer < m->links.world; peer++) {
        if (!is_busy(m, peer) || !is_broken(m, peer, why)) continue;
        *late = peer;
        return true;
    }
    return false;
}

bool socket_mover_test(void *state, bool *done, int64_t *late, char why[MPI_MODULE_TEXT]) {
    struct socket_mover *const m = state;
    *done = true;
    for (int64_t peer = 0; peer < m->links.world; peer++) {
        if (!is_busy(m, peer)) continue;
        *late = peer;
        if (!move(m, peer, true, why) || !move(m, peer, false, why)) return false;
        if (is_busy(m, peer)) *done = false;
    }
    for (int64_t peer = 0; !*done && peer < m->links.world; peer++) {
        if (is_busy(m, peer)) *late = peer;
    }
    return *done || !find_broken(m, late, why);
}

void socket_mover_rest(void *state) {
    struct socket_mover *const m = state;
    nfds_t used = 0;
    for (int64_t peer = 0; peer < m->links.world; peer++) {
        if (!is_busy(m, peer) || m->gone_ns[peer]) continue;
        const short wanted = (short)((m->sends[peer].at < m->count ? POLLOUT : 0) |
                                     (m->receives[peer].at < m->count ? POLLIN : 0));
        m->fds[used++] = (struct pollfd){.fd = m->links.fds[peer], .events = wanted};
    }
    (void)poll(m->fds, used, REST_MS);
}
