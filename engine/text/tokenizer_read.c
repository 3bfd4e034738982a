/* tokenizer_read.c - reading parts of tokenizer.json with errors that say where:
 * "pre_tokenizer.pretokenizers[1].type".
 *
 * Every object is read with the list of keys it may have; a key that is not in the list is refused
 * by name, since ignoring it would mean guessing what it does. Nested Sequences are unrolled, with
 * a bound on their depth. */
#include "engine/text/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

static struct where where_of(const char *format, const char *a, const char *b) {
    struct where at = {0};
    char *const text = str_format(format, a, b);
    const size_t len = strlen(text);
    const size_t keep = len < sizeof at.text ? len : sizeof at.text - 1;
    memcpy(at.text, text, keep);
    mem_free(text);
    return at;
}

struct where where_root(const char *name) {
    return where_of("tokenizer.json: %s%s", name, "");
}

struct where where_key(const struct where *parent, const char *key) {
    return where_of("%s.%s", parent->text, key);
}

struct where where_index(const struct where *parent, int index) {
    char *const number = str_format("%d", index);
    const struct where at = where_of("%s[%s]", parent->text, number);
    mem_free(number);
    return at;
}

enum status json_only(const cJSON *object, const struct where *at, const char *const *keys,
                      struct err *e) {
    FAIL_IF(!cJSON_IsObject(object), STATUS_INVALID, "%s: expected an object", at->text);
    for (const cJSON *item = object->child; item; item = item->next) {
        size_t i = 0;
        while (keys[i] && strcmp(keys[i], item->string) != 0) {
            i++;
        }
        FAIL_IF(!keys[i], STATUS_UNSUPPORTED, "%s.%.80s: this key is not supported", at->text,
                item->string);
    }
    return STATUS_OK;
}

enum status json_bool_or(const cJSON *object, const char *key, bool otherwise,
                         const struct where *at, bool *out, struct err *e) {
    *out = otherwise;
    const enum status status = json_get_bool(object, key, out, e);
    return status == STATUS_OK ? status : err_prefix(e, "%s", at->text);
}

enum status json_text(const cJSON *object, const char *key, const struct where *at,
                      const char **out, struct err *e) {
    const cJSON *const item = json_member(object, key);
    FAIL_IF(!cJSON_IsString(item), STATUS_INVALID, "%s.%s: expected a string", at->text, key);
    *out = item->valuestring;
    const size_t len = strlen(*out);
    FAIL_IF(utf8_valid_prefix(*out, len) != len, STATUS_INVALID, "%s.%s: is not valid UTF-8",
            at->text, key);
    return STATUS_OK;
}

enum status refuse_type(const char *type, const struct where *at, struct err *e) {
    return err_set(e, STATUS_UNSUPPORTED, "%s.type: \"%.60s\" is not supported", at->text, type);
}

enum status read_sequence(struct tokenizer *t, const cJSON *value, const char *list,
                          const struct where *at, int depth, read_step read, struct err *e) {
    if (!value || cJSON_IsNull(value)) return STATUS_OK;
    FAIL_IF(!cJSON_IsObject(value), STATUS_INVALID, "%s: expected an object", at->text);
    const char *type = NULL;
    TRY(json_text(value, "type", at, &type, e));
    if (!str_equal(type, "Sequence")) return read(t, value, type, at, e);
    const char *const keys[] = {"type", list, NULL};
    TRY(json_only(value, at, keys, e));
    FAIL_IF(depth == STEP_DEPTH_MAX, STATUS_UNSUPPORTED, "%s: Sequences are nested too deep",
            at->text);
    const struct where list_at = where_key(at, list);
    const cJSON *const members = json_member(value, list);
    FAIL_IF(!cJSON_IsArray(members), STATUS_INVALID, "%s: expected a list", list_at.text);
    int index = 0;
    for (const cJSON *item = members->child; item; item = item->next, index++) {
        const struct where here = where_index(&list_at, index);
        FAIL_IF(!cJSON_IsObject(item), STATUS_INVALID, "%s: expected an object", here.text);
        TRY(read_sequence(t, item, list, &here, depth + 1, read, e));
    }
    return STATUS_OK;
}

enum status read_pattern(const cJSON *step, const struct where *at, struct pattern *out,
                         struct err *e) {
    static const char *const KEYS[] = {"String", "Regex", NULL};
    const cJSON *const value = json_member(step, "pattern");
    const struct where here = where_key(at, "pattern");
    TRY(json_only(value, &here, KEYS, e));
    const char *text = NULL;
    if (json_member(value, "Regex")) {
        TRY(json_text(value, "Regex", &here, &text, e));
        out->source = mem_strdup(text);
        const enum status status = regex_open(&out->regex, text, e);
        return status == STATUS_OK ? status : err_prefix(e, "%s", here.text);
    }
    TRY(json_text(value, "String", &here, &text, e));
    FAIL_IF(!*text, STATUS_INVALID, "%s.String: is empty", here.text);
    out->literal = mem_strdup(text);
    out->literal_len = strlen(text);
    return STATUS_OK;
}
