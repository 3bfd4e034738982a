/* tokenizer_cache.c - the table of words behind tokenizer_cache.h.
 *
 * Open addressing over fixed slots; keys and tokens lie in two growing arrays that are emptied
 * together with the table. The sizes keep a full cache inside a common second-level cache plus
 * change: about 4 MB. */
#include "engine/text/tokenizer_cache.h"

#include <string.h>

#include "base/mem.h"

enum { SLOTS = 1 << 16, WORDS_MAX = SLOTS / 2, KEY_BYTES_MAX = 1 << 20, PARTS_MAX = 1 << 18 };

struct slot {
    uint64_t hash; /* 0: free */
    uint32_t key, parts;
    uint32_t key_len, part_count;
};

struct cache {
    struct slot slots[SLOTS];
    size_t word_count, key_bytes, part_count;
    char keys[KEY_BYTES_MAX];
    struct part parts[PARTS_MAX];
};

struct cache *cache_new(void) {
    return mem_new(1, sizeof(struct cache));
}

void cache_free(struct cache *c) {
    mem_free(c);
}

static size_t find_slot(const struct cache *c, const char *word, size_t len, uint64_t hash) {
    size_t at = hash & (SLOTS - 1);
    for (;; at = (at + 1) & (SLOTS - 1)) {
        const struct slot *const slot = &c->slots[at];
        if (!slot->hash) return at;
        if (slot->hash == hash && slot->key_len == len &&
            memcmp(c->keys + slot->key, word, len) == 0)
            return at;
    }
}

const struct part *cache_find(const struct cache *c, const char *word, size_t len, uint64_t hash,
                              size_t *count) {
    const struct slot *const slot = &c->slots[find_slot(c, word, len, hash | 1)];
    *count = slot->part_count;
    return slot->hash ? c->parts + slot->parts : NULL;
}

void cache_store(struct cache *c, const char *word, size_t len, uint64_t hash,
                 const struct part *parts, size_t count) {
    if (len > KEY_BYTES_MAX / 16 || count > PARTS_MAX / 16) return;
    const bool full = c->word_count >= WORDS_MAX || c->key_bytes + len > KEY_BYTES_MAX ||
                      c->part_count + count > PARTS_MAX;
    if (full) {
        memset(c->slots, 0, sizeof c->slots);
        c->word_count = c->key_bytes = c->part_count = 0;
    }
    struct slot *const slot = &c->slots[find_slot(c, word, len, hash | 1)];
    *slot = (struct slot){hash | 1, (uint32_t)c->key_bytes, (uint32_t)c->part_count, (uint32_t)len,
                          (uint32_t)count};
    memcpy(c->keys + c->key_bytes, word, len);
    if (count > 0) memcpy(c->parts + c->part_count, parts, count * sizeof *parts);
    c->key_bytes += len;
    c->part_count += count;
    c->word_count++;
}
