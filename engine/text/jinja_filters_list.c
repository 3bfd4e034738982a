/* jinja_filters_list.c - filters on sequences and dicts.
 *
 * Those that Jinja makes lazy (map, select, items...) return a generator here too: always true,
 * without a length, good for one walk. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_filters.h"
#include "engine/text/jinja_strings.h"

#define FILTER(name)                                                                               \
    static enum status name(struct render *r, const struct value *self, const struct args *args,   \
                            struct value *out)

static struct value generator(struct render *r, const struct sequence *items) {
    struct generator *const g = region_alloc(&r->region, 1, sizeof *g);
    g->items = items;
    return (struct value){.kind = VALUE_GENERATOR, .as.generator = g};
}

FILTER(filter_length) {
    (void)args;
    switch (self->kind) {
    case VALUE_STRING: *out = value_int((int64_t)self->as.text->chars); return STATUS_OK;
    case VALUE_SEQUENCE: *out = value_int((int64_t)self->as.sequence->count); return STATUS_OK;
    case VALUE_DICT: *out = value_int((int64_t)self->as.dict->count); return STATUS_OK;
    case VALUE_UNDEFINED: *out = value_int(0); return STATUS_OK;
    default: RENDER_FAIL(r, STATUS_INVALID, "a %s has no length", value_type_name(self));
    }
}

FILTER(filter_items) {
    (void)args;
    struct sequence *const items = sequence_new(&r->region, SEQUENCE_LIST, 0);
    *out = generator(r, items);
    if (self->kind == VALUE_UNDEFINED) return STATUS_OK;
    RENDER_FAIL_IF(r, self->kind != VALUE_DICT, STATUS_INVALID, "items needs a dict, not a %s",
                   value_type_name(self));
    TRY(render_work(r, 64 * self->as.dict->count));
    for (size_t i = 0; i < self->as.dict->count; i++) {
        const struct dict_entry *const entry = &self->as.dict->entries[i];
        sequence_push(&r->region, items, value_pair(&r->region, entry->key, entry->value));
    }
    return STATUS_OK;
}

FILTER(filter_list) {
    (void)args;
    const struct sequence *items = NULL;
    TRY(value_iterate(r, self, &items));
    struct sequence *const list = sequence_new(&r->region, SEQUENCE_LIST, 0);
    list->items = items->items;
    list->count = list->capacity = items->count;
    *out = value_sequence(list);
    return STATUS_OK;
}

FILTER(filter_join) {
    const struct sequence *items = NULL;
    struct value separator = value_string(&r->region, "", 0);
    TRY(value_iterate(r, self, &items));
    if (args->at[0].kind != VALUE_ABSENT) TRY(value_to_string(r, &args->at[0], &separator));
    struct sequence *const texts = sequence_new(&r->region, SEQUENCE_LIST, items->count);
    for (size_t i = 0; i < items->count; i++) {
        struct value item = items->items[i];
        if (args->at[1].kind != VALUE_ABSENT && args->at[1].kind != VALUE_NONE) {
            TRY(value_path(r, &item, &args->at[1], &item));
        }
        TRY(value_to_string(r, &item, &item));
        sequence_push(&r->region, texts, item);
    }
    return text_join(r, separator.as.text, texts, out);
}

FILTER(filter_first) {
    (void)args;
    const struct sequence *items = NULL;
    TRY(value_iterate(r, self, &items));
    *out = items->count ? items->items[0]
                        : value_undefined(&r->region, "there is no first item, it was empty");
    return STATUS_OK;
}

FILTER(filter_last) {
    (void)args;
    const struct sequence *items = NULL;
    RENDER_FAIL_IF(r, self->kind == VALUE_GENERATOR, STATUS_INVALID,
                   "last: a generator cannot be reversed");
    TRY(value_iterate(r, self, &items));
    *out = items->count ? items->items[items->count - 1]
                        : value_undefined(&r->region, "there is no last item, it was empty");
    return STATUS_OK;
}

FILTER(filter_reverse) {
    (void)args;
    const struct value bounds[3] = {{0}, {0}, value_int(-1)};
    if (self->kind == VALUE_STRING) return value_cut(r, self, bounds, out);
    const struct sequence *items = NULL;
    TRY(value_iterate(r, self, &items));
    struct value list = value_sequence(items);
    TRY(filter_list(r, &list, args, &list));
    TRY(value_cut(r, &list, bounds, &list));
    *out = generator(r, list.as.sequence);
    return STATUS_OK;
}

/* ---- sorting ---- */

