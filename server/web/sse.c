/* sse.c - streams of events that sleep on the hub's condition.
 *
 * One thread a stream, that of its connection. A wake is a counter, not a message: a stream that
 * was busy meanwhile sees that the counter has moved and reads on. */
#include "server/web/sse.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"

enum { BATCH = 200, RETRY_MS = 2000 };

struct sse_hub {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t generation; /* counts wakes, so that none is missed between reading and sleeping */
    int streams;
    bool stopping;
};

struct stream {
    struct sse_hub *hub;
    struct store *store;
    char *job_id;
    int64_t job_number;
    int64_t seq; /* of the last event sent */
    sse_render *render;
    struct str pending; /* made, and sent up to `sent` */
    size_t sent;
    bool ended;
};

struct sse_hub *sse_hub_new(void) {
    struct sse_hub *const hub = mem_new(1, sizeof *hub);
    pthread_mutex_init(&hub->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&hub->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return hub;
}

void sse_hub_free(struct sse_hub *hub) {
    if (!hub) return;
    ASSERT(hub->streams == 0);
    pthread_cond_destroy(&hub->changed);
    pthread_mutex_destroy(&hub->mutex);
    mem_free(hub);
}

void sse_hub_wake(struct sse_hub *hub) {
    pthread_mutex_lock(&hub->mutex);
    hub->generation++;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->mutex);
}

void sse_hub_stop(struct sse_hub *hub) {
    pthread_mutex_lock(&hub->mutex);
    hub->stopping = true;
    pthread_cond_broadcast(&hub->changed);
    pthread_mutex_unlock(&hub->mutex);
}

static uint64_t generation_of(struct sse_hub *hub) {
    pthread_mutex_lock(&hub->mutex);
    const uint64_t generation = hub->generation;
    pthread_mutex_unlock(&hub->mutex);
    return generation;
}

enum woken { WOKEN_NEWS, WOKEN_PING, WOKEN_STOP };

static enum woken wait_for_news(struct sse_hub *hub, uint64_t seen, const struct timespec *until) {
    pthread_mutex_lock(&hub->mutex);
    int code = 0;
    while (!hub->stopping && hub->generation == seen && code == 0) {
        code = pthread_cond_timedwait(&hub->changed, &hub->mutex, until);
    }
    enum woken woken = hub->generation != seen ? WOKEN_NEWS : WOKEN_PING;
    if (hub->stopping) woken = WOKEN_STOP;
    pthread_mutex_unlock(&hub->mutex);
    return woken;
}

static enum status append_event(struct stream *s, const struct event_row *event, struct err *e) {
    str_appendf(&s->pending, "id: %lld\nevent: %s\ndata: ", (long long)event->seq, event->kind);
    const enum status status = s->render(s->store, s->job_id, event, &s->pending, e);
    str_append(&s->pending, "\n\n");
    s->seq = event->seq;
    return status;
}

static bool is_over(const char *status) {
    const char *const over[] = {"succeeded", "failed", "cancelled"};
    for (size_t i = 0; i < COUNT_OF(over); i++) {
        if (strcmp(status, over[i]) == 0) return true;
    }
    return false;
}

/* After everything was sent: says so and ends if nothing more can come. The last event and the
 * final status were written in one transaction, so a job that is over with seq sent has nothing
 * left. */
static enum status end_if_over(struct stream *s, struct err *e) {
    struct job_row job = {0};
    TRY(store_job_get(s->store, s->job_id, &job, e));
    if (is_over(job.status) && job.seq <= s->seq) {
        str_appendf(&s->pending, "event: end\ndata: {\"status\":\"%s\"}\n\n", job.status);
        s->ended = true;
    }
    job_row_release(&job);
    return STATUS_OK;
}

static enum status read_on(struct stream *s, struct err *e) {
    struct event_row *rows = NULL;
    int64_t count = 0;
    const struct event_cursor at = {.job = s->job_number, .seq = s->seq, .limit = BATCH};
    enum status status = store_events_after(s->store, at, &rows, &count, e);
    for (int64_t i = 0; i < count && status == STATUS_OK; i++) {
        status = append_event(s, &rows[i], e);
    }
    event_rows_free(rows, count);
    if (status == STATUS_OK && count == 0) status = end_if_over(s, e);
    return status;
}

