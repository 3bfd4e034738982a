/* dataset_row.c - the table of formats and one reader for each.
 *
 * The order of the tables is the order of decision: rows of one format may have keys of another as
 * well, and a preference row must not be mistaken for a conversation. */
#include "engine/text/dataset_row.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/text/chat_read.h"
#include "engine/text/dataset_preference.h"

enum { KEYS_SHOWN = 8 };

static const char *const FORMAT_NAMES[FORMAT_COUNT] = {
    "auto", "messages", "prompt_completion", "text", "alpaca", "sharegpt", "preference"};
static const char *const MASK_NAMES[MASK_COUNT] = {"assistant", "last", "all"};

const char *data_format_name(enum data_format format) {
    return format < FORMAT_COUNT ? FORMAT_NAMES[format] : "unknown";
}

enum data_format data_format_parse(const char *name) {
    int format = 0;
    while (format < FORMAT_COUNT && !str_equal(name, FORMAT_NAMES[format])) {
        format++;
    }
    return (enum data_format)format;
}

const char *data_mask_name(enum data_mask mask) {
    return mask < MASK_COUNT ? MASK_NAMES[mask] : "unknown";
}

enum data_mask data_mask_parse(const char *name) {
    int mask = 0;
    while (mask < MASK_COUNT && !str_equal(name, MASK_NAMES[mask])) {
        mask++;
    }
    return (enum data_mask)mask;
}

/* The keys that make a format, in the order in which they decide. Rows of some formats also have
 * keys of others (Alpaca's data has a "text" of its own), hence the order. */
static const struct {
    enum data_format format;
    const char *keys[2];
} SIGNATURES[] = {
    {FORMAT_MESSAGES, {"messages", NULL}},
    {FORMAT_SHAREGPT, {"conversations", NULL}},
    {FORMAT_PROMPT_COMPLETION, {"prompt", "completion"}},
    {FORMAT_ALPACA, {"instruction", "output"}},
    {FORMAT_TEXT, {"text", NULL}},
};

/* Rows that say something else than "learn this". All keys named must be there. */
static const struct {
    const char *keys[3];
    const char *what;
} REFUSED[] = {
    {{"kto_tag", NULL, NULL}, "KTO data (kto_tag)"},
    {{"prompt", "completion", "label"}, "KTO data (prompt, completion, label)"},
    {{"segments", NULL, NULL}, "segment data (segments)"},
    {{"input_ids", NULL, NULL}, "data that is tokenised already (input_ids)"},
};

static const char *const ROW_KEYS[FORMAT_COUNT][8] = {
    [FORMAT_MESSAGES] = {"messages", "tools", "functions", "parallel_tool_calls", NULL},
    [FORMAT_PROMPT_COMPLETION] = {"prompt", "completion", "tools", NULL},
    [FORMAT_TEXT] = {"text", NULL},
    [FORMAT_ALPACA] = {"instruction", "input", "output", "system", "history", NULL},
    [FORMAT_SHAREGPT] = {"conversations", "system", "tools", NULL},
};

static const char *const *row_keys(enum data_format format) {
    return format == FORMAT_PREFERENCE ? PREFERENCE_ROW_KEYS : ROW_KEYS[format];
}

static bool has_key(const struct row_json *j, const char *key) {
    for (size_t k = row_first(j, 0); k; k = row_after(j, 0, k)) {
        if (row_string_is(j, k, key) && row_kind(j, k + 1) != ROW_NULL) return true;
    }
    return false;
}

static bool has_keys(const struct row_json *j, const char *const *keys, size_t max) {
    for (size_t i = 0; i < max && keys[i]; i++) {
        if (!has_key(j, keys[i])) return false;
    }
    return true;
}

static enum status expect_object(const struct row_json *j, struct err *e) {
    const enum row_kind kind = row_kind(j, 0);
    FAIL_IF(kind != ROW_OBJECT, STATUS_INVALID, "a row must be a JSON object, this is %s",
            row_kind_name(kind));
    return STATUS_OK;
}

