/* tokenizer_bpe.c - byte-pair encoding of one piece: symbols, then the lowest-ranked merge,
 * leftmost first, until none is left.
 *
 * Short pieces scan for the lowest rank; long ones keep a heap of (rank, position), so that ten
 * megabytes without a space cost n log n. Before that, a piece is cut where no merge can reach
 * across (in front of U+2581 in SentencePiece vocabularies that have no token like "xU+2581"): the
 * same ids, from shorter and often cached words. */
#include "engine/text/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

enum { SCAN_SYMBOLS_MAX = 64 };
#define NO_MERGE UINT32_MAX

struct symbol {
    int32_t id;
    uint32_t len;       /* bytes of the piece */
    int32_t next, prev; /* -1: none; only used by the heap */
    uint32_t rank;      /* of merging with the next symbol */
    int32_t merged;     /* what that gives */
};

/* ---- symbols ---- */

/* Characters that are not in the vocabulary, while the first symbols are made. */
struct unknown {
    uint32_t unk_len;  /* bytes of the unk token to come */
    uint32_t lost_len; /* bytes that vanish */
    bool pending;
};

static void add_symbol(struct scratch *s, struct unknown *u, int32_t id, uint32_t len) {
    s->symbols = mem_grow(s->symbols, s->symbol_count, &s->symbol_capacity, sizeof *s->symbols);
    s->symbols[s->symbol_count++] = (struct symbol){.id = id, .len = len + u->lost_len};
    u->lost_len = 0;
}

static void flush_unknown(const struct tokenizer *t, struct scratch *s, struct unknown *u) {
    if (u->pending) add_symbol(s, u, t->unk_id, u->unk_len);
    u->pending = false;
    u->unk_len = 0;
}

/* A character without a token: its bytes' tokens if all exist, else the unk token, else it is lost
 * and counted. */
static void add_unknown(const struct tokenizer *t, struct scratch *s, struct unknown *u,
                        const char *spelling, size_t spelling_len, uint32_t len) {
    bool all = t->byte_fallback;
    for (size_t i = 0; i < spelling_len && all; i++) {
        all = t->fallback_ids[(unsigned char)spelling[i]] >= 0;
    }
    if (all) {
        for (size_t i = 0; i < spelling_len; i++) {
            const uint32_t share = i + 1 < spelling_len ? len > i : len > i ? len - (uint32_t)i : 0;
            add_symbol(s, u, t->fallback_ids[(unsigned char)spelling[i]], share);
        }
        return;
    }
    if (t->unk_id < 0) {
        u->lost_len += len;
        atomic_fetch_add(&t->pool->dropped, 1);
        return;
    }
    if (!t->fuse_unk) flush_unknown(t, s, u);
    u->unk_len += len;
    u->pending = true;
}

static void make_symbols(const struct tokenizer *t, struct scratch *s, const char *word,
                         size_t len) {
    struct unknown u = {0};
    s->symbol_count = 0;
    for (size_t at = 0; at < len;) {
        char mapped[4];
        const char *spelling = word + at;
        size_t spelling_len = 1, step = 1;
        int32_t id = -1;
        if (t->bytes_direct) {
            id = t->byte_ids[(unsigned char)word[at]];
            const uint32_t code = byte_to_code((unsigned char)word[at]);
            spelling_len = code < 0x80 ? 1 : 2;
            mapped[0] = (char)(code < 0x80 ? code : 0xC0 | code >> 6);
            mapped[1] = (char)(0x80 | (code & 0x3F));
            spelling = mapped;
        } else {
            uint32_t code = 0;
            step = spelling_len = (size_t)utf8_decode(word + at, len - at, &code);
            ASSERT(step > 0);
            id = cuts_char(t, code, spelling, spelling_len);
        }
        if (id >= 0) {
            flush_unknown(t, s, &u);
            add_symbol(s, &u, id, (uint32_t)step);
        } else {
            add_unknown(t, s, &u, spelling, spelling_len, (uint32_t)step);
        }
        at += step;
    }
    flush_unknown(t, s, &u);
    if (u.lost_len > 0 && s->symbol_count > 0) s->symbols[s->symbol_count - 1].len += u.lost_len;
}

/* ---- merging ---- */

static void look_up(const struct tokenizer *t, struct symbol *left, const struct symbol *right) {
    const struct merge_slot *const merge =
        right ? vocab_find_merge(&t->vocab, left->id, right->id) : NULL;
    left->rank = merge ? merge->rank : NO_MERGE;
    left->merged = merge ? merge->id : -1;
}

static void merge_by_scan(const struct tokenizer *t, struct scratch *s) {
    struct symbol *const symbols = s->symbols;
    size_t count = s->symbol_count;
    for (size_t i = 0; i < count; i++) {
        look_up(t, &symbols[i], i + 1 < count ? &symbols[i + 1] : NULL);
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            if (symbols[i].rank < symbols[best].rank) best = i;
        }
        if (symbols[best].rank == NO_MERGE) break;
        symbols[best].id = symbols[best].merged;
        symbols[best].len += symbols[best + 1].len;
        count--;
        memmove(&symbols[best + 1], &symbols[best + 2], (count - best - 1) * sizeof *symbols);
        look_up(t, &symbols[best], best + 1 < count ? &symbols[best + 1] : NULL);
        if (best > 0) look_up(t, &symbols[best - 1], &symbols[best]);
    }
    s->symbol_count = count;
}

