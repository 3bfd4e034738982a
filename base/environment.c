/* environment.c - see environment.h.
 *
 * An empty value counts as none: it is how people switch a variable off in scripts. */
#include "base/environment.h"

#include <stdlib.h>

const char *environment(const char *name) {
    const char *const value = getenv(name);
    return value && value[0] ? value : 0;
}
