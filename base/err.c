/* err.c - filling and naming errors.
 *
 * Kept free of allocation so that it works when memory is what ran out. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const STATUS_NAMES[] = {
    [STATUS_OK] = "ok",
    [STATUS_INVALID] = "invalid",
    [STATUS_NOT_FOUND] = "not_found",
    [STATUS_UNSUPPORTED] = "unsupported",
    [STATUS_CONFLICT] = "conflict",
    [STATUS_IO] = "io_error",
    [STATUS_NO_SPACE] = "no_space",
    [STATUS_OOM] = "out_of_memory",
    [STATUS_INTERRUPTED] = "interrupted",
    [STATUS_TIMEOUT] = "timeout",
    [STATUS_DEVICE] = "device_error",
    [STATUS_LOST] = "rank_lost",
    [STATUS_INTERNAL] = "internal_error",
};
_Static_assert(sizeof STATUS_NAMES / sizeof *STATUS_NAMES == STATUS_COUNT,
               "a name for every status");

enum status err_set(struct err *e, enum status status, const char *format, ...) {
    ASSERT(status != STATUS_OK);
    if (!e || e->status != STATUS_OK) return e ? e->status : status;
    e->status = status;
    e->param[0] = 0;
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return status;
}

enum status err_set_param(struct err *e, enum status status, const char *param, const char *format,
                          ...) {
    ASSERT(status != STATUS_OK);
    if (!e || e->status != STATUS_OK) return e ? e->status : status;
    e->status = status;
    snprintf(e->param, sizeof e->param, "%s", param);
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return status;
}

enum status err_prefix(struct err *e, const char *format, ...) {
    if (!e || e->status == STATUS_OK) return e ? e->status : STATUS_INTERNAL;
    char head[ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(head, sizeof head, format, args);
    va_end(args);
    char whole[2 * ERR_TEXT_MAX + 4];
    snprintf(whole, sizeof whole, "%s: %s", head, e->text);
    memcpy(e->text, whole, sizeof e->text - 1);
    e->text[sizeof e->text - 1] = 0;
    return e->status;
}

void err_clear(struct err *e) {
    if (e) *e = (struct err){0};
}

const char *status_name(enum status status) {
    ASSERT(status >= STATUS_OK && status < STATUS_COUNT);
    return STATUS_NAMES[status];
}

enum status status_from_name(const char *name) {
    for (int i = 0; i < STATUS_COUNT; i++) {
        if (strcmp(STATUS_NAMES[i], name) == 0) return (enum status)i;
    }
    return STATUS_COUNT;
}

_Noreturn void assert_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "plimsoll: internal error: %s does not hold (%s:%d)\n", condition, file, line);
    abort();
}
