/* dataset_preference.c - one reader for all spellings of a preference.
 *
 * Each spelling is a place for the prompt, the better and the worse answer; places that are texts
 * make a text row, places that are messages a conversation, and one row may not mix them. */
#include "engine/text/dataset_preference.h"

#include <string.h>

#include "base/mem.h"
#include "engine/text/chat_read.h"

const char *const PREFERENCE_KEYS[] = {"chosen",
                                       "rejected",
                                       "chosen_response",
                                       "rejected_response",
                                       "preferred_output",
                                       "non_preferred_output",
                                       NULL};
const char *const PREFERENCE_ROW_KEYS[] = {"prompt",
                                           "question",
                                           "instruction",
                                           "input",
                                           "system",
                                           "messages",
                                           "conversations",
                                           "tools",
                                           "chosen",
                                           "rejected",
                                           "chosen_response",
                                           "rejected_response",
                                           "preferred_output",
                                           "non_preferred_output",
                                           NULL};

/* Where a part of the row is. */
struct part {
    const char *key;
    size_t value; /* 0: nowhere */
};

/* The first of the keys that the row has; two of them at once would be a guess. */
static enum status find_part(const struct row_json *j, size_t object, const char *const keys[],
                             struct part *part, struct err *e) {
    *part = (struct part){keys[0], 0};
    for (size_t i = 0; keys[i]; i++) {
        size_t value;
        TRY(row_member(j, object, keys[i], &value, e));
        if (!value || row_kind(j, value) == ROW_NULL) continue;
        if (part->value)
            return field_error(e, keys[i], "\"%s\" says the same, keep one", part->key);
        *part = (struct part){keys[i], value};
    }
    return STATUS_OK;
}

static bool is_text(const struct row_json *j, const struct part *part) {
    return row_kind(j, part->value) == ROW_STRING;
}

/* Messages of a list, or one message, in either spelling. */
static enum status read_messages(struct chat *chat, const struct row_json *j,
                                 const struct part *part, struct err *e) {
    if (row_kind(j, part->value) == ROW_ARRAY)
        return chat_read_turns(chat, j, part->value, part->key, e);
    if (row_kind(j, part->value) == ROW_OBJECT)
        return chat_read_turn(chat, j, part->value, part->key, e);
    return field_error(e, part->key, "must be a text, a message or a list of messages, it is %s",
                       row_kind_name(row_kind(j, part->value)));
}

static enum status expect_answer(const struct chat *chat, size_t from, const char *path,
                                 struct err *e) {
    for (size_t i = from; i < chat->count; i++) {
        if (chat->messages[i].role == CHAT_ASSISTANT) return STATUS_OK;
    }
    return field_error(e, path, "has no assistant message: there is no answer to compare");
}

static enum status read_text_prompt(struct data_row *row, const struct row_json *j, struct err *e) {
    static const char *const KEYS[] = {"prompt", "question", "instruction", NULL};
    static const char *const INPUT[] = {"input", NULL}, *const SYSTEM[] = {"system", NULL};
    struct part prompt, input, system;
    TRY(find_part(j, 0, KEYS, &prompt, e));
    TRY(find_part(j, 0, INPUT, &input, e));
    TRY(find_part(j, 0, SYSTEM, &system, e));
    const struct part parts[] = {system, prompt, input};
    if (!prompt.value && !input.value)
        return field_error(e, "prompt", "is missing: answers that are texts need one");
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (!parts[i].value) continue;
        if (!is_text(j, &parts[i])) {
            return field_error(e, parts[i].key, "must be a string, as the answers are; it is %s",
                               row_kind_name(row_kind(j, parts[i].value)));
        }
        if (row->prompt.len) str_append_char(&row->prompt, '\n');
        row_append_string(j, parts[i].value, &row->prompt);
    }
    return STATUS_OK;
}

static enum status read_texts(struct data_row *row, const struct row_json *j,
                              const struct part *chosen, const struct part *rejected,
                              struct err *e) {
    TRY(read_text_prompt(row, j, e));
    row_append_string(j, chosen->value, &row->text);
    row_append_string(j, rejected->value, &row->rejected_text);
    if (row->text.len == 0) return field_error(e, chosen->key, "is empty");
    if (row->rejected_text.len == 0) return field_error(e, rejected->key, "is empty");
    if (row->text.len == row->rejected_text.len &&
        memcmp(row->text.data, row->rejected_text.data, row->text.len) == 0)
        return field_error(e, rejected->key, "says the same as \"%s\"", chosen->key);
    return STATUS_OK;
}

