/* mpi_module.h - the one door to MPI: a small shared module, loaded when this process is a rank.
 *
 * The program itself is not linked to MPI, so it starts where there is none. The module knows
 * nothing of the project's own: errors are text. It only moves bytes between pairs of ranks; sums
 * and orders are ours. One thread. */
#ifndef PLIMSOLL_ENGINE_DIST_MPI_MODULE_H
#define PLIMSOLL_ENGINE_DIST_MPI_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MPI_MODULE_VERSION = 1, MPI_MODULE_TEXT = 256, MPI_MESSAGE_MAX = 1 << 30 };
#define MPI_MODULE_SYMBOL "plimsoll_mpi_module"

/* Bytes to or from one rank, at most MPI_MESSAGE_MAX. Between two ranks messages arrive in the
 * order in which they were posted. */
struct mpi_message {
    int64_t peer;
    void *data;
    int64_t bytes;
    bool sends;
};

struct mpi_module {
    int version;
    /* Joins the world. False: `why` says what was wrong. */
    bool (*open)(void **state, int64_t *rank, int64_t *world, char why[MPI_MODULE_TEXT]);
    /* Leaves it in good order; waits for the others. */
    void (*close)(void *state);
    /* Starts all messages; the memory belongs to MPI until test says done. */
    bool (*post)(void *state, const struct mpi_message *messages, int count,
                 char why[MPI_MODULE_TEXT]);
    /* Looks once. Not done: *late is a rank that is still waited for. */
    bool (*test)(void *state, bool *done, int64_t *late, char why[MPI_MODULE_TEXT]);
};

#endif
