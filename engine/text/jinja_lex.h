/* jinja_lex.h - template source to tokens: where white space is trimmed, where a tag begins, what a
 * literal says.
 *
 * White space control is decided here and nowhere else, as Jinja 3 does with trim_blocks and
 * lstrip_blocks on: the first newline after `%}` or `#}` goes, blanks from the start of a line to
 * `{%` or `{#` go, `-` takes all white space on its side, `+` keeps it. One trailing newline of the
 * source is dropped, CRLF and CR become LF. */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_LEX_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_LEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/region.h"

enum token_kind {
    TOKEN_END,
    TOKEN_DATA, /* text outside of tags */
    TOKEN_PRINT_BEGIN,
    TOKEN_PRINT_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING, /* text is already decoded */
    TOKEN_INTEGER,
    TOKEN_FLOAT,
    TOKEN_SIGN, /* an operator or bracket: its spelling is the text */
};

struct token {
    enum token_kind kind;
    int32_t line, column; /* from 1; columns count code points */
    const char *text;     /* terminated; points into the region */
    size_t len;
};

struct token_stream {
    struct token *tokens; /* the last one is TOKEN_END */
    size_t count;
};

/* Tokens of the whole source, in memory of `region`. Errors begin with "line L, column C: ". */
enum status jinja_lex(struct token_stream *out, const char *source, size_t len,
                      struct region *region, struct err *e);

#endif