/* The messages before both answers: OpenAI has them in an object with the tools. */
static enum status read_prompt_messages(struct data_row *row, const struct row_json *j,
                                        struct err *e) {
    static const char *const KEYS[] = {"prompt", "messages", "conversations", NULL};
    static const char *const TOOLS[] = {"tools", NULL}, *const INPUT[] = {"input", NULL};
    struct part prompt, tools, input;
    size_t holder = 0;
    TRY(find_part(j, 0, INPUT, &input, e));
    if (input.value && row_kind(j, input.value) == ROW_OBJECT) holder = input.value;
    TRY(find_part(j, holder, KEYS, &prompt, e));
    TRY(find_part(j, holder, TOOLS, &tools, e));
    if (holder && !prompt.value) return field_error(e, "input.messages", "is missing");
    if (tools.value) TRY(chat_read_tools(&row->chat, j, tools.value, e));
    if (!prompt.value) return STATUS_OK; /* the answers share their beginning */
    if (!is_text(j, &prompt)) return read_messages(&row->chat, j, &prompt, e);
    struct chat_message *const m = chat_add(&row->chat, CHAT_USER);
    m->has_content = true;
    row_append_string(j, prompt.value, &m->content);
    return STATUS_OK;
}

static bool same_messages(const struct chat *a, size_t from_a, const struct chat *b, size_t from_b,
                          size_t count) {
    struct str x = {0}, y = {0};
    struct chat part_a = {.messages = a->messages + from_a, .count = count};
    struct chat part_b = {.messages = b->messages + from_b, .count = count};
    chat_append_json(&part_a, count, CHAT_ARGUMENTS_OBJECT, NULL, &x);
    chat_append_json(&part_b, count, CHAT_ARGUMENTS_OBJECT, NULL, &y);
    const bool same = x.len == y.len && memcmp(str_text(&x), str_text(&y), x.len) == 0;
    str_release(&x);
    str_release(&y);
    return same;
}

static enum status read_chats(struct data_row *row, const struct row_json *j,
                              const struct part *chosen, const struct part *rejected,
                              struct err *e) {
    row->is_chat = true;
    TRY(read_prompt_messages(row, j, e));
    const size_t prompt = row->chat.count;
    TRY(read_messages(&row->chat, j, chosen, e));
    TRY(read_messages(&row->rejected_chat, j, rejected, e));
    size_t shared = 0;
    const size_t better = row->chat.count - prompt, worse = row->rejected_chat.count;
    while (prompt == 0 && shared < better && shared < worse &&
           same_messages(&row->chat, shared, &row->rejected_chat, shared, 1)) {
        shared++;
    }
    row->chat.given = prompt + shared;
    row->rejected_chat.given = shared;
    if (better == worse && same_messages(&row->chat, prompt, &row->rejected_chat, 0, worse))
        return field_error(e, rejected->key, "says the same as \"%s\"", chosen->key);
    if (row->chat.given == 0) {
        return field_error(e, "prompt",
                           "is missing, and \"%s\" and \"%s\" do not begin with the same message",
                           chosen->key, rejected->key);
    }
    TRY(expect_answer(&row->chat, row->chat.given, chosen->key, e));
    return expect_answer(&row->rejected_chat, shared, rejected->key, e);
}

enum status data_preference_read(struct data_row *row, const struct row_json *j, struct err *e) {
    static const char *const CHOSEN[] = {"chosen", "chosen_response", "preferred_output", NULL};
    static const char *const REJECTED[] = {"rejected", "rejected_response", "non_preferred_output",
                                           NULL};
    struct part chosen, rejected;
    row->is_preference = true;
    TRY(find_part(j, 0, CHOSEN, &chosen, e));
    TRY(find_part(j, 0, REJECTED, &rejected, e));
    if (!chosen.value) return field_error(e, chosen.key, "is missing");
    if (!rejected.value) return field_error(e, rejected.key, "is missing");
    if (is_text(j, &chosen) != is_text(j, &rejected))
        return field_error(e, rejected.key, "must be of the same kind as \"%s\"", chosen.key);
    return is_text(j, &chosen) ? read_texts(row, j, &chosen, &rejected, e)
                               : read_chats(row, j, &chosen, &rejected, e);
}
