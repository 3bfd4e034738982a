/* dataset.c - the rows of some files as one array of tokens: a visitor of dataset_each that keeps
 * what is to be trained and counts what is not. */
#include "engine/text/dataset.h"

#include <string.h>

#include "base/mem.h"
#include "engine/text/encode.h"

struct loader {
    struct dataset *dataset;
    int64_t max_length;
};

static int64_t grown(int64_t capacity, int64_t need, int64_t least) {
    if (need <= capacity) return capacity;
    return capacity * 2 > need ? capacity * 2 : need > least ? need : least;
}

static void append_sample(struct dataset *d, const int32_t *ids, const uint8_t *trained,
                          int64_t count, int64_t line) {
    ASSERT(count > 0);
    const int64_t used = d->counts.tokens, samples = d->counts.samples;
    const int64_t tokens = grown(d->capacity_tokens, used + count, 4096);
    if (tokens != d->capacity_tokens) {
        d->ids = mem_resize(d->ids, (size_t)tokens, sizeof *d->ids);
        d->trained = mem_resize(d->trained, (size_t)tokens, 1);
        d->capacity_tokens = tokens;
    }
    const int64_t capacity = grown(d->capacity_samples, samples + 1, 64);
    if (capacity != d->capacity_samples) {
        d->offsets = mem_resize(d->offsets, (size_t)capacity + 1, sizeof *d->offsets);
        d->lines = mem_resize(d->lines, (size_t)capacity, sizeof *d->lines);
        d->capacity_samples = capacity;
    }
    memcpy(d->ids + used, ids, (size_t)count * sizeof *ids);
    memcpy(d->trained + used, trained, (size_t)count);
    d->trained[used] = 0; /* nothing comes before it */
    for (int64_t i = 1; i < count; i++) {
        d->counts.trained_tokens += trained[i];
    }
    d->offsets[samples] = used;
    d->offsets[samples + 1] = used + count;
    d->lines[samples] = line;
    d->counts.samples++;
    d->counts.tokens += count;
    if (count > d->counts.longest) d->counts.longest = count;
}

/* A long text goes into pieces that overlap by one token, so that every token is predicted once. */
static void append_pieces(struct loader *l, const struct encoded *row, int64_t line) {
    const int64_t max = l->max_length, count = (int64_t)row->ids.count;
    for (int64_t at = 0; at + 1 < count; at += max - 1) {
        const int64_t left = count - at;
        append_sample(l->dataset, row->ids.ids + at, row->trained + at, left < max ? left : max,
                      line);
    }
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
    (void)e;
    dataset_counts_add(&l->dataset->counts, outcome);
    if (l->dataset->format == FORMAT_AUTO) l->dataset->format = outcome->format;
    if (outcome->problems & dropped) return STATUS_OK;
    const int64_t count = (int64_t)row->ids.count, max = l->max_length;
    if (row->is_text) {
        append_pieces(l, row, outcome->line);
    } else {
        append_sample(l->dataset, row->ids.ids, row->trained, count < max ? count : max,
                      outcome->line);
    }
    return STATUS_OK;
}

static enum status nothing_to_train(const struct loader *l, const char *path, struct err *e) {
    const struct dataset_counts *const c = &l->dataset->counts;
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

enum status dataset_load(struct dataset *dataset, char *const *paths, int64_t path_count,
                         const struct dataset_options *options, struct err *e) {
    *dataset = (struct dataset){.format = FORMAT_AUTO};
    struct loader l = {dataset, options->max_length};
    const struct dataset_visitor visitor = {.context = &l, .row = keep_row};
    TRY(dataset_each(paths, path_count, options, &visitor, e));
    if (dataset->counts.samples == 0) return nothing_to_train(&l, paths[path_count - 1], e);
    return STATUS_OK;
}

void dataset_release(struct dataset *dataset) {
    if (!dataset) return;
    mem_free(dataset->ids);
    mem_free(dataset->trained);
    mem_free(dataset->offsets);
    mem_free(dataset->lines);
    *dataset = (struct dataset){0};
}

struct sample dataset_sample(const struct dataset *dataset, int64_t index) {
    ASSERT(index >= 0 && index < dataset->counts.samples);
    const int64_t first = dataset->offsets[index];
    return (struct sample){
        .ids = dataset->ids + first,
        .trained = dataset->trained + first,
        .count = dataset->offsets[index + 1] - first,
        .line = dataset->lines[index],
    };
}
