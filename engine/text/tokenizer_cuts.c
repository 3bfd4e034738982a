/* tokenizer_cuts.c - where a long piece may be cut before it is merged.
 *
 * Tokenizers without a pre-tokenizer (SentencePiece-style) merge whole texts. But BPE never joins
 * two characters that stand side by side in no product of a merge, so between such two the text can
 * be cut, and the stretches are words, which the cache knows. The pairs are kept coarsely, last
 * byte of one character and first byte of the next, U+2581 being a kind of its own: a pair too many
 * costs a cut and never an id. Cuts are made where a word would end and a known character follows:
 * unknown ones fuse with their neighbours. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/tokenizer_parts.h"

enum {
    MARK_KIND = 0xFF, /* of U+2581; no UTF-8 has this byte */
    MARK_CODE = 0x2581,
    MARK_BYTES = 3,
    CODES_DIRECT = 0x3000, /* characters below have their ids in a table */
};

struct cuts {
    unsigned char joined[256][32]; /* [left][right / 8], a bit: some merge has them side by side */
    bool begins[256];              /* kinds in front of which a cut is possible */
    int32_t ids[CODES_DIRECT];     /* by code point, -1: no token */
    bool allowed;
};

/* The kinds of one character: as the left of a pair, and as the right. */
struct kinds {
    unsigned char left, right;
    size_t bytes;
};

static struct kinds kinds_at(const char *text, size_t len) {
    const unsigned char first = (unsigned char)text[0];
    if (first < 0x80) return (struct kinds){first, first, 1};
    if (first == 0xE2 && len >= MARK_BYTES && text[1] == '\x96' && text[2] == '\x81')
        return (struct kinds){MARK_KIND, MARK_KIND, MARK_BYTES};
    size_t bytes = 1;
    while (bytes < len && ((unsigned char)text[bytes] & 0xC0) == 0x80) {
        bytes++;
    }
    return (struct kinds){(unsigned char)text[bytes - 1], first, bytes};
}

static bool is_joined(const struct cuts *cuts, unsigned char left, unsigned char right) {
    return cuts->joined[left][right / 8] >> right % 8 & 1;
}

static void join_all(struct cuts *cuts, const char *text, size_t len) {
    struct kinds before = kinds_at(text, len);
    for (size_t at = before.bytes; at < len; at += before.bytes) {
        const struct kinds now = kinds_at(text + at, len - at);
        cuts->joined[before.left][now.right / 8] |= (unsigned char)(1u << now.right % 8);
        before = now;
    }
}

/* <0x0A> and the like stand for other text than their spelling, and an unknown token for any: with
 * a merge of one of those the spelling of a product says nothing. */
static bool merges_are_plain(const struct tokenizer *t) {
    for (size_t i = 0; i <= t->vocab.merge_mask; i++) {
        if (!t->vocab.merges[i].pair) continue;
        const uint64_t pair = t->vocab.merges[i].pair - 1;
        const int32_t ids[] = {(int32_t)(pair >> 32), (int32_t)(uint32_t)pair};
        for (int k = 0; k < 2; k++) {
            const struct span at = t->vocab.tokens[ids[k]];
            const char *const text = t->vocab.spellings.data + at.from;
            if (ids[k] == t->unk_id || fallback_byte(text, at.to - at.from) >= 0) return false;
        }
    }
    return true;
}

/* A character that has neither a token nor a stand-in vanishes, and its neighbours meet. */
static bool nothing_vanishes(const struct tokenizer *t) {
    bool all = t->byte_fallback;
    for (int byte = 0; byte < 256 && all; byte++) {
        all = t->fallback_ids[byte] >= 0;
    }
    return all || t->unk_id >= 0;
}

static bool is_alphanumeric(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

void cuts_prepare(struct tokenizer *t) {
    struct cuts *const cuts = mem_new(1, sizeof *cuts);
    struct str spelling = {0};
    for (uint32_t code = 0; code < CODES_DIRECT; code++) {
        str_clear(&spelling);
        str_append_utf8(&spelling, code);
        cuts->ids[code] = vocab_find(&t->vocab, str_text(&spelling), spelling.len);
        if (code < 0x80) cuts->begins[code] = cuts->ids[code] >= 0;
    }
    cuts->begins[MARK_KIND] = cuts->ids[MARK_CODE] >= 0;
    for (int32_t id = 0; id < t->vocab.size; id++) {
        const struct span at = t->vocab.tokens[id];
        if (t->vocab.flags[id] & TOKEN_MERGED && at.to > at.from)
            join_all(cuts, t->vocab.spellings.data + at.from, at.to - at.from);
    }
    cuts->allowed = nothing_vanishes(t) && merges_are_plain(t);
    str_release(&spelling);
    t->cuts = cuts;
}

size_t cuts_next(const struct cuts *cuts, const struct view *v, size_t from, size_t to) {
    if (!cuts->allowed) return to;
    struct kinds before = kinds_at(v->text + from, to - from);
    for (size_t at = from + before.bytes; at < to; at += before.bytes) {
        const struct kinds now = kinds_at(v->text + at, to - at);
        const bool in_word =
            now.right < 0x80 && is_alphanumeric(now.right) &&
            (before.left >= 0x80 ? before.left != MARK_KIND : is_alphanumeric(before.left));
        if (!in_word && cuts->begins[now.right] && !is_joined(cuts, before.left, now.right))
            return at;
        before = now;
    }
    return to;
}

int32_t cuts_char(const struct tokenizer *t, uint32_t code, const char *text, size_t step) {
    return t->cuts && code < CODES_DIRECT ? t->cuts->ids[code] : vocab_find(&t->vocab, text, step);
}
