/* tokenizer.h - text to token ids and back, as the model's own tokenizer.json says.
 *
 * Anything in the file that is not understood is refused by name; nothing is guessed from the
 * family. */
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
    SPECIAL_TEXT,  /* it is ordinary text: for what users wrote (case A10). Added tokens with
                      special:false still match */
};

/* Reads tokenizer.json (and tokenizer_config.json for names of special tokens) from a model folder.
 * Caller frees with tokenizer_free. */
enum status tokenizer_open(struct tokenizer **out, const char *folder, struct err *e);
/* The same, otherwise than the files say. Zeroed: as they say. */
struct tokenizer_options {
    /* Mistral's own pattern where a folder of Mistral ships Llama 3's (case A07). STATUS_INVALID
     * for any other tokenizer. */
    bool fix_mistral_regex;
};
enum status tokenizer_open_with(struct tokenizer **out, const char *folder,
                                const struct tokenizer_options *options, struct err *e);
/* Whether fix_mistral_regex took effect. */
bool tokenizer_pattern_replaced(const struct tokenizer *t);
/* Writes the tokenizer.json of a folder whose pattern was replaced into another folder, as it was
 * used. */
enum status tokenizer_copy_fixed(const char *from_folder, const char *to_folder, struct err *e);
void tokenizer_free(struct tokenizer *t);

/* Appends the ids of text[0..len), which must be valid UTF-8 (STATUS_INVALID names the byte).
 * with_post_processor adds what the file's post-processor adds (BOS...). */
enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                             enum special_mode mode, bool with_post_processor,
                             struct token_list *out, struct err *e);
/* As tokenizer_encode, and appends to `ends` (a token_list of byte offsets, one per token) where
 * each token's text ends in `text`. A token may end inside a character (byte-level). Exact where
 * the normalizer changes nothing; a stretch that a normalizer rewrites (a decomposed letter, a
 * replaced match) ends as a whole where its source ends. */
enum status tokenizer_encode_offsets(const struct tokenizer *t, const char *text, size_t len,
                                     enum special_mode mode, struct token_list *out,
                                     struct token_list *ends, struct err *e);
/* Appends the text of the ids, always valid UTF-8. An id without a token (a hole, or beyond the
 * vocabulary: models pad it) reads as U+FFFD; a negative id is STATUS_INVALID. */
enum status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count,
                             bool skip_special, struct str *out, struct err *e);

/* Number of ids: largest id + 1. */
int32_t tokenizer_size(const struct tokenizer *t);
/* The id of an exact token (vocabulary spelling or added token), or -1. */
int32_t tokenizer_id(const struct tokenizer *t, const char *token);
/* The vocabulary spelling of an id, or NULL. Points into the tokenizer. */
const char *tokenizer_token(const struct tokenizer *t, int32_t id);
/* bos_token, eos_token, pad_token, unk_token as tokenizer_config.json names them; NULL if it does
 * not. */
const char *tokenizer_named_token(const struct tokenizer *t, const char *name);
/* Number of special-token spellings in the text: what SPECIAL_TEXT would neutralise. Special tokens
 * with normalized:true (rare) are looked for in the text as it is, not in its normal form. */
int64_t tokenizer_count_special(const struct tokenizer *t, const char *text, size_t len);

bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* What a person should know about these files, a line each (differences between the two files,
 * flags that have no effect);
 * "" when there is nothing. Points into the tokenizer. */
const char *tokenizer_notes(const struct tokenizer *t);
/* What is likely wrong with these files and is used as it is, a line each, with the way out. Points
 * into the tokenizer. */
const char *tokenizer_warnings(const struct tokenizer *t);
/* Characters that were lost since opening, because the file has neither a token for them nor
 * unk_token nor byte_fallback: the original drops them silently. For a counted warning. */
int64_t tokenizer_dropped(const struct tokenizer *t);

/* Decoding token by token, for text that appears while it is generated. */
struct token_stream;
/* STATUS_UNSUPPORTED if the decoder has a step that cannot work on a part of the text. `t` is
 * borrowed until token_stream_free. */
enum status token_stream_new(struct token_stream **out, const struct tokenizer *t,
                             bool skip_special, struct err *e);
void token_stream_free(struct token_stream *s);
/* Appends the text that this id completes: whole characters only. The pieces and the finish
 * together are what tokenizer_decode makes of all ids, except that a run of byte tokens that turns
 * out not to be UTF-8 keeps the characters already given. */
enum status token_stream_push(struct token_stream *s, int32_t id, struct str *out, struct err *e);
/* Appends what is still held back; the stream then starts anew. */
enum status token_stream_finish(struct token_stream *s, struct str *out, struct err *e);

#endif
