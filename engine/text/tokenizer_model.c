/* tokenizer_model.c - the "model" and "post_processor" parts of tokenizer.json: vocabulary, merges,
 * what is put around.
 *
 * Merges come in two spellings, "a b" and ["a","b"]; a list that mixes them is an error, since a
 * reader that skips half the merges tokenizes everything wrongly without a word. Each merge must
 * name tokens that exist, its product included. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/tokenizer_parts.h"

enum {
    IDS_PER_TOKEN_MAX = 16,
    ID_SLACK = 1 << 16,
    MERGE_BLOCK = 64,
    AHEAD = 16, /* entries whose place in the table is fetched in advance */
};

static const char VOCAB[] = "tokenizer.json: model.vocab",
                  MERGES[] = "tokenizer.json: model.merges";

static enum status bad_id(const char *at, const char *token, struct err *e) {
    return err_set(e, STATUS_INVALID, "%s: the id of \"%.80s\" is not a whole number below %d", at,
                   token, TOKEN_ID_LIMIT);
}

static enum status read_added_id(const cJSON *value, int32_t *out, struct err *e) {
    const bool good = cJSON_IsNumber(value) && value->valuedouble >= 0 &&
                      value->valuedouble < TOKEN_ID_LIMIT &&
                      value->valuedouble == (double)(int32_t)value->valuedouble;
    if (!good) return bad_id(VOCAB, "an added token", e);
    *out = (int32_t)value->valuedouble;
    return STATUS_OK;
}

/* ---- vocabulary ---- */

/* The tables are sized by the largest id; a few tokens with huge ids would make them huge. */
static enum status size_vocab(struct tokenizer *t, const struct entries *entries,
                              const cJSON *added, struct err *e) {
    int32_t limit = 0, id = 0;
    size_t count = entries->count;
    for (size_t i = 0; i < entries->count; i++) {
        if (entries->items[i].id >= limit) limit = entries->items[i].id + 1;
    }
    for (const cJSON *item = cJSON_IsArray(added) ? added->child : NULL; item;
         item = item->next, count++) {
        TRY(read_added_id(json_member(item, "id"), &id, e));
        if (id >= limit) limit = id + 1;
    }
    FAIL_IF((size_t)limit > count * IDS_PER_TOKEN_MAX + ID_SLACK, STATUS_INVALID,
            "%s: %zu tokens with ids up to %d: most ids would be unused", VOCAB, count, limit - 1);
    vocab_reserve(&t->vocab, count, limit);
    return STATUS_OK;
}

static enum status read_vocab(struct tokenizer *t, const struct entries *entries,
                              const cJSON *added, struct err *e) {
    FAIL_IF(!entries->there, STATUS_INVALID, "%s: expected an object of token -> id", VOCAB);
    TRY(size_vocab(t, entries, added, e));
    for (size_t i = 0, from = 0; i < entries->count; from = entries->items[i++].to) {
        const struct entry *const entry = &entries->items[i];
        if (i + AHEAD < entries->count) {
            const size_t begin = entries->items[i + AHEAD - 1].to;
            vocab_expect(&t->vocab, str_text(&entries->text) + begin,
                         entries->items[i + AHEAD].to - begin);
        }
        const char *const text = str_text(&entries->text) + from;
        if (vocab_add(&t->vocab, text, entry->to - from, entry->id, e) != STATUS_OK)
            return err_prefix(e, "%s", VOCAB);
    }
    return STATUS_OK;
}

/* ---- merges ---- */

/* Merges [from, from + count): what they are made of is looked up for all of them at once. */
static enum status add_merges(struct tokenizer *t, const struct merges *m, size_t from,
                              size_t count, struct err *e) {
    struct piece parts[MERGE_BLOCK * 3] = {0};
    int32_t ids[MERGE_BLOCK * 3] = {0};
    for (size_t i = 0; i < count; i++) {
        const struct merge *const merge = &m->items[from + i];
        const char *const text = str_text(&m->text);
        parts[i * 3] = (struct piece){text + merge->from, merge->middle - merge->from};
        parts[i * 3 + 1] = (struct piece){text + merge->middle, merge->to - merge->middle};
        parts[i * 3 + 2] = (struct piece){text + merge->from, merge->to - merge->from};
    }
    vocab_find_many(&t->vocab, parts, count * 3, ids);
    vocab_expect_merges(&t->vocab, ids, count);
    for (size_t i = 0; i < count * 3; i++) {
        const size_t rank = from + i / 3 + m->skipped, len = parts[i].len;
        FAIL_IF(ids[i] < 0, STATUS_INVALID, "%s[%zu]: \"%.*s\" is not in the vocabulary", MERGES,
                rank, (int)(len < 80 ? len : 80), parts[i].text);
        if (i % 3 == 2) TRY(vocab_add_merge(&t->vocab, ids + i - 2, (uint32_t)rank, e));
    }
    return STATUS_OK;
}

static enum status read_merges(struct tokenizer *t, const struct merges *m, struct err *e) {
    FAIL_IF(!m->there, STATUS_INVALID, "%s: expected a list", MERGES);
    FAIL_IF(m->count == 0 && !t->ignore_merges, STATUS_INVALID,
            "%s: there are no merges, so every word would fall apart into characters", MERGES);
    vocab_reserve_merges(&t->vocab, m->count);
    for (size_t i = 0; i < m->count; i += MERGE_BLOCK) {
        TRY(add_merges(t, m, i, m->count - i < MERGE_BLOCK ? m->count - i : MERGE_BLOCK, e));
    }
    return STATUS_OK;
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

enum status read_model(struct tokenizer *t, struct tokenizer_file *file, struct err *e) {
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
    const cJSON *const model = json_member(file->rest, "model");
    const struct where at = where_root("model");
    FAIL_IF(!cJSON_IsObject(model), STATUS_INVALID, "%s: expected an object", at.text);
    const char *type = NULL, *unk = NULL;
    TRY(json_get_string(model, "type", &type, e));
    const bool bpe = type ? str_equal(type, "BPE") : json_member(model, "merges") != NULL;
    FAIL_IF(!bpe, STATUS_UNSUPPORTED, "%s.type: \"%.60s\" is not supported, only BPE", at.text,
            type ? type : "");
    TRY(json_only(model, &at, KEYS, e));
    TRY(read_flags(t, model, &at, e));
    TRY(read_vocab(t, &file->entries, json_member(file->rest, "added_tokens"), e));
    TRY(read_merges(t, &file->merges, e));
    TRY(json_get_string(model, "unk_token", &unk, e));
    t->unk_id = unk ? vocab_find(&t->vocab, unk, strlen(unk)) : -1;
    FAIL_IF(unk && t->unk_id < 0, STATUS_INVALID,
            "%s.unk_token: \"%.80s\" is not in the vocabulary", at.text, unk);
    find_byte_ids(t);
    if (!t->bytes_direct) cuts_prepare(t);
    return STATUS_OK;
}