struct sort_item {
    struct value key, value;
};
struct sort_style {
    bool ignore_case, reverse;
};

static enum status sort_key(struct render *r, const struct value *v, const struct sort_style *style,
                            struct value *out) {
    *out = *v;
    if (!style->ignore_case || v->kind != VALUE_STRING) return STATUS_OK;
    return text_change_case(r, v->as.text, CASE_LOWER, TITLE_METHOD, out);
}

/* A stable merge sort. */
static enum status sort_items(struct render *r, struct sort_item *items, struct sort_item *scratch,
                              size_t count, bool reverse) {
    if (count < 2) return STATUS_OK;
    const size_t half = count / 2;
    TRY(sort_items(r, items, scratch, half, reverse));
    TRY(sort_items(r, items + half, scratch, count - half, reverse));
    size_t a = 0, b = half;
    for (size_t i = 0; i < count; i++) {
        int order = a == half ? 1 : -1;
        if (a < half && b < count) {
            TRY(value_compare(r, &items[a].key, &items[b].key, &order));
            if (reverse) order = -order;
        }
        scratch[i] = order <= 0 ? items[a++] : items[b++];
    }
    memcpy(items, scratch, count * sizeof *items);
    return STATUS_OK;
}

/* Sorts by `path` of each item (may be absent) into a list. */
static enum status sorted(struct render *r, const struct sequence *items, const struct value *path,
                          const struct sort_style *style, struct value *out) {
    struct sort_item *const work = region_alloc(&r->region, items->count * 2 + 1, sizeof *work);
    for (size_t i = 0; i < items->count; i++) {
        struct value key = items->items[i];
        if (path->kind != VALUE_ABSENT && path->kind != VALUE_NONE)
            TRY(value_path(r, &key, path, &key));
        TRY(sort_key(r, &key, style, &work[i].key));
        work[i].value = items->items[i];
    }
    TRY(sort_items(r, work, work + items->count, items->count, style->reverse));
    struct sequence *const list = sequence_new(&r->region, SEQUENCE_LIST, items->count);
    for (size_t i = 0; i < items->count; i++) {
        sequence_push(&r->region, list, work[i].value);
    }
    *out = value_sequence(list);
    return STATUS_OK;
}

FILTER(filter_sort) {
    const struct sequence *items = NULL;
    const struct sort_style style = {.reverse = value_is_true(&args->at[0]),
                                     .ignore_case = !value_is_true(&args->at[1])};
    TRY(value_iterate(r, self, &items));
    return sorted(r, items, &args->at[2], &style, out);
}

FILTER(filter_dictsort) {
    const struct sort_style style = {.ignore_case = !value_is_true(&args->at[0]),
                                     .reverse = value_is_true(&args->at[2])};
    RENDER_FAIL_IF(r, self->kind != VALUE_DICT, STATUS_INVALID, "dictsort needs a dict, not a %s",
                   value_type_name(self));
    const bool by_value = value_is_text(&args->at[1], "value");
    RENDER_FAIL_IF(
        r, !by_value && args->at[1].kind != VALUE_ABSENT && !value_is_text(&args->at[1], "key"),
        STATUS_INVALID, "dictsort sorts by \"key\" or \"value\"");
    struct value pairs;
    TRY(filter_items(r, self, args, &pairs));
    const struct value path = value_int(by_value);
    return sorted(r, pairs.as.generator->items, &path, &style, out);
}

