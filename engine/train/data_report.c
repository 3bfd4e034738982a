/* data_report.c - counts, lengths and problems of a whole file, gathered while it is read.
 *
 * Lengths are counted one by one up to LENGTHS_MAX, so that percentiles are exact for any row that
 * could be trained on. Of each problem the first rows are kept; the counts are of all. */
#include "engine/train/data_report.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/text/batch_rows.h"
#include "engine/text/encode.h"
#include "engine/train/corpus.h"
#include "engine/train/corpus_report.h"

enum {
    LENGTHS_MAX = 1 << 20, /* longer rows count as this long; max_length ends there too */
    BARS_MAX = 32,
    PACKED_SAMPLES_MAX = 4 << 20, /* packing is judged by so many: more would take memory, not tell
                                     more */
    ROWS_LISTED = 20,             /* of each problem */
    INVALID_LISTED = 100,         /* they have to be corrected one by one */
    REACH = 4                     /* the histogram ends here times the 99th percentile */
};

/* A row with a problem, and for an invalid one what is wrong. */
struct listed {
    int64_t row, line;
    char *field, *message;
};

struct found {
    int64_t count, last_row;
    struct listed *rows;
    size_t listed, capacity;
};

struct report {
    int64_t max_length;
    enum data_format format;
    int64_t rows, last_row, encoded, samples, tokens, trained_tokens;
    int64_t longest, length_sum, over;
    int64_t *lengths; /* [lengths_capacity] rows of each length */
    int64_t lengths_capacity;
    int32_t *sample_lengths; /* [kept] for packing: the first samples */
    size_t kept, sample_capacity;
    struct found found[ROW_PROBLEM_COUNT];
    int64_t deadline_ns; /* 0: none */
    bool stopped;        /* the deadline came before the end of the file */
    double read_share;
};

enum status data_reader_open(struct data_reader *r, const cJSON *spec, struct err *e) {
    *r = (struct data_reader){0};
    TRY(spec_parse(&r->spec, spec, e));
    TRY(model_config_load(&r->config, r->spec.model, e));
    TRY(corpus_open_spec_text(&r->spec, &r->tokenizer, &r->chat_template, e));
    if (r->spec.created_at == 0) r->spec.created_at = clock_unix_ms() / 1000;
    r->options = corpus_dataset_options(&r->spec, &r->config, r->tokenizer, r->chat_template);
    return STATUS_OK;
}

void data_reader_close(struct data_reader *r) {
    if (!r) return;
    chat_template_free(r->chat_template);
    tokenizer_free(r->tokenizer);
    spec_release(&r->spec);
    *r = (struct data_reader){0};
}

void data_add_text(cJSON *object, const char *key, const char *text) {
    char *const whole = text ? mem_strndup(text, utf8_valid_prefix(text, strlen(text))) : NULL;
    json_add_string(object, key, whole);
    mem_free(whole);
}

static void list_row(struct found *f, const struct row_outcome *o, bool invalid) {
    if (f->last_row == o->row + 1) return; /* another part of the same row */
    f->last_row = o->row + 1;
    f->count++;
    if (f->listed == (size_t)(invalid ? INVALID_LISTED : ROWS_LISTED)) return;
    f->rows = mem_grow(f->rows, f->listed, &f->capacity, sizeof *f->rows);
    struct listed *const at = &f->rows[f->listed++];
    *at = (struct listed){.row = o->row + 1, .line = o->line};
    if (!invalid || !o->error) return;
    if (o->error->param[0]) at->field = mem_strdup(o->error->param);
    at->message = mem_strdup(o->error->text);
}

static void count_length(struct report *r, int64_t length) {
    const int64_t at = length < LENGTHS_MAX ? length : LENGTHS_MAX;
    if (at >= r->lengths_capacity) {
        const int64_t capacity = at + at / 2 + 256;
        r->lengths = mem_resize(r->lengths, (size_t)capacity, sizeof *r->lengths);
        memset(r->lengths + r->lengths_capacity, 0,
               (size_t)(capacity - r->lengths_capacity) * sizeof *r->lengths);
        r->lengths_capacity = capacity;
    }
    r->lengths[at]++;
    r->encoded++;
    r->length_sum += length;
    r->over += length > r->max_length;
    if (length > r->longest) r->longest = length;
}

static void count_sample(struct report *r, int64_t tokens) {
    ASSERT(tokens > 0 && tokens <= INT32_MAX);
    r->samples++;
    r->tokens += tokens;
    if (r->kept == PACKED_SAMPLES_MAX) return;
    r->sample_lengths =
        mem_grow(r->sample_lengths, r->kept, &r->sample_capacity, sizeof *r->sample_lengths);
    r->sample_lengths[r->kept++] = (int32_t)tokens;
}

