/* tokenizer_added.c - finding added tokens in a text: leftmost, longest, with their flags.
 *
 * A trie in one hash table. The search is bounded by text length times the longest spelling; the
 * table of first bytes keeps plain text at memory speed. lstrip and rstrip reach over neighbouring
 * white space, never into the match before. */
#include "engine/text/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

struct trie_edge {
    uint64_t key; /* node << 8 | byte, plus 1; 0 when free */
    uint32_t child;
};

enum { ADDED_COUNT_MAX = 1 << 20, ADDED_BYTES_MAX = 1024 };

void trie_release(struct trie *trie) {
    mem_free(trie->edges);
    mem_free(trie->token_of);
    *trie = (struct trie){0};
}

static struct trie_edge *find_edge(const struct trie *trie, uint32_t node, unsigned char byte) {
    const uint64_t key = ((uint64_t)node << 8 | byte) + 1;
    size_t slot = (size_t)((key * 0x9E3779B97F4A7C15u) >> 20) & trie->edge_mask;
    while (trie->edges[slot].key && trie->edges[slot].key != key) {
        slot = (slot + 1) & trie->edge_mask;
    }
    return &trie->edges[slot];
}

static uint32_t new_node(struct trie *trie) {
    trie->token_of =
        mem_grow(trie->token_of, trie->node_count, &trie->node_capacity, sizeof *trie->token_of);
    trie->token_of[trie->node_count] = -1;
    return (uint32_t)trie->node_count++;
}

static void grow_edges(struct trie *trie) {
    if (trie->edges && trie->edge_count * 2 < trie->edge_mask) return;
    const struct trie old = *trie;
    trie->edge_mask = old.edges ? old.edge_mask * 2 + 1 : 255;
    trie->edges = mem_new(trie->edge_mask + 1, sizeof *trie->edges);
    for (size_t i = 0; old.edges && i <= old.edge_mask; i++) {
        if (!old.edges[i].key) continue;
        const uint64_t key = old.edges[i].key - 1;
        *find_edge(trie, (uint32_t)(key >> 8), (unsigned char)key) = old.edges[i];
    }
    mem_free(old.edges);
}

static void trie_add(struct trie *trie, const char *text, size_t len, int32_t token) {
    if (trie->node_count == 0) new_node(trie);
    uint32_t node = 0;
    for (size_t i = 0; i < len; i++) {
        grow_edges(trie);
        struct trie_edge *const edge = find_edge(trie, node, (unsigned char)text[i]);
        if (!edge->key) {
            *edge = (struct trie_edge){((uint64_t)node << 8 | (unsigned char)text[i]) + 1,
                                       new_node(trie)};
            trie->edge_count++;
        }
        node = edge->child;
    }
    trie->first[(unsigned char)text[0]] = true;
    if (trie->token_of[node] < 0)
        trie->token_of[node] = token; /* of equal spellings the first counts */
}

/* The longest token that starts at `from`, or -1. */
static int32_t longest_at(const struct trie *trie, const char *text, size_t len, size_t from,
                          size_t *to) {
    int32_t best = -1;
    uint32_t node = 0;
    for (size_t at = from; at < len; at++) {
        const struct trie_edge *const edge = find_edge(trie, node, (unsigned char)text[at]);
        if (!edge->key) break;
        node = edge->child;
        if (trie->token_of[node] >= 0) {
            best = trie->token_of[node];
            *to = at + 1;
        }
    }
    return best;
}

static bool stands_alone(const char *text, size_t len, size_t from, size_t to) {
    uint32_t code = 0;
    size_t start = 0;
    if (from > 0 && unicode_is_word(unicode_before(text, from, &start))) return false;
    return to >= len || utf8_decode(text + to, len - to, &code) == 0 || !unicode_is_word(code);
}

static void stretch(const struct added_token *token, const char *text, size_t len, size_t taken,
                    struct added_match *match) {
    size_t from = match->text.from, to = match->text.to, start = 0;
    uint32_t code = 0;
    while (token->lstrip && from > taken && unicode_is_space(unicode_before(text, from, &start))) {
        from = start;
    }
    while (token->rstrip && to < len) {
        const int step = utf8_decode(text + to, len - to, &code);
        if (step == 0 || !unicode_is_space(code)) break;
        to += (size_t)step;
    }
    /* White space that the match before swallowed is not plain text again. */
    if (from < taken) from = taken < to ? taken : to;
    match->text = (struct span){(uint32_t)from, (uint32_t)to};
}

