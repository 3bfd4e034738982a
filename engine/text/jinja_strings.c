/* jinja_strings.c - the operations of jinja_strings.h.
 *
 * Results are built in a buffer and copied into the region once. */
#include "engine/text/jinja_strings.h"

#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_unicode.h"
#include "engine/text/unicode.h"

/* Whether a letter after `before` begins a word. */
static bool breaks_word(uint32_t before, enum title_rule rule) {
    if (rule == TITLE_METHOD) {
        return !unicode_is_alpha(before) && !unicode_is_upper(before) && !unicode_is_lower(before);
    }
    return python_is_space(before) || (before < 0x80 && before && strchr("-({[<", (char)before));
}

static void append_in_case(struct str *out, uint32_t code, enum letter_case to, bool first) {
    if (to == CASE_SWAP)
        to = unicode_is_upper(code) ? CASE_LOWER : unicode_is_lower(code) ? CASE_UPPER : to;
    if (to == CASE_SWAP) {
        str_append_utf8(out, code);
    } else if (to == CASE_UPPER) {
        unicode_append_upper(out, code);
    } else if (to == CASE_LOWER || !first) {
        struct str letter = {0};
        str_append_utf8(&letter, code);
        unicode_append_lower(out, letter.data, letter.len);
        str_release(&letter);
    } else {
        unicode_append_title(out, code);
    }
}

/* Capital sigma is written as final sigma at the end of a word: after a letter and not before one.
 */
static bool is_final_sigma(const struct text *text, size_t at, size_t size, uint32_t before) {
    if (!unicode_is_alpha(before)) return false;
    uint32_t after = 0;
    const size_t next = at + size;
    if (next < text->len) (void)utf8_decode(text->data + next, text->len - next, &after);
    return !unicode_is_alpha(after);
}

enum status text_change_case(struct render *r, const struct text *text, enum letter_case to,
                             enum title_rule rule, struct value *out) {
    TRY(render_work(r, 16 * text->len));
    struct str result = {0};
    uint32_t before = ' ';
    for (size_t at = 0; at < text->len;) {
        uint32_t code = 0;
        const int size = utf8_decode(text->data + at, text->len - at, &code);
        const bool first =
            to == CASE_CAPITALIZE ? at == 0 : to == CASE_TITLE && breaks_word(before, rule);
        const bool lowers =
            to == CASE_LOWER || ((to == CASE_TITLE || to == CASE_CAPITALIZE) && !first);
        if (code == 0x3A3 && lowers && is_final_sigma(text, at, (size_t)size, before)) {
            str_append_utf8(&result, 0x3C2);
        } else {
            append_in_case(&result, code, to, first);
        }
        before = code;
        at += (size_t)size;
    }
    return string_from(r, &result, out);
}

static bool has_character(const struct text *set, const char *c, size_t size) {
    for (size_t at = 0; at < set->len;) {
        const size_t length = (size_t)utf8_length_at(set->data + at);
        if (length == size && !memcmp(set->data + at, c, size)) return true;
        at += length;
    }
    return false;
}

enum status text_strip(struct render *r, const struct text *text, const struct text *characters,
                       bool left, bool right, struct value *out) {
    size_t begin = 0, end = text->len;
    if (!characters) {
        if (left) begin = unicode_lstrip(text->data, end);
        if (right) end = begin + unicode_rstrip(text->data + begin, end - begin);
    } else {
        while (left && begin < end) {
            const size_t size = (size_t)utf8_length_at(text->data + begin);
            if (!has_character(characters, text->data + begin, size)) break;
            begin += size;
            TRY(render_work(r, characters->len));
        }
        while (right && end > begin) {
            size_t start = end - 1;
            while (((unsigned char)text->data[start] & 0xC0) == 0x80) {
                start--;
            }
            if (!has_character(characters, text->data + start, end - start)) break;
            end = start;
            TRY(render_work(r, characters->len));
        }
    }
    *out = value_slice(&r->region, text->data + begin, end - begin);
    return render_work(r, text->len);
}

