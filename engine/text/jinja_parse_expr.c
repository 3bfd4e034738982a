/* jinja_parse_expr.c - expressions, by recursive descent with one function for each level of
 * binding: condition < or < and < not < comparison < + - < ~ < * / // % < ** < unary < postfix . []
 * () < filters and tests. */
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/text/jinja_builtin.h"
#include "engine/text/jinja_parser.h"

static enum status parse_unary(struct parser *p, bool with_filters, struct node **out);

/* ---- calls and subscripts ---- */

static enum status parse_argument(struct parser *p, struct call_node *call, size_t *capacity) {
    const struct token *const at = parser_token(p, 0);
    if (parser_skip_sign(p, "*")) {
        if (call->star || call->star_star)
            return parser_fail(p, at, STATUS_INVALID, "*args may not stand here");
        return parse_expression(p, &call->star);
    }
    if (parser_skip_sign(p, "**")) {
        if (call->star_star)
            return parser_fail(p, at, STATUS_INVALID, "**kwargs may not stand here");
        return parse_expression(p, &call->star_star);
    }
    if (at->kind == TOKEN_NAME && parser_is_sign(p, 1, "=")) {
        if (call->star_star)
            return parser_fail(p, at, STATUS_INVALID, "an argument follows **kwargs");
        p->at += 2;
        if (call->keyword_count == *capacity) {
            *capacity = *capacity ? *capacity * 2 : 4;
            struct keyword_node *const more = region_alloc(p->region, *capacity, sizeof *more);
            if (call->keyword_count)
                memcpy(more, call->keywords, call->keyword_count * sizeof *more);
            call->keywords = more;
        }
        struct keyword_node *const keyword = &call->keywords[call->keyword_count++];
        keyword->name = parser_text(p, at);
        return parse_expression(p, &keyword->value);
    }
    if (call->keyword_count || call->star || call->star_star) {
        return parser_fail(p, at, STATUS_INVALID, "a positional argument follows a named one");
    }
    struct node *value = NULL;
    TRY(parse_expression(p, &value));
    parser_push(p, &call->args, value);
    return STATUS_OK;
}

/* With the opening parenthesis already skipped. */
static enum status parse_arguments(struct parser *p, struct call_node *call) {
    size_t capacity = 0;
    bool first = true;
    while (!parser_skip_sign(p, ")")) {
        if (!first) {
            TRY(parser_expect_sign(p, ","));
            if (parser_skip_sign(p, ")")) break;
        }
        TRY(parse_argument(p, call, &capacity));
        first = false;
    }
    return STATUS_OK;
}

static bool subscript_ends(const struct parser *p) {
    return parser_is_sign(p, 0, "]") || parser_is_sign(p, 0, ",") || parser_is_sign(p, 0, ":");
}

static enum status parse_subscript(struct parser *p, struct node **out) {
    const struct token *const at = parser_token(p, 0);
    struct node *from = NULL;
    if (!parser_is_sign(p, 0, ":")) TRY(parse_expression(p, &from));
    if (!parser_skip_sign(p, ":")) {
        *out = from;
        return STATUS_OK;
    }
    struct node *const slice = parser_node(p, NODE_SLICE, at);
    slice->as.slice.from = from;
    if (!subscript_ends(p)) TRY(parse_expression(p, &slice->as.slice.to));
    if (parser_skip_sign(p, ":") && !subscript_ends(p))
        TRY(parse_expression(p, &slice->as.slice.step));
    *out = slice;
    return STATUS_OK;
}

static enum status parse_dot(struct parser *p, struct node *of, struct node **out) {
    const struct token *const name = parser_token(p, 0);
    if (name->kind == TOKEN_NAME) {
        struct node *const node = parser_node(p, NODE_ATTRIBUTE, name);
        node->as.attribute.of = of;
        node->as.attribute.name = parser_text(p, name);
        p->at++;
        *out = node;
        return STATUS_OK;
    }
    if (name->kind != TOKEN_INTEGER)
        return parser_fail_expected(p, "a name or a number after the dot");
    struct node *const node = parser_node(p, NODE_ITEM, name);
    node->as.item.of = of;
    TRY(parse_unary(p, false, &node->as.item.index));
    *out = node;
    return STATUS_OK;
}

