/* append.c - append-only lines and lock files on POSIX.
 *
 * Owns the rule that an append is all or nothing: a short write (the disk is full) is undone by
 * cutting the file back, because half a line would swallow the next one. One writer a file is
 * assumed; a lock is taken with flock(2), which the kernel drops when the process dies in any way,
 * so nothing stale is ever left to clean up. */
#include "base/append.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum { CHUNK_BYTES = 65536 };

/* Length of the file up to and with its last newline. Searched from the end: event files grow
 * large. */
static enum status complete_length(int fd, const char *path, int64_t size, int64_t *length,
                                   struct err *e) {
    char chunk[CHUNK_BYTES];
    for (int64_t end = size; end > 0;) {
        const int64_t start = end > CHUNK_BYTES ? end - CHUNK_BYTES : 0;
        const ssize_t count = pread(fd, chunk, (size_t)(end - start), start);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return file_error(e, "reading", path);
        for (ssize_t i = count - 1; i >= 0; i--) {
            if (chunk[i] != '\n') continue;
            *length = start + i + 1;
            return STATUS_OK;
        }
        end = start;
    }
    *length = 0;
    return STATUS_OK;
}

enum status append_open(int *fd, const char *path, struct err *e) {
    const int opened = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (opened < 0) return file_error(e, "opening", path);
    enum status status = STATUS_OK;
    struct stat info;
    int64_t length = 0;
    if (fstat(opened, &info) != 0) {
        status = file_error(e, "looking at", path);
    } else {
        status = complete_length(opened, path, info.st_size, &length, e);
    }
    if (status == STATUS_OK && length != info.st_size && ftruncate(opened, length) != 0) {
        status = file_error(e, "cutting the last line of", path);
    }
    if (status == STATUS_OK) {
        *fd = opened;
    } else {
        close(opened);
    }
    return status;
}

enum status append_line(int fd, const char *path, const char *line, size_t len, struct err *e) {
    ASSERT(len > 0 && line[len - 1] == '\n');
    ssize_t written;
    do {
        written = write(fd, line, len);
    } while (written < 0 && errno == EINTR);
    if (written == (ssize_t)len) return STATUS_OK;
    if (written < 0) return file_error(e, "writing", path);
    struct stat info;
    if (fstat(fd, &info) != 0 || ftruncate(fd, info.st_size - written) != 0) {
        return file_error(e, "taking back half a line of", path);
    }
    return err_set(e, STATUS_NO_SPACE, "writing %s: the disk is full", path);
}

enum status file_read_at(const char *path, int64_t offset, size_t bytes_max, struct str *out,
                         struct err *e) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return file_error(e, "reading", path);
    enum status status = STATUS_OK;
    char chunk[CHUNK_BYTES];
    for (size_t done = 0; done < bytes_max;) {
        const size_t want = bytes_max - done < sizeof chunk ? bytes_max - done : sizeof chunk;
        const ssize_t count = pread(fd, chunk, want, offset + (int64_t)done);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) status = file_error(e, "reading", path);
        if (count <= 0) break;
        str_append_bytes(out, chunk, (size_t)count);
        done += (size_t)count;
    }
    close(fd);
    return status;
}

enum status lock_file_open(int *fd, const char *path, struct err *e) {
    const int opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (opened < 0) return file_error(e, "opening", path);
    int result;
    do {
        result = flock(opened, LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    if (result == 0) {
        *fd = opened;
        return STATUS_OK;
    }
    const enum status status =
        errno == EWOULDBLOCK
            ? err_set(e, STATUS_CONFLICT, "%s is held by another process that is alive", path)
            : file_error(e, "locking", path);
    close(opened);
    return status;
}

bool lock_file_is_held(const char *path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    int result;
    do {
        result = flock(fd, LOCK_SH | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    const bool held = result != 0 && errno == EWOULDBLOCK;
    close(fd);
    return held;
}

enum status lock_file_write(int fd, const char *path, const char *bytes, size_t count,
                            struct err *e) {
    ssize_t written;
    do {
        written = pwrite(fd, bytes, count, 0);
    } while (written < 0 && errno == EINTR);
    if (written < 0) return file_error(e, "writing", path);
    FAIL_IF(written != (ssize_t)count, STATUS_NO_SPACE, "writing %s: the disk is full", path);
    if (ftruncate(fd, (off_t)count) != 0) return file_error(e, "writing", path);
    return STATUS_OK;
}
