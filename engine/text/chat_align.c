/* chat_align.c - renderings compared with marked renderings.
 *
 * Positions are bytes of the rendering; nothing here knows tokens, so that a mask can be found
 * without a tokenizer and checked as text. */
#include "engine/text/chat_align.h"

#include <string.h>

#include "base/mem.h"
#include "engine/text/chat_read.h"

enum { SALT_TRIES = 1000, MARK_HEAD_LEN = 10 };

static enum status render(const struct chat_renderer *renderer, const struct chat *chat,
                          struct template_inputs inputs, struct str *out, struct err *e) {
    inputs.tools_json = chat->tools.len ? str_text(&chat->tools) : NULL;
    inputs.now_unix_s = renderer->now_unix_s;
    return chat_template_render(renderer->chat_template, &inputs, out, e);
}

static enum status render_chat(const struct chat_renderer *renderer, const struct chat *chat,
                               enum chat_arguments arguments, const struct chat_marks *marks,
                               struct str *out, struct err *e) {
    struct str json = {0};
    chat_append_json(chat, chat->count, arguments, marks, &json);
    const struct template_inputs inputs = {.messages_json = str_text(&json),
                                           .variables_json = renderer->variables_json};
    const enum status status = render(renderer, chat, inputs, out, e);
    str_release(&json);
    return status;
}

static bool has_calls(const struct chat *chat) {
    for (size_t i = 0; i < chat->count; i++) {
        if (chat->messages[i].call_count) return true;
    }
    return false;
}

/* Templates that glue tool arguments to text raise on an object; they get the text (case B09). */
static enum status render_final(struct chat_rendering *r, const struct chat_renderer *renderer,
                                const struct chat *chat, struct err *e) {
    struct err flaw = {0};
    r->arguments = CHAT_ARGUMENTS_OBJECT;
    enum status status = render_chat(renderer, chat, r->arguments, NULL, &r->text, &flaw);
    if (status != STATUS_OK && has_calls(chat)) {
        struct err second = {0};
        str_clear(&r->text);
        r->arguments = CHAT_ARGUMENTS_TEXT;
        status = render_chat(renderer, chat, r->arguments, NULL, &r->text, &second);
    }
    if (status == STATUS_OK) return STATUS_OK;
    r->system_lost = true;
    const bool system = chat->count > 0 && chat->messages[0].role == CHAT_SYSTEM;
    return field_error(e, "messages", "the chat template refuses the conversation: %s%s", flaw.text,
                       system ? " (if it is the system message that it refuses: data.fold_system "
                                "puts it in front of the first question)"
                              : "");
}

static const char *find_bytes(const char *text, size_t len, const char *what, size_t what_len) {
    return memmem(text, len, what, what_len);
}

static bool choose_salt(struct chat_rendering *r) {
    for (r->salt = 0; r->salt < SALT_TRIES; r->salt++) {
        char mark[CHAT_MARK_LEN + 1];
        chat_mark_text(mark, r->salt, 0);
        if (!find_bytes(str_text(&r->text), r->text.len, mark, MARK_HEAD_LEN)) return true;
    }
    return false;
}

/* The first mark at or after `at` of the marked text: its position, or the end of the text with
 * *piece = -1. */
static size_t next_mark(const struct chat_rendering *r, const struct str *marked, size_t at,
                        int64_t *piece) {
    char head[CHAT_MARK_LEN + 1];
    chat_mark_text(head, r->salt, 0);
    const char *const text = str_text(marked);
    while (at < marked->len) {
        const char *const hit = find_bytes(text + at, marked->len - at, head, MARK_HEAD_LEN);
        if (!hit) break;
        at = (size_t)(hit - text);
        *piece = chat_mark_read(hit, marked->len - at, r->salt);
        if (*piece >= 0) return at;
        at++;
    }
    *piece = -1;
    return marked->len;
}

