/* chat_read.c - OpenAI messages and ShareGPT turns to struct chat. What other tools wrote for the
 * same thing (developer for system, function for tool, function_call, bare tool calls) is brought
 * to one spelling; what cannot be trained on (images, refusals) is refused by name. */
#include "engine/text/chat_read.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { SHOWN_MAX = 40, FUNCTION_CALL_ROLE = CHAT_ROLE_COUNT };

enum status field_error(struct err *e, const char *path, const char *format, ...) {
    char text[ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set_param(e, STATUS_INVALID, path, "%s: %s", path, text);
}

/* path.key, cut when it would not fit. */
static void path_join(char out[FIELD_MAX], const char *path, const char *key) {
    snprintf(out, FIELD_MAX, "%.*s.%.*s", FIELD_MAX - 34, path, 32, key);
}

void field_index(char out[FIELD_MAX], const char *path, size_t index) {
    snprintf(out, FIELD_MAX, "%.*s[%zu]", FIELD_MAX - 24, path, index);
}

/* A short name from the row for an error: a role, a type, a key. Never a content. */
static void shown(char out[SHOWN_MAX + 4], const struct row_json *j, size_t value) {
    struct str text = {0};
    row_append_string(j, value, &text);
    size_t len = text.len < SHOWN_MAX ? text.len : SHOWN_MAX;
    len = utf8_valid_prefix(str_text(&text), len);
    for (size_t i = 0; i < len; i++) {
        out[i] = (unsigned char)text.data[i] < 0x20 ? '?' : text.data[i];
    }
    snprintf(out + len, 4, "%s", len < text.len ? "..." : "");
    str_release(&text);
}

static enum status expect_kind(const struct row_json *j, size_t value, enum row_kind kind,
                               const char *path, struct err *e) {
    const enum row_kind is = row_kind(j, value);
    if (is == kind) return STATUS_OK;
    return field_error(e, path, "must be %s, it is %s", row_kind_name(kind), row_kind_name(is));
}

/* row_member whose error has the whole path. */
static enum status member(const struct row_json *j, size_t object, const char *path,
                          const char *key, size_t *value, struct err *e) {
    if (row_member(j, object, key, value, NULL) == STATUS_OK) return STATUS_OK;
    char full[FIELD_MAX];
    path_join(full, path, key);
    return field_error(e, full, "the key is there twice");
}

static bool is_null(const struct row_json *j, size_t value) {
    return value == 0 || row_kind(j, value) == ROW_NULL;
}

static bool is_slip(const char *key, const char *known) {
    const int distance = str_distance(key, known);
    return distance == 1 || (distance == 2 && strlen(known) >= 5);
}

static bool is_listed(const struct row_json *j, size_t key, const char *const *known) {
    for (; *known; known++) {
        if (row_string_is(j, key, *known)) return true;
    }
    return false;
}

enum status chat_check_keys(const struct row_json *j, size_t object, const char *path,
                            const char *const *known, struct err *e) {
    for (size_t k = row_first(j, object); k; k = row_after(j, object, k)) {
        if (is_listed(j, k, known)) continue;
        char key[SHOWN_MAX + 4];
        shown(key, j, k);
        for (size_t i = 0; known[i]; i++) {
            size_t present;
            if (!is_slip(key, known[i])) continue;
            if (row_member(j, object, known[i], &present, NULL) == STATUS_OK && present) continue;
            char full[FIELD_MAX];
            path_join(full, path, key);
            return field_error(e, *path ? full : key, "unknown key, did you mean \"%s\"?",
                               known[i]);
        }
    }
    return STATUS_OK;
}

static enum status read_part(struct str *content, const struct row_json *j, size_t part,
                             const char *path, struct err *e) {
    size_t type = 0, text = 0;
    if (row_kind(j, part) == ROW_STRING) {
        row_append_string(j, part, content);
        return STATUS_OK;
    }
    TRY(expect_kind(j, part, ROW_OBJECT, path, e));
    TRY(member(j, part, path, "type", &type, e));
    TRY(member(j, part, path, "text", &text, e));
    if (type && row_kind(j, type) == ROW_STRING && !row_string_is(j, type, "text")) {
        char name[SHOWN_MAX + 4];
        shown(name, j, type);
        return field_error(e, path, "a content part of type \"%s\": only text can be trained on",
                           name);
    }
    if (!text || row_kind(j, text) != ROW_STRING)
        return field_error(e, path, "a content part needs \"text\"");
    row_append_string(j, text, content);
    return STATUS_OK;
}

static enum status read_content(struct chat_message *m, const struct row_json *j, size_t value,
                                const char *path, struct err *e) {
    if (is_null(j, value)) return STATUS_OK;
    m->has_content = true;
    if (row_kind(j, value) == ROW_STRING) {
        row_append_string(j, value, &m->content);
        return STATUS_OK;
    }
    if (row_kind(j, value) != ROW_ARRAY) {
        return field_error(e, path, "must be a string or a list of text parts, it is %s",
                           row_kind_name(row_kind(j, value)));
    }
    size_t index = 0;
    for (size_t part = row_first(j, value); part; part = row_after(j, value, part)) {
        char full[FIELD_MAX];
        field_index(full, path, index++);
        TRY(read_part(&m->content, j, part, full, e));
    }
    return STATUS_OK;
}

/* 0 or 1, however the number is written; -1 for anything else. */
static int read_flag(const struct row_json *j, size_t value) {
    const enum row_kind kind = row_kind(j, value);
    if (kind == ROW_TRUE || kind == ROW_FALSE) return kind == ROW_TRUE;
    if (kind != ROW_NUMBER) return -1;
    struct str text = {0};
    row_append_raw(j, value, &text);
    const bool one = str_equal(text.data, "1") || str_equal(text.data, "1.0");
    const bool zero = str_equal(text.data, "0") || str_equal(text.data, "0.0");
    str_release(&text);
    return one ? 1 : zero ? 0 : -1;
}

static enum status read_weight(struct chat_message *m, const struct row_json *j, size_t object,
                               const char *path, struct err *e) {
    static const char *const KEYS[] = {"weight", "train"};
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        size_t value;
        TRY(member(j, object, path, KEYS[i], &value, e));
        if (is_null(j, value)) continue;
        char full[FIELD_MAX];
        path_join(full, path, KEYS[i]);
        const int flag = read_flag(j, value);
        if (flag < 0) return field_error(e, full, i ? "must be true or false" : "must be 0 or 1");
        if (flag && m->role != CHAT_ASSISTANT) {
            return field_error(e, full,
                               "a %s message cannot be trained on, only an assistant's can",
                               chat_role_name(m->role));
        }
        m->trainable = m->trainable && flag;
    }
    return STATUS_OK;
}

