/* chat_read.h - conversations out of the JSON of a row: OpenAI messages, ShareGPT turns, tools.
 * What a key may hold is checked here, once; an error's param and text begin with the field's path
 * in the row ("messages[2].role"), and no text shows a content. */
#ifndef PLIMSOLL_ENGINE_TEXT_CHAT_READ_H
#define PLIMSOLL_ENGINE_TEXT_CHAT_READ_H

#include <stddef.h>

#include "base/err.h"
#include "engine/text/chat.h"
#include "engine/text/rows_json.h"

enum { FIELD_MAX = 96 };

/* Raises STATUS_INVALID about a field: param is the path, the text is "path: ...". */
enum status field_error(struct err *e, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* path[index], cut when it would not fit. */
void field_index(char out[FIELD_MAX], const char *path, size_t index);

/* Appends the messages of an array of {"role","content",...}. `path` is what errors call the array.
 */
enum status chat_read_messages(struct chat *chat, const struct row_json *j, size_t array,
                               const char *path, struct err *e);
/* Appends the turns of an array of {"from","value"}; turns in OpenAI's spelling are read too. */
enum status chat_read_turns(struct chat *chat, const struct row_json *j, size_t array,
                            const char *path, struct err *e);
/* Appends one turn, in either spelling. */
enum status chat_read_turn(struct chat *chat, const struct row_json *j, size_t object,
                           const char *path, struct err *e);
/* Reads `tools`: an array, or a JSON text of one. */
enum status chat_read_tools(struct chat *chat, const struct row_json *j, size_t value,
                            struct err *e);

/* Keys of `object` that are one slip away from a known one ("weigth") are an error. */
enum status chat_check_keys(const struct row_json *j, size_t object, const char *path,
                            const char *const *known, struct err *e);

#endif
