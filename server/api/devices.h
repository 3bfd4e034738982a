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

#endif
