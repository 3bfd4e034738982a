/* tokenizer_cache.h - words that were encoded before; owned by one scratch, so by one thread at a
 * time.
 *
 * Text repeats its words: nine of ten pieces are answered from here without a merge. Bounded: what
 * finds no room replaces something. */
#ifndef PLIMSOLL_ENGINE_TEXT_TOKENIZER_CACHE_H
#define PLIMSOLL_ENGINE_TEXT_TOKENIZER_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One token of a word: its id, and how many bytes of the word it took. */
struct part {
    int32_t id;
    uint32_t len;
};

enum { CACHE_WORD_BYTES_MAX = 80 }; /* longer words are not remembered */

struct cache;
struct cache *cache_new(void);
void cache_free(struct cache *c);

/* The tokens of this word and their number, or NULL if it is not there. Points into the cache until
 * the next cache_store. */
const struct part *cache_find(const struct cache *c, const char *word, size_t len, uint64_t hash,
                              size_t *count);
/* Remembers a word that cache_find did not find, unless it is too long or has too many tokens. */
void cache_store(struct cache *c, const char *word, size_t len, uint64_t hash,
                 const struct part *parts, size_t count);

#endif
