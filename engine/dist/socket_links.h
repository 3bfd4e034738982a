/* socket_links.h - one connection between every two ranks, for device data where there is no MPI.
 *
 * Made all at once when a run starts, so that two machines that cannot talk are named before any
 * work. Only processes that got the secret through the host channel (wire.h) are let in. */
#ifndef PLIMSOLL_ENGINE_DIST_SOCKET_LINKS_H
#define PLIMSOLL_ENGINE_DIST_SOCKET_LINKS_H

#include "engine/dist/comm.h"

struct links {
    int64_t rank, world;
    int *fds; /* [world]; -1 for the own place */
};
/* All ranks call it; it fails on all of them or on none. Caller frees with links_close, also after
 * an error. STATUS_LOST as comm says; STATUS_UNSUPPORTED where two ranks cannot reach each other
 * within a minute. */
enum status links_open(struct links *out, struct comm *c, bool elsewhere, struct err *e);
void links_close(struct links *l);

#endif
