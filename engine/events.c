/* events.c - writing and following a rank's event stream.
 *
 * The reader hands out whole lines only and its offset always stands behind a newline. It reads an
 * unfinished last line again from the file the next time instead of keeping its beginning: a rank
 * that was killed in the middle of a line is started again, cuts that line off and writes another
 * in its place. */
#include "engine/events.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/rundir.h"

enum { READ_BYTES = 65536 };

static const char *const KIND_NAMES[] = {
    [EVENT_START] = "start",       [EVENT_PHASE] = "phase",
    [EVENT_STEP] = "step",         [EVENT_MEMORY] = "memory",
    [EVENT_EVAL] = "eval",         [EVENT_CHECKPOINT] = "checkpoint",
    [EVENT_SAMPLE] = "sample",     [EVENT_OOM] = "oom",
    [EVENT_LOG] = "log",           [EVENT_ERROR] = "error",
    [EVENT_DONE] = "done",         [EVENT_PROGRESS] = "progress",
    [EVENT_REMEDY] = "remedy",     [EVENT_ATTENTION] = "attention",
    [EVENT_HOLDINGS] = "holdings",
};
_Static_assert(COUNT_OF(KIND_NAMES) == EVENT_KIND_COUNT, "a name for every kind");

const char *event_kind_name(enum event_kind kind) {
    ASSERT(kind < EVENT_KIND_COUNT);
    return KIND_NAMES[kind];
}

enum event_kind event_kind_parse(const char *name) {
    for (int i = 0; i < EVENT_KIND_COUNT; i++) {
        if (str_equal(name, KIND_NAMES[i])) return (enum event_kind)i;
    }
    return EVENT_KIND_COUNT;
}

enum status event_log_open(struct event_log *log, const char *run_folder, int64_t rank,
                           struct err *e) {
    const bool echo = log->echo;
    *log = (struct event_log){.rank = rank, .echo = echo};
    char *path = rundir_events(run_folder, rank);
    int fd = -1;
    const enum status status = append_open(&fd, path, e);
    if (status == STATUS_OK) log->fd_plus_1 = fd + 1;
    mem_free(path);
    return status;
}

void event_log_close(struct event_log *log) {
    if (!log) return;
    if (log->fd_plus_1) close(log->fd_plus_1 - 1);
    log->fd_plus_1 = 0;
}

/* The three fields that every event has come first, so that the file reads well by eye. */
static void event_line(const struct event_log *log, enum event_kind kind, const cJSON *fields,
                       struct str *line) {
    str_appendf(line, "{\"time_ms\":%lld,\"rank\":%lld,\"kind\":\"%s\"", (long long)clock_unix_ms(),
                (long long)log->rank, event_kind_name(kind));
    struct str rest = {0};
    if (fields) json_append(&rest, fields);
    if (rest.len > 2) { /* more than "{}" */
        str_append_char(line, ',');
        str_append(line, rest.data + 1);
    } else {
        str_append_char(line, '}');
    }
    str_append_char(line, '\n');
    str_release(&rest);
}

enum status event_write(struct event_log *log, enum event_kind kind, cJSON *fields, struct err *e) {
    ASSERT(!fields || cJSON_IsObject(fields));
    struct str line = {0};
    enum status status = STATUS_OK;
    if (log->fd_plus_1 || log->echo) event_line(log, kind, fields, &line);
    cJSON_Delete(fields);
    if (log->echo) fputs(line.data, stderr);
    if (line.len > EVENT_LINE_MAX) {
        status = err_set(e, STATUS_INTERNAL, "an event of kind %s has %zu bytes, the limit is %d",
                         event_kind_name(kind), line.len, EVENT_LINE_MAX);
    } else if (log->fd_plus_1) {
        status = append_line(log->fd_plus_1 - 1, "the event file", line.data, line.len, e);
    }
    str_release(&line);
    return status;
}

