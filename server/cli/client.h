/* client.h - the REST API from the other side, for the commands that talk to a running server.
 *
 * Errors keep the server's own words and field, because they were written for the user. */
#ifndef PLIMSOLL_SERVER_CLI_CLIENT_H
#define PLIMSOLL_SERVER_CLI_CLIENT_H

#include <signal.h>
#include <stdbool.h>

#include "base/json.h"

struct client;
/* `url` is that of the server, "http://127.0.0.1:8080"; `key` may be NULL. A set *stop ends every
 * call soon. */
enum status client_open(struct client **out, const char *url, const char *key,
                        const volatile sig_atomic_t *stop, struct err *e);
void client_close(struct client *client);

/* Sends a request and parses the answer. `body` is NULL for GET. What the server refuses comes back
 * as an error with the server's own text and field; STATUS_IO when it cannot be reached,
 * STATUS_INTERRUPTED after a stop. Caller frees *out. */
enum status client_call(struct client *client, const char *path, const cJSON *body, cJSON **out,
                        struct err *e);
/* The last answer as it came. Points into the client until the next call. */
const char *client_text(const struct client *client);
/* Deletes what the path names. */
enum status client_delete(struct client *client, const char *path, struct err *e);
/* The first line of a key file; NULL for NULL. Caller frees with mem_free. */
enum status client_read_key(const char *path, char **key, struct err *e);
/* Uploads a file for fine-tuning. */
enum status client_upload(struct client *client, const char *file, cJSON **out, struct err *e);

/* Follows the events of a job. `see` gets the event's name and its parsed data. Reads until the
 * server ends the stream or the line breaks; *last_id is kept up to date, so that calling again
 * continues where it broke. */
struct client_watch {
    const char *path;
    long long last_id; /* -1: none yet */
    bool ended;        /* `event: end` has come */
    void (*see)(const char *name, const cJSON *data, void *context);
    void *context;
};
enum status client_follow(struct client *client, struct client_watch *watch, struct err *e);

#endif
