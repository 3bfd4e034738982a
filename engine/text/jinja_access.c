/* jinja_access.c - reaching into values: a.b, a[b], slices, iteration. `a.b` looks for an attribute
 * or method first and a key second; `a[b]` the other way round. So `.items` of a dict is its method
 * even if it has such a key. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_render.h"
#include "engine/text/jinja_unicode.h"

static struct value undefined_member(struct render *r, const struct value *v, const char *name,
                                     size_t len) {
    char *const message = str_format("a %s has no attribute \"%.*s\"", value_type_name(v),
                                     (int)(len < 100 ? len : 100), name);
    const struct value undefined = value_undefined(&r->region, message);
    mem_free(message);
    return undefined;
}

/* What Jinja's sandbox hides: undefined, with a reason that tells so. */
static struct value hidden_member(struct render *r, const struct value *v,
                                  const struct text *name) {
    char *const message =
        str_format("the attribute \"%.*s\" of a %s is not allowed in a template",
                   (int)(name->len < 100 ? name->len : 100), name->data, value_type_name(v));
    const struct value undefined = value_undefined(&r->region, message);
    mem_free(message);
    return undefined;
}

static bool changes_its_object(const struct value *v, const struct text *name) {
    static const char *const LIST[] = {"append", "clear",  "extend",  "insert",
                                       "pop",    "remove", "reverse", "sort"};
    static const char *const DICT[] = {"clear", "pop", "popitem", "setdefault", "update"};
    const bool is_dict = v->kind == VALUE_DICT;
    if (!is_dict && (v->kind != VALUE_SEQUENCE || v->as.sequence->type != SEQUENCE_LIST))
        return false;
    const char *const *const names = is_dict ? DICT : LIST;
    for (size_t i = 0; i < (is_dict ? COUNT_OF(DICT) : COUNT_OF(LIST)); i++) {
        if (strlen(names[i]) == name->len && !memcmp(names[i], name->data, name->len)) return true;
    }
    return false;
}

/* The attribute or method of that name; *found false if the value has none. */
static enum status find_attribute(struct render *r, const struct value *v, const struct text *name,
                                  struct value *out, bool *found) {
    *found = true;
    if (changes_its_object(v, name)) {
        *out = hidden_member(r, v, name);
        return STATUS_OK;
    }
    if (v->kind == VALUE_NAMESPACE) {
        const struct value *const member = dict_get_text(v->as.names, name->data, name->len);
        *found = member != NULL;
        if (member) *out = name->data[0] == '_' ? hidden_member(r, v, name) : *member;
        return STATUS_OK;
    }
    if (v->kind == VALUE_LOOP) {
        TRY(loop_attribute(r, v->as.loop, name, out, found));
        if (*found) return STATUS_OK;
    }
    if (v->kind == VALUE_MACRO && name->len == 4 && !memcmp(name->data, "name", 4)) {
        *out = value_text(v->as.macro->name);
        return STATUS_OK;
    }
    if (v->kind == VALUE_CYCLER && name->len == 7 && !memcmp(name->data, "current", 7)) {
        *out = v->as.cycle->items->items[v->as.cycle->at % v->as.cycle->items->count];
        return STATUS_OK;
    }
    const struct builtin *const row = jinja_method(v, name->data, name->len, found);
    if (!*found) return STATUS_OK;
    RENDER_FAIL_IF(r, !row, STATUS_UNSUPPORTED, "the method %s.%.*s is not supported",
                   value_type_name(v), (int)name->len, name->data);
    struct method *const method = region_alloc(&r->region, 1, sizeof *method);
    *method = (struct method){.self = *v, .function = row};
    *out = (struct value){.kind = VALUE_METHOD, .as.method = method};
    return STATUS_OK;
}

