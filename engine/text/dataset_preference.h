/* dataset_preference.h - rows that say which of two answers is better. What others write for it:
 * - TRL: {"prompt","chosen","rejected"}, texts or message lists; or without prompt, then two
 *   conversations that begin the same: what they share is the prompt
 * - OpenAI: {"input":{"messages","tools"?},"preferred_output":[message],
 *   "non_preferred_output":[message]}
 * - LLaMA-Factory: {"instruction","input"?,"chosen","rejected"} texts, or {"conversations",
 *   "chosen":{"from","value"},"rejected":{...}}
 * - Axolotl: "question", "chosen_response", "rejected_response" and "system" as further names */
#ifndef PLIMSOLL_ENGINE_TEXT_DATASET_PREFERENCE_H
#define PLIMSOLL_ENGINE_TEXT_DATASET_PREFERENCE_H

#include "engine/text/dataset_row.h"

/* The keys that only preference rows have; any of them makes a row one. Ends in NULL. */
extern const char *const PREFERENCE_KEYS[];
/* All keys that mean something in one. Ends in NULL. */
extern const char *const PREFERENCE_ROW_KEYS[];

/* Reads the row: the prompt and the better answer into chat (given: the prompt's messages) or
 * prompt and text, the worse into rejected_chat or rejected_text. STATUS_INVALID names the field:
 * missing or empty, of mixed kinds, no answer in it, the two the same. */
enum status data_preference_read(struct data_row *row, const struct row_json *j, struct err *e);

#endif
