/* chat_align.h - a conversation rendered by the model's chat template, and where in the rendering
 * each of its words is.
 *
 * The method: render the conversation, then render it again with marks in place of the row's words.
 * What stands between the marks is the template's; with it the places of the words in the first
 * rendering follow, and they are verified byte for byte: template text, words, template text must
 * give the whole rendering again. It holds for templates that rewrite history or append something
 * at the end (Qwen3, Phi-3), where comparing renderings of prefixes does not. When a place cannot
 * be shown this way it is an error of the row, never a guess. */
#ifndef PLIMSOLL_ENGINE_TEXT_CHAT_ALIGN_H
#define PLIMSOLL_ENGINE_TEXT_CHAT_ALIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/text/chat.h"
#include "engine/text/template.h"

/* What every rendering of a data set is given. Borrowed. */
struct chat_renderer {
    const struct chat_template *chat_template;
    const char *variables_json;              /* bos_token and the like */
    const char *variables_not_thinking_json; /* the same with enable_thinking false */
    int64_t now_unix_s;
    bool drop_messages; /* what the template leaves out is no error, but noted */
};

/* Bytes of the rendering. */
struct chat_place {
    bool found;
    size_t begin, end;
};

struct chat_rendering {
    struct str text;   /* what the model is trained on */
    struct str marked; /* the same conversation with marks */
    struct chat_pieces pieces;
    struct chat_place *places; /* by piece */
    size_t *order;             /* pieces that were found, as they come in the text */
    size_t order_count;
    bool separated; /* all places are known: what is outside them was written by the template */
    bool dropped_message; /* drop_messages: the template leaves out a message or the tools */
    bool system_lost;     /* it leaves out a system message, or refuses the conversation */
    enum chat_arguments arguments;
    uint32_t salt;
    /* the gap that the generation prompt leaves before an answer, for the template text it was
     * found with */
    size_t gap_begin, gap_len, gap;
    bool gap_known;
};

/* Renders and places. STATUS_INVALID: the template refuses the conversation, or leaves out a
 * message or the tools (unless drop_messages). `chat` must outlive the rendering. Caller frees with
 * chat_rendering_release, also after an error. */
enum status chat_rendering_make(struct chat_rendering *r, const struct chat_renderer *renderer,
                                const struct chat *chat, struct err *e);
void chat_rendering_release(struct chat_rendering *r);

/* An assistant's words in the rendering, from what its generation prompt would end with. The
 * end-of-turn token, if there is one, begins in [end, limit). */
struct chat_answer {
    size_t begin, end, limit;
    bool empty; /* the message says nothing */
};
/* Finds the answer of message `index`. STATUS_INVALID: its place in the rendering cannot be shown.
 */
enum status chat_answer_find(struct chat_answer *answer, struct chat_rendering *r,
                             const struct chat_renderer *renderer, const struct chat *chat,
                             size_t index, struct err *e);

#endif
