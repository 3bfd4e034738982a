/* tokenizer_norm.c - the normalizer: what a text becomes before it is cut, with offsets back to the
 * original.
 *
 * Normal forms are computed chunk by chunk, a chunk being an ASCII character and what follows up to
 * the next one (an ASCII character never combines with what is before it). A chunk that changes
 * ends, as a whole, where its source ends; all else keeps exact offsets. A text that no step
 * changes is passed on without a copy. */
#include "engine/text/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

void norm_step_release(struct norm_step *s) {
    mem_free(s->content);
    pattern_release(&s->pattern);
    *s = (struct norm_step){0};
}

static enum status read_strip(struct norm_step *step, const cJSON *value, const struct where *at,
                              struct err *e) {
    static const char *const KEYS[] = {"type", "strip_left", "strip_right", NULL};
    TRY(json_only(value, at, KEYS, e));
    step->kind = NORM_STRIP;
    TRY(json_bool_or(value, "strip_left", true, at, &step->left, e));
    return json_bool_or(value, "strip_right", true, at, &step->right, e);
}

static enum status read_content(struct norm_step *step, const cJSON *value, const char *key,
                                const struct where *at, struct err *e) {
    const char *content = NULL;
    TRY(json_text(value, key, at, &content, e));
    FAIL_IF(strlen(content) > TOKEN_BYTES_MAX, STATUS_UNSUPPORTED, "%s.%s: is too long", at->text,
            key);
    step->content = mem_strdup(content);
    return STATUS_OK;
}

static enum status read_one(struct tokenizer *t, const cJSON *value, const char *type,
                            const struct where *at, struct err *e) {
    static const char *const PLAIN_KEYS[] = {"type", NULL};
    static const char *const PREPEND_KEYS[] = {"type", "prepend", NULL};
    static const char *const REPLACE_KEYS[] = {"type", "pattern", "content", NULL};
    static const char *const FORMS[] = {"NFC", "NFD", "NFKC", "NFKD"};
    FAIL_IF(t->norm_count == STEP_COUNT_MAX, STATUS_UNSUPPORTED, "%s: too many steps", at->text);
    struct norm_step *const step = &t->norm[t->norm_count++];
    for (size_t i = 0; i < COUNT_OF(FORMS); i++) {
        if (!str_equal(type, FORMS[i])) continue;
        step->kind = NORM_FORM;
        step->form = (enum unicode_form)i;
        return json_only(value, at, PLAIN_KEYS, e);
    }
    if (str_equal(type, "Lowercase")) {
        step->kind = NORM_LOWERCASE;
        return json_only(value, at, PLAIN_KEYS, e);
    }
    if (str_equal(type, "Prepend")) {
        step->kind = NORM_PREPEND;
        TRY(json_only(value, at, PREPEND_KEYS, e));
        return read_content(step, value, "prepend", at, e);
    }
    if (str_equal(type, "Replace")) {
        step->kind = NORM_REPLACE;
        TRY(json_only(value, at, REPLACE_KEYS, e));
        TRY(read_content(step, value, "content", at, e));
        return read_pattern(value, at, &step->pattern, e);
    }
    if (str_equal(type, "Strip")) return read_strip(step, value, at, e);
    return refuse_type(type, at, e);
}

enum status read_normalizer(struct tokenizer *t, const cJSON *file, struct err *e) {
    const struct where at = where_root("normalizer");
    return read_sequence(t, json_member(file, "normalizer"), "normalizers", &at, 0, read_one, e);
}

static bool is_ascii(const char *text, size_t len) {
    size_t at = 0;
    for (uint64_t word = 0; at + 8 <= len; at += 8) {
        memcpy(&word, text + at, 8);
        if (word & 0x8080808080808080u) return false;
    }
    for (; at < len; at++) {
        if ((unsigned char)text[at] & 0x80) return false;
    }
    return true;
}

/* What is common before and behind the change keeps its own offsets. */
static void append_changed(struct rewrite *out, const struct view *v, size_t from, size_t to,
                           const struct str *now) {
    const size_t source = to - from;
    size_t same = 0;
    while (same < source && same < now->len && v->text[from + same] == now->data[same]) {
        same++;
    }
    rewrite_copy(out, v, from, from + same);
    if (same < source || same < now->len) {
        rewrite_append(out, now->data + same, now->len - same, view_end(v, to - 1));
    }
}

