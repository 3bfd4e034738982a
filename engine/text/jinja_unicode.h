/* jinja_unicode.h - what Python's strings know about characters: white space, letter case, what can
 * be printed, and lengths in code points. All texts here are valid UTF-8; the readers of templates
 * and JSON see to that. */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_UNICODE_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "engine/text/unicode.h"

/* Python's str.isspace: Unicode white space and U+001C..U+001F. */
bool python_is_space(uint32_t code);
bool unicode_is_digit(
    uint32_t code); /* decimal digits and superscripts, as str.isdigit; not fractions */

/* Appends the letter in the other case; one letter may become several (U+00DF -> "SS"). */
void unicode_append_upper(struct str *out, uint32_t code);
void unicode_append_title(struct str *out, uint32_t code);

/* Number of code points. */
size_t utf8_count(const char *text, size_t len);
/* Bytes of the character that starts here, from its first byte. */
int utf8_length_at(const char *text);
/* Bytes of the first `chars` code points, or `len` if there are fewer. */
size_t utf8_skip(const char *text, size_t len, size_t chars);
/* Length of the text without its trailing white space. */
size_t unicode_rstrip(const char *text, size_t len);
/* Bytes of leading white space. */
size_t unicode_lstrip(const char *text, size_t len);

#endif