static enum status read_reasoning(struct chat_message *m, const struct row_json *j, size_t object,
                                  const char *path, struct err *e) {
    static const char *const KEYS[] = {"reasoning_content", "reasoning", "thinking"};
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        size_t value;
        TRY(member(j, object, path, KEYS[i], &value, e));
        if (is_null(j, value)) continue;
        char full[FIELD_MAX];
        path_join(full, path, KEYS[i]);
        TRY(expect_kind(j, value, ROW_STRING, full, e));
        if (m->role != CHAT_ASSISTANT)
            return field_error(e, full, "only an assistant message can have it");
        if (m->reasoning_key)
            return field_error(e, full, "%s says the same, keep one", m->reasoning_key);
        m->reasoning_key = KEYS[i];
        row_append_string(j, value, &m->reasoning);
    }
    return STATUS_OK;
}

/* The arguments of a call as the text of a JSON object: given as one, or as a string that holds one
 * (OpenAI's way). */
static enum status read_arguments(struct str *out, const struct row_json *j, size_t value,
                                  const char *path, struct err *e) {
    if (row_kind(j, value) == ROW_OBJECT) {
        row_append_raw(j, value, out);
        return STATUS_OK;
    }
    if (row_kind(j, value) != ROW_STRING)
        return field_error(e, path, "must be a JSON object, or a string of one");
    row_append_string(j, value, out);
    const char *text = str_text(out);
    size_t len = out->len;
    chat_trim(&text, &len);
    if (len == 0) {
        str_clear(out);
        str_append(out, "{}");
        return STATUS_OK;
    }
    struct row_json inner = {0};
    struct err flaw = {0};
    enum status status = row_json_parse(&inner, &(struct row){str_text(out), out->len, 1}, &flaw);
    if (status != STATUS_OK) {
        status = field_error(e, path, "the string does not hold a JSON object: %s", flaw.text);
    } else if (row_kind(&inner, 0) != ROW_OBJECT) {
        status = field_error(e, path, "the string holds %s, it must be a JSON object",
                             row_kind_name(row_kind(&inner, 0)));
    }
    row_json_release(&inner);
    return status;
}

