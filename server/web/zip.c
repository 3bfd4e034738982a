/* zip.c - libarchive pushes, HTTP pulls; the only home of archive.h.
 *
 * Whenever the buffer is empty the next piece of a file is pushed, so that memory stays at one
 * piece. */
#include "server/web/zip.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

enum { PIECE_BYTES = 1 << 18, FILES_MAX = 4096, DEPTH_MAX = 8 };

struct zip {
    char *folder, *prefix;
    char **names; /* relative to the folder */
    size_t count, capacity, next;
    struct archive *archive;
    int fd;       /* of the file being packed, -1: none */
    int64_t left; /* bytes of it still to pack */
    struct str buffer;
    size_t sent;
    bool closed, broken;
    char piece[PIECE_BYTES];
};

static la_ssize_t collect_output(struct archive *archive, void *context, const void *bytes,
                                 size_t count) {
    (void)archive;
    struct zip *const z = context;
    str_append_bytes(&z->buffer, bytes, count);
    return (la_ssize_t)count;
}

static enum status list_files(struct zip *z, const char *relative, int depth, struct err *e) {
    FAIL_IF(depth > DEPTH_MAX, STATUS_INVALID, "%s is nested too deeply", z->folder);
    char *folder = *relative ? file_join(z->folder, relative) : mem_strdup(z->folder);
    char **names = NULL;
    size_t count = 0;
    enum status status = file_list(folder, &names, &count, e);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        struct stat info;
        char *path = file_join(folder, names[i]);
        char *inner = *relative ? file_join(relative, names[i]) : mem_strdup(names[i]);
        const bool known = lstat(path, &info) == 0;
        if (known && S_ISDIR(info.st_mode)) {
            status = list_files(z, inner, depth + 1, e);
        } else if (known && S_ISREG(info.st_mode) && z->count < FILES_MAX) {
            z->names = mem_grow(z->names, z->count, &z->capacity, sizeof *z->names);
            z->names[z->count++] = mem_strdup(inner);
        }
        mem_free(inner);
        mem_free(path);
    }
    file_names_free(names, count);
    mem_free(folder);
    return status;
}

static bool begin_file(struct zip *z, const char *name) {
    char *path = file_join(z->folder, name);
    struct stat info;
    z->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    mem_free(path);
    if (z->fd < 0 || fstat(z->fd, &info) != 0) return false;
    char *inside = str_format("%s/%s", z->prefix, name);
    struct archive_entry *const entry = archive_entry_new();
    archive_entry_set_pathname(entry, inside);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_size(entry, info.st_size);
    archive_entry_set_mtime(entry, info.st_mtim.tv_sec, 0);
    const int code = archive_write_header(z->archive, entry);
    archive_entry_free(entry);
    mem_free(inside);
    z->left = info.st_size;
    return code == ARCHIVE_OK;
}

static bool pack_piece(struct zip *z) {
    const size_t want = z->left < PIECE_BYTES ? (size_t)z->left : PIECE_BYTES;
    const ssize_t count = want ? read(z->fd, z->piece, want) : 0;
    if (want && count <= 0) return false; /* it shrank or cannot be read: the archive would lie */
    if (count > 0 && archive_write_data(z->archive, z->piece, (size_t)count) != count) return false;
    z->left -= count;
    if (z->left > 0) return true;
    close(z->fd);
    z->fd = -1;
    return archive_write_finish_entry(z->archive) == ARCHIVE_OK;
}

/* Pushes the next piece; false when something broke. */
static bool push(struct zip *z) {
    if (z->fd >= 0) return pack_piece(z);
    if (z->next < z->count) return begin_file(z, z->names[z->next++]);
    z->closed = true;
    return archive_write_close(z->archive) == ARCHIVE_OK;
}

static ssize_t zip_read(void *state, char *buffer, size_t size) {
    struct zip *const z = state;
    if (z->sent == z->buffer.len) {
        str_clear(&z->buffer);
        z->sent = 0;
    }
    while (z->buffer.len == 0 && !z->closed && !z->broken) {
        z->broken = !push(z);
    }
    if (z->broken) return HTTP_STREAM_BROKEN;
    if (z->buffer.len == 0) return HTTP_STREAM_END;
    const size_t left = z->buffer.len - z->sent;
    const size_t count = left < size ? left : size;
    memcpy(buffer, z->buffer.data + z->sent, count);
    z->sent += count;
    return (ssize_t)count;
}

static void zip_close(void *state) {
    struct zip *const z = state;
    if (z->fd >= 0) close(z->fd);
    if (z->archive) archive_write_free(z->archive);
    file_names_free(z->names, z->count);
    str_release(&z->buffer);
    mem_free(z->folder);
    mem_free(z->prefix);
    mem_free(z);
}

static enum status begin_archive(struct zip *z, struct err *e) {
    TRY(list_files(z, "", 0, e));
    FAIL_IF(z->count == 0, STATUS_NOT_FOUND, "%s holds no files", z->folder);
    z->archive = archive_write_new();
    const bool fine =
        z->archive && archive_write_set_format_zip(z->archive) == ARCHIVE_OK &&
        archive_write_set_options(z->archive, "zip:compression=store") == ARCHIVE_OK &&
        archive_write_set_bytes_per_block(z->archive, 0) == ARCHIVE_OK &&
        archive_write_open(z->archive, z, NULL, collect_output, NULL) == ARCHIVE_OK;
    FAIL_IF(!fine, STATUS_INTERNAL, "the zip archive cannot be made");
    return STATUS_OK;
}

enum status zip_open(const char *folder, const char *prefix, struct http_stream *out,
                     struct err *e) {
    struct zip *z = mem_new(1, sizeof *z);
    z->fd = -1;
    z->folder = mem_strdup(folder);
    z->prefix = mem_strdup(prefix);
    const enum status status = begin_archive(z, e);
    if (status != STATUS_OK) {
        zip_close(z);
        return status;
    }
    *out = (struct http_stream){.read = zip_read, .close = zip_close, .state = z};
    return STATUS_OK;
}
