/* corpus_report.h - what is to be said about a run's data: how far encoding is, and what is wrong
 * with rows that are trained or left out all the same.
 *
 * Law 6: nothing that happens to a row is silent, so every counted problem becomes a log event. */
#ifndef PLIMSOLL_ENGINE_TRAIN_CORPUS_REPORT_H
#define PLIMSOLL_ENGINE_TRAIN_CORPUS_REPORT_H

#include "engine/events.h"
#include "engine/train/corpus.h"

/* Events of progress, about one a second. Zeroed but for the log. */
struct corpus_progress_report {
    struct event_log *log;
    int64_t last_ns;
};
/* For struct corpus_watch; context is a corpus_progress_report. */
void corpus_report_progress(void *context, const struct dataset_progress *progress);

/* A log event for everything that is to be said about the tokenizer's files, and one for every
 * problem that rows of the corpus have, with counts and first lines. */
enum status corpus_report_problems(struct event_log *log, const struct spec *spec,
                                   const struct corpus *corpus, struct err *e);

/* A text of lines as a JSON list. Caller frees. */
cJSON *report_lines(const char *text);

/* The counts of a dataset as JSON, all keys; {"rows",..., "rows_<problem>",..., "first_lines":
 * {"<problem>":[{"file","line"}]}} with the files' names. Caller frees. */
cJSON *report_counts(const struct dataset_counts *counts, const struct spec_strings *files);

#endif
