/* supervisor.c - the states of a job, and who moves it from one to the next:
 *
 *   queued -> validating_files (begin) -> running (plan fits) -> succeeded (done: succeeded)
 *   queued, paused -> cancelled; validating_files -> failed (refused); running -> failed (error, or
 *   crashed CRASHES_MAX times without a step) | running again (crash) | paused | cancelled;
 *   paused, failed -> queued (resume)
 *
 * Trust: `validating_files` and `running` are held by at most one job; in `running` the row's
 * rank names the process, if one was started. Every move is one transaction of row, message and
 * `job` event. What the user wants is a wish in the row: a click is answered at once and survives
 * a restart. */
#include "server/run/supervisor.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "server/run/follow.h"
#include "server/run/launch.h"
#include "server/run/outcome.h"
#include "server/run/process.h"
#include "server/run/ranks.h"
#include "server/run/results.h"

enum { TICK_ACTIVE_MS = 100, TICK_IDLE_MS = 1000, TICK_TROUBLE_MS = 2000 };
/* After SIGTERM a rank writes a checkpoint, which for a large model takes a while; a cancel does
 * not need it. */
enum { GRACE_CANCEL_MS = 10000, GRACE_PAUSE_MS = 300000, GRACE_SHUTDOWN_MS = 60000 };
enum { LOG_TAIL_BYTES = 1500, LOG_BYTES_MAX = 64 << 20, DISK_FULL_BYTES = 1 << 20 };

/* The job that is being planned or run. */
struct active {
    bool held;
    struct job_row job;
    char *run; /* its run directory */
    struct rank_identity rank;
    bool has_process;
    struct event_reader reader;
    int64_t ranks;               /* of the job's spec */
    struct event_reader *others; /* [ranks]; of those beyond 0; NULL: there are none */
    int64_t term_sent_ns;        /* 0: not asked to stop */
    int64_t watched_ns;          /* since when run_ms has been counted */
    struct process_end end; /* how the last process ended; gone when no process has been watched */
    bool disk_full;         /* at that moment: then neither an event nor a log could be written */
};

struct supervisor {
    struct supervisor_config config;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool started, woken;
    atomic_bool stopping, stop_jobs; /* read by the thread wherever it is */
    struct active active;            /* of the thread alone */
};

/* The row's own words for a text member. */
static void set_state(struct job_row *job, const char *status, const char *phase) {
    row_text(&job->status, status);
    row_text(&job->phase, phase);
}

static bool wished(const struct job_row *job, const char *wish) {
    return job->wish && strcmp(job->wish, wish) == 0;
}

static void close_readers(struct active *a) {
    if (a->run) event_reader_close(&a->reader);
    for (int64_t rank = 1; a->others && rank < a->ranks; rank++) {
        event_reader_close(&a->others[rank]);
    }
    mem_free(a->others);
    a->others = NULL;
}

/* Where an offset cannot be read an event may be taken twice, but none is lost. */
static void open_readers(struct supervisor *s) {
    struct active *const a = &s->active;
    event_reader_open(&a->reader, a->run, 0, a->job.event_offset);
    a->ranks = ranks_of_spec(a->job.spec);
    if (a->ranks > 1) a->others = mem_new((size_t)a->ranks, sizeof *a->others);
    for (int64_t rank = 1; rank < a->ranks; rank++) {
        int64_t offset = 0;
        struct err ignored = {0};
        (void)store_rank_get(s->config.store, a->job.number, rank, &offset, &ignored);
        event_reader_open(&a->others[rank], a->run, rank, offset);
    }
}

static void release_active(struct active *a) {
    close_readers(a);
    job_row_release(&a->job);
    mem_free(a->run);
    *a = (struct active){0};
}

/* A move: the state, what to tell the user, and all that goes with it, in one transaction. */
static enum status move(struct supervisor *s, struct job_row *job, const char *level,
                        const char *message, struct err *e) {
    struct store *const store = s->config.store;
    TRY(store_begin(store, e));
    enum status status = STATUS_OK;
    if (message) status = follow_say(store, job, level, message, e);
    if (status == STATUS_OK) status = follow_state(store, job, e);
    status = store_end(store, status, e);
    s->config.news(s->config.context);
    return status;
}

/* A move into a state that is over, or into paused: the wish is fulfilled and there is no process.
 */