static enum status parse_brackets(struct parser *p, struct node *of, const struct token *at,
                                  struct node **out) {
    struct node *const node = parser_node(p, NODE_ITEM, at);
    node->as.item.of = of;
    TRY(parse_subscript(p, &node->as.item.index));
    if (parser_is_sign(p, 0, ",")) {
        return parser_fail(p, at, STATUS_UNSUPPORTED,
                           "a subscript of several values is not supported");
    }
    TRY(parser_expect_sign(p, "]"));
    *out = node;
    return STATUS_OK;
}

static enum status parse_call(struct parser *p, struct node *of, const struct token *at,
                              struct node **out) {
    struct node *const node = parser_node(p, NODE_CALL, at);
    node->as.call.of = of;
    TRY(parse_arguments(p, &node->as.call.call));
    *out = node;
    return STATUS_OK;
}

/* Chains are loops here but nest in the tree, where the interpreter recurses: they count as depth
 * too. */
static enum status parse_postfix(struct parser *p, struct node *node, struct node **out) {
    const int depth = p->depth;
    while (true) {
        const struct token *const at = parser_token(p, 0);
        if (parser_skip_sign(p, ".")) {
            TRY(parse_dot(p, node, &node));
        } else if (parser_skip_sign(p, "[")) {
            TRY(parse_brackets(p, node, at, &node));
        } else if (parser_skip_sign(p, "(")) {
            TRY(parse_call(p, node, at, &node));
        } else {
            break;
        }
        TRY(parser_enter(p));
    }
    p->depth = depth;
    *out = node;
    return STATUS_OK;
}

/* ---- filters and tests ---- */

static enum status fail_unknown(struct parser *p, const struct token *name, const char *kind) {
    struct err text = {0};
    err_set(&text, STATUS_UNSUPPORTED, "the %s \"%.60s\" is not supported", kind, name->text);
    return parser_fail(p, name, STATUS_UNSUPPORTED, text.text);
}

enum status parse_filter(struct parser *p, struct node *of, struct node **out) {
    const struct token *const name = parser_token(p, 0);
    if (name->kind != TOKEN_NAME) return parser_fail_expected(p, "the name of a filter");
    const struct builtin *const function = jinja_filter(name->text);
    if (!function) return fail_unknown(p, name, "filter");
    p->at++;
    struct node *const node = parser_node(p, NODE_FILTER, name);
    node->as.call.of = of;
    node->as.call.function = function;
    if (parser_skip_sign(p, "(")) TRY(parse_arguments(p, &node->as.call.call));
    *out = node;
    return STATUS_OK;
}

/* An argument without parentheses, as in `x is divisibleby 3`. */
static bool test_argument_begins(const struct parser *p) {
    const struct token *const t = parser_token(p, 0);
    if (t->kind == TOKEN_STRING || t->kind == TOKEN_INTEGER || t->kind == TOKEN_FLOAT) return true;
    if (parser_is_sign(p, 0, "[") || parser_is_sign(p, 0, "{")) return true;
    if (t->kind != TOKEN_NAME) return false;
    static const char *const NOT_ARGUMENTS[] = {"else", "or",  "and",      "if",
                                                "in",   "not", "recursive"};
    for (size_t i = 0; i < COUNT_OF(NOT_ARGUMENTS); i++) {
        if (!strcmp(t->text, NOT_ARGUMENTS[i])) return false;
    }
    return true;
}

static enum status parse_primary(struct parser *p, struct node **out);

