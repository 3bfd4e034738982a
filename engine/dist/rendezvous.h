/* rendezvous.h - how the ranks of a run find rank 0: through a file in the run directory.
 *
 * ranks.json there: {"addresses","machine","port","token","world"}, readable by its owner alone. It
 * is for the ranks of one start; the token in it tells them from those of the start before, whose
 * file may still lie there, and from everybody else. */
#ifndef PLIMSOLL_ENGINE_DIST_RENDEZVOUS_H
#define PLIMSOLL_ENGINE_DIST_RENDEZVOUS_H

#include "engine/dist/comm.h"
#include "engine/dist/frame.h"

/* Rank 0: listens, for this machine alone where all ranks are on it, and writes the file. */
enum status rendezvous_open(int *listener, char token[TOKEN_BYTES], const char *folder,
                            const struct comm_place *place, struct err *e);
/* Who this rank is. */
struct hello rendezvous_hello(const struct comm_place *place, const char token[TOKEN_BYTES]);
/* Everyone is there: the file has done its work. */
void rendezvous_close(const char *folder);
/* Any other rank: one attempt to reach rank 0 by what the file says now; `attempt` counts up and
 * chooses the address. STATUS_NOT_FOUND or STATUS_IO when it is not there (yet). *peer is then
 * connected and said hello to. */
enum status rendezvous_try(struct peer *peer, const char *folder, const struct comm_place *place,
                           int64_t attempt, struct err *e);

#endif
