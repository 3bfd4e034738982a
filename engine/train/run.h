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

/* The same run on a device that computes nothing: its books, step by step, without its results.
 * Losses are zero, nothing but events is written, and the device need not be there (nor its memory:
 * memory.cap is all there is). Allocations are those of the real run, in their order; only samples
 * may be longer, because a model that computes nothing never ends a text. */
enum status run_rehearse(const char *folder, bool (*stop)(void), struct err *e);

#endif
