/* jinja_parser.h - what the two halves of the parser (statements, expressions) share. Private to
 * them.
 *
 * Every function that parses leaves the cursor on the first token it did not use. Nesting is
 * bounded by `depth`. */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_PARSER_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_PARSER_H

#include "engine/text/jinja_lex.h"
#include "engine/text/jinja_parse.h"

struct parser {
    struct program *program;
    struct region *region; /* of the program */
    const struct token *tokens;
    size_t at;
    int depth;
    int loops;                   /* loops that break and continue may mean here */
    struct signature *signature; /* of the innermost macro, or NULL */
    struct dict *names;          /* name -> id */
    struct err *e;
};

/* The token `ahead` places further; stays on TOKEN_END. */
const struct token *parser_token(const struct parser *p, size_t ahead);
bool parser_is_name(const struct parser *p, size_t ahead, const char *name);
bool parser_is_sign(const struct parser *p, size_t ahead, const char *sign);
/* Moves over the token if it is this one. */
bool parser_skip_name(struct parser *p, const char *name);
bool parser_skip_sign(struct parser *p, const char *sign);
enum status parser_expect_sign(struct parser *p, const char *sign);
/* Fails at a token: "line 3, column 5: <message>". */
enum status parser_fail(struct parser *p, const struct token *at, enum status code,
                        const char *message);
/* Fails at the present token: "expected X, found Y". */
enum status parser_fail_expected(struct parser *p, const char *what);

/* One level deeper, or an error. Paired with parser_leave on success. */
enum status parser_enter(struct parser *p);
void parser_leave(struct parser *p);

struct node *parser_node(struct parser *p, enum node_kind kind, const struct token *at);
void parser_push(struct parser *p, struct node_list *list, struct node *node);
const struct text *parser_text(struct parser *p, const struct token *token);
/* The id of a name; makes one if it is new. */
int32_t parser_name(struct parser *p, const struct token *token);

/* jinja_parse_expr.c */
enum status parse_expression(struct parser *p, struct node **out);
/* Expressions with commas are a tuple. `conditions`: whether `a if b else c` may stand at the top.
 */
enum status parse_tuple(struct parser *p, bool conditions, struct node **out);
/* A name, a tuple of targets, or, where allowed, ns.attribute. */
enum status parse_target(struct parser *p, bool with_namespace, struct node **out);
/* `|name(args)` with the bar already skipped. */
enum status parse_filter(struct parser *p, struct node *of, struct node **out);
enum status parse_filter_chain(struct parser *p, struct node *of, struct node **out);

#endif
