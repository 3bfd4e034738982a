/* supervisor.c - the thread that goes from one job in hand to the next, and takes new ones in hand.
 *
 * What may be done with one job stands in active.c, which job may start beside others in queue.c.
 * A job that waits stays `queued`: it is planned when its claim fits, so that its plan sees the
 * memory that its run will have. One planner works at a time. Trouble with one job is no trouble
 * for the others. */
#include "server/run/supervisor.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "server/run/hands.h"

enum { TICK_ACTIVE_MS = 100, TICK_IDLE_MS = 1000, TICK_TROUBLE_MS = 2000 };
/* So often claims and queue are looked at when nothing calls for it: memory of the host comes back
 * without a word. And so many waiting jobs are looked at: who stands behind them waits for them. */
enum { LOOK_MS = 1000, QUEUE_LOOK_MAX = 64 };
enum { TELL_MAX = 8 }; /* of those that wait are told why at one look */
static const int64_t NS_PER_MS = 1000000;

struct supervisor {
    struct supervisor_config config;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    bool started, woken;
    atomic_bool stopping, stop_jobs; /* read by the thread wherever it is */
    struct hands hands;
    bool taken_up; /* what a server before this one had in hand */
    bool look;     /* at the queue, for something has changed */
    int64_t looked_ns;
};

/* The store or the disk failed (it is full, say). Runs go on meanwhile; nothing is lost, it is read
 * later. */
static void complain(const struct err *error) {
    fprintf(stderr, "plimsoll: %s\n", error->text);
}

static void rest(struct active *a, const struct err *error) {
    complain(error);
    a->stale = true;
    a->rest_until_ns = clock_steady_ns() + TICK_TROUBLE_MS * NS_PER_MS;
}

static void drop_finished(struct supervisor *s) {
    for (int64_t i = s->hands.count - 1; i >= 0; i--) {
        const struct active *const a = s->hands.jobs[i];
        if (a->stale || active_is_going(a)) continue;
        hands_drop(&s->hands, i);
        s->look = true;
    }
}

static enum status advance(struct supervisor *s, struct active *a, struct err *e) {
    const struct active_orders orders = {s->stopping, s->stop_jobs};
    if (a->stale) TRY(active_again(a, e));
    return active_is_going(a) ? active_advance(a, orders, e) : STATUS_OK;
}

static void advance_all(struct supervisor *s) {
    for (int64_t i = 0; i < s->hands.count; i++) {
        struct active *const a = s->hands.jobs[i];
        struct err error = {0};
        if (clock_steady_ns() < a->rest_until_ns) continue;
        const bool planned = active_is_planning(a);
        if (advance(s, a, &error) != STATUS_OK) rest(a, &error);
        s->look = s->look || planned != active_is_planning(a);
    }
    drop_finished(s);
}

static enum status take_up(struct supervisor *s, struct err *e) {
    struct job_list list = {0};
    TRY(store_job_pick(s->config.place.store, JOB_ACTIVE, INT64_MAX, &list, e));
    for (int64_t i = 0; i < list.count; i++) {
        (void)hands_take(&s->hands, &list.rows[i]);
    }
    job_list_release(&list);
    s->taken_up = true;
    return STATUS_OK;
}

static bool is_planning(const struct supervisor *s) {
    for (int64_t i = 0; i < s->hands.count; i++) {
        if (active_is_planning(s->hands.jobs[i])) return true;
    }
    return false;
}

/* Said once to each job that has to wait: then its phase is another one. */
static enum status tell_waiting(struct supervisor *s, struct job_list *waiting, char *const *why,
                                struct err *e) {
    int64_t told = 0;
    for (int64_t i = 0; i < waiting->count && told < TELL_MAX; i++) {
        struct job_row *const job = &waiting->rows[i];
        if (!why[i] || strcmp(job->phase, "queued") != 0) continue;
        move_set_state(job, "queued", "waiting");
        TRY(move_job(&s->config.place, job, (struct move_words){"info", why[i]}, e));
        told++;
    }
    return STATUS_OK;
}

