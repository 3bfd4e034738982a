/* tokenizer_decode.c - from ids back to text, as the file's decoder says.
 *
 * A decoder works on the list of spellings: each step turns a list into a list, and the text is
 * what is left, joined. Bytes that are not UTF-8 become U+FFFD, one for each maximal bad part
 * (ByteLevel) or for each byte (ByteFallback), as in the original. */
#include "engine/text/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

void decode_step_release(struct decode_step *s) {
    pattern_release(&s->pattern);
    mem_free(s->content);
    *s = (struct decode_step){0};
}

static enum status read_character(const cJSON *value, const char *key, const struct where *at,
                                  char **out, struct err *e) {
    const char *text = NULL;
    uint32_t code = 0;
    TRY(json_text(value, key, at, &text, e));
    const size_t len = strlen(text);
    FAIL_IF(len == 0 || utf8_decode(text, len, &code) != (int)len, STATUS_INVALID,
            "%s.%s: expected one character", at->text, key);
    *out = mem_strdup(text);
    return STATUS_OK;
}

static enum status read_strip(struct decode_step *step, const cJSON *value, const struct where *at,
                              struct err *e) {
    static const char *const KEYS[] = {"type", "content", "start", "stop", NULL};
    int64_t start = 0, stop = 0;
    TRY(json_only(value, at, KEYS, e));
    TRY(read_character(value, "content", at, &step->content, e));
    TRY(json_get_i64(value, "start", &start, e));
    TRY(json_get_i64(value, "stop", &stop, e));
    FAIL_IF(start < 0 || stop < 0 || start > 1000 || stop > 1000, STATUS_INVALID,
            "%s: start and stop must be 0 to 1000", at->text);
    step->start = (int32_t)start;
    step->stop = (int32_t)stop;
    return STATUS_OK;
}

static enum status read_metaspace(struct decode_step *step, const cJSON *value,
                                  const struct where *at, struct err *e) {
    static const char *const KEYS[] = {
        "type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep", NULL};
    const char *scheme = NULL;
    bool prefix = true;
    TRY(json_only(value, at, KEYS, e));
    TRY(read_character(value, "replacement", at, &step->content, e));
    TRY(json_bool_or(value, "add_prefix_space", true, at, &prefix, e));
    TRY(json_get_string(value, "prepend_scheme", &scheme, e));
    const bool never = scheme ? str_equal(scheme, "never") : !prefix;
    FAIL_IF(scheme && !never && !str_equal(scheme, "always") && !str_equal(scheme, "first"),
            STATUS_UNSUPPORTED, "%s.prepend_scheme: \"%.60s\" is not supported", at->text, scheme);
    step->scheme = never ? PREPEND_NEVER : PREPEND_ALWAYS;
    return STATUS_OK;
}

static enum status read_replace(struct decode_step *step, const cJSON *value,
                                const struct where *at, struct err *e) {
    static const char *const KEYS[] = {"type", "pattern", "content", NULL};
    const char *content = NULL;
    TRY(json_only(value, at, KEYS, e));
    TRY(json_text(value, "content", at, &content, e));
    FAIL_IF(strlen(content) > 1024, STATUS_UNSUPPORTED, "%s.content: is too long", at->text);
    step->content = mem_strdup(content);
    return read_pattern(value, at, &step->pattern, e);
}

static enum status read_one(struct tokenizer *t, const cJSON *value, const char *type,
                            const struct where *at, struct err *e) {
    static const char *const BYTE_KEYS[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                            NULL};
    static const char *const PLAIN_KEYS[] = {"type", NULL};
    static const char *const NAMES[] = {"ByteLevel", "Replace", "ByteFallback",
                                        "Fuse",      "Strip",   "Metaspace"};
    FAIL_IF(t->decode_count == STEP_COUNT_MAX, STATUS_UNSUPPORTED, "%s: too many steps", at->text);
    size_t kind = 0;
    while (kind < COUNT_OF(NAMES) && !str_equal(type, NAMES[kind])) {
        kind++;
    }
    if (kind == COUNT_OF(NAMES)) return refuse_type(type, at, e);
    struct decode_step *const step = &t->decode[t->decode_count++];
    step->kind = (enum decode_kind)kind;
    switch (step->kind) {
    case DECODE_BYTE_LEVEL: return json_only(value, at, BYTE_KEYS, e);
    case DECODE_REPLACE: return read_replace(step, value, at, e);
    case DECODE_STRIP: return read_strip(step, value, at, e);
    case DECODE_METASPACE: return read_metaspace(step, value, at, e);
    default: return json_only(value, at, PLAIN_KEYS, e);
    }
}

