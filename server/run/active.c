/* active.c - the states of a job, and what moves it from one to the next:
 *
 *   queued -> validating_files (begin) -> running (plan fits) -> succeeded (done: succeeded)
 *   queued, paused -> cancelled; validating_files -> failed (refused); running -> failed (error, or
 *   crashed CRASHES_MAX times without a step) | running again (crash) | paused | cancelled;
 *   paused, failed -> queued (resume)
 *
 * Trust: `validating_files` and `running` are held by jobs that the supervisor has in hand, and by
 * those alone; in `running` the row's rank names the process, if one was started. Every move is one
 * transaction of row, message and `job` event. What the user wants is a wish in the row: a click is
 * answered at once and survives a restart. */
#include "server/run/active.h"

#include <ctype.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/host.h"
#include "base/mem.h"
#include "server/run/follow.h"
#include "server/run/launch.h"
#include "server/run/outcome.h"
#include "server/run/results.h"

/* After SIGTERM a rank writes a checkpoint, which for a large model takes a while; a cancel does
 * not need it. */
enum { GRACE_CANCEL_MS = 10000, GRACE_PAUSE_MS = 300000, GRACE_SHUTDOWN_MS = 60000 };
/* What leads the ranks must end soon after their last word: sbatch looks every ten seconds, and
 * mpirun may wait for a machine that is not reached. */
enum { GRACE_OUTCOME_MS = 5000 };
enum { LOG_TAIL_BYTES = 1500, LOG_BYTES_MAX = 64 << 20, DISK_FULL_BYTES = 1 << 20 };

static const char VALIDATING[] = "validating_files", RUNNING[] = "running";

bool active_is_planning(const struct active *a) {
    return strcmp(a->job.status, VALIDATING) == 0;
}

bool active_is_going(const struct active *a) {
    return active_is_planning(a) || strcmp(a->job.status, RUNNING) == 0;
}

static void close_readers(struct active *a) {
    event_reader_close(&a->reader);
    for (int64_t rank = 1; a->others && rank < a->led.ranks; rank++) {
        event_reader_close(&a->others[rank]);
    }
    mem_free(a->others);
    a->others = NULL;
}

/* Where an offset cannot be read an event may be taken twice, but none is lost. */
static void open_readers(struct active *a) {
    event_reader_open(&a->reader, a->run, 0, a->job.event_offset);
    if (a->led.ranks > 1) a->others = mem_new((size_t)a->led.ranks, sizeof *a->others);
    for (int64_t rank = 1; rank < a->led.ranks; rank++) {
        int64_t offset = 0;
        struct err ignored = {0};
        (void)store_rank_get(a->place->store, a->job.number, rank, &offset, &ignored);
        event_reader_open(&a->others[rank], a->run, rank, offset);
    }
}

struct active *active_new(const struct run_place *place, struct job_row *row) {
    struct active *const a = mem_new(1, sizeof *a);
    *a = (struct active){.place = place, .job = *row, .end = {.state = PROCESS_GONE}};
    *row = (struct job_row){0};
    a->id = mem_strdup(a->job.id);
    a->run = store_run_folder(place->store, a->id);
    a->terms = claim_terms_of(a->job.spec);
    a->led = ranks_terms_of(a->job.spec);
    a->watched_ns = clock_steady_ns();
    open_readers(a);
    if (a->job.rank_pid > 1) {
        a->rank = (struct rank_identity){.pid = a->job.rank_pid, .start_time = a->job.rank_start};
        snprintf(a->rank.boot_id, sizeof a->rank.boot_id, "%s",
                 a->job.rank_boot ? a->job.rank_boot : "");
        a->has_process = true;
    }
    return a;
}

void active_free(struct active *a) {
    if (!a) return;
    close_readers(a);
    job_row_release(&a->job);
    claim_release(&a->claim);
    ranks_terms_release(&a->led);
    mem_free(a->run);
    mem_free(a->id);
    mem_free(a);
}

static void keep_identity(struct active *a) {
    a->has_process = true;
    a->term_sent_ns = a->outcome_ns = 0;
    a->job.rank_pid = a->rank.pid;
    a->job.rank_start = a->rank.start_time;
    row_text(&a->job.rank_boot, a->rank.boot_id);
}

static enum status say(struct active *a, const char *level, const char *message, struct err *e) {
    return move_job(a->place, &a->job, (struct move_words){level, message}, e);
}

static enum status settle(struct active *a, const char *status, const char *message,
                          struct err *e) {
    return move_settle(a->place, &a->job, status, (struct move_words){"info", message}, e);
}

