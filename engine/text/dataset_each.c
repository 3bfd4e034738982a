/* dataset_each.c - the one loop over data files. One thread reads rows in blocks while all cores
 * encode the rows of the block before; outcomes are then visited in file order. So the outcome, the
 * first error included, does not depend on the number of threads, and memory is two blocks. */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/text/dataset.h"
#include "engine/text/encode.h"
#include "engine/text/rows.h"
#include "engine/text/rows_repair.h"

/* A block is large enough to keep all cores busy and small enough to be nothing beside a model. */
enum { BLOCK_ROWS = 1024, BLOCK_BYTES = 4 << 20 };

/* What became of one row of a block. */
struct result {
    enum status status;
    struct err err;
    int64_t row, line;
    size_t begin, len;       /* of its text in the block */
    enum data_format format; /* FORMAT_AUTO: it was to decide the format, and `status` says why not
                              */
    int64_t first_line;
    struct encoded_row encoded;
    uint32_t problems; /* of the row as a whole */
};

/* Rows that were read together. */
struct block {
    struct str text;        /* of the rows, end to end */
    struct result *results; /* [BLOCK_ROWS] */
    int64_t count;
    bool last;                /* of its file */
    enum status ending;       /* why reading stopped, when it could not go on */
    struct err flaw;          /* its text */
    int64_t flaw_line, bytes; /* bytes: of the file, when the block was full */
};

struct loop {
    const struct dataset_visitor *visitor;
    struct encoder encoder;
    const char *path;
    int64_t file, rows; /* rows: seen so far, over all files */
    struct dataset_progress progress;
    int64_t bytes_before;    /* of the files before this one */
    enum data_format format; /* of the file being read; FORMAT_AUTO before its first row */
    int64_t first_line;      /* that decided the format, 0: the user did */
    bool enough;             /* the window is behind us */
    struct block blocks[2];
};

static bool any_trained(const uint8_t *trained, int64_t count) {
    return count > 1 && memchr(trained + 1, 1, (size_t)count - 1) != NULL;
}

static uint32_t bit(enum row_problem problem, bool set) {
    return set ? UINT32_C(1) << problem : 0;
}

static uint32_t part_problems(const struct encoder *x, const struct encoded *part) {
    const int64_t max = x->options.max_length, count = (int64_t)part->ids.count;
    const bool trained = any_trained(part->trained, count);
    const bool longer = trained && !part->is_text && count > max;
    const bool left = longer && any_trained(part->trained, max);
    return bit(ROW_UNTRAINED, !trained) | bit(ROW_CUT, left) |
           bit(ROW_ANSWER_CUT, longer && !left) |
           bit(ROW_CONTROL_TOKENS, part->control_tokens > 0) |
           bit(ROW_OPEN_ANSWER, part->open_answers > 0) |
           bit(ROW_DROPPED_MESSAGE, part->dropped_message) |
           bit(ROW_ARGUMENTS_AS_TEXT, part->arguments_as_text) |
           bit(ROW_FOLDED_SYSTEM, part->folded_system);
}

static void encode_result(const struct loop *l, const struct block *b, struct result *result) {
    struct row_json json = {0};
    struct data_row row = {0};
    struct err *const e = &result->err;
    enum status status = result->status;
    const struct row text = {b->text.data + result->begin, result->len, result->line};
    if (status != STATUS_OK) return;
    status = row_json_parse(&json, &text, e);
    if (status != STATUS_OK) {
        result->line = json.flaw_line;
        goto done;
    }
    GUARD(data_row_read(&row, &json, result->format, result->first_line, e));
    result->problems |= bit(ROW_EXTRA_KEYS, row.extra_keys > 0);
    if (l->encoder.options.merge_turns && row.is_chat)
        result->problems |= bit(ROW_MERGED_TURNS, chat_merge_turns(&row.chat) > 0);
    GUARD(encode_row(&l->encoder, &row, &result->encoded, e));
done:
    result->status = status;
    data_row_release(&row);
    row_json_release(&json);
}

