/* tokenizer_model.c - the "model" and "post_processor" parts of tokenizer.json: vocabulary, merges,
 * what is put around.
 *
 * Merges come in two spellings, "a b" and ["a","b"]; a list that mixes them is an error, since a
 * reader that skips half the merges tokenizes everything wrongly without a word. Each merge must
 * name tokens that exist, its product included. */
#include "engine/text/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

enum { ID_LIMIT = 1 << 24, IDS_PER_TOKEN_MAX = 16, ID_SLACK = 1 << 16 };

static enum status read_id(const cJSON *value, const struct where *at, const char *token,
                           int32_t *out, struct err *e) {
    const bool good = cJSON_IsNumber(value) && value->valuedouble >= 0 &&
                      value->valuedouble < ID_LIMIT &&
                      value->valuedouble == (double)(int32_t)value->valuedouble;
    FAIL_IF(!good, STATUS_INVALID, "%s: the id of \"%.80s\" is not a whole number below %d",
            at->text, token, ID_LIMIT);
    *out = (int32_t)value->valuedouble;
    return STATUS_OK;
}

/* The tables are sized by the largest id; a few tokens with huge ids would make them huge. */
static enum status size_vocab(struct tokenizer *t, const cJSON *vocab, const cJSON *added,
                              const struct where *at, struct err *e) {
    int32_t limit = 0, id = 0;
    size_t count = 0;
    for (const cJSON *item = vocab->child; item; item = item->next, count++) {
        TRY(read_id(item, at, item->string, &id, e));
        if (id >= limit) limit = id + 1;
    }
    for (const cJSON *item = cJSON_IsArray(added) ? added->child : NULL; item;
         item = item->next, count++) {
        TRY(read_id(json_member(item, "id"), at, "an added token", &id, e));
        if (id >= limit) limit = id + 1;
    }
    FAIL_IF((size_t)limit > count * IDS_PER_TOKEN_MAX + ID_SLACK, STATUS_INVALID,
            "%s: %zu tokens with ids up to %d: most ids would be unused", at->text, count,
            limit - 1);
    vocab_reserve(&t->vocab, count, limit);
    return STATUS_OK;
}

static enum status read_vocab(struct tokenizer *t, const cJSON *vocab, const cJSON *added,
                              struct err *e) {
    const struct where at = where_root("model.vocab");
    FAIL_IF(!cJSON_IsObject(vocab), STATUS_INVALID, "%s: expected an object of token -> id",
            at.text);
    TRY(size_vocab(t, vocab, added, &at, e));
    for (const cJSON *item = vocab->child; item; item = item->next) {
        const size_t len = strlen(item->string);
        if (vocab_add(&t->vocab, item->string, len, (int32_t)item->valuedouble, e) == STATUS_OK)
            continue;
        return err_prefix(e, "%s", at.text);
    }
    return STATUS_OK;
}

/* The two parts of a merge in either spelling. */
static enum status merge_parts(const cJSON *item, bool pairs, const struct where *at,
                               const char *parts[2], size_t lens[2], struct err *e) {
    FAIL_IF(pairs != cJSON_IsArray(item), STATUS_INVALID,
            "%s: this merge is %s, the ones before are not; one spelling must be used throughout",
            at->text, pairs ? "not a pair" : "not a string");
    if (pairs) {
        const cJSON *const left = item->child, *const right = left ? left->next : NULL;
        const bool good = cJSON_IsString(left) && cJSON_IsString(right) && !right->next;
        FAIL_IF(!good, STATUS_INVALID, "%s: expected a pair of strings", at->text);
        parts[0] = left->valuestring;
        parts[1] = right->valuestring;
        lens[0] = strlen(parts[0]);
        lens[1] = strlen(parts[1]);
        return STATUS_OK;
    }
    FAIL_IF(!cJSON_IsString(item), STATUS_INVALID, "%s: expected a string", at->text);
    const char *const text = item->valuestring;
    const char *const space = strchr(text, ' ');
    FAIL_IF(!space || strchr(space + 1, ' '), STATUS_INVALID,
            "%s: \"%.80s\" is not two parts with one space", at->text, text);
    parts[0] = text;
    parts[1] = space + 1;
    lens[0] = (size_t)(space - text);
    lens[1] = strlen(parts[1]);
    return STATUS_OK;
}

static enum status read_merge(struct tokenizer *t, const cJSON *item, bool pairs, int index,
                              struct str *product, struct err *e) {
    const struct where root = where_root("model.merges");
    const char *parts[2] = {NULL, NULL};
    size_t lens[2] = {0, 0};
    int32_t ids[3];
    const bool version =
        index == 0 && cJSON_IsString(item) && str_starts_with(item->valuestring, "#version");
    if (version) return STATUS_OK;
    /* The place is only spelled out for an error: there are hundreds of thousands of merges. */
    struct err nowhere = {0};
    if (merge_parts(item, pairs, &root, parts, lens, &nowhere) != STATUS_OK) {
        const struct where at = where_index(&root, index);
        return merge_parts(item, pairs, &at, parts, lens, e);
    }
    str_clear(product);
    str_append_bytes(product, parts[0], lens[0]);
    str_append_bytes(product, parts[1], lens[1]);
    ids[0] = vocab_find(&t->vocab, parts[0], lens[0]);
    ids[1] = vocab_find(&t->vocab, parts[1], lens[1]);
    ids[2] = vocab_find(&t->vocab, str_text(product), product->len);
    for (int i = 0; i < 3; i++) {
        const char *const text = i < 2 ? parts[i] : str_text(product);
        const int len = (int)(i < 2 ? lens[i] : product->len);
        FAIL_IF(ids[i] < 0, STATUS_INVALID, "%s[%d]: \"%.*s\" is not in the vocabulary", root.text,
                index, len < 80 ? len : 80, text);
    }
    return vocab_add_merge(&t->vocab, ids[0], ids[1], (uint32_t)index, ids[2], e);
}

