/* tokenizer_vocab.c - the tables of a tokenizer: spelling -> id, id -> spelling, pair of ids ->
 * merge; and the byte alphabet.
 *
 * Open addressing with linear probing at most half full, one allocation a table. A file can be made
 * so that its spellings collide; a probe longer than PROBES_MAX, which chance does not produce, is
 * therefore refused. */
#include "engine/text/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

enum { PROBES_MAX = 4096, FIND_BLOCK = 64 };

static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    return x;
}

uint64_t bytes_hash(const char *bytes, size_t len) {
    uint64_t hash = 0x8422D3A5B9C1E6F7u ^ len, word = 0;
    while (len >= 8) {
        memcpy(&word, bytes, 8);
        hash = mix(hash ^ word) * 0xD6E8FEB86659FD93u;
        bytes += 8;
        len -= 8;
    }
    word = 0;
    memcpy(&word, bytes, len);
    return mix(mix(hash ^ word) * 0xD6E8FEB86659FD93u);
}

static size_t power_above(size_t count) {
    size_t size = 16;
    while (size < count * 2) {
        size *= 2;
    }
    return size;
}

void vocab_release(struct vocab *v) {
    str_release(&v->spellings);
    mem_free(v->tokens);
    mem_free(v->flags);
    mem_free(v->slots);
    mem_free(v->merges);
    *v = (struct vocab){0};
}

void vocab_reserve(struct vocab *v, size_t count, int32_t id_limit) {
    ASSERT(!v->slots && id_limit >= 0);
    const size_t size = power_above(count);
    v->slots = mem_new(size, sizeof *v->slots);
    v->slot_mask = size - 1;
    v->id_capacity = id_limit;
    v->tokens = mem_new((size_t)id_limit + 1, sizeof *v->tokens);
    v->flags = mem_new((size_t)id_limit + 1, sizeof *v->flags);
}

static uint32_t tag_of(uint64_t hash) {
    return (uint32_t)(hash >> 32);
}

/* The slot of this spelling: taken by it, or free. */
static size_t spelling_slot(const struct vocab *v, const struct piece *spelling, uint64_t hash,
                            int *probes) {
    size_t slot = hash & v->slot_mask;
    for (*probes = 0; v->slots[slot].id_above > 0 && *probes < PROBES_MAX; ++*probes) {
        if (v->slots[slot].tag == tag_of(hash)) {
            const struct span at = v->tokens[v->slots[slot].id_above - 1];
            if (at.to - at.from == spelling->len &&
                memcmp(v->spellings.data + at.from, spelling->text, spelling->len) == 0)
                break;
        }
        slot = (slot + 1) & v->slot_mask;
    }
    return slot;
}

static int32_t find_hashed(const struct vocab *v, const struct piece *spelling, uint64_t hash) {
    int probes = 0;
    const int32_t id = v->slots[spelling_slot(v, spelling, hash, &probes)].id_above - 1;
    return probes < PROBES_MAX ? id : -1;
}

int32_t vocab_find(const struct vocab *v, const char *spelling, size_t len) {
    const struct piece piece = {spelling, len};
    return find_hashed(v, &piece, bytes_hash(spelling, len));
}

/* Three looks at memory, each of all spellings of a block before the next: slot, token, text. */
static void find_block(const struct vocab *v, const struct piece *spellings, size_t count,
                       int32_t *ids) {
    uint64_t hashes[FIND_BLOCK];
    for (size_t i = 0; i < count; i++) {
        hashes[i] = bytes_hash(spellings[i].text, spellings[i].len);
        __builtin_prefetch(&v->slots[hashes[i] & v->slot_mask]);
    }
    for (size_t i = 0; i < count; i++) {
        size_t slot = hashes[i] & v->slot_mask;
        for (int probes = 0; v->slots[slot].id_above > 0 && v->slots[slot].tag != tag_of(hashes[i]);
             slot = (slot + 1) & v->slot_mask) {
            if (++probes == PROBES_MAX) break;
        }
        ids[i] = v->slots[slot].id_above - 1;
        if (ids[i] >= 0) __builtin_prefetch(&v->tokens[ids[i]]);
    }
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= 0) __builtin_prefetch(v->spellings.data + v->tokens[ids[i]].from);
    }
    for (size_t i = 0; i < count; i++) {
        ids[i] = find_hashed(v, &spellings[i], hashes[i]);
    }
}

void vocab_find_many(const struct vocab *v, const struct piece *spellings, size_t count,
                     int32_t *ids) {
    for (size_t i = 0; i < count; i += FIND_BLOCK) {
        find_block(v, spellings + i, count - i < FIND_BLOCK ? count - i : FIND_BLOCK, ids + i);
    }
}

void vocab_expect(const struct vocab *v, const char *spelling, size_t len) {
    __builtin_prefetch(&v->slots[bytes_hash(spelling, len) & v->slot_mask], 1);
}

