/* safetensors.h - reading and writing the safetensors format. Files are mapped, never trusted:
 * every rule of the header is checked before a byte of data is looked at.
 *
 * Rules: 8 bytes little-endian header length <= 100,000,000; header is a JSON object; dtypes known;
 * shapes non-negative without overflow; offsets ordered, starting at 0, touching, each of exactly
 * shape x dtype bytes; 8 + header + last end
 * == file size. A Git LFS pointer is recognised and named. */
#ifndef PLIMSOLL_ENGINE_IO_SAFETENSORS_H
#define PLIMSOLL_ENGINE_IO_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/file.h"

enum { SAFETENSORS_RANK_MAX = 8, SAFETENSORS_NAME_MAX = 512 };

enum st_dtype {
    ST_F64,
    ST_F32,
    ST_F16,
    ST_BF16,
    ST_I64,
    ST_I32,
    ST_I16,
    ST_I8,
    ST_U8,
    ST_BOOL,
    ST_F8_E4M3,
    ST_F8_E5M2,
    ST_DTYPE_COUNT
};
int64_t st_dtype_bytes(enum st_dtype dtype);
const char *st_dtype_name(enum st_dtype dtype); /* "F32", "BF16", ... */

/* One stored tensor. `data` points into the mapped file and may be unaligned. */
struct st_tensor {
    const char *name;
    enum st_dtype dtype;
    int64_t rank;
    int64_t shape[SAFETENSORS_RANK_MAX];
    int64_t elements, bytes;
    const unsigned char *data;
    const char *file; /* path of the file it is in */
};

/* All tensors of one file, or of a sharded set. Sorted by name. */
struct st_set {
    struct st_tensor *tensors;
    int64_t count, capacity;
    struct file_map *maps;
    char **paths;
    int64_t map_count;
    char **names; /* owned storage of the names */
};

/* One file. */
enum status st_open_file(struct st_set *set, const char *path, struct err *e);
/* A model folder: model.safetensors.index.json and its shards (the index wins; every listed file
 * must be there and hold what the index says, plain file names only), else model.safetensors, else
 * a complete model-0000i-of-0000n set. STATUS_NOT_FOUND says what was looked for and, when there
 * are *.bin or *.gguf files, that those are not read. */
enum status st_open_folder(struct st_set *set, const char *folder, struct err *e);
void st_close(struct st_set *set);
/* NULL if there is none. Points into the set. */
const struct st_tensor *st_find(const struct st_set *set, const char *name);
/* Converts elements [first, first+count) of an F32, F16 or BF16 tensor to f32, bf16 or f16 bits
 * (round to nearest even). STATUS_UNSUPPORTED for other stored types. */
enum status st_read_f32(const struct st_tensor *t, int64_t first, int64_t count, float *out,
                        struct err *e);
enum status st_read_bf16(const struct st_tensor *t, int64_t first, int64_t count, uint16_t *out,
                         struct err *e);
enum status st_read_f16(const struct st_tensor *t, int64_t first, int64_t count, uint16_t *out,
                        struct err *e);

/* Writing one file: declare all tensors, then their data in the same order. Appears at `path` only
 * on commit. Tensors are written in the order declared; names must be unique. */
struct st_writer {
    struct file_writer file;
    struct st_tensor *tensors; /* name (owned), dtype, shape as declared */
    int64_t count, capacity;
    int64_t data_bytes;    /* of all declared tensors */
    int64_t written_bytes; /* of them so far */
    bool begun;
};
void st_writer_declare(struct st_writer *w, const char *name, enum st_dtype dtype,
                       const int64_t *shape, int64_t rank);
/* Writes the header (with metadata {"format":"pt"}, padded with spaces to 8 bytes). STATUS_INTERNAL
 * for a name that is declared twice, or an order of tensors that leaves one not aligned to its
 * element size (readers map the file). */
enum status st_writer_begin(struct st_writer *w, const char *path, struct err *e);
/* Writes the next bytes of the declared tensors, in order; any split is fine. */
enum status st_writer_data(struct st_writer *w, const void *bytes, int64_t count, struct err *e);
/* STATUS_INTERNAL if not all declared bytes were written. Zeroes the writer, also on error. */
enum status st_writer_commit(struct st_writer *w, struct err *e);
void st_writer_abort(struct st_writer *w);

#endif
