/* rows_source.h - the bytes of a data file, unpacked on the way: plain, gzip and zstd, told apart
 * by their first bytes and not by the name. Memory stays bounded whatever the file's size. Packings
 * that are recognised but not read are refused by name, so that nobody sees a JSON error about the
 * inside of an archive. */
#ifndef PLIMSOLL_ENGINE_TEXT_ROWS_SOURCE_H
#define PLIMSOLL_ENGINE_TEXT_ROWS_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/file.h"

/* One open file. The fields are its own. Zeroed means closed. */
struct row_source {
    struct file_reader file;
    const struct source_packing *packing; /* NULL: plain */
    void *decoder;                        /* z_stream or ZSTD_DCtx */
    unsigned char *input;
    size_t input_at, input_count;
    int64_t read_bytes; /* of the file, packed as they are; may be read */
    bool input_ended;
    bool inside_frame; /* a compressed stream has begun and not ended */
};

/* Opens a file and looks at its first bytes. STATUS_NOT_FOUND, STATUS_IO, or STATUS_UNSUPPORTED for
 * a packing or format that is known and not read. */
enum status row_source_open(struct row_source *s, const char *path, struct err *e);
void row_source_close(struct row_source *s);
/* Gives up to `capacity` unpacked bytes; *count is 0 only at the end. STATUS_INVALID when the
 * packed data is damaged or cut off. */
enum status row_source_read(struct row_source *s, char *bytes, size_t capacity, size_t *count,
                            struct err *e);

#endif
