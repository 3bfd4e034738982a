/* exchange.h - one request and its reply, without the HTTP library.
 *
 * Between http.c, which owns the socket, and the handlers: routing, checks, body, error envelope.
 * That nothing here knows the library is what lets http.c be its only home. */
#ifndef PLIMSOLL_SERVER_WEB_EXCHANGE_H
#define PLIMSOLL_SERVER_WEB_EXCHANGE_H

#include "server/web/http.h"

struct exchange {
    const struct http_config *config;
    const struct http_route *route; /* NULL: the fallback */
    struct http_request request;
    struct http_reply reply;
    struct err error;
    bool answered;
    bool wrote_form;   /* form and upload are in use */
    int64_t received;  /* bytes of the body */
    int64_t failed_at; /* value of `received` at the first error */
    char request_id[64];
};

/* The headers that the checks need; NULL where absent. */
struct exchange_headers {
    const char *host, *origin, *fetch_site, *authorization, *cookie, *content_type;
    int64_t bytes; /* of the body as announced; -1: chunked */
};

/* Finds the route. Errors are kept in x->error. Free with exchange_free. */
struct exchange *exchange_new(const struct http_config *config, const char *method,
                              const char *url);
void exchange_free(struct exchange *x);
/* Takes a query argument, still encoded. */
void exchange_add_query(struct exchange *x, const char *key, const char *value);
/* Everything that can be refused before the body has been read; returns x->error.status. */
enum status exchange_check(struct exchange *x, const struct exchange_headers *headers);
/* Takes a piece of the body. */
void exchange_feed(struct exchange *x, const char *bytes, size_t count);
/* Runs the handler on the complete request. */
void exchange_handle(struct exchange *x);
/* Puts x->error into the reply, in OpenAI's envelope. */
void exchange_reply_error(struct exchange *x);

#endif
