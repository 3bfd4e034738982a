/* chat.h - a conversation as it was read from a row, whatever the row's format, and its way back to
 * JSON for the chat template. Contents are byte strings (they may hold NUL); what the row says
 * beyond content (names, tool calls, keys of the user's own) is kept as the JSON text it was, so
 * that templates see exact numbers and key order.
 *
 * A chat can also be written with marks: stand-ins in the place of chosen pieces of content.
 * Rendering it that way shows which parts of a rendering the template made and which the row
 * (chat_align.h). */
#ifndef PLIMSOLL_ENGINE_TEXT_CHAT_H
#define PLIMSOLL_ENGINE_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_ROLE_COUNT };
/* "system", "user", "assistant", "tool". */
const char *chat_role_name(enum chat_role role);

/* One tool call: before, arguments and after, end to end, are its JSON object. */
struct chat_call {
    struct str before, arguments, after; /* arguments: a JSON object */
};

struct chat_message {
    enum chat_role role;
    bool has_content; /* false: null */
    bool trainable;   /* an assistant's message that weight and train leave in */
    struct str content;
    const char *reasoning_key; /* the row's name for the reasoning field, or NULL; a literal */
    struct str reasoning;
    struct str extra; /* further members as JSON text, each with a comma in front */
    struct chat_call *calls;
    size_t call_count, call_capacity;
};

struct chat {
    struct chat_message *messages;
    size_t count, capacity;
    size_t given; /* the first so many messages are a prompt: not to be learned, unless everything
                     is */
    struct str tools; /* JSON array, empty: none */
    size_t folded;    /* messages of the row that went from its beginning */
};

void chat_release(struct chat *chat);
/* Appends a message and returns it; it is valid until the next one is added. */
struct chat_message *chat_add(struct chat *chat, enum chat_role role);
struct chat_call *chat_add_call(struct chat_message *message);

/* Makes one message of neighbours that have the same role, with a blank line between their contents
 * (data sets with two questions in a row; templates that insist on turns). Messages that hold more
 * than content, or of which only one is trained, stay. Returns how many messages went. */
size_t chat_merge_turns(struct chat *chat);

/* A conversation whose system messages, those it begins with, stand in front of the content of the
 * user's message right after them, blank lines between. Borrows all else from the first. */
struct chat_folded {
    struct chat chat;
    struct str content;
};
/* False: it does not begin so, or a system message holds more than content. Caller frees with
 * chat_folded_release. */
bool chat_fold_system(struct chat_folded *folded, const struct chat *chat);
void chat_folded_release(struct chat_folded *folded);

/* A piece of text that the row brings into the rendering: white space at its ends is not part of
 * it, since templates trim. An assistant's content is cut at its <think> and </think> tags, because
 * templates move and remove reasoning. */
struct chat_piece {
    size_t message;
    const char *text; /* points into the chat */
    size_t len;
    bool in_reasoning_field;
    bool may_vanish; /* reasoning: a template may leave it out */
};

struct chat_pieces {
    struct chat_piece *items;
    size_t count, capacity;
};
/* Lists all pieces in reading order. Caller frees with chat_pieces_release. */
void chat_pieces_find(struct chat_pieces *pieces, const struct chat *chat);
void chat_pieces_release(struct chat_pieces *pieces);

enum { CHAT_ALL = -1, CHAT_NONE = -2 };

/* What is written in place of the row's own words. */
struct chat_marks {
    const struct chat_pieces *pieces;
    int64_t message;      /* whose pieces are marked: an index, CHAT_ALL or CHAT_NONE */
    int64_t call_message; /* whose last tool call gets a mark for arguments, or CHAT_NONE */
    uint32_t salt;        /* makes the marks differ from any text of the row */
};
enum { CHAT_MARK_LEN = 20 };
/* The mark of a piece: letters and digits, nothing a template trims, splits or escapes. */
void chat_mark_text(char out[CHAT_MARK_LEN + 1], uint32_t salt, size_t piece);
/* The piece whose mark stands at text[0..len), or -1. */
int64_t chat_mark_read(const char *text, size_t len, uint32_t salt);

/* How tool arguments are written: templates differ in what they can take. */
enum chat_arguments { CHAT_ARGUMENTS_OBJECT, CHAT_ARGUMENTS_TEXT };

/* Appends the JSON array of the first `count` messages. marks may be NULL. */
void chat_append_json(const struct chat *chat, size_t count, enum chat_arguments arguments,
                      const struct chat_marks *marks, struct str *out);
/* Appends text[0..len), valid UTF-8, as a JSON string with its quotes. Non-ASCII stays as it is. */
void chat_append_quoted(struct str *out, const char *text, size_t len);
/* Cuts Unicode white space off both ends. */
void chat_trim(const char **text, size_t *len);

#endif
