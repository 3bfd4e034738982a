/* dataset_row.h - what one row says, in the terms of its format. The keys tell the format:
 * - messages: {"messages":[{"role","content"}...],"tools"?}, OpenAI chat
 * - prompt_completion: {"prompt","completion"}, two texts or two message lists, TRL
 * - text: {"text"}, plain text, all of it trained
 * - alpaca: {"instruction","input"?,"output","system"?,"history"?}
 * - sharegpt: {"conversations":[{"from","value"}...],"system"?,"tools"?}
 * - preference: two answers to one prompt, one better (dataset_preference.h)
 * Other rows that are no examples of text to learn are refused by name. */
#ifndef PLIMSOLL_ENGINE_TEXT_DATASET_ROW_H
#define PLIMSOLL_ENGINE_TEXT_DATASET_ROW_H

#include <stdbool.h>

#include "engine/text/chat.h"
#include "engine/text/dataset.h"
#include "engine/text/rows_json.h"

/* A row that was read: a conversation, or a prompt (may be empty) and the text after it. Of a
 * preference that is the better answer. */
struct data_row {
    bool is_chat;
    struct chat chat;
    struct str prompt, text;
    bool is_preference;
    struct chat rejected_chat; /* of a preference: the worse answer, without the prompt */
    struct str rejected_text;
    int64_t extra_keys; /* keys of the row that mean nothing to its format */
};

/* The format that a row is in. STATUS_INVALID: no format known; STATUS_UNSUPPORTED: known and not
 * trained on. */
enum status data_row_detect(const struct row_json *j, enum data_format *format, struct err *e);
/* Reads a row of the given format; `first_line` is the line that decided the format, 0 if the user
 * did. STATUS_INVALID names the field, or says that the row is in another format. Caller frees with
 * data_row_release, also after an error. */
enum status data_row_read(struct data_row *row, const struct row_json *j, enum data_format format,
                          int64_t first_line, struct err *e);
void data_row_release(struct data_row *row);

#endif