enum status read_decoder(struct tokenizer *t, const cJSON *file, struct err *e) {
    const struct where at = where_root("decoder");
    const cJSON *const value = json_member(file, "decoder");
    t->has_decoder = value && !cJSON_IsNull(value);
    return read_sequence(t, value, "decoders", &at, 0, read_one, e);
}

/* ---- running ---- */

/* The list of spellings: one text and its cuts. */
struct strings {
    struct str text;
    struct spans cuts;
};

static void strings_close(struct strings *s, size_t from) {
    spans_add(&s->cuts, from, s->text.len);
}

size_t append_lossy(struct str *out, const char *bytes, size_t len, bool final) {
    size_t at = 0;
    while (at < len) {
        const size_t good = utf8_valid_prefix(bytes + at, len - at);
        str_append_bytes(out, bytes + at, good);
        at += good;
        if (at == len) break;
        /* The maximal bad part: a lead byte and what could still follow it, or one byte. */
        const unsigned char lead = (unsigned char)bytes[at];
        const size_t wanted = lead >= 0xC2 && lead < 0xE0    ? 2
                              : (lead & 0xF0) == 0xE0        ? 3
                              : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                             : 1;
        size_t have = 1;
        while (have < wanted && at + have < len) {
            const unsigned char next = (unsigned char)bytes[at + have];
            const unsigned low = have > 1 ? 0x80 : lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
            const unsigned high = have > 1       ? 0xBF
                                  : lead == 0xED ? 0x9F
                                  : lead == 0xF4 ? 0x8F
                                                 : 0xBF;
            if (next < low || next > high) break;
            have++;
        }
        if (!final && at + have == len && have < wanted) break;
        str_append(out, "\xEF\xBF\xBD");
        at += have;
    }
    return at;
}

static void run_byte_level(const struct strings *in, struct strings *out) {
    struct str bytes = {0};
    for (size_t i = 0; i < in->cuts.count; i++) {
        const struct span cut = in->cuts.items[i];
        append_alphabet_bytes(&bytes, in->text.data + cut.from, cut.to - cut.from);
    }
    append_lossy(&out->text, str_text(&bytes), bytes.len, true);
    strings_close(out, 0);
    str_release(&bytes);
}

static enum status replace_in(const struct decode_step *step, struct scratch *s, const char *text,
                              size_t len, struct str *out, struct err *e) {
    const struct view v = {.text = text, .len = len};
    size_t at = 0;
    while (at < len) {
        struct span match = {0};
        bool found = false;
        TRY(pattern_find(&step->pattern, s->regex, &v, at, &match, &found, e));
        if (!found) break;
        str_append_bytes(out, text + at, match.from - at);
        str_append(out, step->content);
        at = match.to;
    }
    str_append_bytes(out, text + at, len - at);
    return STATUS_OK;
}

/* Removes up to start leading and stop trailing copies of one character. */
static void strip_in(const struct decode_step *step, const char *text, size_t len,
                     struct str *out) {
    const size_t unit = strlen(step->content);
    size_t from = 0, to = len;
    for (int32_t i = 0;
         i < step->start && to - from >= unit && memcmp(text + from, step->content, unit) == 0;
         i++) {
        from += unit;
    }
    for (int32_t i = 0;
         i < step->stop && to - from >= unit && memcmp(text + to - unit, step->content, unit) == 0;
         i++) {
        to -= unit;
    }
    str_append_bytes(out, text + from, to - from);
}

static void unmark_in(const struct decode_step *step, bool first, const char *text, size_t len,
                      struct str *out) {
    const size_t unit = strlen(step->content);
    for (size_t at = 0; at < len;) {
        const bool mark = len - at >= unit && memcmp(text + at, step->content, unit) == 0;
        if (!mark) str_append_char(out, text[at]);
        if (mark && !(first && step->scheme != PREPEND_NEVER)) str_append_char(out, ' ');
        at += mark ? unit : 1;
    }
}

/* A run of byte tokens becomes its text if that is UTF-8, else one U+FFFD a byte. */
static void close_run(const struct str *run, struct strings *out) {
    if (run->len == 0) return;
    const bool good = utf8_valid_prefix(run->data, run->len) == run->len;
    const size_t from = out->text.len;
    if (good) str_append_bytes(&out->text, run->data, run->len);
    for (size_t i = 0; i < run->len && !good; i++) {
        str_append(&out->text, "\xEF\xBF\xBD");
    }
    strings_close(out, from);
}

