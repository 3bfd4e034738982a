/* remember.h - which layout a job needed in the end, so that its next run on the same device begins
 * with it instead of finding it again by running out of memory.
 *
 * One small file a (spec, device) in the cache folder (base/cache.h). It may be lost or stale at
 * any time: it is only a proposal, which is planned before it is used. */
#ifndef PLIMSOLL_ENGINE_TRAIN_REMEMBER_H
#define PLIMSOLL_ENGINE_TRAIN_REMEMBER_H

#include "engine/train/layout.h"
#include "kernels/device.h"

/* True, and the layout's fields changed, if there is one. */
bool remember_find(const struct spec *spec, const struct device *device, struct layout *layout);
/* What cannot be written is not remembered. */
void remember_keep(const struct spec *spec, const struct device *device,
                   const struct layout *layout);

#endif
