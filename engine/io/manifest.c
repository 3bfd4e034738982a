/* manifest.c - sizes and hashes of a folder's files.
 *
 * Format: {"version":1,"files":[{"name":"a/b.bin","bytes":12,"xxh3_128":"<32 hex digits>"}]},
 * sorted by name. The hash guards against broken disks and half-copied folders, not against an
 * enemy: a fast one is the right one. Names are checked on reading all the same, so that a manifest
 * never leads out of its folder. */
#include "engine/io/manifest.h"

#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/io/hash.h"

enum { MANIFEST_MAX = 16 << 20, DEPTH_MAX = 8 };

static const char MANIFEST_NAME[] = "manifest.json";

static enum status hash_file(const char *path, char hex[HASH_HEX_CHARS + 1], int64_t *bytes,
                             struct err *e) {
    struct hash_stream stream = {0};
    unsigned char hash[HASH_BYTES];
    hash_open(&stream);
    const enum status status = hash_add_file(&stream, path, bytes, e);
    hash_result(&stream, hash);
    hash_close(&stream);
    hash_hex(hash, hex);
    return status;
}

enum status manifest_measure(const char *folder, const char *name, struct manifest_entry *entry,
                             struct err *e) {
    *entry = (struct manifest_entry){0};
    FAIL_IF(strlen(name) >= sizeof entry->name, STATUS_INVALID, "%s: the name %s is too long",
            folder, name);
    strncpy(entry->name, name, sizeof entry->name - 1);
    char *const path = file_join(folder, name);
    const enum status status = hash_file(path, entry->hex, &entry->bytes, e);
    mem_free(path);
    return status;
}

/* What is being listed, and what is known of it. */
struct listing {
    const char *folder;
    const struct manifest_entry *known;
    int64_t count;
    cJSON *files;
};

static enum status take_known(const struct listing *l, const struct manifest_entry *known,
                              struct err *e) {
    char *const path = file_join(l->folder, known->name);
    int64_t bytes = 0;
    const enum status status = file_size(path, &bytes, e);
    mem_free(path);
    TRY(status);
    FAIL_IF(bytes != known->bytes, STATUS_INVALID,
            "%s/%s has %lld bytes here, and %lld for the rank that wrote it: do all ranks see the "
            "same folder?",
            l->folder, known->name, (long long)bytes, (long long)known->bytes);
    return STATUS_OK;
}

static enum status add_file(const struct listing *l, const char *name, struct err *e) {
    struct manifest_entry entry = {0};
    for (int64_t i = 0; i < l->count; i++) {
        if (strcmp(l->known[i].name, name) == 0) entry = l->known[i];
    }
    TRY(entry.name[0] ? take_known(l, &entry, e) : manifest_measure(l->folder, name, &entry, e));
    cJSON *const file = cJSON_CreateObject();
    json_add_string(file, "name", entry.name);
    json_add_i64(file, "bytes", entry.bytes);
    json_add_string(file, "xxh3_128", entry.hex);
    cJSON_AddItemToArray(l->files, file);
    return STATUS_OK;
}

static enum status add_folder(const struct listing *l, const char *below, int depth, struct err *e);

/* `name` is relative to the top; `below` ends in a slash or is empty. */
static enum status add_entry(const struct listing *l, const char *below, const char *entry,
                             int depth, struct err *e) {
    char *name = str_format("%s%s", below, entry);
    char *path = file_join(l->folder, name);
    enum status status = STATUS_OK;
    if (file_is_folder(path)) {
        char *inner = str_format("%s/", name);
        status = add_folder(l, inner, depth + 1, e);
        mem_free(inner);
    } else {
        status = add_file(l, name, e);
    }
    mem_free(path);
    mem_free(name);
    return status;
}

static enum status add_folder(const struct listing *l, const char *below, int depth,
                              struct err *e) {
    const char *const folder = l->folder;
    FAIL_IF(depth > DEPTH_MAX, STATUS_INVALID, "%s: folders nested deeper than %d", folder,
            DEPTH_MAX);
    char *path = file_join(folder, below);
    char **names = NULL;
    size_t count = 0;
    enum status status = file_list(path, &names, &count, e);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        if (depth == 0 && strcmp(names[i], MANIFEST_NAME) == 0) continue;
        status = add_entry(l, below, names[i], depth, e);
    }
    file_names_free(names, count);
    mem_free(path);
    return status;
}

