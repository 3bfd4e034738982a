/* region.c - a chain of growing blocks. Blocks double up to a bound, so that a small template costs
 * little and a long conversation does not cost thousands of blocks; a piece larger than a block
 * gets one of its own. */
#include "base/region.h"

#include <stdint.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

enum { BLOCK_FIRST = 4096, BLOCK_MAX = 1 << 20, ALIGNMENT = 16 };

struct region_block {
    struct region_block *next;
    size_t capacity;
    _Alignas(ALIGNMENT) unsigned char data[];
};

void region_release(struct region *r) {
    if (!r) return;
    struct region_block *block = r->block;
    while (block) {
        struct region_block *const next = block->next;
        mem_free(block);
        block = next;
    }
    *r = (struct region){0};
}

static void add_block(struct region *r, size_t need) {
    size_t capacity = r->block ? r->block->capacity * 2 : BLOCK_FIRST;
    if (capacity > BLOCK_MAX) capacity = BLOCK_MAX;
    if (capacity < need) capacity = need;
    struct region_block *const block = mem_new(1, sizeof *block + capacity);
    block->capacity = capacity;
    block->next = r->block;
    r->block = block;
    r->capacity = capacity;
    r->used = 0;
}

void *region_alloc(struct region *r, size_t count, size_t size) {
    ASSERT(!size || count < (SIZE_MAX - 2 * ALIGNMENT) / size);
    const size_t bytes = (count * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!r->block || r->capacity - r->used < bytes) add_block(r, bytes);
    void *const memory = r->block->data + r->used;
    r->used += bytes;
    r->bytes += bytes;
    return memory;
}

char *region_copy(struct region *r, const void *bytes, size_t count) {
    char *const copy = region_alloc(r, count + 1, 1);
    if (count) memcpy(copy, bytes, count);
    return copy;
}

bool region_is_full(const struct region *r) {
    return r->bytes_max && r->bytes > r->bytes_max;
}
