/* fuzz_safetensors.c - any bytes as a weights file: opening ends in a set whose every tensor can be
 * read to its last element, or in an error with a text; nothing outside the file is touched. The
 * same bytes are read as blocks of tensors.
 *
 * rooms: engine_io base */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/io/blocks.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* The first and the last element, converted: an offset that is wrong by one leaves the mapping. */
static void read_ends(const struct st_tensor *t) {
    float value = 0;
    struct err e = {0};
    if (t->elements == 0) return;
    if (st_read_f32(t, 0, 1, &value, &e) != STATUS_OK && !e.text[0]) abort();
    err_clear(&e);
    if (st_read_f32(t, t->elements - 1, 1, &value, &e) != STATUS_OK && !e.text[0]) abort();
}

enum { CORNER = 8 };

/* The corner of a tensor that begins where this block does: all of it is there, or what is not is
 * named. */
static void read_corner(const struct block_set *set, const struct stored_block *b) {
    float values[CORNER * CORNER];
    struct err e = {0};
    struct block wanted = {b->tensor, b->stored->rank, b->at.row + b->at.rows,
                           b->at.col + b->at.cols, b->at};
    if (b->at.rows == 0 || b->at.cols == 0) return;
    if (wanted.at.rows > CORNER) wanted.at.rows = CORNER;
    if (wanted.at.cols > CORNER) wanted.at.cols = CORNER;
    if (blocks_read(set, &wanted, values, &e) != STATUS_OK && !e.text[0]) abort();
}

static void read_blocks(const char *path) {
    struct block_set set = {0};
    struct err e = {0};
    if (blocks_open_file(&set, path, &e) != STATUS_OK && !e.text[0]) abort();
    for (int64_t i = 0; e.status == STATUS_OK && i < set.count; i++) {
        read_corner(&set, &set.blocks[i]);
    }
    blocks_close(&set);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    char path[64];
    const int fd = memfd_create("weights", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct st_set set = {0};
    struct err e = {0};
    if (st_open_file(&set, path, &e) != STATUS_OK) {
        if (!e.text[0]) abort();
    }
    for (int64_t i = 0; e.status == STATUS_OK && i < set.count; i++) {
        if (st_find(&set, set.tensors[i].name) != &set.tensors[i]) abort();
        read_ends(&set.tensors[i]);
    }
    st_close(&set);
    read_blocks(path);
    close(fd);
    return 0;
}