enum status value_attribute(struct render *r, const struct value *v, const struct text *name,
                            struct value *out) {
    RENDER_FAIL_IF(r, v->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s", v->as.undefined->message);
    bool found = false;
    TRY(find_attribute(r, v, name, out, &found));
    if (found) return STATUS_OK;
    const struct value *const member =
        v->kind == VALUE_DICT ? dict_get_text(v->as.dict, name->data, name->len) : NULL;
    *out = member ? *member : undefined_member(r, v, name->data, name->len);
    return STATUS_OK;
}

/* The character at a place in code points. */
static struct value character(struct render *r, const struct text *text, size_t index) {
    const size_t at = text->len == text->chars ? index : utf8_skip(text->data, text->len, index);
    return value_slice(&r->region, text->data + at, (size_t)utf8_length_at(text->data + at));
}

/* An integer index into something of `count` items; false when it is outside. */
static bool place(int64_t index, size_t count, size_t *at) {
    if (index < 0) index += (int64_t)count;
    if (index < 0 || (uint64_t)index >= count) return false;
    *at = (size_t)index;
    return true;
}

enum status value_item(struct render *r, const struct value *v, const struct value *index,
                       struct value *out) {
    RENDER_FAIL_IF(r, v->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s", v->as.undefined->message);
    size_t at = 0;
    const bool is_integer = index->kind == VALUE_INT || index->kind == VALUE_BOOL;
    if (v->kind == VALUE_DICT && value_is_hashable(index)) {
        TRY(render_work(r, index->kind == VALUE_STRING ? index->as.text->len : 0));
        const struct value *const member = dict_get(v->as.dict, index);
        if (member) {
            *out = *member;
            return STATUS_OK;
        }
    } else if (v->kind == VALUE_SEQUENCE && v->as.sequence->type <= SEQUENCE_RANGE && is_integer) {
        if (place(value_integer(index), v->as.sequence->count, &at)) {
            *out = v->as.sequence->items[at];
            return STATUS_OK;
        }
    } else if (v->kind == VALUE_STRING && is_integer) {
        if (place(value_integer(index), v->as.text->chars, &at)) {
            TRY(render_work(r, v->as.text->len == v->as.text->chars ? 0 : v->as.text->len));
            *out = character(r, v->as.text, at);
            return STATUS_OK;
        }
    }
    if (index->kind == VALUE_STRING) {
        bool found = false;
        TRY(find_attribute(r, v, index->as.text, out, &found));
        if (found) return STATUS_OK;
        *out = undefined_member(r, v, index->as.text->data, index->as.text->len);
        return STATUS_OK;
    }
    *out = value_undefined(&r->region, "the subscripted value has no such item");
    return STATUS_OK;
}

/* ---- slices ---- */

/* Python's rule for a bound: negative counts from the end, then it is clamped to what the direction
 * allows. */
static int64_t clamp(int64_t bound, int64_t count, bool backwards) {
    if (bound < 0) bound += count;
    if (bound < 0) return backwards ? -1 : 0;
    if (bound >= count) return backwards ? count - 1 : count;
    return bound;
}

static struct value cut_text(struct render *r, const struct text *text, int64_t from, int64_t count,
                             int64_t step) {
    const bool ascii = text->len == text->chars;
    if (step == 1) {
        const size_t begin = ascii ? (size_t)from : utf8_skip(text->data, text->len, (size_t)from);
        const size_t bytes =
            ascii ? (size_t)count : utf8_skip(text->data + begin, text->len - begin, (size_t)count);
        return value_slice(&r->region, text->data + begin, bytes);
    }
    size_t *const starts = region_alloc(&r->region, text->chars + 1, sizeof *starts);
    for (size_t i = 0, at = 0; at < text->len; i++) {
        starts[i] = at;
        at += (size_t)utf8_length_at(text->data + at);
    }
    char *const data = region_alloc(&r->region, text->len + 1, 1);
    size_t len = 0;
    for (int64_t i = 0; i < count; i++) {
        const char *const c = text->data + starts[from + i * step];
        const size_t size = (size_t)utf8_length_at(c);
        memcpy(data + len, c, size);
        len += size;
    }
    return value_slice(&r->region, data, len);
}

enum status value_cut(struct render *r, const struct value *v, const struct value bounds[3],
                      struct value *out) {
    RENDER_FAIL_IF(r, v->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s", v->as.undefined->message);
    const bool is_text = v->kind == VALUE_STRING;
    if (!is_text && (v->kind != VALUE_SEQUENCE || v->as.sequence->type > SEQUENCE_RANGE)) {
        *out = value_undefined(&r->region, "only strings, lists, tuples and ranges can be sliced");
        return STATUS_OK;
    }
    const int64_t total = (int64_t)(is_text ? v->as.text->chars : v->as.sequence->count);
    int64_t from, to, step;
    TRY(want_integer(r, &bounds[2], "the step of a slice", 1, &step));
    RENDER_FAIL_IF(r, step == 0, STATUS_INVALID, "the step of a slice may not be 0");
    if (step > total) step = total + 1; /* same items, and no overflow below */
    if (step < -total) step = -total - 1;
    TRY(want_integer(r, &bounds[0], "the bound of a slice", step < 0 ? INT64_MAX : 0, &from));
    TRY(want_integer(r, &bounds[1], "the bound of a slice", step < 0 ? INT64_MIN : INT64_MAX, &to));
    from = clamp(from, total, step < 0);
    const bool to_start = step < 0 && to == INT64_MIN;
    to = to_start ? -1 : clamp(to, total, step < 0);
    int64_t count = step > 0 ? (to - from + step - 1) / step : (from - to - step - 1) / -step;
    if (count < 0 || (step > 0 ? from >= to : from <= to)) count = 0;
    if (is_text) {
        TRY(render_work(r, v->as.text->len));
        *out = cut_text(r, v->as.text, count ? from : 0, count, step);
        out->markup = v->markup;
        return STATUS_OK;
    }
    const struct sequence *const whole = v->as.sequence;
    TRY(render_work(r, 16 * (size_t)count));
    struct sequence *const part = sequence_new(&r->region, whole->type, (size_t)count);
    /* of a range; others have zeros here. Unsigned: the end of a range may lie beyond 64 bits */
    part->start = (int64_t)((uint64_t)whole->start + (uint64_t)from * (uint64_t)whole->step);
    part->stop = (int64_t)((uint64_t)whole->start + (uint64_t)to * (uint64_t)whole->step);
    part->step = (int64_t)((uint64_t)whole->step * (uint64_t)step);
    for (int64_t i = 0; i < count; i++) {
        sequence_push(&r->region, part, whole->items[from + i * step]);
    }
    *out = value_sequence(part);
    return STATUS_OK;
}

/* ---- iteration ---- */

bool value_is_iterable(const struct value *v) {
    return v->kind == VALUE_STRING || v->kind == VALUE_SEQUENCE || v->kind == VALUE_DICT ||
           v->kind == VALUE_GENERATOR || v->kind == VALUE_UNDEFINED || v->kind == VALUE_LOOP;
}

static enum status iterate_generator(struct render *r, struct generator *g,
                                     const struct sequence **out) {
    struct sequence *const rest = sequence_new(&r->region, SEQUENCE_LIST, 0);
    if (g->at < g->items->count) rest->items = g->items->items + g->at;
    rest->count = rest->capacity = g->items->count - g->at;
    g->at = g->items->count;
    *out = rest;
    return STATUS_OK;
}

enum status value_iterate(struct render *r, const struct value *v, const struct sequence **out) {
    RENDER_FAIL_IF(r, v->kind == VALUE_LOOP, STATUS_UNSUPPORTED,
                   "walking the loop object itself is not supported");
    RENDER_FAIL_IF(r, !value_is_iterable(v), STATUS_INVALID, "a %s cannot be iterated over",
                   value_type_name(v));
    if (v->kind == VALUE_SEQUENCE) {
        *out = v->as.sequence;
        return STATUS_OK;
    }
    if (v->kind == VALUE_GENERATOR) return iterate_generator(r, v->as.generator, out);
    struct sequence *items;
    if (v->kind == VALUE_DICT) {
        TRY(render_work(r, 16 * v->as.dict->count));
        items = sequence_new(&r->region, SEQUENCE_LIST, v->as.dict->count);
        for (size_t i = 0; i < v->as.dict->count; i++) {
            sequence_push(&r->region, items, v->as.dict->entries[i].key);
        }
    } else if (v->kind == VALUE_STRING) {
        TRY(render_work(r, 64 * v->as.text->chars));
        items = sequence_new(&r->region, SEQUENCE_LIST, v->as.text->chars);
        for (size_t at = 0; at < v->as.text->len;) {
            const size_t size = (size_t)utf8_length_at(v->as.text->data + at);
            sequence_push(&r->region, items, value_slice(&r->region, v->as.text->data + at, size));
            at += size;
        }
    } else {
        items = sequence_new(&r->region, SEQUENCE_LIST, 0);
    }
    *out = items;
    return render_work(r, 0);
}

enum status value_path(struct render *r, const struct value *v, const struct value *path,
                       struct value *out) {
    if (path->kind != VALUE_STRING) return value_item(r, v, path, out);
    const struct text *const text = path->as.text;
    struct value at = *v;
    size_t from = 0;
    while (true) {
        size_t to = from;
        bool digits = true;
        for (; to < text->len && text->data[to] != '.'; to++) {
            digits &= text->data[to] >= '0' && text->data[to] <= '9';
        }
        struct value part = value_string(&r->region, text->data + from, to - from);
        int64_t number = 0;
        if (digits && to > from &&
            str_to_i64(part.as.text->data, "index", &number, NULL) == STATUS_OK) {
            part = value_int(number);
        }
        TRY(value_item(r, &at, &part, &at));
        if (to >= text->len) break;
        from = to + 1;
    }
    *out = at;
    return STATUS_OK;
}
