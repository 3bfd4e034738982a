/* data_report.h - what a data file becomes under a model, told before anything is trained: counts,
 * lengths, problems with their rows (report), and single rows as tokens (data_rows.h).
 *
 * A visitor of dataset_each, the loop that training reads with, so that what is told here is what a
 * run would do. Memory is some tens of MiB at most, whatever the file. */
#ifndef PLIMSOLL_ENGINE_TRAIN_DATA_REPORT_H
#define PLIMSOLL_ENGINE_TRAIN_DATA_REPORT_H

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/model/config.h"
#include "engine/spec.h"
#include "engine/text/dataset.h"

/* What both need to read a file as a run would. Close with data_reader_close, also after an error.
 */
struct data_reader {
    struct spec spec; /* its model, its files (exactly one), its data keys */
    struct model_config config;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template; /* NULL: the model has none */
    struct dataset_options options;
};
enum status data_reader_open(struct data_reader *reader, const cJSON *spec, struct err *e);
void data_reader_close(struct data_reader *reader);

/* Reads for about `seconds_max` (0: to the end) and reports on what was read by then.
 * {"complete" (the whole file was read),"read_share" (of the file's bytes, 0 to 1),
 *  "format" (null: none was found),"mask","max_length","model_max_length",
 *  "rows","samples","tokens","trained_tokens": what is trained on, after cutting,
 *  "lengths":{"mean","p50","p90","p95","p99","longest","over_max_length"}: of rows in tokens,
 *   before cutting,
 *  "histogram":{"width","counts":[...],"beyond"}: bar i counts lengths of i*width+1 to (i+1)*width,
 *   beyond counts what is longer than the last,
 *  "refusal": why a run would not start with this file, or null,
 *  "problems":[{"name","level" (error, warn, info),"sentence","count",
 *   "rows":[the first: {"row","line","field","message"}]}], every kind, those with count 0 too,
 *  "template":{"file" (null: none),"needed"},
 *  "tokenizer":{"size","notes":[...],"warnings":[...],"dropped"},
 *  "packing":{"padded_fill","packed_fill"}: shares of computed tokens that are rows' own, in
 *   the first epoch, padded or packed; null without samples}.
 * STATUS_OK also for a file whose rows are all wrong. Caller frees *out with cJSON_Delete. */
enum status data_report(const struct data_reader *reader, int64_t seconds_max, cJSON **out,
                        struct err *e);

/* Adds text[0..] as far as it is valid UTF-8: error texts are cut at a byte. */
void data_add_text(cJSON *object, const char *key, const char *text);

#endif