static void append_member(const struct row_json *j, size_t key, struct str *out) {
    row_append_raw(j, key, out);
    str_append_char(out, ':');
    row_append_raw(j, key + 1, out);
}

/* Writes {"name":..,"arguments":..} around the arguments. *out is where text goes: before, then
 * after. */
static enum status read_function(struct chat_call *call, struct str **out, const struct row_json *j,
                                 size_t function, const char *path, struct err *e) {
    size_t name, arguments;
    char full[FIELD_MAX];
    TRY(expect_kind(j, function, ROW_OBJECT, path, e));
    TRY(member(j, function, path, "name", &name, e));
    TRY(member(j, function, path, "arguments", &arguments, e));
    if (!name || row_kind(j, name) != ROW_STRING)
        return field_error(e, path, "a tool call needs a \"name\"");
    if (!arguments) return field_error(e, path, "a tool call needs \"arguments\"");
    path_join(full, path, "arguments");
    TRY(read_arguments(&call->arguments, j, arguments, full, e));
    str_append_char(*out, '{');
    for (size_t k = row_first(j, function); k; k = row_after(j, function, k)) {
        if (k != row_first(j, function)) str_append_char(*out, ',');
        if (k + 1 != arguments) {
            append_member(j, k, *out);
            continue;
        }
        str_append(*out, "\"arguments\":");
        *out = &call->after;
    }
    str_append_char(*out, '}');
    return STATUS_OK;
}

static enum status read_call(struct chat_message *m, const struct row_json *j, size_t object,
                             const char *path, struct err *e) {
    size_t function, type;
    TRY(expect_kind(j, object, ROW_OBJECT, path, e));
    TRY(member(j, object, path, "function", &function, e));
    TRY(member(j, object, path, "type", &type, e));
    if (!is_null(j, type) &&
        (row_kind(j, type) != ROW_STRING || !row_string_is(j, type, "function"))) {
        return field_error(e, path, "only tool calls of type \"function\" are known");
    }
    struct chat_call *const call = chat_add_call(m);
    struct str *out = &call->before;
    if (!function) { /* the bare spelling {"name","arguments"} */
        str_append(out, "{\"type\":\"function\",\"function\":");
        TRY(read_function(call, &out, j, object, path, e));
        str_append_char(out, '}');
        return STATUS_OK;
    }
    char full[FIELD_MAX];
    path_join(full, path, "function");
    str_append_char(out, '{');
    for (size_t k = row_first(j, object); k; k = row_after(j, object, k)) {
        if (k != row_first(j, object)) str_append_char(out, ',');
        if (k + 1 != function) {
            append_member(j, k, out);
            continue;
        }
        str_append(out, "\"function\":");
        TRY(read_function(call, &out, j, function, full, e));
    }
    str_append_char(out, '}');
    return STATUS_OK;
}

static enum status read_calls(struct chat_message *m, const struct row_json *j, size_t value,
                              const char *path, struct err *e) {
    if (is_null(j, value)) return STATUS_OK;
    TRY(expect_kind(j, value, ROW_ARRAY, path, e));
    size_t index = 0;
    for (size_t call = row_first(j, value); call; call = row_after(j, value, call)) {
        char full[FIELD_MAX];
        field_index(full, path, index++);
        TRY(read_call(m, j, call, full, e));
    }
    if (m->call_count && m->role != CHAT_ASSISTANT) {
        return field_error(e, path, "only an assistant message can call tools");
    }
    return STATUS_OK;
}

/* "tool_calls", and the older "function_call" of one call. */
static enum status read_all_calls(struct chat_message *m, const struct row_json *j, size_t object,
                                  const char *path, struct err *e) {
    size_t calls, single;
    char full[FIELD_MAX];
    TRY(member(j, object, path, "tool_calls", &calls, e));
    path_join(full, path, "tool_calls");
    TRY(read_calls(m, j, calls, full, e));
    TRY(member(j, object, path, "function_call", &single, e));
    if (is_null(j, single)) return STATUS_OK;
    path_join(full, path, "function_call");
    if (m->role != CHAT_ASSISTANT)
        return field_error(e, full, "only an assistant message can call tools");
    TRY(expect_kind(j, single, ROW_OBJECT, full, e));
    return read_call(m, j, single, full, e);
}

