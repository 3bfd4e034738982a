/* balance.h - who holds up a step of several ranks: one sentence, from the newest step event.
 *
 * What a rank computes is told apart from its waiting, so that a stage of a pipeline that waits for
 * another one is not called slow. */
#ifndef PLIMSOLL_SERVER_API_BALANCE_H
#define PLIMSOLL_SERVER_API_BALANCE_H

#include "base/json.h"

/* Where a rank stands among those of a pipeline, as the job's spec has it. */
struct balance_stages {
    int64_t ranks, stages; /* stages 1: no pipeline */
};
/* NULL or a spec that says nothing: no pipeline. */
struct balance_stages balance_stages_of(const cJSON *spec);
/* The stage of a rank, from 0. */
int64_t balance_stage(const struct balance_stages *stages, int64_t rank);

/* {"rank","seconds","mean_of_others","ratio","cause","text"} of the rank that computes longest;
 * cause is "tokens", "stage", "device", or null where all compute about as long. JSON null where
 * the step has one rank, or waiting is not known. Caller frees. */
cJSON *balance_of_step(const cJSON *step, const struct balance_stages *stages);

#endif
