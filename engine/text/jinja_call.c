/* jinja_call.c - calls: evaluating arguments, binding them, running macros.
 *
 * A macro's free names are looked up, when it runs, in the scope where it was defined. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_render.h"

/* Adds what *args gives to the positional arguments. */
static enum status add_star(struct render *r, const struct value *more, struct args *out) {
    const struct sequence *items = NULL;
    TRY(value_iterate(r, more, &items));
    struct value *const all = region_alloc(&r->region, out->count + items->count, sizeof *all);
    if (out->count) memcpy(all, out->items, out->count * sizeof *all);
    if (items->count) memcpy(all + out->count, items->items, items->count * sizeof *all);
    out->items = all;
    out->count += items->count;
    return STATUS_OK;
}

static enum status add_star_star(struct render *r, const struct value *more,
                                 struct keyword *keywords, size_t *count) {
    for (size_t i = 0; i < more->as.dict->count; i++) {
        const struct dict_entry *const entry = &more->as.dict->entries[i];
        RENDER_FAIL_IF(r, entry->key.kind != VALUE_STRING, STATUS_INVALID,
                       "the keys of **kwargs must be strings");
        keywords[(*count)++] = (struct keyword){entry->key.as.text, entry->value};
    }
    return STATUS_OK;
}

static bool same_text(const struct text *a, const struct text *b) {
    return a->len == b->len && !memcmp(a->data, b->data, a->len);
}

static enum status refuse_double_keyword(struct render *r, const struct args *args) {
    for (size_t i = 0; i < args->keyword_count; i++) {
        TRY(render_work(r, 16 * i));
        for (size_t k = 0; k < i; k++) {
            const struct text *const name = args->keywords[i].name;
            RENDER_FAIL_IF(r, same_text(name, args->keywords[k].name), STATUS_INVALID,
                           "the argument \"%.*s\" is given twice",
                           (int)(name->len < 60 ? name->len : 60), name->data);
        }
    }
    return STATUS_OK;
}

enum status eval_arguments(struct render *r, struct scope *scope, const struct call_node *call,
                           const struct value *caller, struct args *out) {
    static const struct text CALLER = {.len = 6, .chars = 6, .data = "caller"};
    *out = (struct args){0};
    const struct node *const at = r->at;
    struct value *const items =
        call->args.count ? region_alloc(&r->region, call->args.count, sizeof *items) : NULL;
    for (size_t i = 0; i < call->args.count; i++) {
        TRY(eval(r, scope, call->args.items[i], &items[i]));
    }
    out->items = items;
    out->count = call->args.count;
    struct value star = {0}, star_star = {0};
    size_t room = call->keyword_count + (caller != NULL);
    if (call->star) {
        TRY(eval(r, scope, call->star, &star));
        TRY(add_star(r, &star, out));
    }
    if (call->star_star) {
        TRY(eval(r, scope, call->star_star, &star_star));
        RENDER_FAIL_IF(r, star_star.kind != VALUE_DICT, STATUS_INVALID,
                       "**kwargs needs a dict, not a %s", value_type_name(&star_star));
        room += star_star.as.dict->count;
    }
    struct keyword *const keywords = room ? region_alloc(&r->region, room, sizeof *keywords) : NULL;
    for (size_t i = 0; i < call->keyword_count; i++) {
        keywords[i].name = call->keywords[i].name;
        TRY(eval(r, scope, call->keywords[i].value, &keywords[i].value));
    }
    out->keyword_count = call->keyword_count;
    if (caller) keywords[out->keyword_count++] = (struct keyword){&CALLER, *caller};
    r->at = at;
    if (call->star_star) TRY(add_star_star(r, &star_star, keywords, &out->keyword_count));
    out->keywords = keywords;
    return room > 1 ? refuse_double_keyword(r, out) : STATUS_OK;
}

enum status eval_call(struct render *r, struct scope *scope, const struct node *node,
                      struct value *out) {
    struct value callee;
    struct args args;
    TRY(eval(r, scope, node->as.call.of, &callee));
    r->at = node;
    TRY(eval_arguments(r, scope, &node->as.call.call, NULL, &args));
    r->at = node;
    return call_value(r, &callee, &args, out);
}

static enum status call_cycle(struct render *r, const struct value *callee, const struct args *args,
                              struct value *out) {
    RENDER_FAIL_IF(r, args->count || args->keyword_count, STATUS_INVALID,
                   "this object takes no arguments");
    struct cycle *const cycle = callee->as.cycle;
    RENDER_FAIL_IF(r, callee->kind == VALUE_CYCLER, STATUS_INVALID,
                   "a cycler is not callable: use next()");
    *out = cycle->at++ ? cycle->items->items[0] : value_string(&r->region, "", 0);
    return STATUS_OK;
}