static enum status unknown_format(const struct row_json *j, struct err *e) {
    struct str keys = {0};
    int shown = 0;
    for (size_t k = row_first(j, 0); k && shown < KEYS_SHOWN; k = row_after(j, 0, k), shown++) {
        struct str key = {0};
        row_append_string(j, k, &key);
        const size_t len = utf8_valid_prefix(str_text(&key), key.len < 32 ? key.len : 32);
        str_appendf(&keys, "%s\"%.*s\"", shown ? ", " : "", (int)len, str_text(&key));
        str_release(&key);
    }
    const enum status status =
        err_set(e, STATUS_INVALID,
                "no known format: a row needs \"messages\", or \"conversations\", or \"prompt\" "
                "and \"completion\", or "
                "\"instruction\" and \"output\", or \"text\"; this one has %s",
                keys.len ? str_text(&keys) : "no keys");
    str_release(&keys);
    return status;
}

static enum status refuse_known(const struct row_json *j, struct err *e) {
    for (size_t i = 0; i < COUNT_OF(REFUSED); i++) {
        if (!has_keys(j, REFUSED[i].keys, COUNT_OF(REFUSED[i].keys))) continue;
        return err_set_param(e, STATUS_UNSUPPORTED, REFUSED[i].keys[0],
                             "this is %s, which supervised fine-tuning cannot use",
                             REFUSED[i].what);
    }
    return STATUS_OK;
}

static bool is_preference(const struct row_json *j) {
    for (size_t i = 0; PREFERENCE_KEYS[i]; i++) {
        if (has_key(j, PREFERENCE_KEYS[i])) return true;
    }
    return false;
}

enum status data_row_detect(const struct row_json *j, enum data_format *format, struct err *e) {
    TRY(expect_object(j, e));
    TRY(refuse_known(j, e));
    if (is_preference(j)) {
        *format = FORMAT_PREFERENCE;
        return STATUS_OK;
    }
    for (size_t i = 0; i < COUNT_OF(SIGNATURES); i++) {
        if (!has_keys(j, SIGNATURES[i].keys, COUNT_OF(SIGNATURES[i].keys))) continue;
        *format = SIGNATURES[i].format;
        return STATUS_OK;
    }
    if (has_key(j, "prompt")) {
        return field_error(e, "completion",
                           "is missing; rows with a prompt alone have nothing to learn");
    }
    if (has_key(j, "instruction")) return field_error(e, "output", "is missing");
    return unknown_format(j, e);
}

/* What makes a row one of the format; whether the row has it. */
static bool has_signature(const struct row_json *j, enum data_format format) {
    if (format == FORMAT_PREFERENCE || is_preference(j))
        return format == FORMAT_PREFERENCE && is_preference(j);
    size_t i = 0;
    while (SIGNATURES[i].format != format) {
        i++;
    }
    return has_keys(j, SIGNATURES[i].keys, COUNT_OF(SIGNATURES[i].keys));
}

static enum status missing_key(const struct row_json *j, enum data_format format, struct err *e) {
    if (format == FORMAT_PREFERENCE)
        return field_error(e, PREFERENCE_KEYS[0], "is missing (format preference)");
    for (size_t i = 0; i < COUNT_OF(SIGNATURES); i++) {
        for (size_t k = 0; SIGNATURES[i].format == format && k < 2 && SIGNATURES[i].keys[k]; k++) {
            const char *const key = SIGNATURES[i].keys[k];
            if (!has_key(j, key))
                return field_error(e, key, "is missing (format %s)", data_format_name(format));
        }
    }
    return STATUS_OK;
}

/* The row must have the keys of the file's format; if it has those of another, that is the better
 * error. */
static enum status check_format(const struct row_json *j, enum data_format format,
                                int64_t first_line, struct err *e) {
    TRY(expect_object(j, e));
    TRY(refuse_known(j, e));
    if (has_signature(j, format)) return STATUS_OK;
    enum data_format other = FORMAT_AUTO;
    if (data_row_detect(j, &other, NULL) == STATUS_OK && other != format) {
        FAIL_IF(first_line == 0, STATUS_INVALID, "the row is in format %s, the job asks for %s",
                data_format_name(other), data_format_name(format));
        return err_set(e, STATUS_INVALID,
                       "the row is in format %s, line %lld made the file %s: one format per file",
                       data_format_name(other), (long long)first_line, data_format_name(format));
    }
    return missing_key(j, format, e);
}

