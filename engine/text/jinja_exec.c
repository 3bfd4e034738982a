/* jinja_exec.c - walks statements. Scopes follow Jinja: if has none, every other block has one, so
 * a set inside a for, a with, a block set or a generation block does not leak; namespaces are the
 * way out. */
#include "base/mem.h"
#include "engine/text/jinja_render.h"

enum status assign(struct render *r, struct scope *scope, const struct node *target,
                   struct value value) {
    if (target->kind == NODE_NAME) {
        scope_set(r, scope, target->as.name, value);
        return STATUS_OK;
    }
    r->at = target;
    if (target->kind == NODE_NAMESPACE_NAME) {
        const struct value *const space = scope_get(scope, target->as.namespace_name.name);
        RENDER_FAIL_IF(r, !space || space->kind != VALUE_NAMESPACE, STATUS_INVALID,
                       "only a namespace has attributes that can be set");
        dict_set(&r->region, space->as.names, value_text(target->as.namespace_name.attribute),
                 value);
        return STATUS_OK;
    }
    ASSERT(target->kind == NODE_TUPLE);
    const struct sequence *items = NULL;
    TRY(value_iterate(r, &value, &items));
    RENDER_FAIL_IF(r, items->count != target->as.list.count, STATUS_INVALID,
                   "%zu values are unpacked into %zu names", items->count, target->as.list.count);
    for (size_t i = 0; i < items->count; i++) {
        TRY(assign(r, scope, target->as.list.items[i], items->items[i]));
    }
    return STATUS_OK;
}

/* ---- loops ---- */

static enum status run_loop(struct render *r, struct loop *loop, bool *ran) {
    const struct node *const node = loop->node;
    struct scope *const scope = scope_new(r, loop->scope);
    while (true) {
        bool more;
        r->at = node;
        TRY(render_work(r, 0));
        TRY(loop_advance(r, loop, &more));
        if (!more) return STATUS_OK;
        *ran = true;
        scope->count = 0;
        scope_set(r, scope, NAME_LOOP, (struct value){.kind = VALUE_LOOP, .as.loop = loop});
        TRY(assign(r, scope, node->as.loop.target, loop->current));
        TRY(exec_body(r, scope, &node->as.loop.body));
        const enum flow flow = r->flow;
        r->flow = FLOW_ON;
        if (flow == FLOW_BREAK) return STATUS_OK;
    }
}

static enum status exec_for(struct render *r, struct scope *scope, const struct node *node) {
    struct value iterable;
    const struct sequence *items = NULL;
    TRY(eval(r, scope, node->as.loop.iterable, &iterable));
    r->at = node;
    TRY(value_iterate(r, &iterable, &items));
    struct loop *const loop = region_alloc(&r->region, 1, sizeof *loop);
    *loop = (struct loop){
        .items = items->items, .count = items->count, .node = node, .scope = scope, .index0 = -1};
    loop->depth = ++r->loop_depth;
    bool ran = false;
    TRY(run_loop(r, loop, &ran));
    r->loop_depth--;
    if (ran || !node->as.loop.otherwise.count) return STATUS_OK;
    return exec_body(r, scope_new(r, scope), &node->as.loop.otherwise);
}

/* ---- the other statements ---- */

static enum status exec_if(struct render *r, struct scope *scope, const struct node *node) {
    for (size_t i = 0; i < node->as.choice.count; i++) {
        struct value test;
        TRY(eval(r, scope, node->as.choice.branches[i].test, &test));
        if (value_is_true(&test)) return exec_body(r, scope, &node->as.choice.branches[i].body);
    }
    return exec_body(r, scope, &node->as.choice.otherwise);
}

/* Applies a filter chain whose innermost filter has nothing to its left. */
static enum status apply_filters(struct render *r, struct scope *scope, const struct node *filter,
                                 struct value of, struct value *out) {
    if (!filter) {
        *out = of;
        return STATUS_OK;
    }
    RENDER_FAIL_IF(r, filter->kind != NODE_FILTER, STATUS_UNSUPPORTED,
                   "only filters may stand here");
    struct value inner;
    TRY(apply_filters(r, scope, filter->as.call.of, of, &inner));
    struct args args;
    r->at = filter;
    TRY(eval_arguments(r, scope, &filter->as.call.call, NULL, &args));
    r->at = filter;
    return call_builtin(r, filter->as.call.function, &inner, &args, out);
}

