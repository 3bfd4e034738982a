/* null.h - the device that computes nothing. Private to kernels.
 *
 * The planner runs the engine on it to learn what memory a run will need, for a machine that need
 * not be there. */
#ifndef PLIMSOLL_KERNELS_NULL_H
#define PLIMSOLL_KERNELS_NULL_H

#include "kernels/device.h"

/* Makes `device` a null device that plans for `kind`. */
enum status null_device_init(struct device *device, enum device_kind kind, struct err *e);
/* Its operations, for a device that is to compute nothing for a while (device_mute). */
const struct device_ops *null_device_table(void);

#endif
