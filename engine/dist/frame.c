/* frame.c - see frame.h.
 *
 * The magic number tells another program that found an old port from a rank; the token in the first
 * message tells another run. */
#include "engine/dist/frame.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/socket.h"

enum { FRAME_MAGIC = 0x504c494d, RECEIVE_BYTES = 65536 };

void peer_release(struct peer *p) {
    socket_close(&p->fd);
    str_release(&p->in);
    str_release(&p->out);
    p->out_used = 0;
}

void peer_put(struct peer *p, enum frame_kind kind, int64_t number, const void *payload,
              int64_t bytes) {
    const struct frame frame = {
        .magic = FRAME_MAGIC, .kind = kind, .number = number, .bytes = bytes};
    str_append_bytes(&p->out, &frame, sizeof frame);
    if (bytes > 0) str_append_bytes(&p->out, payload, (size_t)bytes);
}

bool peer_flush(struct peer *p) {
    while (p->out_used < p->out.len) {
        const int64_t sent =
            socket_send(p->fd, p->out.data + p->out_used, p->out.len - p->out_used);
        if (sent < 0) return false;
        if (sent == 0) return true;
        p->out_used += (size_t)sent;
    }
    str_clear(&p->out);
    p->out_used = 0;
    return true;
}

bool peer_fill(struct peer *p) {
    char bytes[RECEIVE_BYTES];
    int64_t got;
    while ((got = socket_receive(p->fd, bytes, sizeof bytes)) > 0) {
        str_append_bytes(&p->in, bytes, (size_t)got);
        p->heard_ns = clock_steady_ns();
    }
    return got == 0;
}

int peer_next(const struct peer *p, int64_t bytes_max, struct frame *frame, const char **payload) {
    if (p->in.len < sizeof *frame) return 0;
    memcpy(frame, p->in.data, sizeof *frame);
    if (frame->magic != FRAME_MAGIC || frame->bytes < 0 || frame->bytes > bytes_max) return -1;
    if (p->in.len - sizeof *frame < (size_t)frame->bytes) return 0;
    *payload = p->in.data + sizeof *frame;
    return 1;
}

void peer_done(struct peer *p, const struct frame *frame) {
    const size_t used = sizeof *frame + (size_t)frame->bytes;
    memmove(p->in.data, p->in.data + used, p->in.len - used);
    str_truncate(&p->in, p->in.len - used);
}
