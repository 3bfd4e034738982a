/* options.c - command-line options of the form --name VALUE, --name=VALUE and --flag.
 *
 * A table of targets drives it; an unknown option is answered with the nearest known one. */
#include "server/cli/options.h"

#include <string.h>

#include "base/mem.h"
#include "base/str.h"

static enum status unknown(const struct option_table *table, const char *name, struct err *e) {
    const char *nearest = table->options[0].name;
    for (int i = 1; i < table->count; i++) {
        if (str_distance(name, table->options[i].name) < str_distance(name, nearest)) {
            nearest = table->options[i].name;
        }
    }
    return err_set(e, STATUS_INVALID, "%.80s is not known; did you mean %s?", name, nearest);
}

static enum status add(struct option_list *list, const char *name, const char *value,
                       struct err *e) {
    FAIL_IF(list->count == OPTION_LIST_MAX, STATUS_INVALID, "%s is given more than %d times", name,
            OPTION_LIST_MAX);
    list->items[list->count++] = value;
    return STATUS_OK;
}

static enum status set(const struct option *o, const char *value, struct err *e) {
    if (o->text) *o->text = value;
    if (o->number) return str_to_i64(value, o->name, o->number, e);
    if (o->list) return add(o->list, o->name, value, e);
    return STATUS_OK;
}

static const struct option *find(const struct option_table *table, const char *argument,
                                 size_t len) {
    for (int i = 0; i < table->count; i++) {
        const char *const name = table->options[i].name;
        if (strlen(name) == len && strncmp(name, argument, len) == 0) return &table->options[i];
    }
    return NULL;
}

enum status options_parse(const struct option_table *table, int argc, char **argv, struct err *e) {
    for (int i = 1; i < argc; i++) {
        const char *const argument = argv[i];
        if (argument[0] != '-') {
            FAIL_IF(!table->rest, STATUS_INVALID, "%.80s: nothing is expected here", argument);
            TRY(add(table->rest, "the argument", argument, e));
            continue;
        }
        const size_t len = strcspn(argument, "=");
        const struct option *const o = find(table, argument, len);
        if (!o) return unknown(table, argument, e);
        if (o->flag) {
            FAIL_IF(argument[len], STATUS_INVALID, "%s takes no value", o->name);
            *o->flag = true;
            continue;
        }
        const char *value = argument[len] ? argument + len + 1 : NULL;
        if (!value && i + 1 < argc) value = argv[++i];
        FAIL_IF(!value, STATUS_INVALID, "%s needs a value", o->name);
        TRY(set(o, value, e));
    }
    return STATUS_OK;
}
