/* static.c - the page's files.
 *
 * Confinement in two steps: every part of the path must be a plain name, and the file that is
 * found must really lie below the folder (symbolic links resolved). */
#include "server/web/static.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/* Scripts and styles come from this server alone; styles set by scripts on elements are not covered
 * by the policy. */
static const char POLICY[] = "default-src 'self'; img-src 'self' data:; object-src 'none'; "
                             "base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

static const char *const TYPES[][2] = {
    {".html", "text/html; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
    {".mjs", "text/javascript; charset=utf-8"},
    {".css", "text/css; charset=utf-8"},
    {".json", "application/json"},
    {".jsonl", "application/jsonl"},
    {".webmanifest", "application/manifest+json"},
    {".svg", "image/svg+xml"},
    {".png", "image/png"},
    {".ico", "image/x-icon"},
    {".woff2", "font/woff2"},
    {".map", "application/json"},
    {".txt", "text/plain; charset=utf-8"},
};

static const char *type_of(const char *path) {
    const char *const dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < COUNT_OF(TYPES); i++) {
        if (strcasecmp(dot, TYPES[i][0]) == 0) return TYPES[i][1];
    }
    return "application/octet-stream";
}

/* The path relative to the folder; index.html for a view of the page. */
static enum status relative_path(const char *url, struct str *out, struct err *e) {
    const char *at = url;
    while (*at == '/') {
        at++;
        const size_t len = strcspn(at, "/");
        if (len == 0 && !at[len]) break;
        char *part = mem_strndup(at, len);
        struct str name = {0};
        const bool plain = http_decode(part, &name) &&
                           utf8_valid_prefix(name.data ? name.data : "", name.len) == name.len &&
                           file_name_is_plain(str_text(&name)) && name.data[0] != '.';
        if (plain) str_appendf(out, "/%s", name.data);
        str_release(&name);
        mem_free(part);
        FAIL_IF(!plain, STATUS_INVALID, "this path cannot be the name of a file");
        at += len;
    }
    const char *const last = out->len ? strrchr(out->data, '/') : NULL;
    if (!last || !strchr(last, '.')) {
        str_clear(out);
        str_append(out, "/index.html");
    }
    return STATUS_OK;
}

static enum status open_beneath(const char *folder, const char *relative, int *fd, struct err *e) {
    char *path = str_format("%s%s", folder, relative);
    char real[PATH_MAX];
    const size_t len = strlen(folder);
    *fd = -1;
    if (realpath(path, real) && strncmp(real, folder, len) == 0 && real[len] == '/') {
        *fd = open(real, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    }
    mem_free(path);
    FAIL_IF(*fd < 0, STATUS_NOT_FOUND, "there is no file %s", relative);
    return STATUS_OK;
}

static void reply_file(int fd, const struct stat *info, const char *relative,
                       const struct http_request *q, struct http_reply *r) {
    char tag[64];
    snprintf(tag, sizeof tag, "\"%llx-%llx\"", (unsigned long long)info->st_size,
             (unsigned long long)info->st_mtim.tv_sec * 1000000000ull +
                 (unsigned long long)info->st_mtim.tv_nsec);
    const char *const known = http_header(q, "If-None-Match");
    r->content_type = type_of(relative);
    http_reply_header(r, "ETag", tag);
    http_reply_header(r, "Cache-Control", "no-cache");
    http_reply_header(r, "Content-Security-Policy", POLICY);
    http_reply_header(r, "Referrer-Policy", "no-referrer");
    if (known && strstr(known, tag)) {
        r->code = 304;
        close(fd);
        return;
    }
    r->fd_plus_1 = fd + 1;
    r->fd_bytes = info->st_size;
}

enum status static_serve(const char *folder, const struct http_request *q, struct http_reply *r,
                         struct err *e) {
    struct str relative = {0};
    struct stat info;
    int fd = -1;
    enum status status = STATUS_OK;
    GUARD_IF(!folder, STATUS_NOT_FOUND, "this server has no page: start it with --web FOLDER");
    GUARD(relative_path(q->path, &relative, e));
    GUARD(open_beneath(folder, relative.data, &fd, e));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        GUARD_IF(true, STATUS_NOT_FOUND, "there is no file %s", relative.data);
    }
    reply_file(fd, &info, relative.data, q, r);
done:
    str_release(&relative);
    return status;
}
