/* monitor.h - the machine under the server: memory, disk, /dev/shm, processors, and what is worth
 * a warning.
 *
 * GPUs are not looked at here; the engine reports what it uses in its memory events. */
#ifndef PLIMSOLL_SERVER_RUN_MONITOR_H
#define PLIMSOLL_SERVER_RUN_MONITOR_H

#include "base/json.h"

/* Adds memory, disk, shm ({"total","free"} in bytes), devices and findings
 * ({"level","code","message"}) to `out`. In a container the memory is what its control group may
 * use. What cannot be read is left out. */
void monitor_add(cJSON *out, const char *data_folder);

#endif
