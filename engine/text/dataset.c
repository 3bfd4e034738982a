/* dataset.c - files of rows to one array of tokens. Rows are read one after another in blocks, the
 * rows of a block are encoded on all cores, and their results are appended in file order: the
 * outcome, the first error included, does not depend on the number of threads. Memory is the tokens
 * kept plus one block. */
#include "engine/text/dataset.h"

#include <string.h>

#include "base/mem.h"
#include "engine/text/encode.h"
#include "engine/text/rows.h"

/* A block is large enough to keep all cores busy and small enough to be nothing beside the tokens.
 */
enum { BLOCK_ROWS = 1024, BLOCK_BYTES = 8 << 20 };

/* What became of one row of a block. */
struct result {
    enum status status;
    struct err err;
    int64_t line;
    size_t begin, len; /* of its text in the block */
    struct encoded encoded;
    int64_t extra_keys;
};

struct loader {
    struct dataset *dataset;
    struct encoder encoder;
    const char *path;
    enum data_format format; /* of the file being read; FORMAT_AUTO before its first row */
    int64_t first_line;      /* that decided the format, 0: the user did */
    struct str text;         /* of the block's rows, end to end */
    struct result *results;  /* [BLOCK_ROWS] */
    int64_t count;
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

static bool any_trained(const uint8_t *trained, int64_t count) {
    return count > 1 && memchr(trained + 1, 1, (size_t)count - 1) != NULL;
}

/* A long text goes into pieces that overlap by one token, so that every token is predicted once. */
static void append_pieces(struct loader *l, const struct encoded *row, int64_t line) {
    const int64_t max = l->encoder.options.max_length, count = (int64_t)row->ids.count;
    for (int64_t at = 0; at + 1 < count; at += max - 1) {
        const int64_t left = count - at;
        append_sample(l->dataset, row->ids.ids + at, row->trained + at, left < max ? left : max,
                      line);
    }
}

static void append_result(struct loader *l, const struct result *result) {
    struct dataset_counts *const counts = &l->dataset->counts;
    const struct encoded *const row = &result->encoded;
    const int64_t max = l->encoder.options.max_length, count = (int64_t)row->ids.count;
    counts->rows++;
    counts->control_tokens += row->control_tokens;
    counts->open_answers += row->open_answers;
    counts->rows_extra_keys += result->extra_keys > 0;
    if (!any_trained(row->trained, count)) {
        counts->rows_untrained++;
    } else if (row->is_text) {
        append_pieces(l, row, result->line);
    } else if (count <= max) {
        append_sample(l->dataset, row->ids.ids, row->trained, count, result->line);
    } else if (any_trained(row->trained, max)) {
        counts->rows_cut++;
        append_sample(l->dataset, row->ids.ids, row->trained, max, result->line);
    } else {
        counts->rows_answer_cut++;
    }
}

static void encode_result(const struct loader *l, struct result *result) {
    struct row_json json = {0};
    struct data_row row = {0};
    struct err *const e = &result->err;
    enum status status = STATUS_OK;
    const struct row text = {l->text.data + result->begin, result->len, result->line};
    status = row_json_parse(&json, &text, e);
    if (status != STATUS_OK) {
        result->line = json.flaw_line;
        goto done;
    }
    GUARD(data_row_read(&row, &json, l->format, l->first_line, e));
    result->extra_keys = row.extra_keys;
    GUARD(encode_row(&l->encoder, &row, &result->encoded, e));
done:
    result->status = status;
    data_row_release(&row);
    row_json_release(&json);
}

/* Encodes the block and appends what came out; the first line that is wrong, in file order, is the
 * error. */
static enum status finish_block(struct loader *l, struct err *e) {
    enum status status = STATUS_OK;
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t i = 0; i < l->count; i++) {
        encode_result(l, &l->results[i]);
    }
    for (int64_t i = 0; i < l->count; i++) {
        struct result *const result = &l->results[i];
        if (status == STATUS_OK && result->status == STATUS_OK) append_result(l, result);
        if (status == STATUS_OK && result->status != STATUS_OK) {
            status = err_set_param(e, result->status, result->err.param, "%s, line %lld: %s",
                                   l->path, (long long)result->line, result->err.text);
        }
        encoded_release(&result->encoded);
    }
    l->count = 0;
    str_clear(&l->text);
    return status;
}