static bool matches(const struct str *text, size_t at, const char *what, size_t len) {
    return at <= text->len && text->len - at >= len && memcmp(str_text(text) + at, what, len) == 0;
}

/* The length of the piece at text[at..], which the template text [next, next_end) of the marked
 * rendering must follow; -1 if it is not there. Some templates print tool results through tojson:
 * the piece as JSON text is looked for too. */
static int64_t match_piece(const struct chat_rendering *r, const struct str *marked,
                           const struct chat_piece *piece, size_t at, size_t next,
                           size_t next_end) {
    const char *const following = str_text(marked) + next;
    if (matches(&r->text, at, piece->text, piece->len) &&
        matches(&r->text, at + piece->len, following, next_end - next)) {
        return (int64_t)piece->len;
    }
    struct str escaped = {0};
    chat_append_quoted(&escaped, piece->text, piece->len);
    const size_t len = escaped.len - 2;
    const bool hit = matches(&r->text, at, str_text(&escaped) + 1, len) &&
                     matches(&r->text, at + len, following, next_end - next);
    str_release(&escaped);
    return hit ? (int64_t)len : -1;
}

/* Walks text and marked rendering side by side. True when template text and pieces give the whole
 * text again. */
static bool align(struct chat_rendering *r, const struct str *marked) {
    int64_t piece;
    size_t mark = next_mark(r, marked, 0, &piece);
    if (!matches(&r->text, 0, str_text(marked), mark)) return false;
    size_t at = mark;
    while (piece >= 0) {
        int64_t following;
        const size_t after = mark + CHAT_MARK_LEN;
        const size_t next = next_mark(r, marked, after, &following);
        if ((size_t)piece >= r->pieces.count || r->places[piece].found) return false;
        const int64_t len = match_piece(r, marked, &r->pieces.items[piece], at, after, next);
        if (len < 0) return false;
        r->places[piece] = (struct chat_place){true, at, at + (size_t)len};
        r->order[r->order_count++] = (size_t)piece;
        at += (size_t)len + (next - after);
        mark = next;
        piece = following;
    }
    return at == r->text.len;
}

static void forget_places(struct chat_rendering *r) {
    memset(r->places, 0, r->pieces.count * sizeof *r->places);
    r->order_count = 0;
}

static enum status left_out(const struct chat *chat, size_t message, struct err *e) {
    char path[FIELD_MAX];
    const enum chat_role role = chat->messages[message].role;
    field_index(path, "messages", message + chat->folded);
    return field_error(
        e, path,
        "the chat template leaves out this %s message, the model would never see it "
        "(%sdata.max_rows_dropped_message says how many such rows are fine)",
        chat_role_name(role),
        role == CHAT_SYSTEM ? "data.fold_system puts one in front of the first question; " : "");
}

/* The first message of which a piece is not in the rendering, or the number of messages. */
static size_t missing_by_marks(const struct chat_rendering *r, const struct chat *chat) {
    bool *const seen = mem_new(r->pieces.count, sizeof *seen);
    int64_t piece;
    for (size_t at = next_mark(r, &r->marked, 0, &piece); piece >= 0;
         at = next_mark(r, &r->marked, at + CHAT_MARK_LEN, &piece)) {
        if ((size_t)piece < r->pieces.count) seen[piece] = true;
    }
    size_t missing = chat->count;
    for (size_t i = 0; i < r->pieces.count && missing == chat->count; i++) {
        if (!seen[i] && !r->pieces.items[i].may_vanish) missing = r->pieces.items[i].message;
    }
    mem_free(seen);
    return missing;
}

/* The weaker check, for when the marked conversation cannot be rendered. */
static size_t missing_by_words(const struct chat_rendering *r, const struct chat *chat) {
    for (size_t i = 0; i < r->pieces.count; i++) {
        const struct chat_piece *const p = &r->pieces.items[i];
        if (p->may_vanish || find_bytes(str_text(&r->text), r->text.len, p->text, p->len)) continue;
        struct str escaped = {0};
        chat_append_quoted(&escaped, p->text, p->len);
        const bool found =
            find_bytes(str_text(&r->text), r->text.len, escaped.data + 1, escaped.len - 2) != NULL;
        str_release(&escaped);
        if (!found) return p->message;
    }
    return chat->count;
}

