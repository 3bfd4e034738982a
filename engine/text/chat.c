/* chat.c - conversations in memory, their pieces, and their JSON with or without marks.
 *
 * Convention: text is bytes and a length, because contents may hold NUL; JSON is written by hand
 * for the same reason. */
#include "engine/text/chat.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static const char THINK_OPEN[] = "<think>", THINK_CLOSE[] = "</think>";
static const char MARK_HEAD[] = "Qz"; /* 2, then 8 hexadecimal digits of salt, 8 of the piece, 2 */
static const char MARK_TAIL[] = "zQ";

const char *chat_role_name(enum chat_role role) {
    static const char *const NAMES[CHAT_ROLE_COUNT] = {"system", "user", "assistant", "tool"};
    return NAMES[role];
}

static void call_release(struct chat_call *call) {
    str_release(&call->before);
    str_release(&call->arguments);
    str_release(&call->after);
}

static void message_release(struct chat_message *m) {
    str_release(&m->content);
    str_release(&m->reasoning);
    str_release(&m->extra);
    for (size_t i = 0; i < m->call_count; i++) {
        call_release(&m->calls[i]);
    }
    mem_free(m->calls);
}

void chat_release(struct chat *chat) {
    if (!chat) return;
    for (size_t i = 0; i < chat->count; i++) {
        message_release(&chat->messages[i]);
    }
    mem_free(chat->messages);
    str_release(&chat->tools);
    *chat = (struct chat){0};
}

struct chat_message *chat_add(struct chat *chat, enum chat_role role) {
    chat->messages = mem_grow(chat->messages, chat->count, &chat->capacity, sizeof *chat->messages);
    struct chat_message *const m = &chat->messages[chat->count++];
    *m = (struct chat_message){.role = role, .trainable = role == CHAT_ASSISTANT};
    return m;
}

struct chat_call *chat_add_call(struct chat_message *message) {
    message->calls = mem_grow(message->calls, message->call_count, &message->call_capacity,
                              sizeof *message->calls);
    struct chat_call *const call = &message->calls[message->call_count++];
    *call = (struct chat_call){0};
    return call;
}

static bool is_plain(const struct chat_message *m) {
    return m->has_content && !m->reasoning_key && m->extra.len == 0 && m->call_count == 0;
}

static bool can_merge(const struct chat *chat, size_t into, size_t from) {
    const struct chat_message *const a = &chat->messages[into], *const b = &chat->messages[from];
    const bool border = from == chat->given; /* between a prompt and what is learned */
    return a->role == b->role && a->role != CHAT_TOOL && a->trainable == b->trainable &&
           is_plain(a) && is_plain(b) && !border;
}

size_t chat_merge_turns(struct chat *chat) {
    size_t kept = 0, merged_given = 0;
    for (size_t i = 0; i < chat->count; i++) {
        struct chat_message *const m = &chat->messages[i];
        if (kept && can_merge(chat, kept - 1, i)) {
            struct str *const content = &chat->messages[kept - 1].content;
            str_append(content, "\n\n");
            str_append_bytes(content, str_text(&m->content), m->content.len);
            message_release(m);
            merged_given += i < chat->given;
            continue;
        }
        if (kept != i) chat->messages[kept] = *m;
        kept++;
    }
    const size_t merged = chat->count - kept;
    chat->count = kept;
    chat->given -= merged_given;
    return merged;
}

bool chat_fold_system(struct chat_folded *folded, const struct chat *chat) {
    *folded = (struct chat_folded){0};
    size_t gone = 0;
    while (gone < chat->count && chat->messages[gone].role == CHAT_SYSTEM &&
           is_plain(&chat->messages[gone])) {
        gone++;
    }
    if (gone == 0 || gone == chat->count) return false;
    const struct chat_message *const user = &chat->messages[gone];
    if (user->role != CHAT_USER || !user->has_content) return false;
    for (size_t i = 0; i <= gone; i++) {
        const struct str *const content = &chat->messages[i].content;
        if (folded->content.len && content->len) str_append(&folded->content, "\n\n");
        str_append_bytes(&folded->content, str_text(content), content->len);
    }
    folded->chat = *chat;
    folded->chat.count = chat->count - gone;
    folded->chat.given = chat->given > gone ? chat->given - gone : 0;
    folded->chat.folded = gone;
    folded->chat.messages = mem_new(folded->chat.count, sizeof *chat->messages);
    memcpy(folded->chat.messages, user, folded->chat.count * sizeof *user);
    folded->chat.messages[0].content = folded->content;
    return true;
}

