/* tokenizer.c - a text's way through the stages, and the questions one can ask a tokenizer.
 *
 * Encoding is two nested walks: over the added tokens of the raw text, and, in the plain text
 * between them, over the added tokens of the normalized text. What is plain in both is cut by the
 * pre-tokenizer and encoded piece by piece. */
#include "engine/text/tokenizer.h"

#include <string.h>

#include "base/mem.h"
#include "engine/text/tokenizer_parts.h"

void token_list_release(struct token_list *list) {
    if (!list) return;
    mem_free(list->ids);
    *list = (struct token_list){0};
}

static void list_add(struct token_list *list, int32_t value) {
    list->ids = mem_grow(list->ids, list->count, &list->capacity, sizeof *list->ids);
    list->ids[list->count++] = value;
}

void sink_add(struct sink *sink, int32_t id, size_t end) {
    list_add(sink->ids, id);
    if (sink->ends) list_add(sink->ends, (int32_t)end);
}

static void list_add_parts(struct token_list *list, const struct part *parts, size_t count) {
    while (list->capacity - list->count < count) {
        list->ids = mem_grow(list->ids, list->capacity, &list->capacity, sizeof *list->ids);
    }
    for (size_t i = 0; i < count; i++) {
        list->ids[list->count + i] = parts[i].id;
    }
    list->count += count;
}

void sink_add_parts(struct sink *sink, const struct view *v, size_t at, const struct part *parts,
                    size_t count) {
    list_add_parts(sink->ids, parts, count);
    for (size_t i = 0; i < count && sink->ends; i++) {
        at += parts[i].len;
        list_add(sink->ends, at > 0 ? (int32_t)view_end(v, at - 1) : 0);
    }
}

/* ---- scratch ---- */

struct scratch_pool *scratch_pool_new(void) {
    struct scratch_pool *const pool = mem_new(1, sizeof *pool);
    ASSERT(pthread_mutex_init(&pool->lock, NULL) == 0);
    return pool;
}

static void scratch_free(struct scratch *s) {
    regex_state_free(s->regex);
    cache_free(s->cache);
    for (int i = 0; i < 2; i++) {
        rewrite_release(&s->norm[i]);
        rewrite_release(&s->pre[i]);
        mem_free(s->pieces[i].items);
    }
    str_release(&s->spelling);
    mem_free(s->symbols);
    mem_free(s->parts);
    mem_free(s->heap);
    mem_free(s);
}

void scratch_pool_free(struct scratch_pool *pool) {
    if (!pool) return;
    while (pool->idle) {
        struct scratch *const s = pool->idle;
        pool->idle = s->next;
        scratch_free(s);
    }
    pthread_mutex_destroy(&pool->lock);
    mem_free(pool);
}

struct scratch *scratch_take(const struct tokenizer *t) {
    struct scratch_pool *const pool = t->pool;
    pthread_mutex_lock(&pool->lock);
    struct scratch *s = pool->idle;
    if (s) pool->idle = s->next;
    if (s) pool->idle_count--;
    pthread_mutex_unlock(&pool->lock);
    if (s) return s;
    s = mem_new(1, sizeof *s);
    s->regex = regex_state_new();
    s->cache = cache_new();
    return s;
}

void scratch_give(const struct tokenizer *t, struct scratch *s) {
    struct scratch_pool *const pool = t->pool;
    pthread_mutex_lock(&pool->lock);
    const bool keep = pool->idle_count < SCRATCH_KEPT_MAX;
    s->next = keep ? pool->idle : NULL;
    if (keep) pool->idle = s;
    if (keep) pool->idle_count++;
    pthread_mutex_unlock(&pool->lock);
    if (!keep) scratch_free(s);
}

/* ---- encoding ---- */

static enum status encode_plain(const struct tokenizer *t, struct scratch *s, const struct view *v,
                                struct sink *sink, struct err *e) {
    struct view cut;
    int which = 0;
    TRY(pre_tokenize(t, s, v, &cut, &which, e));
    const struct spans *const pieces = &s->pieces[which];
    for (size_t i = 0; i < pieces->count; i++) {
        bpe_encode(t, s, &cut, pieces->items[i], sink);
    }
    return STATUS_OK;
}

static struct view view_part(const struct view *v, size_t from, size_t to) {
    const size_t base = from == 0 ? v->base : view_end(v, from - 1);
    return (struct view){v->text + from, to - from, v->ends ? v->ends + from : NULL, base};
}