/* The name of every tool must appear, else the template does nothing with tools. */
static enum status check_tools(const struct chat_rendering *r, const struct chat *chat,
                               struct err *e) {
    if (chat->tools.len == 0) return STATUS_OK;
    struct row_json j = {0};
    enum status status =
        row_json_parse(&j, &(struct row){str_text(&chat->tools), chat->tools.len, 1}, e);
    for (size_t tool = row_first(&j, 0); tool && status == STATUS_OK;
         tool = row_after(&j, 0, tool)) {
        size_t function = 0, name = 0;
        status = row_member(&j, tool, "function", &function, e);
        const size_t holder = function && row_kind(&j, function) == ROW_OBJECT ? function : tool;
        if (status == STATUS_OK) status = row_member(&j, holder, "name", &name, e);
        if (status != STATUS_OK || !name || row_kind(&j, name) != ROW_STRING) continue;
        struct str text = {0};
        row_append_string(&j, name, &text);
        if (!find_bytes(str_text(&r->text), r->text.len, str_text(&text), text.len)) {
            status = field_error(
                e, "tools",
                "the chat template leaves out the tools: this model was not made for them "
                "(data.max_rows_dropped_message says how many such rows are fine)");
        }
        str_release(&text);
    }
    row_json_release(&j);
    return status;
}

/* Every word of the row must be in the rendering (case B06), reasoning aside, which templates
 * remove from history; and so must the tools. What is left out is an error, or on request a note.
 */
static enum status check_left_out(struct chat_rendering *r, const struct chat_renderer *renderer,
                                  const struct chat *chat, bool marked, struct err *e) {
    const size_t missing = marked ? missing_by_marks(r, chat) : missing_by_words(r, chat);
    const bool any = missing < chat->count;
    r->system_lost = any && chat->messages[missing].role == CHAT_SYSTEM;
    if (!renderer->drop_messages) {
        if (any) return left_out(chat, missing, e);
        return check_tools(r, chat, e);
    }
    r->dropped_message = any || check_tools(r, chat, NULL) != STATUS_OK;
    return STATUS_OK;
}

enum status chat_rendering_make(struct chat_rendering *r, const struct chat_renderer *renderer,
                                const struct chat *chat, struct err *e) {
    *r = (struct chat_rendering){0};
    TRY(render_final(r, renderer, chat, e));
    chat_pieces_find(&r->pieces, chat);
    r->places = mem_new(r->pieces.count + 1, sizeof *r->places);
    r->order = mem_new(r->pieces.count + 1, sizeof *r->order);
    if (!choose_salt(r)) return field_error(e, "messages", "the row imitates internal marks");
    const struct chat_marks marks = {&r->pieces, CHAT_ALL, CHAT_NONE, r->salt};
    const bool marked =
        render_chat(renderer, chat, r->arguments, &marks, &r->marked, NULL) == STATUS_OK;
    TRY(check_left_out(r, renderer, chat, marked, e));
    r->separated = marked && align(r, &r->marked);
    if (!r->separated) forget_places(r);
    return STATUS_OK;
}

void chat_rendering_release(struct chat_rendering *r) {
    if (!r) return;
    str_release(&r->text);
    str_release(&r->marked);
    chat_pieces_release(&r->pieces);
    mem_free(r->places);
    mem_free(r->order);
    *r = (struct chat_rendering){0};
}

static enum status answer_error(const struct chat *chat, size_t index, const char *what,
                                struct err *e) {
    char path[FIELD_MAX];
    field_index(path, "messages", index + chat->folded);
    return field_error(e, path, "%s, so that what to train cannot be told for sure", what);
}

