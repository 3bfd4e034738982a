/* mirror.h - sums and exchanges of device memory that only the host can pass on: by way of a copy
 * there.
 *
 * For ranks that share a GPU. Slow, and the same numbers as on the CPU. */
#ifndef PLIMSOLL_ENGINE_DIST_MIRROR_H
#define PLIMSOLL_ENGINE_DIST_MIRROR_H

#include "engine/dist/group.h"

/* Host memory that holds a copy of device memory. */
struct mirror {
    struct device *device;
    void *data;                  /* the device's, `bytes` of it */
    void *host;                  /* the copy */
    struct comm_scratch scratch; /* host memory, for the sum */
    int64_t bytes;
};
/* Waits for the device and copies. Caller closes, also after an error. */
enum status mirror_open(struct mirror *m, struct device *device, void *data, int64_t bytes,
                        struct err *e);
/* scratch_bytes: what the sum wants beside it. */
void mirror_add_scratch(struct mirror *m, int64_t scratch_bytes);
/* The copy goes back, if status says that it is right. */
enum status mirror_close(struct mirror *m, enum status status, struct err *e);

#endif