/* A text of the row; absent or null leaves *out alone. */
static enum status read_text(const struct row_json *j, const char *key, struct str *out,
                             bool *found, struct err *e) {
    size_t value;
    TRY(row_member(j, 0, key, &value, e));
    *found = value && row_kind(j, value) != ROW_NULL;
    if (!*found) return STATUS_OK;
    if (row_kind(j, value) != ROW_STRING) {
        return field_error(e, key, "must be a string, it is %s", row_kind_name(row_kind(j, value)));
    }
    row_append_string(j, value, out);
    return STATUS_OK;
}

static enum status read_tools(struct data_row *row, const struct row_json *j, struct err *e) {
    size_t tools;
    TRY(row_member(j, 0, "tools", &tools, e));
    return chat_read_tools(&row->chat, j, tools, e);
}

static enum status expect_assistant(const struct chat *chat, size_t from, const char *path,
                                    struct err *e) {
    for (size_t i = from; i < chat->count; i++) {
        if (chat->messages[i].role == CHAT_ASSISTANT) return STATUS_OK;
    }
    return field_error(e, path, "has no assistant message: there is nothing to learn");
}

/* The older spelling of tools: a list of bare functions. */
static enum status read_functions(struct data_row *row, const struct row_json *j, struct err *e) {
    size_t functions;
    TRY(row_member(j, 0, "functions", &functions, e));
    if (!functions || row_kind(j, functions) == ROW_NULL) return STATUS_OK;
    if (row->chat.tools.len)
        return field_error(e, "functions", "\"tools\" says the same, keep that");
    if (row_kind(j, functions) != ROW_ARRAY) return field_error(e, "functions", "must be an array");
    struct str *const out = &row->chat.tools;
    for (size_t f = row_first(j, functions); f; f = row_after(j, functions, f)) {
        if (row_kind(j, f) != ROW_OBJECT) return field_error(e, "functions", "must hold objects");
        str_append(out, out->len ? "," : "[");
        str_append(out, "{\"type\":\"function\",\"function\":");
        row_append_raw(j, f, out);
        str_append_char(out, '}');
    }
    if (out->len) str_append_char(out, ']');
    return STATUS_OK;
}

static enum status read_messages_row(struct data_row *row, const struct row_json *j,
                                     struct err *e) {
    size_t messages;
    row->is_chat = true;
    TRY(row_member(j, 0, "messages", &messages, e));
    TRY(chat_read_messages(&row->chat, j, messages, "messages", e));
    TRY(read_tools(row, j, e));
    TRY(read_functions(row, j, e));
    return expect_assistant(&row->chat, 0, "messages", e);
}

static void add_text(struct chat *chat, enum chat_role role, const struct str *text) {
    struct chat_message *const m = chat_add(chat, role);
    m->has_content = true;
    str_append_bytes(&m->content, str_text(text), text->len);
}

static enum status read_system(struct data_row *row, const struct row_json *j, struct err *e) {
    struct str system = {0};
    bool found = false;
    const enum status status = read_text(j, "system", &system, &found, e);
    if (status == STATUS_OK && system.len) add_text(&row->chat, CHAT_SYSTEM, &system);
    str_release(&system);
    return status;
}

static enum status read_sharegpt_row(struct data_row *row, const struct row_json *j,
                                     struct err *e) {
    size_t turns;
    row->is_chat = true;
    TRY(row_member(j, 0, "conversations", &turns, e));
    TRY(read_system(row, j, e));
    TRY(chat_read_turns(&row->chat, j, turns, "conversations", e));
    TRY(read_tools(row, j, e));
    return expect_assistant(&row->chat, 0, "conversations", e);
}

static enum status read_pair(struct chat *chat, const struct row_json *j, size_t pair,
                             const char *path, struct err *e) {
    static const enum chat_role ROLES[] = {CHAT_USER, CHAT_ASSISTANT};
    size_t count = 0;
    const bool is_array = row_kind(j, pair) == ROW_ARRAY;
    for (size_t item = is_array ? row_first(j, pair) : 0; item; item = row_after(j, pair, item)) {
        if (count == 2 || row_kind(j, item) != ROW_STRING) {
            count = 0;
            break;
        }
        struct chat_message *const m = chat_add(chat, ROLES[count++]);
        m->has_content = true;
        row_append_string(j, item, &m->content);
    }
    return count == 2 ? STATUS_OK
                      : field_error(e, path, "must be a pair of strings [question, answer]");
}

