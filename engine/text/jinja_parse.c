/* jinja_parse.c - statements, and the small helpers that both halves of the parser use.
 *
 * Each statement has one function; the table STATEMENTS says which. */
#include "engine/text/jinja_parse.h"

#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/text/jinja_parser.h"

enum { PARSE_DEPTH_MAX = 200 };

/* ---- the cursor ---- */

const struct token *parser_token(const struct parser *p, size_t ahead) {
    const struct token *token = &p->tokens[p->at];
    while (ahead-- && token->kind != TOKEN_END) {
        token++;
    }
    return token;
}

bool parser_is_name(const struct parser *p, size_t ahead, const char *name) {
    const struct token *const token = parser_token(p, ahead);
    return token->kind == TOKEN_NAME && !strcmp(token->text, name);
}

bool parser_is_sign(const struct parser *p, size_t ahead, const char *sign) {
    const struct token *const token = parser_token(p, ahead);
    return token->kind == TOKEN_SIGN && !strcmp(token->text, sign);
}

bool parser_skip_name(struct parser *p, const char *name) {
    const bool found = parser_is_name(p, 0, name);
    p->at += found;
    return found;
}

bool parser_skip_sign(struct parser *p, const char *sign) {
    const bool found = parser_is_sign(p, 0, sign);
    p->at += found;
    return found;
}

enum status parser_fail(struct parser *p, const struct token *at, enum status code,
                        const char *message) {
    return err_set(p->e, code, "line %d, column %d: %s", at->line, at->column, message);
}

enum status parser_fail_expected(struct parser *p, const char *what) {
    static const char *const KINDS[] = {
        "the end of the template", "text", "{{", "}}", "{%", "%}", "", "a string"};
    const struct token *const t = parser_token(p, 0);
    const bool spelled = t->kind == TOKEN_NAME || t->kind > TOKEN_STRING;
    return err_set(p->e, STATUS_INVALID, "line %d, column %d: expected %s, found %s%.60s%s",
                   t->line, t->column, what, spelled ? "\"" : "",
                   spelled ? t->text : KINDS[t->kind], spelled ? "\"" : "");
}

enum status parser_expect_sign(struct parser *p, const char *sign) {
    if (parser_skip_sign(p, sign)) return STATUS_OK;
    const char what[] = {'"', sign[0], '"', 0};
    return parser_fail_expected(p, what);
}

enum status parser_enter(struct parser *p) {
    if (p->depth >= PARSE_DEPTH_MAX) {
        return parser_fail(p, parser_token(p, 0), STATUS_INVALID,
                           "the template is nested too deep (limit 200 levels)");
    }
    p->depth++;
    return STATUS_OK;
}

void parser_leave(struct parser *p) {
    p->depth--;
}

struct node *parser_node(struct parser *p, enum node_kind kind, const struct token *at) {
    struct node *const node = region_alloc(p->region, 1, sizeof *node);
    node->kind = kind;
    node->line = at->line;
    node->column = at->column;
    return node;
}

void parser_push(struct parser *p, struct node_list *list, struct node *node) {
    /* the capacity is the next power of two, so it needs no field */
    if ((list->count & (list->count - 1)) == 0) {
        struct node **const items =
            region_alloc(p->region, list->count ? list->count * 2 : 1, sizeof *items);
        if (list->count) memcpy(items, list->items, list->count * sizeof *items);
        list->items = items;
    }
    list->items[list->count++] = node;
}

const struct text *parser_text(struct parser *p, const struct token *token) {
    return value_slice(p->region, token->text, token->len).as.text;
}

int32_t parser_name(struct parser *p, const struct token *token) {
    const struct value *const known = dict_get_text(p->names, token->text, token->len);
    if (known) return (int32_t)known->as.integer;
    const int32_t id = (int32_t)p->names->count;
    dict_set(p->region, p->names, value_slice(p->region, token->text, token->len), value_int(id));
    return id;
}

/* ---- statements ---- */

static enum status parse_body(struct parser *p, const char *const *ends, struct node_list *out);

static enum status expect_block_end(struct parser *p) {
    if (parser_token(p, 0)->kind != TOKEN_BLOCK_END) return parser_fail_expected(p, "%}");
    p->at++;
    return STATUS_OK;
}

