/* data_rows.h - single rows of a data file as a run would see them: the rendered text, each token
 * with its id, and which of them are trained.
 *
 * The answer is JSON text, not a tree: rows may hold NUL, which a tree of C strings cannot. It is
 * bounded whatever a row holds: a long row is given in pages of tokens. */
#ifndef PLIMSOLL_ENGINE_TRAIN_DATA_ROWS_H
#define PLIMSOLL_ENGINE_TRAIN_DATA_ROWS_H

#include "engine/train/data_report.h"

enum { DATA_ROWS_MAX = 20, DATA_TOKENS_MAX = 5000, DATA_TOKENS_PRESET = 2000 };

/* Rows count from 1, tokens from 0. */
struct data_window {
    int64_t row_first, row_count; /* up to DATA_ROWS_MAX */
    int64_t offset, limit;        /* tokens of each row */
};

/* Appends {"format","mask","max_length","rows":[...]}. A row is {"row","line","part","parts" (more
 * than one where a row is split),"problems":[names],"error":{"field","message"} or null,
 * "total" (tokens),"kept" (those before the cut),"trained" (of the kept),"samples",
 * "offset","next_offset" (null: no tokens are left),"text": the rendering from the first to the
 * last token of this page,"text_cut","tokens":[{"id","text","trained","special"}]; a
 * token that cuts a character has "partial" true, its stray bytes in "text" as \xHH, and "shown":
 * the whole characters that end in it,
 * "source": for a row that is wrong, the beginning of it as it stands in the file, else null}.
 * STATUS_NOT_FOUND: the file has no such row. */
enum status data_rows(const struct data_reader *reader, const struct data_window *window,
                      struct str *out, struct err *e);

#endif
