/* jinja_value.c - constructors, dictionaries and Python's equality.
 *
 * Equal keys of different types (1, 1.0, True) are one key, as in Python: hash and equality go
 * through the number. */
#include "engine/text/jinja_value.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "engine/text/jinja_unicode.h"

enum { DICT_SMALL = 8 };

struct value value_none(void) {
    return (struct value){.kind = VALUE_NONE};
}

struct value value_bool(bool truth) {
    return (struct value){.kind = VALUE_BOOL, .as.truth = truth};
}

struct value value_int(int64_t integer) {
    return (struct value){.kind = VALUE_INT, .as.integer = integer};
}

struct value value_float(double number) {
    return (struct value){.kind = VALUE_FLOAT, .as.number = number};
}

struct value value_undefined(struct region *region, const char *message) {
    struct undefined *const why = region_alloc(region, 1, sizeof *why);
    why->message = region_copy(region, message, strlen(message));
    return (struct value){.kind = VALUE_UNDEFINED, .as.undefined = why};
}

struct value value_text(const struct text *text) {
    return (struct value){.kind = VALUE_STRING, .as.text = text};
}

struct value value_sequence(const struct sequence *sequence) {
    return (struct value){.kind = VALUE_SEQUENCE, .as.sequence = sequence};
}

struct value value_dict(const struct dict *dict) {
    return (struct value){.kind = VALUE_DICT, .as.dict = dict};
}

struct value value_slice(struct region *region, const char *data, size_t len) {
    struct text *const text = region_alloc(region, 1, sizeof *text);
    *text = (struct text){.len = len, .chars = utf8_count(data, len), .data = data};
    return value_text(text);
}

struct value value_string(struct region *region, const char *data, size_t len) {
    return value_slice(region, region_copy(region, data, len), len);
}

struct sequence *sequence_new(struct region *region, enum sequence_type type, size_t capacity) {
    struct sequence *const s = region_alloc(region, 1, sizeof *s);
    s->type = type;
    s->capacity = capacity;
    if (capacity) s->items = region_alloc(region, capacity, sizeof *s->items);
    return s;
}

void sequence_push(struct region *region, struct sequence *s, struct value value) {
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? s->capacity * 2 : 4;
        struct value *const items = region_alloc(region, s->capacity, sizeof *items);
        if (s->count) memcpy(items, s->items, s->count * sizeof *items);
        s->items = items;
    }
    s->items[s->count++] = value;
}

struct value value_pair(struct region *region, struct value first, struct value second) {
    struct sequence *const pair = sequence_new(region, SEQUENCE_TUPLE, 2);
    sequence_push(region, pair, first);
    sequence_push(region, pair, second);
    return value_sequence(pair);
}

/* ---- dictionaries ---- */

static uint64_t mix(uint64_t h) {
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdULL;
    h ^= h >> 33;
    return h;
}

static uint64_t hash_bytes(const char *data, size_t len) {
    uint64_t h = 0xcbf29ce484222325ULL; /* FNV-1a */
    for (size_t i = 0; i < len; i++) {
        h = (h ^ (unsigned char)data[i]) * 0x100000001b3ULL;
    }
    return mix(h);
}

static uint64_t hash_number(double number) {
    if (number == 0) number = 0; /* -0.0 is equal to 0.0 */
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return mix(bits);
}

static uint64_t hash_value(const struct value *v) {
    switch (v->kind) {
    case VALUE_STRING: return hash_bytes(v->as.text->data, v->as.text->len);
    case VALUE_BOOL:
    case VALUE_INT:
    case VALUE_FLOAT: return hash_number(value_number(v));
    case VALUE_SEQUENCE: {
        uint64_t h = 17;
        for (size_t i = 0; i < v->as.sequence->count; i++) {
            h = mix(h * 31 + hash_value(&v->as.sequence->items[i]));
        }
        return h;
    }
    default: return v->kind;
    }
}

