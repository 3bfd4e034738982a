/* remember.c - a file named by the hash of spec and device.
 *
 * When the spec was made is no part of what it asks for, so created_at is left out. */
#include "engine/train/remember.h"

#include "base/cache.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/io/hash.h"

enum { FILE_BYTES_MAX = 1 << 16 };
static const char SUFFIX[] = ".layout.json";

/* NULL where there is no cache folder. Caller frees. */
static char *path_of(const struct spec *spec, const struct device *device,
                     struct cache_place *place) {
    struct err ignored = {0};
    if (cache_place_find(place, &ignored) != STATUS_OK) return NULL;
    struct str text = {0};
    struct hash_stream hash;
    unsigned char bytes[HASH_BYTES];
    char hex[HASH_HEX_CHARS + 1];
    cJSON *const json = spec_to_json(spec);
    cJSON_DeleteItemFromObjectCaseSensitive(json, "created_at");
    json_append(&text, json);
    hash_open(&hash);
    hash_add_text(&hash, str_text(&text));
    hash_add_text(&hash, device->detail);
    hash_result(&hash, bytes);
    hash_close(&hash);
    hash_hex(bytes, hex);
    cJSON_Delete(json);
    str_release(&text);
    char *name = str_format("%s%s", hex, SUFFIX);
    char *path = file_join(place->folder, name);
    mem_free(name);
    return path;
}

bool remember_find(const struct spec *spec, const struct device *device, struct layout *layout) {
    struct cache_place place = {0};
    struct err ignored = {0};
    cJSON *json = NULL;
    struct layout found = *layout;
    char *path = path_of(spec, device, &place);
    const bool there = path && json_read_file(path, FILE_BYTES_MAX, &json, &ignored) == STATUS_OK &&
                       layout_from_json(&found, json, &ignored) == STATUS_OK &&
                       found.micro_rows >= 1 && found.micro_rows <= layout->micro_rows &&
                       found.eval_rows >= 1 && found.loss_chunk_rows >= 1 &&
                       found.sample_tokens >= 1;
    if (there) {
        *layout = found;
        cache_touch(path);
    }
    cJSON_Delete(json);
    mem_free(path);
    cache_place_release(&place);
    return there;
}

void remember_keep(const struct spec *spec, const struct device *device,
                   const struct layout *layout) {
    struct cache_place place = {0};
    struct err ignored = {0};
    char *path = path_of(spec, device, &place);
    cJSON *const json = layout_to_json(layout);
    if (path) (void)json_write_file(path, json, &ignored);
    cJSON_Delete(json);
    mem_free(path);
    cache_place_release(&place);
}
