/* exchange.c - routing, checks, bodies and the error envelope.
 *
 * Paths are split at their slashes first and decoded afterwards, so that an encoded slash can
 * never become a separator. */
#include "server/web/exchange.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/mem.h"
#include "server/store/store.h"

static void fail(struct exchange *x, int code, enum status status, const char *text) {
    if (x->error.status != STATUS_OK) return;
    err_set(&x->error, status, "%s", text);
    x->reply.code = code;
    x->failed_at = x->received;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool http_decode(const char *text, struct str *out) {
    for (const char *at = text; *at; at++) {
        if (*at != '%') {
            str_append_char(out, *at);
            continue;
        }
        const int high = hex_value(at[1]);
        const int low = high < 0 ? -1 : hex_value(at[2]);
        const int value = high * 16 + low;
        if (low < 0 || value == 0) return false;
        str_append_char(out, (char)value);
        at += 2;
    }
    return true;
}

/* Compares segment by segment; on a match the :names are in x->request.parameters. */
static bool route_matches(struct exchange *x, const char *pattern, const char *url) {
    int parameter = 0;
    while (*pattern == '/' && *url == '/') {
        pattern++;
        url++;
        const size_t want = strcspn(pattern, "/"), have = strcspn(url, "/");
        if (*pattern == ':') {
            if (have == 0) return false;
            ASSERT(parameter < HTTP_PARAMETERS_MAX);
            mem_free(x->request.parameters[parameter]);
            x->request.parameters[parameter++] = mem_strndup(url, have);
        } else if (want != have || memcmp(pattern, url, want) != 0) {
            return false;
        }
        pattern += want;
        url += have;
    }
    return *pattern == 0 && *url == 0;
}

static void decode_parameters(struct exchange *x) {
    for (int i = 0; i < HTTP_PARAMETERS_MAX && x->request.parameters[i]; i++) {
        struct str decoded = {0};
        if (!http_decode(x->request.parameters[i], &decoded)) {
            fail(x, 400, STATUS_INVALID, "the path holds a malformed escape");
        }
        mem_free(x->request.parameters[i]);
        x->request.parameters[i] = mem_strdup(str_text(&decoded));
        str_release(&decoded);
    }
}

/* The methods that this path knows, for 405. */
static void find_route(struct exchange *x, const char *url) {
    struct str allowed = {0};
    for (int64_t i = 0; i < x->config->route_count && !x->route; i++) {
        const struct http_route *const route = &x->config->routes[i];
        if (!route_matches(x, route->pattern, url)) continue;
        if (strcmp(route->method, x->request.method) == 0) x->route = route;
        str_appendf(&allowed, "%s%s", allowed.len ? ", " : "", route->method);
    }
    const bool read = strcmp(x->request.method, "GET") == 0;
    if (x->route) {
        decode_parameters(x);
    } else if (allowed.len) {
        http_reply_header(&x->reply, "Allow", str_text(&allowed));
        fail(x, 405, STATUS_UNSUPPORTED, "this method is not known for this path");
    } else if (!read || str_starts_with(url, "/v1/")) {
        fail(x, 404, STATUS_NOT_FOUND, "there is nothing at this path");
    }
    str_release(&allowed);
}

struct exchange *exchange_new(const struct http_config *config, const char *method,
                              const char *url) {
    struct exchange *x = mem_new(1, sizeof *x);
    x->config = config;
    x->request.method = strcmp(method, "HEAD") == 0 ? "GET" : method;
    x->request.path = url;
    store_new_id(x->request_id, "req_");
    find_route(x, url);
    return x;
}

void exchange_free(struct exchange *x) {
    if (!x) return;
    for (int i = 0; i < HTTP_PARAMETERS_MAX; i++) {
        mem_free(x->request.parameters[i]);
    }
    for (int i = 0; i < x->request.query_count; i++) {
        mem_free(x->request.query[i].key);
        mem_free(x->request.query[i].value);
    }
    for (int i = 0; i < x->reply.header_count; i++) {
        mem_free(x->reply.headers[i].key);
        mem_free(x->reply.headers[i].value);
    }
    if (x->wrote_form) {
        multipart_release(&x->request.form);
        file_writer_abort(&x->request.upload);
    }
    if (x->reply.stream.close) x->reply.stream.close(x->reply.stream.state);
    if (x->reply.fd_plus_1) close(x->reply.fd_plus_1 - 1);
    str_release(&x->request.body);
    str_release(&x->reply.body);
    mem_free(x);
}

void exchange_add_query(struct exchange *x, const char *key, const char *value) {
    struct http_request *const q = &x->request;
    struct str name = {0}, text = {0};
    const bool fine = http_decode(key, &name) && http_decode(value ? value : "", &text);
    if (!fine) fail(x, 400, STATUS_INVALID, "the query holds a malformed escape");
    if (q->query_count == HTTP_QUERY_MAX) {
        fail(x, 400, STATUS_INVALID, "the query has too many arguments");
    } else if (fine) {
        q->query[q->query_count++] =
            (struct http_pair){mem_strdup(str_text(&name)), mem_strdup(str_text(&text))};
    }
    str_release(&name);
    str_release(&text);
}

static enum status write_upload(void *context, const void *bytes, size_t count, struct err *e) {
    return file_writer_write(context, bytes, count, e);
}

static void begin_upload(struct exchange *x, const struct exchange_headers *headers) {
    char id[64];
    store_new_id(id, "upload-");
    char *path = file_join(x->config->upload_folder, id);
    x->wrote_form = true;
    const struct multipart_sink sink = {.write = write_upload, .context = &x->request.upload};
    if (multipart_init(&x->request.form, headers->content_type, sink, &x->error) == STATUS_OK) {
        (void)file_writer_open(&x->request.upload, path, &x->error);
    }
    mem_free(path);
}

static int64_t body_limit(const struct exchange *x) {
    return x->route && x->route->body == BODY_UPLOAD ? x->config->upload_bytes_max
                                                     : HTTP_JSON_BODY_MAX;
}

static void fail_too_large(struct exchange *x) {
    char size[24], text[160];
    snprintf(text, sizeof text, "the request is larger than the limit of %s",
             str_bytes(body_limit(x), size));
    fail(x, 413, STATUS_INVALID, text);
}

enum status exchange_check(struct exchange *x, const struct exchange_headers *headers) {
    const struct guard *const guard = x->config->guard;
    const bool changes = strcmp(x->request.method, "GET") != 0;
    const bool open = x->route ? x->route->open : true; /* the page itself holds no secrets */
    if (!guard_host_fits(guard, headers->host)) {
        fail(x, 403, STATUS_INVALID,
             "the Host header does not name this server: open it by its address, or start it with "
             "--allow-host NAME");
    } else if (changes && !guard_origin_fits(headers->origin, headers->fetch_site, headers->host)) {
        fail(x, 403, STATUS_INVALID, "requests from pages of another origin are refused");
    } else if (!open && !guard_key_fits(guard, headers->authorization, headers->cookie)) {
        http_reply_header(&x->reply, "WWW-Authenticate", "Bearer");
        fail(x, 401, STATUS_INVALID, "this server asks for an API key: Authorization: Bearer KEY");
    } else if (headers->bytes > body_limit(x)) {
        fail_too_large(x);
    } else if (x->error.status == STATUS_OK && x->route && x->route->body == BODY_UPLOAD) {
        begin_upload(x, headers);
    }
    return x->error.status;
}

void exchange_feed(struct exchange *x, const char *bytes, size_t count) {
    if (x->received > body_limit(x)) {
        fail_too_large(x);
    } else if (x->route && x->route->body == BODY_UPLOAD) {
        (void)multipart_feed(&x->request.form, bytes, count, &x->error);
    } else if (x->route && x->route->body == BODY_JSON) {
        str_append_bytes(&x->request.body, bytes, count);
    }
    if (x->error.status == STATUS_OK) return;
    x->failed_at = x->received;
    if (x->wrote_form) file_writer_abort(&x->request.upload);
}

void exchange_handle(struct exchange *x) {
    if (x->wrote_form && multipart_finish(&x->request.form, &x->error) != STATUS_OK) return;
    enum status status = STATUS_OK;
    if (x->route) {
        status = x->route->handle(x->config->context, &x->request, &x->reply, &x->error);
    } else {
        status = x->config->fallback(x->config->context, &x->request, &x->reply, &x->error);
    }
    ASSERT(status == x->error.status);
}

static int code_of(enum status status) {
    switch (status) {
    case STATUS_INVALID:
    case STATUS_UNSUPPORTED: return 400;
    case STATUS_NOT_FOUND: return 404;
    case STATUS_CONFLICT: return 409;
    case STATUS_TIMEOUT: return 504;
    case STATUS_NO_SPACE: return 507;
    default: return 500;
    }
}

static const char *type_of(int code) {
    switch (code) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    default: return code < 500 ? "invalid_request_error" : "server_error";
    }
}