/* The body of a block set or filter block: captured, then filtered. */
static enum status capture(struct render *r, struct scope *scope, const struct node *node,
                           struct value *out) {
    struct str *const outer = r->out;
    struct str text = {0};
    struct value captured;
    struct scope *const inner = scope_new(r, scope);
    r->out = &text;
    const enum status status = exec_body(r, inner, &node->as.block.body);
    r->out = outer;
    if (status != STATUS_OK) {
        str_release(&text);
        return status;
    }
    TRY(string_from(r, &text, &captured));
    return apply_filters(r, inner, node->as.block.filter, captured, out);
}

static enum status exec_set(struct render *r, struct scope *scope, const struct node *node) {
    struct value value;
    if (node->kind == NODE_SET) {
        TRY(eval(r, scope, node->as.set.value, &value));
        return assign(r, scope, node->as.set.target, value);
    }
    TRY(capture(r, scope, node, &value));
    return assign(r, scope, node->as.block.target, value);
}

static struct value macro_value(struct render *r, struct scope *scope, const struct node *node) {
    struct macro *const macro = region_alloc(&r->region, 1, sizeof *macro);
    *macro = (struct macro){
        .node = node, .scope = scope, .name = r->program->names[node->as.macro.name]};
    return (struct value){.kind = VALUE_MACRO, .as.macro = macro};
}

static enum status exec_call_block(struct render *r, struct scope *scope, const struct node *node) {
    const struct node *const call = node->as.macro.call;
    const struct value caller = macro_value(r, scope, node);
    struct value callee, result;
    struct args args;
    TRY(eval(r, scope, call->as.call.of, &callee));
    r->at = call;
    TRY(eval_arguments(r, scope, &call->as.call.call, &caller, &args));
    TRY(call_value(r, &callee, &args, &result));
    return print_value(r, r->out, &result);
}

static enum status exec_generation(struct render *r, struct scope *scope, const struct node *node) {
    const size_t begin = r->out->len;
    TRY(exec_body(r, scope_new(r, scope), &node->as.block.body));
    struct template_spans *const spans = r->spans;
    if (!spans) return STATUS_OK;
    if (r->out != r->top) {
        spans->unplaced++;
        return STATUS_OK;
    }
    spans->items = mem_grow(spans->items, spans->count, &spans->capacity, sizeof *spans->items);
    spans->items[spans->count++] = (struct template_span){begin, r->out->len};
    return STATUS_OK;
}

static enum status exec_with(struct render *r, struct scope *scope, const struct node *node) {
    struct scope *const inner = scope_new(r, scope);
    for (size_t i = 0; i < node->as.with.targets.count; i++) {
        struct value value;
        TRY(eval(r, scope, node->as.with.values.items[i], &value));
        TRY(assign(r, inner, node->as.with.targets.items[i], value));
    }
    return exec_body(r, inner, &node->as.with.body);
}

static enum status exec(struct render *r, struct scope *scope, const struct node *node) {
    struct value value;
    switch (node->kind) {
    case NODE_DATA:
        str_append_bytes(r->out, node->as.data->data, node->as.data->len);
        return render_work(r, node->as.data->len);
    case NODE_PRINT:
        TRY(eval(r, scope, node->as.of, &value));
        r->at = node;
        return print_value(r, r->out, &value);
    case NODE_IF: return exec_if(r, scope, node);
    case NODE_FOR: return exec_for(r, scope, node);
    case NODE_SET:
    case NODE_SET_BLOCK: return exec_set(r, scope, node);
    case NODE_MACRO:
        scope_set(r, scope, node->as.macro.name, macro_value(r, scope, node));
        return STATUS_OK;
    case NODE_CALL_BLOCK: return exec_call_block(r, scope, node);
    case NODE_FILTER_BLOCK:
        TRY(capture(r, scope, node, &value));
        return print_value(r, r->out, &value);
    case NODE_GENERATION: return exec_generation(r, scope, node);
    case NODE_WITH: return exec_with(r, scope, node);
    case NODE_BREAK: r->flow = FLOW_BREAK; return STATUS_OK;
    case NODE_CONTINUE: r->flow = FLOW_CONTINUE; return STATUS_OK;
    default: RENDER_FAIL(r, STATUS_INTERNAL, "node %d is not a statement", (int)node->kind);
    }
}

enum status exec_body(struct render *r, struct scope *scope, const struct node_list *body) {
    for (size_t i = 0; i < body->count && r->flow == FLOW_ON; i++) {
        r->at = body->items[i];
        TRY(render_work(r, 0));
        r->depth++;
        const enum status status = exec(r, scope, body->items[i]);
        r->depth--;
        TRY(status);
    }
    return STATUS_OK;
}