/* Places one message's pieces with only them marked: for templates that look into what other
 * messages say. */
static enum status place_alone(struct chat_rendering *r, const struct chat_renderer *renderer,
                               const struct chat *chat, size_t index, struct err *e) {
    forget_places(r);
    struct str marked = {0};
    const struct chat_marks marks = {&r->pieces, (int64_t)index, CHAT_NONE, r->salt};
    const bool placed =
        render_chat(renderer, chat, r->arguments, &marks, &marked, NULL) == STATUS_OK &&
        align(r, &marked);
    str_release(&marked);
    return placed ? STATUS_OK
                  : answer_error(chat, index, "the chat template changes this answer", e);
}

/* The message's first and last places in the text; false if it has none. */
static bool message_places(const struct chat_rendering *r, size_t index, struct chat_place *first,
                           struct chat_place *last) {
    bool any = false;
    for (size_t i = 0; i < r->order_count; i++) {
        if (r->pieces.items[r->order[i]].message != index) continue;
        if (!any) *first = r->places[r->order[i]];
        *last = r->places[r->order[i]];
        any = true;
    }
    return any;
}

/* Where the words of another message begin after `from`: the end-of-turn token must come before. */
static size_t next_words(const struct chat_rendering *r, const struct chat *chat, size_t index,
                         size_t from) {
    for (size_t i = 0; i < r->order_count; i++) {
        const size_t piece = r->order[i];
        if (r->places[piece].begin >= from && r->pieces.items[piece].message != index)
            return r->places[piece].begin;
    }
    if (r->separated || index + 1 >= chat->count) return r->text.len;
    for (size_t i = 0; i < r->pieces.count; i++) {
        const struct chat_piece *const p = &r->pieces.items[i];
        if (p->message <= index) continue;
        const char *const hit =
            find_bytes(str_text(&r->text) + from, r->text.len - from, p->text, p->len);
        return hit ? (size_t)(hit - str_text(&r->text)) : r->text.len;
    }
    return r->text.len;
}

/* Renders what comes before the message, with the prompt that makes the model answer. Its length if
 * that is a prefix of the text, else 0. */
static size_t prompt_length(const struct chat_rendering *r, const struct chat_renderer *renderer,
                            const struct chat *chat, size_t index, const char *variables) {
    struct str json = {0}, prompt = {0};
    chat_append_json(chat, index, r->arguments, NULL, &json);
    size_t len = 0;
    const struct template_inputs inputs = {.messages_json = str_text(&json),
                                           .variables_json = variables,
                                           .add_generation_prompt = true};
    if (render(renderer, chat, inputs, &prompt, NULL) == STATUS_OK &&
        matches(&r->text, 0, str_text(&prompt), prompt.len)) {
        len = prompt.len;
    }
    str_release(&json);
    str_release(&prompt);
    return len;
}

static bool is_blank(const char *text, size_t len) {
    chat_trim(&text, &len);
    return len == 0;
}

static bool has_reasoning(const struct chat *chat, size_t index) {
    if (chat->messages[index].reasoning_key) return true;
    const struct str *const content = &chat->messages[index].content;
    return find_bytes(str_text(content), content->len, "<think>", 7) ||
           find_bytes(str_text(content), content->len, "</think>", 8);
}

/* Words without reasoning: everything the template puts between the prompt and them, other than
 * white space, is its own (an empty think block) and is not trained. The gap is looked up once per
 * different template text in front of it: a long conversation would otherwise cost a rendering of
 * its beginning for every answer. */