enum status call_value(struct render *r, const struct value *callee, const struct args *args,
                       struct value *out) {
    static const struct value NO_SELF = {0};
    switch (callee->kind) {
    case VALUE_UNDEFINED: RENDER_FAIL(r, STATUS_INVALID, "%s", callee->as.undefined->message);
    case VALUE_MACRO: return call_macro(r, callee->as.macro, args, out);
    case VALUE_METHOD:
        return call_builtin(r, callee->as.method->function, &callee->as.method->self, args, out);
    case VALUE_FUNCTION: return call_builtin(r, callee->as.function, &NO_SELF, args, out);
    case VALUE_JOINER:
    case VALUE_CYCLER: return call_cycle(r, callee, args, out);
    case VALUE_LOOP: RENDER_FAIL(r, STATUS_UNSUPPORTED, "recursive loops are not supported");
    default: RENDER_FAIL(r, STATUS_INVALID, "a %s is not callable", value_type_name(callee));
    }
}

/* ---- builtins ---- */

/* The next name of a signature: its length, 0 at the end. `*text` is moved to it. */
static size_t next_name(const char **text) {
    *text += strspn(*text, " |");
    return strcspn(*text, " |");
}

/* The place of a keyword in the signature, or BUILTIN_ARGS_MAX. */
static size_t find_name(const char *signature, const struct text *name) {
    size_t index = 0;
    for (size_t len = next_name(&signature); len; len = next_name(&signature)) {
        if (len == name->len && !memcmp(signature, name->data, len)) return index;
        signature += len;
        index++;
    }
    return BUILTIN_ARGS_MAX;
}

static enum status bind(struct render *r, const struct builtin *row, struct args *args) {
    const char *const bar = strchr(row->signature, '|');
    size_t total = 0, required = 0;
    const char *text = row->signature;
    for (size_t len = next_name(&text); len; len = next_name(&text)) {
        required += !bar || text < bar;
        total++;
        text += len;
    }
    ASSERT(total <= BUILTIN_ARGS_MAX);
    RENDER_FAIL_IF(r, args->count > total, STATUS_INVALID,
                   "%s takes at most %zu arguments, here are %zu", row->name, total, args->count);
    for (size_t i = 0; i < args->count; i++) {
        args->at[i] = args->items[i];
    }
    for (size_t i = 0; i < args->keyword_count; i++) {
        const struct text *const name = args->keywords[i].name;
        const size_t at = find_name(row->signature, name);
        RENDER_FAIL_IF(r, at == BUILTIN_ARGS_MAX, STATUS_INVALID,
                       "%s has no argument named \"%.*s\"", row->name,
                       (int)(name->len < 60 ? name->len : 60), name->data);
        RENDER_FAIL_IF(r, args->at[at].kind != VALUE_ABSENT, STATUS_INVALID,
                       "the argument \"%.*s\" of %s is given twice", (int)name->len, name->data,
                       row->name);
        args->at[at] = args->keywords[i].value;
    }
    for (size_t i = 0; i < required; i++) {
        RENDER_FAIL_IF(r, args->at[i].kind == VALUE_ABSENT, STATUS_INVALID,
                       "%s needs at least %zu arguments", row->name, required);
    }
    return STATUS_OK;
}

enum status call_builtin(struct render *r, const struct builtin *row, const struct value *self,
                         const struct args *args, struct value *out) {
    struct args bound = *args;
    memset(bound.at, 0, sizeof bound.at);
    if (strcmp(row->signature, "*")) TRY(bind(r, row, &bound));
    return row->run(r, self, &bound, out);
}

/* ---- macros ---- */

/* Whether this very scope, not one around it, has the name. */
static bool scope_has(const struct scope *scope, int32_t name) {
    for (size_t i = 0; i < scope->count; i++) {
        if (scope->variables[i].name == name) return true;
    }
    return false;
}

static enum status macro_keyword(struct render *r, const struct macro *macro,
                                 const struct keyword *keyword, struct scope *scope,
                                 struct dict *rest) {
    const struct signature *const s = &macro->node->as.macro.signature;
    for (size_t i = 0; i < s->count; i++) {
        if (!same_text(r->program->names[s->names[i]], keyword->name)) continue;
        RENDER_FAIL_IF(r, scope_has(scope, s->names[i]), STATUS_INVALID,
                       "macro %.*s: the argument \"%.*s\" is given twice", (int)macro->name->len,
                       macro->name->data, (int)keyword->name->len, keyword->name->data);
        scope_set(r, scope, s->names[i], keyword->value);
        return STATUS_OK;
    }
    if (s->uses_caller && same_text(r->program->names[NAME_CALLER], keyword->name)) {
        scope_set(r, scope, NAME_CALLER, keyword->value);
        return STATUS_OK;
    }
    RENDER_FAIL_IF(r, !s->uses_kwargs, STATUS_INVALID, "macro %.*s has no argument named \"%.*s\"",
                   (int)macro->name->len, macro->name->data,
                   (int)(keyword->name->len < 60 ? keyword->name->len : 60), keyword->name->data);
    dict_set(&r->region, rest, value_text(keyword->name), keyword->value);
    return STATUS_OK;
}