/* What training makes of it: a text in pieces that overlap by one token, anything else cut. */
static void count_samples(struct report *r, const struct row_outcome *o) {
    const uint32_t dropped = 1u << ROW_UNTRAINED | 1u << ROW_ANSWER_CUT;
    const int64_t count = (int64_t)o->encoded->ids.count, max = r->max_length;
    if (o->problems & dropped) return;
    const int64_t used = o->encoded->is_text || count < max ? count : max;
    for (int64_t at = 0; at + 1 < used; at += max - 1) {
        count_sample(r, used - at < max ? used - at : max);
    }
    for (int64_t i = 1; i < used; i++) {
        r->trained_tokens += o->encoded->trained[i] != 0;
    }
}

static void see_progress(void *context, const struct dataset_progress *progress) {
    struct report *const r = context;
    const double total = (double)progress->bytes_total;
    r->read_share = total > 0 ? (double)progress->bytes / total : 1;
}

/* Ends the loop when the time is over: a report on a part is told as one. */
static enum status see_row(void *context, const struct row_outcome *o, struct err *e) {
    struct report *const r = context;
    r->stopped = r->deadline_ns && clock_steady_ns() > r->deadline_ns;
    FAIL_IF(r->stopped, STATUS_INTERRUPTED, "the time is over");
    if (r->format == FORMAT_AUTO) r->format = o->format;
    /* A file that cannot be read on, or has no rows, is reported without the text of a row. */
    if (o->text && r->last_row != o->row + 1) r->rows++;
    r->last_row = o->row + 1;
    for (int i = 0; i < ROW_PROBLEM_COUNT; i++) {
        if (o->problems & 1u << i) list_row(&r->found[i], o, i == ROW_INVALID);
    }
    if (!o->encoded) return STATUS_OK;
    count_length(r, (int64_t)o->encoded->ids.count);
    count_samples(r, o);
    return STATUS_OK;
}

/* The shortest length that at least this share of the rows does not exceed. */
static int64_t percentile(const struct report *r, double share) {
    const double wanted = share * (double)r->encoded;
    int64_t seen = 0;
    for (int64_t i = 0; i < r->lengths_capacity; i++) {
        seen += r->lengths[i];
        if (seen > 0 && (double)seen >= wanted) return i;
    }
    return 0;
}

static void add_lengths(cJSON *json, const struct report *r) {
    cJSON *const lengths = cJSON_AddObjectToObject(json, "lengths");
    json_add_number(lengths, "mean", r->encoded ? (double)r->length_sum / (double)r->encoded : 0);
    json_add_i64(lengths, "p50", percentile(r, 0.50));
    json_add_i64(lengths, "p90", percentile(r, 0.90));
    json_add_i64(lengths, "p95", percentile(r, 0.95));
    json_add_i64(lengths, "p99", percentile(r, 0.99));
    json_add_i64(lengths, "longest", r->longest);
    json_add_i64(lengths, "over_max_length", r->over);
}

/* 1, 2, 5, 10, 20, ...: the first width with which the bars reach the end. */
static int64_t bar_width(int64_t end) {
    static const int64_t steps[] = {1, 2, 5};
    int64_t tens = 1;
    for (int i = 0;; i++) {
        if (i > 0 && i % 3 == 0) tens *= 10;
        if (steps[i % 3] * tens * BARS_MAX >= end) return steps[i % 3] * tens;
    }
}

/* One row that is far longer than all others must not press them into one bar: the picture ends at
 * REACH times the 99th percentile, and what lies beyond is counted. */
static void add_histogram(cJSON *json, const struct report *r) {
    const int64_t most = r->longest < LENGTHS_MAX ? r->longest : LENGTHS_MAX;
    const int64_t far = REACH * percentile(r, 0.99);
    const int64_t end = most < far ? most : far, width = bar_width(end);
    int64_t bars[BARS_MAX] = {0}, beyond = 0;
    const int64_t count = end > 0 ? (end - 1) / width + 1 : 0;
    ASSERT(count <= BARS_MAX);
    for (int64_t i = 0; i < r->lengths_capacity; i++) {
        const int64_t bar = i > 0 ? (i - 1) / width : 0;
        if (bar < count) {
            bars[bar] += r->lengths[i];
        } else {
            beyond += r->lengths[i];
        }
    }
    cJSON *const histogram = cJSON_AddObjectToObject(json, "histogram");
    json_add_i64(histogram, "width", width);
    cJSON *const counts = cJSON_AddArrayToObject(histogram, "counts");
    for (int64_t i = 0; i < count; i++) {
        cJSON_AddItemToArray(counts, cJSON_CreateNumber((double)bars[i]));
    }
    json_add_i64(histogram, "beyond", beyond);
}

