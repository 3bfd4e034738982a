/* cache.c - where cached files lie and which of them go.
 *
 * The time of use is the file's modification time, set by cache_touch: access times are often
 * switched off, and a cached file is never changed after it has its name. */
#include "base/cache.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

static const int64_t BYTES_MAX_PRESET = (int64_t)32 << 30;
static const int64_t UNFINISHED_MAX_S = 24 * 3600;
static const char DIR_NAME[] = "PLIMSOLL_CACHE_DIR", MAX_NAME[] = "PLIMSOLL_CACHE_MAX";

static const char *setting(const char *name) {
    const char *const value = getenv(name);
    return value && value[0] ? value : NULL;
}

static char *choose_folder(void) {
    const char *const own = setting(DIR_NAME), *const xdg = setting("XDG_CACHE_HOME"),
                      *const home = setting("HOME");
    if (own) return mem_strdup(own);
    if (xdg) return file_join(xdg, "plimsoll");
    return home ? file_join(home, ".cache/plimsoll") : NULL;
}

enum status cache_place_find(struct cache_place *place, struct err *e) {
    *place = (struct cache_place){.bytes_max = BYTES_MAX_PRESET};
    if (setting(MAX_NAME)) TRY(str_to_bytes(setting(MAX_NAME), MAX_NAME, &place->bytes_max, e));
    place->folder = choose_folder();
    FAIL_IF(!place->folder, STATUS_INVALID,
            "there is no home folder to keep encoded data in: set %s to a folder with room for it",
            DIR_NAME);
    struct err flaw = {0};
    const enum status status = file_make_folder(place->folder, &flaw);
    FAIL_IF(status != STATUS_OK, status,
            "%s (encoded data are kept there; %s names another folder)", flaw.text, DIR_NAME);
    return STATUS_OK;
}

void cache_place_release(struct cache_place *place) {
    if (!place) return;
    mem_free(place->folder);
    *place = (struct cache_place){0};
}

void cache_place_preset(const char *folder) {
    setenv(DIR_NAME, folder, setting(DIR_NAME) == NULL);
}

void cache_touch(const char *path) {
    (void)!utimensat(AT_FDCWD, path, NULL, 0);
}

struct cached {
    char *path;
    int64_t bytes, used_ns;
};

static int compare_used(const void *a, const void *b) {
    const struct cached *const x = a, *const y = b;
    if (x->used_ns != y->used_ns) return x->used_ns < y->used_ns ? -1 : 1;
    return strcmp(x->path, y->path);
}

static void remove_unfinished(const char *path, const struct stat *info) {
    if (clock_unix_ms() / 1000 - info->st_mtim.tv_sec > UNFINISHED_MAX_S) unlink(path);
}

static size_t list_cached(const struct cache_place *place, const char *suffix,
                          struct cached **out) {
    char **names = NULL;
    size_t count = 0, capacity = 0, found = 0;
    struct err ignored = {0};
    if (file_list(place->folder, &names, &count, &ignored) != STATUS_OK) return 0;
    for (size_t i = 0; i < count; i++) {
        char *path = file_join(place->folder, names[i]);
        struct stat info;
        const bool file = lstat(path, &info) == 0 && S_ISREG(info.st_mode);
        if (file && str_ends_with(names[i], suffix)) {
            *out = mem_grow(*out, found, &capacity, sizeof **out);
            (*out)[found++] =
                (struct cached){path, info.st_size,
                                info.st_mtim.tv_sec * INT64_C(1000000000) + info.st_mtim.tv_nsec};
            continue;
        }
        if (file && strstr(names[i], ".tmp.")) remove_unfinished(path, &info);
        mem_free(path);
    }
    file_names_free(names, count);
    return found;
}

void cache_trim(const struct cache_place *place, const char *suffix, const char *keep) {
    struct cached *items = NULL;
    const size_t count = list_cached(place, suffix, &items);
    int64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += items[i].bytes;
    }
    if (count) qsort(items, count, sizeof *items, compare_used);
    for (size_t i = 0; i < count; i++) {
        const bool kept = strcmp(items[i].path, keep) == 0;
        if (bytes > place->bytes_max && !kept && unlink(items[i].path) == 0)
            bytes -= items[i].bytes;
        mem_free(items[i].path);
    }
    mem_free(items);
}
