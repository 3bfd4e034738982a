/* pressure.h - memory made short on purpose, for tests: on any machine, at a chosen moment.
 *
 *   PLIMSOLL_FAIL_RESERVATION=N[:RANK]  the N-th reservation (arena_reserve, or growth) fails, once
 *   PLIMSOLL_FAIL_ALLOCATION=N[:RANK]   the N-th arena_alloc fails, once
 *   PLIMSOLL_PRETEND_OTHERS=FILE        FILE holds the bytes that others hold on the device: read
 *                                       at every reservation, and taken from the capacity
 *
 * Others are there from the beginning; counting begins with pressure_read, which a run calls when
 * training begins. Without :RANK it is rank 0 that fails. Not for real use: nothing here is read
 * unless the variables are set. */
#ifndef PLIMSOLL_ENGINE_MEMORY_PRESSURE_H
#define PLIMSOLL_ENGINE_MEMORY_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct pressure {
    int64_t reservation, allocation; /* so many until one fails; 0: none will */
    const char *others_path;         /* NULL: nobody is pretended; borrowed from the environment */
    int64_t others;                  /* as last read */
};

/* Nobody fails yet; others are pretended if they are to be. */
struct pressure pressure_of_others(void);
/* STATUS_INVALID names the variable that cannot be read. */
enum status pressure_read(struct pressure *p, int64_t rank, struct err *e);
/* Counts one down; true: this one fails. */
bool pressure_hits(int64_t *left);
/* Reads the file again; what cannot be read counts as 0. Returns the bytes. */
int64_t pressure_others(struct pressure *p);

#endif
