/* st_folder.c - the weights of a model folder: which files they are, and that the files hold what
 * the index says.
 *
 * Owns the order of choice: the index wins, then model.safetensors, then a complete numbered set.
 * Whatever is missing or contradicts itself is refused, never skipped: a shard left out would train
 * a model with random weights. The index's total_size is not looked at, because published ones are
 * often wrong and the shards' own headers are exact. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/io/safetensors.h"
#include "engine/io/st_internal.h"

enum { INDEX_MAX = 64 << 20, SHARDS_MAX = 4096, NAMED_MAX = 5 };

static const char INDEX_NAME[] = "model.safetensors.index.json";
static const char SINGLE_NAME[] = "model.safetensors";

/* One line of the index: this tensor is in this file. Points into the JSON tree. */
struct mapping {
    const char *tensor, *file;
};

static int compare_by_tensor(const void *a, const void *b) {
    return strcmp(((const struct mapping *)a)->tensor, ((const struct mapping *)b)->tensor);
}

static int compare_by_file(const void *a, const void *b) {
    return strcmp(((const struct mapping *)a)->file, ((const struct mapping *)b)->file);
}

static enum status read_mappings(const cJSON *index, struct mapping **out, int64_t *count,
                                 struct err *e) {
    const cJSON *const map = json_member(index, "weight_map");
    FAIL_IF(!cJSON_IsObject(map) || !map->child, STATUS_INVALID, "it has no weight_map");
    size_t n = 0, capacity = 0;
    for (const cJSON *item = map->child; item; item = item->next) {
        FAIL_IF(!cJSON_IsString(item), STATUS_INVALID, "tensor \"%.200s\": expected a file name",
                item->string);
        FAIL_IF(!file_name_is_plain(item->valuestring), STATUS_INVALID,
                "tensor \"%.200s\": \"%.200s\" is not a plain file name", item->string,
                item->valuestring);
        *out = mem_grow(*out, n, &capacity, sizeof **out);
        (*out)[n++] = (struct mapping){item->string, item->valuestring};
        *count = (int64_t)n;
    }
    return STATUS_OK;
}

/* `mappings` is sorted by file. Opens each file once; the missing ones are named together. */
static enum status add_shards(struct st_set *set, const char *folder,
                              const struct mapping *mappings, int64_t count, struct err *e) {
    struct str missing = {0};
    int64_t missing_count = 0, shards = 0;
    enum status status = STATUS_OK;
    for (int64_t i = 0; i < count && status == STATUS_OK; i++) {
        if (i && strcmp(mappings[i].file, mappings[i - 1].file) == 0) continue;
        char *path = file_join(folder, mappings[i].file);
        if (++shards > SHARDS_MAX) {
            status = err_set(e, STATUS_INVALID, "it names more than %d files", SHARDS_MAX);
        } else if (!file_exists(path)) {
            if (++missing_count <= NAMED_MAX) {
                str_appendf(&missing, "%s%s", missing.len ? ", " : "", mappings[i].file);
            }
        } else if (missing_count == 0) {
            status = st_add_file(set, path, e);
        }
        mem_free(path);
    }
    if (status == STATUS_OK && missing_count) {
        status = err_set(e, STATUS_NOT_FOUND,
                         "%lld of the files it names are missing: %s%s; download them again",
                         (long long)missing_count, missing.data,
                         missing_count > NAMED_MAX ? ", ..." : "");
    }
    str_release(&missing);
    return status;
}

/* Both sorted by tensor: every listed tensor is in its file, and nothing else is in the files. */
static enum status compare_with_index(const struct st_set *set, const struct mapping *mappings,
                                      int64_t count, struct err *e) {
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        const char *const name = mappings[i].tensor;
        FAIL_IF(i && strcmp(name, mappings[i - 1].tensor) == 0, STATUS_INVALID,
                "tensor \"%.200s\" is listed twice", name);
        const int order = at < set->count ? strcmp(set->tensors[at].name, name) : 1;
        FAIL_IF(order > 0, STATUS_INVALID, "tensor \"%.200s\" is listed, but %s does not hold it",
                name, mappings[i].file);
        FAIL_IF(order < 0, STATUS_INVALID, "tensor \"%s\" is in %s, but not listed",
                set->tensors[at].name, set->tensors[at].file);
        FAIL_IF(strcmp(file_base_name(set->tensors[at].file), mappings[i].file) != 0,
                STATUS_INVALID, "tensor \"%.200s\" is listed in %s, but it is in %s", name,
                mappings[i].file, set->tensors[at].file);
        at++;
    }
    FAIL_IF(at < set->count, STATUS_INVALID, "tensor \"%s\" is in %s, but not listed",
            set->tensors[at].name, set->tensors[at].file);
    return STATUS_OK;
}