void chat_folded_release(struct chat_folded *folded) {
    if (!folded) return;
    mem_free(folded->chat.messages);
    str_release(&folded->content);
    *folded = (struct chat_folded){0};
}

/* What Python's str.strip takes away, which is what templates do. */
static bool is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

void chat_trim(const char **text, size_t *len) {
    const char *s = *text;
    size_t n = *len;
    uint32_t code;
    int width;
    while (n > 0 && (width = utf8_decode(s, n, &code)) > 0 && is_space(code)) {
        s += width;
        n -= (size_t)width;
    }
    while (n > 0) {
        size_t start = n - 1;
        while (start > 0 && ((unsigned char)s[start] & 0xC0) == 0x80) {
            start--;
        }
        if (utf8_decode(s + start, n - start, &code) != (int)(n - start) || !is_space(code)) break;
        n = start;
    }
    *text = s;
    *len = n;
}

static void add_piece(struct chat_pieces *pieces, struct chat_piece piece) {
    chat_trim(&piece.text, &piece.len);
    if (piece.len == 0) return;
    pieces->items =
        mem_grow(pieces->items, pieces->count, &pieces->capacity, sizeof *pieces->items);
    pieces->items[pieces->count++] = piece;
}

/* Length of the think tag at text[0..len), 0 if there is none. */
static size_t think_tag(const char *text, size_t len) {
    const size_t opening = sizeof THINK_OPEN - 1, closing = sizeof THINK_CLOSE - 1;
    if (len >= opening && memcmp(text, THINK_OPEN, opening) == 0) return opening;
    if (len >= closing && memcmp(text, THINK_CLOSE, closing) == 0) return closing;
    return 0;
}

static void find_content_pieces(struct chat_pieces *pieces, const struct chat *chat, size_t index) {
    const struct chat_message *const m = &chat->messages[index];
    const char *const text = str_text(&m->content);
    const size_t len = m->content.len;
    const bool cut = m->role == CHAT_ASSISTANT;
    size_t start = 0;
    for (size_t at = 0; cut && at < len; at++) {
        const size_t tag = text[at] == '<' ? think_tag(text + at, len - at) : 0;
        if (tag == 0) continue;
        add_piece(pieces, (struct chat_piece){.message = index,
                                              .text = text + start,
                                              .len = at - start,
                                              .may_vanish = true});
        start = at + tag;
        at += tag - 1;
    }
    add_piece(pieces,
              (struct chat_piece){.message = index, .text = text + start, .len = len - start});
}

void chat_pieces_find(struct chat_pieces *pieces, const struct chat *chat) {
    pieces->count = 0;
    for (size_t i = 0; i < chat->count; i++) {
        const struct chat_message *const m = &chat->messages[i];
        if (m->reasoning_key) {
            add_piece(pieces, (struct chat_piece){.message = i,
                                                  .text = str_text(&m->reasoning),
                                                  .len = m->reasoning.len,
                                                  .in_reasoning_field = true,
                                                  .may_vanish = true});
        }
        find_content_pieces(pieces, chat, i);
    }
}

void chat_pieces_release(struct chat_pieces *pieces) {
    if (!pieces) return;
    mem_free(pieces->items);
    *pieces = (struct chat_pieces){0};
}

void chat_mark_text(char out[CHAT_MARK_LEN + 1], uint32_t salt, size_t piece) {
    snprintf(out, CHAT_MARK_LEN + 1, "%s%08x%08x%s", MARK_HEAD, salt, (uint32_t)piece, MARK_TAIL);
}

int64_t chat_mark_read(const char *text, size_t len, uint32_t salt) {
    if (len < CHAT_MARK_LEN || memcmp(text, MARK_HEAD, 2) != 0) return -1;
    int64_t piece = 0;
    for (size_t i = 10; i < 18; i++) {
        const char c = text[i];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return -1;
        piece = piece * 16 + digit;
    }
    char expected[CHAT_MARK_LEN + 1];
    chat_mark_text(expected, salt, (size_t)piece);
    return memcmp(text, expected, CHAT_MARK_LEN) == 0 ? piece : -1;
}

