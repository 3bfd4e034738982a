/* run.h - a whole run in a run directory (engine/rundir.h): load, plan, train, evaluate,
 * checkpoint, resume, export.
 *
 * Calling it again in the same directory continues where the last call ended. */
#ifndef PLIMSOLL_ENGINE_TRAIN_RUN_H
#define PLIMSOLL_ENGINE_TRAIN_RUN_H

#include <stdbool.h>

#include "base/json.h"
#include "engine/events.h"

/* Runs until done. stop() is asked after every step: once it is true, a checkpoint
 * is written, and the result is STATUS_INTERRUPTED. Every failure has been written as an `error`
 * event when this returns. */
enum status run_execute(const char *folder, bool (*stop)(void), bool echo, struct err *e);

#endif