enum status active_begin(struct active *a, struct err *e) {
    if (!a->job.started_at) a->job.started_at = clock_unix_ms() / 1000;
    move_set_state(&a->job, VALIDATING, "plan");
    struct err error = {0};
    const enum status status = launch_plan(a->place->engine, a->run, a->job.spec, &a->rank, &error);
    if (status != STATUS_OK) return move_settle_failed(a->place, &a->job, &error, e);
    keep_identity(a);
    return say(a, "info", "Checking the files and planning the memory", e);
}

/* A rank is started in the run directory; it continues from the newest checkpoint if there is one.
 * What an earlier process told of its memory is no news of this one. */
static enum status start_rank(struct active *a, const char *message, struct err *e) {
    row_text(&a->job.outcome, NULL);
    row_text(&a->job.memory, NULL);
    /* "load" is then their own word, when they have come. */
    const bool waits = a->led.launcher == RANKS_SLURM || a->led.launcher == RANKS_EXTERNAL;
    move_set_state(&a->job, RUNNING, waits ? "ranks" : "load");
    struct err error = {0};
    const enum status status = launch_ranks(a->place->engine, a->run, &a->led, &a->rank, &error);
    if (status != STATUS_OK) return move_settle_failed(a->place, &a->job, &error, e);
    keep_identity(a);
    a->watched_ns = clock_steady_ns();
    struct str text = {0};
    str_append(&text, message);
    ranks_say_start(&a->led, a->run, &text);
    const enum status said = say(a, "info", str_text(&text), e);
    str_release(&text);
    return said;
}

static enum status plan_ended(struct active *a, struct process_end end, struct err *e) {
    if (move_is_wished(&a->job, "cancel")) return settle(a, "cancelled", "Cancelled", e);
    if (move_is_wished(&a->job, "pause")) return settle(a, "paused", "Paused", e);
    struct err error = {0};
    char *plan = NULL;
    if (launch_read_plan(a->run, end, &plan, &error) != STATUS_OK) {
        if (!launch_is_about_here(&a->led, &error))
            return move_settle_failed(a->place, &a->job, &error, e);
        return start_rank(a, "Fine-tuning job started; its ranks plan their memory themselves", e);
    }
    mem_free(a->job.plan);
    a->job.plan = plan;
    struct str message = {0}, changes = {0};
    launch_say_changes(plan, &changes);
    str_appendf(&message, "Fine-tuning job started%s%s", changes.len ? ". " : "",
                str_text(&changes));
    const enum status status = start_rank(a, str_text(&message), e);
    str_release(&message);
    str_release(&changes);
    return status;
}

static void count_run_time(struct active *a) {
    const int64_t now = clock_steady_ns();
    a->job.run_ms += (now - a->watched_ns) / 1000000;
    a->watched_ns = now;
}

static enum status succeed(struct active *a, struct err *e) {
    struct job_row *const job = &a->job;
    char *file = NULL;
    TRY(results_write(a->place->store, job, &file, e));
    mem_free(job->results_file);
    job->results_file = file;
    launch_name_result(job);
    if (isnan(job->loss)) return settle(a, "succeeded", "The job succeeded", e);
    char *message = str_format("The job succeeded: loss %.4g after %lld steps, from %.4g",
                               job->loss, (long long)job->step, job->first_loss);
    const enum status status = settle(a, "succeeded", message, e);
    mem_free(message);
    return status;
}

/* What the rank said when it failed, or how it ended and the last lines of its log. */
static void reason_of(const struct active *a, const cJSON *event, struct process_end end,
                      struct err *out) {
    if (launch_read_error(event, out)) return;
    if (a->disk_full) {
        err_set(
            out, STATUS_NO_SPACE,
            "the disk is full: the run could not write its files. Make room and resume the job; "
            "it continues from its last checkpoint");
        return;
    }
    char how[96];
    struct str log = {0};
    char *path = rundir_log(a->run, 0);
    results_log_tail(path, LOG_TAIL_BYTES, &log);
    err_set(out, STATUS_INTERNAL, "the training process was %s%s. Its last words: %s",
            process_end_text(end, how), a->job.crashes ? " again and again" : "",
            log.len ? log.data : "(none)");
    mem_free(path);
    str_release(&log);
}

