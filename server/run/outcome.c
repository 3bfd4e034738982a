/* outcome.c - what the end of a rank means for its job.
 *
 * A user's cancel wins over everything but a run that had succeeded already; a failure that the
 * rank itself explained is never tried again. */
#include "server/run/outcome.h"

#include <stdio.h>
#include <string.h>

#include "engine/events.h"

static bool status_is_lost(const cJSON *event) {
    const char *name = NULL;
    struct err ignored = {0};
    (void)json_get_string(event, "status", &name, &ignored);
    return name && strcmp(name, status_name(STATUS_LOST)) == 0;
}

enum outcome outcome_of(const cJSON *event, struct process_end end) {
    const char *kind = NULL, *how = NULL;
    struct err ignored = {0};
    if (event) {
        (void)json_get_string(event, "kind", &kind, &ignored);
        (void)json_get_string(event, "outcome", &how, &ignored);
    }
    if (kind && strcmp(kind, event_kind_name(EVENT_ERROR)) == 0) {
        /* Another rank died or was stopped: together they go on from the last checkpoint. */
        return status_is_lost(event) ? OUTCOME_CRASHED : OUTCOME_FAILED;
    }
    if (how && strcmp(how, "succeeded") == 0) return OUTCOME_SUCCEEDED;
    if (how && strcmp(how, "stopped") == 0) return OUTCOME_STOPPED;
    if (end.state == PROCESS_EXITED && end.exit_code == RUN_EXIT_STOPPED) return OUTCOME_STOPPED;
    const bool refused = end.state == PROCESS_EXITED &&
                         (end.exit_code == RUN_EXIT_FAILED || end.exit_code == RUN_EXIT_USAGE);
    return refused ? OUTCOME_FAILED : OUTCOME_CRASHED;
}

enum verdict verdict_of(enum outcome outcome, const char *wish, int64_t crashes) {
    if (outcome == OUTCOME_SUCCEEDED) return VERDICT_SUCCEED;
    if (wish && strcmp(wish, "cancel") == 0) return VERDICT_CANCEL;
    if (outcome == OUTCOME_FAILED) return VERDICT_FAIL;
    if (wish && strcmp(wish, "pause") == 0) return VERDICT_PAUSE;
    if (crashes > CRASHES_MAX) return VERDICT_FAIL;
    return VERDICT_RESTART;
}

const char *process_end_text(struct process_end end, char buffer[96]) {
    switch (end.state) {
    case PROCESS_SIGNALED:
        snprintf(buffer, 96, "killed by signal %d (%s)", end.exit_code, strsignal(end.exit_code));
        break;
    case PROCESS_EXITED: snprintf(buffer, 96, "ended with exit code %d", end.exit_code); break;
    default: snprintf(buffer, 96, "gone when the server came back");
    }
    return buffer;
}
