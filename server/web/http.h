/* http.h - the HTTP door: a table of routes, and what every request goes through before a handler
 * sees it.
 *
 * http.c is the only home of microhttpd.h. One thread per connection: a handler may block (on the
 * disk, on the engine), and a slow client slows only itself; the number of connections is bounded.
 * Before a handler runs, the Host and Origin headers, the API key, the method and the size of the
 * body have been checked. Errors leave in OpenAI's envelope. */
#ifndef PLIMSOLL_SERVER_WEB_HTTP_H
#define PLIMSOLL_SERVER_WEB_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "server/web/guard.h"
#include "server/web/multipart.h"

enum { HTTP_PARAMETERS_MAX = 2, HTTP_QUERY_MAX = 40, HTTP_HEADERS_MAX = 8 };
enum { HTTP_JSON_BODY_MAX = 1 << 20, HTTP_CONNECTIONS_MAX = 512 };

struct http_pair {
    char *key, *value;
};

/* What a handler may look at. All of it is borrowed until the handler returns. */
struct http_request {
    const char *method;                     /* GET for HEAD, too */
    const char *path;                       /* as sent, still encoded */
    char *parameters[HTTP_PARAMETERS_MAX];  /* the :names of the route's pattern, decoded */
    struct http_pair query[HTTP_QUERY_MAX]; /* decoded */
    int query_count;
    struct str body;           /* BODY_JSON: the text, may be empty */
    struct multipart form;     /* BODY_UPLOAD: its fields and the file's name */
    struct file_writer upload; /* BODY_UPLOAD: the file, complete, not yet committed */
    void *connection;          /* for http_header */
};
/* The decoded value of a query argument, or NULL. */
const char *http_query(const struct http_request *q, const char *key);
/* A whole number from the query; missing leaves *out alone, out of bounds is STATUS_INVALID. */
struct http_bounds {
    int64_t min, max;
};
enum status http_query_i64(const struct http_request *q, const char *key, struct http_bounds bounds,
                           int64_t *out, struct err *e);
/* A request header, or NULL. Any case. */
const char *http_header(const struct http_request *q, const char *name);

/* True when the client has closed the connection, or the server is about to: whoever works for a
 * long time asks now and then, and stops. For struct process_question. */
bool http_client_gone(const void *request);

/* A body that is made while it is sent. `read` fills at most `size` bytes and may block;
 * HTTP_STREAM_END ends it, HTTP_STREAM_BROKEN cuts the connection. `close` is called exactly once.
 */
enum { HTTP_STREAM_END = -1, HTTP_STREAM_BROKEN = -2 };
struct http_stream {
    ssize_t (*read)(void *state, char *buffer, size_t size);
    void (*close)(void *state);
    void *state;
};

/* What a handler answers: a text, or an open file, or a stream. Zeroed means 200 with an empty JSON
 * text. */
struct http_reply {
    int code;                 /* 0: 200. Set with an error status: the code of the error */
    const char *content_type; /* NULL: application/json */
    struct str body;
    int fd_plus_1; /* takes ownership; sent from its start */
    int64_t fd_bytes;
    struct http_stream stream;
    struct http_pair headers[HTTP_HEADERS_MAX];
    int header_count;
};
/* Appends a header; both texts are copied. */
void http_reply_header(struct http_reply *r, const char *key, const char *value);
/* The JSON text of `value`; takes ownership. */
void http_reply_json(struct http_reply *r, cJSON *value);

enum http_body { BODY_NONE, BODY_JSON, BODY_UPLOAD };
struct http_route {
    const char *method, *pattern; /* "/v1/files/:id/content" */
    enum status (*handle)(void *context, struct http_request *q, struct http_reply *r,
                          struct err *e);
    enum http_body body;
    bool open; /* needs no API key */
};

struct http_config {
    const char *listen; /* address or name */
    int64_t port;       /* 0: any free one */
    const struct http_route *routes;
    int64_t route_count;
    /* GET requests that no route takes. */
    enum status (*fallback)(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e);
    void *context;             /* given to every handler */
    const struct guard *guard; /* borrowed while the server runs */
    const char *upload_folder; /* where files are written while they arrive */
    int64_t upload_bytes_max;
};

struct http;
/* Listens and answers until http_close. STATUS_CONFLICT when the port is taken. */
enum status http_open(struct http **out, const struct http_config *config, struct err *e);
/* The port that is listened on. */
int64_t http_port(const struct http *http);
/* Ends all connections. Streams must have been told to end before (sse_hub_stop). */
void http_close(struct http *http);

/* Decodes %XX. False for a malformed escape and for a zero byte. */
bool http_decode(const char *text, struct str *out);

#endif