/* What is lost, what is only good to know. */
static const char *level_of(enum row_problem problem) {
    switch (problem) {
    case ROW_INVALID: return "error";
    case ROW_CUT:
    case ROW_UNTRAINED:
    case ROW_ANSWER_CUT:
    case ROW_OPEN_ANSWER:
    case ROW_DROPPED_MESSAGE: return "warn";
    default: return "info";
    }
}

static cJSON *listed_json(const struct listed *at) {
    cJSON *const row = cJSON_CreateObject();
    json_add_i64(row, "row", at->row);
    json_add_i64(row, "line", at->line);
    data_add_text(row, "field", at->field);
    data_add_text(row, "message", at->message);
    return row;
}

/* The gravest first. */
static void add_problems(cJSON *json, const struct report *r) {
    static const char *const levels[] = {"error", "warn", "info"};
    cJSON *const problems = cJSON_AddArrayToObject(json, "problems");
    for (size_t level = 0; level < COUNT_OF(levels); level++) {
        for (int i = 0; i < ROW_PROBLEM_COUNT; i++) {
            if (strcmp(level_of((enum row_problem)i), levels[level]) != 0) continue;
            cJSON *const problem = cJSON_CreateObject();
            json_add_string(problem, "name", row_problem_name((enum row_problem)i));
            json_add_string(problem, "level", levels[level]);
            json_add_string(problem, "sentence", row_problem_sentence((enum row_problem)i));
            json_add_i64(problem, "count", r->found[i].count);
            cJSON *const rows = cJSON_AddArrayToObject(problem, "rows");
            for (size_t k = 0; k < r->found[i].listed; k++) {
                cJSON_AddItemToArray(rows, listed_json(&r->found[i].rows[k]));
            }
            cJSON_AddItemToArray(problems, problem);
        }
    }
}

/* In the order in which chat_template_open looks for it. */
static const char *template_file(const struct data_reader *reader) {
    if (!reader->chat_template) return NULL;
    char *const own = file_join(reader->spec.model, "chat_template.jinja");
    const bool found = file_exists(own);
    mem_free(own);
    return found ? "chat_template.jinja" : "tokenizer_config.json";
}

static bool needs_template(enum data_format format) {
    return format == FORMAT_MESSAGES || format == FORMAT_SHAREGPT || format == FORMAT_ALPACA;
}

static void add_text_side(cJSON *json, const struct data_reader *reader, const struct report *r) {
    cJSON *const chat_template = cJSON_AddObjectToObject(json, "template");
    json_add_string(chat_template, "file", template_file(reader));
    json_add_bool(chat_template, "needed", needs_template(r->format));
    cJSON *const tokenizer = cJSON_AddObjectToObject(json, "tokenizer");
    json_add_i64(tokenizer, "size", tokenizer_size(reader->tokenizer));
    cJSON_AddItemToObject(tokenizer, "notes", report_lines(tokenizer_notes(reader->tokenizer)));
    cJSON_AddItemToObject(tokenizer, "warnings",
                          report_lines(tokenizer_warnings(reader->tokenizer)));
    json_add_i64(tokenizer, "dropped", tokenizer_dropped(reader->tokenizer));
}

static int longer_first(const void *left, const void *right) {
    const int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a < b) - (a > b);
}

/* The lengths in the order of the first epoch. Caller frees with mem_free. */
static int32_t *epoch_lengths(const struct data_reader *reader, const struct report *r) {
    int64_t *const order = mem_new(r->kept, sizeof *order);
    int32_t *const lengths = mem_new(r->kept, sizeof *lengths);
    for (size_t i = 0; i < r->kept; i++) {
        order[i] = (int64_t)i;
    }
    if (reader->spec.data.shuffle) {
        batch_shuffle(order, (int64_t)r->kept, (uint64_t)reader->spec.seed, 0, 0);
    }
    for (size_t i = 0; i < r->kept; i++) {
        lengths[i] = r->sample_lengths[order[i]];
    }
    mem_free(order);
    return lengths;
}

/* The share of computed tokens that are rows' own when the samples of each step are dealt longest
 * first into micro-batches, each padded to its longest (engine/text/batch.c). */
static double padded_fill(const struct data_reader *reader, const struct report *r) {
    const int64_t micro_rows = spec_train_rows(&reader->spec);
    const int64_t step_rows = spec_step_rows(&reader->spec);
    const int64_t samples = (int64_t)r->kept;
    int32_t *const lengths = epoch_lengths(reader, r);
    double computed = 0, own = 0;
    for (int64_t first = 0; first < samples; first += step_rows) {
        const int64_t left = samples - first, rows = left < step_rows ? left : step_rows;
        int32_t *const step = lengths + first;
        qsort(step, (size_t)rows, sizeof *step, longer_first);
        for (int64_t i = 0; i < rows; i++) {
            computed += step[i - i % micro_rows];
            own += step[i];
        }
    }
    mem_free(lengths);
    return own / computed;
}

