/* monitor.h - the machine under the server: memory, disk, /dev/shm, processors, and what is worth
 * a warning before a job starts (preflight.h).
 *
 * GPUs are not looked at here; the engine tells what they are (api/devices.h). */
#ifndef PLIMSOLL_SERVER_RUN_MONITOR_H
#define PLIMSOLL_SERVER_RUN_MONITOR_H

#include "base/json.h"

struct monitor_view {
    const char *data_folder;
    const cJSON *cards; /* the engine's devices, or NULL */
    int64_t running;    /* jobs of this server that run now */
};
/* Adds memory, disk, shm ({"total","free"} in bytes), lock_limit, devices and findings
 * ({"level","code","message"}) to `out`. In a container the memory is what its control group may
 * use. What cannot be read is left out, or null. */
void monitor_add(cJSON *out, const struct monitor_view *view);

#endif
