/* plan_ask.h - what `plimsoll-engine plan` answers.
 *
 * With a run directory it is the plan of a job that is about to start, and refuses what the run
 * would refuse. Without one it is a question: neither device nor weights nor data need be there. */
#ifndef PLIMSOLL_ENGINE_TRAIN_PLAN_ASK_H
#define PLIMSOLL_ENGINE_TRAIN_PLAN_ASK_H

#include "base/json.h"

/* args: SPEC [DIR] [--card NAME] [--measure] [--probe] [--by-name], NULL behind the last. Caller
 * frees *out with cJSON_Delete. */
enum status plan_ask(char **args, cJSON **out, struct err *e);

#endif
