/* client.c - one curl handle, used for one request after another; the only home of curl.h.
 *
 * A stop flag ends any call within a second, through curl's progress callback. Answers are
 * bounded. */
#include "server/cli/client.h"

#include <curl/curl.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

enum { CONNECT_TIMEOUT_S = 10, CALL_TIMEOUT_S = 600, SILENCE_S = 60 };
enum { ANSWER_BYTES_MAX = 64 << 20, LINE_MAX_BYTES = 4 << 20, KEY_FILE_MAX = 1 << 16 };

struct client {
    CURL *curl;
    char *url, *key;
    const volatile sig_atomic_t *stop;
    struct curl_slist *headers;
    struct str answer;
};

static size_t collect(char *bytes, size_t size, size_t count, void *context) {
    struct client *const c = context;
    if (c->answer.len + size * count > ANSWER_BYTES_MAX) return 0;
    str_append_bytes(&c->answer, bytes, size * count);
    return size * count;
}

static int look_at_stop(void *context, curl_off_t a, curl_off_t b, curl_off_t up, curl_off_t all) {
    (void)a;
    (void)b;
    (void)up;
    (void)all;
    const struct client *const c = context;
    return *c->stop != 0;
}

enum status client_open(struct client **out, const char *url, const char *key,
                        const volatile sig_atomic_t *stop, struct err *e) {
    FAIL_IF(curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK, STATUS_INTERNAL,
            "libcurl does not start");
    struct client *c = mem_new(1, sizeof *c);
    c->curl = curl_easy_init();
    c->url = mem_strdup(url);
    c->key = mem_strdup(key);
    c->stop = stop;
    const size_t len = strlen(c->url);
    if (len && c->url[len - 1] == '/') c->url[len - 1] = 0;
    *out = c;
    return STATUS_OK;
}

void client_close(struct client *c) {
    if (!c) return;
    curl_slist_free_all(c->headers);
    curl_easy_cleanup(c->curl);
    curl_global_cleanup();
    str_release(&c->answer);
    mem_free(c->url);
    mem_free(c->key);
    mem_free(c);
}

static void add_header(struct client *c, const char *name, const char *value) {
    char *line = str_format("%s: %s", name, value);
    c->headers = curl_slist_append(c->headers, line);
    mem_free(line);
}

static void prepare(struct client *c, const char *path) {
    curl_easy_reset(c->curl);
    curl_slist_free_all(c->headers);
    c->headers = NULL;
    str_clear(&c->answer);
    char *url = str_format("%s%s", c->url, path);
    curl_easy_setopt(c->curl, CURLOPT_URL, url);
    mem_free(url);
    if (c->key) {
        char *bearer = str_format("Bearer %s", c->key);
        add_header(c, "Authorization", bearer);
        mem_free(bearer);
    }
    curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, collect);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->curl, CURLOPT_XFERINFOFUNCTION, look_at_stop);
    curl_easy_setopt(c->curl, CURLOPT_XFERINFODATA, c);
    curl_easy_setopt(c->curl, CURLOPT_NOPROGRESS, 0L);
}

static enum status transport_error(const struct client *c, CURLcode code, struct err *e) {
    FAIL_IF(*c->stop, STATUS_INTERRUPTED, "interrupted");
    return err_set(e, STATUS_IO, "%s cannot be reached (%s): is `plimsoll serve` running there?",
                   c->url, curl_easy_strerror(code));
}

/* The server's refusal in its own words. */
static enum status refusal(long code, const cJSON *answer, struct err *e) {
    const char *message = NULL, *param = NULL;
    struct err ignored = {0};
    const cJSON *const error = json_member(answer, "error");
    (void)json_get_string(error, "message", &message, &ignored);
    (void)json_get_string(error, "param", &param, &ignored);
    const enum status status = code == 404 ? STATUS_NOT_FOUND : STATUS_INVALID;
    FAIL_IF(!message, STATUS_IO, "the server answered %ld", code);
    return err_set_param(e, status, param ? param : "", "%s", message);
}

static enum status perform(struct client *c, cJSON **out, struct err *e) {
    curl_easy_setopt(c->curl, CURLOPT_TIMEOUT, (long)CALL_TIMEOUT_S);
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, c->headers);
    const CURLcode code = curl_easy_perform(c->curl);
    if (code != CURLE_OK) return transport_error(c, code, e);
    long status = 0;
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    cJSON *answer = NULL;
    struct err unread = {0};
    (void)json_parse(str_text(&c->answer), c->answer.len, c->url, &answer, &unread);
    if (status >= 200 && status < 300 && answer) {
        *out = answer;
        return STATUS_OK;
    }
    refusal(status, answer, e);
    cJSON_Delete(answer);
    return e->status;
}