static void apply_form(const struct norm_step *step, const struct view *v, struct rewrite *out) {
    struct str now = {0};
    size_t done = 0;
    for (size_t at = 0; at < v->len;) {
        size_t from = at, to = at;
        while (to < v->len && !((unsigned char)v->text[to] & 0x80)) {
            to++;
        }
        if (to > from) from = to - 1;
        if (to == v->len) break;
        while (to < v->len && ((unsigned char)v->text[to] & 0x80)) {
            to++;
        }
        rewrite_copy(out, v, done, from);
        str_clear(&now);
        unicode_append_normal(&now, step->form, v->text + from, to - from);
        append_changed(out, v, from, to, &now);
        done = at = to;
    }
    rewrite_copy(out, v, done, v->len);
    str_release(&now);
}

static void apply_lowercase(const struct view *v, struct rewrite *out) {
    struct str now = {0};
    for (size_t at = 0; at < v->len;) {
        uint32_t code = 0;
        const int step = utf8_decode(v->text + at, v->len - at, &code);
        ASSERT(step > 0);
        str_clear(&now);
        unicode_append_lower(&now, v->text + at, (size_t)step);
        append_changed(out, v, at, at + (size_t)step, &now);
        at += (size_t)step;
    }
    str_release(&now);
}

static void apply_strip(const struct norm_step *step, const struct view *v, struct rewrite *out) {
    size_t from = 0, to = v->len, start = 0;
    uint32_t code = 0;
    while (step->left && from < to) {
        const int size = utf8_decode(v->text + from, to - from, &code);
        if (!unicode_is_space(code)) break;
        from += (size_t)size;
    }
    while (step->right && to > from && unicode_is_space(unicode_before(v->text, to, &start))) {
        to = start;
    }
    rewrite_copy(out, v, from, to);
}

static enum status apply_replace(const struct norm_step *step, struct scratch *s,
                                 const struct view *v, struct rewrite *out, struct err *e) {
    const size_t content_len = strlen(step->content);
    size_t at = 0;
    while (at < v->len) {
        struct span match = {0};
        bool found = false;
        TRY(pattern_find(&step->pattern, s->regex, v, at, &match, &found, e));
        if (!found) break;
        rewrite_copy(out, v, at, match.from);
        rewrite_append(out, step->content, content_len, view_end(v, match.to - 1));
        FAIL_IF(out->text.len > TEXT_BYTES_MAX, STATUS_INVALID,
                "normalizer: Replace makes the text too long");
        at = match.to;
    }
    rewrite_copy(out, v, at, v->len);
    return STATUS_OK;
}

/* Cheap proof that the step leaves this text alone. */
static bool leaves_alone(const struct norm_step *step, const struct view *v) {
    if (v->len == 0) return true;
    if (step->kind == NORM_FORM) return is_ascii(v->text, v->len);
    const struct pattern *const p = &step->pattern;
    return step->kind == NORM_REPLACE && p->literal &&
           !memmem(v->text, v->len, p->literal, p->literal_len);
}

enum status normalize(const struct tokenizer *t, struct scratch *s, const struct view *in,
                      struct view *out, struct err *e) {
    *out = *in;
    for (int i = 0; i < t->norm_count; i++) {
        const struct norm_step *const step = &t->norm[i];
        if (leaves_alone(step, out)) continue;
        struct rewrite *const to = &s->norm[i % 2 == 0];
        struct rewrite *const target = out->text == str_text(&to->text) ? &s->norm[i % 2 != 0] : to;
        rewrite_clear(target);
        switch (step->kind) {
        case NORM_FORM: apply_form(step, out, target); break;
        case NORM_LOWERCASE: apply_lowercase(out, target); break;
        case NORM_STRIP: apply_strip(step, out, target); break;
        case NORM_PREPEND:
            rewrite_append(target, step->content, strlen(step->content), (uint32_t)in->base);
            rewrite_copy(target, out, 0, out->len);
            break;
        case NORM_REPLACE: TRY(apply_replace(step, s, out, target, e)); break;
        }
        *out = rewrite_view(target, in->base);
    }
    return STATUS_OK;
}
