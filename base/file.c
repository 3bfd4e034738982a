/* file.c - POSIX files behind a small door.
 *
 * Short writes, EINTR and "disk full" are handled here, once. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

enum status file_error(struct err *e, const char *doing, const char *path) {
    const int code = errno;
    const enum status status = code == ENOENT                     ? STATUS_NOT_FOUND
                               : code == ENOSPC || code == EDQUOT ? STATUS_NO_SPACE
                                                                  : STATUS_IO;
    if (status == STATUS_NO_SPACE) {
        return err_set(e, status, "%s %s: the disk is full", doing, path);
    }
    return err_set(e, status, "%s %s: %s", doing, path, strerror(code));
}

char *file_join(const char *folder, const char *name) {
    const char *const slash = str_ends_with(folder, "/") ? "" : "/";
    return str_format("%s%s%s", folder, slash, name);
}

const char *file_base_name(const char *path) {
    const char *const slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

bool file_is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool file_name_is_plain(const char *name) {
    const size_t len = strlen(name);
    if (len == 0 || len > 255 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return false;
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)name[i];
        if (c < 0x20 || c == 0x7F || c == '/' || c == '\\') return false;
    }
    return true;
}

enum status file_read(const char *path, size_t bytes_max, struct str *out, struct err *e) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return file_error(e, "reading", path);
    enum status status = STATUS_OK;
    char chunk[16384];
    const size_t start = out->len;
    for (;;) {
        const ssize_t count = read(fd, chunk, sizeof chunk);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) status = file_error(e, "reading", path);
        if (count <= 0) break;
        if (out->len - start + (size_t)count > bytes_max) {
            status = err_set(e, STATUS_INVALID, "%s is larger than the limit of %zu bytes", path,
                             bytes_max);
            break;
        }
        str_append_bytes(out, chunk, (size_t)count);
    }
    close(fd);
    return status;
}

/* Opening a folder makes NFS ask its server whether it has changed. */
void file_look_again(const char *folder) {
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) close(fd);
}

static enum status open_writer(struct file_writer *w, const char *path, mode_t mode,
                               struct err *e) {
    char *temporary = str_format("%s.tmp.%ld", path, (long)getpid());
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0) {
        const enum status status = file_error(e, "writing", path);
        mem_free(temporary);
        return status;
    }
    *w = (struct file_writer){
        .fd_plus_1 = fd + 1, .path = mem_strdup(path), .path_temporary = temporary};
    return STATUS_OK;
}

static enum status write_whole(const char *path, mode_t mode, const void *bytes, size_t count,
                               struct err *e) {
    struct file_writer w = {0};
    TRY(open_writer(&w, path, mode, e));
    const enum status status = file_writer_write(&w, bytes, count, e);
    if (status != STATUS_OK) {
        file_writer_abort(&w);
        return status;
    }
    return file_writer_commit(&w, e);
}

enum status file_write_atomic(const char *path, const void *bytes, size_t count, struct err *e) {
    return write_whole(path, 0666, bytes, count, e);
}

enum status file_write_private(const char *path, const void *bytes, size_t count, struct err *e) {
    return write_whole(path, 0600, bytes, count, e);
}

enum status file_size(const char *path, int64_t *bytes, struct err *e) {
    struct stat info;
    if (stat(path, &info) != 0) return file_error(e, "looking at", path);
    *bytes = info.st_size;
    return STATUS_OK;
}

enum status file_modified(const char *path, int64_t *unix_s, struct err *e) {
    struct stat info;
    if (stat(path, &info) != 0) return file_error(e, "looking at", path);
    *unix_s = info.st_mtime;
    return STATUS_OK;
}

enum status file_make_folder(const char *path, struct err *e) {
    char *part = mem_strdup(path);
    enum status status = STATUS_OK;
    for (char *at = part + 1; status == STATUS_OK; at++) {
        if (*at != '/' && *at) continue;
        const char kept = *at;
        *at = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            status = file_error(e, "creating the folder", part);
        *at = kept;
        if (!kept) break;
    }
    if (status == STATUS_OK && !file_is_folder(path)) {
        status = err_set(e, STATUS_IO, "%s exists and is not a folder", path);
    }
    mem_free(part);
    return status;
}

enum status file_remove_all(const char *path, struct err *e) {
    struct stat info;
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? STATUS_OK : file_error(e, "removing", path);
    if (!S_ISDIR(info.st_mode)) {
        return unlink(path) == 0 || errno == ENOENT ? STATUS_OK : file_error(e, "removing", path);
    }
    char **names = NULL;
    size_t count = 0;
    TRY(file_list(path, &names, &count, e));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        char *inner = file_join(path, names[i]);
        status = file_remove_all(inner, e);
        mem_free(inner);
    }
    file_names_free(names, count);
    if (status == STATUS_OK && rmdir(path) != 0 && errno != ENOENT)
        status = file_error(e, "removing", path);
    return status;
}

enum status file_sync_folder(const char *path, struct err *e) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return file_error(e, "opening the folder", path);
    const int result = fsync(fd);
    const int code = errno;
    close(fd);
    errno = code;
    /* Some network file systems cannot sync a folder; the rename itself is still atomic there. */
    if (result != 0 && code != EINVAL && code != ENOTSUP)
        return file_error(e, "syncing the folder", path);
    return STATUS_OK;
}

static enum status sync_parent(const char *path, struct err *e) {
    const char *const slash = strrchr(path, '/');
    char *folder = slash && slash != path ? mem_strndup(path, (size_t)(slash - path))
                                          : mem_strdup(slash ? "/" : ".");
    const enum status status = file_sync_folder(folder, e);
    mem_free(folder);
    return status;
}

