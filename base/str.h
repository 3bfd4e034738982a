/* str.h - a growable byte string, and numbers from text.
 *
 * Always terminated, may hold NUL bytes: `len` is the truth. */
#ifndef PLIMSOLL_BASE_STR_H
#define PLIMSOLL_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Zeroed means empty; `data` is NULL until the first byte (use str_text for a string that is never
 * NULL). */
struct str {
    char *data;
    size_t len;
    size_t capacity;
};

/* Frees the contents; the zeroed string can be used again. */
void str_release(struct str *s);
/* Empties, keeps the memory. */
void str_clear(struct str *s);
/* Cuts to `len` bytes, which must not be more than there are. */
void str_truncate(struct str *s, size_t len);
void str_append(struct str *s, const char *text);
void str_append_bytes(struct str *s, const void *bytes, size_t count);
void str_append_char(struct str *s, char c);
void str_appendf(struct str *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends one Unicode code point as UTF-8; `code` must be below 0x110000. */
void str_append_utf8(struct str *s, uint32_t code);
/* The text, "" when empty. Points into the string. */
const char *str_text(const struct str *s);
/* Takes the text out; the caller frees it with mem_free. */
char *str_take(struct str *s);
/* A new formatted string. Caller frees with mem_free. */
char *str_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

bool str_equal(const char *a, const char *b); /* NULL equals only NULL */
bool str_starts_with(const char *text, const char *prefix);
bool str_ends_with(const char *text, const char *suffix);

/* The whole text as a number; anything left over, out of range or not finite is an error that names
 * `what`. */
enum status str_to_i64(const char *text, const char *what, int64_t *out, struct err *e);
enum status str_to_f64(const char *text, const char *what, double *out, struct err *e);

/* "24 GiB", "900MB", "1.5g", "4096" -> bytes (K, M, G, T; iB and bare letters are powers of 1024, B
 * alone of 1000). */
enum status str_to_bytes(const char *text, const char *what, int64_t *out, struct err *e);

/* Bytes as people read them: "1.50 GiB". Returns `buffer`. */
const char *str_bytes(int64_t bytes, char buffer[24]);

/* Levenshtein distance, for "did you mean". Texts longer than 63 bytes count as far away. */
int str_distance(const char *a, const char *b);

/* Decodes one code point of UTF-8 at text[0..len). Returns its length in bytes, or 0 when it is not
 * valid UTF-8 (overlong, surrogate, truncated, above 0x10FFFF). */
int utf8_decode(const char *text, size_t len, uint32_t *code);
/* Length of the longest valid UTF-8 prefix. */
size_t utf8_valid_prefix(const char *text, size_t len);

#endif
