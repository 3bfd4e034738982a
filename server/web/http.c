/* http.c - libmicrohttpd, tamed. The life of a request:
 *
 *   headers  -> checked; refused at once when the body has not been sent yet (Expect, or large),
 *               so that a refusal comes instead of "100 Continue"
 *   body     -> kept (JSON), or parsed into a temporary file (upload), or drained (after an error,
 *               because a client that still sends would not read the answer); all bounded
 *   complete -> handler -> answer
 *
 * The library cannot answer in the middle of a body, which is why errors wait there. */
#include "server/web/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/web/exchange.h"

enum {
    IDLE_TIMEOUT_S = 60,
    THREAD_STACK_BYTES = 1 << 20,
    LISTEN_BACKLOG = 128,
    STREAM_BLOCK = 32768
};
/* A refused upload up to this size is read to its end, so that every client sees the reason. */
enum { DRAIN_MAX = 64 << 20 };

struct http {
    struct MHD_Daemon *daemon;
    struct http_config config;
    int64_t port;
};

const char *http_header(const struct http_request *q, const char *name) {
    return MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, name);
}

bool http_client_gone(const void *request) {
    const struct http_request *const q = request;
    const union MHD_ConnectionInfo *const info =
        MHD_get_connection_info(q->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!info) return false;
    struct pollfd look = {info->connect_fd, POLLRDHUP, 0};
    return poll(&look, 1, 0) > 0 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

/* Sends the reply that is in `x`. */
static ssize_t stream_read(void *state, uint64_t position, char *buffer, size_t size) {
    (void)position;
    const struct http_stream *const stream = state;
    const ssize_t count = stream->read(stream->state, buffer, size);
    if (count == HTTP_STREAM_END) return MHD_CONTENT_READER_END_OF_STREAM;
    if (count == HTTP_STREAM_BROKEN) return MHD_CONTENT_READER_END_WITH_ERROR;
    return count;
}

static void stream_close(void *state) {
    struct http_stream *const stream = state;
    stream->close(stream->state);
    mem_free(stream);
}

static struct MHD_Response *make_response(struct http_reply *r) {
    if (r->stream.read) {
        struct http_stream *const kept = mem_new(1, sizeof *kept);
        *kept = r->stream;
        r->stream = (struct http_stream){0};
        return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, stream_read, kept,
                                                 stream_close);
    }
    if (r->fd_plus_1) {
        const int fd = r->fd_plus_1 - 1;
        r->fd_plus_1 = 0;
        return MHD_create_response_from_fd64((uint64_t)r->fd_bytes, fd);
    }
    return MHD_create_response_from_buffer(r->body.len, (void *)(uintptr_t)str_text(&r->body),
                                           MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result answer(struct exchange *x) {
    struct http_reply *const r = &x->reply;
    struct MHD_Response *const response = make_response(r);
    if (!response) return MHD_NO;
    MHD_add_response_header(response, "Content-Type",
                            r->content_type ? r->content_type : "application/json");
    MHD_add_response_header(response, "x-request-id", x->request_id);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    bool cache = false;
    for (int i = 0; i < r->header_count; i++) {
        MHD_add_response_header(response, r->headers[i].key, r->headers[i].value);
        cache |= strcasecmp(r->headers[i].key, "Cache-Control") == 0;
    }
    if (!cache) MHD_add_response_header(response, "Cache-Control", "no-store");
    const enum MHD_Result result =
        MHD_queue_response(x->request.connection, (unsigned)(r->code ? r->code : 200), response);
    MHD_destroy_response(response);
    x->answered = true;
    return result;
}

static enum MHD_Result answer_error(struct exchange *x) {
    exchange_reply_error(x);
    return answer(x);
}

static enum MHD_Result add_query(void *context, enum MHD_ValueKind kind, const char *key,
                                 const char *value) {
    (void)kind;
    exchange_add_query(context, key, value);
    return MHD_YES;
}

/* Content-Length, or -1 for a chunked body, 0 for none. */
static int64_t announced_bytes(const struct http_request *q) {
    const char *const text = http_header(q, "Content-Length");
    int64_t bytes = 0;
    struct err ignored = {0};
    if (http_header(q, "Transfer-Encoding")) return -1;
    if (text && str_to_i64(text, "Content-Length", &bytes, &ignored) != STATUS_OK) return -1;
    return bytes;
}

static enum MHD_Result headers_complete(struct exchange *x) {
    const struct http_request *const q = &x->request;
    MHD_get_connection_values(x->request.connection, MHD_GET_ARGUMENT_KIND, add_query, x);
    const struct exchange_headers headers = {
        .host = http_header(q, "Host"),
        .origin = http_header(q, "Origin"),
        .fetch_site = http_header(q, "Sec-Fetch-Site"),
        .authorization = http_header(q, "Authorization"),
        .cookie = http_header(q, "Cookie"),
        .content_type = http_header(q, "Content-Type"),
        .bytes = announced_bytes(q),
    };
    if (exchange_check(x, &headers) == STATUS_OK) return MHD_YES;
    /* A client that has begun to send may see the closed connection before the answer. */
    const bool waits = http_header(q, "Expect") != NULL;
    if (waits || headers.bytes > DRAIN_MAX) return answer_error(x);
    return MHD_YES;
}

static enum MHD_Result take_body(struct exchange *x, const char *bytes, size_t *count) {
    x->received += (int64_t)*count;
    if (x->error.status == STATUS_OK) exchange_feed(x, bytes, *count);
    const bool hopeless = x->error.status != STATUS_OK && x->received - x->failed_at > DRAIN_MAX;
    *count = 0;
    return hopeless ? MHD_NO : MHD_YES;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *body,
                                  size_t *body_bytes, void **state) {
    (void)version;
    struct http *const http = context;
    struct exchange *x = *state;
    if (!x) {
        x = exchange_new(&http->config, method, url);
        x->request.connection = connection;
        *state = x;
        return headers_complete(x);
    }
    if (x->answered) return MHD_YES;
    if (*body_bytes) return take_body(x, body, body_bytes);
    if (x->error.status == STATUS_OK) exchange_handle(x);
    return x->error.status == STATUS_OK ? answer(x) : answer_error(x);
}

static void on_completed(void *context, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode why) {
    (void)context;
    (void)connection;
    (void)why;
    exchange_free(*state);
    *state = NULL;
}

/* Escapes are decoded by http_decode, after the path was split at its slashes. */
static size_t keep_escapes(void *context, struct MHD_Connection *connection, char *text) {
    (void)context;
    (void)connection;
    return strlen(text);
}

static void ignore_log(void *context, const char *format, va_list args) {
    (void)context;
    (void)format;
    (void)args;
}

static enum status listen_on(const struct addrinfo *address, const struct http_config *config,
                             int *out, struct err *e) {
    const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FAIL_IF(fd < 0, STATUS_IO, "cannot open a socket: %s", strerror(errno));
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, LISTEN_BACKLOG) == 0) {
        *out = fd;
        return STATUS_OK;
    }
    const int code = errno;
    close(fd);
    FAIL_IF(code == EADDRINUSE, STATUS_CONFLICT,
            "port %lld on %s is in use: stop the program that has it, or choose another with "
            "--port",
            (long long)config->port, config->listen);
    return err_set(e, STATUS_IO, "cannot listen on %s port %lld: %s", config->listen,
                   (long long)config->port, strerror(code));
}

