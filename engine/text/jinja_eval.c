/* jinja_eval.c - walks expressions.
 *
 * Every visit of a node is one step and one level, so whatever the shape of the tree or the
 * recursion of macros, the C stack and the time are bounded here. */
#include "base/mem.h"
#include "engine/text/jinja_render.h"

/* Levels of nodes and macros together. One costs at most some 300 bytes of stack, so that the sum
 * fits into the smallest thread stack in use (2 MiB). */
enum { EVAL_DEPTH_MAX = 2500 };

enum status render_fail(struct render *r, enum status status) {
    if (r->placed) return status;
    r->placed = true;
    if (!r->at) return err_prefix(r->e, "%s", r->what), status;
    err_prefix(r->e, "%s: line %d, column %d", r->what, r->at->line, r->at->column);
    return status;
}

enum status render_work(struct render *r, size_t bytes) {
    r->steps += 1 + (int64_t)(bytes / 64);
    RENDER_FAIL_IF(r, r->steps > TEMPLATE_STEPS_MAX, STATUS_INVALID,
                   "the template runs too long (limit %d steps)", TEMPLATE_STEPS_MAX);
    RENDER_FAIL_IF(r, region_is_full(&r->region), STATUS_INVALID,
                   "the template uses too much memory (limit %d MiB)", TEMPLATE_MEMORY_MAX >> 20);
    RENDER_FAIL_IF(r, r->out->len > TEMPLATE_OUTPUT_MAX, STATUS_INVALID,
                   "the template prints too much (limit %d MiB)", TEMPLATE_OUTPUT_MAX >> 20);
    return STATUS_OK;
}

/* ---- scopes ---- */

struct scope *scope_new(struct render *r, struct scope *outer) {
    struct scope *const scope = region_alloc(&r->region, 1, sizeof *scope);
    scope->outer = outer;
    return scope;
}

void scope_set(struct render *r, struct scope *scope, int32_t name, struct value value) {
    for (size_t i = 0; i < scope->count; i++) {
        if (scope->variables[i].name != name) continue;
        scope->variables[i].value = value;
        return;
    }
    if (scope->count == scope->capacity) {
        scope->capacity = scope->capacity ? scope->capacity * 2 : 4;
        struct variable *const more = region_alloc(&r->region, scope->capacity, sizeof *more);
        for (size_t i = 0; i < scope->count; i++) {
            more[i] = scope->variables[i];
        }
        scope->variables = more;
    }
    scope->variables[scope->count++] = (struct variable){name, value};
}

const struct value *scope_get(const struct scope *scope, int32_t name) {
    for (; scope; scope = scope->outer) {
        for (size_t i = 0; i < scope->count; i++) {
            if (scope->variables[i].name == name) return &scope->variables[i].value;
        }
    }
    return NULL;
}

static enum status eval_name(struct render *r, struct scope *scope, const struct node *node,
                             struct value *out) {
    const struct value *const known = scope_get(scope, node->as.name);
    if (known) {
        *out = *known;
        return STATUS_OK;
    }
    const struct text *const name = r->program->names[node->as.name];
    char *const text = region_copy(&r->region, name->data, name->len);
    const struct builtin *const function = jinja_function(text);
    if (function) {
        *out = (struct value){.kind = VALUE_FUNCTION, .as.function = function};
        return STATUS_OK;
    }
    char *const message = str_format("\"%.100s\" is undefined", text);
    *out = value_undefined(&r->region, message);
    mem_free(message);
    return STATUS_OK;
}

/* ---- composite expressions ---- */

static enum status eval_list(struct render *r, struct scope *scope, const struct node *node,
                             struct value *out) {
    const enum sequence_type type = node->kind == NODE_TUPLE ? SEQUENCE_TUPLE : SEQUENCE_LIST;
    struct sequence *const list = sequence_new(&r->region, type, node->as.list.count);
    for (size_t i = 0; i < node->as.list.count; i++) {
        struct value item;
        TRY(eval(r, scope, node->as.list.items[i], &item));
        sequence_push(&r->region, list, item);
    }
    *out = value_sequence(list);
    return STATUS_OK;
}

static enum status eval_dict(struct render *r, struct scope *scope, const struct node *node,
                             struct value *out) {
    struct dict *const dict = dict_new(&r->region);
    for (size_t i = 0; i < node->as.dict.keys.count; i++) {
        struct value key, value;
        TRY(eval(r, scope, node->as.dict.keys.items[i], &key));
        TRY(eval(r, scope, node->as.dict.values.items[i], &value));
        r->at = node;
        RENDER_FAIL_IF(r, !value_is_hashable(&key), STATUS_INVALID,
                       "a %s cannot be the key of a dict", value_type_name(&key));
        TRY(render_work(r, key.kind == VALUE_STRING ? key.as.text->len : 0));
        dict_set(&r->region, dict, key, value);
    }
    *out = value_dict(dict);
    return STATUS_OK;
}

static enum status eval_concat(struct render *r, struct scope *scope, const struct node *node,
                               struct value *out) {
    struct str text = {0};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < node->as.list.count; i++) {
        struct value part;
        GUARD(eval(r, scope, node->as.list.items[i], &part));
        r->at = node;
        GUARD(print_value(r, &text, &part));
    }
    return string_from(r, &text, out);
done:
    str_release(&text);
    return status;
}

static enum status eval_compare(struct render *r, struct scope *scope, const struct node *node,
                                struct value *out) {
    struct value left, right;
    TRY(eval(r, scope, node->as.compare.first, &left));
    for (size_t i = 0; i < node->as.compare.operands.count; i++) {
        TRY(eval(r, scope, node->as.compare.operands.items[i], &right));
        r->at = node;
        TRY(operate(r, node->as.compare.ops[i], &left, &right, out));
        if (!value_is_true(out)) return STATUS_OK;
        left = right;
    }
    return STATUS_OK;
}