/* Keys that carry something to train on which we cannot. */
static enum status refuse_keys(const struct row_json *j, size_t object, const char *path,
                               struct err *e) {
    static const char *const KEYS[] = {"refusal", "audio", "images", "image", "videos"};
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        size_t value;
        TRY(member(j, object, path, KEYS[i], &value, e));
        const bool empty =
            is_null(j, value) || (row_kind(j, value) == ROW_ARRAY && !row_first(j, value));
        if (empty) continue;
        char full[FIELD_MAX];
        path_join(full, path, KEYS[i]);
        return field_error(e, full, "cannot be trained on, only text can");
    }
    return STATUS_OK;
}

static enum status read_role(const struct row_json *j, size_t value, const char *path, int *role,
                             struct err *e) {
    static const struct {
        const char *name;
        int role;
    } ROLES[] = {
        {"system", CHAT_SYSTEM},
        {"developer", CHAT_SYSTEM},
        {"user", CHAT_USER},
        {"human", CHAT_USER},
        {"assistant", CHAT_ASSISTANT},
        {"gpt", CHAT_ASSISTANT},
        {"chatgpt", CHAT_ASSISTANT},
        {"model", CHAT_ASSISTANT},
        {"tool", CHAT_TOOL},
        {"function", CHAT_TOOL},
        {"observation", CHAT_TOOL},
        {"function_response", CHAT_TOOL},
        {"function_call", FUNCTION_CALL_ROLE},
    };
    TRY(expect_kind(j, value, ROW_STRING, path, e));
    for (size_t i = 0; i < COUNT_OF(ROLES); i++) {
        if (!row_string_is(j, value, ROLES[i].name)) continue;
        *role = ROLES[i].role;
        return STATUS_OK;
    }
    char name[SHOWN_MAX + 4];
    shown(name, j, value);
    return field_error(e, path,
                       "unknown role \"%s\"; known are system, developer, user, human, assistant, "
                       "gpt, model, tool, "
                       "function, observation, function_call",
                       name);
}

static const char *const MESSAGE_KEYS[] = {
    "role",
    "content",
    "weight",
    "train",
    "tool_calls",
    "function_call",
    "reasoning_content",
    "reasoning",
    "thinking",
    "refusal",
    "audio",
    "images",
    "image",
    "videos",
    "name",
    "tool_call_id",
    "annotations",
    NULL,
};
enum {
    MESSAGE_KEYS_OURS = 14
}; /* the first so many are read here, the rest goes to the template */

static bool is_ours(const struct row_json *j, size_t key) {
    for (size_t i = 0; i < MESSAGE_KEYS_OURS; i++) {
        if (row_string_is(j, key, MESSAGE_KEYS[i])) return true;
    }
    return false;
}

static enum status read_message(struct chat *chat, const struct row_json *j, size_t object,
                                const char *path, struct err *e) {
    size_t value;
    int role = 0;
    char full[FIELD_MAX];
    TRY(expect_kind(j, object, ROW_OBJECT, path, e));
    TRY(chat_check_keys(j, object, path, MESSAGE_KEYS, e));
    TRY(member(j, object, path, "role", &value, e));
    path_join(full, path, "role");
    if (!value) return field_error(e, full, "is missing");
    TRY(read_role(j, value, full, &role, e));
    if (role == FUNCTION_CALL_ROLE)
        return field_error(e, full, "use \"assistant\" with \"tool_calls\"");
    TRY(refuse_keys(j, object, path, e));
    struct chat_message *const m = chat_add(chat, (enum chat_role)role);
    TRY(read_all_calls(m, j, object, path, e));
    TRY(member(j, object, path, "content", &value, e));
    path_join(full, path, "content");
    if (is_null(j, value) && m->call_count == 0) {
        return field_error(e, full,
                           "is missing; only an assistant message with tool_calls may go without");
    }
    TRY(read_content(m, j, value, full, e));
    TRY(read_weight(m, j, object, path, e));
    TRY(read_reasoning(m, j, object, path, e));
    for (size_t k = row_first(j, object); k; k = row_after(j, object, k)) {
        if (is_ours(j, k)) continue;
        str_append_char(&m->extra, ',');
        append_member(j, k, &m->extra);
    }
    return STATUS_OK;
}

enum status chat_read_messages(struct chat *chat, const struct row_json *j, size_t array,
                               const char *path, struct err *e) {
    TRY(expect_kind(j, array, ROW_ARRAY, path, e));
    size_t index = 0;
    for (size_t item = row_first(j, array); item; item = row_after(j, array, item)) {
        char full[FIELD_MAX];
        field_index(full, path, index++);
        TRY(read_message(chat, j, item, full, e));
    }
    if (index == 0) return field_error(e, path, "the list is empty");
    return STATUS_OK;
}

