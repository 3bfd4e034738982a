/* json.c - the conventions around cJSON.
 *
 * cJSON stays visible to callers, who walk its trees; only what can go wrong is wrapped. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

static enum status parse_error(const char *text, size_t at, const char *what, struct err *e) {
    int line = 1, column = 1;
    for (size_t i = 0; i < at; i++) {
        line += text[i] == '\n';
        column = text[i] == '\n' ? 1 : column + 1;
    }
    return err_set(e, STATUS_INVALID, "%s: not valid JSON at line %d, column %d", what, line,
                   column);
}

enum status json_parse(const char *text, size_t len, const char *what, cJSON **out, struct err *e) {
    const char *end = text;
    cJSON *const value = len ? cJSON_ParseWithLengthOpts(text, len, &end, 0) : NULL;
    FAIL_IF(len == 0, STATUS_INVALID, "%s: is empty, expected JSON", what);
    size_t at = end ? (size_t)(end - text) : 0;
    if (!value) return parse_error(text, at < len ? at : len, what, e);
    while (at < len && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' ||
                        text[at] == '\t' || !text[at])) {
        at++;
    }
    if (at < len) {
        cJSON_Delete(value);
        return parse_error(text, at, what, e);
    }
    *out = value;
    return STATUS_OK;
}

enum status json_read_file(const char *path, size_t bytes_max, cJSON **out, struct err *e) {
    struct str text = {0};
    enum status status = file_read(path, bytes_max, &text, e);
    if (status == STATUS_OK) status = json_parse(str_text(&text), text.len, path, out, e);
    str_release(&text);
    return status;
}

enum status json_write_file(const char *path, const cJSON *value, struct err *e) {
    char *const text = cJSON_Print(value);
    ASSERT(text);
    struct str out = {0};
    str_append(&out, text);
    str_append_char(&out, '\n');
    cJSON_free(text);
    const enum status status = file_write_atomic(path, str_text(&out), out.len, e);
    str_release(&out);
    return status;
}

void json_append(struct str *out, const cJSON *value) {
    char *const text = cJSON_PrintUnformatted(value);
    ASSERT(text);
    str_append(out, text);
    cJSON_free(text);
}

const cJSON *json_member(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static enum status wrong_type(const char *key, const char *expected, struct err *e) {
    return err_set_param(e, STATUS_INVALID, key, "%s: expected %s", key, expected);
}

enum status json_get_i64(const cJSON *object, const char *key, int64_t *out, struct err *e) {
    const cJSON *const item = json_member(object, key);
    if (!item || cJSON_IsNull(item)) return STATUS_OK;
    const bool whole = cJSON_IsNumber(item) && item->valuedouble == floor(item->valuedouble) &&
                       fabs(item->valuedouble) <= 0x1p53;
    if (!whole) return wrong_type(key, "a whole number", e);
    *out = (int64_t)item->valuedouble;
    return STATUS_OK;
}

enum status json_get_f64(const cJSON *object, const char *key, double *out, struct err *e) {
    const cJSON *const item = json_member(object, key);
    if (!item || cJSON_IsNull(item)) return STATUS_OK;
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return wrong_type(key, "a number", e);
    *out = item->valuedouble;
    return STATUS_OK;
}

enum status json_get_bool(const cJSON *object, const char *key, bool *out, struct err *e) {
    const cJSON *const item = json_member(object, key);
    if (!item || cJSON_IsNull(item)) return STATUS_OK;
    if (!cJSON_IsBool(item)) return wrong_type(key, "true or false", e);
    *out = cJSON_IsTrue(item);
    return STATUS_OK;
}

enum status json_get_string(const cJSON *object, const char *key, const char **out, struct err *e) {
    const cJSON *const item = json_member(object, key);
    if (!item || cJSON_IsNull(item)) return STATUS_OK;
    if (!cJSON_IsString(item)) return wrong_type(key, "a string", e);
    *out = item->valuestring;
    return STATUS_OK;
}

/* cJSON prints with 15 digits and then 17 if that does not read back; it also turns non-finite
 * numbers into null, which is our convention. What it gets wrong is -0 and integers above 2^31,
 * both fine as doubles. */
void json_add_number(cJSON *object, const char *key, double value) {
    if (isfinite(value)) {
        cJSON_AddNumberToObject(object, key, value);
    } else {
        cJSON_AddNullToObject(object, key);
    }
}

void json_add_i64(cJSON *object, const char *key, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    cJSON_AddRawToObject(object, key, text);
}

void json_add_string(cJSON *object, const char *key, const char *value) {
    if (value) {
        cJSON_AddStringToObject(object, key, value);
    } else {
        cJSON_AddNullToObject(object, key);
    }
}

void json_add_bool(cJSON *object, const char *key, bool value) {
    cJSON_AddBoolToObject(object, key, value);
}
