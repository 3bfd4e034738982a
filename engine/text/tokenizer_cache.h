/* tokenizer_cache.h - words that were encoded before; owned by one scratch, so by one thread at a
 * time.
 *
 * Text repeats its words: nine of ten pieces are answered from here without a merge. Bounded: when
 * a table is full it is emptied as a whole, which is cheaper than deciding what to keep. */
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

struct cache;
struct cache *cache_new(void);
void cache_free(struct cache *c);

/* The tokens of this word and their number, or NULL if it is not there. Points into the cache until
 * the next cache_store. */
const struct part *cache_find(const struct cache *c, const char *word, size_t len, uint64_t hash,
                              size_t *count);
/* Remembers a word that cache_find did not find. */
void cache_store(struct cache *c, const char *word, size_t len, uint64_t hash,
                 const struct part *parts, size_t count);

#endif
