/* jinja_filters.h - the table of filters on sequences, for jinja_filter, which looks into it after
 * its own.
 *
 * Private to the two files of filters. */
#ifndef PLIMSOLL_ENGINE_TEXT_JINJA_FILTERS_H
#define PLIMSOLL_ENGINE_TEXT_JINJA_FILTERS_H

#include "engine/text/jinja_render.h"

enum { LIST_FILTER_COUNT = 20 };
extern const struct builtin LIST_FILTERS[LIST_FILTER_COUNT];

#endif