/* The body of a block, up to and with its end tag. */
static enum status parse_until(struct parser *p, const char *end, struct node_list *out) {
    const char *const ends[] = {end, NULL};
    TRY(expect_block_end(p));
    TRY(parse_body(p, ends, out));
    p->at++;
    return STATUS_OK;
}

static enum status parse_if(struct parser *p, const struct token *at, struct node **out) {
    static const char *const ENDS[] = {"elif", "else", "endif", NULL};
    struct node *const node = parser_node(p, NODE_IF, at);
    size_t capacity = 0;
    do {
        if (node->as.choice.count == capacity) {
            capacity = capacity ? capacity * 2 : 1;
            struct branch *const more = region_alloc(p->region, capacity, sizeof *more);
            if (node->as.choice.count)
                memcpy(more, node->as.choice.branches, node->as.choice.count * sizeof *more);
            node->as.choice.branches = more;
        }
        struct branch *const branch = &node->as.choice.branches[node->as.choice.count++];
        TRY(parse_tuple(p, false, &branch->test));
        TRY(expect_block_end(p));
        TRY(parse_body(p, ENDS, &branch->body));
    } while (parser_skip_name(p, "elif"));
    if (parser_skip_name(p, "else")) {
        TRY(parse_until(p, "endif", &node->as.choice.otherwise));
    } else {
        p->at++;
    }
    *out = node;
    return STATUS_OK;
}

static enum status parse_for(struct parser *p, const struct token *at, struct node **out) {
    static const char *const ENDS[] = {"endfor", "else", NULL};
    struct node *const node = parser_node(p, NODE_FOR, at);
    TRY(parse_target(p, false, &node->as.loop.target));
    if (!parser_skip_name(p, "in")) return parser_fail_expected(p, "\"in\"");
    TRY(parse_tuple(p, false, &node->as.loop.iterable));
    if (parser_skip_name(p, "if")) TRY(parse_expression(p, &node->as.loop.filter));
    if (parser_is_name(p, 0, "recursive")) {
        return parser_fail(p, parser_token(p, 0), STATUS_UNSUPPORTED,
                           "recursive loops are not supported");
    }
    TRY(expect_block_end(p));
    p->loops++;
    TRY(parse_body(p, ENDS, &node->as.loop.body));
    p->loops--;
    if (parser_skip_name(p, "else")) {
        TRY(parse_until(p, "endfor", &node->as.loop.otherwise));
    } else {
        p->at++;
    }
    *out = node;
    return STATUS_OK;
}

static enum status parse_set(struct parser *p, const struct token *at, struct node **out) {
    struct node *target = NULL;
    TRY(parse_target(p, true, &target));
    if (parser_skip_sign(p, "=")) {
        struct node *const node = parser_node(p, NODE_SET, at);
        node->as.set.target = target;
        TRY(parse_tuple(p, true, &node->as.set.value));
        *out = node;
        return STATUS_OK;
    }
    struct node *const node = parser_node(p, NODE_SET_BLOCK, at);
    node->as.block.target = target;
    if (parser_skip_sign(p, "|")) {
        TRY(parse_filter(p, NULL, &node->as.block.filter));
        TRY(parse_filter_chain(p, node->as.block.filter, &node->as.block.filter));
    }
    TRY(parse_until(p, "endset", &node->as.block.body));
    *out = node;
    return STATUS_OK;
}

/* Parameters, with the opening parenthesis already skipped. */
static enum status parse_signature(struct parser *p, struct signature *s) {
    size_t capacity = 0;
    while (!parser_skip_sign(p, ")")) {
        if (s->count) TRY(parser_expect_sign(p, ","));
        const struct token *const name = parser_token(p, 0);
        if (name->kind != TOKEN_NAME) return parser_fail_expected(p, "the name of a parameter");
        p->at++;
        if (s->count == capacity) {
            capacity = capacity ? capacity * 2 : 4;
            int32_t *const names = region_alloc(p->region, capacity, sizeof *names);
            struct node **const defaults = region_alloc(p->region, capacity, sizeof *defaults);
            if (s->count) memcpy(names, s->names, s->count * sizeof *names);
            if (s->count) memcpy(defaults, s->defaults, s->count * sizeof *defaults);
            s->names = names;
            s->defaults = defaults;
        }
        s->names[s->count] = parser_name(p, name);
        if (parser_skip_sign(p, "=")) {
            TRY(parse_expression(p, &s->defaults[s->count]));
        } else if (s->count && s->defaults[s->count - 1]) {
            return parser_fail(p, name, STATUS_INVALID,
                               "a parameter without default follows one with a default");
        }
        s->count++;
    }
    return STATUS_OK;
}