/* Makes more to send; false when the stream must end. News of other jobs wake this stream, too; its
 * ping must not wait any longer for them. */
static bool fill(struct stream *s) {
    struct timespec ping;
    clock_gettime(CLOCK_MONOTONIC, &ping);
    ping.tv_sec += SSE_PING_MS / 1000;
    while (s->pending.len == 0) {
        if (s->ended) return false;
        const uint64_t seen = generation_of(s->hub);
        struct err error = {0};
        if (read_on(s, &error) != STATUS_OK)
            return false; /* the reader comes back and asks again */
        if (s->pending.len) return true;
        const enum woken woken = wait_for_news(s->hub, seen, &ping);
        if (woken == WOKEN_STOP) return false;
        if (woken == WOKEN_PING) str_append(&s->pending, ": ping\n\n");
    }
    return true;
}

static ssize_t stream_read(void *state, char *buffer, size_t size) {
    struct stream *const s = state;
    if (s->sent == s->pending.len) {
        str_clear(&s->pending);
        s->sent = 0;
        if (!fill(s)) return HTTP_STREAM_END;
    }
    const size_t left = s->pending.len - s->sent;
    const size_t count = left < size ? left : size;
    memcpy(buffer, s->pending.data + s->sent, count);
    s->sent += count;
    return (ssize_t)count;
}

static void stream_close(void *state) {
    struct stream *const s = state;
    pthread_mutex_lock(&s->hub->mutex);
    s->hub->streams--;
    pthread_mutex_unlock(&s->hub->mutex);
    str_release(&s->pending);
    mem_free(s->job_id);
    mem_free(s);
}

static enum status count_in(struct sse_hub *hub, struct http_reply *r, struct err *e) {
    pthread_mutex_lock(&hub->mutex);
    const bool full = hub->streams >= SSE_STREAMS_MAX || hub->stopping;
    if (!full) hub->streams++;
    pthread_mutex_unlock(&hub->mutex);
    if (!full) return STATUS_OK;
    r->code = 503;
    return err_set(e, STATUS_CONFLICT, "%d event streams are open already: close one",
                   SSE_STREAMS_MAX);
}

static enum status begin(struct stream *s, const struct sse_request *request, struct err *e) {
    struct job_row job = {0};
    TRY(store_job_get(s->store, s->job_id, &job, e));
    s->job_number = job.number;
    const int64_t newest = job.seq;
    job_row_release(&job);
    str_appendf(&s->pending, "retry: %d\n\n", RETRY_MS);
    s->seq = request->after;
    bool lost = false;
    if (request->after >= 0) TRY(store_events_lost(s->store, s->job_number, s->seq, &lost, e));
    if (lost) str_append(&s->pending, "event: gap\ndata: {}\n\n");
    if (request->after >= 0 && request->after <= newest) return STATUS_OK;
    /* No number, or one that this job has never reached: begin with the present state. */
    char kind[] = "job", data[] = "{}";
    const struct event_row now = {.seq = newest, .kind = kind, .data = data};
    return append_event(s, &now, e);
}

enum status sse_open(struct sse_hub *hub, const struct sse_request *request, struct http_reply *r,
                     struct err *e) {
    TRY(count_in(hub, r, e));
    struct stream *s = mem_new(1, sizeof *s);
    *s = (struct stream){.hub = hub,
                         .store = request->store,
                         .job_id = mem_strdup(request->job_id),
                         .render = request->render};
    const enum status status = begin(s, request, e);
    if (status != STATUS_OK) {
        stream_close(s);
        return status;
    }
    r->content_type = "text/event-stream";
    http_reply_header(r, "Cache-Control", "no-cache, no-transform");
    http_reply_header(r, "X-Accel-Buffering", "no");
    r->stream = (struct http_stream){.read = stream_read, .close = stream_close, .state = s};
    return STATUS_OK;
}