/* A lost rank is named by those that are left; else only the way the process ended is known. */
static void crash_of(const struct active *a, const cJSON *event, struct process_end end,
                     struct err *out) {
    char how[96];
    if (launch_read_error(event, out)) {
        out->text[0] = (char)toupper((unsigned char)out->text[0]);
        return;
    }
    if (a->led.launcher == RANKS_EXTERNAL) {
        err_set(out, STATUS_INTERNAL, "The ranks have ended without a word");
        return;
    }
    err_set(out, STATUS_INTERNAL, "The training process was %s", process_end_text(end, how));
}

static enum status restart(struct active *a, enum outcome outcome, const cJSON *event,
                           struct process_end end, struct err *e) {
    char *message = NULL;
    if (outcome == OUTCOME_STOPPED) {
        message = str_format("The run was stopped from outside; continuing");
    } else {
        struct err how = {0};
        crash_of(a, event, end, &how);
        message =
            str_format("%s, at step %lld; continuing from the last checkpoint (attempt %lld "
                       "of %d)",
                       how.text, (long long)a->job.step, (long long)a->job.crashes, CRASHES_MAX);
    }
    move_set_state(&a->job, RUNNING, "interrupted");
    enum status status = say(a, "warn", message, e);
    if (status == STATUS_OK) status = start_rank(a, "Run continued", e);
    mem_free(message);
    return status;
}

static void count_crash(struct job_row *job) {
    if (job->step > job->crash_step) job->crashes = 0;
    job->crashes++;
    if (job->step > job->crash_step) job->crash_step = job->step;
}

static enum status judge(struct active *a, const cJSON *event, struct process_end end,
                         struct err *e) {
    const enum outcome outcome = outcome_of(event, end);
    const bool unwished = outcome == OUTCOME_STOPPED && !a->job.wish;
    if (outcome == OUTCOME_CRASHED || unwished) count_crash(&a->job);
    switch (verdict_of(outcome, a->job.wish, a->job.crashes)) {
    case VERDICT_SUCCEED: return succeed(a, e);
    case VERDICT_CANCEL: return settle(a, "cancelled", "Cancelled", e);
    case VERDICT_PAUSE:
        return settle(a, "paused", "Paused; resuming continues from the checkpoint", e);
    case VERDICT_RESTART: return restart(a, outcome, event, end, e);
    case VERDICT_FAIL: break;
    }
    struct err reason = {0};
    reason_of(a, event, end, &reason);
    return move_settle_failed(a->place, &a->job, &reason, e);
}

/* All events of a rank that has ended are in the database; running -> somewhere. */
static enum status rank_ended(struct active *a, struct process_end end, struct err *e) {
    count_run_time(a);
    cJSON *event = NULL;
    if (a->job.outcome) {
        TRY(json_parse(a->job.outcome, strlen(a->job.outcome), "outcome", &event, e));
    }
    const enum status status = judge(a, event, end, e);
    cJSON_Delete(event);
    return status;
}

static enum status follow_all(struct active *a, struct err *e) {
    const struct run_place *const place = a->place;
    int64_t count = 0;
    do {
        TRY(follow_batch(place->store, &a->reader, &a->job, &count, e));
        if (count) place->news(place->context);
    } while (count == FOLLOW_BATCH);
    for (int64_t rank = 1; rank < a->led.ranks; rank++) {
        do {
            TRY(follow_other(place->store, &a->others[rank], &a->job, rank, &count, e));
            if (count) place->news(place->context);
        } while (count == FOLLOW_BATCH);
    }
    return STATUS_OK;
}

static enum status follow_living(struct active *a, struct err *e) {
    char *log = rundir_log(a->run, 0);
    results_log_bound(log, LOG_BYTES_MAX);
    mem_free(log);
    return follow_all(a, e);
}

/* mpirun would end its ranks a second after SIGTERM, in the middle of a checkpoint: several ranks
 * are asked through the run directory alone. */
static void signal_stop(const struct active *a) {
    if (!ranks_are_led(&a->led) || active_is_planning(a)) process_signal_group(&a->rank, SIGTERM);
}

static void kill_run(const struct active *a) {
    process_signal_group(&a->rank, SIGKILL);
    if (ranks_are_led(&a->led)) ranks_kill(a->run, &a->led);
}

/* Of a job that waits in Slurm's queue nobody hears that it shall stop. */
static bool waits_for_slurm(const struct active *a) {
    return a->led.launcher == RANKS_SLURM && !active_is_planning(a) &&
           !ranks_any_there(a->run, &a->led);
}

static void end_after_outcome(struct active *a) {
    const int64_t now = clock_steady_ns();
    if (!a->job.outcome || !ranks_are_led(&a->led) || active_is_planning(a)) return;
    if (!a->outcome_ns) a->outcome_ns = now;
    if (now - a->outcome_ns > GRACE_OUTCOME_MS * (int64_t)1000000) kill_run(a);
}

