/* options.h - command-line options, from a table of names and targets.
 *
 * Values point into argv, so nothing has to be released. */
#ifndef PLIMSOLL_SERVER_CLI_OPTIONS_H
#define PLIMSOLL_SERVER_CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { OPTION_LIST_MAX = 32 };

/* Values of an option that may be given more than once. Points into argv. */
struct option_list {
    const char *items[OPTION_LIST_MAX];
    int count;
};

/* One option: exactly one of the targets is set. */
struct option {
    const char *name; /* with its dashes */
    const char **text;
    int64_t *number;
    bool *flag;
    struct option_list *list;
};

/* Fills the targets. What is no option goes into `rest` (NULL: nothing may be left). Errors name
 * the option, and for an unknown one the nearest known. */
struct option_table {
    const struct option *options;
    int count;
    struct option_list *rest;
};
enum status options_parse(const struct option_table *table, int argc, char **argv, struct err *e);

#endif
