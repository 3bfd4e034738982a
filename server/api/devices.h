/* devices.h - what the engine says one can compute on, kept for some seconds.
 *
 * A page that is opened often, or by many, must not start an engine each time. */
#ifndef PLIMSOLL_SERVER_API_DEVICES_H
#define PLIMSOLL_SERVER_API_DEVICES_H

#include "base/json.h"

struct devices_known;

struct devices_known *devices_known_new(void);
void devices_known_free(struct devices_known *known);

/* The engine's list of devices, at most `age_ms` old. JSON null when the engine does not answer.
 * Caller frees with cJSON_Delete. */
cJSON *devices_list(struct devices_known *known, const char *engine, int64_t age_ms);

/* Bytes of a device's memory (cpu: the machine's), -1 when it is not known. The engine is asked
 * once, since that never changes; where it does not answer, once a minute. Any thread. */
int64_t devices_total(struct devices_known *known, const char *engine, const char *device);

#endif