/* Defaults are evaluated at each call, and may use the parameters before them. */
static enum status macro_defaults(struct render *r, const struct macro *macro, size_t given,
                                  struct scope *scope) {
    const struct signature *const s = &macro->node->as.macro.signature;
    for (size_t i = given; i < s->count; i++) {
        if (scope_has(scope, s->names[i])) continue;
        struct value value;
        if (s->defaults[i]) {
            TRY(eval(r, scope, s->defaults[i], &value));
        } else {
            const struct text *const name = r->program->names[s->names[i]];
            char *const message =
                str_format("the argument \"%.*s\" was not given", (int)name->len, name->data);
            value = value_undefined(&r->region, message);
            mem_free(message);
        }
        scope_set(r, scope, s->names[i], value);
    }
    return STATUS_OK;
}

static enum status macro_bind(struct render *r, const struct macro *macro, const struct args *args,
                              struct scope *scope) {
    const struct signature *const s = &macro->node->as.macro.signature;
    const size_t given = args->count < s->count ? args->count : s->count;
    RENDER_FAIL_IF(r, args->count > s->count && !s->uses_varargs, STATUS_INVALID,
                   "macro %.*s takes at most %zu arguments, here are %zu", (int)macro->name->len,
                   macro->name->data, s->count, args->count);
    for (size_t i = 0; i < given; i++) {
        scope_set(r, scope, s->names[i], args->items[i]);
    }
    struct dict *const rest = dict_new(&r->region);
    for (size_t i = 0; i < args->keyword_count; i++) {
        TRY(macro_keyword(r, macro, &args->keywords[i], scope, rest));
    }
    TRY(macro_defaults(r, macro, given, scope));
    if (s->uses_kwargs) scope_set(r, scope, NAME_KWARGS, value_dict(rest));
    if (s->uses_varargs) {
        struct sequence *const more = sequence_new(&r->region, SEQUENCE_TUPLE, args->count - given);
        for (size_t i = given; i < args->count; i++) {
            sequence_push(&r->region, more, args->items[i]);
        }
        scope_set(r, scope, NAME_VARARGS, value_sequence(more));
    }
    if (s->uses_caller && !scope_has(scope, NAME_CALLER)) {
        scope_set(r, scope, NAME_CALLER,
                  value_undefined(&r->region, "no caller is defined: this is not a call block"));
    }
    return STATUS_OK;
}

enum status call_macro(struct render *r, const struct macro *macro, const struct args *args,
                       struct value *out) {
    const struct node *const at = r->at;
    RENDER_FAIL_IF(r, r->call_depth >= TEMPLATE_DEPTH_MAX, STATUS_INVALID,
                   "macros call each other too deep (limit %d)", TEMPLATE_DEPTH_MAX);
    struct scope *const scope = scope_new(r, macro->scope);
    TRY(macro_bind(r, macro, args, scope));
    struct str *const outer = r->out;
    const int32_t loop_depth = r->loop_depth;
    struct str text = {0};
    r->out = &text;
    r->call_depth++;
    r->loop_depth = 0;
    const enum status status = exec_body(r, scope, &macro->node->as.macro.body);
    r->loop_depth = loop_depth;
    r->call_depth--;
    r->out = outer;
    if (status != STATUS_OK) {
        str_release(&text);
        return status;
    }
    r->at = at;
    return string_from(r, &text, out);
}

/* ---- arguments ---- */

enum status want_text(struct render *r, const struct value *v, const char *name,
                      const struct text **out) {
    RENDER_FAIL_IF(r, v->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s", v->as.undefined->message);
    RENDER_FAIL_IF(r, v->kind != VALUE_STRING, STATUS_INVALID, "%s must be a string, not a %s",
                   name, value_type_name(v));
    *out = v->as.text;
    return STATUS_OK;
}

enum status want_integer(struct render *r, const struct value *v, const char *name,
                         int64_t otherwise, int64_t *out) {
    *out = otherwise;
    if (v->kind == VALUE_ABSENT || v->kind == VALUE_NONE) return STATUS_OK;
    RENDER_FAIL_IF(r, v->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s", v->as.undefined->message);
    RENDER_FAIL_IF(r, v->kind != VALUE_INT && v->kind != VALUE_BOOL, STATUS_INVALID,
                   "%s must be an integer, not a %s", name, value_type_name(v));
    *out = value_integer(v);
    return STATUS_OK;
}
