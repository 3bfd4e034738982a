/* hash.c - streaming XXH3-128, the canonical (big-endian) form as the result. The home of xxhash.
 *
 * Files are read, not mapped: the pages of a large data file would otherwise count as memory of the
 * process that hashes it. */
#include "engine/io/hash.h"

#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"

enum { READ_BYTES = 1 << 20 };

void hash_open(struct hash_stream *h) {
    h->state = XXH3_createState();
    ASSERT(h->state);
    XXH3_128bits_reset(h->state);
}

void hash_close(struct hash_stream *h) {
    if (!h) return;
    XXH3_freeState(h->state);
    h->state = NULL;
}

void hash_add(struct hash_stream *h, const void *bytes, size_t count) {
    ASSERT(h->state);
    if (count) XXH3_128bits_update(h->state, bytes, count);
}

void hash_add_i64(struct hash_stream *h, int64_t value) {
    hash_add(h, &value, sizeof value);
}

void hash_add_text(struct hash_stream *h, const char *text) {
    const size_t len = text ? strlen(text) : 0;
    hash_add_i64(h, text ? (int64_t)len : -1);
    hash_add(h, text, len);
}

enum status hash_add_file(struct hash_stream *h, const char *path, int64_t *bytes, struct err *e) {
    struct file_reader reader = {0};
    TRY(file_reader_open(&reader, path, e));
    char *const chunk = mem_new(READ_BYTES, 1);
    enum status status = STATUS_OK;
    *bytes = 0;
    size_t count = 1;
    while (status == STATUS_OK && count) {
        status = file_reader_read(&reader, chunk, READ_BYTES, &count, e);
        if (status == STATUS_OK) hash_add(h, chunk, count);
        *bytes += (int64_t)count;
    }
    mem_free(chunk);
    file_reader_close(&reader);
    return status;
}

void hash_result(const struct hash_stream *h, unsigned char out[HASH_BYTES]) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(h->state));
    memcpy(out, canonical.digest, HASH_BYTES);
}

void hash_hex(const unsigned char hash[HASH_BYTES], char out[HASH_HEX_CHARS + 1]) {
    static const char DIGITS[] = "0123456789abcdef";
    for (int i = 0; i < HASH_BYTES; i++) {
        out[2 * i] = DIGITS[hash[i] >> 4];
        out[2 * i + 1] = DIGITS[hash[i] & 15];
    }
    out[HASH_HEX_CHARS] = 0;
}