static size_t plain_begin(struct chat_rendering *r, const struct chat_renderer *renderer,
                          const struct chat *chat, size_t index, size_t words) {
    size_t before = 0; /* where the template text in front of the words begins */
    for (size_t i = 0; i < r->order_count && r->places[r->order[i]].end <= words; i++) {
        before = r->places[r->order[i]].end;
    }
    const char *const text = str_text(&r->text);
    const size_t len = words - before;
    if (r->gap_known && r->gap_len == len && memcmp(text + r->gap_begin, text + before, len) == 0) {
        return words - r->gap;
    }
    const size_t prompt = prompt_length(r, renderer, chat, index, renderer->variables_json);
    const bool usable = prompt >= before && prompt > 0 && prompt <= words &&
                        is_blank(text + prompt, words - prompt);
    r->gap_known = r->separated;
    r->gap_begin = before;
    r->gap_len = len;
    r->gap = usable ? words - prompt : 0;
    return words - r->gap;
}

/* The end of a message that calls tools: the part of the text behind the arguments of its last
 * call, found by a rendering with those arguments marked. */
static enum status calls_end(const struct chat_rendering *r, const struct chat_renderer *renderer,
                             const struct chat *chat, size_t index, size_t *end, struct err *e) {
    struct str marked = {0};
    const struct chat_marks marks = {&r->pieces, CHAT_NONE, (int64_t)index, r->salt};
    enum status status = STATUS_OK;
    size_t tail = 0;
    if (render_chat(renderer, chat, r->arguments, &marks, &marked, NULL) == STATUS_OK) {
        int64_t piece;
        for (size_t at = next_mark(r, &marked, 0, &piece); piece >= 0;
             at = next_mark(r, &marked, at + CHAT_MARK_LEN, &piece)) {
            tail = at + CHAT_MARK_LEN;
        }
    }
    if (tail == 0) {
        status = answer_error(chat, index,
                              "the chat template leaves out the tool calls of this message", e);
    } else {
        size_t common = 0;
        const char *const a = str_text(&r->text), *const b = str_text(&marked);
        while (common < marked.len - tail && common < r->text.len &&
               a[r->text.len - 1 - common] == b[marked.len - 1 - common]) {
            common++;
        }
        *end = r->text.len - common;
    }
    str_release(&marked);
    return status;
}

/* Where a message with reasoning, or with nothing but tool calls, begins: only the prompt can tell.
 * It must lie before `words`. */
static enum status prompted_begin(struct chat_answer *answer, const struct chat_rendering *r,
                                  const struct chat_renderer *renderer, const struct chat *chat,
                                  size_t index, size_t words) {
    answer->begin = prompt_length(r, renderer, chat, index, renderer->variables_json);
    if (answer->begin == 0 || answer->begin > words) return STATUS_INVALID;
    if (has_reasoning(chat, index)) return STATUS_OK;
    const size_t longer =
        prompt_length(r, renderer, chat, index, renderer->variables_not_thinking_json);
    if (longer > answer->begin && longer <= words) answer->begin = longer;
    return STATUS_OK;
}

enum status chat_answer_find(struct chat_answer *answer, struct chat_rendering *r,
                             const struct chat_renderer *renderer, const struct chat *chat,
                             size_t index, struct err *e) {
    ASSERT(index < chat->count);
    *answer = (struct chat_answer){0};
    if (!r->separated) TRY(place_alone(r, renderer, chat, index, e));
    const bool calls = chat->messages[index].call_count > 0;
    struct chat_place first = {0}, last = {0};
    const bool words = message_places(r, index, &first, &last);
    if (!words && !calls) {
        answer->empty = true;
        return STATUS_OK;
    }
    answer->end = last.end;
    if (calls) {
        size_t end = 0;
        TRY(calls_end(r, renderer, chat, index, &end, e));
        if (end > answer->end) answer->end = end;
    }
    answer->limit = next_words(r, chat, index, answer->end);
    if (words && !has_reasoning(chat, index)) {
        answer->begin = plain_begin(r, renderer, chat, index, first.begin);
        return STATUS_OK;
    }
    const size_t limit = words ? first.begin : answer->end;
    if (prompted_begin(answer, r, renderer, chat, index, limit) == STATUS_OK) return STATUS_OK;
    return answer_error(chat, index,
                        "the chat template does not lead to this answer by its own prompt", e);
}