static void heap_push(struct scratch *s, uint64_t key) {
    s->heap = mem_grow(s->heap, s->heap_count, &s->heap_capacity, sizeof *s->heap);
    size_t at = s->heap_count++;
    while (at > 0 && s->heap[(at - 1) / 4] > key) {
        s->heap[at] = s->heap[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    s->heap[at] = key;
}

static uint64_t heap_pop(struct scratch *s) {
    const uint64_t least = s->heap[0], last = s->heap[--s->heap_count];
    const size_t count = s->heap_count;
    for (size_t at = 0;;) {
        const size_t first = at * 4 + 1;
        size_t child = first;
        for (size_t i = first + 1; i < first + 4 && i < count; i++) {
            if (s->heap[i] < s->heap[child]) child = i;
        }
        if (first >= count || s->heap[child] >= last) {
            s->heap[at] = last;
            return least;
        }
        s->heap[at] = s->heap[child];
        at = child;
    }
}

static void refresh(const struct tokenizer *t, struct scratch *s, int32_t at) {
    struct symbol *const left = &s->symbols[at];
    look_up(t, left, left->next >= 0 ? &s->symbols[left->next] : NULL);
    if (left->rank != NO_MERGE) heap_push(s, (uint64_t)left->rank << 32 | (uint32_t)at);
}

static void merge_by_heap(const struct tokenizer *t, struct scratch *s) {
    const int32_t count = (int32_t)s->symbol_count;
    s->heap_count = 0;
    for (int32_t i = 0; i < count; i++) {
        s->symbols[i].prev = i - 1;
        s->symbols[i].next = i + 1 < count ? i + 1 : -1;
    }
    for (int32_t i = 0; i < count; i++) {
        refresh(t, s, i);
    }
    while (s->heap_count > 0) {
        const uint64_t key = heap_pop(s);
        const int32_t at = (int32_t)(uint32_t)key;
        struct symbol *const left = &s->symbols[at];
        /* Entries are not taken out when their pair goes; they are recognised here. */
        if (left->id < 0 || left->next < 0 || left->rank != key >> 32) continue;
        struct symbol *const right = &s->symbols[left->next];
        left->id = left->merged;
        left->len += right->len;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) s->symbols[left->next].prev = at;
        refresh(t, s, at);
        if (left->prev >= 0) refresh(t, s, left->prev);
    }
    size_t kept = 0;
    for (int32_t i = 0, next; i >= 0 && count > 0; i = next, kept++) {
        next = s->symbols[i].next;
        s->symbols[kept].id = s->symbols[i].id;
        s->symbols[kept].len = s->symbols[i].len;
    }
    s->symbol_count = kept;
}

static void add_part(struct scratch *s, int32_t id, uint32_t len) {
    s->parts = mem_grow(s->parts, s->part_count, &s->part_capacity, sizeof *s->parts);
    s->parts[s->part_count++] = (struct part){id, len};
}

/* The id of the whole piece, or -1. Special tokens are never found this way: user text must not
 * become one. */
static int32_t whole_piece(const struct tokenizer *t, struct scratch *s, const char *word,
                           size_t len) {
    if (t->bytes_direct) {
        str_clear(&s->spelling);
        for (size_t i = 0; i < len; i++) {
            str_append_utf8(&s->spelling, byte_to_code((unsigned char)word[i]));
        }
        word = str_text(&s->spelling);
        len = s->spelling.len;
    }
    const int32_t id = vocab_find(&t->vocab, word, len);
    return id >= 0 && !(t->vocab.flags[id] & TOKEN_SPECIAL) ? id : -1;
}

static void encode_word(const struct tokenizer *t, struct scratch *s, const char *word, size_t len,
                        bool whole) {
    s->part_count = 0;
    const int32_t id = whole && len <= TOKEN_BYTES_MAX ? whole_piece(t, s, word, len) : -1;
    if (id >= 0) {
        add_part(s, id, (uint32_t)len);
        return;
    }
    make_symbols(t, s, word, len);
    if (s->symbol_count <= SCAN_SYMBOLS_MAX) {
        merge_by_scan(t, s);
    } else {
        merge_by_heap(t, s);
    }
    for (size_t i = 0; i < s->symbol_count; i++) {
        add_part(s, s->symbols[i].id, s->symbols[i].len);
    }
}

static void encode_cached(const struct tokenizer *t, struct scratch *s, const struct view *v,
                          struct span word, bool whole, struct sink *sink) {
    const char *const text = v->text + word.from;
    const size_t len = word.to - word.from;
    if (len > CACHE_WORD_BYTES_MAX) {
        encode_word(t, s, text, len, whole);
        sink_add_parts(sink, v, word.from, s->parts, s->part_count);
        return;
    }
    const uint64_t hash = bytes_hash(text, len);
    size_t count = 0;
    const struct part *parts = cache_find(s->cache, text, len, hash, &count);
    if (!parts) {
        const long long dropped = atomic_load(&t->pool->dropped);
        encode_word(t, s, text, len, whole);
        parts = s->parts;
        count = s->part_count;
        /* A word that loses characters is encoded anew each time, so that each loss is counted. */
        if (atomic_load(&t->pool->dropped) == dropped)
            cache_store(s->cache, text, len, hash, parts, count);
    }
    sink_add_parts(sink, v, word.from, parts, count);
}

void bpe_encode(const struct tokenizer *t, struct scratch *s, const struct view *v,
                struct span piece, struct sink *sink) {
    if (!t->cuts || t->ignore_merges) {
        encode_cached(t, s, v, piece, t->ignore_merges, sink);
        return;
    }
    for (size_t from = piece.from; from < piece.to;) {
        const size_t to = cuts_next(t->cuts, v, from, piece.to);
        encode_cached(t, s, v, (struct span){(uint32_t)from, (uint32_t)to}, false, sink);
        from = to;
    }
}