/* The body of a macro or call block: loops outside cannot be left from inside. */
static enum status parse_macro_body(struct parser *p, struct node *node, const char *end) {
    struct signature *const outer = p->signature;
    const int loops = p->loops;
    p->signature = &node->as.macro.signature;
    p->loops = 0;
    TRY(parse_until(p, end, &node->as.macro.body));
    p->loops = loops;
    p->signature = outer;
    return STATUS_OK;
}

static enum status parse_macro(struct parser *p, const struct token *at, struct node **out) {
    struct node *const node = parser_node(p, NODE_MACRO, at);
    const struct token *const name = parser_token(p, 0);
    if (name->kind != TOKEN_NAME) return parser_fail_expected(p, "the name of the macro");
    p->at++;
    node->as.macro.name = parser_name(p, name);
    TRY(parser_expect_sign(p, "("));
    TRY(parse_signature(p, &node->as.macro.signature));
    TRY(parse_macro_body(p, node, "endmacro"));
    *out = node;
    return STATUS_OK;
}

static enum status parse_call_block(struct parser *p, const struct token *at, struct node **out) {
    struct node *const node = parser_node(p, NODE_CALL_BLOCK, at);
    node->as.macro.name = NAME_CALLER;
    if (parser_skip_sign(p, "(")) TRY(parse_signature(p, &node->as.macro.signature));
    TRY(parse_expression(p, &node->as.macro.call));
    if (node->as.macro.call->kind != NODE_CALL) {
        return parser_fail(p, at, STATUS_INVALID,
                           "a call block needs a call, as in {% call name() %}");
    }
    TRY(parse_macro_body(p, node, "endcall"));
    *out = node;
    return STATUS_OK;
}

static enum status parse_filter_block(struct parser *p, const struct token *at, struct node **out) {
    struct node *const node = parser_node(p, NODE_FILTER_BLOCK, at);
    TRY(parse_filter(p, NULL, &node->as.block.filter));
    TRY(parse_filter_chain(p, node->as.block.filter, &node->as.block.filter));
    TRY(parse_until(p, "endfilter", &node->as.block.body));
    *out = node;
    return STATUS_OK;
}

static enum status parse_generation(struct parser *p, const struct token *at, struct node **out) {
    struct node *const node = parser_node(p, NODE_GENERATION, at);
    const int loops = p->loops;
    p->program->has_generation = true;
    p->loops = 0;
    TRY(parse_until(p, "endgeneration", &node->as.block.body));
    p->loops = loops;
    *out = node;
    return STATUS_OK;
}

static enum status parse_with(struct parser *p, const struct token *at, struct node **out) {
    struct node *const node = parser_node(p, NODE_WITH, at);
    while (parser_token(p, 0)->kind != TOKEN_BLOCK_END) {
        struct node *target = NULL, *value = NULL;
        if (node->as.with.targets.count) TRY(parser_expect_sign(p, ","));
        TRY(parse_target(p, false, &target));
        TRY(parser_expect_sign(p, "="));
        TRY(parse_expression(p, &value));
        parser_push(p, &node->as.with.targets, target);
        parser_push(p, &node->as.with.values, value);
    }
    TRY(parse_until(p, "endwith", &node->as.with.body));
    *out = node;
    return STATUS_OK;
}

static enum status parse_leave_loop(struct parser *p, const struct token *at, struct node **out) {
    const bool is_break = !strcmp(at->text, "break");
    if (!p->loops) {
        return parser_fail(p, at, STATUS_INVALID,
                           is_break ? "break stands outside of a loop"
                                    : "continue stands outside of a loop");
    }
    *out = parser_node(p, is_break ? NODE_BREAK : NODE_CONTINUE, at);
    return STATUS_OK;
}

static const struct {
    const char *name;
    enum status (*parse)(struct parser *p, const struct token *at, struct node **out);
} STATEMENTS[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"generation", parse_generation},
    {"with", parse_with},
    {"break", parse_leave_loop},
    {"continue", parse_leave_loop},
};

