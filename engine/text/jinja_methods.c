/* jinja_methods.c - methods of strings.
 *
 * What Python has beyond the rows here is known by name, so that a template that uses it is
 * refused instead of finding "no such attribute". */
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_methods.h"
#include "engine/text/jinja_strings.h"
#include "engine/text/jinja_unicode.h"

#define METHOD(name)                                                                               \
    static enum status name(struct render *r, const struct value *self, const struct args *args,   \
                            struct value *out)

/* ---- case and white space ---- */

METHOD(str_upper) {
    (void)args;
    return text_change_case(r, self->as.text, CASE_UPPER, TITLE_METHOD, out);
}
METHOD(str_lower) {
    (void)args;
    return text_change_case(r, self->as.text, CASE_LOWER, TITLE_METHOD, out);
}
METHOD(str_title) {
    (void)args;
    return text_change_case(r, self->as.text, CASE_TITLE, TITLE_METHOD, out);
}
METHOD(str_capitalize) {
    (void)args;
    return text_change_case(r, self->as.text, CASE_CAPITALIZE, TITLE_METHOD, out);
}
METHOD(str_swapcase) {
    (void)args;
    return text_change_case(r, self->as.text, CASE_SWAP, TITLE_METHOD, out);
}

static enum status strip(struct render *r, const struct value *self, const struct args *args,
                         int sides, struct value *out) {
    const struct text *characters = NULL;
    if (args->at[0].kind != VALUE_ABSENT && args->at[0].kind != VALUE_NONE) {
        TRY(want_text(r, &args->at[0], "the argument of strip", &characters));
    }
    TRY(text_strip(r, self->as.text, characters, sides & 1, sides & 2, out));
    out->markup = self->markup;
    return STATUS_OK;
}
METHOD(str_strip) {
    return strip(r, self, args, 3, out);
}
METHOD(str_lstrip) {
    return strip(r, self, args, 1, out);
}
METHOD(str_rstrip) {
    return strip(r, self, args, 2, out);
}

/* ---- splitting ---- */

static struct value part(struct render *r, const struct text *text, size_t begin, size_t end) {
    return value_slice(&r->region, text->data + begin, end - begin);
}

static enum status split_space(struct render *r, const struct text *text, int64_t limit,
                               struct sequence *list) {
    size_t at = unicode_lstrip(text->data, text->len);
    while (at < text->len) {
        if (limit-- == 0) {
            sequence_push(&r->region, list, part(r, text, at, text->len));
            return STATUS_OK;
        }
        size_t end = at;
        while (end < text->len && !unicode_lstrip(text->data + end, text->len - end)) {
            end += (size_t)utf8_length_at(text->data + end);
        }
        sequence_push(&r->region, list, part(r, text, at, end));
        at = end + unicode_lstrip(text->data + end, text->len - end);
    }
    return STATUS_OK;
}

static enum status split_arguments(struct render *r, const struct args *args,
                                   const struct text **separator, int64_t *limit) {
    *separator = NULL;
    if (args->at[0].kind != VALUE_ABSENT && args->at[0].kind != VALUE_NONE) {
        TRY(want_text(r, &args->at[0], "the separator of split", separator));
        RENDER_FAIL_IF(r, !(*separator)->len, STATUS_INVALID, "the separator of split is empty");
    }
    return want_integer(r, &args->at[1], "maxsplit", -1, limit);
}

METHOD(str_split) {
    const struct text *const text = self->as.text;
    const struct text *separator;
    int64_t limit;
    TRY(split_arguments(r, args, &separator, &limit));
    TRY(render_work(r, text->len));
    struct sequence *const list = sequence_new(&r->region, SEQUENCE_LIST, 0);
    *out = value_sequence(list);
    if (!separator) return split_space(r, text, limit, list);
    size_t at = 0;
    while (limit-- != 0) {
        const int64_t found = text_find(text, separator, at);
        if (found < 0) break;
        sequence_push(&r->region, list, part(r, text, at, (size_t)found));
        at = (size_t)found + separator->len;
    }
    sequence_push(&r->region, list, part(r, text, at, text->len));
    return STATUS_OK;
}

/* From the right: parts are found last to first and then turned round. */
METHOD(str_rsplit) {
    const struct text *separator;
    int64_t limit;
    TRY(split_arguments(r, args, &separator, &limit));
    if (limit < 0) return str_split(r, self, args, out);
    RENDER_FAIL_IF(r, !separator, STATUS_UNSUPPORTED,
                   "rsplit at white space with a limit is not supported");
    struct text rest = *self->as.text;
    struct sequence *const list = sequence_new(&r->region, SEQUENCE_LIST, 0);
    *out = value_sequence(list);
    while (limit-- > 0) {
        TRY(render_work(r, rest.len));
        const int64_t found = text_find_last(&rest, separator);
        if (found < 0) break;
        sequence_push(&r->region, list, part(r, &rest, (size_t)found + separator->len, rest.len));
        rest.len = (size_t)found;
    }
    sequence_push(&r->region, list, part(r, &rest, 0, rest.len));
    for (size_t i = 0, k = list->count - 1; i < k; i++, k--) {
        const struct value swap = list->items[i];
        list->items[i] = list->items[k];
        list->items[k] = swap;
    }
    return STATUS_OK;
}