/* The inside of a JSON string. */
static void append_escaped(struct str *out, const char *text, size_t len) {
    size_t plain = 0;
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        str_append_bytes(out, text + plain, i - plain);
        plain = i + 1;
        if (c == '"' || c == '\\') {
            str_append_char(out, '\\');
            str_append_char(out, (char)c);
        } else {
            str_appendf(out, "\\u%04x", c);
        }
    }
    str_append_bytes(out, text + plain, len - plain);
}

void chat_append_quoted(struct str *out, const char *text, size_t len) {
    str_append_char(out, '"');
    append_escaped(out, text, len);
    str_append_char(out, '"');
}

/* Pieces are in the order of messages: a long conversation must not cost a scan per message. */
static size_t first_piece_of(const struct chat_pieces *pieces, size_t message) {
    size_t low = 0, high = pieces->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (pieces->items[middle].message < message) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* A field's text as a JSON string, with marks in place of those of its pieces that are marked. */
static void append_field(struct str *out, const struct str *field, size_t message, bool reasoning,
                         const struct chat_marks *marks) {
    const char *const text = str_text(field);
    size_t at = 0;
    str_append_char(out, '"');
    const bool marked = marks && (marks->message == CHAT_ALL || marks->message == (int64_t)message);
    for (size_t i = marked ? first_piece_of(marks->pieces, message) : 0;
         marked && i < marks->pieces->count; i++) {
        const struct chat_piece *const piece = &marks->pieces->items[i];
        if (piece->message != message) break;
        if (piece->in_reasoning_field != reasoning) continue;
        const size_t start = (size_t)(piece->text - text);
        ASSERT(start >= at && start + piece->len <= field->len);
        char mark[CHAT_MARK_LEN + 1];
        chat_mark_text(mark, marks->salt, i);
        append_escaped(out, text + at, start - at);
        str_append(out, mark);
        at = start + piece->len;
    }
    append_escaped(out, text + at, field->len - at);
    str_append_char(out, '"');
}

static void append_arguments(struct str *out, const struct chat_call *call,
                             enum chat_arguments form, const char *mark) {
    struct str object = {0};
    if (mark) {
        str_appendf(&object, "{\"%s\":\"%s\"}", mark, mark);
    } else {
        str_append_bytes(&object, str_text(&call->arguments), call->arguments.len);
    }
    if (form == CHAT_ARGUMENTS_TEXT) {
        chat_append_quoted(out, str_text(&object), object.len);
    } else {
        str_append_bytes(out, str_text(&object), object.len);
    }
    str_release(&object);
}

static void append_calls(struct str *out, const struct chat_message *m, enum chat_arguments form,
                         const char *mark) {
    str_append(out, ",\"tool_calls\":[");
    for (size_t i = 0; i < m->call_count; i++) {
        const struct chat_call *const call = &m->calls[i];
        if (i) str_append_char(out, ',');
        str_append_bytes(out, str_text(&call->before), call->before.len);
        append_arguments(out, call, form, i + 1 == m->call_count ? mark : NULL);
        str_append_bytes(out, str_text(&call->after), call->after.len);
    }
    str_append_char(out, ']');
}

static void append_message(struct str *out, const struct chat *chat, size_t index,
                           enum chat_arguments form, const struct chat_marks *marks) {
    const struct chat_message *const m = &chat->messages[index];
    str_appendf(out, "{\"role\":\"%s\",\"content\":", chat_role_name(m->role));
    if (m->has_content) {
        append_field(out, &m->content, index, false, marks);
    } else {
        str_append(out, "null");
    }
    if (m->reasoning_key) {
        str_appendf(out, ",\"%s\":", m->reasoning_key);
        append_field(out, &m->reasoning, index, true, marks);
    }
    str_append_bytes(out, str_text(&m->extra), m->extra.len);
    if (m->call_count) {
        char mark[CHAT_MARK_LEN + 1];
        const bool marked = marks && marks->call_message == (int64_t)index;
        if (marked) chat_mark_text(mark, marks->salt, marks->pieces->count);
        append_calls(out, m, form, marked ? mark : NULL);
    }
    str_append_char(out, '}');
}

void chat_append_json(const struct chat *chat, size_t count, enum chat_arguments arguments,
                      const struct chat_marks *marks, struct str *out) {
    ASSERT(count <= chat->count);
    str_append_char(out, '[');
    for (size_t i = 0; i < count; i++) {
        if (i) str_append_char(out, ',');
        append_message(out, chat, i, arguments, marks);
    }
    str_append_char(out, ']');
}