/* The slot of the key, or the free one where it belongs. */
static size_t find_slot(const struct dict *d, const struct value *key) {
    size_t slot = hash_value(key) & (d->slot_count - 1);
    while (d->slots[slot] && !value_equal(&d->entries[d->slots[slot] - 1].key, key, NULL)) {
        slot = (slot + 1) & (d->slot_count - 1);
    }
    return slot;
}

static void rebuild_slots(struct region *region, struct dict *d) {
    d->slot_count = d->capacity * 4;
    d->slots = region_alloc(region, d->slot_count, sizeof *d->slots);
    for (size_t i = 0; i < d->count; i++) {
        d->slots[find_slot(d, &d->entries[i].key)] = (uint32_t)(i + 1);
    }
}

struct dict *dict_new(struct region *region) {
    return region_alloc(region, 1, sizeof(struct dict));
}

const struct value *dict_get(const struct dict *d, const struct value *key) {
    if (d->slots) {
        const uint32_t found = d->slots[find_slot(d, key)];
        return found ? &d->entries[found - 1].value : NULL;
    }
    for (size_t i = 0; i < d->count; i++) {
        if (value_equal(&d->entries[i].key, key, NULL)) return &d->entries[i].value;
    }
    return NULL;
}

const struct value *dict_get_text(const struct dict *d, const char *name, size_t len) {
    const struct text text = {.len = len, .data = name};
    const struct value key = value_text(&text);
    return dict_get(d, &key);
}

void dict_set(struct region *region, struct dict *d, struct value key, struct value value) {
    ASSERT(value_is_hashable(&key));
    struct value *const old = (struct value *)dict_get(d, &key);
    if (old) {
        *old = value;
        return;
    }
    if (d->count == d->capacity) {
        d->capacity = d->capacity ? d->capacity * 2 : 4;
        struct dict_entry *const entries = region_alloc(region, d->capacity, sizeof *entries);
        if (d->count) memcpy(entries, d->entries, d->count * sizeof *entries);
        d->entries = entries;
        if (d->capacity > DICT_SMALL) rebuild_slots(region, d);
    }
    d->entries[d->count++] = (struct dict_entry){key, value};
    if (d->slots) d->slots[find_slot(d, &key)] = (uint32_t)d->count;
}

/* ---- asking ---- */

const char *value_type_name(const struct value *v) {
    static const char *const NAMES[] = {
        [VALUE_ABSENT] = "nothing",
        [VALUE_UNDEFINED] = "Undefined",
        [VALUE_NONE] = "NoneType",
        [VALUE_BOOL] = "bool",
        [VALUE_INT] = "int",
        [VALUE_BIG] = "int",
        [VALUE_FLOAT] = "float",
        [VALUE_STRING] = "str",
        [VALUE_DICT] = "dict",
        [VALUE_GENERATOR] = "generator",
        [VALUE_NAMESPACE] = "Namespace",
        [VALUE_MACRO] = "Macro",
        [VALUE_LOOP] = "LoopContext",
        [VALUE_METHOD] = "method",
        [VALUE_FUNCTION] = "function",
        [VALUE_JOINER] = "Joiner",
        [VALUE_CYCLER] = "Cycler",
    };
    static const char *const SEQUENCES[] = {"list",      "tuple",       "range",
                                            "dict_keys", "dict_values", "dict_items"};
    return v->kind == VALUE_SEQUENCE ? SEQUENCES[v->as.sequence->type] : NAMES[v->kind];
}

bool value_is_true(const struct value *v) {
    switch (v->kind) {
    case VALUE_ABSENT:
    case VALUE_UNDEFINED:
    case VALUE_NONE: return false;
    case VALUE_BOOL: return v->as.truth;
    case VALUE_INT: return v->as.integer != 0;
    case VALUE_FLOAT: return v->as.number != 0;
    case VALUE_STRING: return v->as.text->len != 0;
    case VALUE_SEQUENCE: return v->as.sequence->count != 0;
    case VALUE_DICT: return v->as.dict->count != 0;
    default: return true;
    }
}

bool value_is_number(const struct value *v) {
    return v->kind == VALUE_BOOL || v->kind == VALUE_INT || v->kind == VALUE_FLOAT;
}

