/* dataset.c - the rows of some files as samples: a visitor of dataset_each that writes down what is
 * to be trained and counts what is not. What was written is kept under the name of its inputs, so
 * that the second process that wants it only opens it. */
#include "engine/text/dataset.h"

#include <string.h>

#include "base/mem.h"
#include "engine/text/dataset_cache.h"
#include "engine/text/dataset_store.h"
#include "engine/text/encode.h"

struct loader {
    struct dataset_writer writer;
    enum data_format format;
    int64_t max_length;
};

/* A long text goes into pieces that overlap by one token, so that every token is predicted once. */
static enum status add_pieces(struct loader *l, const struct encoded *row, int64_t line,
                              struct err *e) {
    const int64_t max = l->max_length, count = (int64_t)row->ids.count;
    for (int64_t at = 0; at + 1 < count; at += max - 1) {
        const int64_t left = count - at;
        const struct sample piece = {row->ids.ids + at, row->trained + at, left < max ? left : max,
                                     line};
        TRY(dataset_writer_add(&l->writer, &piece, e));
    }
    return STATUS_OK;
}

void dataset_counts_add(struct dataset_counts *counts, const struct row_outcome *outcome) {
    counts->rows += outcome->part == 0;
    for (int i = 0; i < ROW_PROBLEM_COUNT; i++) {
        struct row_tally *const tally = &counts->problems[i];
        if (!(outcome->problems & UINT32_C(1) << i)) continue;
        if (tally->rows < TALLY_LINES) {
            tally->first[tally->rows].file = outcome->file;
            tally->first[tally->rows].line = outcome->line;
        }
        tally->rows++;
    }
    if (!outcome->encoded) return;
    counts->control_tokens += outcome->encoded->control_tokens;
    counts->open_answers += outcome->encoded->open_answers;
}

static enum status keep_row(void *context, const struct row_outcome *outcome, struct err *e) {
    struct loader *const l = context;
    const struct encoded *const row = outcome->encoded;
    const uint32_t dropped = UINT32_C(1) << ROW_UNTRAINED | UINT32_C(1) << ROW_ANSWER_CUT;
    dataset_counts_add(&l->writer.counts, outcome);
    if (l->format == FORMAT_AUTO) l->format = outcome->format;
    if (outcome->problems & dropped) return STATUS_OK;
    if (row->is_text) return add_pieces(l, row, outcome->line, e);
    const int64_t count = (int64_t)row->ids.count, max = l->max_length;
    const struct sample sample = {row->ids.ids, row->trained, count < max ? count : max,
                                  outcome->line};
    return dataset_writer_add(&l->writer, &sample, e);
}

static enum status nothing_to_train(const struct loader *l, const char *path, struct err *e) {
    const struct dataset_counts *const c = &l->writer.counts;
    const int64_t untrained = c->problems[ROW_UNTRAINED].rows;
    const int64_t answer_cut = c->problems[ROW_ANSWER_CUT].rows;
    struct str why = {0};
    if (untrained) {
        str_appendf(&why, ": in %s%lld every assistant message has weight 0 or says nothing",
                    untrained == c->rows ? "all " : "", (long long)untrained);
    }
    if (answer_cut) {
        str_appendf(&why, "%s in %lld the answer lies beyond max_length %lld", why.len ? "," : ":",
                    (long long)answer_cut, (long long)l->max_length);
    }
    const enum status status =
        err_set(e, STATUS_INVALID, "%s: all %lld rows have no token to train on%s", path,
                (long long)c->rows, str_text(&why));
    str_release(&why);
    return status;
}

static enum status encode_files(struct loader *l, char *const *paths, int64_t path_count,
                                const struct dataset_options *options,
                                const struct dataset_keeping *keeping, struct err *e) {
    const struct dataset_visitor visitor = {.context = l,
                                            .row = keep_row,
                                            .progress = keeping ? keeping->progress : NULL,
                                            .progress_context = keeping ? keeping->context : NULL};
    TRY(dataset_each(paths, path_count, options, &visitor, e));
    if (l->writer.counts.samples == 0) return nothing_to_train(l, paths[path_count - 1], e);
    return STATUS_OK;
}

static enum status load_anew(struct dataset *dataset, const char *cached, char *const *paths,
                             int64_t path_count, const struct dataset_options *options,
                             const struct dataset_keeping *keeping, struct err *e) {
    struct loader l = {.max_length = options->max_length};
    TRY(dataset_writer_open(&l.writer, cached, e));
    enum status status = encode_files(&l, paths, path_count, options, keeping, e);
    if (status == STATUS_OK) status = dataset_writer_finish(&l.writer, l.format, dataset, e);
    dataset_writer_abort(&l.writer);
    if (status == STATUS_OK && cached) cache_trim(keeping->place, DATASET_CACHE_SUFFIX, cached);
    return status;
}

enum status dataset_load(struct dataset *dataset, char *const *paths, int64_t path_count,
                         const struct dataset_options *options,
                         const struct dataset_keeping *keeping, struct err *e) {
    *dataset = (struct dataset){.format = FORMAT_AUTO};
    if (!keeping) return load_anew(dataset, NULL, paths, path_count, options, NULL, e);
    char *cached = NULL;
    bool found = false;
    enum status status = dataset_cache_path(&cached, keeping, paths, path_count, options, e);
    if (status == STATUS_OK) status = dataset_cache_get(dataset, cached, &found, e);
    if (status == STATUS_OK && !found)
        status = load_anew(dataset, cached, paths, path_count, options, keeping, e);
    dataset->from_cache = found;
    mem_free(cached);
    return status;
}
