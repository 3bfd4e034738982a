/* rows_repair.h - the text of a row with U+FFFD in place of what is no text: bytes that are not
 * UTF-8, and escapes of half a surrogate pair (case C05).
 *
 * Only on request: what is replaced is lost. */
#ifndef PLIMSOLL_ENGINE_TEXT_ROWS_REPAIR_H
#define PLIMSOLL_ENGINE_TEXT_ROWS_REPAIR_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* Appends text[0..len) to `out`; returns how many replacements there were. A stretch of bytes that
 * could begin a character but does not finish it is replaced as one, as browsers do (WHATWG). */
int64_t rows_repair(const char *text, size_t len, struct str *out);

#endif