/* Packed rows lie end to end and are not padded. */
static void add_packing(cJSON *json, const struct data_reader *reader, const struct report *r) {
    if (r->samples == 0) {
        cJSON_AddNullToObject(json, "packing");
        return;
    }
    cJSON *const packing = cJSON_AddObjectToObject(json, "packing");
    json_add_number(packing, "padded_fill", padded_fill(reader, r));
    json_add_number(packing, "packed_fill", 1);
}

/* Without the file's name, which is the server's own: the reader looks at one file and knows it. */
static void forget_name(struct err *e, const char *path) {
    char *const name = str_format("%s line ", file_base_name(path));
    const size_t extra = strlen(name) - strlen("line ");
    for (char *at; (at = strstr(e->text, name));) {
        memmove(at, at + extra, strlen(at + extra) + 1);
    }
    mem_free(name);
}

/* What a run would say to this file before its first step, or null: the first row that is wrong,
 * or more rows left out than the spec allows. */
static void add_refusal(cJSON *json, const struct data_reader *reader, const struct report *r) {
    const struct found *const invalid = &r->found[ROW_INVALID];
    struct dataset_counts counts = {.rows = r->rows};
    struct err refusal = {0};
    for (int i = 0; i < ROW_PROBLEM_COUNT; i++) {
        counts.problems[i].rows = r->found[i].count;
        for (size_t k = 0; k < r->found[i].listed && k < TALLY_LINES; k++) {
            counts.problems[i].first[k].line = r->found[i].rows[k].line;
        }
    }
    if (invalid->count) {
        err_set(&refusal, STATUS_INVALID, "line %lld: %s", (long long)invalid->rows[0].line,
                invalid->rows[0].message);
    } else if (r->samples == 0) {
        err_set(&refusal, STATUS_INVALID, "no row has a token to train on");
    } else {
        const struct spec_strings *const files = &reader->spec.data.train_files;
        (void)corpus_check_limits(&reader->spec, &counts, files, &refusal);
        forget_name(&refusal, files->items[0]);
    }
    data_add_text(json, "refusal", refusal.status == STATUS_OK ? NULL : refusal.text);
}

static cJSON *report_json(const struct data_reader *reader, const struct report *r) {
    cJSON *const json = cJSON_CreateObject();
    json_add_bool(json, "complete", !r->stopped);
    json_add_number(json, "read_share", r->stopped ? r->read_share : 1);
    json_add_string(json, "format", r->format == FORMAT_AUTO ? NULL : data_format_name(r->format));
    json_add_string(json, "mask", reader->spec.data.mask);
    json_add_i64(json, "max_length", r->max_length);
    json_add_i64(json, "model_max_length", reader->config.max_position_embeddings);
    json_add_i64(json, "rows", r->rows);
    json_add_i64(json, "samples", r->samples);
    json_add_i64(json, "tokens", r->tokens);
    json_add_i64(json, "trained_tokens", r->trained_tokens);
    add_lengths(json, r);
    add_histogram(json, r);
    add_refusal(json, reader, r);
    add_problems(json, r);
    add_text_side(json, reader, r);
    add_packing(json, reader, r);
    return json;
}

static void report_release(struct report *r) {
    for (int i = 0; i < ROW_PROBLEM_COUNT; i++) {
        for (size_t k = 0; k < r->found[i].listed; k++) {
            mem_free(r->found[i].rows[k].field);
            mem_free(r->found[i].rows[k].message);
        }
        mem_free(r->found[i].rows);
    }
    mem_free(r->lengths);
    mem_free(r->sample_lengths);
}

enum status data_report(const struct data_reader *reader, int64_t seconds_max, cJSON **out,
                        struct err *e) {
    struct report r = {.max_length = reader->options.max_length, .format = FORMAT_AUTO};
    if (seconds_max > 0) r.deadline_ns = clock_steady_ns() + seconds_max * 1000000000;
    const struct dataset_visitor visitor = {.context = &r,
                                            .row = see_row,
                                            .progress = see_progress,
                                            .progress_context = &r,
                                            .go_on = true};
    const struct spec_strings *const files = &reader->spec.data.train_files;
    enum status status = dataset_each(files->items, files->count, &reader->options, &visitor, e);
    if (r.stopped) {
        err_clear(e);
        status = STATUS_OK;
    }
    if (status == STATUS_OK) *out = report_json(reader, &r);
    report_release(&r);
    return status;
}
