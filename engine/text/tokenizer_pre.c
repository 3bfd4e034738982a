/* tokenizer_pre.c - the pre-tokenizer: cuts a normalized text into the pieces that BPE works on.
 *
 * A splitting step turns pieces into more pieces of the same text; a rewriting step writes all
 * pieces anew. Pieces are spans, and the two lists take turns. Steps behind ByteLevel see the byte
 * alphabet, as in the original; when ByteLevel is the last step the pieces stay raw bytes and BPE
 * maps them on the fly, which is most of the speed. */
#include "engine/text/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

static const char GPT2_PATTERN[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void pre_step_release(struct pre_step *s) {
    pattern_release(&s->pattern);
    mem_free(s->replacement);
    *s = (struct pre_step){0};
}

static enum status add_step(struct tokenizer *t, enum pre_kind kind, const struct where *at,
                            struct pre_step **out, struct err *e) {
    FAIL_IF(t->pre_count == STEP_COUNT_MAX, STATUS_UNSUPPORTED, "%s: too many steps", at->text);
    *out = &t->pre[t->pre_count++];
    (*out)->kind = kind;
    (*out)->behavior = SPLIT_ISOLATED;
    return STATUS_OK;
}

static enum status read_behavior(const cJSON *value, const struct where *at,
                                 enum split_behavior *out, struct err *e) {
    static const char *const NAMES[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    TRY(json_text(value, "behavior", at, &name, e));
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        if (!str_equal(name, NAMES[i])) continue;
        *out = (enum split_behavior)i;
        return STATUS_OK;
    }
    return err_set(e, STATUS_UNSUPPORTED, "%s.behavior: \"%.60s\" is not supported", at->text,
                   name);
}

static enum status read_byte_level(struct tokenizer *t, const cJSON *value, const struct where *at,
                                   struct err *e) {
    static const char *const KEYS[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                       NULL};
    bool prefix = true, regex = true;
    struct pre_step *step = NULL;
    TRY(json_only(value, at, KEYS, e));
    TRY(json_bool_or(value, "add_prefix_space", true, at, &prefix, e));
    TRY(json_bool_or(value, "use_regex", true, at, &regex, e));
    if (prefix) TRY(add_step(t, PRE_PREFIX_SPACE, at, &step, e));
    if (regex) {
        TRY(add_step(t, PRE_SPLIT, at, &step, e));
        TRY(regex_open(&step->pattern.regex, GPT2_PATTERN, e));
    }
    return add_step(t, PRE_BYTE_ALPHABET, at, &step, e);
}

static enum status read_metaspace(struct tokenizer *t, const cJSON *value, const struct where *at,
                                  struct err *e) {
    static const char *const KEYS[] = {
        "type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep", NULL};
    static const char *const SCHEMES[] = {"always", "first", "never"};
    struct pre_step *step = NULL;
    const char *replacement = NULL, *scheme = NULL;
    bool split = true, prefix = true;
    uint32_t code = 0;
    TRY(json_only(value, at, KEYS, e));
    TRY(json_text(value, "replacement", at, &replacement, e));
    TRY(json_bool_or(value, "split", true, at, &split, e));
    TRY(json_bool_or(value, "add_prefix_space", true, at, &prefix, e));
    TRY(json_get_string(value, "prepend_scheme", &scheme, e));
    const size_t len = strlen(replacement);
    FAIL_IF(len == 0 || utf8_decode(replacement, len, &code) != (int)len, STATUS_INVALID,
            "%s.replacement: expected one character", at->text);
    TRY(add_step(t, PRE_METASPACE, at, &step, e));
    step->replacement = mem_strdup(replacement);
    step->scheme = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    for (size_t i = 0; scheme && i < COUNT_OF(SCHEMES); i++) {
        if (!str_equal(scheme, SCHEMES[i])) continue;
        step->scheme = (enum prepend_scheme)i;
        scheme = NULL;
    }
    FAIL_IF(scheme, STATUS_UNSUPPORTED, "%s.prepend_scheme: \"%.60s\" is not supported", at->text,
            scheme);
    if (!split) return STATUS_OK;
    TRY(add_step(t, PRE_SPLIT, at, &step, e));
    step->behavior = SPLIT_NEXT;
    step->pattern.literal = mem_strdup(replacement);
    step->pattern.literal_len = len;
    return STATUS_OK;
}

static enum status read_one(struct tokenizer *t, const cJSON *value, const char *type,
                            const struct where *at, struct err *e) {
    static const char *const PLAIN_KEYS[] = {"type", NULL};
    static const char *const SPLIT_KEYS[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const DIGITS_KEYS[] = {"type", "individual_digits", NULL};
    static const char *const PUNCTUATION_KEYS[] = {"type", "behavior", NULL};
    struct pre_step *step = NULL;
    if (str_equal(type, "ByteLevel")) return read_byte_level(t, value, at, e);
    if (str_equal(type, "Metaspace")) return read_metaspace(t, value, at, e);
    if (str_equal(type, "Split")) {
        TRY(json_only(value, at, SPLIT_KEYS, e));
        TRY(add_step(t, PRE_SPLIT, at, &step, e));
        TRY(read_behavior(value, at, &step->behavior, e));
        TRY(json_bool_or(value, "invert", false, at, &step->invert, e));
        return read_pattern(value, at, &step->pattern, e);
    }
    if (str_equal(type, "Digits")) {
        bool single = false;
        TRY(json_only(value, at, DIGITS_KEYS, e));
        TRY(json_bool_or(value, "individual_digits", false, at, &single, e));
        TRY(add_step(t, PRE_DIGITS, at, &step, e));
        step->behavior = single ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
        return STATUS_OK;
    }
    if (str_equal(type, "Punctuation")) {
        TRY(json_only(value, at, PUNCTUATION_KEYS, e));
        TRY(add_step(t, PRE_PUNCTUATION, at, &step, e));
        return json_member(value, "behavior") ? read_behavior(value, at, &step->behavior, e)
                                              : STATUS_OK;
    }
    const bool words = str_equal(type, "Whitespace");
    if (!words && !str_equal(type, "WhitespaceSplit")) return refuse_type(type, at, e);
    TRY(json_only(value, at, PLAIN_KEYS, e));
    TRY(add_step(t, words ? PRE_WORDS : PRE_SPACES, at, &step, e));
    step->behavior = SPLIT_REMOVED;
    step->invert = words;
    return STATUS_OK;
}

enum status read_pre_tokenizer(struct tokenizer *t, const cJSON *file, struct err *e) {
    const struct where at = where_root("pre_tokenizer");
    TRY(read_sequence(t, json_member(file, "pre_tokenizer"), "pretokenizers", &at, 0, read_one, e));
    for (int i = 0; i < t->pre_count; i++) {
        const bool asks = t->pre[i].kind == PRE_METASPACE && t->pre[i].scheme == PREPEND_FIRST;
        t->needs_ends = t->needs_ends || asks;
    }
    t->bytes_direct = t->pre_count > 0 && t->pre[t->pre_count - 1].kind == PRE_BYTE_ALPHABET;
    return STATUS_OK;
}

/* ---- splitting ---- */

/* A run of a piece and whether the step's pattern matches it; together they cover the piece. */
struct run {
    size_t from, to;
    bool match;
};

/* Joins runs to pieces by behaviour, one run after another. */
struct joiner {
    enum split_behavior behavior;
    bool previous; /* was the run before a match */
    size_t first;  /* pieces before this one belong to another source piece */
    struct spans *out;
};

static void join(struct joiner *j, struct run run) {
    struct spans *const out = j->out;
    const bool extend_by_kind[] = {
        [SPLIT_REMOVED] = false,
        [SPLIT_ISOLATED] = false,
        [SPLIT_PREVIOUS] = run.match && !j->previous,
        [SPLIT_NEXT] = !run.match && j->previous,
        [SPLIT_CONTIGUOUS] = run.match == j->previous,
    };
    const bool extend = extend_by_kind[j->behavior] && out->count > j->first;
    j->previous = run.match;
    if (j->behavior == SPLIT_REMOVED && run.match) return;
    if (extend) {
        out->items[out->count - 1].to = (uint32_t)run.to;
    } else {
        spans_add(out, run.from, run.to);
    }
}

static bool matches_class(enum pre_kind kind, uint32_t code) {
    if (kind == PRE_DIGITS) return unicode_is_number(code);
    if (kind == PRE_PUNCTUATION) return unicode_is_punctuation(code);
    return unicode_is_space(code);
}

/* Every matching character is a run of its own; what is between them is one run. */
static void split_by_class(const struct pre_step *step, const struct view *v, struct span piece,
                           struct joiner *j) {
    size_t plain = piece.from;
    for (size_t at = piece.from; at < piece.to;) {
        uint32_t code = 0;
        const int size = utf8_decode(v->text + at, piece.to - at, &code);
        ASSERT(size > 0);
        const size_t next = at + (size_t)size;
        if (matches_class(step->kind, code)) {
            if (at > plain) join(j, (struct run){plain, at, step->invert});
            join(j, (struct run){at, next, !step->invert});
            plain = next;
        }
        at = next;
    }
    if (plain < piece.to) join(j, (struct run){plain, piece.to, step->invert});
}

/* Runs of word characters and runs of what is neither word nor white space; white space is dropped.
 */
static void split_words(const struct view *v, struct span piece, struct joiner *j) {
    int before = 0;
    size_t start = piece.from;
    for (size_t at = piece.from; at < piece.to;) {
        uint32_t code = 0;
        const int size = utf8_decode(v->text + at, piece.to - at, &code);
        ASSERT(size > 0);
        const int kind = unicode_is_word(code) ? 1 : unicode_is_space(code) ? 0 : 2;
        if (kind != before) {
            if (before) join(j, (struct run){start, at, false});
            start = at;
            before = kind;
        }
        at += (size_t)size;
    }
    if (before) join(j, (struct run){start, piece.to, false});
}

static enum status split_by_pattern(const struct pre_step *step, struct scratch *s,
                                    const struct view *v, struct span piece, struct joiner *j,
                                    struct err *e) {
    const struct view part = {.text = v->text + piece.from, .len = piece.to - piece.from};
    size_t at = 0;
    while (at < part.len) {
        struct span match = {0};
        bool found = false;
        TRY(pattern_find(&step->pattern, s->regex, &part, at, &match, &found, e));
        if (!found) break;
        if (match.from > at)
            join(j, (struct run){piece.from + at, piece.from + match.from, step->invert});
        join(j, (struct run){piece.from + match.from, piece.from + match.to, !step->invert});
        at = match.to;
    }
    if (at < part.len) join(j, (struct run){piece.from + at, piece.to, step->invert});
    return STATUS_OK;
}

static enum status split_all(const struct pre_step *step, struct scratch *s, const struct view *v,
                             const struct spans *in, struct spans *out, struct err *e) {
    out->count = 0;
    for (size_t i = 0; i < in->count; i++) {
        struct joiner j = {.behavior = step->behavior, .first = out->count, .out = out};
        if (step->kind == PRE_SPLIT) {
            TRY(split_by_pattern(step, s, v, in->items[i], &j, e));
        } else if (step->kind == PRE_WORDS) {
            split_words(v, in->items[i], &j);
        } else {
            split_by_class(step, v, in->items[i], &j);
        }
    }
    return STATUS_OK;
}

/* ---- rewriting ---- */

static uint32_t start_of(const struct view *v, size_t at) {
    return at > 0 ? view_end(v, at - 1) : (uint32_t)v->base;
}

static void rewrite_metaspace(const struct pre_step *step, const struct view *v, struct span piece,
                              struct rewrite *out) {
    const char *const mark = step->replacement;
    const size_t len = strlen(mark);
    const bool has_mark =
        v->text[piece.from] == ' ' ||
        (piece.to - piece.from >= len && memcmp(v->text + piece.from, mark, len) == 0);
    const bool wanted = step->scheme == PREPEND_ALWAYS ||
                        (step->scheme == PREPEND_FIRST && start_of(v, piece.from) == 0);
    if (wanted && !has_mark) rewrite_append(out, mark, len, start_of(v, piece.from));
    size_t plain = piece.from;
    for (size_t at = piece.from; at < piece.to; at++) {
        if (v->text[at] != ' ') continue;
        rewrite_copy(out, v, plain, at);
        rewrite_append(out, mark, len, view_end(v, at));
        plain = at + 1;
    }
    rewrite_copy(out, v, plain, piece.to);
}

static void rewrite_alphabet(const struct view *v, struct span piece, struct rewrite *out) {
    for (size_t at = piece.from; at < piece.to; at++) {
        const uint32_t code = byte_to_code((unsigned char)v->text[at]);
        const char two[2] = {(char)(0xC0 | code >> 6), (char)(0x80 | (code & 0x3F))};
        const char one = (char)code;
        rewrite_append(out, code < 0x80 ? &one : two, code < 0x80 ? 1 : 2, view_end(v, at));
    }
}

static void rewrite_all(const struct pre_step *step, const struct view *v, const struct spans *in,
                        struct rewrite *text, struct spans *out) {
    out->count = 0;
    rewrite_clear(text);
    for (size_t i = 0; i < in->count; i++) {
        const struct span piece = in->items[i];
        const size_t from = text->text.len;
        if (step->kind == PRE_METASPACE) {
            rewrite_metaspace(step, v, piece, text);
        } else if (step->kind == PRE_BYTE_ALPHABET) {
            rewrite_alphabet(v, piece, text);
        } else {
            if (v->text[piece.from] != ' ') rewrite_append(text, " ", 1, start_of(v, piece.from));
            rewrite_copy(text, v, piece.from, piece.to);
        }
        spans_add(out, from, text->text.len);
    }
}

enum status pre_tokenize(const struct tokenizer *t, struct scratch *s, const struct view *in,
                         struct view *out, int *which, struct err *e) {
    int now = 0, text = 0;
    s->pieces[now].count = 0;
    if (in->len > 0) spans_add(&s->pieces[now], 0, in->len);
    *out = *in;
    const int count = t->bytes_direct ? t->pre_count - 1 : t->pre_count;
    for (int i = 0; i < count; i++) {
        const struct pre_step *const step = &t->pre[i];
        const bool rewrites = step->kind == PRE_METASPACE || step->kind == PRE_BYTE_ALPHABET ||
                              step->kind == PRE_PREFIX_SPACE;
        if (rewrites) {
            rewrite_all(step, out, &s->pieces[now], &s->pre[text], &s->pieces[!now]);
            *out = rewrite_view(&s->pre[text], in->base);
            text = !text;
        } else {
            TRY(split_all(step, s, out, &s->pieces[now], &s->pieces[!now], e));
        }
        now = !now;
        FAIL_IF(out->len > TEXT_BYTES_MAX, STATUS_INVALID,
                "pre_tokenizer: makes the text too long");
    }
    *which = now;
    return STATUS_OK;
}
