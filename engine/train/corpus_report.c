/* corpus_report.c - progress, problems and counts of the data as events and JSON.
 *
 * The wording of problems is the table's in engine/text/dataset_problem.c; here are only numbers
 * and places. */
#include "engine/train/corpus_report.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/train/report.h"

static const int64_t PROGRESS_EVERY_NS = 1000000000;

void corpus_report_progress(void *context, const struct dataset_progress *progress) {
    struct corpus_progress_report *const r = context;
    const int64_t now = clock_steady_ns();
    if (r->last_ns == 0) r->last_ns = now; /* short files need none */
    if (now - r->last_ns < PROGRESS_EVERY_NS) return;
    r->last_ns = now;
    cJSON *const fields = cJSON_CreateObject();
    json_add_string(fields, "what", "data");
    json_add_i64(fields, "bytes", progress->bytes);
    json_add_i64(fields, "bytes_total", progress->bytes_total);
    json_add_i64(fields, "rows", progress->rows);
    struct err ignored = {0}; /* a log that fails now fails again at the next event that matters */
    event_write(r->log, EVENT_PROGRESS, fields, &ignored);
}

static const char *file_of(const struct spec_strings *files, int64_t file) {
    ASSERT(file >= 0 && file < files->count);
    return file_base_name(files->items[file]);
}

/* What changes what is learned is a warning; what only was noticed is not. */
static const char *level_of(enum row_problem problem) {
    switch (problem) {
    case ROW_CONTROL_TOKENS:
    case ROW_EXTRA_KEYS:
    case ROW_MERGED_TURNS:
    case ROW_FOLDED_SYSTEM: return "info";
    default: return "warn";
    }
}

static enum status report_counts_of(struct event_log *log, const struct dataset_counts *counts,
                                    const struct spec_strings *files, struct err *e) {
    for (int i = 0; i < ROW_PROBLEM_COUNT; i++) {
        const struct row_tally *const tally = &counts->problems[i];
        if (tally->rows == 0) continue;
        char *text =
            str_format("%lld of %lld rows, the first in %s line %lld: %s", (long long)tally->rows,
                       (long long)counts->rows, file_of(files, tally->first[0].file),
                       (long long)tally->first[0].line, row_problem_sentence((enum row_problem)i));
        const enum status status = report_log(log, level_of((enum row_problem)i), text, e);
        mem_free(text);
        TRY(status);
    }
    return STATUS_OK;
}

cJSON *report_lines(const char *text) {
    cJSON *const lines = cJSON_CreateArray();
    for (const char *at = text; *at;) {
        const size_t len = strcspn(at, "\n");
        char *const line = mem_strndup(at, len);
        if (len) cJSON_AddItemToArray(lines, cJSON_CreateString(line));
        mem_free(line);
        at += len + (at[len] == '\n');
    }
    return lines;
}

static enum status report_text(struct event_log *log, const char *level, const char *text,
                               struct err *e) {
    cJSON *const lines = report_lines(text);
    enum status status = STATUS_OK;
    for (const cJSON *line = lines->child; line && status == STATUS_OK; line = line->next) {
        status = report_log(log, level, line->valuestring, e);
    }
    cJSON_Delete(lines);
    return status;
}

enum status corpus_report_problems(struct event_log *log, const struct spec *spec,
                                   const struct corpus *corpus, struct err *e) {
    TRY(report_text(log, "warn", tokenizer_warnings(corpus->tokenizer), e));
    TRY(report_text(log, "info", tokenizer_notes(corpus->tokenizer), e));
    if (corpus->train.from_cache)
        TRY(report_log(log, "info", "The training data were encoded before and are used again", e));
    TRY(report_counts_of(log, &corpus->train.counts, &spec->data.train_files, e));
    if (!corpus->has_eval) return STATUS_OK;
    return report_counts_of(log, &corpus->eval.counts, &spec->data.eval_files, e);
}

static void add_first_lines(cJSON *json, const struct dataset_counts *counts,
                            const struct spec_strings *files) {
    cJSON *const all = cJSON_AddObjectToObject(json, "first_lines");
    for (int i = 0; i < ROW_PROBLEM_COUNT; i++) {
        const struct row_tally *const tally = &counts->problems[i];
        if (tally->rows == 0) continue;
        cJSON *const list = cJSON_AddArrayToObject(all, row_problem_name((enum row_problem)i));
        for (int64_t k = 0; k < tally->rows && k < TALLY_LINES; k++) {
            cJSON *const place = cJSON_CreateObject();
            json_add_string(place, "file", file_of(files, tally->first[k].file));
            json_add_i64(place, "line", tally->first[k].line);
            cJSON_AddItemToArray(list, place);
        }
    }
}

cJSON *report_counts(const struct dataset_counts *c, const struct spec_strings *files) {
    cJSON *const json = cJSON_CreateObject();
    json_add_i64(json, "rows", c->rows);
    json_add_i64(json, "samples", c->samples);
    json_add_i64(json, "tokens", c->tokens);
    json_add_i64(json, "trained_tokens", c->trained_tokens);
    json_add_i64(json, "longest", c->longest);
    json_add_i64(json, "control_tokens", c->control_tokens);
    json_add_i64(json, "open_answers", c->open_answers);
    for (int i = 0; i < ROW_INVALID; i++) { /* an invalid row ends a run before it has counts */
        char *key = str_format("rows_%s", row_problem_name((enum row_problem)i));
        json_add_i64(json, key, c->problems[i].rows);
        mem_free(key);
    }
    add_first_lines(json, c, files);
    return json;
}
