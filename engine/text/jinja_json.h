/* jinja_json.h - JSON text to template values, exactly: 1 and 1.0 stay apart, integers of any size
 * keep their digits, keys keep their order (of doubled keys the last value wins, at the first
 * place, as in Python). Lone surrogates, NaN and anything else outside RFC 8259 are refused. */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_JSON_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_JSON_H

#include "base/err.h"
#include "base/region.h"
#include "engine/text/jinja_value.h"

/* Reads exactly one value. Errors begin with `what` and the byte they are at. The value lies in the
 * region. */
enum status jinja_json_read(struct region *region, const char *text, size_t len, const char *what,
                            struct value *out, struct err *e);

#endif