/* A turn from "function_call": its value is the JSON text of one call, or of a list of calls. */
static enum status read_call_turn(struct chat *chat, const struct row_json *j, size_t value,
                                  const char *path, struct err *e) {
    struct str text = {0};
    struct row_json inner = {0};
    struct err flaw = {0};
    struct chat_message *const m = chat_add(chat, CHAT_ASSISTANT);
    row_append_string(j, value, &text);
    enum status status = row_json_parse(&inner, &(struct row){str_text(&text), text.len, 1}, &flaw);
    if (status != STATUS_OK) {
        status = field_error(e, path, "the text of a function_call must be JSON: %s", flaw.text);
    } else if (row_kind(&inner, 0) == ROW_ARRAY) {
        status = read_calls(m, &inner, 0, path, e);
    } else {
        status = read_call(m, &inner, 0, path, e);
    }
    if (status == STATUS_OK && m->call_count == 0) status = field_error(e, path, "holds no call");
    row_json_release(&inner);
    str_release(&text);
    return status;
}

static const char *const TURN_KEYS[] = {"from", "value", "weight", "train", NULL};

enum status chat_read_turn(struct chat *chat, const struct row_json *j, size_t object,
                           const char *path, struct err *e) {
    size_t from, value;
    int role = 0;
    char full[FIELD_MAX];
    TRY(expect_kind(j, object, ROW_OBJECT, path, e));
    TRY(member(j, object, path, "from", &from, e));
    TRY(member(j, object, path, "role", &value, e));
    if (!from && value) return read_message(chat, j, object, path, e);
    TRY(chat_check_keys(j, object, path, TURN_KEYS, e));
    path_join(full, path, "from");
    if (!from) return field_error(e, full, "is missing");
    TRY(read_role(j, from, full, &role, e));
    TRY(member(j, object, path, "value", &value, e));
    path_join(full, path, "value");
    if (!value) return field_error(e, full, "is missing");
    TRY(expect_kind(j, value, ROW_STRING, full, e));
    if (role == FUNCTION_CALL_ROLE) {
        TRY(read_call_turn(chat, j, value, full, e));
    } else {
        struct chat_message *const m = chat_add(chat, (enum chat_role)role);
        m->has_content = true;
        row_append_string(j, value, &m->content);
    }
    return read_weight(&chat->messages[chat->count - 1], j, object, path, e);
}

enum status chat_read_turns(struct chat *chat, const struct row_json *j, size_t array,
                            const char *path, struct err *e) {
    TRY(expect_kind(j, array, ROW_ARRAY, path, e));
    size_t index = 0;
    for (size_t item = row_first(j, array); item; item = row_after(j, array, item)) {
        char full[FIELD_MAX];
        field_index(full, path, index++);
        TRY(chat_read_turn(chat, j, item, full, e));
    }
    if (index == 0) return field_error(e, path, "the list is empty");
    return STATUS_OK;
}

static enum status check_tool_list(const struct row_json *j, size_t array, struct err *e) {
    TRY(expect_kind(j, array, ROW_ARRAY, "tools", e));
    size_t index = 0;
    for (size_t tool = row_first(j, array); tool; tool = row_after(j, array, tool)) {
        char full[FIELD_MAX];
        field_index(full, "tools", index++);
        TRY(expect_kind(j, tool, ROW_OBJECT, full, e));
    }
    return STATUS_OK;
}

enum status chat_read_tools(struct chat *chat, const struct row_json *j, size_t value,
                            struct err *e) {
    if (is_null(j, value)) return STATUS_OK;
    if (row_kind(j, value) != ROW_STRING) {
        TRY(check_tool_list(j, value, e));
        if (row_first(j, value)) row_append_raw(j, value, &chat->tools);
        return STATUS_OK;
    }
    row_append_string(j, value, &chat->tools);
    const char *text = str_text(&chat->tools);
    size_t len = chat->tools.len;
    chat_trim(&text, &len);
    struct row_json inner = {0};
    struct err flaw = {0};
    enum status status = STATUS_OK;
    bool empty = len == 0;
    if (!empty) {
        status = row_json_parse(&inner, &(struct row){text, len, 1}, &flaw);
        if (status != STATUS_OK)
            status = field_error(e, "tools", "the string must hold a JSON list: %s", flaw.text);
        if (status == STATUS_OK) status = check_tool_list(&inner, 0, e);
        empty = status == STATUS_OK && !row_first(&inner, 0);
    }
    if (empty) str_clear(&chat->tools);
    row_json_release(&inner);
    return status;
}
