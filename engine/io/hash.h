/* hash.h - XXH3-128 of bytes that come piece by piece: names of cached files, and the proof that a
 * file is still what was written.
 *
 * It guards against broken disks and mixed-up inputs, not against an enemy; it is as fast as
 * memory, so nobody has a reason to guess from sizes and dates instead. */
#ifndef PLIMSOLL_ENGINE_IO_HASH_H
#define PLIMSOLL_ENGINE_IO_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { HASH_BYTES = 16, HASH_HEX_CHARS = 32 };

struct hash_stream {
    void *state; /* NULL: closed */
};
void hash_open(struct hash_stream *h);
void hash_close(struct hash_stream *h);
void hash_add(struct hash_stream *h, const void *bytes, size_t count);
/* Adds a text with its end, so that "ab","c" and "a","bc" differ; NULL is not "". */
void hash_add_text(struct hash_stream *h, const char *text);
void hash_add_i64(struct hash_stream *h, int64_t value);
/* Adds a file's contents, in bounded memory; *bytes is their number. Errors of base/file.h. */
enum status hash_add_file(struct hash_stream *h, const char *path, int64_t *bytes, struct err *e);
/* The hash of all that was added so far. */
void hash_result(const struct hash_stream *h, unsigned char out[HASH_BYTES]);
void hash_hex(const unsigned char hash[HASH_BYTES], char out[HASH_HEX_CHARS + 1]);

#endif