/* Starts the planner of the next job, if one may start. */
static enum status start_among(struct supervisor *s, struct job_list *waiting, struct err *e) {
    char **const why = mem_new((size_t)waiting->count + 1, sizeof *why);
    const int64_t next = hands_next(&s->hands, waiting, s->config.jobs_max, why);
    if (next >= 0) {
        struct active *const a = hands_take(&s->hands, &waiting->rows[next]);
        struct err error = {0};
        if (active_begin(a, &error) != STATUS_OK) rest(a, &error);
        drop_finished(s); /* its planner could not be started */
    }
    const enum status status = next < 0 ? tell_waiting(s, waiting, why, e) : STATUS_OK;
    for (int64_t i = 0; i < waiting->count; i++) {
        mem_free(why[i]);
    }
    mem_free(why);
    return status;
}

static enum status start_next(struct supervisor *s, struct err *e) {
    struct job_list waiting = {0};
    if (is_planning(s)) return STATUS_OK;
    TRY(store_job_pick(s->config.place.store, JOB_QUEUED, QUEUE_LOOK_MAX, &waiting, e));
    const enum status status = start_among(s, &waiting, e);
    job_list_release(&waiting);
    return status;
}

static enum status tick(struct supervisor *s, struct err *e) {
    if (!s->taken_up) TRY(take_up(s, e));
    TRY(move_settle_wished(&s->config.place, e));
    advance_all(s);
    const int64_t now = clock_steady_ns();
    if (s->stopping || (!s->look && now - s->looked_ns < LOOK_MS * NS_PER_MS)) return STATUS_OK;
    s->look = false;
    s->looked_ns = now;
    (void)hands_look(&s->hands);
    return start_next(s, e);
}

static void wait_tick(struct supervisor *s, int64_t wait_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (wait_ms % 1000) * NS_PER_MS;
    until.tv_sec += wait_ms / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s->mutex);
    int code = 0;
    while (!s->woken && code == 0) {
        code = pthread_cond_timedwait(&s->wake, &s->mutex, &until);
    }
    s->look = s->look || s->woken;
    s->woken = false;
    pthread_mutex_unlock(&s->mutex);
}

static bool may_end(const struct supervisor *s) {
    if (!s->stopping) return false;
    bool runs = false;
    for (int64_t i = 0; i < s->hands.count; i++) {
        runs = runs || s->hands.jobs[i]->has_process;
    }
    return !s->stop_jobs || !runs;
}

static void *supervise(void *context) {
    struct supervisor *const s = context;
    while (!may_end(s)) {
        struct err error = {0};
        int64_t wait_ms = TICK_IDLE_MS;
        if (tick(s, &error) != STATUS_OK) {
            complain(&error);
            wait_ms = TICK_TROUBLE_MS;
        } else if (s->look && !s->stopping) {
            wait_ms = 0; /* the next in the queue */
        } else if (s->hands.count > 0) {
            wait_ms = TICK_ACTIVE_MS;
        }
        if (!may_end(s)) wait_tick(s, wait_ms);
    }
    return NULL;
}

struct supervisor *supervisor_new(const struct supervisor_config *config) {
    ASSERT(config->jobs_max >= 1 && config->jobs_max <= SUPERVISOR_JOBS_MAX);
    struct supervisor *s = mem_new(1, sizeof *s);
    s->config = *config;
    hands_init(&s->hands, &s->config.place);
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

enum status supervisor_change_cap(struct supervisor *s, const char *job_id,
                                  const struct spec_cap *cap, struct err *e) {
    TRY(hands_change_cap(&s->hands, job_id, cap, e));
    supervisor_wake(s);
    return STATUS_OK;
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
    hands_release(&s->hands);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mutex);
    mem_free(s);
}
