/* file.h - files and folders, with errors that name the path. The only room that looks at errno.
 *
 * Nothing is ever half-written: whoever writes a file that others read goes through
 * file_write_atomic or through a struct file_writer (temporary name, fsync, rename). */
#ifndef PLIMSOLL_BASE_FILE_H
#define PLIMSOLL_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

enum { FILE_PATH_MAX = 4096 };

/* Fills `e` from errno: STATUS_NOT_FOUND for a missing file, STATUS_NO_SPACE for a full disk, else
 * STATUS_IO. `doing` is a word such as "reading". For base's own files: nobody else looks at errno.
 */
enum status file_error(struct err *e, const char *doing, const char *path);

/* Joins with one slash. Caller frees with mem_free. */
char *file_join(const char *folder, const char *name);
/* The part after the last slash. Points into `path`. */
const char *file_base_name(const char *path);
bool file_exists(const char *path);
bool file_is_folder(const char *path);
/* Network file systems remember for a while that a name was not in a folder: forgets it. */
void file_look_again(const char *folder);
/* True if `name` is one plain path component: not empty, not "." or "..", no slash, backslash or
 * control character, at most 255 bytes. */
bool file_name_is_plain(const char *name);

/* Appends the whole file to `out`; STATUS_INVALID if it has more than `bytes_max`. */
enum status file_read(const char *path, size_t bytes_max, struct str *out, struct err *e);
/* Replaces the file by exactly these bytes, or leaves it untouched. */
enum status file_write_atomic(const char *path, const void *bytes, size_t count, struct err *e);
/* The same for what only this user may read. */
enum status file_write_private(const char *path, const void *bytes, size_t count, struct err *e);
/* Size in bytes. */
enum status file_size(const char *path, int64_t *bytes, struct err *e);
/* When the contents last changed, in seconds since 1970. */
enum status file_modified(const char *path, int64_t *unix_s, struct err *e);
/* Creates the folder and its parents; an existing folder is fine. */
enum status file_make_folder(const char *path, struct err *e);
/* Removes a file or a folder with all that is in it (symbolic links are removed, not followed).
 * Missing is fine. */
enum status file_remove_all(const char *path, struct err *e);
/* rename(2), then fsync of the folder. */
enum status file_rename(const char *from, const char *to, struct err *e);
/* Swaps two existing names in one step. Where the file system cannot do that, `to` is moved aside,
 * `from` takes its place and then the old one takes the name `from`: a crash in between leaves `to`
 * missing. */
enum status file_exchange(const char *from, const char *to, struct err *e);
enum status file_sync_folder(const char *path, struct err *e);
/* Copies by content through file_write-like temporary name. */
enum status file_copy(const char *from, const char *to, struct err *e);
/* Bytes that an ordinary user may still write on the file system of `path`. */
enum status file_free_space(const char *path, int64_t *bytes, struct err *e);

/* Names in a folder, sorted, without "." and "..". Caller frees each and the array with
 * file_names_free. */
enum status file_list(const char *path, char ***names, size_t *count, struct err *e);
void file_names_free(char **names, size_t count);

/* A file mapped for reading. `data` is NULL for an empty file. */
struct file_map {
    const unsigned char *data;
    size_t bytes;
};
enum status file_map_open(struct file_map *map, const char *path, struct err *e);
void file_map_close(struct file_map *map);
/* Maps the pages of a range of a mapped file at once, where the system can: a fault for each of
 * them costs several times as much. Only a hint; any thread. */
void file_map_populate(const void *at, size_t bytes);

/* Sequential reading with bounded memory. file_reader_read gives up to `capacity` bytes, 0 only at
 * the end of the file. Closing a zeroed reader does nothing. */
struct file_reader {
    int fd_plus_1; /* 0: not open */
    char *path;
};
enum status file_reader_open(struct file_reader *r, const char *path, struct err *e);
enum status file_reader_read(struct file_reader *r, void *bytes, size_t capacity, size_t *count,
                             struct err *e);
void file_reader_close(struct file_reader *r);

/* Sequential writing to a temporary name beside `path`; file_writer_commit makes it appear at
 * `path` at once, file_writer_abort (or a crash) leaves nothing. Also usable zeroed: abort of a
 * zeroed writer does nothing. */
struct file_writer {
    int fd_plus_1; /* 0: not open */
    char *path;
    char *path_temporary;
    uint64_t bytes;
};
enum status file_writer_open(struct file_writer *w, const char *path, struct err *e);
enum status file_writer_write(struct file_writer *w, const void *bytes, size_t count,
                              struct err *e);
/* Flushes, fsyncs, renames; afterwards the writer is zeroed, also on error. */
enum status file_writer_commit(struct file_writer *w, struct err *e);
void file_writer_abort(struct file_writer *w);

/* Milliseconds since 1970, and a steady clock in nanoseconds for durations. */
int64_t clock_unix_ms(void);
int64_t clock_steady_ns(void);
/* Waits. For loops that look at something that cannot be waited for, such as a file. */
void clock_pause_ms(int64_t ms);

#endif