static enum status eval_logic(struct render *r, struct scope *scope, const struct node *node,
                              struct value *out) {
    TRY(eval(r, scope, node->as.binary.left, out));
    if (value_is_true(out) == (node->kind == NODE_OR)) return STATUS_OK;
    return eval(r, scope, node->as.binary.right, out);
}

static enum status eval_condition(struct render *r, struct scope *scope, const struct node *node,
                                  struct value *out) {
    struct value test;
    TRY(eval(r, scope, node->as.condition.test, &test));
    if (value_is_true(&test)) return eval(r, scope, node->as.condition.yes, out);
    if (node->as.condition.no) return eval(r, scope, node->as.condition.no, out);
    *out = value_undefined(&r->region,
                           "the inline if was false and has no else, so its value is undefined");
    return STATUS_OK;
}

static enum status eval_binary(struct render *r, struct scope *scope, const struct node *node,
                               struct value *out) {
    struct value left, right;
    TRY(eval(r, scope, node->as.binary.left, &left));
    TRY(eval(r, scope, node->as.binary.right, &right));
    r->at = node;
    return operate(r, node->as.binary.op, &left, &right, out);
}

static enum status eval_item(struct render *r, struct scope *scope, const struct node *node,
                             struct value *out) {
    const struct node *const index_node = node->as.item.index;
    struct value of, index, bounds[3] = {0};
    TRY(eval(r, scope, node->as.item.of, &of));
    if (index_node->kind != NODE_SLICE) {
        TRY(eval(r, scope, index_node, &index));
        r->at = node;
        return value_item(r, &of, &index, out);
    }
    if (index_node->as.slice.from) TRY(eval(r, scope, index_node->as.slice.from, &bounds[0]));
    if (index_node->as.slice.to) TRY(eval(r, scope, index_node->as.slice.to, &bounds[1]));
    if (index_node->as.slice.step) TRY(eval(r, scope, index_node->as.slice.step, &bounds[2]));
    r->at = node;
    return value_cut(r, &of, bounds, out);
}

/* ---- filters and tests ---- */

static enum status eval_filter(struct render *r, struct scope *scope, const struct node *node,
                               struct value *out) {
    struct value of;
    struct args args = {0};
    TRY(eval(r, scope, node->as.call.of, &of));
    TRY(eval_arguments(r, scope, &node->as.call.call, NULL, &args));
    r->at = node;
    TRY(call_builtin(r, node->as.call.function, &of, &args, out));
    if (node->kind == NODE_TEST && node->as.call.negated) *out = value_bool(!value_is_true(out));
    return STATUS_OK;
}

static enum status eval_unary(struct render *r, struct scope *scope, const struct node *node,
                              struct value *out) {
    struct value of;
    TRY(eval(r, scope, node->as.of, &of));
    r->at = node;
    if (node->kind == NODE_NOT) {
        *out = value_bool(!value_is_true(&of));
        return STATUS_OK;
    }
    if (node->kind == NODE_NEGATE) return value_negate(r, &of, out);
    RENDER_FAIL_IF(r, of.kind == VALUE_UNDEFINED, STATUS_INVALID, "%s", of.as.undefined->message);
    RENDER_FAIL_IF(r, !value_is_number(&of) && of.kind != VALUE_BIG, STATUS_INVALID,
                   "unary + needs a number, not a %s", value_type_name(&of));
    *out = of.kind == VALUE_BOOL ? value_int(of.as.truth) : of;
    return STATUS_OK;
}

static enum status eval_kind(struct render *r, struct scope *scope, const struct node *node,
                             struct value *out) {
    struct value of;
    switch (node->kind) {
    case NODE_CONST: *out = node->as.constant; return STATUS_OK;
    case NODE_NAME: return eval_name(r, scope, node, out);
    case NODE_ATTRIBUTE:
        TRY(eval(r, scope, node->as.attribute.of, &of));
        r->at = node;
        return value_attribute(r, &of, node->as.attribute.name, out);
    case NODE_ITEM: return eval_item(r, scope, node, out);
    case NODE_NEGATE:
    case NODE_PLUS:
    case NODE_NOT: return eval_unary(r, scope, node, out);
    case NODE_AND:
    case NODE_OR: return eval_logic(r, scope, node, out);
    case NODE_BINARY: return eval_binary(r, scope, node, out);
    case NODE_COMPARE: return eval_compare(r, scope, node, out);
    case NODE_CONCAT: return eval_concat(r, scope, node, out);
    case NODE_CONDITION: return eval_condition(r, scope, node, out);
    case NODE_LIST:
    case NODE_TUPLE: return eval_list(r, scope, node, out);
    case NODE_DICT: return eval_dict(r, scope, node, out);
    case NODE_CALL: return eval_call(r, scope, node, out);
    case NODE_FILTER:
    case NODE_TEST: return eval_filter(r, scope, node, out);
    default: RENDER_FAIL(r, STATUS_INTERNAL, "node %d is not an expression", (int)node->kind);
    }
}

enum status eval(struct render *r, struct scope *scope, const struct node *node,
                 struct value *out) {
    r->at = node;
    TRY(render_work(r, 0));
    RENDER_FAIL_IF(r, r->depth >= EVAL_DEPTH_MAX, STATUS_INVALID, "the template nests too deep");
    r->depth++;
    const enum status status = eval_kind(r, scope, node, out);
    r->depth--;
    return status;
}