METHOD(str_splitlines) {
    struct sequence *lines = NULL;
    TRY(text_lines(r, self->as.text, value_is_true(&args->at[0]), &lines));
    *out = value_sequence(lines);
    return STATUS_OK;
}

static enum status partition(struct render *r, const struct value *self, const struct args *args,
                             bool last, struct value *out) {
    const struct text *const text = self->as.text;
    const struct text *separator;
    TRY(want_text(r, &args->at[0], "the separator", &separator));
    RENDER_FAIL_IF(r, !separator->len, STATUS_INVALID, "the separator is empty");
    TRY(render_work(r, text->len));
    const int64_t found = last ? text_find_last(text, separator) : text_find(text, separator, 0);
    struct sequence *const parts = sequence_new(&r->region, SEQUENCE_TUPLE, 3);
    const size_t begin = found >= 0 ? (size_t)found : last ? 0 : text->len;
    const size_t end = found >= 0 ? begin + separator->len : begin;
    sequence_push(&r->region, parts, part(r, text, 0, begin));
    sequence_push(&r->region, parts, part(r, text, begin, end));
    sequence_push(&r->region, parts, part(r, text, end, text->len));
    *out = value_sequence(parts);
    return STATUS_OK;
}
METHOD(str_partition) {
    return partition(r, self, args, false, out);
}
METHOD(str_rpartition) {
    return partition(r, self, args, true, out);
}

/* ---- searching ---- */

static bool has_affix(const struct text *text, const struct text *affix, bool at_end) {
    if (affix->len > text->len) return false;
    return !memcmp(text->data + (at_end ? text->len - affix->len : 0), affix->data, affix->len);
}

/* The text between two optional bounds in code points, as slices do. */
static enum status bounded(struct render *r, const struct value *self, const struct value *from,
                           const struct value *to, struct value *out) {
    struct value bounds[3] = {*from, *to, {0}};
    return value_cut(r, self, bounds, out);
}

static enum status affix(struct render *r, const struct value *self, const struct args *args,
                         bool at_end, struct value *out) {
    struct value within;
    TRY(bounded(r, self, &args->at[1], &args->at[2], &within));
    const struct value *const choice = &args->at[0];
    const bool is_tuple =
        choice->kind == VALUE_SEQUENCE && choice->as.sequence->type == SEQUENCE_TUPLE;
    const struct value *const items = is_tuple ? choice->as.sequence->items : choice;
    bool found = false;
    for (size_t i = 0; i < (is_tuple ? choice->as.sequence->count : 1); i++) {
        const struct text *text = NULL;
        TRY(want_text(r, &items[i],
                      at_end ? "the argument of endswith" : "the argument of startswith", &text));
        found |= has_affix(within.as.text, text, at_end);
    }
    *out = value_bool(found);
    return STATUS_OK;
}
METHOD(str_startswith) {
    return affix(r, self, args, false, out);
}
METHOD(str_endswith) {
    return affix(r, self, args, true, out);
}

static enum status remove_affix(struct render *r, const struct value *self, const struct args *args,
                                bool at_end, struct value *out) {
    const struct text *const text = self->as.text;
    const struct text *part_text = NULL;
    TRY(want_text(r, &args->at[0], "the argument", &part_text));
    const size_t cut = has_affix(text, part_text, at_end) ? part_text->len : 0;
    *out = at_end ? part(r, text, 0, text->len - cut) : part(r, text, cut, text->len);
    return STATUS_OK;
}
METHOD(str_removeprefix) {
    return remove_affix(r, self, args, false, out);
}
METHOD(str_removesuffix) {
    return remove_affix(r, self, args, true, out);
}

