/* guard.h - who may talk to the server: the API key, and the two headers that give a foreign web
 * page away.
 *
 * A page from elsewhere that runs in the user's browser can reach a server on 127.0.0.1 in two
 * ways. It can send requests there (the browser then says so in Origin), or it can make its own
 * name resolve to 127.0.0.1 (then Host carries that name). Pure functions, no HTTP library. */
#ifndef PLIMSOLL_SERVER_WEB_GUARD_H
#define PLIMSOLL_SERVER_WEB_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum { GUARD_KEYS_MAX = 64, GUARD_HOSTS_MAX = 16 };

struct guard {
    char *keys[GUARD_KEYS_MAX]; /* none: no key is asked for */
    int key_count;
    char *hosts[GUARD_HOSTS_MAX]; /* names besides localhost, this machine's name and plain
                                     addresses */
    int host_count;
};
/* Reads keys, one a line; blank lines and lines that begin with # are skipped. Release with
 * guard_release. */
enum status guard_load_keys(struct guard *guard, const char *path, struct err *e);
void guard_release(struct guard *guard);

/* True if no key is asked for, or `authorization` is "Bearer KEY", or the cookie `plimsoll_key` is
 * one of them (the page needs the cookie, because an EventSource sends no headers of its own).
 * Takes the same time for any wrong key. */
bool guard_key_fits(const struct guard *guard, const char *authorization, const char *cookie);
/* True if the Host header names this server: an IP address, localhost, *.localhost, this machine or
 * a listed name. With API keys any host will do, since a foreign page has no key. NULL (HTTP/1.0)
 * is fine. */
bool guard_host_fits(const struct guard *guard, const char *host);
/* True if a request that changes something comes from our own page or from no page at all. */
bool guard_origin_fits(const char *origin, const char *fetch_site, const char *host);

#endif
