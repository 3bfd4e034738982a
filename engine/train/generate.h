/* generate.h - what the model says: greedy decoding, for samples before, during and after training.
 *
 * Every new token runs the whole text through the model again: exact, and enough for samples of a
 * few dozen tokens. */
#ifndef PLIMSOLL_ENGINE_TRAIN_GENERATE_H
#define PLIMSOLL_ENGINE_TRAIN_GENERATE_H

#include "engine/model/model.h"
#include "engine/text/template.h"
#include "engine/text/tokenizer.h"

struct generate_options {
    int64_t tokens_max; /* new tokens at most */
    int64_t length_max; /* prompt and answer together */
};

/* Continues ids greedily (appends to `ids`) until an end-of-sequence id of the config, which is
 * appended too. */
enum status generate_greedy(struct model *m, const struct generate_options *options,
                            struct token_list *ids, struct err *e);

/* The answer to one prompt: as a user turn when there is a chat template, else as plain text to
 * continue. Appends the answer's text to `out`. chat_template may be NULL. */
struct speaker {
    struct model *model;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template;
    int64_t now_unix_s; /* what the template takes for now */
};
enum status generate_answer(const struct speaker *speaker, const char *prompt,
                            const struct generate_options *options, struct str *out, struct err *e);

/* The largest forward pass that samples may make, for the planner. */
enum status generate_plan(struct model *m, int64_t length_max, struct err *e);

#endif
