/* verdict.h - does a plan fit, and what would make it fit: remedies that leave learning alone, and
 * advice that a user follows himself.
 *
 * Every number in it comes from a plan of that very change. */
#ifndef PLIMSOLL_ENGINE_TRAIN_VERDICT_H
#define PLIMSOLL_ENGINE_TRAIN_VERDICT_H

#include "engine/train/advice.h"
#include "engine/train/remedy.h"

/* Adds "remedies" and "advice" to a plan's JSON, both lists; empty where nothing is needed or the
 * capacity (0) is unknown. Remedies are cumulative, each from the one before:
 * [{"remedy","text","peak","need_bytes","fits","cost","layout":{},"set":{}}], and
 * "fits_with_remedies". Advice:
 * [{"advice","text","set":{} or null,"need_bytes","fits","cost","with":["remedy"...]}]; need_bytes,
 * fits and cost are null for what cannot be planned, "refused" says why where the spec forbids it.
 * Errors as for plan_make. */
enum status verdict_add(cJSON *json, const struct plan *plan, const struct plan_request *request,
                        int64_t capacity, struct err *e);

#endif
