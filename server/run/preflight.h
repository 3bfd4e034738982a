/* preflight.h - what on this machine will hurt a job, said before one starts.
 *
 * A pure function of what the machine tells, so that every finding has a test on any machine.
 * Amounts are bytes; -1 is unknown and leads to no finding. */
#ifndef PLIMSOLL_SERVER_RUN_PREFLIGHT_H
#define PLIMSOLL_SERVER_RUN_PREFLIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

struct preflight {
    const char *data_folder;
    int64_t disk_free;
    int64_t shm_total;
    const char *shm_failure; /* why a file of SHM_PROBE_BYTES could not be had there, or NULL */
    int64_t memory_total, memory_available; /* of the host, or of the container */
    int64_t lock_limit;                     /* bytes that a process may lock; -1: any number */
    bool wsl, container;
    int64_t running;    /* jobs of this server that run now */
    const cJSON *cards; /* the engine's list of devices, or NULL: not known */
};
/* What a connection between two ranks wants in /dev/shm, and a little. */
enum { SHM_PROBE_BYTES = 10 << 20 };

/* Appends {"level","code","message"} for each finding, the worst first. Levels: error (jobs will
 * fail), warn (some will), info. */
void preflight_judge(const struct preflight *p, cJSON *findings);

#endif
