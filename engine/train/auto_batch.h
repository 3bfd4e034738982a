/* auto_batch.h - per_device_train_batch_size "auto": as many rows at a time as fit.
 *
 * What a step learns from must not depend on how much memory there is, so with "auto"
 * gradient_accumulation_steps alone says the rows of a step on each device, and they are cut into
 * the fewest equal micro-batches that fit. Only where it is 1 the step itself is as large as fits,
 * at most AUTO_ROWS_MAX rows. What was found is kept in the run directory, so that resuming
 * trains the same batches. */
#ifndef PLIMSOLL_ENGINE_TRAIN_AUTO_BATCH_H
#define PLIMSOLL_ENGINE_TRAIN_AUTO_BATCH_H

#include "engine/train/plan_ranks.h"

enum { AUTO_ROWS_MAX = 64 };

/* Sets both keys of the spec, and cuts the corpus (if there is one) accordingly; the layout's
 * micro_rows follow. STATUS_OOM when not even one row fits, with what it needs. */
enum status auto_batch_find(struct spec *spec, struct layout *layout,
                            const struct plan_subject *subject, int64_t capacity, struct err *e);

/* Keeps what was found in a run directory; and takes it up: *found is false when there is nothing.
 */
enum status auto_batch_keep(const struct spec *spec, const char *folder, struct err *e);
enum status auto_batch_recall(struct spec *spec, const char *folder, bool *found, struct err *e);

#endif
