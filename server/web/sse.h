/* sse.h - a job's events as server-sent events, with replay.
 *
 * The database is the only buffer: a stream remembers the number of the last event it sent and
 * reads on from there, so a slow reader costs nothing but its thread, and a reconnecting one misses
 * nothing. Sleeping streams are woken by the hub when something was written; after SSE_PING_MS
 * without news a comment is sent, which also finds out that the reader has gone. */
#ifndef PLIMSOLL_SERVER_WEB_SSE_H
#define PLIMSOLL_SERVER_WEB_SSE_H

#include <stdbool.h>
#include <stdint.h>

#include "server/store/series.h"
#include "server/web/http.h"

enum { SSE_PING_MS = 15000, SSE_STREAMS_MAX = 128 };

struct sse_hub;
struct sse_hub *sse_hub_new(void);
void sse_hub_free(struct sse_hub *hub);
/* Something new is in the database. Any thread. */
void sse_hub_wake(struct sse_hub *hub);
/* Ends all streams, and all that come after. */
void sse_hub_stop(struct sse_hub *hub);

/* Appends the data of one event to `out` as one line of JSON; the stream's user renders `job`
 * events here. */
typedef enum status sse_render(struct store *store, const char *job_id,
                               const struct event_row *event, struct str *out, struct err *e);

/* What to stream. */
struct sse_request {
    struct store *store;
    const char *job_id;
    int64_t after; /* number of the last event that the reader has; -1: begin now, with the job's
                      present state */
    sse_render *render;
};
/* Fills the reply with the stream. After the job is over and everything was sent comes `event:
 * end`. A reader that asks for events that are no longer kept first gets `event: gap`.
 * STATUS_NOT_FOUND for an unknown job; 503 when SSE_STREAMS_MAX are open. */
enum status sse_open(struct sse_hub *hub, const struct sse_request *request, struct http_reply *r,
                     struct err *e);

#endif
