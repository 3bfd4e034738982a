/* changed.c - the spec as JSON, the keys over it, and read again.
 *
 * By way of text, because a tree that was built is not like one that was read. */
#include "engine/train/changed.h"

#include "base/str.h"

/* Members of `keys` over those of `spec`, one level deep. */
static void merge(cJSON *spec, const cJSON *keys) {
    for (const cJSON *item = keys->child; item; item = item->next) {
        cJSON *const old = cJSON_GetObjectItemCaseSensitive(spec, item->string);
        if (cJSON_IsObject(item) && cJSON_IsObject(old)) {
            merge(old, item);
            continue;
        }
        cJSON_DeleteItemFromObjectCaseSensitive(spec, item->string);
        cJSON_AddItemToObject(spec, item->string, cJSON_Duplicate(item, true));
    }
}

enum status changed_open(struct changed *c, const struct spec *spec, const cJSON *keys,
                         struct err *e) {
    cJSON *const asked = spec_to_json(spec);
    cJSON *read = NULL;
    struct str text = {0};
    *c = (struct changed){0};
    merge(asked, keys);
    json_append(&text, asked);
    enum status status = json_parse(str_text(&text), text.len, "the changed spec", &read, e);
    if (status == STATUS_OK) status = spec_parse_question(&c->spec, read, e);
    if (status == STATUS_OK) status = session_options_read(&c->options, &c->spec, e);
    cJSON_Delete(read);
    cJSON_Delete(asked);
    str_release(&text);
    return status;
}

void changed_close(struct changed *c) {
    session_options_release(&c->options);
    spec_release(&c->spec);
}