FILTER(filter_unique) {
    const struct sequence *items = NULL;
    const struct sort_style style = {.ignore_case = !value_is_true(&args->at[0])};
    TRY(value_iterate(r, self, &items));
    struct dict *const seen = dict_new(&r->region);
    struct sequence *const list = sequence_new(&r->region, SEQUENCE_LIST, 0);
    for (size_t i = 0; i < items->count; i++) {
        struct value key = items->items[i];
        if (args->at[1].kind != VALUE_ABSENT) TRY(value_path(r, &key, &args->at[1], &key));
        TRY(sort_key(r, &key, &style, &key));
        RENDER_FAIL_IF(r, !value_is_hashable(&key), STATUS_INVALID, "unique: a %s cannot be a key",
                       value_type_name(&key));
        TRY(render_work(r, 64));
        if (dict_get(seen, &key)) continue;
        dict_set(&r->region, seen, key, value_none());
        sequence_push(&r->region, list, items->items[i]);
    }
    *out = generator(r, list);
    return STATUS_OK;
}

static enum status extreme(struct render *r, const struct value *self, const struct args *args,
                           int sign, struct value *out) {
    const struct sequence *items = NULL;
    const struct sort_style style = {.ignore_case = !value_is_true(&args->at[0])};
    TRY(value_iterate(r, self, &items));
    *out = value_undefined(&r->region, "there is no smallest or largest item, it was empty");
    struct value best = {0}, key;
    for (size_t i = 0; i < items->count; i++) {
        int order = -sign;
        struct value item = items->items[i];
        if (args->at[1].kind != VALUE_ABSENT) TRY(value_path(r, &item, &args->at[1], &item));
        TRY(sort_key(r, &item, &style, &key));
        if (i) TRY(value_compare(r, &best, &key, &order));
        if (order * sign >= 0) continue;
        best = key;
        *out = items->items[i];
    }
    return STATUS_OK;
}
FILTER(filter_max) {
    return extreme(r, self, args, 1, out);
}
FILTER(filter_min) {
    return extreme(r, self, args, -1, out);
}

FILTER(filter_sum) {
    const struct sequence *items = NULL;
    TRY(value_iterate(r, self, &items));
    *out = args->at[1].kind == VALUE_ABSENT ? value_int(0) : args->at[1];
    for (size_t i = 0; i < items->count; i++) {
        struct value item = items->items[i];
        if (args->at[0].kind != VALUE_ABSENT && args->at[0].kind != VALUE_NONE) {
            TRY(value_path(r, &item, &args->at[0], &item));
        }
        TRY(operate(r, OP_ADD, out, &item, out));
    }
    return STATUS_OK;
}

/* ---- map and select ---- */

/* The rest of the arguments, after `skip` positional ones. */
static struct args rest_of(const struct args *args, size_t skip) {
    return (struct args){.items = skip ? args->items + skip : args->items,
                         .count = args->count - skip,
                         .keywords = args->keywords,
                         .keyword_count = args->keyword_count};
}

/* map(attribute='a', default=d) */
static enum status map_attribute(struct render *r, const struct sequence *items,
                                 const struct args *args, struct sequence *list) {
    struct value path = {0}, otherwise = {0};
    for (size_t i = 0; i < args->keyword_count; i++) {
        const struct value name = value_text(args->keywords[i].name);
        const bool is_path = value_is_text(&name, "attribute");
        RENDER_FAIL_IF(r, !is_path && !value_is_text(&name, "default"), STATUS_INVALID,
                       "map takes attribute and default by name, nothing else");
        *(is_path ? &path : &otherwise) = args->keywords[i].value;
    }
    RENDER_FAIL_IF(r, path.kind == VALUE_ABSENT, STATUS_INVALID,
                   "map needs the name of a filter or an attribute");
    for (size_t i = 0; i < items->count; i++) {
        struct value item;
        TRY(value_path(r, &items->items[i], &path, &item));
        if (item.kind == VALUE_UNDEFINED && otherwise.kind != VALUE_ABSENT) item = otherwise;
        sequence_push(&r->region, list, item);
    }
    return STATUS_OK;
}