void event_add_number(cJSON *fields, const char *key, double value) {
    json_add_number(fields, key, value);
    if (isfinite(value)) return;
    cJSON *names = cJSON_GetObjectItemCaseSensitive(fields, "nonfinite");
    if (!names) names = cJSON_AddObjectToObject(fields, "nonfinite");
    json_add_string(names, key, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

void event_reader_open(struct event_reader *r, const char *run_folder, int64_t rank,
                       int64_t offset) {
    ASSERT(offset >= 0);
    *r = (struct event_reader){.path = rundir_events(run_folder, rank), .offset = offset};
}

void event_reader_close(struct event_reader *r) {
    if (!r) return;
    mem_free(r->path);
    str_release(&r->pending);
    *r = (struct event_reader){0};
}

static bool is_event(const cJSON *json) {
    const cJSON *const kind = json_member(json, "kind");
    return cJSON_IsObject(json) && cJSON_IsNumber(json_member(json, "time_ms")) &&
           cJSON_IsNumber(json_member(json, "rank")) && cJSON_IsString(kind) &&
           event_kind_parse(kind->valuestring) != EVENT_KIND_COUNT;
}

/* Length of the next line of `pending` with its newline, or 0. */
static size_t pending_line(const struct event_reader *r) {
    const size_t left = r->pending.len - r->used;
    const char *const start = str_text(&r->pending) + r->used;
    const char *const end = left ? memchr(start, '\n', left) : NULL;
    return end ? (size_t)(end - start) + 1 : 0;
}

/* Moves the offset behind the newline of a line that is too long to keep; stays where it is if
 * there is none yet. */
static enum status skip_long_line(struct event_reader *r, bool *skipped, struct err *e) {
    struct str chunk = {0};
    enum status status = STATUS_OK;
    for (int64_t at = r->offset; !*skipped; at += (int64_t)chunk.len) {
        str_clear(&chunk);
        status = file_read_at(r->path, at, READ_BYTES, &chunk, e);
        if (status != STATUS_OK || chunk.len == 0) break;
        const char *const end = memchr(chunk.data, '\n', chunk.len);
        if (!end) continue;
        r->offset = at + (end - chunk.data) + 1;
        *skipped = true;
    }
    str_release(&chunk);
    return status;
}

/* Fills `pending` from the offset until it holds a whole line, the file ends or the line is too
 * long. */
static enum status refill(struct event_reader *r, bool *skipped, struct err *e) {
    str_clear(&r->pending);
    r->used = 0;
    while (pending_line(r) == 0) {
        const size_t before = r->pending.len;
        if (before > EVENT_LINE_MAX) {
            str_clear(&r->pending);
            return skip_long_line(r, skipped, e);
        }
        TRY(file_read_at(r->path, r->offset + (int64_t)before, READ_BYTES, &r->pending, e));
        if (r->pending.len == before) break;
    }
    return STATUS_OK;
}

enum status event_reader_next(struct event_reader *r, cJSON **out, int64_t *skipped,
                              struct err *e) {
    *out = NULL;
    for (;;) {
        bool long_line = false;
        if (pending_line(r) == 0) {
            struct err missing = {0};
            const enum status status = refill(r, &long_line, &missing);
            if (status == STATUS_NOT_FOUND) return STATUS_OK;
            if (status != STATUS_OK) return err_set(e, status, "%s", missing.text);
        }
        *skipped += long_line;
        const size_t len = pending_line(r);
        if (long_line && len == 0) continue;
        if (len == 0) return STATUS_OK;
        cJSON *json = NULL;
        const bool parsed = len <= EVENT_LINE_MAX && json_parse(r->pending.data + r->used, len,
                                                                "event", &json, NULL) == STATUS_OK;
        r->used += len;
        r->offset += (int64_t)len;
        if (parsed && is_event(json)) {
            *out = json;
            return STATUS_OK;
        }
        cJSON_Delete(json);
        *skipped += 1;
    }
}
