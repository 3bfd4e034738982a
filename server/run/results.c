/* results.c - the metrics of a finished job as a CSV file, and the tail of a log.
 *
 * Logs come from a process and may hold anything: progress bars, broken UTF-8, control
 * characters. What leaves here is clean text. */
#include "server/run/results.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

/* Both series rise by step, so one pass merges them. */
struct table {
    struct str *text;
    struct eval_row *evals;
    size_t count, capacity, next;
};

static void append_number(struct str *text, double value) {
    str_append_char(text, ',');
    if (isfinite(value)) str_appendf(text, "%.9g", value);
}

static void see_eval(const struct eval_row *row, void *context) {
    struct table *const t = context;
    t->evals = mem_grow(t->evals, t->count, &t->capacity, sizeof *t->evals);
    t->evals[t->count++] = *row;
}

static void see_step(const struct step_row *row, void *context) {
    struct table *const t = context;
    while (t->next < t->count && t->evals[t->next].step < row->step) {
        t->next++;
    }
    const bool both = t->next < t->count && t->evals[t->next].step == row->step;
    str_appendf(t->text, "%lld", (long long)row->step);
    append_number(t->text, row->loss);
    append_number(t->text, row->accuracy);
    append_number(t->text, both ? t->evals[t->next].loss : NAN);
    append_number(t->text, both ? t->evals[t->next].accuracy : NAN);
    str_append_char(t->text, '\n');
}

static enum status make_table(struct store *store, const struct job_row *job, struct str *text,
                              struct err *e) {
    struct table t = {.text = text};
    const struct step_span all = {0, INT64_MAX};
    str_append(text, "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n");
    enum status status =
        store_eval_scan(store, job->number, all, (struct eval_seer){see_eval, &t}, e);
    const struct step_seer seer = {see_step, &t};
    if (status == STATUS_OK) status = store_step_scan(store, job->number, all, seer, e);
    mem_free(t.evals);
    return status;
}

enum status results_write(struct store *store, const struct job_row *job, char **file_id,
                          struct err *e) {
    struct str text = {0};
    enum status status = STATUS_OK;
    const char *const tail = strchr(job->id, '-');
    char *id = str_format("file-results-%s", tail ? tail + 1 : job->id);
    char *path = store_file_path(store, id, ".csv");
    char name[] = "step_metrics.csv", purpose[] = "fine-tune-results", state[] = "processed";
    GUARD(make_table(store, job, &text, e));
    GUARD(file_write_atomic(path, str_text(&text), text.len, e));
    const struct file_row row = {.id = id,
                                 .filename = name,
                                 .purpose = purpose,
                                 .status = state,
                                 .path = path,
                                 .bytes = (int64_t)text.len,
                                 .created_at = clock_unix_ms() / 1000};
    GUARD(store_file_put(store, &row, e));
    *file_id = mem_strdup(id);
done:
    str_release(&text);
    mem_free(path);
    mem_free(id);
    return status;
}

/* Copies with the repairs of results_log_tail. */
static void append_clean(const char *text, size_t len, struct str *out) {
    size_t line = out->len; /* where the present line begins */
    for (size_t i = 0; i < len;) {
        uint32_t code = 0;
        const int bytes = utf8_decode(text + i, len - i, &code);
        if (bytes == 0) {
            str_append_utf8(out, 0xFFFD);
        } else if (code == '\r') {
            const bool ends = i + 1 < len && text[i + 1] == '\n';
            if (!ends) str_truncate(out, line);
        } else if (code == '\n') {
            str_append_char(out, '\n');
            line = out->len;
        } else if (code >= 0x20 || code == '\t') {
            str_append_bytes(out, text + i, (size_t)bytes);
        }
        i += bytes ? (size_t)bytes : 1;
    }
}

void results_log_tail(const char *path, size_t bytes_max, struct str *out) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const off_t end = lseek(fd, 0, SEEK_END);
    const off_t start = end > (off_t)bytes_max ? end - (off_t)bytes_max : 0;
    char *chunk = mem_new(bytes_max + 1, 1);
    const ssize_t got = pread(fd, chunk, bytes_max, start);
    close(fd);
    if (got > 0) {
        const char *from = chunk;
        const char *const newline = start > 0 ? memchr(chunk, '\n', (size_t)got) : NULL;
        if (newline) from = newline + 1; /* the first line is cut off, leave it out */
        append_clean(from, (size_t)(chunk + got - from), out);
    }
    mem_free(chunk);
}

void results_log_bound(const char *path, int64_t bytes_max) {
    int64_t bytes = 0;
    struct err ignored = {0};
    if (file_size(path, &bytes, &ignored) != STATUS_OK || bytes <= bytes_max) return;
    const int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0) return;
    char *note = str_format("(%lld bytes of log were dropped here)\n", (long long)bytes);
    if (ftruncate(fd, 0) == 0 && write(fd, note, strlen(note)) < 0) {
        /* A full disk: the note is lost, the space is not. */
    }
    close(fd);
    mem_free(note);
}
