/* measure.h - the rates of a device that is here, measured once and kept.
 *
 * The file lies in the cache folder and is named after device, library, threads and precision, so a
 * machine that changes is measured again. */
#ifndef PLIMSOLL_ENGINE_TRAIN_MEASURE_H
#define PLIMSOLL_ENGINE_TRAIN_MEASURE_H

#include "engine/train/cost.h"

/* What the file is named after: a card's name, or processor, threads and library. */
const char *rates_name(const struct device *device, char buffer[RATES_NAME_MAX]);

/* Where something that was measured on a device of this name is kept. Caller frees *path. */
enum status measure_file(const char *what, const char *device, char **path, struct err *e);

/* Times the operations on buffers of its own (about 100 MiB, given back), in about a second. */
enum status rates_measure(struct rates *rates, struct device *device, struct err *e);
/* Keeps them under the device's name. */
enum status rates_keep(const struct rates *rates, enum precision precision, struct err *e);
/* What was kept; STATUS_NOT_FOUND when nothing was. */
enum status rates_recall(struct rates *rates, const char *name, enum precision precision,
                         struct err *e);

#endif