/* Without go_on an invalid row ends the loop, with its place in the error. */
static enum status visit_invalid(struct loop *l, struct row_outcome *outcome,
                                 const struct err *flaw, struct err *e) {
    if (!l->visitor->go_on) {
        return err_set_param(e, flaw->status, flaw->param, "%s, line %lld: %s", l->path,
                             (long long)outcome->line, flaw->text);
    }
    outcome->error = flaw;
    outcome->problems |= bit(ROW_INVALID, true);
    return l->visitor->row(l->visitor->context, outcome, e);
}

static enum status visit_result(struct loop *l, const struct block *b, const struct result *result,
                                struct err *e) {
    struct row_outcome outcome = {.path = l->path,
                                  .file = l->file,
                                  .row = result->row,
                                  .line = result->line,
                                  .parts = 1,
                                  .format = result->format,
                                  .text = b->text.data + result->begin,
                                  .len = result->len,
                                  .problems = result->problems};
    if (result->status != STATUS_OK) return visit_invalid(l, &outcome, &result->err, e);
    outcome.parts = result->encoded.count;
    for (; outcome.part < outcome.parts; outcome.part++) {
        outcome.encoded = &result->encoded.parts[outcome.part];
        outcome.problems =
            part_problems(&l->encoder, outcome.encoded) | (outcome.part ? 0 : result->problems);
        TRY(l->visitor->row(l->visitor->context, &outcome, e));
    }
    return STATUS_OK;
}

static void block_clear(struct block *b) {
    for (int64_t i = 0; i < b->count; i++) {
        encoded_row_release(&b->results[i].encoded);
    }
    b->count = 0;
    str_clear(&b->text);
}

static enum status visit_block(struct loop *l, struct block *b, struct err *e) {
    for (int64_t i = 0; i < b->count; i++) {
        TRY(visit_result(l, b, &b->results[i], e));
    }
    if (b->ending != STATUS_OK) {
        struct row_outcome outcome = {.path = l->path,
                                      .file = l->file,
                                      .row = l->rows,
                                      .line = b->flaw_line,
                                      .parts = 1,
                                      .format = l->format};
        TRY(visit_invalid(l, &outcome, &b->flaw, e));
    }
    l->progress.rows += b->count;
    l->progress.bytes = l->bytes_before + b->bytes;
    if (l->visitor->progress) l->visitor->progress(l->visitor->progress_context, &l->progress);
    return STATUS_OK;
}

/* The first row that says which format it is in decides for its file. */
static void detect_format(struct loop *l, const struct row *row, struct result *result) {
    struct row_json json = {0};
    struct err *const flaw = &result->err;
    result->status = row_json_parse(&json, row, flaw);
    if (result->status == STATUS_OK) {
        result->status = data_row_detect(&json, &l->format, flaw);
        l->first_line = row->line;
    }
    result->line = json.flaw_line;
    row_json_release(&json);
}

/* Appends the row's text, repaired on request; returns whether it had to be. */
static bool add_text(const struct loop *l, struct block *b, const struct row *row) {
    if (l->encoder.options.replace_invalid_utf8)
        return rows_repair(row->text, row->len, &b->text) > 0;
    str_append_bytes(&b->text, row->text, row->len);
    return false;
}

static void add_row(struct loop *l, struct block *b, const struct row *row) {
    const struct dataset_visitor *const v = l->visitor;
    const int64_t index = l->rows++;
    if (index < v->rows_first && l->format != FORMAT_AUTO) return;
    const size_t begin = b->text.len;
    const bool repaired = add_text(l, b, row);
    struct result result = {.row = index,
                            .line = row->line,
                            .begin = begin,
                            .len = b->text.len - begin,
                            .problems = bit(ROW_REPLACED_TEXT, repaired)};
    const struct row text = {b->text.data + begin, result.len, row->line};
    if (l->format == FORMAT_AUTO) detect_format(l, &text, &result);
    result.format = l->format;
    result.first_line = l->first_line;
    if (index < v->rows_first) {
        str_truncate(&b->text, begin);
        return;
    }
    b->results[b->count++] = result;
    l->enough = v->rows_max > 0 && l->rows >= v->rows_first + v->rows_max;
}

