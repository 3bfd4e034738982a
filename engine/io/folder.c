/* folder.c - folders that appear at once.
 *
 * Owns the name of the temporary folder, the same pattern as that of a temporary file, so that one
 * sweep finds both. An existing folder is exchanged with the new one in one step where the file
 * system can, because between "away with the old" and "in with the new" a crash would leave
 * neither. */
#include "engine/io/folder.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum status folder_begin(const char *path, char **temporary, struct err *e) {
    char *name = str_format("%s.tmp.%ld", path, (long)getpid());
    enum status status = file_remove_all(name, e);
    if (status == STATUS_OK) status = file_make_folder(name, e);
    if (status == STATUS_OK) {
        *temporary = name;
    } else {
        mem_free(name);
    }
    return status;
}

enum status folder_commit(char **temporary, const char *path, struct err *e) {
    ASSERT(*temporary);
    enum status status = file_sync_folder(*temporary, e);
    if (status == STATUS_OK) {
        status = file_exists(path) ? file_exchange(*temporary, path, e)
                                   : file_rename(*temporary, path, e);
    }
    folder_abort(temporary); /* what was at `path` before, or what could not be published */
    return status;
}

void folder_abort(char **temporary) {
    if (!temporary || !*temporary) return;
    struct err ignored = {0}; /* what cannot be removed now is swept at the next start */
    file_remove_all(*temporary, &ignored);
    mem_free(*temporary);
    *temporary = NULL;
}

static bool is_leftover(const char *name) {
    const char *at = NULL;
    for (const char *next = strstr(name, ".tmp."); next; next = strstr(next + 1, ".tmp.")) {
        at = next + strlen(".tmp.");
    }
    return at && *at && strspn(at, "0123456789") == strlen(at);
}

enum status folder_sweep(const char *parent, struct err *e) {
    char **names = NULL;
    size_t count = 0;
    if (!file_exists(parent)) return STATUS_OK;
    TRY(file_list(parent, &names, &count, e));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        if (!is_leftover(names[i])) continue;
        char *path = file_join(parent, names[i]);
        status = file_remove_all(path, e);
        mem_free(path);
    }
    file_names_free(names, count);
    return status;
}
