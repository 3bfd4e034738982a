/* attach.h - what attaching a device to the ranks, opening groups of them and exchanging share:
 * deciding alike, and the books.
 *
 * Internal to engine/dist. */
#ifndef PLIMSOLL_ENGINE_DIST_ATTACH_H
#define PLIMSOLL_ENGINE_DIST_ATTACH_H

#include "engine/dist/group.h"

/* What a rank finds out alone is told to all before anybody goes on: the first failure of any rank,
 * with its name in front, or STATUS_OK on all of them. `mine` and *e are this rank's. */
enum status comm_agree(struct comm *c, enum status mine, struct err *e);
/* Books an exchange of a buffer of so many bytes. A group of one exchanges nothing. */
void comm_count(const struct comm_group *g, enum traffic_kind kind, int64_t bytes);

#endif