static enum status settle(struct supervisor *s, struct job_row *job, const char *status,
                          const char *level, const char *message, struct err *e) {
    set_state(job, status, status);
    job->rank_pid = job->rank_start = 0;
    row_text(&job->rank_boot, NULL);
    const bool waits = strcmp(status, "paused") == 0 || strcmp(status, "queued") == 0;
    if (!waits) job->finished_at = clock_unix_ms() / 1000;
    TRY(store_begin(s->config.store, e));
    enum status result = store_job_wish(s->config.store, job->id, NULL, e);
    if (result == STATUS_OK) result = move(s, job, level, message, e);
    result = store_end(s->config.store, result, e);
    s->config.news(s->config.context);
    return result;
}

static void set_error(struct job_row *job, const struct err *error) {
    cJSON *object = cJSON_CreateObject();
    json_add_string(object, "code", status_name(error->status));
    json_add_string(object, "message", error->text);
    json_add_string(object, "param", error->param[0] ? error->param : NULL);
    struct str text = {0};
    json_append(&text, object);
    cJSON_Delete(object);
    mem_free(job->error);
    job->error = str_take(&text);
}

static enum status settle_failed(struct supervisor *s, const struct err *error, struct err *e) {
    struct job_row *const job = &s->active.job;
    set_error(job, error);
    char *message = str_format("The job failed: %s", error->text);
    const enum status status = settle(s, job, "failed", "error", message, e);
    mem_free(message);
    return status;
}

/* Takes a row into hand: also after a restart of the server, so nothing here may assume a fresh
 * job. */
static void hold(struct supervisor *s, struct job_row *row) {
    struct active *const a = &s->active;
    ASSERT(!a->held);
    *a = (struct active){.held = true, .job = *row, .end = {.state = PROCESS_GONE}};
    *row = (struct job_row){0};
    a->run = store_run_folder(s->config.store, a->job.id);
    a->watched_ns = clock_steady_ns();
    open_readers(s);
    if (a->job.rank_pid > 1) {
        a->rank = (struct rank_identity){.pid = a->job.rank_pid, .start_time = a->job.rank_start};
        snprintf(a->rank.boot_id, sizeof a->rank.boot_id, "%s",
                 a->job.rank_boot ? a->job.rank_boot : "");
        a->has_process = true;
    }
}

/* Reads the row again after the store failed in the middle of something. */
static enum status hold_again(struct supervisor *s, struct err *e) {
    struct job_row row = {0};
    TRY(store_job_get(s->config.store, s->active.job.id, &row, e));
    const struct active before = s->active;
    close_readers(&s->active);
    job_row_release(&s->active.job);
    mem_free(s->active.run);
    s->active = (struct active){0};
    hold(s, &row);
    s->active.rank = before.rank;
    s->active.has_process = before.has_process;
    s->active.term_sent_ns = before.term_sent_ns;
    s->active.end = before.end;
    s->active.disk_full = before.disk_full;
    return STATUS_OK;
}

static void keep_identity(struct active *a) {
    a->has_process = true;
    a->term_sent_ns = 0;
    a->job.rank_pid = a->rank.pid;
    a->job.rank_start = a->rank.start_time;
    row_text(&a->job.rank_boot, a->rank.boot_id);
}

/* queued -> validating_files */
static enum status begin(struct supervisor *s, struct err *e) {
    struct active *const a = &s->active;
    if (!a->job.started_at) a->job.started_at = clock_unix_ms() / 1000;
    set_state(&a->job, "validating_files", "plan");
    struct err error = {0};
    const enum status status = launch_plan(s->config.engine, a->run, a->job.spec, &a->rank, &error);
    if (status != STATUS_OK) return settle_failed(s, &error, e);
    keep_identity(a);
    return move(s, &a->job, "info", "Checking the files and planning the memory", e);
}

/* A rank is started in the run directory; it continues from the newest checkpoint if there is one.
 */
static enum status start_rank(struct supervisor *s, const char *message, struct err *e) {
    struct active *const a = &s->active;
    row_text(&a->job.outcome, NULL);
    set_state(&a->job, "running", "load");
    struct err error = {0};
    const enum status status = launch_ranks(s->config.engine, a->run, a->ranks, &a->rank, &error);
    if (status != STATUS_OK) return settle_failed(s, &error, e);
    keep_identity(a);
    a->watched_ns = clock_steady_ns();
    return move(s, &a->job, "info", message, e);
}

