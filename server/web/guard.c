/* guard.c - API keys, Host and Origin: the checks of guard.h.
 *
 * Keys are compared in a time that does not depend on where they differ. */
#include "server/web/guard.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

enum { KEY_FILE_MAX = 1 << 16, HOST_MAX = 255 };

enum status guard_load_keys(struct guard *guard, const char *path, struct err *e) {
    struct str text = {0};
    enum status status = STATUS_OK;
    GUARD(file_read(path, KEY_FILE_MAX, &text, e));
    str_append_char(&text, '\n');
    for (char *line = text.data, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        size_t len = strlen(line);
        while (len && (line[len - 1] == '\r' || line[len - 1] == ' ')) {
            line[--len] = 0;
        }
        if (!len || *line == '#') continue;
        GUARD_IF(guard->key_count == GUARD_KEYS_MAX, STATUS_INVALID, "%s has more than %d keys",
                 path, GUARD_KEYS_MAX);
        guard->keys[guard->key_count++] = mem_strdup(line);
    }
    GUARD_IF(!guard->key_count, STATUS_INVALID, "%s holds no key: write one a line", path);
done:
    str_release(&text);
    return status;
}

void guard_release(struct guard *guard) {
    if (!guard) return;
    for (int i = 0; i < guard->key_count; i++) {
        mem_free(guard->keys[i]);
    }
    for (int i = 0; i < guard->host_count; i++) {
        mem_free(guard->hosts[i]);
    }
    *guard = (struct guard){0};
}

static bool same_secret(const char *key, const char *given, size_t len) {
    const size_t key_len = strlen(key);
    unsigned char difference = key_len != len;
    for (size_t i = 0; i < len; i++) {
        difference |= (unsigned char)(given[i] ^ key[key_len ? i % key_len : 0]);
    }
    return difference == 0;
}

static bool any_key(const struct guard *guard, const char *given, size_t len) {
    bool fits = false;
    for (int i = 0; i < guard->key_count; i++) {
        fits |= same_secret(guard->keys[i], given, len);
    }
    return fits;
}

bool guard_key_fits(const struct guard *guard, const char *authorization, const char *cookie) {
    if (guard->key_count == 0) return true;
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0) {
        const char *const key = authorization + 7;
        return any_key(guard, key, strlen(key));
    }
    static const char name[] = "plimsoll_key=";
    for (const char *at = cookie; at && *at; at = strchr(at, ';')) {
        while (*at == ';' || *at == ' ') {
            at++;
        }
        if (strncmp(at, name, sizeof name - 1) != 0) continue;
        const char *const key = at + sizeof name - 1;
        return any_key(guard, key, strcspn(key, ";"));
    }
    return false;
}

/* The host without its port and brackets. */
static void host_name(const char *host, char out[HOST_MAX + 1]) {
    const bool bracket = *host == '[';
    const size_t len = bracket ? strcspn(host + 1, "]") : strcspn(host, ":");
    const size_t kept = len < HOST_MAX ? len : HOST_MAX;
    memcpy(out, host + bracket, kept);
    out[kept] = 0;
}

bool guard_host_fits(const struct guard *guard, const char *host) {
    if (!host || guard->key_count > 0) return true;
    char name[HOST_MAX + 1], machine[HOST_MAX + 1] = "";
    unsigned char address[16];
    host_name(host, name);
    if (inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1) {
        return true;
    }
    const size_t len = strlen(name);
    if (strcasecmp(name, "localhost") == 0) return true;
    if (len > 10 && strcasecmp(name + len - 10, ".localhost") == 0) return true;
    if (gethostname(machine, sizeof machine - 1) == 0 && strcasecmp(name, machine) == 0)
        return true;
    for (int i = 0; i < guard->host_count; i++) {
        if (strcasecmp(name, guard->hosts[i]) == 0) return true;
    }
    return false;
}

bool guard_origin_fits(const char *origin, const char *fetch_site, const char *host) {
    if (fetch_site && strcmp(fetch_site, "cross-site") == 0) return false;
    if (!origin) return true;
    const char *const at = strstr(origin, "://");
    return at && host && strcasecmp(at + 3, host) == 0;
}
