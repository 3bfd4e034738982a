/* jinja_methods_other.c - methods of dicts, lists and cyclers, and the names of all methods that
 * Python's types have.
 *
 * A method that Python has and this interpreter does not is refused by that name. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_methods.h"

static enum status view(struct render *r, const struct dict *d, enum sequence_type type,
                        struct value *out) {
    TRY(render_work(r, 48 * d->count));
    struct sequence *const items = sequence_new(&r->region, type, d->count);
    for (size_t i = 0; i < d->count; i++) {
        const struct dict_entry *const entry = &d->entries[i];
        sequence_push(&r->region, items,
                      type == SEQUENCE_KEYS     ? entry->key
                      : type == SEQUENCE_VALUES ? entry->value
                                                : value_pair(&r->region, entry->key, entry->value));
    }
    *out = value_sequence(items);
    return STATUS_OK;
}

static enum status dict_items(struct render *r, const struct value *self, const struct args *args,
                              struct value *out) {
    (void)args;
    return view(r, self->as.dict, SEQUENCE_ITEMS, out);
}

static enum status dict_keys(struct render *r, const struct value *self, const struct args *args,
                             struct value *out) {
    (void)args;
    return view(r, self->as.dict, SEQUENCE_KEYS, out);
}

static enum status dict_values(struct render *r, const struct value *self, const struct args *args,
                               struct value *out) {
    (void)args;
    return view(r, self->as.dict, SEQUENCE_VALUES, out);
}

static enum status dict_get_method(struct render *r, const struct value *self,
                                   const struct args *args, struct value *out) {
    RENDER_FAIL_IF(r, args->keyword_count, STATUS_INVALID, "get takes no named arguments");
    RENDER_FAIL_IF(r, !value_is_hashable(&args->at[0]), STATUS_INVALID,
                   "a %s cannot be the key of a dict", value_type_name(&args->at[0]));
    TRY(render_work(r, args->at[0].kind == VALUE_STRING ? args->at[0].as.text->len : 0));
    const struct value *const member = dict_get(self->as.dict, &args->at[0]);
    *out = member ? *member : args->at[1].kind == VALUE_ABSENT ? value_none() : args->at[1];
    return STATUS_OK;
}

/* Dicts and lists cannot change, so a copy is the thing itself. */
static enum status copy(struct render *r, const struct value *self, const struct args *args,
                        struct value *out) {
    (void)r;
    (void)args;
    *out = *self;
    return STATUS_OK;
}

static enum status list_search(struct render *r, const struct value *self, const struct value *item,
                               int64_t *first, int64_t *count) {
    *first = -1;
    *count = 0;
    for (size_t i = 0; i < self->as.sequence->count; i++) {
        bool equal = false;
        TRY(values_equal(r, &self->as.sequence->items[i], item, &equal));
        if (equal && !(*count)++) *first = (int64_t)i;
    }
    return STATUS_OK;
}

static enum status list_index(struct render *r, const struct value *self, const struct args *args,
                              struct value *out) {
    int64_t first, count;
    TRY(list_search(r, self, &args->at[0], &first, &count));
    RENDER_FAIL_IF(r, first < 0, STATUS_INVALID, "index: the item is not in the list");
    *out = value_int(first);
    return STATUS_OK;
}

static enum status list_count(struct render *r, const struct value *self, const struct args *args,
                              struct value *out) {
    int64_t first, count;
    TRY(list_search(r, self, &args->at[0], &first, &count));
    *out = value_int(count);
    return STATUS_OK;
}

static enum status cycler_next(struct render *r, const struct value *self, const struct args *args,
                               struct value *out) {
    (void)r;
    (void)args;
    struct cycle *const cycle = self->as.cycle;
    *out = cycle->items->items[cycle->at % cycle->items->count];
    cycle->at = (cycle->at + 1) % cycle->items->count;
    return STATUS_OK;
}

static enum status cycler_reset(struct render *r, const struct value *self, const struct args *args,
                                struct value *out) {
    (void)r;
    (void)args;
    self->as.cycle->at = 0;
    *out = value_none();
    return STATUS_OK;
}

/* ---- which methods a value has ---- */

static bool is_named(const char *const *names, const char *name, size_t len) {
    for (; *names; names++) {
        if (strlen(*names) == len && !memcmp(*names, name, len)) return true;
    }
    return false;
}

/* Methods of Python's types that have no row: using one is refused by name. */
static const char *const *unsupported_methods(const struct value *self) {
    static const char *const NONE[] = {NULL};
    static const char *const STRING[] = {"casefold",     "center",     "encode",      "expandtabs",
                                         "format",       "format_map", "isascii",     "isdecimal",
                                         "isidentifier", "isnumeric",  "isprintable", "istitle",
                                         "ljust",        "maketrans",  "rindex",      "rjust",
                                         "translate",    "zfill",      NULL};
    static const char *const DICT[] = {"fromkeys", NULL};
    static const char *const INTEGER[] = {
        "as_integer_ratio", "bit_count",  "bit_length", "conjugate",
        "denominator",      "from_bytes", "imag",       "is_integer",
        "numerator",        "real",       "to_bytes",   NULL};
    static const char *const FLOAT[] = {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag",
                                        "is_integer",       "real",      NULL};
    static const char *const GENERATOR[] = {"close", "send", "throw", NULL};
    switch (self->kind) {
    case VALUE_STRING: return STRING;
    case VALUE_DICT: return DICT;
    case VALUE_BOOL:
    case VALUE_BIG:
    case VALUE_INT: return INTEGER;
    case VALUE_FLOAT: return FLOAT;
    case VALUE_GENERATOR: return GENERATOR;
    default: return NONE;
    }
}

const struct builtin *jinja_method(const struct value *self, const char *name, size_t len,
                                   bool *known) {
    static const struct builtin DICT[] = {{"items", "", dict_items},
                                          {"get", "key|default", dict_get_method},
                                          {"keys", "", dict_keys},
                                          {"values", "", dict_values},
                                          {"copy", "", copy}};
    static const struct builtin LIST[] = {
        {"index", "item", list_index}, {"count", "item", list_count}, {"copy", "", copy}};
    static const struct builtin CYCLER[] = {{"next", "", cycler_next}, {"reset", "", cycler_reset}};
    const struct builtin *row = NULL;
    if (self->kind == VALUE_STRING) {
        row = builtin_find(STRING_METHODS, STRING_METHOD_COUNT, name, len);
    } else if (self->kind == VALUE_DICT) {
        row = builtin_find(DICT, COUNT_OF(DICT), name, len);
    } else if (self->kind == VALUE_SEQUENCE && self->as.sequence->type <= SEQUENCE_RANGE) {
        row = builtin_find(LIST, self->as.sequence->type == SEQUENCE_LIST ? 3 : 2, name, len);
    } else if (self->kind == VALUE_CYCLER) {
        row = builtin_find(CYCLER, COUNT_OF(CYCLER), name, len);
    } else if (self->kind == VALUE_LOOP) {
        row = builtin_find(LOOP_METHODS, LOOP_METHOD_COUNT, name, len);
    }
    *known = row || is_named(unsupported_methods(self), name, len);
    return row;
}