enum status client_call(struct client *c, const char *path, const cJSON *body, cJSON **out,
                        struct err *e) {
    struct str text = {0};
    prepare(c, path);
    if (body) {
        json_append(&text, body);
        add_header(c, "Content-Type", "application/json");
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, str_text(&text));
        curl_easy_setopt(c->curl, CURLOPT_POSTFIELDSIZE, (long)text.len);
    }
    const enum status status = perform(c, out, e);
    str_release(&text);
    return status;
}

const char *client_text(const struct client *c) {
    return str_text(&c->answer);
}

enum status client_delete(struct client *c, const char *path, struct err *e) {
    cJSON *answer = NULL;
    prepare(c, path);
    curl_easy_setopt(c->curl, CURLOPT_CUSTOMREQUEST, "DELETE");
    const enum status status = perform(c, &answer, e);
    cJSON_Delete(answer);
    return status;
}

enum status client_read_key(const char *path, char **key, struct err *e) {
    struct str text = {0};
    if (!path) return STATUS_OK;
    const enum status status = file_read(path, KEY_FILE_MAX, &text, e);
    if (status == STATUS_OK) *key = mem_strndup(str_text(&text), strcspn(str_text(&text), "\r\n"));
    str_release(&text);
    return status;
}

enum status client_upload(struct client *c, const char *file, cJSON **out, struct err *e) {
    FAIL_IF(!file_exists(file), STATUS_NOT_FOUND, "%s is not there", file);
    prepare(c, "/v1/files");
    curl_mime *form = curl_mime_init(c->curl);
    curl_mimepart *part = curl_mime_addpart(form);
    curl_mime_name(part, "purpose");
    curl_mime_data(part, "fine-tune", CURL_ZERO_TERMINATED);
    part = curl_mime_addpart(form);
    curl_mime_name(part, "file");
    curl_mime_filedata(part, file);
    curl_easy_setopt(c->curl, CURLOPT_MIMEPOST, form);
    const enum status status = perform(c, out, e);
    curl_mime_free(form);
    return status;
}

/* What an event stream has given so far of the event that is being read. */
struct reading {
    struct client_watch *watch;
    struct str line, name, data;
};

static void dispatch(struct reading *r) {
    cJSON *data = NULL;
    struct err ignored = {0};
    const char *const name = str_text(&r->name);
    if (strcmp(name, "end") == 0) r->watch->ended = true;
    if (r->data.len &&
        json_parse(r->data.data, r->data.len, "event", &data, &ignored) == STATUS_OK) {
        r->watch->see(name, data, r->watch->context);
        cJSON_Delete(data);
    }
    str_clear(&r->name);
    str_clear(&r->data);
}

static void take_line(struct reading *r, const char *line) {
    struct err ignored = {0};
    int64_t id = 0;
    if (!*line) {
        dispatch(r);
    } else if (str_starts_with(line, "data: ")) {
        str_append(&r->data, line + 6);
    } else if (str_starts_with(line, "event: ")) {
        str_append(&r->name, line + 7);
    } else if (str_starts_with(line, "id: ") &&
               str_to_i64(line + 4, "id", &id, &ignored) == STATUS_OK) {
        r->watch->last_id = id;
    }
}

static size_t read_stream(char *bytes, size_t size, size_t count, void *context) {
    struct reading *const r = context;
    for (size_t i = 0; i < size * count; i++) {
        if (bytes[i] == '\n') {
            take_line(r, str_text(&r->line));
            str_clear(&r->line);
        } else if (bytes[i] != '\r') {
            if (r->line.len > LINE_MAX_BYTES) return 0;
            str_append_char(&r->line, bytes[i]);
        }
    }
    return size * count;
}

enum status client_follow(struct client *c, struct client_watch *watch, struct err *e) {
    struct reading r = {.watch = watch};
    prepare(c, watch->path);
    if (watch->last_id >= 0) {
        char *text = str_format("%lld", watch->last_id);
        add_header(c, "Last-Event-ID", text);
        mem_free(text);
    }
    curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, read_stream);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, &r);
    curl_easy_setopt(c->curl, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_LIMIT, 1L); /* the server pings every 15 s */
    curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_TIME, (long)SILENCE_S);
    const CURLcode code = curl_easy_perform(c->curl);
    str_release(&r.line);
    str_release(&r.name);
    str_release(&r.data);
    if (code != CURLE_OK) return transport_error(c, code, e);
    return STATUS_OK;
}
