/* data_ask.h - `plimsoll-engine data`: from words on the command line to a report or to rows.
 *
 * Options are keys of the run spec (--data.mask last), so that the same words mean the same
 * everywhere; the table of the spec checks them. */
#ifndef PLIMSOLL_ENGINE_TRAIN_DATA_ASK_H
#define PLIMSOLL_ENGINE_TRAIN_DATA_ASK_H

#include "base/err.h"
#include "base/json.h"

/* args: --model DIR --file FILE, then --row N or --rows A-B with --offset TOKENS and --limit
 * TOKENS, or --seconds N, and --KEY VALUE for keys of the run spec; ends with NULL. Gives the
 * object of data_report, or of data_rows where rows are asked for. STATUS_INVALID names the word or
 * the key. Caller frees *out with cJSON_Delete. */
enum status data_ask(char **args, cJSON **out, struct err *e);

#endif