static void read_block(struct loop *l, struct rows *rows, struct block *b) {
    ASSERT(b->count == 0);
    b->flaw = (struct err){0};
    for (b->last = false; !b->last && b->count < BLOCK_ROWS && b->text.len < BLOCK_BYTES;) {
        struct row row;
        bool found = false;
        b->ending = rows_next(rows, &row, &found, &b->flaw);
        b->flaw_line = rows->line;
        if (found && b->ending == STATUS_OK) add_row(l, b, &row);
        b->last = !found || b->ending != STATUS_OK || l->enough;
    }
    b->bytes = rows->source.read_bytes;
}

static enum status run_blocks(struct loop *l, struct rows *rows, struct err *e) {
    struct block *current = &l->blocks[0], *next = &l->blocks[1];
    read_block(l, rows, current);
    for (;;) {
        const bool more = !current->last;
#pragma omp parallel
#pragma omp single
        {
#pragma omp task if (more)
            {
                if (more) read_block(l, rows, next);
            }
#pragma omp taskloop grainsize(1)
            for (int64_t i = 0; i < current->count; i++) {
                encode_result(l, current, &current->results[i]);
            }
        }
        const enum status status = visit_block(l, current, e);
        block_clear(current);
        if (status != STATUS_OK || !more) {
            block_clear(next);
            return status;
        }
        struct block *const done = current;
        current = next;
        next = done;
    }
}

static enum status run_file(struct loop *l, const char *path, struct err *e) {
    struct rows rows = {0};
    const int64_t rows_before = l->rows;
    int64_t bytes = 0;
    l->path = path;
    l->format = l->encoder.options.format;
    l->first_line = 0;
    TRY(file_size(path, &bytes, e));
    TRY(rows_open(&rows, path, e));
    rows.csv.lenient = l->encoder.options.replace_invalid_utf8;
    const enum status status = run_blocks(l, &rows, e);
    rows_close(&rows);
    TRY(status);
    l->bytes_before += bytes;
    if (l->rows > rows_before) return STATUS_OK;
    if (!l->visitor->go_on) return err_set_param(e, STATUS_INVALID, path, "%s has no rows", path);
    struct row_outcome outcome = {
        .path = path, .file = l->file, .row = l->rows, .line = 1, .parts = 1};
    struct err empty = {0};
    err_set(&empty, STATUS_INVALID, "the file has no rows");
    return visit_invalid(l, &outcome, &empty, e);
}

static enum status run_files(struct loop *l, char *const *paths, int64_t path_count,
                             struct err *e) {
    for (int64_t i = 0; i < path_count; i++) {
        int64_t bytes = 0;
        TRY(file_size(paths[i], &bytes, e));
        l->progress.bytes_total += bytes;
    }
    for (l->file = 0; l->file < path_count && !l->enough; l->file++) {
        TRY(run_file(l, paths[l->file], e));
    }
    return STATUS_OK;
}

enum status dataset_each(char *const *paths, int64_t path_count,
                         const struct dataset_options *options,
                         const struct dataset_visitor *visitor, struct err *e) {
    ASSERT(options->tokenizer && options->format < FORMAT_COUNT && options->mask < MASK_COUNT);
    ASSERT(visitor->row && visitor->rows_first >= 0 && visitor->rows_max >= 0);
    FAIL_IF(path_count < 1, STATUS_INVALID, "no data file was given");
    FAIL_IF(options->max_length < 2, STATUS_INVALID, "max_length is %lld, it must be at least 2",
            (long long)options->max_length);
    struct loop *const l = mem_new(1, sizeof *l);
    l->visitor = visitor;
    enum status status = encoder_init(&l->encoder, options, e);
    for (size_t i = 0; i < COUNT_OF(l->blocks); i++) {
        l->blocks[i].results = mem_new(BLOCK_ROWS, sizeof *l->blocks[i].results);
    }
    if (status == STATUS_OK) status = run_files(l, paths, path_count, e);
    for (size_t i = 0; i < COUNT_OF(l->blocks); i++) {
        block_clear(&l->blocks[i]);
        mem_free(l->blocks[i].results);
        str_release(&l->blocks[i].text);
    }
    encoder_release(&l->encoder);
    mem_free(l);
    return status;
}
