/* jinja_tests.c - what may stand behind `is`, and in select, reject and their attribute forms.
 *
 * They are found when a template is parsed, so an unknown name is refused early. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_methods.h"

#define TEST(name)                                                                                 \
    static enum status name(struct render *r, const struct value *self, const struct args *args,   \
                            struct value *out)
/* A test that looks at the value alone. */
#define SIMPLE_TEST(name, condition)                                                               \
    TEST(name) {                                                                                   \
        (void)r;                                                                                   \
        (void)args;                                                                                \
        *out = value_bool(condition);                                                              \
        return STATUS_OK;                                                                          \
    }

SIMPLE_TEST(test_defined, self->kind != VALUE_UNDEFINED)
SIMPLE_TEST(test_undefined, self->kind == VALUE_UNDEFINED)
SIMPLE_TEST(test_none, self->kind == VALUE_NONE)
SIMPLE_TEST(test_boolean, self->kind == VALUE_BOOL)
SIMPLE_TEST(test_true, self->kind == VALUE_BOOL && self->as.truth)
SIMPLE_TEST(test_false, self->kind == VALUE_BOOL && !self->as.truth)
SIMPLE_TEST(test_integer, self->kind == VALUE_INT || self->kind == VALUE_BIG)
SIMPLE_TEST(test_float, self->kind == VALUE_FLOAT)
SIMPLE_TEST(test_number, value_is_number(self) || self->kind == VALUE_BIG)
SIMPLE_TEST(test_string, self->kind == VALUE_STRING)
SIMPLE_TEST(test_mapping, self->kind == VALUE_DICT)
SIMPLE_TEST(test_iterable, value_is_iterable(self))
SIMPLE_TEST(test_sequence,
            self->kind == VALUE_STRING || self->kind == VALUE_DICT ||
                self->kind == VALUE_UNDEFINED ||
                (self->kind == VALUE_SEQUENCE && self->as.sequence->type <= SEQUENCE_RANGE))
SIMPLE_TEST(test_callable, self->kind == VALUE_MACRO || self->kind == VALUE_METHOD ||
                               self->kind == VALUE_FUNCTION || self->kind == VALUE_JOINER ||
                               self->kind == VALUE_LOOP || self->kind == VALUE_UNDEFINED)

static enum status compare(struct render *r, enum operation op, const struct value *self,
                           const struct args *args, struct value *out) {
    return operate(r, op, self, &args->at[0], out);
}
TEST(test_equal) {
    return compare(r, OP_EQUAL, self, args, out);
}
TEST(test_not_equal) {
    return compare(r, OP_NOT_EQUAL, self, args, out);
}
TEST(test_less) {
    return compare(r, OP_LESS, self, args, out);
}
TEST(test_less_equal) {
    return compare(r, OP_LESS_EQUAL, self, args, out);
}
TEST(test_greater) {
    return compare(r, OP_GREATER, self, args, out);
}
TEST(test_greater_equal) {
    return compare(r, OP_GREATER_EQUAL, self, args, out);
}
TEST(test_in) {
    return compare(r, OP_IN, self, args, out);
}

/* Identity: the same object, or equal small values of one type. */
TEST(test_sameas) {
    const struct value *const other = &args->at[0];
    bool same = self->kind == other->kind;
    if (same && (self->kind == VALUE_SEQUENCE || self->kind == VALUE_DICT)) {
        same = self->as.dict == other->as.dict;
    } else if (same) {
        TRY(values_equal(r, self, other, &same));
    }
    *out = value_bool(same);
    return STATUS_OK;
}

static enum status remainder_is(struct render *r, const struct value *self, const struct value *by,
                                int64_t wanted, struct value *out) {
    struct value rest;
    RENDER_FAIL_IF(r, self->kind == VALUE_STRING, STATUS_INVALID,
                   "this test needs a number, not a str");
    TRY(operate(r, OP_MODULO, self, by, &rest));
    const struct value integer = value_int(wanted);
    *out = value_bool(value_equal(&rest, &integer, NULL));
    return STATUS_OK;
}
TEST(test_odd) {
    (void)args;
    const struct value two = value_int(2);
    return remainder_is(r, self, &two, 1, out);
}
TEST(test_even) {
    (void)args;
    const struct value two = value_int(2);
    return remainder_is(r, self, &two, 0, out);
}
TEST(test_divisibleby) {
    return remainder_is(r, self, &args->at[0], 0, out);
}

static enum status is_in_case(struct render *r, const struct value *self, bool upper,
                              struct value *out) {
    struct value text;
    TRY(value_to_string(r, self, &text));
    *out = value_bool(text_is_in_case(text.as.text, upper));
    return render_work(r, 8 * text.as.text->len);
}
TEST(test_upper) {
    (void)args;
    return is_in_case(r, self, true, out);
}
TEST(test_lower) {
    (void)args;
    return is_in_case(r, self, false, out);
}

const struct builtin *jinja_test(const char *name) {
    static const struct builtin ROWS[] = {
        {"defined", "", test_defined},
        {"undefined", "", test_undefined},
        {"none", "", test_none},
        {"boolean", "", test_boolean},
        {"true", "", test_true},
        {"false", "", test_false},
        {"integer", "", test_integer},
        {"float", "", test_float},
        {"number", "", test_number},
        {"string", "", test_string},
        {"mapping", "", test_mapping},
        {"iterable", "", test_iterable},
        {"sequence", "", test_sequence},
        {"callable", "", test_callable},
        {"equalto", "other", test_equal},
        {"eq", "other", test_equal},
        {"==", "other", test_equal},
        {"ne", "other", test_not_equal},
        {"!=", "other", test_not_equal},
        {"lt", "other", test_less},
        {"lessthan", "other", test_less},
        {"<", "other", test_less},
        {"le", "other", test_less_equal},
        {"<=", "other", test_less_equal},
        {"gt", "other", test_greater},
        {"greaterthan", "other", test_greater},
        {">", "other", test_greater},
        {"ge", "other", test_greater_equal},
        {">=", "other", test_greater_equal},
        {"in", "seq", test_in},
        {"sameas", "other", test_sameas},
        {"odd", "", test_odd},
        {"even", "", test_even},
        {"divisibleby", "num", test_divisibleby},
        {"upper", "", test_upper},
        {"lower", "", test_lower},
    };
    return builtin_find(ROWS, COUNT_OF(ROWS), name, strlen(name));
}
