/* dataset.h - from a file of rows to token ids with a mask. Knows formats, not models; needs a
 * tokenizer and, for chat rows, a chat template.
 *
 * Nothing is lost in silence: every row that is dropped, cut or empty is counted by reason, and an
 * error names the file and the physical line. */
#ifndef PLIMSOLL_ENGINE_TEXT_DATASET_H
#define PLIMSOLL_ENGINE_TEXT_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cache.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"

struct tokenizer;
struct chat_template;
struct encoded;
struct sample_place;

enum data_format {
    FORMAT_AUTO,
    FORMAT_MESSAGES,
    FORMAT_PROMPT_COMPLETION,
    FORMAT_TEXT,
    FORMAT_ALPACA,
    FORMAT_SHAREGPT,
    FORMAT_PREFERENCE, /* read, checked and counted; a run cannot train on it yet */
    FORMAT_COUNT
};
enum data_mask { MASK_ASSISTANT, MASK_LAST, MASK_ALL, MASK_COUNT };

/* "auto", "messages", "prompt_completion", "text", "alpaca", "sharegpt",
 * "preference"; "assistant", "last",
 * "all". The parsers give the *_COUNT value for an unknown name. */
const char *data_format_name(enum data_format format);
enum data_format data_format_parse(const char *name);
const char *data_mask_name(enum data_mask mask);
enum data_mask data_mask_parse(const char *name);

/* The pointers are borrowed during the call. */
struct dataset_options {
    enum data_format
        format; /* FORMAT_AUTO: each file's first row decides; all its rows must agree */
    enum data_mask mask;
    /* Tokens. A longer row is cut at its end; a text row is cut into pieces of this length, which
     * overlap by one token so that each token is predicted once. */
    int64_t max_length;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template; /* NULL: chat rows are refused with the reason */
    int64_t vocab;                             /* every id must be below this */
    int64_t now_unix_s;                        /* for strftime_now: when the job was created */
    bool parse_special; /* special-token spellings in rows become those tokens (Hugging Face's way)
                         */
    bool drop_messages; /* what the chat template leaves out is counted, not an error */
    bool split_turns;   /* each trained answer becomes a row of its own, with all before it */
    bool merge_turns;   /* messages of one role in a row become one, a blank line between them */
    bool fold_system;   /* a system message that the chat template leaves out or refuses is put in
                           front of the first user's message, a blank line between them */
    bool replace_invalid_utf8; /* U+FFFD for what is no text, instead of an error */
    bool keep_text;            /* encoded rows keep the text that was tokenised, for showing */
};

/* What can be said against a row. ROW_INVALID: it is an error and gives nothing to train on. */
enum row_problem {
    ROW_CUT,               /* longer than max_length, cut at the end */
    ROW_UNTRAINED,         /* dropped: nothing to train on in the row's own terms */
    ROW_ANSWER_CUT,        /* dropped: cutting removed every trained token */
    ROW_CONTROL_TOKENS,    /* special-token spellings inside content, treated as plain text */
    ROW_OPEN_ANSWER,       /* no end-of-turn token after a trained answer */
    ROW_EXTRA_KEYS,        /* keys that its format does not know and that nothing looks at */
    ROW_DROPPED_MESSAGE,   /* the chat template leaves out a message or the tools */
    ROW_ARGUMENTS_AS_TEXT, /* the template takes tool arguments only as a string */
    ROW_MERGED_TURNS,      /* messages of one role in a row were made one, on request */
    ROW_REPLACED_TEXT,     /* bytes or escapes that are no text became U+FFFD, on request */
    ROW_FOLDED_SYSTEM,     /* the system message stands in the first user's, on request */
    ROW_INVALID,
    ROW_PROBLEM_COUNT
};
/* "cut", "untrained", ...; and what it means, a sentence for people. */
const char *row_problem_name(enum row_problem problem);
const char *row_problem_sentence(enum row_problem problem);

/* What became of a row. Everything in it is borrowed during the visit. */
struct row_outcome {
    const char *path;        /* of its file */
    int64_t file, row, line; /* index of the file; of the row, over all files; physical line from 1
                              */
    int64_t part, parts;     /* split_turns makes several of one row; else 0 of 1 */
    enum data_format format; /* FORMAT_AUTO: not known yet */
    const char *text;        /* the row as JSON, as it stands in the file; not terminated */
    size_t len;
    const struct encoded *encoded; /* engine/text/encode.h; NULL: invalid */
    uint32_t problems;             /* bit 1 << enum row_problem */
    const struct err *error;       /* NULL unless invalid; names neither path nor line */
};