static enum status detect_format(struct loader *l, const struct row *row, struct err *e) {
    struct row_json json = {0};
    struct err flaw = {0};
    enum status status = row_json_parse(&json, row, &flaw);
    if (status == STATUS_OK) status = data_row_detect(&json, &l->format, &flaw);
    if (status != STATUS_OK) {
        status = err_set_param(e, status, flaw.param, "%s, line %lld: %s", l->path,
                               (long long)json.flaw_line, flaw.text);
    }
    l->first_line = row->line;
    row_json_release(&json);
    return status;
}

static void add_row(struct loader *l, const struct row *row) {
    struct result *const result = &l->results[l->count++];
    *result = (struct result){.line = row->line, .begin = l->text.len, .len = row->len};
    str_append_bytes(&l->text, row->text, row->len);
}

static enum status read_rows(struct loader *l, struct rows *rows, struct err *e) {
    for (;;) {
        struct row row;
        bool found;
        struct err flaw = {0};
        const enum status reading = rows_next(rows, &row, &found, &flaw);
        const bool stop = reading != STATUS_OK || !found;
        if (!stop && l->format == FORMAT_AUTO) TRY(detect_format(l, &row, e));
        if (!stop) add_row(l, &row);
        if (stop || l->count == BLOCK_ROWS || l->text.len >= BLOCK_BYTES) TRY(finish_block(l, e));
        FAIL_IF(reading != STATUS_OK, reading, "%s, line %lld: %s", l->path, (long long)rows->line,
                flaw.text);
        if (stop) return STATUS_OK;
    }
}

static enum status load_file(struct loader *l, const char *path, struct err *e) {
    struct rows rows = {0};
    const int64_t rows_before = l->dataset->counts.rows;
    l->path = path;
    l->format = l->encoder.options.format;
    l->first_line = 0;
    TRY(rows_open(&rows, path, e));
    enum status status = read_rows(l, &rows, e);
    rows_close(&rows);
    if (status == STATUS_OK && l->dataset->counts.rows == rows_before) {
        status = err_set_param(e, STATUS_INVALID, path, "%s has no rows", path);
    }
    if (status == STATUS_OK && l->dataset->format == FORMAT_AUTO) l->dataset->format = l->format;
    return status;
}

static enum status nothing_to_train(const struct loader *l, struct err *e) {
    const struct dataset_counts *const c = &l->dataset->counts;
    struct str why = {0};
    if (c->rows_untrained) {
        str_appendf(&why, ": in %s%lld every assistant message has weight 0 or says nothing",
                    c->rows_untrained == c->rows ? "all " : "", (long long)c->rows_untrained);
    }
    if (c->rows_answer_cut) {
        str_appendf(&why, "%s in %lld the answer lies beyond max_length %lld", why.len ? "," : ":",
                    (long long)c->rows_answer_cut, (long long)l->encoder.options.max_length);
    }
    const enum status status =
        err_set(e, STATUS_INVALID, "%s: all %lld rows have no token to train on%s", l->path,
                (long long)c->rows, str_text(&why));
    str_release(&why);
    return status;
}

static enum status load(struct loader *l, char *const *paths, int64_t path_count, struct err *e) {
    for (int64_t i = 0; i < path_count; i++) {
        TRY(load_file(l, paths[i], e));
    }
    if (l->dataset->counts.samples == 0) return nothing_to_train(l, e);
    return STATUS_OK;
}

enum status dataset_load(struct dataset *dataset, char *const *paths, int64_t path_count,
                         const struct dataset_options *options, struct err *e) {
    *dataset = (struct dataset){.format = FORMAT_AUTO};
    ASSERT(options->tokenizer && options->format < FORMAT_COUNT && options->mask < MASK_COUNT);
    FAIL_IF(path_count < 1, STATUS_INVALID, "no data file was given");
    FAIL_IF(options->max_length < 2, STATUS_INVALID, "max_length is %lld, it must be at least 2",
            (long long)options->max_length);
    struct loader l = {.dataset = dataset};
    enum status status = encoder_init(&l.encoder, options, e);
    if (status == STATUS_OK) {
        l.results = mem_new(BLOCK_ROWS, sizeof *l.results);
        status = load(&l, paths, path_count, e);
    }
    mem_free(l.results);
    str_release(&l.text);
    encoder_release(&l.encoder);
    return status;
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
