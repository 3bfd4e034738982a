/* tokenizer.h - text to token ids and back, as the model's own tokenizer.json says. Anything in the file that is not
 * understood is refused by name; nothing is guessed from the family. */
#ifndef PLIMSOLL_ENGINE_TEXT_TOKENIZER_H
#define PLIMSOLL_ENGINE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

struct tokenizer; /* immutable after opening; may be read by several threads */

/* A growing list of ids. Zeroed means empty. */
struct token_list {
    int32_t *ids;
    size_t count, capacity;
};
void token_list_release(struct token_list *list);

/* How special tokens (special:true) written in the text are read. */
enum special_mode {
    SPECIAL_PARSE, /* "<|im_end|>" in the text becomes its id: for text that a template made */
    SPECIAL_TEXT,  /* it is ordinary text: for what users wrote (case A10). Added tokens with special:false still match */
};

/* Reads tokenizer.json (and tokenizer_config.json for names of special tokens) from a model folder. Caller frees with
 * tokenizer_free. */
enum status tokenizer_open(struct tokenizer **out, const char *folder, struct err *e);
void tokenizer_free(struct tokenizer *t);

/* Appends the ids of text[0..len). with_post_processor adds what the file's post-processor adds (BOS...). */
enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, enum special_mode mode,
                             bool with_post_processor, struct token_list *out, struct err *e);
/* As tokenizer_encode, and appends to `ends` (a token_list of byte offsets, one per token) where each token's text ends. */
enum status tokenizer_encode_offsets(const struct tokenizer *t, const char *text, size_t len, enum special_mode mode,
                                     struct token_list *out, struct token_list *ends, struct err *e);
/* Appends the text of the ids. */
enum status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                             struct str *out, struct err *e);

/* Number of ids: largest id + 1. */
int32_t tokenizer_size(const struct tokenizer *t);
/* The id of an exact token (vocabulary spelling or added token), or -1. */
int32_t tokenizer_id(const struct tokenizer *t, const char *token);
/* The vocabulary spelling of an id, or NULL. Points into the tokenizer. */
const char *tokenizer_token(const struct tokenizer *t, int32_t id);
/* bos_token, eos_token, pad_token, unk_token as tokenizer_config.json names them; NULL if it does not. */
const char *tokenizer_named_token(const struct tokenizer *t, const char *name);
/* Number of special-token spellings in the text: what SPECIAL_TEXT would neutralise. */
int64_t tokenizer_count_special(const struct tokenizer *t, const char *text, size_t len);

#endif
