/* data_ask.c - the words of `plimsoll-engine data` become a spec and a window of rows.
 *
 * A value that is JSON (12, true) is taken as such, anything else is a text: as in `--set` of
 * `plimsoll train`. */
#include "engine/train/data_ask.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/train/data_rows.h"

enum { SECONDS_MAX = 24 * 3600 };

struct question {
    cJSON *spec;
    const char *file;
    int64_t seconds_max;       /* for the report */
    struct data_window window; /* row_count 0: the report */
};

static enum status word_invalid(const char *name, const char *why, struct err *e) {
    return err_set_param(e, STATUS_INVALID, name, "%s: %s", name, why);
}

static enum status read_number(const char *name, const char *text, int64_t min, int64_t max,
                               int64_t *out, struct err *e) {
    int64_t value = 0;
    struct err wrong = {0};
    if (str_to_i64(text, name, &value, &wrong) != STATUS_OK) {
        return err_set_param(e, STATUS_INVALID, name, "%s", wrong.text);
    }
    if (value < min || value > max) {
        return err_set_param(e, STATUS_INVALID, name, "%s is %lld, it must be from %lld to %lld",
                             name, (long long)value, (long long)min, (long long)max);
    }
    *out = value;
    return STATUS_OK;
}

/* "3-7" */
static enum status read_range(const char *text, struct data_window *window, struct err *e) {
    const char *const dash = strchr(text, '-');
    if (!dash) return word_invalid("rows", "write it as FIRST-LAST", e);
    char *const first = mem_strndup(text, (size_t)(dash - text));
    int64_t last = 0;
    enum status status = read_number("rows", first, 1, INT32_MAX, &window->row_first, e);
    if (status == STATUS_OK) status = read_number("rows", dash + 1, 1, INT32_MAX, &last, e);
    mem_free(first);
    TRY(status);
    window->row_count = last - window->row_first + 1;
    if (window->row_count < 1) return word_invalid("rows", "the last row is before the first", e);
    if (window->row_count > DATA_ROWS_MAX) {
        return err_set_param(e, STATUS_INVALID, "rows", "rows: at most %d at a time",
                             DATA_ROWS_MAX);
    }
    return STATUS_OK;
}

/* A key of the spec, nested by its dots. */
static void set_key(cJSON *spec, const char *path, const char *text) {
    struct err ignored = {0};
    cJSON *value = NULL, *object = spec;
    if (json_parse(text, strlen(text), path, &value, &ignored) != STATUS_OK) {
        value = cJSON_CreateString(text);
    }
    const char *const dot = strchr(path, '.');
    if (dot) {
        char *const group = mem_strndup(path, (size_t)(dot - path));
        object = cJSON_GetObjectItemCaseSensitive(spec, group);
        if (!cJSON_IsObject(object)) object = cJSON_AddObjectToObject(spec, group);
        mem_free(group);
        path = dot + 1;
    }
    cJSON_DeleteItemFromObjectCaseSensitive(object, path);
    cJSON_AddItemToObject(object, path, value);
}

static enum status read_word(struct question *q, const char *name, const char *value,
                             struct err *e) {
    struct data_window *const w = &q->window;
    if (strcmp(name, "file") == 0) {
        q->file = value;
    } else if (strcmp(name, "model") == 0) { /* never taken for JSON: a folder may be called 12 */
        cJSON_DeleteItemFromObjectCaseSensitive(q->spec, name);
        json_add_string(q->spec, name, value);
    } else if (strcmp(name, "row") == 0) {
        w->row_count = 1;
        return read_number(name, value, 1, INT32_MAX, &w->row_first, e);
    } else if (strcmp(name, "rows") == 0) {
        return read_range(value, w, e);
    } else if (strcmp(name, "seconds") == 0) {
        return read_number(name, value, 0, SECONDS_MAX, &q->seconds_max, e);
    } else if (strcmp(name, "offset") == 0) {
        return read_number(name, value, 0, INT32_MAX, &w->offset, e);
    } else if (strcmp(name, "limit") == 0) {
        return read_number(name, value, 1, DATA_TOKENS_MAX, &w->limit, e);
    } else {
        set_key(q->spec, name, value);
    }
    return STATUS_OK;
}

static enum status read_words(struct question *q, char **args, struct err *e) {
    for (; args[0]; args += 2) {
        FAIL_IF(!str_starts_with(args[0], "--"), STATUS_INVALID, "%.80s: expected --KEY VALUE",
                args[0]);
        FAIL_IF(!args[1], STATUS_INVALID, "%.80s needs a value", args[0]);
        TRY(read_word(q, args[0] + 2, args[1], e));
    }
    FAIL_IF(!q->file, STATUS_INVALID, "--file is missing");
    FAIL_IF(!json_member(q->spec, "model"), STATUS_INVALID, "--model is missing");
    cJSON *data = cJSON_GetObjectItemCaseSensitive(q->spec, "data");
    if (!cJSON_IsObject(data)) data = cJSON_AddObjectToObject(q->spec, "data");
    cJSON_DeleteItemFromObjectCaseSensitive(data, "train_files");
    cJSON_AddItemToArray(cJSON_AddArrayToObject(data, "train_files"), cJSON_CreateString(q->file));
    return STATUS_OK;
}

static enum status answer(const struct data_reader *reader, const struct question *q, cJSON **out,
                          struct err *e) {
    if (q->window.row_count == 0) return data_report(reader, q->seconds_max, out, e);
    struct str text = {0};
    const enum status status = data_rows(reader, &q->window, &text, e);
    if (status == STATUS_OK) *out = cJSON_CreateRaw(str_text(&text));
    str_release(&text);
    return status;
}

enum status data_ask(char **args, cJSON **out, struct err *e) {
    struct question q = {.spec = cJSON_CreateObject(), .window.limit = DATA_TOKENS_PRESET};
    struct data_reader reader = {0};
    enum status status = STATUS_OK;
    GUARD(read_words(&q, args, e));
    GUARD(data_reader_open(&reader, q.spec, e));
    GUARD(answer(&reader, &q, out, e));
done:
    data_reader_close(&reader);
    cJSON_Delete(q.spec);
    return status;
}
