/* plan_print.h - a plan as text: verdict first, a bar for each phase, then what would make it fit.
 *
 * Pure functions from the JSON of POST /v1/plan to text. */
#ifndef PLIMSOLL_SERVER_CLI_PLAN_PRINT_H
#define PLIMSOLL_SERVER_CLI_PLAN_PRINT_H

#include <stdbool.h>

#include "base/json.h"
#include "base/str.h"

/* Appends the whole report; `colour`: escape sequences, else letters in the bars. */
void plan_print(struct str *out, const cJSON *plan, bool colour);
/* True if the plan says that the run fits, or cannot say. */
bool plan_is_fine(const cJSON *plan);

#endif