static enum status parse_test(struct parser *p, struct node *of, struct node **out) {
    const bool negated = parser_skip_name(p, "not");
    const struct token *const name = parser_token(p, 0);
    if (name->kind != TOKEN_NAME) return parser_fail_expected(p, "the name of a test");
    const struct builtin *const function = jinja_test(name->text);
    if (!function) return fail_unknown(p, name, "test");
    p->at++;
    struct node *const node = parser_node(p, NODE_TEST, name);
    node->as.call.of = of;
    node->as.call.function = function;
    node->as.call.negated = negated;
    if (parser_skip_sign(p, "(")) {
        TRY(parse_arguments(p, &node->as.call.call));
    } else if (parser_is_name(p, 0, "is")) {
        return parser_fail(p, name, STATUS_INVALID, "tests with \"is\" cannot be chained");
    } else if (test_argument_begins(p)) {
        struct node *value = NULL;
        TRY(parse_primary(p, &value));
        TRY(parse_postfix(p, value, &value));
        parser_push(p, &node->as.call.call.args, value);
    }
    *out = node;
    return STATUS_OK;
}

enum status parse_filter_chain(struct parser *p, struct node *of, struct node **out) {
    const int depth = p->depth;
    struct node *node = of;
    while (true) {
        const struct token *const at = parser_token(p, 0);
        if (parser_skip_sign(p, "|")) {
            TRY(parse_filter(p, node, &node));
        } else if (parser_skip_name(p, "is")) {
            TRY(parse_test(p, node, &node));
        } else if (parser_skip_sign(p, "(")) {
            TRY(parse_call(p, node, at, &node));
        } else {
            break;
        }
        TRY(parser_enter(p));
    }
    p->depth = depth;
    *out = node;
    return STATUS_OK;
}

/* ---- literals ---- */

static enum status parse_string(struct parser *p, struct node **out) {
    const struct token *const at = parser_token(p, 0);
    struct str joined = {0};
    while (parser_token(p, 0)->kind == TOKEN_STRING) {
        str_append_bytes(&joined, parser_token(p, 0)->text, parser_token(p, 0)->len);
        p->at++;
    }
    struct node *const node = parser_node(p, NODE_CONST, at);
    node->as.constant = value_string(p->region, str_text(&joined), joined.len);
    str_release(&joined);
    *out = node;
    return STATUS_OK;
}

static enum status parse_number(struct parser *p, struct node **out) {
    const struct token *const at = parser_token(p, 0);
    struct node *const node = parser_node(p, NODE_CONST, at);
    p->at++;
    *out = node;
    if (at->kind == TOKEN_FLOAT) {
        double number = 0;
        if (str_to_f64(at->text, "number", &number, NULL) != STATUS_OK) {
            return parser_fail(p, at, STATUS_INVALID, "this number is out of range");
        }
        node->as.constant = value_float(number);
        return STATUS_OK;
    }
    int64_t integer = 0;
    if (str_to_i64(at->text, "number", &integer, NULL) == STATUS_OK) {
        node->as.constant = value_int(integer);
        return STATUS_OK;
    }
    node->as.constant = value_string(p->region, at->text, at->len);
    node->as.constant.kind = VALUE_BIG;
    return STATUS_OK;
}

static enum status parse_list(struct parser *p, const struct token *at, struct node **out) {
    struct node *const node = parser_node(p, NODE_LIST, at);
    bool first = true;
    while (!parser_skip_sign(p, "]")) {
        if (!first) {
            TRY(parser_expect_sign(p, ","));
            if (parser_skip_sign(p, "]")) break;
        }
        struct node *item = NULL;
        TRY(parse_expression(p, &item));
        parser_push(p, &node->as.list, item);
        first = false;
    }
    *out = node;
    return STATUS_OK;
}

static enum status parse_dict(struct parser *p, const struct token *at, struct node **out) {
    struct node *const node = parser_node(p, NODE_DICT, at);
    bool first = true;
    while (!parser_skip_sign(p, "}")) {
        if (!first) {
            TRY(parser_expect_sign(p, ","));
            if (parser_skip_sign(p, "}")) break;
        }
        struct node *key = NULL, *value = NULL;
        TRY(parse_expression(p, &key));
        TRY(parser_expect_sign(p, ":"));
        TRY(parse_expression(p, &value));
        parser_push(p, &node->as.dict.keys, key);
        parser_push(p, &node->as.dict.values, value);
        first = false;
    }
    *out = node;
    return STATUS_OK;
}

