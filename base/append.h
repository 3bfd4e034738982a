/* append.h - files that grow line by line (event streams) and files that are held by a lock (which
 * rank is alive).
 *
 * A line is one write(2) on a descriptor in append mode, so a reader never sees two lines mixed;
 * what a killed writer left without its newline is cut off when the file is opened again. Here
 * because errno is base's business. */
#ifndef PLIMSOLL_BASE_APPEND_H
#define PLIMSOLL_BASE_APPEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* Opens for appending, created if missing; cuts off a last line that has no newline. The caller
 * closes *fd. */
enum status append_open(int *fd, const char *path, struct err *e);
/* Writes the bytes, which end in a newline, at once. When the disk has room for a part only, that
 * part is taken back and the result is STATUS_NO_SPACE. `path` is for the error. */
enum status append_line(int fd, const char *path, const char *line, size_t len, struct err *e);

/* Appends up to `bytes_max` bytes of the file from `offset` on to `out`; fewer at the end of the
 * file. STATUS_NOT_FOUND when there is no such file. */
enum status file_read_at(const char *path, int64_t offset, size_t bytes_max, struct str *out,
                         struct err *e);

/* Opens (creates) the file and takes an exclusive lock that lives as long as *fd. STATUS_CONFLICT
 * if somebody else holds it. The caller closes *fd. */
enum status lock_file_open(int *fd, const char *path, struct err *e);
/* True while somebody holds it, on this machine or, where the file system is a network's, on
 * another. Looking takes the lock for a moment: who wants it tries more than once. */
bool lock_file_is_held(const char *path);
/* Replaces the contents of a locked file, by one write. */
enum status lock_file_write(int fd, const char *path, const char *bytes, size_t count,
                            struct err *e);

#endif
