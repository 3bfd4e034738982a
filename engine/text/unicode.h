/* unicode.h - the Unicode questions that tokenizers ask. The only home of utf8proc.h.
 *
 * The answers are those of the languages that tokenizer files were written for (Rust's char methods
 * and Oniguruma), not those of the C library, whose answers depend on the locale. Invalid code
 * points belong to no class. */
#ifndef PLIMSOLL_ENGINE_TEXT_UNICODE_H
#define PLIMSOLL_ENGINE_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* White_Space: 09-0D 20 85 A0 1680 2000-200A 2028 2029 202F 205F 3000; not 1C-1F, 180E, 200B, FEFF.
 */
bool unicode_is_space(uint32_t code);
/* General category N: decimal digits, letter numbers and others, so also U+00B2 and U+00BD. */
bool unicode_is_number(uint32_t code);
/* General category P, and every ASCII punctuation character (which adds $ + < = > ^ ` | ~). */
bool unicode_is_punctuation(uint32_t code);
/* What \w means there: Alphabetic, marks, decimal digits, connector punctuation, join controls. */
bool unicode_is_word(uint32_t code);

/* What Python's str methods of the same names say of one character. */
bool unicode_is_printable(uint32_t code);
bool unicode_is_upper(uint32_t code);
bool unicode_is_lower(uint32_t code);
bool unicode_is_alpha(uint32_t code);
/* General category Nd. */
bool unicode_is_decimal(uint32_t code);
/* The one letter in the other case; letters whose case mapping is longer stay as they are. */
uint32_t unicode_simple_upper(uint32_t code);
uint32_t unicode_simple_title(uint32_t code);

/* The code point that ends right before text[at], at > 0, in valid UTF-8; *start becomes its
 * offset. */
uint32_t unicode_before(const char *text, size_t at, size_t *start);

/* Appends the lower case of each code point on its own (no context: a final sigma is not looked
 * for). */
void unicode_append_lower(struct str *out, const char *text, size_t len);

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* Appends the normal form of valid UTF-8. */
void unicode_append_normal(struct str *out, enum unicode_form form, const char *text, size_t len);

#endif
