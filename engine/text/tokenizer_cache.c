/* tokenizer_cache.c - the table of words behind tokenizer_cache.h.
 *
 * Sets of four slots; a word that finds its set full replaces one by chance, so frequent words soon
 * return and rare ones pass through. A slot holds word and tokens together, for most words in one
 * cache line; the few long words have a table of their own. About 6 MB when full. */
#include "engine/text/tokenizer_cache.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"

enum { WAYS = 4, TABLES = 2 };

static const struct shape {
    size_t sets, stride, key_max, part_max;
} SHAPES[TABLES] = {{1 << 14, 64, 20, 5}, {1 << 11, 256, CACHE_WORD_BYTES_MAX, 21}};

/* The head of a slot; the tokens follow, then the word. */
struct slot {
    uint16_t len, count;
    struct part parts[];
};

struct cache {
    uint32_t *tags[TABLES]; /* [set][way], 0: free */
    unsigned char *slots[TABLES];
    uint32_t stored; /* chance, for replacing */
};

struct cache *cache_new(void) {
    struct cache *const c = mem_new(1, sizeof *c);
    for (int i = 0; i < TABLES; i++) {
        const struct shape *const shape = &SHAPES[i];
        ASSERT(sizeof(struct slot) + shape->part_max * sizeof(struct part) + shape->key_max <=
               shape->stride);
        c->tags[i] = mem_new(shape->sets * WAYS, sizeof *c->tags[i]);
        c->slots[i] = mem_new(shape->sets * WAYS, shape->stride);
    }
    return c;
}

void cache_free(struct cache *c) {
    for (int i = 0; c && i < TABLES; i++) {
        mem_free(c->tags[i]);
        mem_free(c->slots[i]);
    }
    mem_free(c);
}

static struct slot *slot_at(const struct cache *c, int table, size_t index) {
    return (struct slot *)(void *)(c->slots[table] + index * SHAPES[table].stride);
}

static char *slot_word(struct slot *slot, int table) {
    return (char *)(slot->parts + SHAPES[table].part_max);
}

static uint32_t tag_of(uint64_t hash) {
    return (uint32_t)(hash >> 32) | 1;
}

static const struct part *find_in(const struct cache *c, int table, const char *word, size_t len,
                                  uint64_t hash, size_t *count) {
    const size_t first = (hash & (SHAPES[table].sets - 1)) * WAYS;
    for (size_t i = first; i < first + WAYS; i++) {
        if (c->tags[table][i] != tag_of(hash)) continue;
        struct slot *const slot = slot_at(c, table, i);
        if (slot->len != len || memcmp(slot_word(slot, table), word, len) != 0) continue;
        *count = slot->count;
        return slot->parts;
    }
    return NULL;
}

const struct part *cache_find(const struct cache *c, const char *word, size_t len, uint64_t hash,
                              size_t *count) {
    const struct part *parts = NULL;
    for (int table = 0; table < TABLES && !parts; table++) {
        if (len <= SHAPES[table].key_max) parts = find_in(c, table, word, len, hash, count);
    }
    return parts;
}

void cache_store(struct cache *c, const char *word, size_t len, uint64_t hash,
                 const struct part *parts, size_t count) {
    int table = 0;
    while (table < TABLES && (len > SHAPES[table].key_max || count > SHAPES[table].part_max)) {
        table++;
    }
    if (table == TABLES) return;
    const size_t first = (hash & (SHAPES[table].sets - 1)) * WAYS;
    size_t at = first;
    while (at < first + WAYS && c->tags[table][at]) {
        at++;
    }
    if (at == first + WAYS) at = first + (c->stored++ * 0x9E3779B1u >> 30) % WAYS;
    struct slot *const slot = slot_at(c, table, at);
    c->tags[table][at] = tag_of(hash);
    slot->len = (uint16_t)len;
    slot->count = (uint16_t)count;
    if (count > 0) memcpy(slot->parts, parts, count * sizeof *parts);
    memcpy(slot_word(slot, table), word, len);
}
