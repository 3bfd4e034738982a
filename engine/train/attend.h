/* attend.h - being there for ranks that somebody else starts: the appliance's process of a job
 * whose parallel.launcher is external.
 *
 * Everything is known from the run directory: which ranks hold their locks, and the wish to
 * stop. */
#ifndef PLIMSOLL_ENGINE_TRAIN_ATTEND_H
#define PLIMSOLL_ENGINE_TRAIN_ATTEND_H

#include <stdbool.h>

#include "base/err.h"

/* Says on stderr how to start the ranks, waits until they have come and have all ended again; how
 * they ended is in their events. STATUS_INTERRUPTED when a stop was wished for and no rank is
 * there. `stop` is asked several times a second. */
enum status run_attend(const char *folder, bool (*stop)(void), struct err *e);

#endif
