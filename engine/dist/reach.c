/* reach.c - see reach.h.
 *
 * An address that answers need not be the right one: bridges of containers have the same address on
 * every machine. So whoever connects must be told by the other side that it is who was meant, and
 * else tries the next address. */
#include "engine/dist/reach.h"

#include <stdio.h>
#include <string.h>

#include "base/environment.h"
#include "base/socket.h"

static const char LOOPBACK[] = "127.0.0.1";

enum status reach_fill(struct reach *out, bool elsewhere, int port, struct err *e) {
    struct str machine = {0}, addresses = {0};
    *out = (struct reach){.port = port};
    socket_machine(&machine);
    snprintf(out->machine, sizeof out->machine, "%s", str_text(&machine));
    str_release(&machine);
    if (!elsewhere) return STATUS_OK;
    const enum status status = socket_addresses(&addresses, environment("PLIMSOLL_INTERFACE"), e);
    if (status == STATUS_OK) {
        size_t len = addresses.len;
        while (len >= sizeof out->addresses) { /* whole addresses only */
            len--;
            while (len > 0 && addresses.data[len] != ' ') {
                len--;
            }
        }
        memcpy(out->addresses, str_text(&addresses), len);
    } else {
        err_prefix(e, "PLIMSOLL_INTERFACE");
    }
    str_release(&addresses);
    return status;
}

static bool is_here(const struct reach *to) {
    struct str machine = {0};
    socket_machine(&machine);
    const bool here = machine.len > 0 && strcmp(str_text(&machine), to->machine) == 0;
    str_release(&machine);
    return here;
}

static int64_t count_words(const char *text) {
    int64_t count = 0;
    for (const char *at = text; *at; at += strspn(at, " ")) {
        at += strcspn(at, " ");
        count++;
    }
    return count;
}

static void copy_word(const char *text, int64_t index, char out[64]) {
    const char *at = text;
    for (; index > 0; index--) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    snprintf(out, 64, "%.*s", (int)strcspn(at, " "), at);
}

enum status reach_try(int *fd, const struct reach *to, int64_t attempt, int timeout_ms,
                      struct err *e) {
    const int64_t here = is_here(to), count = count_words(to->addresses) + here;
    char address[64];
    *fd = -1;
    FAIL_IF(count == 0, STATUS_NOT_FOUND,
            "that rank is on another machine, and tells no address of its own");
    const int64_t choice = attempt % count;
    if (choice < here) {
        snprintf(address, sizeof address, "%s", LOOPBACK);
    } else {
        copy_word(to->addresses, choice - here, address);
    }
    return socket_connect(fd, address, (int)to->port, timeout_ms, e);
}
