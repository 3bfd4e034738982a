/* tokenizer_text.c - a text on its way through the stages, and the file's patterns that search it.
 *
 * Offsets: a view that was never rewritten ends byte i at base + i + 1, for free. As soon as a
 * stage rewrites the text, each byte carries the end of its source, so tokens can be traced back to
 * the original text; what a rewrite replaces as a whole ends as a whole. When nobody asks for
 * offsets, rewrites keep none. */
#include "engine/text/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

void rewrite_clear(struct rewrite *r) {
    str_clear(&r->text);
}

void rewrite_release(struct rewrite *r) {
    str_release(&r->text);
    mem_free(r->ends);
    *r = (struct rewrite){0};
}

static void reserve_ends(struct rewrite *r, size_t count) {
    if (count <= r->capacity) return;
    r->capacity = count + count / 2 + 64;
    r->ends = mem_resize(r->ends, r->capacity, sizeof *r->ends);
}

void rewrite_append(struct rewrite *r, const char *bytes, size_t len, uint32_t end) {
    const size_t at = r->text.len;
    if (r->tracked) reserve_ends(r, at + len);
    for (size_t i = 0; i < len && r->tracked; i++) {
        r->ends[at + i] = end;
    }
    str_append_bytes(&r->text, bytes, len);
}

uint32_t view_end(const struct view *v, size_t at) {
    return v->ends ? v->ends[at] : (uint32_t)(v->base + at + 1);
}

void rewrite_copy(struct rewrite *r, const struct view *v, size_t from, size_t to) {
    if (from == to) return;
    const size_t at = r->text.len;
    if (r->tracked) reserve_ends(r, at + (to - from));
    for (size_t i = from; i < to && r->tracked; i++) {
        r->ends[at + i - from] = view_end(v, i);
    }
    str_append_bytes(&r->text, v->text + from, to - from);
}

struct view rewrite_view(const struct rewrite *r, size_t base) {
    return (struct view){.text = str_text(&r->text),
                         .len = r->text.len,
                         .ends = r->tracked ? r->ends : NULL,
                         .base = base};
}

void spans_add(struct spans *s, size_t from, size_t to) {
    s->items = mem_grow(s->items, s->count, &s->capacity, sizeof *s->items);
    s->items[s->count++] = (struct span){(uint32_t)from, (uint32_t)to};
}

void pattern_release(struct pattern *p) {
    mem_free(p->literal);
    mem_free(p->source);
    regex_free(p->regex);
    *p = (struct pattern){0};
}

enum status pattern_find(const struct pattern *p, struct regex_state *state, const struct view *v,
                         size_t from, struct span *match, bool *found, struct err *e) {
    if (p->literal) {
        const char *const at = memmem(v->text + from, v->len - from, p->literal, p->literal_len);
        *found = at != NULL;
        if (at) match->from = (uint32_t)(at - v->text);
        if (at) match->to = match->from + (uint32_t)p->literal_len;
        return STATUS_OK;
    }
    for (*found = false; from < v->len;) {
        struct regex_match m = {0};
        TRY(regex_find(p->regex, state, v->text, v->len, from, &m, e));
        if (!m.found) return STATUS_OK;
        if (m.to > m.from) {
            *match = (struct span){(uint32_t)m.from, (uint32_t)m.to};
            *found = true;
            return STATUS_OK;
        }
        /* An empty match splits nothing; go on behind the next character. */
        for (from = m.from + 1; from < v->len && ((unsigned char)v->text[from] & 0xC0) == 0x80;) {
            from++;
        }
    }
    return STATUS_OK;
}
