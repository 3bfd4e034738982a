/* jinja_builtin.h - how functions, methods, filters and tests that we provide look to the
 * interpreter: a table row each.
 *
 * A signature names the parameters; those before the bar are required, "*" leaves all arguments as
 * they are: "old new|count"    two required, one optional       "*"    anything The caller has
 * bound the arguments before `run` is called, so a row never counts or matches names itself. */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_BUILTIN_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_BUILTIN_H

#include "base/err.h"
#include "engine/text/jinja_value.h"

struct render;

enum { BUILTIN_ARGS_MAX = 4 };

struct keyword {
    const struct text *name;
    struct value value;
};

struct args {
    const struct value *items; /* positional, as given */
    size_t count;
    const struct keyword *keywords;
    size_t keyword_count;
    struct value at[BUILTIN_ARGS_MAX]; /* bound to the signature; VALUE_ABSENT where not given */
};

/* `self` is the piped value of a filter or test, the object of a method, unused for functions. */
struct builtin {
    const char *name, *signature;
    enum status (*run)(struct render *r, const struct value *self, const struct args *args,
                       struct value *out);
};

/* NULL if there is none of this name. */
const struct builtin *jinja_filter(const char *name);
const struct builtin *jinja_test(const char *name);
const struct builtin *jinja_function(
    const char *name); /* globals: range, namespace, raise_exception... */
/* `*known` says whether Python has such a method, supported here or not. */
const struct builtin *jinja_method(const struct value *self, const char *name, size_t len,
                                   bool *known);

/* Looks a name up in a table of rows. */
const struct builtin *builtin_find(const struct builtin *rows, size_t count, const char *name,
                                   size_t len);

#endif
