/* regex.h - the regular expressions that tokenizer files carry. The only home of pcre2.h.
 *
 * Files are written for Oniguruma; this compiles them for PCRE2 (JIT) with Oniguruma's meaning: \s
 * is Unicode White_Space, $ and ^ work on lines, {m,n}+ repeats. What would mean something else, or
 * is not known to mean the same, is refused by name. */
#ifndef PLIMSOLL_ENGINE_TEXT_REGEX_H
#define PLIMSOLL_ENGINE_TEXT_REGEX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct regex;       /* a compiled pattern: immutable, may be used by several threads */
struct regex_state; /* room for matching: one per thread */

/* Compiles a pattern of valid UTF-8. STATUS_UNSUPPORTED names a construct that is not supported,
 * STATUS_INVALID a broken pattern; both with the position. Caller frees with regex_free. */
enum status regex_open(struct regex **out, const char *pattern, struct err *e);
void regex_free(struct regex *r);

struct regex_state *regex_state_new(void);
void regex_state_free(struct regex_state *s);

struct regex_match {
    bool found;
    size_t from, to;
};
/* Finds the first match at or after `from` in valid UTF-8; look-behind sees the text before `from`.
 * A pattern that needs more than a bounded number of steps on
 * this text is STATUS_INVALID. */
enum status regex_find(const struct regex *r, struct regex_state *s, const char *text, size_t len,
                       size_t from, struct regex_match *match, struct err *e);

#endif