static enum status parse_parentheses(struct parser *p, const struct token *at, struct node **out) {
    if (parser_skip_sign(p, ")")) {
        *out = parser_node(p, NODE_TUPLE, at);
        return STATUS_OK;
    }
    TRY(parse_tuple(p, true, out));
    return parser_expect_sign(p, ")");
}

/* true, false, none and any other name. */
static void parse_name(struct parser *p, struct node **out) {
    static const char *const WORDS[] = {"true", "True", "false", "False", "none", "None"};
    const struct token *const at = parser_token(p, 0);
    p->at++;
    for (size_t i = 0; i < COUNT_OF(WORDS); i++) {
        if (strcmp(at->text, WORDS[i])) continue;
        *out = parser_node(p, NODE_CONST, at);
        (*out)->as.constant = i < 4 ? value_bool(i < 2) : value_none();
        return;
    }
    *out = parser_node(p, NODE_NAME, at);
    (*out)->as.name = parser_name(p, at);
    if (!p->signature) return;
    p->signature->uses_caller |= (*out)->as.name == NAME_CALLER;
    p->signature->uses_varargs |= (*out)->as.name == NAME_VARARGS;
    p->signature->uses_kwargs |= (*out)->as.name == NAME_KWARGS;
}

static enum status parse_primary(struct parser *p, struct node **out) {
    const struct token *const at = parser_token(p, 0);
    if (at->kind == TOKEN_NAME) {
        parse_name(p, out);
        return STATUS_OK;
    }
    if (at->kind == TOKEN_STRING) return parse_string(p, out);
    if (at->kind == TOKEN_INTEGER || at->kind == TOKEN_FLOAT) return parse_number(p, out);
    if (parser_skip_sign(p, "(")) return parse_parentheses(p, at, out);
    if (parser_skip_sign(p, "[")) return parse_list(p, at, out);
    if (parser_skip_sign(p, "{")) return parse_dict(p, at, out);
    return parser_fail_expected(p, "an expression");
}

/* ---- operators ---- */

static enum status parse_unary(struct parser *p, bool with_filters, struct node **out) {
    const struct token *const at = parser_token(p, 0);
    TRY(parser_enter(p));
    struct node *node = NULL;
    const bool minus = parser_skip_sign(p, "-");
    if (minus || parser_skip_sign(p, "+")) {
        node = parser_node(p, minus ? NODE_NEGATE : NODE_PLUS, at);
        TRY(parse_unary(p, false, &node->as.of));
    } else {
        TRY(parse_primary(p, &node));
    }
    TRY(parse_postfix(p, node, &node));
    if (with_filters) TRY(parse_filter_chain(p, node, &node));
    parser_leave(p);
    *out = node;
    return STATUS_OK;
}

struct operator_row {
    const char *sign;
    enum operation op;
};

/* The operator of one of the rows, if the next token is one. */
static bool skip_operator(struct parser *p, const struct operator_row *rows, size_t count,
                          enum operation *op) {
    for (size_t i = 0; i < count; i++) {
        if (!parser_skip_sign(p, rows[i].sign)) continue;
        *op = rows[i].op;
        return true;
    }
    return false;
}

static struct node *binary(struct parser *p, const struct token *at, enum operation op,
                           struct node *left) {
    struct node *const node = parser_node(p, NODE_BINARY, at);
    node->as.binary.op = op;
    node->as.binary.left = left;
    return node;
}

static enum status parse_power(struct parser *p, struct node **out) {
    static const struct operator_row ROWS[] = {{"**", OP_POWER}};
    const int depth = p->depth;
    enum operation op;
    TRY(parse_unary(p, true, out));
    for (const struct token *at = parser_token(p, 0); skip_operator(p, ROWS, 1, &op);
         at = parser_token(p, 0)) {
        *out = binary(p, at, op, *out);
        TRY(parser_enter(p));
        TRY(parse_unary(p, true, &(*out)->as.binary.right));
    }
    p->depth = depth;
    return STATUS_OK;
}

