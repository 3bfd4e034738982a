/* watching.c - when a step is recorded, and what is written of it.
 *
 * The second step is the first that is like all others: in the first, memory is backed and
 * libraries load. */
#include "engine/train/watching.h"

#include "base/file.h"
#include "base/mem.h"
#include "engine/memory/snapshot.h"
#include "engine/memory/summary.h"
#include "engine/rundir.h"
#include "engine/train/report.h"

enum { TYPICAL_STEP = 2 };

void watching_begin(struct watching *w, struct arena *arena, bool asked, bool last) {
    w->steps++;
    const bool typical = w->steps == TYPICAL_STEP || (w->steps == 1 && last);
    w->asked = asked;
    w->recording = asked || typical;
    if (!w->recording) return;
    if (!w->trace) w->trace = trace_new(TRACE_EVENTS_MAX);
    trace_begin(w->trace, arena);
}

void watching_move(struct watching *w, struct arena *arena) {
    if (!w->recording) return;
    if (arena) {
        trace_begin(w->trace, arena);
    } else {
        trace_end(w->trace);
    }
}

static enum status write_timeline(const struct watching *w, const struct snapshot_place *place,
                                  const char *path, struct err *e) {
    cJSON *const json = timeline_to_json(w->trace, place);
    struct str text = {0};
    json_append(&text, json);
    cJSON_Delete(json);
    const enum status status = file_write_atomic(path, str_text(&text), text.len, e);
    str_release(&text);
    return status;
}

static enum status write_summary(const struct arena *arena, int64_t rank, const char *path,
                                 struct err *e) {
    struct arena_stats stats;
    struct str text = {0};
    arena_get_stats(arena, &stats);
    summary_append(&text, &stats, rank);
    const enum status status = file_write_atomic(path, str_text(&text), text.len, e);
    str_release(&text);
    return status;
}

static enum status write_files(const struct watching *w, const struct arena *arena,
                               const struct snapshot_place *place, const char *run_folder,
                               struct err *e) {
    char *folder = rundir_memory(run_folder);
    char *timeline = rundir_timeline(run_folder, place->rank);
    char *snapshot = rundir_snapshot(run_folder, place->rank);
    char *summary = rundir_summary(run_folder, place->rank);
    enum status status = file_make_folder(folder, e);
    if (status == STATUS_OK) status = write_timeline(w, place, timeline, e);
    if (status == STATUS_OK && w->asked) status = write_summary(arena, place->rank, summary, e);
    if (status == STATUS_OK && w->asked)
        status = snapshot_write(arena, w->trace, place, snapshot, e);
    mem_free(folder);
    mem_free(timeline);
    mem_free(snapshot);
    mem_free(summary);
    return status;
}

enum status watching_end(struct watching *w, const struct arena *arena,
                         const struct watching_place *place, struct event_log *log, struct err *e) {
    if (!w->recording) return STATUS_OK;
    trace_end(w->trace);
    w->recording = false;
    const struct snapshot_place where = {.rank = log->rank, .step = place->step};
    struct err failure = {0};
    const enum status status = write_files(w, arena, &where, place->run_folder, &failure);
    if (status == STATUS_OK && !w->asked) return STATUS_OK;
    char *text = status == STATUS_OK
                     ? str_format("wrote a memory snapshot of step %lld: %lld allocation events",
                                  (long long)place->step, (long long)trace_count(w->trace))
                     : str_format("what step %lld did with memory could not be written: %s",
                                  (long long)place->step, failure.text);
    const enum status said = report_log(log, status == STATUS_OK ? "info" : "warn", text, e);
    mem_free(text);
    return said;
}

void watching_release(struct watching *w) {
    if (!w) return;
    trace_free(w->trace);
    *w = (struct watching){0};
}