static enum status read_index(const char *path, cJSON **out, struct err *e) {
    struct str text = {0};
    enum status status = file_read(path, INDEX_MAX, &text, e);
    if (status == STATUS_OK) status = st_check_json(str_text(&text), text.len, path, e);
    if (status == STATUS_OK) status = json_parse(str_text(&text), text.len, path, out, e);
    str_release(&text);
    return status;
}

static enum status open_by_index(struct st_set *set, const char *folder, const char *path,
                                 struct err *e) {
    cJSON *index = NULL;
    struct mapping *mappings = NULL;
    int64_t count = 0;
    enum status status = read_index(path, &index, e);
    if (status != STATUS_OK) return status;
    GUARD(read_mappings(index, &mappings, &count, e));
    qsort(mappings, (size_t)count, sizeof *mappings, compare_by_file);
    GUARD(add_shards(set, folder, mappings, count, e));
    GUARD(st_finish(set, e));
    qsort(mappings, (size_t)count, sizeof *mappings, compare_by_tensor);
    GUARD(compare_with_index(set, mappings, count, e));
done:
    mem_free(mappings);
    cJSON_Delete(index);
    return status == STATUS_OK ? status : err_prefix(e, "%s", path);
}

/* "model-00002-of-00005.safetensors" -> 2 and 5. */
static bool is_numbered(const char *name, int *number, int *of) {
    int end = 0;
    if (sscanf(name, "model-%5d-of-%5d.safetensors%n", number, of, &end) != 2) return false;
    if (end == 0 || name[end] || *number < 1 || *of < 1 || *number > *of) return false;
    char *spelled = str_format("model-%05d-of-%05d.safetensors", *number, *of);
    const bool same = strcmp(spelled, name) == 0;
    mem_free(spelled);
    return same;
}

static enum status open_numbered(struct st_set *set, const char *folder, int of, struct err *e) {
    FAIL_IF(of > SHARDS_MAX, STATUS_INVALID,
            "%s: its weights would be in %d files, the limit is %d", folder, of, SHARDS_MAX);
    for (int i = 1; i <= of; i++) {
        char *name = str_format("model-%05d-of-%05d.safetensors", i, of);
        char *path = file_join(folder, name);
        const enum status status =
            file_exists(path) ? st_add_file(set, path, e)
                              : err_set(e, STATUS_NOT_FOUND, "%s: %s is missing; download it again",
                                        folder, name);
        mem_free(path);
        mem_free(name);
        if (status != STATUS_OK) return status;
    }
    return st_finish(set, e);
}

/* What a folder without readable weights does hold, for the error. */
static enum status nothing_found(const char *folder, char **names, size_t count, struct err *e) {
    for (size_t i = 0; i < count; i++) {
        const char *const name = names[i];
        if (str_ends_with(name, ".bin") || str_ends_with(name, ".gguf") ||
            str_ends_with(name, ".pt") || str_ends_with(name, ".pth")) {
            return err_set(e, STATUS_NOT_FOUND,
                           "%s holds %s; such files are not read, only safetensors "
                           "(model.safetensors, or shards with %s)",
                           folder, name, INDEX_NAME);
        }
    }
    return err_set(e, STATUS_NOT_FOUND,
                   "%s has no weights: neither %s nor %s nor model-0000i-of-0000n.safetensors",
                   folder, INDEX_NAME, SINGLE_NAME);
}

static enum status open_by_names(struct st_set *set, const char *folder, struct err *e) {
    char **names = NULL;
    size_t count = 0;
    int of = 0;
    TRY(file_list(folder, &names, &count, e));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        int number = 0, total = 0;
        if (!is_numbered(names[i], &number, &total)) continue;
        if (of && of != total) {
            status = err_set(e, STATUS_INVALID,
                             "%s: shards of two sets, of %d and of %d files, and no %s to say "
                             "which",
                             folder, of, total, INDEX_NAME);
        }
        of = total;
    }
    if (status == STATUS_OK && of) status = open_numbered(set, folder, of, e);
    if (status == STATUS_OK && !of) status = nothing_found(folder, names, count, e);
    file_names_free(names, count);
    return status;
}

enum status st_open_folder(struct st_set *set, const char *folder, struct err *e) {
    *set = (struct st_set){0};
    FAIL_IF(!file_is_folder(folder), STATUS_NOT_FOUND, "%s is not a folder", folder);
    char *index = file_join(folder, INDEX_NAME);
    char *single = file_join(folder, SINGLE_NAME);
    enum status status;
    if (file_exists(index)) {
        status = open_by_index(set, folder, index, e);
    } else if (file_exists(single)) {
        status = st_open_file(set, single, e);
    } else {
        status = open_by_names(set, folder, e);
    }
    if (status != STATUS_OK) st_close(set);
    mem_free(index);
    mem_free(single);
    return status;
}