static enum status parse_product(struct parser *p, struct node **out) {
    static const struct operator_row ROWS[] = {
        {"*", OP_MULTIPLY}, {"/", OP_DIVIDE}, {"//", OP_FLOOR_DIVIDE}, {"%", OP_MODULO}};
    const int depth = p->depth;
    enum operation op;
    TRY(parse_power(p, out));
    for (const struct token *at = parser_token(p, 0); skip_operator(p, ROWS, 4, &op);
         at = parser_token(p, 0)) {
        *out = binary(p, at, op, *out);
        TRY(parser_enter(p));
        TRY(parse_power(p, &(*out)->as.binary.right));
    }
    p->depth = depth;
    return STATUS_OK;
}

static enum status parse_concat(struct parser *p, struct node **out) {
    const struct token *const at = parser_token(p, 0);
    TRY(parse_product(p, out));
    if (!parser_is_sign(p, 0, "~")) return STATUS_OK;
    struct node *const node = parser_node(p, NODE_CONCAT, at);
    parser_push(p, &node->as.list, *out);
    while (parser_skip_sign(p, "~")) {
        struct node *part = NULL;
        TRY(parse_product(p, &part));
        parser_push(p, &node->as.list, part);
    }
    *out = node;
    return STATUS_OK;
}

static enum status parse_sum(struct parser *p, struct node **out) {
    static const struct operator_row ROWS[] = {{"+", OP_ADD}, {"-", OP_SUBTRACT}};
    const int depth = p->depth;
    enum operation op;
    TRY(parse_concat(p, out));
    for (const struct token *at = parser_token(p, 0); skip_operator(p, ROWS, 2, &op);
         at = parser_token(p, 0)) {
        *out = binary(p, at, op, *out);
        TRY(parser_enter(p));
        TRY(parse_concat(p, &(*out)->as.binary.right));
    }
    p->depth = depth;
    return STATUS_OK;
}

static bool skip_comparison(struct parser *p, enum operation *op) {
    static const struct operator_row ROWS[] = {{"==", OP_EQUAL},  {"!=", OP_NOT_EQUAL},
                                               {"<", OP_LESS},    {"<=", OP_LESS_EQUAL},
                                               {">", OP_GREATER}, {">=", OP_GREATER_EQUAL}};
    if (skip_operator(p, ROWS, COUNT_OF(ROWS), op)) return true;
    *op = parser_is_name(p, 0, "in") ? OP_IN : OP_NOT_IN;
    if (parser_skip_name(p, "in")) return true;
    if (!parser_is_name(p, 0, "not") || !parser_is_name(p, 1, "in")) return false;
    p->at += 2;
    return true;
}

static enum status parse_comparison(struct parser *p, struct node **out) {
    enum operation op;
    TRY(parse_sum(p, out));
    const struct token *const at = parser_token(p, 0);
    if (!skip_comparison(p, &op)) return STATUS_OK;
    struct node *const node = parser_node(p, NODE_COMPARE, at);
    node->as.compare.first = *out;
    size_t capacity = 0;
    do {
        const size_t count = node->as.compare.operands.count;
        if (count == capacity) {
            capacity = capacity ? capacity * 2 : 2;
            enum operation *const more = region_alloc(p->region, capacity, sizeof *more);
            if (count) memcpy(more, node->as.compare.ops, count * sizeof *more);
            node->as.compare.ops = more;
        }
        node->as.compare.ops[count] = op;
        struct node *operand = NULL;
        TRY(parse_sum(p, &operand));
        parser_push(p, &node->as.compare.operands, operand);
    } while (skip_comparison(p, &op));
    *out = node;
    return STATUS_OK;
}

static enum status parse_not(struct parser *p, struct node **out) {
    const struct token *const at = parser_token(p, 0);
    if (!parser_skip_name(p, "not")) return parse_comparison(p, out);
    TRY(parser_enter(p));
    struct node *const node = parser_node(p, NODE_NOT, at);
    TRY(parse_not(p, &node->as.of));
    parser_leave(p);
    *out = node;
    return STATUS_OK;
}