/* The index in code points, or -1. */
static enum status find(struct render *r, const struct value *self, const struct args *args,
                        bool last, int64_t *index) {
    RENDER_FAIL_IF(r, args->at[1].kind != VALUE_ABSENT, STATUS_UNSUPPORTED,
                   "bounds of find are not supported");
    const struct text *needle = NULL;
    TRY(want_text(r, &args->at[0], "the searched text", &needle));
    TRY(render_work(r, self->as.text->len));
    const int64_t at =
        last ? text_find_last(self->as.text, needle) : text_find(self->as.text, needle, 0);
    *index = at < 0 ? -1 : (int64_t)utf8_count(self->as.text->data, (size_t)at);
    return STATUS_OK;
}
METHOD(str_find) {
    int64_t index = -1;
    TRY(find(r, self, args, false, &index));
    *out = value_int(index);
    return STATUS_OK;
}
METHOD(str_rfind) {
    int64_t index = -1;
    TRY(find(r, self, args, true, &index));
    *out = value_int(index);
    return STATUS_OK;
}
METHOD(str_index) {
    int64_t index = -1;
    TRY(find(r, self, args, false, &index));
    RENDER_FAIL_IF(r, index < 0, STATUS_INVALID, "index: the text was not found");
    *out = value_int(index);
    return STATUS_OK;
}
METHOD(str_count) {
    const struct text *needle = NULL;
    TRY(want_text(r, &args->at[0], "the counted text", &needle));
    TRY(render_work(r, self->as.text->len));
    int64_t count = 0;
    if (!needle->len) {
        count = (int64_t)self->as.text->chars + 1;
    } else {
        for (int64_t at = text_find(self->as.text, needle, 0); at >= 0; count++) {
            at = text_find(self->as.text, needle, (size_t)at + needle->len);
        }
    }
    *out = value_int(count);
    return STATUS_OK;
}

METHOD(str_replace) {
    const struct text *from = NULL, *to = NULL;
    int64_t count;
    TRY(want_text(r, &args->at[0], "the text to replace", &from));
    TRY(want_text(r, &args->at[1], "the replacement", &to));
    TRY(want_integer(r, &args->at[2], "the count", -1, &count));
    return text_replace(r, self->as.text, from, to, count, out);
}
METHOD(str_join) {
    const struct sequence *items = NULL;
    TRY(value_iterate(r, &args->at[0], &items));
    return text_join(r, self->as.text, items, out);
}

/* ---- what kind of characters ---- */

static struct value all_are(const struct text *text, bool (*test)(uint32_t code)) {
    for (size_t at = 0; at < text->len;) {
        uint32_t code = 0;
        at += (size_t)utf8_decode(text->data + at, text->len - at, &code);
        if (!test(code)) return value_bool(false);
    }
    return value_bool(text->len > 0);
}
static bool is_alnum(uint32_t code) {
    return unicode_is_alpha(code) || unicode_is_digit(code);
}
METHOD(str_isalpha) {
    (void)args;
    *out = all_are(self->as.text, unicode_is_alpha);
    return render_work(r, 8 * self->as.text->len);
}
METHOD(str_isdigit) {
    (void)args;
    *out = all_are(self->as.text, unicode_is_digit);
    return render_work(r, 8 * self->as.text->len);
}
METHOD(str_isalnum) {
    (void)args;
    *out = all_are(self->as.text, is_alnum);
    return render_work(r, 8 * self->as.text->len);
}
METHOD(str_isspace) {
    (void)args;
    *out = all_are(self->as.text, python_is_space);
    return render_work(r, self->as.text->len);
}

bool text_is_in_case(const struct text *text, bool upper) {
    bool cased = false;
    for (size_t at = 0; at < text->len;) {
        uint32_t code = 0;
        at += (size_t)utf8_decode(text->data + at, text->len - at, &code);
        if (upper ? unicode_is_lower(code) : unicode_is_upper(code)) return false;
        cased |= unicode_is_upper(code) || unicode_is_lower(code);
    }
    return cased;
}
METHOD(str_isupper) {
    (void)args;
    *out = value_bool(text_is_in_case(self->as.text, true));
    return render_work(r, 8 * self->as.text->len);
}
METHOD(str_islower) {
    (void)args;
    *out = value_bool(text_is_in_case(self->as.text, false));
    return render_work(r, 8 * self->as.text->len);
}

const struct builtin STRING_METHODS[STRING_METHOD_COUNT] = {
    {"upper", "", str_upper},
    {"lower", "", str_lower},
    {"title", "", str_title},
    {"capitalize", "", str_capitalize},
    {"swapcase", "", str_swapcase},
    {"strip", "|chars", str_strip},
    {"lstrip", "|chars", str_lstrip},
    {"rstrip", "|chars", str_rstrip},
    {"split", "|sep maxsplit", str_split},
    {"rsplit", "|sep maxsplit", str_rsplit},
    {"splitlines", "|keepends", str_splitlines},
    {"partition", "sep", str_partition},
    {"rpartition", "sep", str_rpartition},
    {"startswith", "prefix|start end", str_startswith},
    {"endswith", "suffix|start end", str_endswith},
    {"removeprefix", "prefix", str_removeprefix},
    {"removesuffix", "suffix", str_removesuffix},
    {"find", "sub|start", str_find},
    {"rfind", "sub|start", str_rfind},
    {"index", "sub|start", str_index},
    {"count", "sub", str_count},
    {"replace", "old new|count", str_replace},
    {"join", "iterable", str_join},
    {"isalpha", "", str_isalpha},
    {"isdigit", "", str_isdigit},
    {"isalnum", "", str_isalnum},
    {"isspace", "", str_isspace},
    {"isupper", "", str_isupper},
    {"islower", "", str_islower},
};
