/* support_recorder.h - graphs on the CPU: a device whose operations are written down and played
 * back, so that whatever a graph would bake in is really baked in.
 *
 * The CPU device has no graphs. The recorder takes its place in front of it: while capturing, each
 * operation's arguments are copied into a list and nothing is computed; launching goes through the
 * list. */
#ifndef PLIMSOLL_TESTS_SUPPORT_RECORDER_H
#define PLIMSOLL_TESTS_SUPPORT_RECORDER_H

#include "kernels/device.h"

struct recorder {
    struct device_ops ops; /* first: the recorder is found again by it */
    const struct device_ops *real;
    struct recording *current; /* NULL: operations are computed */
    int64_t computed;          /* operations asked for one by one */
    int64_t alive;             /* graphs not freed */
    int64_t fail_after;        /* a capture fails at its operation of this number; 0: never */
};

/* Every operation goes through *r from now on, and device->graphs is set. Remove it before the
 * device is closed. */
void recorder_install(struct recorder *r, struct device *device);
void recorder_remove(struct recorder *r, struct device *device);

#endif
