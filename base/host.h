/* host.h - the memory of this machine and of this process, as Linux tells it.
 *
 * In a container the bounds are those of its control group: that is where the process dies. What
 * cannot be read is -1, never 0: an unknown number must not look like an empty one. */
#ifndef PLIMSOLL_BASE_HOST_H
#define PLIMSOLL_BASE_HOST_H

#include <stdint.h>

struct host_memory {
    int64_t total;     /* of the machine, or the limit of the control group when that is lower */
    int64_t available; /* what may still be taken before something has to give */
};
struct host_memory host_memory(void);

/* Resident bytes of this process. */
int64_t host_resident(void);
/* Resident bytes of another process that are its alone, without files that it has mapped: what the
 * machine would have back at its end. 0 when it is gone. */
int64_t host_private_of(int64_t pid);
/* Most bytes that this process may lock in memory; -1 also when there is no limit. */
int64_t host_lock_limit(void);

#endif
