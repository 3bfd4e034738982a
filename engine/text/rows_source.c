/* rows_source.c - plain, gzip and zstd files as one stream of bytes. Several packed streams end to
 * end (as pigz, zstd and log rotation write them) read as one, which is what the command-line tools
 * do. */
#include "engine/text/rows_source.h"

#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "base/mem.h"

enum { INPUT_BYTES = 256 * 1024, MAGIC_BYTES = 6 };

/* How one packing is unpacked. step consumes input and produces output; it sets inside_frame. */
struct source_packing {
    const char *name;
    void (*open)(struct row_source *s);
    void (*close)(struct row_source *s);
    bool (*step)(struct row_source *s, char *bytes, size_t capacity,
                 size_t *count); /* false: damaged */
};

static void gzip_open(struct row_source *s) {
    z_stream *const z = mem_new(1, sizeof *z);
    const int result = inflateInit2(z, 15 + 16); /* 32 KiB window, gzip framing */
    ASSERT(result == Z_OK);
    s->decoder = z;
}

static void gzip_close(struct row_source *s) {
    inflateEnd(s->decoder);
    mem_free(s->decoder);
}

static bool gzip_step(struct row_source *s, char *bytes, size_t capacity, size_t *count) {
    z_stream *const z = s->decoder;
    if (!s->inside_frame && inflateReset(z) != Z_OK) return false;
    s->inside_frame = true;
    z->next_in = s->input + s->input_at;
    z->avail_in = (unsigned)(s->input_count - s->input_at);
    z->next_out = (unsigned char *)bytes;
    z->avail_out = (unsigned)capacity;
    const int result = inflate(z, Z_NO_FLUSH);
    s->input_at = s->input_count - z->avail_in;
    *count = capacity - z->avail_out;
    if (result == Z_STREAM_END) s->inside_frame = false;
    return result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR;
}

static void zstd_open(struct row_source *s) {
    s->decoder = ZSTD_createDCtx();
    ASSERT(s->decoder);
}

static void zstd_close(struct row_source *s) {
    ZSTD_freeDCtx(s->decoder);
}

static bool zstd_step(struct row_source *s, char *bytes, size_t capacity, size_t *count) {
    ZSTD_inBuffer in = {s->input, s->input_count, s->input_at};
    ZSTD_outBuffer out = {bytes, capacity, 0};
    const size_t result = ZSTD_decompressStream(s->decoder, &out, &in);
    s->input_at = in.pos;
    *count = out.pos;
    s->inside_frame = result != 0;
    return !ZSTD_isError(result);
}

static const struct source_packing GZIP = {"gzip", gzip_open, gzip_close, gzip_step};
static const struct source_packing ZSTD = {"zstd", zstd_open, zstd_close, zstd_step};

/* Files people do upload. `packing` NULL and `name` set: known, refused. */
static const struct {
    const char *magic;
    size_t len;
    const struct source_packing *packing;
    const char *name;
} MAGICS[] = {
    {"\x1f\x8b", 2, &GZIP, NULL},
    {"\x28\xb5\x2f\xfd", 4, &ZSTD, NULL},
    {"PK\x03\x04", 4, NULL, "a zip archive (or an Excel file)"},
    {"PAR1", 4, NULL, "a Parquet file"},
    {"ARROW1", 6, NULL, "an Arrow file"},
    {"\xfd"
     "7zXZ",
     5, NULL, "an xz file"},
    {"BZh", 3, NULL, "a bzip2 file"},
    {"7z\xbc\xaf", 4, NULL, "a 7z archive"},
    {"%PDF", 4, NULL, "a PDF"},
};

static enum status fill_input(struct row_source *s, struct err *e) {
    if (s->input_ended) return STATUS_OK;
    s->input_at = 0;
    TRY(file_reader_read(&s->file, s->input, INPUT_BYTES, &s->input_count, e));
    s->read_bytes += (int64_t)s->input_count;
    s->input_ended = s->input_count == 0;
    return STATUS_OK;
}

static enum status choose_packing(struct row_source *s, const char *path, struct err *e) {
    for (size_t i = 0; i < COUNT_OF(MAGICS); i++) {
        if (s->input_count < MAGICS[i].len || memcmp(s->input, MAGICS[i].magic, MAGICS[i].len) != 0)
            continue;
        FAIL_IF(
            !MAGICS[i].packing, STATUS_UNSUPPORTED,
            "%s is %s; data files are JSON Lines (one JSON object per line), plain, gzip or zstd",
            path, MAGICS[i].name);
        s->packing = MAGICS[i].packing;
        s->packing->open(s);
        break;
    }
    return STATUS_OK;
}

enum status row_source_open(struct row_source *s, const char *path, struct err *e) {
    *s = (struct row_source){0};
    TRY(file_reader_open(&s->file, path, e));
    s->input = mem_new(INPUT_BYTES, 1);
    enum status status = fill_input(s, e);
    if (status == STATUS_OK) status = choose_packing(s, path, e);
    if (status != STATUS_OK) row_source_close(s);
    return status;
}

void row_source_close(struct row_source *s) {
    if (!s) return;
    if (s->packing) s->packing->close(s);
    mem_free(s->input);
    file_reader_close(&s->file);
    *s = (struct row_source){0};
}

static size_t copy_plain(struct row_source *s, char *bytes, size_t capacity) {
    const size_t left = s->input_count - s->input_at;
    const size_t count = left < capacity ? left : capacity;
    memcpy(bytes, s->input + s->input_at, count);
    s->input_at += count;
    return count;
}

enum status row_source_read(struct row_source *s, char *bytes, size_t capacity, size_t *count,
                            struct err *e) {
    ASSERT(capacity > 0);
    *count = 0;
    while (*count == 0) {
        if (s->input_at == s->input_count) TRY(fill_input(s, e));
        if (s->input_ended && !s->inside_frame) return STATUS_OK;
        if (!s->packing) {
            *count = copy_plain(s, bytes, capacity);
            continue;
        }
        const bool starved = s->input_ended;
        FAIL_IF(!s->packing->step(s, bytes, capacity, count), STATUS_INVALID,
                "the %s data is damaged: pack the file again", s->packing->name);
        FAIL_IF(starved && *count == 0 && s->inside_frame, STATUS_INVALID,
                "the %s data ends too early: the file is cut off", s->packing->name);
    }
    return STATUS_OK;
}