static enum status open_socket(const struct http_config *config, int *fd, struct err *e) {
    char port[16];
    snprintf(port, sizeof port, "%lld", (long long)config->port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    const int code = getaddrinfo(config->listen, port, &hints, &found);
    FAIL_IF(code != 0, STATUS_INVALID, "--listen %s: %s", config->listen, gai_strerror(code));
    const enum status status = listen_on(found, config, fd, e);
    freeaddrinfo(found);
    return status;
}

static int64_t port_of(int fd) {
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &len) != 0) return 0;
    if (address.ss_family == AF_INET6) {
        return ntohs(((const struct sockaddr_in6 *)(const void *)&address)->sin6_port);
    }
    return ntohs(((const struct sockaddr_in *)(const void *)&address)->sin_port);
}

enum status http_open(struct http **out, const struct http_config *config, struct err *e) {
    int fd = -1;
    TRY(open_socket(config, &fd, e));
    struct http *http = mem_new(1, sizeof *http);
    http->config = *config;
    http->port = port_of(fd);
    http->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL |
            MHD_USE_ITC | MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, http, MHD_OPTION_EXTERNAL_LOGGER, ignore_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)HTTP_CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_TIMEOUT_S, MHD_OPTION_THREAD_STACK_SIZE,
        (size_t)THREAD_STACK_BYTES, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_END);
    if (!http->daemon) {
        close(fd);
        mem_free(http);
        return err_set(e, STATUS_IO, "the HTTP server does not start on port %lld",
                       (long long)config->port);
    }
    *out = http;
    return STATUS_OK;
}

int64_t http_port(const struct http *http) {
    return http->port;
}

void http_close(struct http *http) {
    if (!http) return;
    MHD_stop_daemon(http->daemon);
    mem_free(http);
}
