/* overhead.c - one small file a device, and the last measurement counts.
 *
 * The name is the device's own (measure.h), so another card, processor or library starts anew. */
#include "engine/train/overhead.h"

#include "base/file.h"
#include "base/mem.h"
#include "engine/train/measure.h"

enum { FILE_BYTES_MAX = 4096 };

void overhead_remember(const struct session *s) {
    struct device_view view = {0};
    struct err ignored = {0};
    char name[RATES_NAME_MAX], *path = NULL;
    if (!s->device->computes || s->device->kind != DEVICE_CUDA) return;
    if (device_books_look(s, &view, &ignored) != STATUS_OK || view.overhead < 0) return;
    rates_name(s->device, name);
    if (measure_file("overhead", name, &path, &ignored) != STATUS_OK) return;
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "device", name);
    json_add_i64(json, "bytes", view.overhead);
    (void)json_write_file(path, json, &ignored);
    cJSON_Delete(json);
    mem_free(path);
}

int64_t overhead_recall(const char *name) {
    struct err ignored = {0};
    cJSON *json = NULL;
    char *path = NULL;
    int64_t bytes = -1;
    if (measure_file("overhead", name, &path, &ignored) != STATUS_OK) return -1;
    if (json_read_file(path, FILE_BYTES_MAX, &json, &ignored) == STATUS_OK)
        (void)json_get_i64(json, "bytes", &bytes, &ignored);
    cJSON_Delete(json);
    mem_free(path);
    return bytes < 0 ? -1 : bytes;
}
