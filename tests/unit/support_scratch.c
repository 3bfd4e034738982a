/* support_scratch.c - folders for tests, below the system's folder for temporary files.
 *
 * A failure here is not a result of the test but a broken machine, so it stops the program. */
#include "tests/unit/support_scratch.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"

char *scratch_new(void) {
    const char *const base = getenv("TMPDIR");
    char *folder = file_join(base ? base : "/tmp", "plimsoll-test-XXXXXX");
    ASSERT(mkdtemp(folder));
    return folder;
}

void scratch_free(char *folder) {
    struct err e = {0};
    ASSERT(file_remove_all(folder, &e) == STATUS_OK);
    mem_free(folder);
}

char *scratch_write(const char *folder, const char *name, const void *bytes, size_t count) {
    struct err e = {0};
    char *path = file_join(folder, name);
    ASSERT(file_write_atomic(path, bytes, count, &e) == STATUS_OK);
    return path;
}