static enum status encode_normalized(const struct tokenizer *t, struct scratch *s,
                                     const struct view *v, enum special_mode mode,
                                     struct sink *sink, struct err *e) {
    size_t done = 0;
    struct added_match match = {0};
    while (added_next(t, &t->normalized, v->text, v->len, mode, &match)) {
        const struct view plain = view_part(v, done, match.text.from);
        if (plain.len > 0) TRY(encode_plain(t, s, &plain, sink, e));
        sink_add(sink, t->added[match.index].id,
                 match.text.to > 0 ? view_end(v, match.text.to - 1) : v->base);
        done = match.text.to;
    }
    const struct view rest = view_part(v, done, v->len);
    return rest.len > 0 ? encode_plain(t, s, &rest, sink, e) : STATUS_OK;
}

static enum status encode_between(const struct tokenizer *t, struct scratch *s, const char *text,
                                  struct span plain, enum special_mode mode, struct sink *sink,
                                  struct err *e) {
    if (plain.from == plain.to) return STATUS_OK;
    struct view v = {.text = text + plain.from, .len = plain.to - plain.from, .base = plain.from};
    TRY(normalize(t, s, &v, &v, e));
    return encode_normalized(t, s, &v, mode, sink, e);
}

static enum status encode_raw(const struct tokenizer *t, struct scratch *s, const char *text,
                              size_t len, enum special_mode mode, struct sink *sink,
                              struct err *e) {
    uint32_t done = 0;
    struct added_match match = {0};
    while (added_next(t, &t->raw, text, len, mode, &match)) {
        TRY(encode_between(t, s, text, (struct span){done, match.text.from}, mode, sink, e));
        sink_add(sink, t->added[match.index].id, match.text.to);
        done = match.text.to;
    }
    return encode_between(t, s, text, (struct span){done, (uint32_t)len}, mode, sink, e);
}

static enum status encode(const struct tokenizer *t, const char *text, size_t len,
                          enum special_mode mode, struct sink *sink, struct err *e) {
    FAIL_IF(len > TEXT_BYTES_MAX, STATUS_INVALID,
            "a text of %zu bytes is too long to encode at once", len);
    const size_t valid = utf8_valid_prefix(text, len);
    FAIL_IF(valid != len, STATUS_INVALID, "the text is not valid UTF-8 at byte %zu", valid);
    struct scratch *const s = scratch_take(t);
    for (int i = 0; i < 2; i++) {
        s->norm[i].tracked = s->pre[i].tracked = sink->ends || t->needs_ends;
    }
    const enum status status = encode_raw(t, s, text, len, mode, sink, e);
    scratch_give(t, s);
    return status;
}

enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                             enum special_mode mode, bool with_post_processor,
                             struct token_list *out, struct err *e) {
    struct sink sink = {out, NULL};
    for (int i = 0; with_post_processor && i < t->prefix_count; i++) {
        list_add(out, t->prefix[i]);
    }
    TRY(encode(t, text, len, mode, &sink, e));
    for (int i = 0; with_post_processor && i < t->suffix_count; i++) {
        list_add(out, t->suffix[i]);
    }
    return STATUS_OK;
}

enum status tokenizer_encode_offsets(const struct tokenizer *t, const char *text, size_t len,
                                     enum special_mode mode, struct token_list *out,
                                     struct token_list *ends, struct err *e) {
    struct sink sink = {out, ends};
    return encode(t, text, len, mode, &sink, e);
}

/* ---- questions ---- */

int32_t tokenizer_size(const struct tokenizer *t) {
    return t->vocab.size;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *token) {
    return vocab_find(&t->vocab, token, strlen(token));
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id) {
    const bool used = id >= 0 && id < t->vocab.size && (t->vocab.flags[id] & TOKEN_USED);
    return used ? t->vocab.spellings.data + t->vocab.tokens[id].from : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) {
    return id >= 0 && id < t->vocab.size && (t->vocab.flags[id] & TOKEN_SPECIAL);
}

static int64_t count_in(const struct tokenizer *t, const struct trie *trie, const char *text,
                        size_t len) {
    int64_t count = 0;
    struct added_match match = {0};
    while (added_next(t, trie, text, len, SPECIAL_PARSE, &match)) {
        count += t->added[match.index].special;
    }
    return count;
}

int64_t tokenizer_count_special(const struct tokenizer *t, const char *text, size_t len) {
    int64_t count = t->raw.has_special ? count_in(t, &t->raw, text, len) : 0;
    if (t->normalized.has_special) count += count_in(t, &t->normalized, text, len);
    return count;
}

int64_t tokenizer_dropped(const struct tokenizer *t) {
    return atomic_load(&t->pool->dropped);
}

const char *tokenizer_notes(const struct tokenizer *t) {
    return str_text(&t->notes);
}

const char *tokenizer_warnings(const struct tokenizer *t) {
    return str_text(&t->warnings);
}
