/* dataset.h - from a file of rows to token ids with a mask. Knows formats, not models; needs a
 * tokenizer and, for chat rows, a chat template.
 *
 * Nothing is lost in silence: every row that is dropped, cut or empty is counted by reason, and an
 * error names the file and the physical line. */
#ifndef PLIMSOLL_ENGINE_TEXT_DATASET_H
#define PLIMSOLL_ENGINE_TEXT_DATASET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

struct tokenizer;
struct chat_template;

enum data_format {
    FORMAT_AUTO,
    FORMAT_MESSAGES,
    FORMAT_PROMPT_COMPLETION,
    FORMAT_TEXT,
    FORMAT_ALPACA,
    FORMAT_SHAREGPT,
    FORMAT_COUNT
};
enum data_mask { MASK_ASSISTANT, MASK_LAST, MASK_ALL, MASK_COUNT };

/* "auto", "messages", "prompt_completion", "text", "alpaca", "sharegpt"; "assistant", "last",
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
};

/* One row, ready to train on. Points into the dataset. trained[i] says that token i is predicted
 * and counts in the loss; trained[0] is never set, nothing comes before it. */
struct sample {
    const int32_t *ids;
    const uint8_t *trained;
    int64_t count;
    int64_t line; /* physical line in its file, from 1 */
};

/* What was read, for plan, events and page. */
struct dataset_counts {
    int64_t rows;    /* rows in the file, blank lines aside */
    int64_t samples; /* what is left to train on (text rows may give several) */
    int64_t tokens, trained_tokens;
    int64_t longest;         /* tokens of the longest sample, after cutting */
    int64_t rows_cut;        /* longer than max_length, cut at the end */
    int64_t rows_untrained;  /* dropped: nothing to train on in the file's own terms (all weights 0,
                                empty answer) */
    int64_t rows_answer_cut; /* dropped: cutting removed every trained token */
    int64_t
        control_tokens; /* special-token spellings found inside content and treated as plain text */
    int64_t open_answers; /* trained answers after which the template writes no end-of-turn token */
    int64_t rows_extra_keys; /* rows with keys that their format does not know and that nothing
                                looks at */
};

struct dataset {
    enum data_format format;
    struct dataset_counts counts;
    int32_t *ids;     /* all samples end to end */
    uint8_t *trained; /* same length */
    int64_t *offsets; /* [samples+1] */
    int64_t *lines;   /* [samples] */
    int64_t capacity_tokens, capacity_samples;
};

/* Reads one or more files into one dataset. STATUS_INVALID with file and line for anything wrong in
 * them, among it "no row has a trained token". Caller releases with dataset_release, also after an
 * error. */
enum status dataset_load(struct dataset *dataset, char *const *paths, int64_t path_count,
                         const struct dataset_options *options, struct err *e);
void dataset_release(struct dataset *dataset);
struct sample dataset_sample(const struct dataset *dataset, int64_t index);

/* Checks a file without any model: encoding, JSON, format, fields. Fills a report object:
 * {"format" (null: none was found),"rows","bytes" (of the file),"rows_extra_keys","error_count",
 * "first_rows":[up to 3 rows as they are, those above 64 KiB left out],
 * "errors":[{"line","field" (or null),"message"}...]} with at most `errors_max` errors. Returns
 * STATUS_OK also when the file has errors (they are in the report); the status is for files that
 * cannot be read. Rows and numbers are raw JSON items: print the report, do not look into it with
 * json_get_*. Caller frees *report with cJSON_Delete. */
enum status dataset_check(const char *path, int64_t errors_max, cJSON **report, struct err *e);

#endif
