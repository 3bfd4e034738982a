/* parts.c - finding what belongs to this program.
 *
 * /proc/self/exe names the program itself, so an installation can be moved as a whole. */
#include "server/cli/parts.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

char *parts_find(const char *named, const char *name) {
    char own[PATH_MAX];
    const ssize_t len = readlink("/proc/self/exe", own, sizeof own - 1);
    if (named) return file_exists(named) ? mem_strdup(named) : NULL;
    char *path = NULL;
    if (len > 0) {
        own[len] = 0;
        *strrchr(own, '/') = 0;
        path = file_join(own, name);
        if (file_exists(path)) return path;
        mem_free(path);
    }
    path = file_join("/usr/share/plimsoll", name);
    if (file_exists(path)) return path;
    mem_free(path);
    return NULL;
}
