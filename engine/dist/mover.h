/* mover.h - bytes of device memory from rank to rank, with deadlines: through the MPI module where
 * MPI has started the ranks, and else over TCP connections of our own.
 *
 * Nothing here knows what the bytes are. */
#ifndef PLIMSOLL_ENGINE_DIST_MOVER_H
#define PLIMSOLL_ENGINE_DIST_MOVER_H

#include "engine/dist/comm.h"
#include "engine/dist/mpi_module.h"

/* Whether this rank could go through MPI: MPI has started it, and the module is beside the program.
 * It counts only where all ranks could. */
bool mover_can_mpi(const struct comm_place *place);
/* mpi, the same on all ranks: loads the module and joins MPI's world, which must be the place's;
 * else connects the ranks. Caller frees with mover_close, also after an error. */
enum status mover_open(struct mover **out, struct comm *c, const struct comm_place *place, bool mpi,
                       struct err *e);
/* in_order: all ranks come here, and MPI is left as it wants to be left; else only forgotten. */
void mover_close(struct mover *m, bool in_order);
/* All these messages, of any length, started together; returns when they are done. Long ones travel
 * in parts of MPI_MESSAGE_MAX, in order. STATUS_LOST as comm says. */
enum status mover_exchange(struct comm *c, const struct mpi_message *messages, int64_t count,
                           struct err *e);

#endif
