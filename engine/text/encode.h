/* encode.h - a row that was read -> token ids, and which of them are trained.
 *
 * The rule, for every format: what is trained is decided on the final text. Of a conversation these
 * are the assistant's words and the end-of-turn token after them; of prompt and completion, the
 * completion; of a text, all. Special tokens are what the template wrote; the same spelling inside
 * the row's own words is ordinary text, and counted. */
#ifndef PLIMSOLL_ENGINE_TEXT_ENCODE_H
#define PLIMSOLL_ENGINE_TEXT_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/text/chat_align.h"
#include "engine/text/dataset.h"
#include "engine/text/dataset_row.h"
#include "engine/text/tokenizer.h"

/* What encoding needs to know, the same for all rows; read by several threads. */
struct encoder {
    struct dataset_options options;
    struct chat_renderer renderer;
    char *variables, *variables_not_thinking; /* owned JSON texts */
    struct token_list before, after; /* what the tokenizer's post-processor puts around a text */
    int32_t eos_id;                  /* -1: the tokenizer names none */
    const char *bos_text, *eos_text; /* spellings, or NULL */
};
/* STATUS_UNSUPPORTED: the post-processor does more than adding tokens around a text. Caller
 * releases, also on error. */
enum status encoder_init(struct encoder *x, const struct dataset_options *options, struct err *e);
void encoder_release(struct encoder *x);
/* Whether an id is a special token (or the end-of-text token, however it is declared). */
bool encoder_is_special(const struct encoder *x, int32_t id);

/* One row as tokens. */
struct encoded {
    struct token_list ids, ends; /* ends: byte offsets in the text; empty without keep_text */
    struct str text;             /* what was tokenised; empty without keep_text */
    uint8_t *trained;            /* by token */
    bool is_text;                /* to be cut into pieces when too long */
    bool dropped_message;        /* the chat template leaves out a message or the tools */
    bool folded_system;          /* the system message stands in the first user's */
    bool arguments_as_text;      /* tool arguments were given to the template as strings */
    int64_t control_tokens;      /* special spellings that were taken as text */
    int64_t open_answers;        /* answers after which the template writes no end-of-turn token */
};

/* What a row of a file becomes: one, or with split_turns one for each trained answer. */
struct encoded_row {
    struct encoded *parts;
    int64_t count;
};
void encoded_row_release(struct encoded_row *out);

/* STATUS_INVALID with the field in the text and in param. Caller releases `out`, also after an
 * error. */
enum status encode_row(const struct encoder *x, const struct data_row *row, struct encoded_row *out,
                       struct err *e);
/* The part of encode_row for conversations. */
enum status encode_chat(const struct encoder *x, const struct chat *chat, struct encoded *out,
                        struct err *e);

#endif
