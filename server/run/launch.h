/* launch.h - the command lines of the engine, and reading what it answers.
 *
 * The engine is the only judge of specs, data and memory; the server hands its words on. */
#ifndef PLIMSOLL_SERVER_RUN_LAUNCH_H
#define PLIMSOLL_SERVER_RUN_LAUNCH_H

#include "base/json.h"
#include "server/run/process.h"
#include "server/run/ranks.h"
#include "server/store/store.h"

/* Writes RUN/spec.json and starts `plimsoll-engine plan`, whose answer goes to RUN/plan.json. */
enum status launch_plan(const char *engine, const char *run, const char *spec,
                        struct rank_identity *process, struct err *e);
/* The plan after that process ended: caller frees. The engine's own error is handed on with its
 * status, text and param; a plan that does not fit, and cannot be made to with
 * memory.on_oom auto or ask, is STATUS_OOM with both figures. */
enum status launch_read_plan(const char *run, struct process_end end, char **plan, struct err *e);
/* What the run will change so that it fits, in sentences; nothing when it fits as asked. */
void launch_say_changes(const char *plan, struct str *out);
/* Starts what leads the ranks in the run directory (ranks.h). Its stderr, and that of all ranks
 * that it starts, is appended to rank.0.log. */
enum status launch_ranks(const char *engine, const char *run, const struct ranks_terms *terms,
                         struct rank_identity *process, struct err *e);
/* True for an error that is about this machine, where the ranks may be on others: they will plan
 * for theirs. */
bool launch_is_about_here(const struct ranks_terms *terms, const struct err *error);
/* The error in {"status","message","param"}: fills `out` and returns true if there is one. */
bool launch_read_error(const cJSON *error, struct err *out);
/* Sets result and fine_tuned_model of a job whose run is done. */
void launch_name_result(struct job_row *job);

#endif
