/* jinja_value.h - the values of the template language: Python's, as far as templates can see them.
 *
 * All but namespaces, loops and the small stateful objects are immutable (the sandbox refuses every
 * mutating method), so values are shared by pointer, never copied, and cannot form cycles except
 * through a namespace. Everything lives in a region and dies with it. Strings are UTF-8 with their
 * length in code points beside them. */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_VALUE_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/region.h"

struct node;
struct builtin;
struct scope;
struct loop;

enum value_kind {
    VALUE_ABSENT, /* an argument that was not given; never seen by a template */
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_BIG, /* an integer beyond 64 bits, as its decimal text: printed and compared, not computed
                  with */
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_SEQUENCE,
    VALUE_DICT,
    VALUE_GENERATOR, /* what lazy filters return: can be walked once */
    VALUE_NAMESPACE,
    VALUE_MACRO,
    VALUE_LOOP,
    VALUE_METHOD,
    VALUE_FUNCTION,
    VALUE_JOINER,
    VALUE_CYCLER,
};

enum sequence_type {
    SEQUENCE_LIST,
    SEQUENCE_TUPLE,
    SEQUENCE_RANGE,
    SEQUENCE_KEYS,
    SEQUENCE_VALUES,
    SEQUENCE_ITEMS
};

struct value {
    uint8_t kind;
    bool markup; /* strings that went through `safe`: `+` escapes what is added to them */
    union {
        bool truth;
        int64_t integer;
        double number;
        const struct text *text; /* STRING, BIG */
        const struct undefined *undefined;
        const struct sequence *sequence;
        const struct dict *dict;
        struct generator *generator;
        struct dict *names; /* NAMESPACE */
        const struct macro *macro;
        struct loop *loop;
        const struct method *method;
        const struct builtin *function;
        struct cycle *cycle; /* JOINER, CYCLER */
    } as;
};

struct text {
    size_t len, chars; /* bytes, code points */
    const char *data;  /* not terminated */
};

/* Why a value is undefined: for the error when it is used. */
struct undefined {
    const char *message; /* a whole sentence without a full stop */
};

struct sequence {
    enum sequence_type type;
    size_t count, capacity;
    struct value *items;
    int64_t start, stop, step; /* RANGE */
};

struct dict_entry {
    struct value key, value;
};
struct dict {
    size_t count, capacity;
    struct dict_entry *entries; /* in order of insertion */
    uint32_t *slots;            /* entry + 1, or 0; NULL while the dict is small */
    size_t slot_count;          /* a power of two */
};

struct generator {
    const struct sequence *items;
    size_t at;
};

struct macro {
    const struct node *node; /* a macro or call block */
    struct scope *scope; /* where it was defined: its free names are looked up there when it runs */
    const struct text *name;
};

struct method {
    struct value self;
    const struct builtin *function;
};

struct cycle {
    const struct sequence
        *items; /* CYCLER: what it goes through; JOINER: one item, the separator */
    size_t at;
};

/* ---- making values ---- */

struct value value_none(void);
struct value value_bool(bool truth);
struct value value_int(int64_t integer);
struct value value_float(double number);
struct value value_undefined(struct region *region, const char *message); /* copies the message */
struct value value_text(const struct text *text);
struct value value_sequence(const struct sequence *sequence);
struct value value_dict(const struct dict *dict);
/* Copies the bytes, which must be valid UTF-8. */
struct value value_string(struct region *region, const char *data, size_t len);
/* Does not copy: the bytes must live as long as the region. */
struct value value_slice(struct region *region, const char *data, size_t len);

struct sequence *sequence_new(struct region *region, enum sequence_type type, size_t capacity);
void sequence_push(struct region *region, struct sequence *s, struct value value);
/* A tuple of two. */
struct value value_pair(struct region *region, struct value first, struct value second);

struct dict *dict_new(struct region *region);
/* Sets or replaces; a replaced key keeps its place. The key must be hashable. */
void dict_set(struct region *region, struct dict *d, struct value key, struct value value);
/* NULL if there is none. Points into the dict. */
const struct value *dict_get(const struct dict *d, const struct value *key);
const struct value *dict_get_text(const struct dict *d, const char *name, size_t len);

/* ---- asking ---- */

/* Python's name of the type: "str", "dict", "NoneType"... */
const char *value_type_name(const struct value *v);
bool value_is_true(const struct value *v);
bool value_is_number(const struct value *v); /* bool, int or float, not BIG */
bool value_is_text(const struct value *v, const char *text);
/* True when v can be a key: scalars, and tuples of scalars (nested tuples, which Python allows, are
 * not supported). */
bool value_is_hashable(const struct value *v);
/* Python's ==. Adds what it cost to *work (may be NULL) and gives up, with any answer, once that
 * passes VALUE_WORK_MAX or the nesting VALUE_DEPTH_MAX: values built from shared parts can be
 * exponentially large. */
bool value_equal(const struct value *a, const struct value *b, int64_t *work);
/* As a double; bool counts 0 or 1. Only for value_is_number. */
double value_number(const struct value *v);
int64_t value_integer(const struct value *v); /* BOOL or INT */

enum { VALUE_DEPTH_MAX = 200, VALUE_WORK_MAX = 20 * 1000 * 1000 };

#endif
