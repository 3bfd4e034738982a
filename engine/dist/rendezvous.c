/* rendezvous.c - see rendezvous.h.
 *
 * The run directory is what all ranks share anyway, on one machine or on many, so no launcher has
 * to carry an address. Only who can read the run directory can join. */
#include "engine/dist/rendezvous.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/socket.h"
#include "engine/dist/reach.h"

enum { CONNECT_MS = 2000, FILE_BYTES_MAX = 65536 };

static char *file_path(const char *folder) {
    return file_join(folder, "ranks.json");
}

static enum status publish(const char *folder, const struct reach *reach,
                           const char token[TOKEN_BYTES], int64_t world, struct err *e) {
    struct str secret = {0}, text = {0};
    cJSON *const json = cJSON_CreateObject();
    char *const path = file_path(folder);
    for (int i = 0; i < TOKEN_BYTES; i++) {
        str_appendf(&secret, "%02x", (unsigned char)token[i]);
    }
    json_add_string(json, "addresses", reach->addresses);
    json_add_string(json, "machine", reach->machine);
    json_add_i64(json, "port", reach->port);
    json_add_i64(json, "world", world);
    json_add_string(json, "token", str_text(&secret));
    json_append(&text, json);
    str_append_char(&text, '\n');
    const enum status status = file_write_private(path, str_text(&text), text.len, e);
    mem_free(path);
    cJSON_Delete(json);
    str_release(&secret);
    str_release(&text);
    return status;
}

enum status rendezvous_open(int *listener, char token[TOKEN_BYTES], const char *folder,
                            const struct comm_place *place, struct err *e) {
    struct reach reach;
    int port = 0;
    TRY(socket_random(token, TOKEN_BYTES, e));
    TRY(socket_listen(listener, !place->elsewhere, &port, e));
    TRY(reach_fill(&reach, place->elsewhere, port, e));
    return publish(folder, &reach, token, place->world, e);
}

void rendezvous_close(const char *folder) {
    char *const path = file_path(folder);
    struct err ignored = {0}; /* a file that stays is told by its token */
    (void)file_remove_all(path, &ignored);
    mem_free(path);
}

struct hello rendezvous_hello(const struct comm_place *place, const char token[TOKEN_BYTES]) {
    struct hello hello = {.rank = place->rank, .world = place->world, .pid = getpid()};
    memcpy(hello.token, token, sizeof hello.token);
    socket_host_name(hello.host, sizeof hello.host);
    return hello;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static enum status parse_token(const char *text, char token[TOKEN_BYTES], struct err *e) {
    FAIL_IF(strlen(text) != 2 * TOKEN_BYTES, STATUS_INVALID, "ranks.json has no token");
    for (int i = 0; i < TOKEN_BYTES; i++) {
        const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        FAIL_IF(high < 0 || low < 0, STATUS_INVALID, "the token in ranks.json is damaged");
        token[i] = (char)(16 * high + low);
    }
    return STATUS_OK;
}

/* Where rank 0 says it can be reached. */
struct meeting {
    cJSON *json;
    struct reach reach;
    char token[TOKEN_BYTES];
};

static enum status copy_text(const cJSON *json, const char *key, char *out, size_t size,
                             struct err *e) {
    const char *text = "";
    TRY(json_get_string(json, key, &text, e));
    FAIL_IF(strlen(text) >= size, STATUS_INVALID, "%s in ranks.json is too long", key);
    snprintf(out, size, "%s", text);
    return STATUS_OK;
}

static enum status read_meeting(struct meeting *m, const char *folder, struct err *e) {
    char *const path = file_path(folder);
    const char *token = "";
    struct reach *const r = &m->reach;
    file_look_again(folder);
    const enum status status = json_read_file(path, FILE_BYTES_MAX, &m->json, e);
    mem_free(path);
    TRY(status);
    TRY(copy_text(m->json, "addresses", r->addresses, sizeof r->addresses, e));
    TRY(copy_text(m->json, "machine", r->machine, sizeof r->machine, e));
    TRY(json_get_i64(m->json, "port", &r->port, e));
    TRY(json_get_string(m->json, "token", &token, e));
    FAIL_IF(r->port < 1 || r->port > 65535, STATUS_INVALID, "ranks.json has no port");
    return parse_token(token, m->token, e);
}

enum status rendezvous_try(struct peer *peer, const char *folder, const struct comm_place *place,
                           int64_t attempt, struct err *e) {
    struct meeting m = {0};
    enum status status = STATUS_OK;
    GUARD(read_meeting(&m, folder, e));
    GUARD(reach_try(&peer->fd, &m.reach, attempt, CONNECT_MS, e));
    const struct hello hello = rendezvous_hello(place, m.token);
    peer_put(peer, FRAME_HELLO, place->rank, &hello, sizeof hello);
    peer->heard_ns = clock_steady_ns();
done:
    cJSON_Delete(m.json);
    return status;
}
