/* device_books.h - of what is used on a device: how much is ours, and how much is somebody else's.
 *
 * By our own books, never by process ids: in a container those are other ones, and the list of the
 * driver is empty. What was used before this process opened the device belongs to others; what is
 * added until the first steps are done and is not the arena's is our overhead (context, kernels,
 * libraries). From then on whatever is neither is somebody else's. */
#ifndef PLIMSOLL_ENGINE_TRAIN_DEVICE_BOOKS_H
#define PLIMSOLL_ENGINE_TRAIN_DEVICE_BOOKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/host.h"

struct session;

/* Zeroed: nothing is known. */
struct device_books {
    int64_t before; /* used on the device before we opened it */
    bool begun, before_known;
    int64_t looks;    /* so far */
    int64_t overhead; /* outside arena and graphs, as last measured; see OVERHEAD_LOOKS */
    /* Ranks of one run may share a device: what they hold there is not somebody else's. */
    uint64_t place;         /* which device this is, all over the world; 0: not known */
    int64_t held;           /* of this rank there, as last looked at */
    int64_t ours_elsewhere; /* of the run's other ranks there */
    bool shared;            /* there are, or may be, such ranks */
};

/* Bytes; -1 where unknown. */
struct device_view {
    int64_t used, total, overhead, others;
    int64_t communication;   /* the part of overhead that NCCL took */
    struct host_memory host; /* and the host's, which is read anyway */
    int64_t resident;        /* of this process */
};

/* Before the device "cuda:N" is opened; on others it does nothing. */
void device_books_begin(struct device_books *books, const char *device);
/* Finds out which device it is, once it is open, and what is held there already. */
enum status device_books_join(const struct session *s, struct err *e);
/* What each of the run's ranks tells the others. */
struct device_share {
    uint64_t place;
    int64_t held;
};
struct device_share device_books_share(const struct device_books *books);
/* The shares [world] of all ranks, this one's at `rank` among them. */
void device_books_hear(struct device_books *books, const struct device_share *shares, int64_t world,
                       int64_t rank);
/* What the books of a session say now. On the CPU the device is the host's memory and the overhead
 * what the process has beside the arena. STATUS_DEVICE if the device does not answer. */
enum status device_books_look(const struct session *s, struct device_view *out, struct err *e);

#endif