static enum status parse_statement(struct parser *p, struct node **out) {
    const struct token *const at = parser_token(p, 0);
    if (at->kind != TOKEN_NAME) return parser_fail_expected(p, "the name of a tag");
    for (size_t i = 0; i < COUNT_OF(STATEMENTS); i++) {
        if (strcmp(at->text, STATEMENTS[i].name)) continue;
        p->at++;
        TRY(parser_enter(p));
        TRY(STATEMENTS[i].parse(p, at, out));
        parser_leave(p);
        return expect_block_end(p);
    }
    if (!strncmp(at->text, "end", 3) || !strcmp(at->text, "else") || !strcmp(at->text, "elif")) {
        return err_set(p->e, STATUS_INVALID,
                       "line %d, column %d: the tag \"%.60s\" closes nothing here", at->line,
                       at->column, at->text);
    }
    return err_set(p->e, STATUS_UNSUPPORTED,
                   "line %d, column %d: the tag \"%.60s\" is not supported", at->line, at->column,
                   at->text);
}

static enum status parse_print(struct parser *p, const struct token *at, struct node **out) {
    struct node *const node = parser_node(p, NODE_PRINT, at);
    TRY(parse_tuple(p, true, &node->as.of));
    if (parser_token(p, 0)->kind != TOKEN_PRINT_END) return parser_fail_expected(p, "}}");
    p->at++;
    *out = node;
    return STATUS_OK;
}

static bool body_ends(const struct parser *p, const char *const *ends) {
    for (; *ends; ends++) {
        if (parser_is_name(p, 0, *ends)) return true;
    }
    return false;
}

/* The one of the tags that closes the block, as opposed to elif and else. */
static const char *closing_tag(const char *const *ends) {
    while (strncmp(*ends, "end", 3) && ends[1]) {
        ends++;
    }
    return *ends;
}

/* Statements until a tag named in `ends` (the cursor is left on its name) or, when `ends` is empty,
 * the end. */
static enum status parse_body(struct parser *p, const char *const *ends, struct node_list *out) {
    const struct token *const opened = parser_token(p, 0);
    while (true) {
        const struct token *const at = parser_token(p, 0);
        struct node *node = NULL;
        p->at++;
        if (at->kind == TOKEN_END) {
            p->at--;
            if (!*ends) return STATUS_OK;
            return err_set(p->e, STATUS_INVALID,
                           "line %d, column %d: the block that begins here lacks its \"%s\"",
                           opened->line, opened->column, closing_tag(ends));
        }
        if (at->kind == TOKEN_DATA) {
            node = parser_node(p, NODE_DATA, at);
            node->as.data = parser_text(p, at);
        } else if (at->kind == TOKEN_PRINT_BEGIN) {
            TRY(parse_print(p, at, &node));
        } else {
            ASSERT(at->kind == TOKEN_BLOCK_BEGIN);
            if (body_ends(p, ends)) return STATUS_OK;
            TRY(parse_statement(p, &node));
        }
        parser_push(p, out, node);
    }
}

enum status program_parse(struct program *p, const char *source, size_t len, struct err *e) {
    static const char *const FIXED[NAME_FIXED_COUNT] = {"loop", "caller", "varargs", "kwargs"};
    static const char *const NO_END[] = {NULL};
    struct token_stream stream = {0};
    TRY(jinja_lex(&stream, source, len, &p->region, e));
    struct parser parser = {.program = p,
                            .region = &p->region,
                            .tokens = stream.tokens,
                            .names = dict_new(&p->region),
                            .e = e};
    for (int32_t i = 0; i < NAME_FIXED_COUNT; i++) {
        const struct token token = {.text = FIXED[i], .len = strlen(FIXED[i])};
        const int32_t id = parser_name(&parser, &token);
        ASSERT(id == i);
    }
    TRY(parse_body(&parser, NO_END, &p->body));
    p->name_count = (int32_t)parser.names->count;
    p->names = region_alloc(&p->region, parser.names->count, sizeof *p->names);
    for (int32_t i = 0; i < p->name_count; i++) {
        p->names[i] = parser.names->entries[i].key.as.text;
    }
    return STATUS_OK;
}

void program_release(struct program *p) {
    if (!p) return;
    region_release(&p->region);
    *p = (struct program){0};
}
