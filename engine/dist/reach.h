/* reach.h - where a rank can be reached by the others, and trying it, address by address.
 *
 * A record of numbers and text, so that it travels as it is: in ranks.json and in gathers. The
 * variable PLIMSOLL_INTERFACE names the interfaces that the ranks shall use ("ib0" or "eth0,eth1");
 * without it all addresses of a machine are told and tried in turn, because which of them routes
 * from another machine only that machine can find out. */
#ifndef PLIMSOLL_ENGINE_DIST_REACH_H
#define PLIMSOLL_ENGINE_DIST_REACH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct reach {
    char machine[80];    /* socket_machine: who has the same may use the loopback address */
    char addresses[400]; /* numeric, separated by spaces, without the loopback address */
    int64_t port;
};
/* This process's own. elsewhere: some ranks may be on other machines; without it only the loopback
 * address is told. STATUS_NOT_FOUND if PLIMSOLL_INTERFACE names what is not here. */
enum status reach_fill(struct reach *out, bool elsewhere, int port, struct err *e);
/* One attempt to connect; `attempt` counts up from 0 and chooses the address. Caller closes *fd. */
enum status reach_try(int *fd, const struct reach *to, int64_t attempt, int timeout_ms,
                      struct err *e);

#endif