static enum status find_row(struct render *r, const struct value *name, bool is_filter,
                            const struct builtin **row) {
    const struct text *text = NULL;
    TRY(want_text(r, name, "the name of a filter or test", &text));
    char *const copy = region_copy(&r->region, text->data, text->len);
    *row = is_filter ? jinja_filter(copy) : jinja_test(copy);
    RENDER_FAIL_IF(r, !*row, STATUS_UNSUPPORTED, "the %s \"%.60s\" is not supported",
                   is_filter ? "filter" : "test", copy);
    return STATUS_OK;
}

FILTER(filter_map) {
    const struct sequence *items = NULL;
    TRY(value_iterate(r, self, &items));
    struct sequence *const list = sequence_new(&r->region, SEQUENCE_LIST, items->count);
    *out = generator(r, list);
    if (!args->count) return map_attribute(r, items, args, list);
    const struct builtin *row = NULL;
    TRY(find_row(r, &args->items[0], true, &row));
    const struct args rest = rest_of(args, 1);
    RENDER_FAIL_IF(r, r->call_depth >= TEMPLATE_DEPTH_MAX, STATUS_INVALID,
                   "map calls itself too deep");
    r->call_depth++;
    for (size_t i = 0; i < items->count; i++) {
        struct value item;
        TRY(render_work(r, 0));
        TRY(call_builtin(r, row, &items->items[i], &rest, &item));
        sequence_push(&r->region, list, item);
    }
    r->call_depth--;
    return STATUS_OK;
}

static enum status select_items(struct render *r, const struct value *self, const struct args *args,
                                bool by_attribute, bool keep, struct value *out) {
    const struct sequence *items = NULL;
    const struct builtin *row = NULL;
    const size_t used = by_attribute ? 1 : 0;
    RENDER_FAIL_IF(r, args->count < used, STATUS_INVALID, "the name of an attribute is missing");
    if (args->count > used) TRY(find_row(r, &args->items[used], false, &row));
    TRY(value_iterate(r, self, &items));
    const struct args rest = rest_of(args, args->count > used ? used + 1 : used);
    struct sequence *const list = sequence_new(&r->region, SEQUENCE_LIST, 0);
    for (size_t i = 0; i < items->count; i++) {
        struct value item = items->items[i], answer;
        TRY(render_work(r, 0));
        if (by_attribute) TRY(value_path(r, &item, &args->items[0], &item));
        answer = item;
        if (row) TRY(call_builtin(r, row, &item, &rest, &answer));
        if (value_is_true(&answer) == keep) sequence_push(&r->region, list, items->items[i]);
    }
    *out = generator(r, list);
    return STATUS_OK;
}
FILTER(filter_select) {
    return select_items(r, self, args, false, true, out);
}
FILTER(filter_reject) {
    return select_items(r, self, args, false, false, out);
}
FILTER(filter_selectattr) {
    return select_items(r, self, args, true, true, out);
}
FILTER(filter_rejectattr) {
    return select_items(r, self, args, true, false, out);
}

FILTER(filter_attr) {
    struct value name;
    TRY(value_to_string(r, &args->at[0], &name));
    return value_attribute(r, self, name.as.text, out);
}

const struct builtin LIST_FILTERS[LIST_FILTER_COUNT] = {
    {"length", "", filter_length},
    {"count", "", filter_length},
    {"items", "", filter_items},
    {"list", "", filter_list},
    {"join", "|d attribute", filter_join},
    {"first", "", filter_first},
    {"last", "", filter_last},
    {"reverse", "", filter_reverse},
    {"sort", "|reverse case_sensitive attribute", filter_sort},
    {"dictsort", "|case_sensitive by reverse", filter_dictsort},
    {"unique", "|case_sensitive attribute", filter_unique},
    {"max", "|case_sensitive attribute", filter_max},
    {"min", "|case_sensitive attribute", filter_min},
    {"sum", "|attribute start", filter_sum},
    {"map", "*", filter_map},
    {"select", "*", filter_select},
    {"reject", "*", filter_reject},
    {"selectattr", "*", filter_selectattr},
    {"rejectattr", "*", filter_rejectattr},
    {"attr", "name", filter_attr},
};
