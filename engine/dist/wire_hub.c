/* wire_hub.c - messages: who comes, what came, and gathers that are whole.
 *
 * Rank 0 collects the records of one gather at a time. A rank can be at most one gather ahead of
 * another, because it needs everybody's record to go on; a record with any other number means that
 * the ranks do not make the same calls. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/socket.h"
#include "engine/dist/wire_internal.h"

void hub_accept(struct wire *w) {
    if (w->listener < 0) return;
    for (int i = 0; i < GUESTS_MAX; i++) {
        struct peer *const p = &w->guests[i];
        if (p->fd >= 0 && wire_ms_since(p->heard_ns, clock_steady_ns()) > GUEST_MS) peer_release(p);
        if (p->fd >= 0) continue;
        *p = (struct peer){.fd = socket_accept(w->listener), .heard_ns = clock_steady_ns()};
        if (p->fd < 0) return;
    }
}

static bool hello_is_ours(const struct wire *w, const struct frame *frame, const char *payload,
                          struct hello *hello) {
    if (frame->kind != FRAME_HELLO || frame->bytes != (int64_t)sizeof *hello) return false;
    memcpy(hello, payload, sizeof *hello);
    hello->host[HOST_NAME_MAX_BYTES - 1] = 0;
    if (memcmp(hello->token, w->token, TOKEN_BYTES) != 0) return false;
    return hello->rank > 0 && hello->rank < w->place.world && hello->world == w->place.world;
}

static void set_joined(struct wire *w) {
    pthread_mutex_lock(&w->mutex);
    w->joined = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

/* The last one has come: nobody else is let in. */
static void welcome_all(struct wire *w) {
    for (int64_t i = 1; i < w->place.world; i++) {
        if (w->peers[i].fd < 0) return;
    }
    const struct hello hello = rendezvous_hello(&w->place, w->token);
    for (int64_t i = 1; i < w->place.world; i++) {
        peer_put(&w->peers[i], FRAME_WELCOME, 0, &hello, sizeof hello);
    }
    socket_close(&w->listener);
    rendezvous_close(w->options.folder);
    set_joined(w);
}

static void greet(struct wire *w, struct peer *guest) {
    struct frame frame;
    struct hello hello;
    const char *payload = NULL;
    const bool here = peer_fill(guest);
    const int next = peer_next(guest, sizeof hello, &frame, &payload);
    if (next == 0 && here) return;
    if (next != 1 || !hello_is_ours(w, &frame, payload, &hello) || w->peers[hello.rank].fd >= 0) {
        peer_release(guest);
        return;
    }
    peer_done(guest, &frame);
    guest->rank = hello.rank;
    guest->pid = hello.pid;
    snprintf(guest->host, sizeof guest->host, "%s", hello.host);
    w->peers[hello.rank] = *guest;
    *guest = (struct peer){.fd = -1};
    welcome_all(w);
}

static void lose_unlike(struct wire *w, int64_t rank) {
    char text[ERR_TEXT_MAX];
    snprintf(text, sizeof text,
             "rank %lld does not make the same calls as the others: all ranks must run the same "
             "plimsoll-engine with the same files",
             (long long)rank);
    wire_lose(w, rank, STATUS_INTERNAL, text);
}

static void add_part(struct wire *w, int64_t rank, int64_t number, const char *data,
                     int64_t bytes) {
    if (number != w->number || w->filled[rank]) {
        lose_unlike(w, rank);
        return;
    }
    str_clear(&w->parts[rank]);
    if (bytes) str_append_bytes(&w->parts[rank], data, (size_t)bytes);
    w->filled[rank] = true;
    w->filled_count++;
    if (!w->first_ns) w->first_ns = clock_steady_ns();
}

