/* run.c - the straight line of a run, top to bottom: prepare (run_start.c), train, save.
 *
 * A step is never half-reported: its event is written after its update, and what a crash may lose
 * is what came after the last checkpoint (law 4). */
#include "engine/train/run.h"

#include <stdio.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/start_trace.h"
#include "engine/rundir.h"
#include "engine/train/overhead.h"
#include "engine/train/recover_report.h"

static bool is_due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

static enum status train(struct run *r, struct err *e) {
    const int64_t last = r->corpus.total_steps;
    int64_t saved = r->state.step;
    bool stopping = false;
    TRY(report_phase(&r->log, "train", e));
    if (r->state.step == 0) TRY(run_say_samples(r, e));
    TRY(recover_between(r, &stopping, e));
    while (r->state.step < last && !stopping) {
        TRY(run_train_step(r, e));
        if (r->session.device->hurried) start_trace("first step done");
        r->session.device->hurried = false;
        const int64_t step = r->state.step;
        TRY(recover_between(r, &stopping, e));
        if (is_due(r->spec.eval_steps, step) && step < last) TRY(run_evaluate(r, e));
        if ((stopping || is_due(r->spec.save_steps, step)) && saved < step) {
            TRY(run_save_checkpoint(r, e));
            saved = step;
        }
    }
    FAIL_IF(r->state.step < last, STATUS_INTERRUPTED, "stopped on request after step %lld",
            (long long)r->state.step);
    TRY(run_evaluate(r, e));
    TRY(run_say_samples(r, e));
    return saved < last ? run_save_checkpoint(r, e) : STATUS_OK;
}

/* The whole of what was asked of the allocator, to hold against a plan or a rehearsal. */
static void add_books(cJSON *fields, const struct arena *arena) {
    struct arena_stats stats;
    char trace[24];
    if (!arena) return;
    arena_get_stats(arena, &stats);
    snprintf(trace, sizeof trace, "%016llx", (unsigned long long)stats.trace);
    json_add_i64(fields, "peak", stats.allocated_peak);
    json_add_i64(fields, "allocations", (int64_t)stats.allocations);
    json_add_string(fields, "trace", trace);
}

static enum status finish(struct run *r, const char *outcome, const char *result, struct err *e) {
    cJSON *const fields = cJSON_CreateObject();
    json_add_string(fields, "outcome", outcome);
    json_add_i64(fields, "step", r->state.step);
    json_add_i64(fields, "trained_tokens", r->state.trained_tokens);
    json_add_string(fields, "result", result);
    event_add_number(fields, "seconds", (double)(clock_steady_ns() - r->started_ns) * 1e-9);
    add_books(fields, r->session.arena);
    return event_write(&r->log, EVENT_DONE, fields, e);
}

static enum status run_all(struct run *r, struct err *e) {
    const char *result = NULL;
    TRY(run_prepare(r, e));
    TRY(train(r, e));
    TRY(run_export(r, &result, e));
    if (r->place.rank == 0) overhead_remember(&r->session);
    return finish(r, "succeeded", result, e);
}

/* A library or the driver found no memory, outside the arena: that is an out-of-memory, too. */
static void tell_foreign_shortage(struct run *r, const struct err *why) {
    struct err ignored = {0};
    const struct oom_report oom = {.step = r->state.step + 1,
                                   .micro = -1,
                                   .cap = run_cap(r),
                                   .world = r->comm ? r->comm->world : 1,
                                   .failure = why};
    if (diagnosis_translate(why->text, NULL))
        (void)report_oom(&r->log, &r->session, &oom, NULL, &ignored);
}

/* What a run that did not succeed leaves as its last events. */
static void tell_end(struct run *r, enum status status, const struct err *why) {
    struct err ignored = {0};
    if (status == STATUS_INTERRUPTED) {
        finish(r, "stopped", NULL, &ignored);
        return;
    }
    if (status == STATUS_OOM && r->session.arena) recover_tell_shortage(r, -1, &ignored);
    if (status == STATUS_DEVICE && r->session.arena) tell_foreign_shortage(r, why);
    if (!atomic_exchange(&r->told, true)) report_error(&r->log, why);
    comm_abandon(r->comm, why);
}

static enum status execute(struct run *r, struct err *e) {
    const char *const folder = r->folder;
    enum status status = comm_place_read(&r->place, e);
    if (status == STATUS_OK) status = run_claim(r, e);
    if (status == STATUS_OK) status = event_log_open(&r->log, folder, r->place.rank, e);
    if (status == STATUS_OK) {
        r->parts = mem_new((size_t)r->place.world, sizeof *r->parts);
        status = run_all(r, e);
        if (status != STATUS_OK) tell_end(r, status, e);
    }
    run_close(r);
    mem_free(r);
    return status;
}

enum status run_execute(const char *folder, bool (*stop)(void), bool echo, struct err *e) {
    struct run *const r = mem_new(1, sizeof *r);
    *r = (struct run){
        .folder = folder, .stop = stop, .lock_fd = -1, .started_ns = clock_steady_ns()};
    r->log.echo = echo;
    return execute(r, e);
}

enum status run_rehearse(const char *folder, bool (*stop)(void), struct err *e) {
    struct run *const r = mem_new(1, sizeof *r);
    *r = (struct run){.folder = folder,
                      .stop = stop,
                      .rehearses = true,
                      .lock_fd = -1,
                      .started_ns = clock_steady_ns()};
    return execute(r, e);
}