static enum status parse_logic(struct parser *p, bool is_or, struct node **out) {
    const int depth = p->depth;
    TRY(is_or ? parse_logic(p, false, out) : parse_not(p, out));
    const struct token *at = parser_token(p, 0);
    while (parser_skip_name(p, is_or ? "or" : "and")) {
        struct node *const node = parser_node(p, is_or ? NODE_OR : NODE_AND, at);
        node->as.binary.left = *out;
        TRY(parser_enter(p));
        TRY(is_or ? parse_logic(p, false, &node->as.binary.right)
                  : parse_not(p, &node->as.binary.right));
        *out = node;
        at = parser_token(p, 0);
    }
    p->depth = depth;
    return STATUS_OK;
}

enum status parse_expression(struct parser *p, struct node **out) {
    const int depth = p->depth;
    TRY(parser_enter(p));
    TRY(parse_logic(p, true, out));
    const struct token *at = parser_token(p, 0);
    while (parser_skip_name(p, "if")) {
        struct node *const node = parser_node(p, NODE_CONDITION, at);
        node->as.condition.yes = *out;
        TRY(parser_enter(p));
        TRY(parse_logic(p, true, &node->as.condition.test));
        if (parser_skip_name(p, "else")) TRY(parse_expression(p, &node->as.condition.no));
        *out = node;
        at = parser_token(p, 0);
    }
    p->depth = depth;
    return STATUS_OK;
}

/* ---- tuples and targets ---- */

static bool tuple_ends(const struct parser *p) {
    const enum token_kind kind = parser_token(p, 0)->kind;
    return kind == TOKEN_PRINT_END || kind == TOKEN_BLOCK_END || parser_is_sign(p, 0, ")") ||
           parser_is_name(p, 0, "in") || parser_is_name(p, 0, "recursive");
}

enum status parse_tuple(struct parser *p, bool conditions, struct node **out) {
    const struct token *const at = parser_token(p, 0);
    struct node *tuple = NULL;
    while (true) {
        struct node *item = NULL;
        TRY(conditions ? parse_expression(p, &item) : parse_logic(p, true, &item));
        if (!tuple && !parser_is_sign(p, 0, ",")) {
            *out = item;
            return STATUS_OK;
        }
        if (!tuple) tuple = parser_node(p, NODE_TUPLE, at);
        parser_push(p, &tuple->as.list, item);
        if (!parser_skip_sign(p, ",") || tuple_ends(p)) break;
    }
    *out = tuple;
    return STATUS_OK;
}

static enum status parse_target_item(struct parser *p, bool with_namespace, struct node **out) {
    const struct token *const at = parser_token(p, 0);
    if (parser_skip_sign(p, "(")) {
        TRY(parser_enter(p));
        TRY(parse_target(p, with_namespace, out));
        parser_leave(p);
        return parser_expect_sign(p, ")");
    }
    if (at->kind != TOKEN_NAME) return parser_fail_expected(p, "a name to assign to");
    p->at++;
    struct node *const node = parser_node(p, NODE_NAME, at);
    node->as.name = parser_name(p, at);
    *out = node;
    if (!with_namespace || !parser_is_sign(p, 0, ".")) return STATUS_OK;
    p->at++;
    const struct token *const attribute = parser_token(p, 0);
    if (attribute->kind != TOKEN_NAME) return parser_fail_expected(p, "a name after the dot");
    p->at++;
    const int32_t name = node->as.name;
    node->kind = NODE_NAMESPACE_NAME;
    node->as.namespace_name.name = name;
    node->as.namespace_name.attribute = parser_text(p, attribute);
    return STATUS_OK;
}

enum status parse_target(struct parser *p, bool with_namespace, struct node **out) {
    const struct token *const at = parser_token(p, 0);
    struct node *tuple = NULL;
    while (true) {
        struct node *item = NULL;
        TRY(parse_target_item(p, with_namespace, &item));
        if (!tuple && !parser_is_sign(p, 0, ",")) {
            *out = item;
            return STATUS_OK;
        }
        if (!tuple) tuple = parser_node(p, NODE_TUPLE, at);
        parser_push(p, &tuple->as.list, item);
        if (!parser_skip_sign(p, ",") || tuple_ends(p) || parser_is_sign(p, 0, "=")) break;
    }
    *out = tuple;
    return STATUS_OK;
}
