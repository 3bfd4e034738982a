/* jinja_ast.h - the tree that the parser builds and the interpreter walks. All of it, names and
 * constants included, lies in the template's one region and never changes afterwards, so that any
 * number of threads may render from it.
 *
 * Names are numbers: the parser gives every distinct name an id, and scopes compare ids. */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_AST_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_AST_H

#include "engine/text/jinja_value.h"

enum node_kind {
    /* expressions */
    NODE_CONST,
    NODE_NAME,
    NODE_ATTRIBUTE,
    NODE_ITEM,
    NODE_SLICE,
    NODE_NEGATE,
    NODE_PLUS,
    NODE_NOT,
    NODE_AND,
    NODE_OR,
    NODE_BINARY,
    NODE_COMPARE,
    NODE_CONCAT,
    NODE_CONDITION,
    NODE_LIST,
    NODE_TUPLE,
    NODE_DICT,
    NODE_CALL,
    NODE_FILTER,
    NODE_TEST,
    NODE_NAMESPACE_NAME, /* only as a target: ns.attribute */
    /* statements */
    NODE_DATA,
    NODE_PRINT,
    NODE_IF,
    NODE_FOR,
    NODE_SET,
    NODE_SET_BLOCK,
    NODE_MACRO,
    NODE_CALL_BLOCK,
    NODE_FILTER_BLOCK,
    NODE_GENERATION,
    NODE_WITH,
    NODE_BREAK,
    NODE_CONTINUE,
};

enum operation {
    OP_ADD,
    OP_SUBTRACT,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_FLOOR_DIVIDE,
    OP_MODULO,
    OP_POWER,
    OP_EQUAL,
    OP_NOT_EQUAL,
    OP_LESS,
    OP_LESS_EQUAL,
    OP_GREATER,
    OP_GREATER_EQUAL,
    OP_IN,
    OP_NOT_IN,
};

struct node_list {
    struct node **items;
    size_t count;
};

struct keyword_node {
    const struct text *name;
    struct node *value;
};

/* What stands between the parentheses of a call. */
struct call_node {
    struct node_list args;
    struct keyword_node *keywords;
    size_t keyword_count;
    struct node *star, *star_star; /* *args and **kwargs, or NULL */
};

struct signature {
    int32_t *names;         /* [count] */
    struct node **defaults; /* [count], NULL where there is none */
    size_t count;
    bool uses_caller, uses_varargs, uses_kwargs; /* the body names them */
};

struct branch {
    struct node *test;
    struct node_list body;
};

struct node {
    enum node_kind kind;
    int32_t line, column;
    union {
        struct value constant;
        int32_t name;
        const struct text *data;
        struct node *of; /* NEGATE, PLUS, NOT, PRINT */
        struct {
            struct node *of;
            const struct text *name;
        } attribute;
        struct {
            struct node *of, *index;
        } item;
        struct {
            struct node *from, *to, *step; /* each may be NULL */
        } slice;
        struct {
            enum operation op; /* BINARY */
            struct node *left, *right;
        } binary; /* and AND, OR */
        struct {
            struct node *first;
            enum operation *ops;
            struct node_list operands;
        } compare;
        struct {
            struct node *test, *yes, *no; /* no may be NULL */
        } condition;
        struct node_list list; /* LIST, TUPLE, CONCAT */
        struct {
            struct node_list keys, values;
        } dict;
        struct {
            struct node *of; /* FILTER of a filter block: NULL */
            struct call_node call;
            const struct builtin *function; /* FILTER, TEST */
            bool negated;                   /* TEST */
        } call;
        struct {
            int32_t name;
            const struct text *attribute;
        } namespace_name;
        struct {
            struct branch *branches;
            size_t count;
            struct node_list otherwise;
        } choice; /* IF */
        struct {
            struct node *target, *iterable, *filter; /* filter may be NULL */
            struct node_list body, otherwise;
        } loop;
        struct {
            struct node *target, *value;
        } set;
        struct {
            struct node *target,
                *filter; /* SET_BLOCK: filter may be NULL; FILTER_BLOCK: no target */
            struct node_list body;
        } block; /* and GENERATION */
        struct {
            int32_t name;      /* CALL_BLOCK: of "caller" */
            struct node *call; /* CALL_BLOCK */
            struct signature signature;
            struct node_list body;
        } macro;
        struct {
            struct node_list targets, values, body;
        } with;
    } as;
};

/* Names that the interpreter itself looks up or sets: always the first ids. */
enum { NAME_LOOP, NAME_CALLER, NAME_VARARGS, NAME_KWARGS, NAME_FIXED_COUNT };

/* A parsed template. Zeroed means empty. */
struct program {
    struct region region;
    struct node_list body;
    const struct text **names; /* [name_count] */
    int32_t name_count;
    bool has_generation; /* some generation block occurs */
};

#endif