bool value_is_text(const struct value *v, const char *text) {
    return v->kind == VALUE_STRING && v->as.text->len == strlen(text) &&
           !memcmp(v->as.text->data, text, v->as.text->len);
}

double value_number(const struct value *v) {
    if (v->kind == VALUE_FLOAT) return v->as.number;
    return (double)value_integer(v);
}

int64_t value_integer(const struct value *v) {
    return v->kind == VALUE_BOOL ? v->as.truth : v->as.integer;
}

bool value_is_hashable(const struct value *v) {
    if (v->kind == VALUE_DICT || v->kind == VALUE_ABSENT) return false;
    if (v->kind != VALUE_SEQUENCE || v->as.sequence->type == SEQUENCE_RANGE) return true;
    if (v->as.sequence->type != SEQUENCE_TUPLE) return false;
    for (size_t i = 0; i < v->as.sequence->count; i++) {
        const struct value *const item = &v->as.sequence->items[i];
        if (item->kind == VALUE_SEQUENCE || !value_is_hashable(item)) return false;
    }
    return true;
}

struct comparison {
    int64_t work;
    int depth;
};

static bool equal_within(struct comparison *c, const struct value *a, const struct value *b);

static bool sequences_equal(struct comparison *c, const struct sequence *a,
                            const struct sequence *b) {
    if (a == b) return true;
    if (a->type != b->type || a->count != b->count) return false;
    if (a->type == SEQUENCE_VALUES) return false; /* views of values are compared by identity */
    for (size_t i = 0; i < a->count; i++) {
        if (!equal_within(c, &a->items[i], &b->items[i])) return false;
    }
    return true;
}

static bool dicts_equal(struct comparison *c, const struct dict *a, const struct dict *b) {
    if (a == b) return true;
    if (a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++) {
        const struct value *const other = dict_get(b, &a->entries[i].key);
        if (!other || !equal_within(c, &a->entries[i].value, other)) return false;
    }
    return true;
}

static bool numbers_equal(const struct value *a, const struct value *b) {
    if (a->kind != VALUE_FLOAT && b->kind != VALUE_FLOAT)
        return value_integer(a) == value_integer(b);
    if (a->kind == VALUE_FLOAT && b->kind == VALUE_FLOAT) return a->as.number == b->as.number;
    const double number = a->kind == VALUE_FLOAT ? a->as.number : b->as.number;
    const int64_t integer = value_integer(a->kind == VALUE_FLOAT ? b : a);
    /* the comparison is exact: 2^53 + 1 is not equal to 2.0^53 */
    return number >= -0x1p63 && number < 0x1p63 && floor(number) == number &&
           (int64_t)number == integer;
}

static bool texts_equal(struct comparison *c, const struct text *a, const struct text *b) {
    c->work += (int64_t)(a->len / 64);
    return a->len == b->len && !memcmp(a->data, b->data, a->len);
}

static bool equal_within(struct comparison *c, const struct value *a, const struct value *b) {
    if (value_is_number(a) && value_is_number(b)) return numbers_equal(a, b);
    if (a->kind != b->kind || c->depth == 0 || ++c->work > VALUE_WORK_MAX) return false;
    bool equal;
    c->depth--;
    switch (a->kind) {
    case VALUE_NONE:
    case VALUE_UNDEFINED: equal = true; break;
    case VALUE_BIG:
    case VALUE_STRING: equal = texts_equal(c, a->as.text, b->as.text); break;
    case VALUE_SEQUENCE: equal = sequences_equal(c, a->as.sequence, b->as.sequence); break;
    case VALUE_DICT: equal = dicts_equal(c, a->as.dict, b->as.dict); break;
    default:
        equal =
            a->as.macro == b->as.macro; /* identity: here all members of the union are pointers */
    }
    c->depth++;
    return equal;
}

bool value_equal(const struct value *a, const struct value *b, int64_t *work) {
    struct comparison c = {.depth = VALUE_DEPTH_MAX};
    const bool equal = equal_within(&c, a, b);
    if (work) *work += c.work;
    return equal;
}
