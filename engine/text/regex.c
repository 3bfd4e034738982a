/* regex.c - translation of Oniguruma patterns for PCRE2, and matching.
 *
 * The translator walks the pattern once, copies what both engines read alike, rewrites what they
 * read differently and refuses the rest; it never guesses. Why not compile as it is: PCRE2's \s has
 * U+180E, its \v and \h are other classes, its script properties include script extensions, `$`
 * differs, and x{1,3}+ is possessive here but a repeat of a repeat there. */
#include "engine/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

enum {
    GROUP_DEPTH_MAX = 64,
    PATTERN_BYTES_MAX = 1 << 16,
    JIT_STACK_BYTES_MAX = 8 << 20,
    /* Steps a search may take: a constant and a share per byte, so that linear patterns work on any
     * line and exponential ones stop within a fraction of a second. */
    STEPS_MIN = 1000000,
    STEPS_PER_BYTE = 64,
};

struct regex {
    pcre2_code *code;
};

struct regex_state {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* Outside a class the six superscripts and fractions of Latin-1 are word characters too: measured
 * on Oniguruma 6.9.8. */
#define WORD_SET "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_LATIN "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"
#define WORD "[" WORD_SET WORD_LATIN "]"

/* The translation in progress. */
struct walk {
    const char *pattern;
    size_t len, at;
    struct str out;
    size_t group_starts[GROUP_DEPTH_MAX]; /* offsets in `out` */
    int depth;
    size_t atom; /* offset in `out` of what a quantifier would repeat */
    bool has_atom;
};

static enum status refuse(size_t at, const char *what, struct err *e) {
    return err_set(e, STATUS_UNSUPPORTED, "regular expression: %s at byte %zu is not supported",
                   what, at);
}

static char peek(const struct walk *w, size_t ahead) {
    return w->at + ahead < w->len ? w->pattern[w->at + ahead] : '\0';
}

static bool looking_at(const struct walk *w, const char *text) {
    const size_t count = strlen(text);
    return w->len - w->at >= count && memcmp(w->pattern + w->at, text, count) == 0;
}

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* \p{Name} and \P{Name}: general categories as they are, anything else as a script. */
static enum status walk_property(struct walk *w, struct err *e) {
    const size_t start = w->at;
    const char *const brace = w->pattern + w->at + 2;
    const char *const end = peek(w, 2) == '{' ? memchr(brace, '}', w->len - w->at - 2) : NULL;
    if (!end) return refuse(start, "a property without braces", e);
    const size_t count = (size_t)(end - brace - 1);
    for (size_t i = 0; i < count; i++) {
        const char c = brace[1 + i];
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ' ';
        if (!plain) return refuse(start, "this kind of property", e);
    }
    if (count == 0 || count > 40) return refuse(start, "this kind of property", e);
    const bool category = count <= 2 && brace[1] >= 'A' && brace[1] <= 'Z';
    str_appendf(&w->out, "\\%c{%s%.*s}", peek(w, 1), category ? "" : "sc:", (int)count, brace + 1);
    w->at = (size_t)(end + 1 - w->pattern);
    return STATUS_OK;
}

/* \uHHHH, \xHH and \x{H...}. */
static enum status walk_hex(struct walk *w, struct err *e) {
    const size_t start = w->at;
    const bool braces = peek(w, 1) == 'x' && peek(w, 2) == '{';
    size_t digits = 0;
    w->at += braces ? 3 : 2;
    const size_t wanted = braces ? 6 : w->pattern[start + 1] == 'u' ? 4 : 2;
    while (digits < wanted && is_hex(peek(w, digits))) {
        digits++;
    }
    const bool broken =
        digits == 0 || (!braces && digits != wanted) || (braces && peek(w, digits) != '}');
    if (broken) return refuse(start, "this hexadecimal escape", e);
    /* A bare \x80 and above is a byte, not a character, to Oniguruma. */
    if (!braces && wanted == 2 && peek(w, 0) > '7') return refuse(start, "a byte above 7F", e);
    str_appendf(&w->out, "\\x{%.*s}", (int)digits, w->pattern + w->at);
    w->at += digits + (braces ? 1 : 0);
    return STATUS_OK;
}

static const struct {
    char letter;
    const char *outside, *inside; /* NULL: not supported there */
} ESCAPES[] = {
    {'s', "\\p{White_Space}", "\\p{White_Space}"},
    {'S', "\\P{White_Space}", "\\P{White_Space}"},
    {'d', "\\p{Nd}", "\\p{Nd}"},
    {'D', "\\P{Nd}", "\\P{Nd}"},
    {'w', WORD, WORD_SET},
    {'W', "[^" WORD_SET WORD_LATIN "]", NULL},
    {'b', "(?:(?<=" WORD ")(?!" WORD ")|(?<!" WORD ")(?=" WORD "))", NULL},
    {'B', "(?:(?<=" WORD ")(?=" WORD ")|(?<!" WORD ")(?!" WORD "))", NULL},
    {'n', "\\x{0A}", "\\x{0A}"},
    {'r', "\\x{0D}", "\\x{0D}"},
    {'t', "\\x{09}", "\\x{09}"},
    {'f', "\\x{0C}", "\\x{0C}"},
    {'v', "\\x{0B}", "\\x{0B}"},
    {'a', "\\x{07}", "\\x{07}"},
    {'e', "\\x{1B}", "\\x{1B}"},
};

static enum status walk_escape(struct walk *w, bool inside, struct err *e) {
    const char c = peek(w, 1);
    if (c == 'p' || c == 'P') return walk_property(w, e);
    if (c == 'u' || c == 'x') return walk_hex(w, e);
    for (size_t i = 0; i < COUNT_OF(ESCAPES); i++) {
        const char *const text = inside ? ESCAPES[i].inside : ESCAPES[i].outside;
        if (ESCAPES[i].letter != c || !text) continue;
        str_append(&w->out, text);
        w->at += 2;
        return STATUS_OK;
    }
    const bool alphanumeric = is_hex(c) || (c >= 'g' && c <= 'z') || (c >= 'G' && c <= 'Z');
    if (alphanumeric || c == '\0') {
        const char name[] = {'\\', c, '\0'};
        return refuse(w->at, name, e);
    }
    /* Punctuation stands for itself; so does anything beyond ASCII, which needs no backslash. */
    w->at++;
    if ((unsigned char)c < 0x80) {
        str_append_char(&w->out, '\\');
        str_append_char(&w->out, w->pattern[w->at++]);
    }
    return STATUS_OK;
}

static enum status walk_class(struct walk *w, struct err *e) {
    const size_t start = w->at;
    str_append_char(&w->out, w->pattern[w->at++]);
    if (peek(w, 0) == '^') str_append_char(&w->out, w->pattern[w->at++]);
    if (peek(w, 0) == ']') return refuse(w->at, "a class that begins with ]", e);
    while (w->at < w->len && w->pattern[w->at] != ']') {
        if (peek(w, 0) == '[') return refuse(w->at, "a class within a class", e);
        if (looking_at(w, "&&")) return refuse(w->at, "&& (class intersection)", e);
        if (peek(w, 0) == '\\') {
            TRY(walk_escape(w, true, e));
        } else {
            str_append_char(&w->out, w->pattern[w->at++]);
        }
    }
    FAIL_IF(w->at >= w->len, STATUS_INVALID, "regular expression: the class at byte %zu has no ]",
            start);
    str_append_char(&w->out, w->pattern[w->at++]);
    return STATUS_OK;
}

static enum status walk_group(struct walk *w, struct err *e) {
    static const char *const KINDS[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    const char *kind = NULL;
    for (size_t i = 0; i < COUNT_OF(KINDS) && !kind; i++) {
        kind = looking_at(w, KINDS[i]) ? KINDS[i] : NULL;
    }
    if (!kind && (peek(w, 1) == '?' || peek(w, 1) == '*')) {
        return refuse(w->at, "this kind of group", e);
    }
    if (w->depth == GROUP_DEPTH_MAX) return refuse(w->at, "a group this deep", e);
    w->group_starts[w->depth++] = w->out.len;
    str_append(&w->out, kind ? kind : "(");
    w->at += kind ? strlen(kind) : 1;
    w->has_atom = false;
    return STATUS_OK;
}

static void wrap_atom(struct walk *w) {
    char *const tail = mem_strndup(w->out.data + w->atom, w->out.len - w->atom);
    str_truncate(&w->out, w->atom);
    str_appendf(&w->out, "(?:%s)", tail);
    mem_free(tail);
}

/* {n}, {n,} and {n,m}. A + behind repeats the repeat; a ? behind an exact count makes it optional.
 */
static enum status walk_interval(struct walk *w, struct err *e) {
    size_t count = 1, commas = 0;
    while ((peek(w, count) >= '0' && peek(w, count) <= '9') || (peek(w, count) == ',' && !commas)) {
        commas += peek(w, count) == ',';
        count++;
    }
    const bool plain = peek(w, count) == '}' && peek(w, 1) != ',' && peek(w, 1) != '}';
    if (!plain || count > 12) return refuse(w->at, "{ that is not {n}, {n,} or {n,m}", e);
    str_append_bytes(&w->out, w->pattern + w->at, count + 1);
    w->at += count + 1;
    const char next = peek(w, 0);
    if (next == '+' || (next == '?' && commas == 0)) wrap_atom(w);
    if (next == '+' || next == '?') str_append_char(&w->out, w->pattern[w->at++]);
    return STATUS_OK;
}

static enum status walk_quantifier(struct walk *w, struct err *e) {
    if (!w->has_atom) return refuse(w->at, "a repeat of nothing or of a repeat", e);
    w->has_atom = false;
    if (peek(w, 0) == '{') return walk_interval(w, e);
    str_append_char(&w->out, w->pattern[w->at++]);
    if (peek(w, 0) == '?' || peek(w, 0) == '+') str_append_char(&w->out, w->pattern[w->at++]);
    return STATUS_OK;
}

static enum status walk_one(struct walk *w, struct err *e) {
    const char c = peek(w, 0);
    if (c == '(') return walk_group(w, e);
    if (c == '*' || c == '+' || c == '?' || c == '{') return walk_quantifier(w, e);
    w->has_atom = c != '|' && c != '^' && c != '$';
    w->atom = w->out.len;
    if (c == '[') return walk_class(w, e);
    if (c == '\\') return walk_escape(w, false, e);
    if (c == ')') {
        FAIL_IF(w->depth == 0, STATUS_INVALID, "regular expression: ) at byte %zu closes nothing",
                w->at);
        w->atom = w->group_starts[--w->depth];
    }
    uint32_t code = 0;
    const int step = utf8_decode(w->pattern + w->at, w->len - w->at, &code);
    FAIL_IF(step == 0 || code == 0, STATUS_INVALID,
            "regular expression: byte %zu is not valid UTF-8", w->at);
    str_append_bytes(&w->out, w->pattern + w->at, (size_t)step);
    w->at += (size_t)step;
    return STATUS_OK;
}

static enum status compile(pcre2_code **code, const struct str *pattern, struct err *e) {
    int number = 0;
    size_t at = 0;
    pcre2_compile_context *const context = pcre2_compile_context_create(NULL);
    ASSERT(context);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
    *code =
        pcre2_compile((PCRE2_SPTR)str_text(pattern), pattern->len, options, &number, &at, context);
    pcre2_compile_context_free(context);
    if (!*code) {
        PCRE2_UCHAR text[200] = {0};
        pcre2_get_error_message(number, text, sizeof text);
        return err_set(e, STATUS_INVALID, "regular expression: %s (near byte %zu)", (char *)text,
                       at);
    }
    const int jit = pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE);
    if (jit != 0 && jit != PCRE2_ERROR_JIT_BADOPTION) {
        pcre2_code_free(*code);
        *code = NULL;
        return err_set(e, STATUS_INVALID, "regular expression: too large to compile");
    }
    return STATUS_OK;
}

enum status regex_open(struct regex **out, const char *pattern, struct err *e) {
    struct walk w = {.pattern = pattern, .len = strlen(pattern)};
    enum status status = STATUS_OK;
    pcre2_code *code = NULL;
    GUARD_IF(w.len > PATTERN_BYTES_MAX, STATUS_UNSUPPORTED,
             "regular expression: %zu bytes, at most %d", w.len, PATTERN_BYTES_MAX);
    while (w.at < w.len) {
        GUARD(walk_one(&w, e));
    }
    GUARD_IF(w.depth > 0, STATUS_INVALID, "regular expression: a ( is never closed");
    GUARD(compile(&code, &w.out, e));
    struct regex *const r = mem_new(1, sizeof *r);
    r->code = code;
    *out = r;
done:
    str_release(&w.out);
    return status;
}

void regex_free(struct regex *r) {
    if (!r) return;
    pcre2_code_free(r->code);
    mem_free(r);
}

struct regex_state *regex_state_new(void) {
    struct regex_state *const s = mem_new(1, sizeof *s);
    s->data = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES_MAX, NULL);
    ASSERT(s->data && s->context);
    if (s->stack) pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s;
}

void regex_state_free(struct regex_state *s) {
    if (!s) return;
    pcre2_jit_stack_free(s->stack);
    pcre2_match_context_free(s->context);
    pcre2_match_data_free(s->data);
    mem_free(s);
}

enum status regex_find(const struct regex *r, struct regex_state *s, const char *text, size_t len,
                       size_t from, struct regex_match *match, struct err *e) {
    const size_t steps = STEPS_MIN + STEPS_PER_BYTE * len;
    pcre2_set_match_limit(s->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    const int rc =
        pcre2_match(r->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, s->data, s->context);
    *match = (struct regex_match){.found = rc >= 0};
    if (rc == PCRE2_ERROR_NOMATCH) return STATUS_OK;
    if (rc < 0) {
        PCRE2_UCHAR reason[200] = {0};
        pcre2_get_error_message(rc, reason, sizeof reason);
        return err_set(e, STATUS_INVALID,
                       "regular expression: gave up on this text at byte %zu (%s)", from,
                       (char *)reason);
    }
    const size_t *const pair = pcre2_get_ovector_pointer(s->data);
    match->from = pair[0];
    match->to = pair[1];
    return STATUS_OK;
}