bool added_next(const struct tokenizer *t, const struct trie *trie, const char *text, size_t len,
                enum special_mode mode, struct added_match *match) {
    const size_t taken = match->text.to;
    if (trie->node_count == 0) return false;
    for (size_t at = match->resume; at < len;) {
        size_t to = 0;
        const bool maybe = trie->first[(unsigned char)text[at]];
        const int32_t index = maybe ? longest_at(trie, text, len, at, &to) : -1;
        if (index < 0) {
            at++;
            continue;
        }
        const struct added_token *const token = &t->added[index];
        const bool ignored = (mode == SPECIAL_TEXT && token->special) ||
                             (token->single_word && !stands_alone(text, len, at, to));
        if (ignored) {
            at = to;
            continue;
        }
        *match = (struct added_match){index, {(uint32_t)at, (uint32_t)to}, to};
        stretch(token, text, len, taken, match);
        return true;
    }
    return false;
}

static enum status read_one(struct tokenizer *t, const cJSON *value, const struct where *at,
                            struct err *e) {
    static const char *const KEYS[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    TRY(json_only(value, at, KEYS, e));
    struct added_token token = {0};
    const char *content = NULL;
    int64_t id = -1;
    TRY(json_text(value, "content", at, &content, e));
    TRY(json_get_i64(value, "id", &id, e));
    TRY(json_bool_or(value, "single_word", false, at, &token.single_word, e));
    TRY(json_bool_or(value, "lstrip", false, at, &token.lstrip, e));
    TRY(json_bool_or(value, "rstrip", false, at, &token.rstrip, e));
    TRY(json_bool_or(value, "special", false, at, &token.special, e));
    TRY(json_bool_or(value, "normalized", !token.special, at, &token.normalized, e));
    const size_t len = strlen(content);
    FAIL_IF(id < 0 || id >= t->vocab.id_capacity, STATUS_INVALID, "%s.id: %lld is not a token id",
            at->text, (long long)id);
    FAIL_IF(len == 0 || len > ADDED_BYTES_MAX, STATUS_INVALID,
            "%s.content: has %zu bytes, expected 1 to %d", at->text, len, ADDED_BYTES_MAX);
    if (vocab_find(&t->vocab, content, len) != (int32_t)id) {
        const enum status status = vocab_add(&t->vocab, content, len, (int32_t)id, e);
        if (status != STATUS_OK) return err_prefix(e, "%s", at->text);
    }
    t->vocab.flags[id] |= (unsigned char)(TOKEN_ADDED | (token.special ? TOKEN_SPECIAL : 0));
    token.id = (int32_t)id;
    token.content = mem_strdup(content);
    t->added = mem_grow(t->added, t->added_count, &t->added_capacity, sizeof *t->added);
    t->added[t->added_count++] = token;
    return STATUS_OK;
}

/* Tokens with normalized:true are searched in normalized text, so by their normalized spelling. */
static enum status build_tries(struct tokenizer *t, struct err *e) {
    struct scratch *const s = scratch_take(t);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < t->added_count && status == STATUS_OK; i++) {
        const struct added_token *const token = &t->added[i];
        struct view spelling = {.text = token->content, .len = strlen(token->content)};
        struct trie *const trie = token->normalized ? &t->normalized : &t->raw;
        if (token->normalized) status = normalize(t, s, &spelling, &spelling, e);
        if (status != STATUS_OK || spelling.len == 0) continue;
        trie_add(trie, spelling.text, spelling.len, (int32_t)i);
        trie->has_special = trie->has_special || token->special;
    }
    scratch_give(t, s);
    return status;
}

enum status read_added_tokens(struct tokenizer *t, const cJSON *file, struct err *e) {
    const cJSON *const list = json_member(file, "added_tokens");
    const struct where at = where_root("added_tokens");
    if (!list || cJSON_IsNull(list)) return STATUS_OK;
    FAIL_IF(!cJSON_IsArray(list), STATUS_INVALID, "%s: expected a list", at.text);
    int index = 0;
    for (const cJSON *item = list->child; item; item = item->next, index++) {
        const struct where here = where_index(&at, index);
        FAIL_IF(index == ADDED_COUNT_MAX, STATUS_UNSUPPORTED, "%s: too many added tokens",
                here.text);
        TRY(read_one(t, item, &here, e));
    }
    return build_tries(t, e);
}