/* Asks, waits, kills. The request is looked after: another wish that was written at the same moment
 * may have replaced it. */
static enum status enforce_stop(struct active *a, int64_t grace_ms, struct err *e) {
    const int64_t now = clock_steady_ns();
    if (!a->term_sent_ns) {
        a->term_sent_ns = now;
        TRY(rundir_request_stop(a->run, e));
        signal_stop(a);
    } else if (now - a->term_sent_ns > grace_ms * 1000000 || waits_for_slurm(a)) {
        kill_run(a);
    } else if (!rundir_stop_requested(a->run)) {
        TRY(rundir_request_stop(a->run, e));
    }
    return STATUS_OK;
}

static enum status fulfil_wish(struct active *a, struct active_orders orders, struct err *e) {
    char *wish = NULL;
    TRY(store_job_wish_get(a->place->store, a->job.number, &wish, e));
    mem_free(a->job.wish);
    a->job.wish = wish;
    if (orders.stopping && orders.stop_jobs) return enforce_stop(a, GRACE_SHUTDOWN_MS, e);
    if (move_is_wished(&a->job, "cancel")) return enforce_stop(a, GRACE_CANCEL_MS, e);
    if (move_is_wished(&a->job, "pause")) return enforce_stop(a, GRACE_PAUSE_MS, e);
    return STATUS_OK;
}

/* How a planner ended that an earlier server had started is not known; planning again is cheap. A
 * planner that ended because the server stops is no answer either: the next server plans again. */
static enum status planner_ended(struct active *a, struct active_orders orders, struct err *e) {
    if (orders.stopping) return STATUS_OK;
    return a->end.state == PROCESS_GONE && !a->job.wish ? active_begin(a, e)
                                                        : plan_ended(a, a->end, e);
}

/* The process has ended. What it may have left of its group is killed before the job is called
 * over. */
static enum status process_ended(struct active *a, struct active_orders orders,
                                 struct process_end end, struct err *e) {
    if (process_group_exists(&a->rank) || ranks_are_led(&a->led)) kill_run(a);
    int64_t free_bytes = INT64_MAX;
    struct err ignored = {0};
    (void)file_free_space(a->run, &free_bytes, &ignored);
    a->has_process = false;
    a->end = end;
    a->disk_full = free_bytes < DISK_FULL_BYTES;
    if (active_is_planning(a)) return planner_ended(a, orders, e);
    TRY(follow_all(a, e));
    if (orders.stopping) return STATUS_OK; /* the next server continues it */
    return rank_ended(a, end, e);
}

enum status active_advance(struct active *a, struct active_orders orders, struct err *e) {
    if (a->has_process) {
        TRY(fulfil_wish(a, orders, e));
        const struct process_end end = process_poll(&a->rank);
        if (end.state == PROCESS_RUNNING) {
            TRY(follow_living(a, e));
            end_after_outcome(a);
            return STATUS_OK;
        }
        return process_ended(a, orders, end, e);
    }
    if (orders.stopping) return STATUS_OK;
    if (active_is_planning(a)) return active_begin(a, e);
    TRY(follow_all(a, e));
    return rank_ended(a, a->end, e);
}

enum status active_again(struct active *a, struct err *e) {
    struct job_row row = {0};
    TRY(store_job_get(a->place->store, a->id, &row, e));
    const bool recorded = row.rank_pid == a->rank.pid && row.rank_start == a->rank.start_time;
    if (a->has_process && !recorded) {
        kill_run(a);
        a->has_process = false;
        a->end = (struct process_end){.state = PROCESS_GONE};
    }
    close_readers(a);
    job_row_release(&a->job);
    a->job = row;
    a->stale = false;
    open_readers(a);
    return STATUS_OK;
}

/* Of ranks that a launcher started each has its own identity in the run directory. */
int64_t active_held(const struct active *a) {
    if (!a->has_process) return 0;
    if (!ranks_are_led(&a->led) || active_is_planning(a)) return host_private_of(a->rank.pid);
    int64_t sum = 0;
    for (int64_t rank = 0; rank < a->led.ranks; rank++) {
        struct rank_identity identity = {0};
        struct err ignored = {0};
        if (rundir_identity(a->run, rank, &identity, &ignored) == STATUS_OK &&
            rank_is_alive(&identity))
            sum += host_private_of(identity.pid);
    }
    return sum;
}