static enum status plan_ended(struct supervisor *s, struct process_end end, struct err *e) {
    struct active *const a = &s->active;
    if (wished(&a->job, "cancel")) return settle(s, &a->job, "cancelled", "info", "Cancelled", e);
    if (wished(&a->job, "pause")) return settle(s, &a->job, "paused", "info", "Paused", e);
    struct err error = {0};
    char *plan = NULL;
    if (launch_read_plan(a->run, end, &plan, &error) != STATUS_OK) {
        return settle_failed(s, &error, e);
    }
    mem_free(a->job.plan);
    a->job.plan = plan;
    struct str message = {0}, changes = {0};
    launch_say_changes(plan, &changes);
    str_appendf(&message, "Fine-tuning job started%s%s", changes.len ? ". " : "",
                str_text(&changes));
    const enum status status = start_rank(s, str_text(&message), e);
    str_release(&message);
    str_release(&changes);
    return status;
}

static void count_run_time(struct active *a) {
    const int64_t now = clock_steady_ns();
    a->job.run_ms += (now - a->watched_ns) / 1000000;
    a->watched_ns = now;
}

static enum status succeed(struct supervisor *s, struct err *e) {
    struct job_row *const job = &s->active.job;
    char *file = NULL;
    TRY(results_write(s->config.store, job, &file, e));
    mem_free(job->results_file);
    job->results_file = file;
    launch_name_result(job);
    if (isnan(job->loss)) return settle(s, job, "succeeded", "info", "The job succeeded", e);
    char *message = str_format("The job succeeded: loss %.4g after %lld steps, from %.4g",
                               job->loss, (long long)job->step, job->first_loss);
    const enum status status = settle(s, job, "succeeded", "info", message, e);
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
static void crash_of(const cJSON *event, struct process_end end, struct err *out) {
    char how[96];
    if (launch_read_error(event, out)) {
        out->text[0] = (char)toupper((unsigned char)out->text[0]);
        return;
    }
    err_set(out, STATUS_INTERNAL, "The training process was %s", process_end_text(end, how));
}

static enum status restart(struct supervisor *s, enum outcome outcome, const cJSON *event,
                           struct process_end end, struct err *e) {
    struct active *const a = &s->active;
    char *message = NULL;
    if (outcome == OUTCOME_STOPPED) {
        message = str_format("The run was stopped from outside; continuing");
    } else {
        struct err how = {0};
        crash_of(event, end, &how);
        message =
            str_format("%s, at step %lld; continuing from the last checkpoint (attempt %lld "
                       "of %d)",
                       how.text, (long long)a->job.step, (long long)a->job.crashes, CRASHES_MAX);
    }
    set_state(&a->job, "running", "interrupted");
    enum status status = move(s, &a->job, "warn", message, e);
    if (status == STATUS_OK) status = start_rank(s, "Run continued", e);
    mem_free(message);
    return status;
}

static void count_crash(struct job_row *job) {
    if (job->step > job->crash_step) job->crashes = 0;
    job->crashes++;
    if (job->step > job->crash_step) job->crash_step = job->step;
}

static enum status judge(struct supervisor *s, const cJSON *event, struct process_end end,
                         struct err *e) {
    struct active *const a = &s->active;
    const enum outcome outcome = outcome_of(event, end);
    const bool unwished = outcome == OUTCOME_STOPPED && !a->job.wish;
    if (outcome == OUTCOME_CRASHED || unwished) count_crash(&a->job);
    switch (verdict_of(outcome, a->job.wish, a->job.crashes)) {
    case VERDICT_SUCCEED: return succeed(s, e);
    case VERDICT_CANCEL: return settle(s, &a->job, "cancelled", "info", "Cancelled", e);
    case VERDICT_PAUSE:
        return settle(s, &a->job, "paused", "info",
                      "Paused; resuming continues from the checkpoint", e);
    case VERDICT_RESTART: return restart(s, outcome, event, end, e);
    case VERDICT_FAIL: break;
    }
    struct err reason = {0};
    reason_of(a, event, end, &reason);
    return settle_failed(s, &reason, e);
}

/* All events of a rank that has ended are in the database; running -> somewhere. */
static enum status rank_ended(struct supervisor *s, struct process_end end, struct err *e) {
    struct active *const a = &s->active;
    count_run_time(a);
    cJSON *event = NULL;
    if (a->job.outcome) {
        TRY(json_parse(a->job.outcome, strlen(a->job.outcome), "outcome", &event, e));
    }
    const enum status status = judge(s, event, end, e);
    cJSON_Delete(event);
    return status;
}

static enum status follow_all(struct supervisor *s, struct err *e) {
    struct active *const a = &s->active;
    int64_t count = 0;
    do {
        TRY(follow_batch(s->config.store, &a->reader, &a->job, &count, e));
        if (count) s->config.news(s->config.context);
    } while (count == FOLLOW_BATCH);
    for (int64_t rank = 1; rank < a->ranks; rank++) {
        do {
            TRY(follow_other(s->config.store, &a->others[rank], &a->job, rank, &count, e));
            if (count) s->config.news(s->config.context);
        } while (count == FOLLOW_BATCH);
    }
    return STATUS_OK;
}

static enum status follow_living(struct supervisor *s, struct err *e) {
    char *log = rundir_log(s->active.run, 0);
    results_log_bound(log, LOG_BYTES_MAX);
    mem_free(log);
    return follow_all(s, e);
}

/* mpirun would end its ranks a second after SIGTERM, in the middle of a checkpoint: several ranks
 * are asked through the run directory alone. */
static void signal_stop(const struct active *a) {
    const bool planning = strcmp(a->job.status, "validating_files") == 0;
    if (a->ranks == 1 || planning) process_signal_group(&a->rank, SIGTERM);
}

static void kill_run(const struct active *a) {
    process_signal_group(&a->rank, SIGKILL);
    if (a->ranks > 1) ranks_kill(a->run, a->ranks);
}

/* Asks, waits, kills. */
static enum status enforce_stop(struct active *a, int64_t grace_ms, struct err *e) {
    const int64_t now = clock_steady_ns();
    if (!a->term_sent_ns) {
        a->term_sent_ns = now;
        TRY(rundir_request_stop(a->run, e));
        signal_stop(a);
    } else if (now - a->term_sent_ns > grace_ms * 1000000) {
        kill_run(a);
    }
    return STATUS_OK;
}

static enum status fulfil_wish(struct supervisor *s, struct err *e) {
    struct active *const a = &s->active;
    char *wish = NULL;
    TRY(store_job_wish_get(s->config.store, a->job.number, &wish, e));
    mem_free(a->job.wish);
    a->job.wish = wish;
    if (s->stopping && s->stop_jobs) return enforce_stop(a, GRACE_SHUTDOWN_MS, e);
    if (wished(&a->job, "cancel")) return enforce_stop(a, GRACE_CANCEL_MS, e);
    if (wished(&a->job, "pause")) return enforce_stop(a, GRACE_PAUSE_MS, e);
    return STATUS_OK;
}

/* The process has ended. What it may have left of its group is killed before the job is called
 * over. */
static enum status process_ended(struct supervisor *s, struct process_end end, struct err *e) {
    struct active *const a = &s->active;
    if (process_group_exists(&a->rank) || a->ranks > 1) kill_run(a);
    int64_t free_bytes = INT64_MAX;
    struct err ignored = {0};
    (void)file_free_space(a->run, &free_bytes, &ignored);
    a->has_process = false;
    a->end = end;
    a->disk_full = free_bytes < DISK_FULL_BYTES;
    if (strcmp(a->job.status, "validating_files") == 0) {
        /* How a planner ended that an earlier server had started is not known; planning again is
         * cheap. */
        return end.state == PROCESS_GONE && !a->job.wish ? begin(s, e) : plan_ended(s, end, e);
    }
    TRY(follow_all(s, e));
    if (s->stopping) return STATUS_OK; /* the next server continues it */
    return rank_ended(s, end, e);
}

static enum status advance(struct supervisor *s, struct err *e) {
    struct active *const a = &s->active;
    const bool planning = strcmp(a->job.status, "validating_files") == 0;
    if (a->has_process) {
        TRY(fulfil_wish(s, e));
        const struct process_end end = process_poll(&a->rank);
        if (end.state == PROCESS_RUNNING) return follow_living(s, e);
        return process_ended(s, end, e);
    }
    if (s->stopping) return STATUS_OK;
    if (planning) return begin(s, e);
    TRY(follow_all(s, e));
    return rank_ended(s, a->end, e);
}

/* Wishes about jobs that have no process: queued -> cancelled | paused, paused -> queued |
 * cancelled. */
static enum status settle_wished(struct supervisor *s, struct err *e) {
    struct job_row job = {0};
    bool found = false;
    TRY(store_job_pick(s->config.store, JOB_WISHED, &job, &found, e));
    if (!found) return STATUS_OK;
    enum status status = STATUS_OK;
    if (wished(&job, "cancel")) {
        status = settle(s, &job, "cancelled", "info", "Cancelled", e);
    } else if (wished(&job, "pause")) {
        status = settle(s, &job, "paused", "info", "Paused", e);
    } else {
        job.queued_ms = clock_unix_ms();
        job.crashes = 0;
        job.finished_at = 0;
        row_text(&job.error, NULL);
        status = settle(s, &job, "queued", "info", "Resumed: waiting for its turn", e);
    }
    job_row_release(&job);
    return status;
}

/* Takes the job that a server before us had in hand, or the next in the queue. */
static enum status pick(struct supervisor *s, struct err *e) {
    struct job_row row = {0};
    bool found = false;
    TRY(store_job_pick(s->config.store, JOB_ACTIVE, &row, &found, e));
    if (found) {
        hold(s, &row);
        return STATUS_OK;
    }
    TRY(settle_wished(s, e));
    if (s->stopping) return STATUS_OK;
    TRY(store_job_pick(s->config.store, JOB_NEXT_QUEUED, &row, &found, e));
    if (!found) return STATUS_OK;
    hold(s, &row);
    return begin(s, e);
}

static bool is_active(const struct job_row *job) {
    return strcmp(job->status, "validating_files") == 0 || strcmp(job->status, "running") == 0;
}

static enum status tick(struct supervisor *s, struct err *e) {
    TRY(settle_wished(s, e));
    if (s->active.held) {
        TRY(advance(s, e));
    } else {
        TRY(pick(s, e));
    }
    if (s->active.held && !is_active(&s->active.job)) release_active(&s->active);
    return STATUS_OK;
}

static void wait_tick(struct supervisor *s, int64_t wait_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (wait_ms % 1000) * 1000000;
    until.tv_sec += wait_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s->mutex);
    int code = 0;
    while (!s->woken && code == 0) {
        code = pthread_cond_timedwait(&s->wake, &s->mutex, &until);
    }
    s->woken = false;
    pthread_mutex_unlock(&s->mutex);
}

