/* jinja_methods.h - the tables of methods, between the files that fill them.
 *
 * Which table serves a value is decided in jinja_method (jinja_builtin.h). */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_METHODS_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_METHODS_H

#include "engine/text/jinja_render.h"

enum { STRING_METHOD_COUNT = 29 };
extern const struct builtin STRING_METHODS[STRING_METHOD_COUNT];

/* Python's isupper and islower: some letter has case, and none has the other one. */
bool text_is_in_case(const struct text *text, bool upper);

#endif
