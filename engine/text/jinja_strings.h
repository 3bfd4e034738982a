/* jinja_strings.h - Python's string operations on texts, for the methods and for the filters that
 * do the same.
 *
 * Lengths and positions are in code points. */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_STRINGS_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_STRINGS_H

#include "engine/text/jinja_render.h"

enum letter_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_SWAP };

/* Which words `title` sees: Python's method breaks at every non-letter, Jinja's filter only at
 * blanks and ( { [ < -. */
enum title_rule { TITLE_METHOD, TITLE_FILTER };

enum status text_change_case(struct render *r, const struct text *text, enum letter_case to,
                             enum title_rule rule, struct value *out);
/* Removes white space (characters NULL) or any of the characters from the left and/or right. */
enum status text_strip(struct render *r, const struct text *text, const struct text *characters,
                       bool left, bool right, struct value *out);
/* At most `count` replacements, all when negative. */
enum status text_replace(struct render *r, const struct text *text, const struct text *from,
                         const struct text *to, int64_t count, struct value *out);
/* separator.join(items): every item must be a string. */
enum status text_join(struct render *r, const struct text *separator, const struct sequence *items,
                      struct value *out);
/* Byte offset of the first (or last) occurrence at or after `from`, or -1. */
int64_t text_find(const struct text *text, const struct text *part, size_t from);
int64_t text_find_last(const struct text *text, const struct text *part);
/* Lines without their ends, by Python's line boundaries. */
enum status text_lines(struct render *r, const struct text *text, bool keep_ends,
                       struct sequence **out);

#endif
