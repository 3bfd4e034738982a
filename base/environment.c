/* environment.c - see environment.h.
 *
 * An empty value counts as none: it is how people switch a variable off in scripts. */
#include "base/environment.h"

#include <stdlib.h>
#include <unistd.h>

const char *environment(const char *name) {
    const char *const value = getenv(name);
    return value && value[0] ? value : 0;
}

void environment_preset(const char *name, const char *value) {
    (void)setenv(name, value, 0);
}

void environment_leave(int exit_code) {
    _exit(exit_code);
}
