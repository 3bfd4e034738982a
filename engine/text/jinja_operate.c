/* jinja_operate.c - Python's operators.
 *
 * Integers are 64 bits wide: where Python would go on with a bigger one, we refuse instead of
 * rounding. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_render.h"
#include "engine/text/jinja_unicode.h"

static const char *operation_sign(enum operation op) {
    static const char *const SIGNS[] = {
        "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
    return SIGNS[op];
}

static enum status fail_types(struct render *r, enum operation op, const struct value *a,
                              const struct value *b) {
    RENDER_FAIL(r, STATUS_INVALID, "%s between a %s and a %s is not possible", operation_sign(op),
                value_type_name(a), value_type_name(b));
}

static enum status fail_range(struct render *r, enum operation op) {
    RENDER_FAIL(r, STATUS_UNSUPPORTED, "the result of %s does not fit into 64 bits",
                operation_sign(op));
}

/* ---- numbers ---- */

static enum status floor_divide(struct render *r, enum operation op, int64_t a, int64_t b,
                                struct value *out) {
    RENDER_FAIL_IF(r, b == 0, STATUS_INVALID, "division by zero");
    if (a == INT64_MIN && b == -1)
        return op == OP_MODULO ? (*out = value_int(0), STATUS_OK) : fail_range(r, op);
    int64_t quotient = a / b, rest = a % b;
    if (rest && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    *out = value_int(op == OP_MODULO ? rest : quotient);
    return STATUS_OK;
}

static enum status power(struct render *r, int64_t base, int64_t exponent, struct value *out) {
    if (exponent < 0) {
        RENDER_FAIL_IF(r, base == 0, STATUS_INVALID, "division by zero");
        *out = value_float(pow((double)base, (double)exponent));
        return STATUS_OK;
    }
    if (base == 0 || base == 1 || base == -1) exponent = exponent ? 2 - exponent % 2 : 0;
    int64_t result = 1;
    while (exponent--) {
        if (__builtin_mul_overflow(result, base, &result)) return fail_range(r, OP_POWER);
    }
    *out = value_int(result);
    return STATUS_OK;
}

static enum status operate_integers(struct render *r, enum operation op, int64_t a, int64_t b,
                                    struct value *out) {
    int64_t result = 0;
    bool overflow = false;
    switch (op) {
    case OP_ADD: overflow = __builtin_add_overflow(a, b, &result); break;
    case OP_SUBTRACT: overflow = __builtin_sub_overflow(a, b, &result); break;
    case OP_MULTIPLY: overflow = __builtin_mul_overflow(a, b, &result); break;
    case OP_DIVIDE:
        RENDER_FAIL_IF(r, b == 0, STATUS_INVALID, "division by zero");
        *out = value_float((double)a / (double)b);
        return STATUS_OK;
    case OP_POWER: return power(r, a, b, out);
    default: return floor_divide(r, op, a, b, out);
    }
    if (overflow) return fail_range(r, op);
    *out = value_int(result);
    return STATUS_OK;
}

static enum status operate_floats(struct render *r, enum operation op, double a, double b,
                                  struct value *out) {
    RENDER_FAIL_IF(r, b == 0 && (op == OP_DIVIDE || op == OP_FLOOR_DIVIDE || op == OP_MODULO),
                   STATUS_INVALID, "division by zero");
    double rest;
    switch (op) {
    case OP_ADD: *out = value_float(a + b); break;
    case OP_SUBTRACT: *out = value_float(a - b); break;
    case OP_MULTIPLY: *out = value_float(a * b); break;
    case OP_DIVIDE: *out = value_float(a / b); break;
    case OP_POWER:
        RENDER_FAIL_IF(r, (a == 0 && b < 0) || (a < 0 && floor(b) != b), STATUS_INVALID,
                       "** has no real result for these numbers");
        *out = value_float(pow(a, b));
        break;
    default:
        rest = fmod(a, b);
        if (rest && (rest < 0) != (b < 0)) rest += b;
        if (!rest) rest = copysign(0.0, b);
        *out = value_float(op == OP_MODULO ? rest : floor((a - rest) / b + 0.5));
        break;
    }
    return STATUS_OK;
}

enum status value_negate(struct render *r, const struct value *v, struct value *out) {
    RENDER_FAIL_IF(r, v->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s", v->as.undefined->message);
    RENDER_FAIL_IF(r, v->kind == VALUE_BIG, STATUS_UNSUPPORTED,
                   "integers beyond 64 bits cannot be computed with");
    RENDER_FAIL_IF(r, !value_is_number(v), STATUS_INVALID, "unary - needs a number, not a %s",
                   value_type_name(v));
    if (v->kind == VALUE_FLOAT) {
        *out = value_float(-v->as.number);
        return STATUS_OK;
    }
    if (value_integer(v) == INT64_MIN) return fail_range(r, OP_SUBTRACT);
    *out = value_int(-value_integer(v));
    return STATUS_OK;
}

/* ---- strings and sequences ---- */

static void append_escaped(struct str *out, const struct text *text) {
    for (size_t i = 0; i < text->len; i++) {
        switch (text->data[i]) {
        case '&': str_append(out, "&amp;"); break;
        case '<': str_append(out, "&lt;"); break;
        case '>': str_append(out, "&gt;"); break;
        case '\'': str_append(out, "&#39;"); break;
        case '"': str_append(out, "&#34;"); break;
        default: str_append_char(out, text->data[i]);
        }
    }
}

static enum status add_strings(struct render *r, const struct value *a, const struct value *b,
                               struct value *out) {
    const bool markup = a->markup || b->markup;
    struct str text = {0};
    const struct value *const parts[] = {a, b};
    for (size_t i = 0; i < 2; i++) {
        if (markup && !parts[i]->markup) {
            append_escaped(&text, parts[i]->as.text);
        } else {
            str_append_bytes(&text, parts[i]->as.text->data, parts[i]->as.text->len);
        }
    }
    TRY(string_from(r, &text, out));
    out->markup = markup;
    return STATUS_OK;
}

static bool is_addable(const struct value *a, const struct value *b) {
    return a->kind == VALUE_SEQUENCE && b->kind == VALUE_SEQUENCE &&
           a->as.sequence->type == b->as.sequence->type && a->as.sequence->type <= SEQUENCE_TUPLE;
}

static enum status add_sequences(struct render *r, const struct sequence *a,
                                 const struct sequence *b, struct value *out) {
    TRY(render_work(r, 16 * (a->count + b->count)));
    struct sequence *const sum = sequence_new(&r->region, a->type, a->count + b->count);
    for (size_t i = 0; i < a->count + b->count; i++) {
        sequence_push(&r->region, sum, i < a->count ? a->items[i] : b->items[i - a->count]);
    }
    *out = value_sequence(sum);
    return render_work(r, 0);
}

static enum status repeat(struct render *r, const struct value *what, int64_t times,
                          struct value *out) {
    const size_t unit = what->kind == VALUE_STRING
                            ? what->as.text->len
                            : what->as.sequence->count * sizeof(struct value);
    const int64_t count = times > 0 ? times : 0;
    RENDER_FAIL_IF(r, unit && (uint64_t)count > TEMPLATE_OUTPUT_MAX / unit, STATUS_INVALID,
                   "a repetition is longer than %d MiB", TEMPLATE_OUTPUT_MAX >> 20);
    TRY(render_work(r, unit ? unit * (size_t)count : 0));
    if (what->kind == VALUE_STRING) {
        struct str text = {0};
        for (int64_t i = 0; unit && i < count; i++) {
            str_append_bytes(&text, what->as.text->data, unit);
        }
        TRY(string_from(r, &text, out));
        out->markup = what->markup;
        return STATUS_OK;
    }
    const struct sequence *const s = what->as.sequence;
    struct sequence *const all =
        sequence_new(&r->region, s->type, s->count * (size_t)(unit ? count : 0));
    for (size_t i = 0; i < all->capacity; i++) {
        all->items[i] = s->items[i % s->count];
    }
    all->count = all->capacity;
    *out = value_sequence(all);
    return render_work(r, 0);
}

static bool is_repeatable(const struct value *v) {
    return v->kind == VALUE_STRING ||
           (v->kind == VALUE_SEQUENCE && v->as.sequence->type <= SEQUENCE_TUPLE);
}

static bool is_integer(const struct value *v) {
    return v->kind == VALUE_INT || v->kind == VALUE_BOOL;
}

/* ---- order and membership ---- */

static int compare_texts(const struct text *a, const struct text *b) {
    const size_t common = a->len < b->len ? a->len : b->len;
    const int order = common ? memcmp(a->data, b->data, common) : 0;
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

/* Integers of which at least one is beyond 64 bits: by sign, then number of digits, then digits. */
static int compare_big(const struct value *a, const struct value *b) {
    const bool minus_a = a->kind == VALUE_BIG ? a->as.text->data[0] == '-' : value_integer(a) < 0;
    const bool minus_b = b->kind == VALUE_BIG ? b->as.text->data[0] == '-' : value_integer(b) < 0;
    if (minus_a != minus_b) return minus_a ? -1 : 1;
    const size_t len_a = a->kind == VALUE_BIG ? a->as.text->len : 0;
    const size_t len_b = b->kind == VALUE_BIG ? b->as.text->len : 0;
    const int order =
        len_a != len_b ? (len_a > len_b) - (len_a < len_b) : compare_texts(a->as.text, b->as.text);
    return minus_a ? -order : order;
}

static enum status compare_sequences(struct render *r, const struct sequence *a,
                                     const struct sequence *b, int *order) {
    RENDER_FAIL_IF(r, r->depth >= VALUE_DEPTH_MAX * 4, STATUS_INVALID,
                   "the compared values nest too deep");
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        bool equal = false;
        TRY(values_equal(r, &a->items[i], &b->items[i], &equal));
        if (equal) continue;
        r->depth++;
        const enum status status = value_compare(r, &a->items[i], &b->items[i], order);
        r->depth--;
        return status;
    }
    *order = (a->count > b->count) - (a->count < b->count);
    return STATUS_OK;
}

enum status value_compare(struct render *r, const struct value *a, const struct value *b,
                          int *order) {
    TRY(render_work(r, a->kind == VALUE_STRING ? a->as.text->len : 0));
    if (is_integer(a) && is_integer(b)) {
        *order = (value_integer(a) > value_integer(b)) - (value_integer(a) < value_integer(b));
        return STATUS_OK;
    }
    if (value_is_number(a) && value_is_number(b)) {
        const double x = value_number(a), y = value_number(b);
        *order = (x > y) - (x < y);
        return STATUS_OK;
    }
    if ((a->kind == VALUE_BIG || is_integer(a)) && (b->kind == VALUE_BIG || is_integer(b))) {
        *order = compare_big(a, b);
        return STATUS_OK;
    }
    if (a->kind == VALUE_STRING && b->kind == VALUE_STRING) {
        *order = compare_texts(a->as.text, b->as.text);
        return STATUS_OK;
    }
    if (is_addable(a, b)) return compare_sequences(r, a->as.sequence, b->as.sequence, order);
    RENDER_FAIL_IF(r, a->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s", a->as.undefined->message);
    RENDER_FAIL_IF(r, b->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s", b->as.undefined->message);
    RENDER_FAIL(r, STATUS_INVALID, "a %s and a %s have no order", value_type_name(a),
                value_type_name(b));
}

enum status values_equal(struct render *r, const struct value *a, const struct value *b,
                         bool *equal) {
    int64_t work = 0;
    *equal = value_equal(a, b, &work);
    r->steps += work;
    return render_work(r, 0);
}

enum status value_contains(struct render *r, const struct value *container,
                           const struct value *item, bool *found) {
    *found = false;
    if (container->kind == VALUE_STRING) {
        RENDER_FAIL_IF(r, item->kind != VALUE_STRING, STATUS_INVALID,
                       "a %s cannot be searched for in a string", value_type_name(item));
        TRY(render_work(r, container->as.text->len));
        *found = !item->as.text->len || memmem(container->as.text->data, container->as.text->len,
                                               item->as.text->data, item->as.text->len) != NULL;
        return STATUS_OK;
    }
    if (container->kind == VALUE_DICT) {
        RENDER_FAIL_IF(r, !value_is_hashable(item), STATUS_INVALID,
                       "a %s cannot be the key of a dict", value_type_name(item));
        TRY(render_work(r, item->kind == VALUE_STRING ? item->as.text->len : 0));
        *found = dict_get(container->as.dict, item) != NULL;
        return STATUS_OK;
    }
    RENDER_FAIL_IF(r, !value_is_iterable(container), STATUS_INVALID,
                   "\"in\" needs a container, not a %s", value_type_name(container));
    const struct sequence *items = NULL;
    TRY(value_iterate(r, container, &items));
    for (size_t i = 0; i < items->count && !*found; i++) {
        TRY(values_equal(r, &items->items[i], item, found));
    }
    return STATUS_OK;
}

static enum status operate_compare(struct render *r, enum operation op, const struct value *a,
                                   const struct value *b, struct value *out) {
    bool truth = false;
    int order = 0;
    if (op == OP_EQUAL || op == OP_NOT_EQUAL) {
        TRY(values_equal(r, a, b, &truth));
    } else if (op == OP_IN || op == OP_NOT_IN) {
        TRY(value_contains(r, b, a, &truth));
    } else {
        TRY(value_compare(r, a, b, &order));
    }
    const bool nan = (a->kind == VALUE_FLOAT && isnan(a->as.number)) ||
                     (b->kind == VALUE_FLOAT && isnan(b->as.number));
    switch (op) {
    case OP_NOT_EQUAL:
    case OP_NOT_IN: truth = !truth; break;
    case OP_LESS: truth = order < 0 && !nan; break;
    case OP_LESS_EQUAL: truth = order <= 0 && !nan; break;
    case OP_GREATER: truth = order > 0 && !nan; break;
    case OP_GREATER_EQUAL: truth = order >= 0 && !nan; break;
    default: break;
    }
    *out = value_bool(truth);
    return STATUS_OK;
}

enum status operate(struct render *r, enum operation op, const struct value *a,
                    const struct value *b, struct value *out) {
    if (op >= OP_EQUAL) return operate_compare(r, op, a, b, out);
    RENDER_FAIL_IF(r, a->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s", a->as.undefined->message);
    RENDER_FAIL_IF(r, b->kind == VALUE_UNDEFINED && a->kind != VALUE_STRING, STATUS_INVALID, "%s",
                   b->as.undefined->message);
    if (value_is_number(a) && value_is_number(b)) {
        if (is_integer(a) && is_integer(b))
            return operate_integers(r, op, value_integer(a), value_integer(b), out);
        return operate_floats(r, op, value_number(a), value_number(b), out);
    }
    RENDER_FAIL_IF(r,
                   (a->kind == VALUE_BIG && (value_is_number(b) || b->kind == VALUE_BIG)) ||
                       (b->kind == VALUE_BIG && value_is_number(a)),
                   STATUS_UNSUPPORTED, "integers beyond 64 bits cannot be computed with");
    if (op == OP_MODULO && a->kind == VALUE_STRING) return format_percent(r, a->as.text, b, out);
    RENDER_FAIL_IF(r, b->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s", b->as.undefined->message);
    if (op == OP_ADD && a->kind == VALUE_STRING && b->kind == VALUE_STRING)
        return add_strings(r, a, b, out);
    if (op == OP_ADD && is_addable(a, b))
        return add_sequences(r, a->as.sequence, b->as.sequence, out);
    if (op == OP_MULTIPLY && is_repeatable(a) && is_integer(b))
        return repeat(r, a, value_integer(b), out);
    if (op == OP_MULTIPLY && is_repeatable(b) && is_integer(a))
        return repeat(r, b, value_integer(a), out);
    return fail_types(r, op, a, b);
}
