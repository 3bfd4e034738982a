/* spec_write.c - a spec, and the table of its keys, as JSON.
 *
 * By the table alone, so that what is written is what can be read (engine/spec.c). Values are
 * resolved: defaults are there too, and a size is a number of bytes. */
#include "engine/spec.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

static const char *leaf(const char *path) {
    const char *const dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static cJSON *value_to_json(const struct spec *spec, const struct spec_key *key) {
    const void *const at = (const char *)spec + key->offset;
    switch (key->type) {
    case SPEC_BOOL: return cJSON_CreateBool(*(const bool *)at);
    case SPEC_INT:
        if (key->choices && *(const int64_t *)at == SPEC_AUTO)
            return cJSON_CreateString(key->choices);
        return cJSON_CreateNumber((double)*(const int64_t *)at);
    case SPEC_BYTES: return cJSON_CreateNumber((double)*(const int64_t *)at);
    case SPEC_CAP: return spec_cap_to_json(at);
    case SPEC_FLOAT: return cJSON_CreateNumber(*(const double *)at);
    case SPEC_STRING:
    case SPEC_CHOICE: {
        const char *const text = *(char *const *)at;
        return text ? cJSON_CreateString(text) : cJSON_CreateNull();
    }
    case SPEC_STRINGS: break;
    }
    const struct spec_strings *const list = at;
    cJSON *array = cJSON_CreateArray();
    for (int64_t i = 0; i < list->count; i++) {
        cJSON_AddItemToArray(array, cJSON_CreateString(list->items[i]));
    }
    return array;
}

cJSON *spec_to_json(const struct spec *spec) {
    cJSON *object = cJSON_CreateObject();
    int64_t count = 0;
    const struct spec_key *const keys = spec_keys(&count);
    for (int64_t i = 0; i < count; i++) {
        const char *const path = keys[i].path;
        const char *const dot = strchr(path, '.');
        cJSON *parent = object;
        if (dot) {
            char *group = mem_strndup(path, (size_t)(dot - path));
            parent = cJSON_GetObjectItemCaseSensitive(object, group);
            if (!parent) parent = cJSON_AddObjectToObject(object, group);
            mem_free(group);
        }
        cJSON_AddItemToObject(parent, leaf(path), value_to_json(spec, &keys[i]));
    }
    return object;
}

static cJSON *choices_to_json(const char *choices) {
    if (!choices) return cJSON_CreateNull();
    cJSON *array = cJSON_CreateArray();
    for (const char *at = choices; at;) {
        const size_t len = strcspn(at, "|");
        char *one = mem_strndup(at, len);
        cJSON_AddItemToArray(array, cJSON_CreateString(one));
        mem_free(one);
        at = at[len] ? at + len + 1 : NULL;
    }
    return array;
}

cJSON *spec_keys_to_json(void) {
    static const char *const TYPES[] = {
        [SPEC_BOOL] = "bool",     [SPEC_INT] = "int",       [SPEC_FLOAT] = "float",
        [SPEC_STRING] = "string", [SPEC_CHOICE] = "choice", [SPEC_STRINGS] = "strings",
        [SPEC_BYTES] = "bytes",   [SPEC_CAP] = "cap",
    };
    cJSON *const array = cJSON_CreateArray();
    int64_t count = 0;
    const struct spec_key *const keys = spec_keys(&count);
    for (int64_t i = 0; i < count; i++) {
        const struct spec_key *const key = &keys[i];
        const bool number =
            key->type == SPEC_INT || key->type == SPEC_FLOAT || key->type == SPEC_BYTES;
        cJSON *one = cJSON_CreateObject();
        json_add_string(one, "path", key->path);
        json_add_string(one, "type", TYPES[key->type]);
        cJSON_AddItemToObject(one, "default", cJSON_Parse(key->preset));
        json_add_number(one, "min", number ? key->min : NAN);
        json_add_number(one, "max", number ? key->max : NAN);
        cJSON_AddItemToObject(one, "choices", choices_to_json(key->choices));
        json_add_string(one, "help", key->help);
        cJSON_AddItemToArray(array, one);
    }
    return array;
}