int64_t text_find(const struct text *text, const struct text *part, size_t from) {
    if (!part->len) return (int64_t)from;
    if (from >= text->len) return -1;
    const char *const found = memmem(text->data + from, text->len - from, part->data, part->len);
    return found ? found - text->data : -1;
}

int64_t text_find_last(const struct text *text, const struct text *part) {
    if (part->len > text->len) return -1;
    for (size_t at = text->len - part->len + 1; at-- > 0;) {
        if (!memcmp(text->data + at, part->data, part->len)) return (int64_t)at;
    }
    return -1;
}

/* An empty part to replace stands before every character and at the end. */
static void replace_empty(const struct text *text, const struct text *to, int64_t count,
                          struct str *out) {
    for (size_t at = 0;; count--) {
        if (count != 0) str_append_bytes(out, to->data, to->len);
        if (at >= text->len || out->len > TEMPLATE_OUTPUT_MAX) return;
        const size_t size = (size_t)utf8_length_at(text->data + at);
        str_append_bytes(out, text->data + at, size);
        at += size;
        if (count == 0) count = 1;
    }
}

enum status text_replace(struct render *r, const struct text *text, const struct text *from,
                         const struct text *to, int64_t count, struct value *out) {
    TRY(render_work(r, text->len));
    struct str result = {0};
    if (!from->len) {
        replace_empty(text, to, count, &result);
        return string_from(r, &result, out);
    }
    size_t at = 0;
    while (count != 0 && result.len <= TEMPLATE_OUTPUT_MAX) {
        const int64_t found = text_find(text, from, at);
        if (found < 0) break;
        str_append_bytes(&result, text->data + at, (size_t)found - at);
        str_append_bytes(&result, to->data, to->len);
        at = (size_t)found + from->len;
        count--;
    }
    str_append_bytes(&result, text->data + at, text->len - at);
    return string_from(r, &result, out);
}

enum status text_join(struct render *r, const struct text *separator, const struct sequence *items,
                      struct value *out) {
    struct str result = {0};
    for (size_t i = 0; i < items->count && result.len <= TEMPLATE_OUTPUT_MAX; i++) {
        const struct value *const item = &items->items[i];
        if (item->kind != VALUE_STRING) {
            str_release(&result);
            RENDER_FAIL(r, STATUS_INVALID, "join needs strings, item %zu is a %s", i,
                        value_type_name(item));
        }
        if (i) str_append_bytes(&result, separator->data, separator->len);
        str_append_bytes(&result, item->as.text->data, item->as.text->len);
    }
    return string_from(r, &result, out);
}

/* Length of the line end that starts here, 0 if none does. */
static size_t line_end(const char *data, size_t len) {
    uint32_t code = 0;
    const int size = utf8_decode(data, len, &code);
    if (code == '\r') return len > 1 && data[1] == '\n' ? 2 : 1;
    const bool ends = (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) ||
                      code == 0x85 || code == 0x2028 || code == 0x2029;
    return ends ? (size_t)size : 0;
}

enum status text_lines(struct render *r, const struct text *text, bool keep_ends,
                       struct sequence **out) {
    TRY(render_work(r, 8 * text->len));
    *out = sequence_new(&r->region, SEQUENCE_LIST, 0);
    size_t from = 0;
    for (size_t at = 0; at < text->len;) {
        const size_t end = line_end(text->data + at, text->len - at);
        if (!end) {
            at += (size_t)utf8_length_at(text->data + at);
            continue;
        }
        const size_t to = keep_ends ? at + end : at;
        sequence_push(&r->region, *out, value_slice(&r->region, text->data + from, to - from));
        at += end;
        from = at;
    }
    if (from < text->len) {
        sequence_push(&r->region, *out,
                      value_slice(&r->region, text->data + from, text->len - from));
    }
    return STATUS_OK;
}