static void set_result(struct wire *w, int64_t number, const char *data, size_t bytes) {
    pthread_mutex_lock(&w->mutex);
    w->result.number = number;
    str_clear(&w->result.data);
    if (bytes) str_append_bytes(&w->result.data, data, bytes);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

void wire_take_mine(struct wire *w) {
    struct str data = {0};
    pthread_mutex_lock(&w->mutex);
    const int64_t number = w->mine.number;
    const bool waits = number == w->number && !(wire_is_hub(w) && w->filled[0]);
    if (waits) str_append_bytes(&data, str_text(&w->mine.data), w->mine.data.len);
    pthread_mutex_unlock(&w->mutex);
    if (waits && wire_is_hub(w)) {
        add_part(w, 0, number, str_text(&data), (int64_t)data.len);
    } else if (waits) {
        peer_put(&w->peers[0], FRAME_PART, number, str_text(&data), (int64_t)data.len);
        w->number++; /* the next one to send */
    }
    str_release(&data);
}

void hub_finish_gather(struct wire *w) {
    if (!wire_is_hub(w) || w->filled_count < w->place.world || w->lost_ns) return;
    struct str all = {0};
    for (int64_t i = 0; i < w->place.world; i++) {
        if (w->parts[i].len == w->parts[0].len) continue;
        lose_unlike(w, i);
        return;
    }
    for (int64_t i = 0; i < w->place.world; i++) {
        str_append_bytes(&all, str_text(&w->parts[i]), w->parts[i].len);
        w->filled[i] = false;
    }
    for (int64_t i = 1; i < w->place.world; i++) {
        if (w->peers[i].fd >= 0)
            peer_put(&w->peers[i], FRAME_ALL, w->number, str_text(&all), (int64_t)all.len);
    }
    set_result(w, w->number, str_text(&all), all.len);
    w->number++;
    w->filled_count = w->first_ns = 0;
    str_release(&all);
}

static void hear_loss(struct wire *w, const struct frame *frame, const char *payload) {
    struct loss loss;
    if (frame->bytes != (int64_t)sizeof loss) return;
    memcpy(&loss, payload, sizeof loss);
    loss.text[sizeof loss.text - 1] = 0;
    if (loss.status <= STATUS_OK || loss.status >= STATUS_COUNT) loss.status = STATUS_INTERNAL;
    wire_lose(w, loss.rank, loss.status, loss.text);
}

static void hear_welcome(struct wire *w, struct peer *hub, const struct frame *frame,
                         const char *payload) {
    struct hello hello;
    if (frame->bytes != (int64_t)sizeof hello) return;
    memcpy(&hello, payload, sizeof hello);
    hub->pid = hello.pid;
    snprintf(hub->host, sizeof hub->host, "%.*s", HOST_NAME_MAX_BYTES - 1, hello.host);
    set_joined(w);
}

static void take_message(struct wire *w, struct peer *p, const struct frame *frame,
                         const char *payload) {
    switch (frame->kind) {
    case FRAME_WELCOME: hear_welcome(w, p, frame, payload); break;
    case FRAME_PART: add_part(w, p->rank, frame->number, payload, frame->bytes); break;
    case FRAME_ALL: set_result(w, frame->number, payload, (size_t)frame->bytes); break;
    case FRAME_LOST: hear_loss(w, frame, payload); break;
    case FRAME_BYE: p->left = true; break;
    default: break; /* a beat: that it came is all it says */
    }
}

static void read_peer(struct wire *w, struct peer *p) {
    const int64_t bytes_max = (int64_t)COMM_RECORD_MAX * (wire_is_hub(w) ? 1 : w->place.world);
    struct frame frame;
    const char *payload = NULL;
    const bool here = peer_fill(p);
    int next;
    while ((next = peer_next(p, bytes_max, &frame, &payload)) == 1) {
        take_message(w, p, &frame, payload);
        peer_done(p, &frame);
    }
    if (next < 0) lose_unlike(w, p->rank);
    if (!here) wire_lose_gone(w, p->rank);
}

void wire_read_all(struct wire *w) {
    for (int i = 0; i < GUESTS_MAX; i++) {
        if (w->guests[i].fd >= 0) greet(w, &w->guests[i]);
    }
    for (int64_t i = 0; i < w->place.world; i++) {
        if (w->peers[i].fd >= 0) read_peer(w, &w->peers[i]);
    }
}
