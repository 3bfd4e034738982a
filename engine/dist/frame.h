/* frame.h - messages over one connection between two ranks: a fixed head and a payload.
 *
 * Nothing waits: what cannot be sent yet stays in `out`, what is not whole yet stays in `in`. All
 * ranks of a run are the same program on the same kind of machine, so numbers travel as they
 * are. */
#ifndef PLIMSOLL_ENGINE_DIST_FRAME_H
#define PLIMSOLL_ENGINE_DIST_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"

enum frame_kind {
    FRAME_HELLO = 1, /* a rank to rank 0: struct hello */
    FRAME_WELCOME,   /* and back, when all have come: struct hello */
    FRAME_BEAT,      /* a sign of life */
    FRAME_PART,      /* a rank's record of gather `number` */
    FRAME_ALL,       /* all records of it */
    FRAME_LOST,      /* rank `number` is lost: struct loss */
    FRAME_BYE,       /* the sender leaves in good order */
};

struct frame {
    uint32_t magic, kind;
    int64_t number, bytes; /* bytes of payload */
};

enum { TOKEN_BYTES = 16, HOST_NAME_MAX_BYTES = 64 };
struct hello {
    char token[TOKEN_BYTES]; /* of this start of the run: nobody else has it */
    int64_t rank, world, pid;
    char host[HOST_NAME_MAX_BYTES];
};

/* One end of a connection. Zeroed with fd -1 means none. */
struct peer {
    int fd;
    int64_t rank, pid;
    char host[HOST_NAME_MAX_BYTES];
    bool left; /* it said FRAME_BYE */
    int64_t heard_ns;
    struct str in, out;
    size_t out_used;
};
void peer_release(struct peer *p);
/* Queues a message; peer_flush sends. */
void peer_put(struct peer *p, enum frame_kind kind, int64_t number, const void *payload,
              int64_t bytes);
/* Send and receive what goes at once; false: the other side is gone. */
bool peer_flush(struct peer *p);
bool peer_fill(struct peer *p);
/* The next whole message: 1, with *payload pointing into the peer until peer_done; 0 when there is
 * none yet; -1 for what is no message, or has more than bytes_max of payload. */
int peer_next(const struct peer *p, int64_t bytes_max, struct frame *frame, const char **payload);
/* Forgets the message that peer_next gave. */
void peer_done(struct peer *p, const struct frame *frame);

#endif