static bool may_end(const struct supervisor *s) {
    return s->stopping && !(s->stop_jobs && s->active.held && s->active.has_process);
}

static void *supervise(void *context) {
    struct supervisor *const s = context;
    while (!may_end(s)) {
        struct err error = {0};
        int64_t wait_ms = TICK_IDLE_MS;
        const bool had = s->active.held;
        if (tick(s, &error) != STATUS_OK) {
            /* The store failed (a full disk, say). The run goes on meanwhile; nothing is lost, it
             * is read later. */
            fprintf(stderr, "plimsoll: %s\n", error.text);
            struct err again = {0};
            if (s->active.held && hold_again(s, &again) != STATUS_OK) {
                fprintf(stderr, "plimsoll: %s\n", again.text);
            }
            wait_ms = TICK_TROUBLE_MS;
        } else if (s->active.held) {
            wait_ms = TICK_ACTIVE_MS;
        } else if (had) {
            wait_ms = 0; /* the next in the queue */
        }
        if (!may_end(s)) wait_tick(s, wait_ms);
    }
    release_active(&s->active);
    return NULL;
}

struct supervisor *supervisor_new(const struct supervisor_config *config) {
    struct supervisor *s = mem_new(1, sizeof *s);
    s->config = *config;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    return s;
}

enum status supervisor_start(struct supervisor *s, struct err *e) {
    const int code = pthread_create(&s->thread, NULL, supervise, s);
    FAIL_IF(code != 0, STATUS_IO, "cannot start the supervisor's thread: %s", strerror(code));
    s->started = true;
    return STATUS_OK;
}

void supervisor_wake(struct supervisor *s) {
    pthread_mutex_lock(&s->mutex);
    s->woken = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mutex);
}

void supervisor_stop(struct supervisor *s, bool stop_jobs) {
    if (!s) return;
    pthread_mutex_lock(&s->mutex);
    s->stop_jobs = stop_jobs;
    s->stopping = true;
    s->woken = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mutex);
    if (s->started) pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mutex);
    mem_free(s);
}