void exchange_reply_error(struct exchange *x) {
    ASSERT(x->error.status != STATUS_OK);
    struct http_reply *const r = &x->reply;
    if (r->code < 400) r->code = code_of(x->error.status);
    cJSON *const envelope = cJSON_CreateObject();
    cJSON *const error = cJSON_AddObjectToObject(envelope, "error");
    json_add_string(error, "message", x->error.text);
    json_add_string(error, "type", type_of(r->code));
    json_add_string(error, "param", x->error.param[0] ? x->error.param : NULL);
    json_add_string(error, "code", status_name(x->error.status));
    str_clear(&r->body);
    r->content_type = NULL;
    http_reply_json(r, envelope);
    /* The official clients repeat 409 and 5xx by themselves; what is in the way will not go away by
     * itself. */
    if (r->code == 409 || r->code == 507) http_reply_header(r, "x-should-retry", "false");
}

const char *http_query(const struct http_request *q, const char *key) {
    for (int i = 0; i < q->query_count; i++) {
        if (strcmp(q->query[i].key, key) == 0) return q->query[i].value;
    }
    return NULL;
}

enum status http_query_i64(const struct http_request *q, const char *key, struct http_bounds bounds,
                           int64_t *out, struct err *e) {
    const char *const text = http_query(q, key);
    int64_t value = 0;
    if (!text) return STATUS_OK;
    TRY(str_to_i64(text, key, &value, e));
    if (value < bounds.min || value > bounds.max) {
        return err_set_param(e, STATUS_INVALID, key, "%s is %lld, it must be from %lld to %lld",
                             key, (long long)value, (long long)bounds.min, (long long)bounds.max);
    }
    *out = value;
    return STATUS_OK;
}

void http_reply_header(struct http_reply *r, const char *key, const char *value) {
    ASSERT(r->header_count < HTTP_HEADERS_MAX);
    r->headers[r->header_count++] = (struct http_pair){mem_strdup(key), mem_strdup(value)};
}

void http_reply_json(struct http_reply *r, cJSON *value) {
    json_append(&r->body, value);
    str_append_char(&r->body, '\n');
    cJSON_Delete(value);
}
