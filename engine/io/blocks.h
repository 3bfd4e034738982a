/* blocks.h - safetensors files that hold blocks of tensors, so that a tensor may be spread over any
 * number of files and read back in any other division.
 *
 * A stored tensor that is all of a tensor has its plain name; a part of one says which in its name,
 * as Python would slice it: "x.weight[64:128,0:512]", of a vector "x.weight[64:128]". Its shape is
 * that of the block, its type F32. So any reader of safetensors can put a tensor together. No two
 * blocks of a tensor overlap. */
#ifndef PLIMSOLL_ENGINE_IO_BLOCKS_H
#define PLIMSOLL_ENGINE_IO_BLOCKS_H

#include "engine/io/safetensors.h"

/* Rows and columns of a tensor; a vector has one column, its elements are rows. */
struct block_place {
    int64_t row, col, rows, cols;
};
/* A block of a named tensor, and the size of that tensor. */
struct block {
    const char *tensor;
    int64_t rank; /* 1 or 2 */
    int64_t whole_rows, whole_cols;
    struct block_place at;
};

/* Elements first..first + count, row by row, of a matrix with so many columns: up to
 * BLOCK_CUTS_MAX rectangles in that order; the end of a row, rows, the start of a row. Returns how
 * many. */
enum { BLOCK_CUTS_MAX = 3 };
int block_cut(int64_t first, int64_t count, int64_t cols, struct block_place out[BLOCK_CUTS_MAX]);
/* Declares the block under its name. */
void block_declare(struct st_writer *w, const struct block *b);

/* The blocks of some files, by tensor and place. */
struct stored_block {
    char *tensor; /* owned: the name without the place */
    bool placed;  /* false: it is all of the tensor */
    struct block_place at;
    const struct st_tensor *stored;
};
struct block_set {
    struct st_set files;
    struct stored_block *blocks;
    int64_t count, tensors; /* tensors: different names */
};
/* All files of the folder named <prefix>*.safetensors, mapped. STATUS_NOT_FOUND if there is none;
 * STATUS_INVALID for a place that is no place or not the stored shape, for another type than F32,
 * and for blocks that overlap. Close with blocks_close, also after an error. */
enum status blocks_open(struct block_set *set, const char *folder, const char *prefix,
                        struct err *e);
/* One file. */
enum status blocks_open_file(struct block_set *set, const char *path, struct err *e);
void blocks_close(struct block_set *set);

/* Elements of a stored block that follow each other in the file and in the wanted block. */
struct block_run {
    const struct st_tensor *stored;
    int64_t first, count; /* in it */
    int64_t at;           /* of the wanted block, row by row */
};
typedef enum status block_visit(void *context, const struct block_run *run, struct err *e);
/* Everything that was wanted, each element once, in any order. STATUS_INVALID names the tensor and
 * its first row of which something is missing, or the block that does not fit the tensor. */
enum status blocks_each_run(const struct block_set *set, const struct block *wanted,
                            block_visit *visit, void *context, struct err *e);
/* The same into host memory. out [rows * cols of the wanted block] */
enum status blocks_read(const struct block_set *set, const struct block *wanted, float *out,
                        struct err *e);

#endif
