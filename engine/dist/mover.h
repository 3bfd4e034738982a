/* mover.h - bytes of device memory from rank to rank, through the MPI module, with deadlines.
 *
 * Nothing here knows what the bytes are. */
#ifndef PLIMSOLL_ENGINE_DIST_MOVER_H
#define PLIMSOLL_ENGINE_DIST_MOVER_H

#include "engine/dist/comm.h"
#include "engine/dist/mpi_module.h"

/* Loads the module from beside the program and joins MPI's world, which must be the place's. Caller
 * frees with mover_close. */
enum status mover_open(struct mover **out, const struct comm_place *place, struct err *e);
/* in_order: all ranks come here, and MPI is left as it wants to be left; else only forgotten. */
void mover_close(struct mover *m, bool in_order);
/* All these messages, started together; returns when they are done. STATUS_LOST as comm says. */
enum status mover_exchange(struct comm *c, const struct mpi_message *messages, int64_t count,
                           struct err *e);

#endif