/* A part that a rank has written and this one does not see would be left out. */
static enum status check_known(const struct listing *l, struct err *e) {
    for (int64_t i = 0; i < l->count; i++) {
        char *const path = file_join(l->folder, l->known[i].name);
        const bool there = file_exists(path);
        mem_free(path);
        FAIL_IF(!there, STATUS_INVALID,
                "%s/%s was written by another rank and is not here: do all ranks see the same "
                "folder?",
                l->folder, l->known[i].name);
    }
    return STATUS_OK;
}

enum status manifest_write(const char *folder, const struct manifest_entry *known, int64_t count,
                           struct err *e) {
    cJSON *manifest = cJSON_CreateObject();
    json_add_i64(manifest, "version", 1);
    const struct listing l = {folder, known, count, cJSON_AddArrayToObject(manifest, "files")};
    char *path = file_join(folder, MANIFEST_NAME);
    enum status status = check_known(&l, e);
    if (status == STATUS_OK) status = add_folder(&l, "", 0, e);
    if (status == STATUS_OK) status = json_write_file(path, manifest, e);
    mem_free(path);
    cJSON_Delete(manifest);
    return status;
}

/* Every part of the name is a plain one. */
static bool name_stays_inside(const char *name) {
    for (const char *at = name;;) {
        const size_t len = strcspn(at, "/");
        char *part = mem_strndup(at, len);
        const bool plain = file_name_is_plain(part);
        mem_free(part);
        if (!plain) return false;
        if (!at[len]) return true;
        at += len + 1;
    }
}

static enum status verify_file(const char *folder, const cJSON *file, struct err *e) {
    const char *name = NULL, *expected = NULL;
    int64_t bytes_expected = -1, bytes = 0;
    char hex[HASH_HEX_CHARS + 1];
    TRY(json_get_string(file, "name", &name, e));
    TRY(json_get_string(file, "xxh3_128", &expected, e));
    TRY(json_get_i64(file, "bytes", &bytes_expected, e));
    FAIL_IF(!name || !expected || bytes_expected < 0, STATUS_INVALID,
            "an entry lacks its name, bytes or xxh3_128");
    FAIL_IF(!name_stays_inside(name), STATUS_INVALID, "\"%.200s\" is not a name in this folder",
            name);
    char *path = file_join(folder, name);
    struct err inner = {0};
    const enum status status = hash_file(path, hex, &bytes, &inner);
    mem_free(path);
    FAIL_IF(status == STATUS_NOT_FOUND, STATUS_INVALID, "%s is missing", name);
    FAIL_IF(status != STATUS_OK, status, "%s", inner.text);
    FAIL_IF(bytes != bytes_expected, STATUS_INVALID, "%s has %lld bytes, %lld were written", name,
            (long long)bytes, (long long)bytes_expected);
    FAIL_IF(strcmp(hex, expected) != 0, STATUS_INVALID,
            "%s is damaged: its contents are not what was written", name);
    return STATUS_OK;
}

enum status manifest_verify(const char *folder, int64_t part, int64_t of, struct err *e) {
    char *path = file_join(folder, MANIFEST_NAME);
    cJSON *manifest = NULL;
    int64_t version = 0, index = 0;
    enum status status = STATUS_OK;
    GUARD(json_read_file(path, MANIFEST_MAX, &manifest, e));
    GUARD(json_get_i64(manifest, "version", &version, e));
    const cJSON *const files = json_member(manifest, "files");
    GUARD_IF(version != 1 || !cJSON_IsArray(files), STATUS_INVALID,
             "it is not a manifest of version 1");
    for (const cJSON *file = files->child; file; file = file->next) {
        if (index++ % of == part) GUARD(verify_file(folder, file, e));
    }
done:
    if (status != STATUS_OK) err_prefix(e, "%s", path);
    cJSON_Delete(manifest);
    mem_free(path);
    return status;
}
