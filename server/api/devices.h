/* devices.h - what the engine says one can compute on, kept for some seconds.
 *
 * A page that is opened often, or by many, must not start an engine each time. */
#ifndef PLIMSOLL_SERVER_API_DEVICES_H
#define PLIMSOLL_SERVER_API_DEVICES_H

struct devices_known;

struct devices_known *devices_known_new(void);
void devices_known_free(struct devices_known *known);

#endif
