/* outcome.h - what the end of a rank means for its job. A pure function, so that every case can be
 * tested.
 *
 * Two witnesses: the last `done` or `error` event of this attempt, which also speaks when the
 * server was not there to see the process end; and the way the process ended. The event is believed
 * first, because it was written on purpose. */
#ifndef PLIMSOLL_SERVER_RUN_OUTCOME_H
#define PLIMSOLL_SERVER_RUN_OUTCOME_H

#include "base/json.h"
#include "server/run/process.h"

enum outcome {
    OUTCOME_SUCCEEDED,
    OUTCOME_STOPPED, /* in good order, after a checkpoint */
    OUTCOME_FAILED,  /* it said so itself: starting again would fail again */
    OUTCOME_CRASHED  /* starting again continues from the last checkpoint */
};
/* `event` is the done or error event, or NULL. */
enum outcome outcome_of(const cJSON *event, struct process_end end);

/* What the supervisor does then. `wish` is the user's (NULL | "cancel" | "pause"). */
enum verdict { VERDICT_SUCCEED, VERDICT_FAIL, VERDICT_CANCEL, VERDICT_PAUSE, VERDICT_RESTART };
/* `crashes` counts the ends in a row that nobody wished for and that made no progress, this one
 * included. */
enum { CRASHES_MAX = 3 };
enum verdict verdict_of(enum outcome outcome, const char *wish, int64_t crashes);

/* The sentence for the way a process ended, e.g. "killed by signal 9 (Killed)". Returns `buffer`.
 */
const char *process_end_text(struct process_end end, char buffer[96]);

#endif
