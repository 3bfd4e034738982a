/* jinja_render.h - one rendering under way: its memory, its limits, where it stands, and the
 * operations on values that can fail. Shared by the interpreter's files; nobody else includes it.
 *
 * Whatever does work in proportion to a size says so with render_work, which is where the limits
 * are checked: so no template can hang or eat the machine, whatever it computes. */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_RENDER_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_RENDER_H

#include "base/err.h"
#include "base/str.h"
#include "engine/text/jinja_ast.h"
#include "engine/text/jinja_builtin.h"
#include "engine/text/template.h"

enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

struct variable {
    int32_t name;
    struct value value;
};

/* Names set in one body. Lookups go outwards. */
struct scope {
    struct scope *outer;
    struct variable *variables;
    size_t count, capacity;
};

/* A for loop under way: items are taken one ahead only when the template asks what comes next. */
struct loop {
    const struct value *items;
    size_t count, at;        /* the next one to take */
    const struct node *node; /* whose filter, if any, each item must pass */
    struct scope *scope;     /* in which the filter is evaluated */
    int64_t index0;
    bool has_previous, has_next;
    struct value previous, current, next;
    const struct value *changed; /* what loop.changed saw last */
    int32_t depth;
};

struct render {
    const struct program *program;
    const char *what; /* names the template in errors */
    struct region region;
    struct str *out; /* what is being printed into: the result, or the buffer of a macro or block */
    struct str *top; /* the result */
    struct template_spans *spans; /* or NULL */
    const struct node *at;        /* for errors */
    enum flow flow;
    struct scope *globals;
    int64_t steps;
    int32_t depth, call_depth, loop_depth;
    int64_t now_unix_s;
    bool placed; /* the error already says where */
    struct err *e;
};

/* Puts template, line and column in front of the error, once. Returns `status`. */
enum status render_fail(struct render *r, enum status status);
#define RENDER_FAIL(r, code, ...) return render_fail((r), err_set((r)->e, (code), __VA_ARGS__))
#define RENDER_FAIL_IF(r, condition, code, ...)                                                    \
    do {                                                                                           \
        if (condition) RENDER_FAIL(r, code, __VA_ARGS__);                                          \
    } while (0)

/* Counts one step and `bytes` of work; fails beyond the limits of steps, memory and output. */
enum status render_work(struct render *r, size_t bytes);

/* ---- jinja_eval.c, jinja_call.c, jinja_exec.c ---- */

enum status eval(struct render *r, struct scope *scope, const struct node *node, struct value *out);
enum status exec_body(struct render *r, struct scope *scope, const struct node_list *body);
struct scope *scope_new(struct render *r, struct scope *outer);
void scope_set(struct render *r, struct scope *scope, int32_t name, struct value value);
/* NULL if no scope knows the name. */
const struct value *scope_get(const struct scope *scope, int32_t name);
enum status eval_call(struct render *r, struct scope *scope, const struct node *node,
                      struct value *out);
/* Evaluates the arguments of a call; with `caller` (may be NULL) as one more, named "caller". */
enum status eval_arguments(struct render *r, struct scope *scope, const struct call_node *call,
                           const struct value *caller, struct args *out);
/* Sets the names of a target; a tuple unpacks. */
enum status assign(struct render *r, struct scope *scope, const struct node *target,
                   struct value value);
/* Calls a macro, method, function or object. */
enum status call_value(struct render *r, const struct value *callee, const struct args *args,
                       struct value *out);
/* Binds the arguments to the row's signature and runs it. */
enum status call_builtin(struct render *r, const struct builtin *row, const struct value *self,
                         const struct args *args, struct value *out);
/* Runs a macro or the body of a call block; its output is the value. */
enum status call_macro(struct render *r, const struct macro *macro, const struct args *args,
                       struct value *out);

/* ---- jinja_loop.c ---- */

/* loop.index and the like; *found false when a loop has no such attribute. */
enum status loop_attribute(struct render *r, struct loop *loop, const struct text *name,
                           struct value *out, bool *found);
/* Makes sure that `next` holds the coming item, if there is one. */
enum status loop_peek(struct render *r, struct loop *loop);
/* Moves to the next item; *more false at the end. */
enum status loop_advance(struct render *r, struct loop *loop, bool *more);
extern const struct builtin LOOP_METHODS[];
enum { LOOP_METHOD_COUNT = 2 };

/* ---- jinja_operate.c ---- */

enum status operate(struct render *r, enum operation op, const struct value *a,
                    const struct value *b, struct value *out);
/* Python's comparison; *order is negative, zero or positive. Fails for types without an order. */
enum status value_compare(struct render *r, const struct value *a, const struct value *b,
                          int *order);
enum status values_equal(struct render *r, const struct value *a, const struct value *b,
                         bool *equal);
enum status value_contains(struct render *r, const struct value *container,
                           const struct value *item, bool *found);
enum status value_negate(struct render *r, const struct value *v, struct value *out);

/* ---- jinja_access.c ---- */

/* a.name: attributes and methods first, then the key. */
enum status value_attribute(struct render *r, const struct value *v, const struct text *name,
                            struct value *out);
/* a[index]: the item first, then the attribute. */
enum status value_item(struct render *r, const struct value *v, const struct value *index,
                       struct value *out);
enum status value_cut(struct render *r, const struct value *v, const struct value bounds[3],
                      struct value *out);
/* Everything that can be iterated, as a sequence; a generator is used up. */
enum status value_iterate(struct render *r, const struct value *v, const struct sequence **out);
bool value_is_iterable(const struct value *v);
/* The attribute path that map, sort and the like take: "a.b" or an integer. */
enum status value_path(struct render *r, const struct value *v, const struct value *path,
                       struct value *out);

/* ---- jinja_print.c ---- */

/* Appends Python's str(v) or repr(v). */
enum status print_value(struct render *r, struct str *out, const struct value *v);
enum status print_repr(struct render *r, struct str *out, const struct value *v, int depth);
void print_float(struct str *out, double number);
/* str(v) as a value; strings come back as they are. */
enum status value_to_string(struct render *r, const struct value *v, struct value *out);
/* A new string in the region from a buffer, which is released; fails when that is over the limits.
 */
enum status string_from(struct render *r, struct str *buffer, struct value *out);

/* ---- jinja_tojson.c ---- */

struct json_style {
    bool ascii, sort_keys, is_indented;
    const struct text *indent; /* one level */
    const struct text *item_separator, *key_separator;
};
enum status print_json(struct render *r, struct str *out, const struct value *v,
                       const struct json_style *style);

/* ---- jinja_format.c ---- */

/* "..." % values */
enum status format_percent(struct render *r, const struct text *format, const struct value *values,
                           struct value *out);

/* ---- arguments of builtins ---- */

/* The text of a string argument; fails naming the parameter otherwise. */
enum status want_text(struct render *r, const struct value *v, const char *name,
                      const struct text **out);
/* An integer argument; `otherwise` when it is absent or none. */
enum status want_integer(struct render *r, const struct value *v, const char *name,
                         int64_t otherwise, int64_t *out);

#endif