enum status file_rename(const char *from, const char *to, struct err *e) {
    if (rename(from, to) != 0) return file_error(e, "renaming to", to);
    return sync_parent(to, e);
}

static enum status exchange_in_steps(const char *from, const char *to, struct err *e) {
    char *aside = str_format("%s.tmp.%ld", from, (long)getpid());
    enum status status = STATUS_OK;
    if (rename(to, aside) != 0 || rename(from, to) != 0 || rename(aside, from) != 0) {
        status = file_error(e, "exchanging", to);
    }
    mem_free(aside);
    return status;
}

enum status file_exchange(const char *from, const char *to, struct err *e) {
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) != 0) {
        if (errno != EINVAL && errno != ENOSYS) return file_error(e, "exchanging", to);
        TRY(exchange_in_steps(from, to, e));
    }
    return sync_parent(to, e);
}

enum status file_copy(const char *from, const char *to, struct err *e) {
    struct file_map map = {0};
    TRY(file_map_open(&map, from, e));
    const enum status status = file_write_atomic(to, map.data, map.bytes, e);
    file_map_close(&map);
    return status;
}

enum status file_free_space(const char *path, int64_t *bytes, struct err *e) {
    struct statvfs info;
    if (statvfs(path, &info) != 0) return file_error(e, "looking at the disk of", path);
    *bytes = (int64_t)info.f_bavail * (int64_t)info.f_frsize;
    return STATUS_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum status file_list(const char *path, char ***names, size_t *count, struct err *e) {
    DIR *folder = opendir(path);
    if (!folder) return file_error(e, "listing", path);
    char **list = NULL;
    size_t n = 0, capacity = 0;
    for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        list = mem_grow(list, n, &capacity, sizeof *list);
        list[n++] = mem_strdup(entry->d_name);
    }
    closedir(folder);
    if (n) qsort(list, n, sizeof *list, compare_names);
    *names = list;
    *count = n;
    return STATUS_OK;
}

void file_names_free(char **names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        mem_free(names[i]);
    }
    mem_free(names);
}

enum status file_map_open(struct file_map *map, const char *path, struct err *e) {
    *map = (struct file_map){0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return file_error(e, "reading", path);
    enum status status = STATUS_OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = file_error(e, "looking at", path);
    } else if (!S_ISREG(info.st_mode)) {
        status = err_set(e, STATUS_IO, "%s is not a regular file", path);
    } else if (info.st_size > 0) {
        void *const data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            status = file_error(e, "mapping", path);
        } else {
            map->data = data;
            map->bytes = (size_t)info.st_size;
        }
    }
    close(fd);
    return status;
}

void file_map_close(struct file_map *map) {
    if (!map) return;
    if (map->data) munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (struct file_map){0};
}

void file_map_populate(const void *at, size_t bytes) {
#ifdef MADV_POPULATE_READ
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)at / page * page;
    (void)madvise((void *)first, bytes + ((uintptr_t)at - first), MADV_POPULATE_READ);
#else
    (void)at, (void)bytes;
#endif
}

enum status file_reader_open(struct file_reader *r, const char *path, struct err *e) {
    *r = (struct file_reader){0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return file_error(e, "reading", path);
    *r = (struct file_reader){.fd_plus_1 = fd + 1, .path = mem_strdup(path)};
    return STATUS_OK;
}

enum status file_reader_read(struct file_reader *r, void *bytes, size_t capacity, size_t *count,
                             struct err *e) {
    ASSERT(r->fd_plus_1);
    ssize_t done;
    do {
        done = read(r->fd_plus_1 - 1, bytes, capacity);
    } while (done < 0 && errno == EINTR);
    if (done < 0) return file_error(e, "reading", r->path);
    *count = (size_t)done;
    return STATUS_OK;
}

void file_reader_close(struct file_reader *r) {
    if (!r) return;
    if (r->fd_plus_1) close(r->fd_plus_1 - 1);
    mem_free(r->path);
    *r = (struct file_reader){0};
}

enum status file_writer_open(struct file_writer *w, const char *path, struct err *e) {
    return open_writer(w, path, 0666, e);
}

enum status file_writer_write(struct file_writer *w, const void *bytes, size_t count,
                              struct err *e) {
    ASSERT(w->fd_plus_1);
    const char *at = bytes;
    size_t left = count;
    while (left) {
        const ssize_t done = write(w->fd_plus_1 - 1, at, left);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return file_error(e, "writing", w->path);
        at += done;
        left -= (size_t)done;
    }
    w->bytes += count;
    return STATUS_OK;
}

enum status file_writer_commit(struct file_writer *w, struct err *e) {
    ASSERT(w->fd_plus_1);
    enum status status = STATUS_OK;
    if (fsync(w->fd_plus_1 - 1) != 0) status = file_error(e, "writing", w->path);
    if (close(w->fd_plus_1 - 1) != 0 && status == STATUS_OK)
        status = file_error(e, "writing", w->path);
    w->fd_plus_1 = 0;
    if (status == STATUS_OK) status = file_rename(w->path_temporary, w->path, e);
    file_writer_abort(w);
    return status;
}

void file_writer_abort(struct file_writer *w) {
    if (!w) return;
    if (w->fd_plus_1) close(w->fd_plus_1 - 1);
    if (w->path_temporary) unlink(w->path_temporary); /* gone already after a rename */
    mem_free(w->path);
    mem_free(w->path_temporary);
    *w = (struct file_writer){0};
}

int64_t clock_unix_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t clock_steady_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void clock_pause_ms(int64_t ms) {
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&time, NULL);
}