static void run_byte_fallback(const struct strings *in, struct strings *out) {
    struct str run = {0};
    for (size_t i = 0; i < in->cuts.count; i++) {
        const struct span cut = in->cuts.items[i];
        const char *const text = in->text.data + cut.from;
        const int byte = fallback_byte(text, cut.to - cut.from);
        if (byte >= 0) {
            str_append_char(&run, (char)byte);
            continue;
        }
        close_run(&run, out);
        str_clear(&run);
        const size_t from = out->text.len;
        str_append_bytes(&out->text, text, cut.to - cut.from);
        strings_close(out, from);
    }
    close_run(&run, out);
    str_release(&run);
}

enum status decode_one(const struct decode_step *step, struct scratch *s, bool first,
                       const char *text, size_t len, struct str *out, struct err *e) {
    switch (step->kind) {
    case DECODE_REPLACE: return replace_in(step, s, text, len, out, e);
    case DECODE_STRIP: strip_in(step, text, len, out); break;
    case DECODE_METASPACE: unmark_in(step, first, text, len, out); break;
    default: str_append_bytes(out, text, len); break;
    }
    return STATUS_OK;
}

static enum status run_step(const struct decode_step *step, struct scratch *s,
                            const struct strings *in, struct strings *out, struct err *e) {
    if (step->kind == DECODE_BYTE_LEVEL) {
        run_byte_level(in, out);
    } else if (step->kind == DECODE_BYTE_FALLBACK) {
        run_byte_fallback(in, out);
    } else if (step->kind == DECODE_FUSE) {
        str_append_bytes(&out->text, str_text(&in->text), in->text.len);
        strings_close(out, 0);
    } else {
        for (size_t i = 0; i < in->cuts.count; i++) {
            const struct span cut = in->cuts.items[i];
            const size_t from = out->text.len;
            TRY(decode_one(step, s, i == 0, str_text(&in->text) + cut.from, cut.to - cut.from,
                           &out->text, e));
            strings_close(out, from);
        }
    }
    return STATUS_OK;
}

static enum status run_decoder(const struct tokenizer *t, struct scratch *s,
                               struct strings lists[2], struct str *out, struct err *e) {
    int now = 0;
    for (int i = 0; i < t->decode_count; i++, now = !now) {
        str_clear(&lists[!now].text);
        lists[!now].cuts.count = 0;
        TRY(run_step(&t->decode[i], s, &lists[now], &lists[!now], e));
    }
    str_append_bytes(out, str_text(&lists[now].text), lists[now].text.len);
    return STATUS_OK;
}

enum status token_spelling(const struct tokenizer *t, int32_t id, bool skip_special,
                           const char **text, size_t *len, struct err *e) {
    FAIL_IF(id < 0, STATUS_INVALID, "%d is not a token id", id);
    const bool used = id < t->vocab.size && (t->vocab.flags[id] & TOKEN_USED);
    *text = NULL;
    *len = 0;
    if (used && skip_special && (t->vocab.flags[id] & TOKEN_SPECIAL)) return STATUS_OK;
    *text = used ? t->vocab.spellings.data + t->vocab.tokens[id].from : "\xEF\xBF\xBD";
    *len = used ? t->vocab.tokens[id].to - t->vocab.tokens[id].from : 3;
    return STATUS_OK;
}

enum status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count,
                             bool skip_special, struct str *out, struct err *e) {
    struct strings lists[2] = {{{0}, {0}}, {{0}, {0}}};
    struct scratch *const s = scratch_take(t);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count; i++) {
        const char *text = NULL;
        size_t len = 0;
        GUARD(token_spelling(t, ids[i], skip_special, &text, &len, e));
        if (!text) continue;
        /* Without a decoder the original puts a space between tokens. */
        if (!t->has_decoder && lists[0].cuts.count > 0) str_append_char(&lists[0].text, ' ');
        const size_t from = lists[0].text.len;
        GUARD_IF(from + len > TEXT_BYTES_MAX, STATUS_INVALID, "too many tokens to decode at once");
        str_append_bytes(&lists[0].text, text, len);
        strings_close(&lists[0], from);
    }
    GUARD(run_decoder(t, s, lists, out, e));
done:
    scratch_give(t, s);
    for (int i = 0; i < 2; i++) {
        str_release(&lists[i].text);
        mem_free(lists[i].cuts.items);
    }
    return status;
}