struct dataset_progress {
    int64_t bytes, bytes_total; /* of all files, packed as they are */
    int64_t rows;
};

/* Who looks at the rows. Zeroed fields have no effect. */
struct dataset_visitor {
    void *context;
    /* Called on the caller's thread, in file order. An error ends the loop and is its result. */
    enum status (*row)(void *context, const struct row_outcome *outcome, struct err *e);
    void (*progress)(void *context, const struct dataset_progress *progress);
    void *progress_context;
    bool go_on;                   /* invalid rows are visited too; else the first ends the loop */
    int64_t rows_first, rows_max; /* a window: only these are encoded and visited; 0: all */
};

/* Reads all rows of the files, one thread reading and all cores encoding, and visits each. Memory
 * is that of two blocks of rows, whatever the files' size; the outcome does not depend on the
 * number of threads. Without go_on, STATUS_INVALID or STATUS_UNSUPPORTED with file and line for the
 * first row that is wrong. */
enum status dataset_each(char *const *paths, int64_t path_count,
                         const struct dataset_options *options,
                         const struct dataset_visitor *visitor, struct err *e);

/* One row, ready to train on. Points into the dataset. trained[i] says that token i is predicted
 * and counts in the loss; trained[0] is never set, nothing comes before it. */
struct sample {
    const int32_t *ids;
    const uint8_t *trained;
    int64_t count;
    int64_t line; /* physical line in its file, from 1 */
};

enum { TALLY_LINES = 3 };
/* How many rows have a problem, and where the first are. */
struct row_tally {
    int64_t rows;
    struct {
        int64_t file, line;
    } first[TALLY_LINES];
};

/* What was read, for plan, events and page. */
struct dataset_counts {
    int64_t rows;    /* rows in the file, blank lines aside */
    int64_t samples; /* what is left to train on (text rows may give several) */
    int64_t tokens, trained_tokens;
    int64_t longest;        /* tokens of the longest sample, after cutting */
    int64_t control_tokens; /* special-token spellings found inside content and treated as plain
                               text */
    int64_t open_answers;   /* trained answers after which the template writes no end-of-turn
                               token */
    struct row_tally problems[ROW_PROBLEM_COUNT];
};

/* Counts one outcome: rows, problems with their first lines, control tokens, open answers. Samples
 * and tokens are counted by who keeps them. */
void dataset_counts_add(struct dataset_counts *counts, const struct row_outcome *outcome);

/* Samples, ready to train on: mapped from a file, or in memory. dataset_store.h knows how they lie.
 */
struct dataset {
    enum data_format format;
    struct dataset_counts counts;
    bool from_cache; /* nothing had to be encoded */
    const unsigned char *records;
    const struct sample_place *index;
    struct file_map map;
    char *owned_records, *owned_index;
};

/* Where encoded data are kept, and who wants to know how far encoding is. */
struct dataset_keeping {
    const struct cache_place *place;
    const char *model_folder; /* its tokenizer and chat template are those of the options */
    void *context;
    void (*progress)(void *context, const struct dataset_progress *progress);
};

/* Reads one or more files into one dataset. With `keeping` the encoded samples lie in a file of the
 * place, which is found again by the contents of all inputs; with NULL they lie in memory.
 * STATUS_INVALID with file and line for anything wrong in the files, among it "no row has a trained
 * token"; STATUS_NO_SPACE when the place is full. Caller releases with dataset_release, also after
 * an error. */
enum status dataset_load(struct dataset *dataset, char *const *paths, int64_t path_count,
                         const struct dataset_options *options,
                         const struct dataset_keeping *keeping, struct err *e);
void dataset_release(struct dataset *dataset);
/* Points into the dataset. */
struct sample dataset_sample(const struct dataset *dataset, int64_t index);

/* Checks a file without any model: encoding, JSON, format, fields. Fills a report object:
 * {"format" (null: none was found),"rows","bytes" (of the file),"rows_extra_keys","error_count",
 * "first_rows":[up to 3 rows as they are, those above 64 KiB left out],
 * "error_groups":[{"message" (N for numbers of a place),"rows","first_line"}, at most 20 kinds],
 * "errors":[{"line","field" (or null),"message"}...]} with at most `errors_max` errors. Returns
 * STATUS_OK also when the file has errors (they are in the report); the status is for files that
 * cannot be read. Rows and numbers are raw JSON items: print the report, do not look into it with
 * json_get_*. Caller frees *report with cJSON_Delete. */
enum status dataset_check(const char *path, int64_t errors_max, cJSON **report, struct err *e);

#endif