static enum status read_history(struct chat *chat, const struct row_json *j, struct err *e) {
    size_t history;
    TRY(row_member(j, 0, "history", &history, e));
    if (!history || row_kind(j, history) == ROW_NULL) return STATUS_OK;
    if (row_kind(j, history) != ROW_ARRAY)
        return field_error(e, "history", "must be a list of pairs");
    size_t index = 0;
    for (size_t pair = row_first(j, history); pair; pair = row_after(j, history, pair)) {
        char path[FIELD_MAX];
        field_index(path, "history", index++);
        TRY(read_pair(chat, j, pair, path, e));
    }
    return STATUS_OK;
}

static enum status read_alpaca_row(struct data_row *row, const struct row_json *j, struct err *e) {
    struct str question = {0}, input = {0}, answer = {0};
    bool found = false;
    enum status status = STATUS_OK;
    row->is_chat = true;
    GUARD(read_system(row, j, e));
    GUARD(read_history(&row->chat, j, e));
    GUARD(read_text(j, "instruction", &question, &found, e));
    GUARD(read_text(j, "input", &input, &found, e));
    GUARD(read_text(j, "output", &answer, &found, e));
    if (input.len) {
        str_append_char(&question, '\n');
        str_append_bytes(&question, str_text(&input), input.len);
    }
    add_text(&row->chat, CHAT_USER, &question);
    add_text(&row->chat, CHAT_ASSISTANT, &answer);
done:
    str_release(&question);
    str_release(&input);
    str_release(&answer);
    return status;
}

/* Two texts stay texts, whatever the model; two lists of messages are one conversation of which the
 * second part is learned (as TRL has it). */
static enum status read_pair_row(struct data_row *row, const struct row_json *j, struct err *e) {
    size_t prompt, completion;
    bool found = false;
    TRY(row_member(j, 0, "prompt", &prompt, e));
    TRY(row_member(j, 0, "completion", &completion, e));
    row->is_chat = row_kind(j, prompt) == ROW_ARRAY;
    if (!row->is_chat) {
        TRY(read_text(j, "prompt", &row->prompt, &found, e));
        return read_text(j, "completion", &row->text, &found, e);
    }
    if (row_kind(j, completion) != ROW_ARRAY) {
        return field_error(e, "completion", "must be a list of messages, as the prompt is");
    }
    TRY(chat_read_messages(&row->chat, j, prompt, "prompt", e));
    row->chat.given = row->chat.count;
    TRY(chat_read_messages(&row->chat, j, completion, "completion", e));
    TRY(read_tools(row, j, e));
    return expect_assistant(&row->chat, row->chat.given, "completion", e);
}

static enum status read_text_row(struct data_row *row, const struct row_json *j, struct err *e) {
    bool found = false;
    return read_text(j, "text", &row->text, &found, e);
}

static int64_t count_extra_keys(const struct row_json *j, const char *const *known) {
    int64_t extra = 0;
    for (size_t k = row_first(j, 0); k; k = row_after(j, 0, k)) {
        bool listed = false;
        for (size_t i = 0; known[i] && !listed; i++) {
            listed = row_string_is(j, k, known[i]);
        }
        extra += !listed;
    }
    return extra;
}

enum status data_row_read(struct data_row *row, const struct row_json *j, enum data_format format,
                          int64_t first_line, struct err *e) {
    static enum status (*const READERS[FORMAT_COUNT])(struct data_row *, const struct row_json *,
                                                      struct err *) = {
        [FORMAT_MESSAGES] = read_messages_row, [FORMAT_PROMPT_COMPLETION] = read_pair_row,
        [FORMAT_TEXT] = read_text_row,         [FORMAT_ALPACA] = read_alpaca_row,
        [FORMAT_SHAREGPT] = read_sharegpt_row, [FORMAT_PREFERENCE] = data_preference_read,
    };
    *row = (struct data_row){0};
    ASSERT(format > FORMAT_AUTO && format < FORMAT_COUNT);
    TRY(check_format(j, format, first_line, e));
    TRY(chat_check_keys(j, 0, "", row_keys(format), e));
    row->extra_keys = count_extra_keys(j, row_keys(format));
    return READERS[format](row, j, e);
}

void data_row_release(struct data_row *row) {
    if (!row) return;
    chat_release(&row->chat);
    str_release(&row->prompt);
    str_release(&row->text);
    chat_release(&row->rejected_chat);
    str_release(&row->rejected_text);
    *row = (struct data_row){0};
}