static enum status read_merges(struct tokenizer *t, const cJSON *merges, struct err *e) {
    const struct where at = where_root("model.merges");
    FAIL_IF(!cJSON_IsArray(merges), STATUS_INVALID, "%s: expected a list", at.text);
    const cJSON *const first = merges->child;
    FAIL_IF(!first && !t->ignore_merges, STATUS_INVALID,
            "%s: there are no merges, so every word would fall apart into characters", at.text);
    vocab_reserve_merges(&t->vocab, (size_t)cJSON_GetArraySize(merges));
    struct str product = {0};
    enum status status = STATUS_OK;
    int index = 0;
    for (const cJSON *item = first; item && status == STATUS_OK; item = item->next, index++) {
        status = read_merge(t, item, cJSON_IsArray(first), index, &product, e);
    }
    str_release(&product);
    return status;
}

/* True if no merge makes a token in which U+2581 follows something else. */
static bool splits_before_space(const struct vocab *v) {
    static const char MARK[] = "\xE2\x96\x81";
    if (vocab_find(v, MARK, 3) < 0) return false;
    for (size_t i = 0; i <= v->merge_mask; i++) {
        if (v->merges[i].pair == UINT64_MAX) continue;
        const struct span at = v->tokens[v->merges[i].id];
        const char *const text = v->spellings.data + at.from;
        const size_t len = at.to - at.from;
        for (size_t k = 1; k + 3 <= len; k++) {
            if (memcmp(text + k, MARK, 3) != 0) continue;
            if (k < 3 || memcmp(text + k - 3, MARK, 3) != 0) return false;
        }
    }
    return true;
}

static void find_byte_ids(struct tokenizer *t) {
    for (int byte = 0; byte < 256; byte++) {
        struct str spelling = {0};
        str_append_utf8(&spelling, byte_to_code((unsigned char)byte));
        t->byte_ids[byte] = vocab_find(&t->vocab, str_text(&spelling), spelling.len);
        str_clear(&spelling);
        str_appendf(&spelling, "<0x%02X>", byte);
        t->fallback_ids[byte] = vocab_find(&t->vocab, str_text(&spelling), spelling.len);
        str_release(&spelling);
    }
}

static enum status read_flags(struct tokenizer *t, const cJSON *model, const struct where *at,
                              struct err *e) {
    static const char *const AFFIXES[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < COUNT_OF(AFFIXES); i++) {
        const char *affix = NULL;
        TRY(json_get_string(model, AFFIXES[i], &affix, e));
        FAIL_IF(affix && *affix, STATUS_UNSUPPORTED, "%s.%s: is not supported", at->text,
                AFFIXES[i]);
    }
    double dropout = 0;
    TRY(json_get_f64(model, "dropout", &dropout, e));
    FAIL_IF(dropout != 0, STATUS_UNSUPPORTED,
            "%s.dropout: is %g; only 0 gives the same ids each time", at->text, dropout);
    TRY(json_bool_or(model, "byte_fallback", false, at, &t->byte_fallback, e));
    TRY(json_bool_or(model, "fuse_unk", false, at, &t->fuse_unk, e));
    return json_bool_or(model, "ignore_merges", false, at, &t->ignore_merges, e);
}

enum status read_model(struct tokenizer *t, const cJSON *file, struct err *e) {
    static const char *const KEYS[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "end_of_word_suffix",
                                       "vocab",
                                       "merges",
                                       NULL};
    const cJSON *const model = json_member(file, "model");
    const struct where at = where_root("model");
    FAIL_IF(!cJSON_IsObject(model), STATUS_INVALID, "%s: expected an object", at.text);
    const char *type = NULL, *unk = NULL;
    TRY(json_get_string(model, "type", &type, e));
    const bool bpe = type ? str_equal(type, "BPE") : json_member(model, "merges") != NULL;
    FAIL_IF(!bpe, STATUS_UNSUPPORTED, "%s.type: \"%.60s\" is not supported, only BPE", at.text,
            type ? type : "");
    TRY(json_only(model, &at, KEYS, e));
    TRY(read_flags(t, model, &at, e));
    TRY(read_vocab(t, json_member(model, "vocab"), json_member(file, "added_tokens"), e));
    TRY(read_merges(t, json_member(model, "merges"), e));
    TRY(json_get_string(model, "unk_token", &unk, e));
    t->unk_id = unk ? vocab_find(&t->vocab, unk, strlen(unk)) : -1;
    FAIL_IF(unk && t->unk_id < 0, STATUS_INVALID,
            "%s.unk_token: \"%.80s\" is not in the vocabulary", at.text, unk);
    find_byte_ids(t);
    t->splits_before_space = !t->bytes_direct && splits_before_space(&t->vocab);
    return STATUS_OK;
}