enum status vocab_add(struct vocab *v, const char *spelling, size_t len, int32_t id,
                      struct err *e) {
    ASSERT(id >= 0 && id < v->id_capacity);
    FAIL_IF(len > TOKEN_BYTES_MAX, STATUS_INVALID,
            "the token with id %d is %zu bytes long, at most %d", id, len, TOKEN_BYTES_MAX);
    FAIL_IF(v->flags[id] & TOKEN_USED, STATUS_INVALID, "\"%.*s\" and \"%s\" have the same id %d",
            (int)len, spelling, v->spellings.data + v->tokens[id].from, id);
    int probes = 0;
    const struct piece piece = {spelling, len};
    const uint64_t hash = bytes_hash(spelling, len);
    struct vocab_slot *const slot = &v->slots[spelling_slot(v, &piece, hash, &probes)];
    FAIL_IF(probes >= PROBES_MAX, STATUS_INVALID, "the vocabulary looks made to collide");
    FAIL_IF(slot->id_above > 0, STATUS_INVALID, "\"%.*s\" has two ids, %d and %d", (int)len,
            spelling, slot->id_above - 1, id);
    *slot = (struct vocab_slot){tag_of(hash), id + 1};
    v->tokens[id] = (struct span){(uint32_t)v->spellings.len, (uint32_t)(v->spellings.len + len)};
    v->flags[id] |= TOKEN_USED;
    str_append_bytes(&v->spellings, spelling, len);
    str_append_char(&v->spellings, '\0');
    if (id >= v->size) v->size = id + 1;
    return STATUS_OK;
}

void vocab_reserve_merges(struct vocab *v, size_t count) {
    ASSERT(!v->merges);
    const size_t size = power_above(count);
    v->merges = mem_new(size, sizeof *v->merges);
    v->merge_mask = size - 1;
}

static uint64_t pair_key(int32_t left, int32_t right) {
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
}

static size_t merge_slot(const struct vocab *v, uint64_t pair, int *probes) {
    size_t slot = mix(pair * 0xD6E8FEB86659FD93u) & v->merge_mask;
    for (*probes = 0; *probes < PROBES_MAX; ++*probes) {
        if (v->merges[slot].pair == pair || v->merges[slot].pair == 0) break;
        slot = (slot + 1) & v->merge_mask;
    }
    return slot;
}

const struct merge_slot *vocab_find_merge(const struct vocab *v, int32_t left, int32_t right) {
    const uint64_t pair = pair_key(left, right);
    int probes = 0;
    const struct merge_slot *const slot = &v->merges[merge_slot(v, pair, &probes)];
    return slot->pair == pair ? slot : NULL;
}

void vocab_expect_merges(const struct vocab *v, const int32_t *from, size_t count) {
    for (size_t i = 0; i < count * 3; i += 3) {
        const uint64_t pair = pair_key(from[i], from[i + 1]);
        __builtin_prefetch(&v->merges[mix(pair * 0xD6E8FEB86659FD93u) & v->merge_mask], 1);
        if (from[i + 2] >= 0) __builtin_prefetch(&v->flags[from[i + 2]], 1);
    }
}

enum status vocab_add_merge(struct vocab *v, const int32_t from[3], uint32_t rank, struct err *e) {
    const uint64_t pair = pair_key(from[0], from[1]);
    int probes = 0;
    struct merge_slot *const slot = &v->merges[merge_slot(v, pair, &probes)];
    FAIL_IF(probes >= PROBES_MAX, STATUS_INVALID, "the merges look made to collide");
    v->merge_count += slot->pair == 0;
    *slot = (struct merge_slot){pair, rank, from[2]};
    v->flags[from[2]] |= TOKEN_MERGED;
    return STATUS_OK;
}

/* Bytes that are printable in Latin-1 stand for themselves; the other 68, in order, for U+0100
 * onwards. */
static bool stands_for_itself(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t byte_to_code(unsigned char byte) {
    if (stands_for_itself(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    return byte == 0xAD ? 0x143u : 0x121u + (byte - 0x7Fu);
}

int code_to_byte(uint32_t code) {
    if (code < 0x100) return stands_for_itself(code) ? (int)code : -1;
    if (code <= 0x120) return (int)(code - 0x100);
    if (code <= 0x142) return (int)(code - 0x121 + 0x7F);
    return code == 0x143 ? 0xAD : -1;
}

void append_alphabet_bytes(struct str *out, const char *token, size_t len) {
    const size_t start = out->len;
    for (size_t at = 0; at < len;) {
        uint32_t code = 0;
        const int step = utf8_decode(token + at, len - at, &code);
        const int byte = step > 0 ? code_to_byte(code) : -1;
        if (byte < 0) {
            str_truncate(out, start);
            str_append_bytes(out, token, len);
            return;
        }
        str_append_char(out, (char)byte);
        at += (size_t)step;
    }
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int fallback_byte(const char *token, size_t len) {
    if (len != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>') return -1;
    const int high = hex_digit(token[3]), low = hex_digit(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}
