/* socket_mover.h - bytes of device memory from rank to rank over TCP: what moves them where no MPI
 * has started the ranks.
 *
 * Same words as the MPI module (mpi_module.h), and the same order: between two ranks messages
 * arrive as they were posted. Nothing but the system is needed. Internal to engine/dist. */
#ifndef PLIMSOLL_ENGINE_DIST_SOCKET_MOVER_H
#define PLIMSOLL_ENGINE_DIST_SOCKET_MOVER_H

#include "engine/dist/comm.h"
#include "engine/dist/mpi_module.h"

struct socket_mover;
/* Connects all ranks, as links_open. Caller frees with socket_mover_close, also after an error. */
enum status socket_mover_open(struct socket_mover **out, struct comm *c, bool elsewhere,
                              struct err *e);
/* These are the functions of struct mpi_module. test: false with *late set when that rank cannot be
 * reached any more. */
void socket_mover_close(void *state);
bool socket_mover_post(void *state, const struct mpi_message *messages, int count,
                       char why[MPI_MODULE_TEXT]);
bool socket_mover_test(void *state, bool *done, int64_t *late, char why[MPI_MODULE_TEXT]);
/* Sleeps until one of the messages can go on, or a little while. */
void socket_mover_rest(void *state);

#endif
