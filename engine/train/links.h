/* links.h - how long ranks take to exchange what they were counted to exchange.
 *
 * The books are comm->traffic (engine/dist/comm.h), which planned worlds keep too; the speeds are
 * a table, measured for the cards that were at hand and published for all others, which is always
 * said. Ring algorithms, as NCCL uses for large buffers: of n members each sends 2 (n - 1) / n of
 * a buffer that all add up, (n - 1) / n of one that is gathered or scattered (Patarasu and Yuan
 * 2009); a message goes once. An estimate, like cost.h. */
#ifndef PLIMSOLL_ENGINE_TRAIN_LINKS_H
#define PLIMSOLL_ENGINE_TRAIN_LINKS_H

#include "base/json.h"
#include "engine/dist/comm.h"

/* What one rank sends in one direction while it receives as much. Zeroed: unknown. */
struct link_speed {
    char name[64];           /* "NVLink", "InfiniBand 400 Gb/s" */
    double bytes_per_second; /* reached, not promised */
    double hop_seconds;      /* from one member to the next */
    const char *from;        /* "measured"; "published", times what a measured one reached; or
                                "assumed" */
};

struct links {
    struct link_speed node;    /* between ranks of one machine */
    struct link_speed network; /* of each rank to other machines */
    int64_t ranks_per_node;    /* ranks are numbered machine by machine */
};

/* Links of ranks on cards of this name (as in cost.h: NULL or unknown cards have PCI Express, "cpu"
 * shared memory), per_node of them on a machine, and a network as the spec key parallel.network
 * names it; "auto" is what machines with such cards usually have. */
struct links links_find(const char *card, const char *network, int64_t per_node);
/* Machines that this group lies on. */
int64_t links_nodes(const struct links *links, const struct comm_traffic *group);
/* Seconds of one row of the books: all its bytes and calls, beside computing or not. */
double links_seconds(const struct links *links, const struct comm_traffic *row);

/* Books of some part of a step. */
struct traffic_book {
    struct comm_traffic rows[COMM_TRAFFIC_MAX];
    int count;
};
/* Everything since `then` (zeroed: everything). */
struct traffic_book traffic_since(const struct comm *comm, const struct traffic_book *then);

/* Seconds of a book: `plain` adds to the computing, `aside` runs beside it. */
struct exchange_time {
    double plain, aside;
    double across; /* of both: between machines */
    double bytes;  /* that one rank sends */
};
struct exchange_time links_time(const struct links *links, const struct traffic_book *book);

#endif
