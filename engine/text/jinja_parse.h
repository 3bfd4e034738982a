/* jinja_parse.h - tokens to a tree.
 *
 * What is not supported is refused by name, with line and column. */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_PARSE_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_PARSE_H

#include "base/err.h"
#include "engine/text/jinja_ast.h"

/* Parses the whole source. Release with program_release, also after an error. */
enum status program_parse(struct program *p, const char *source, size_t len, struct err *e);
void program_release(struct program *p);

#endif
