/* tensor.h - matrices in device memory, and the gradients that flow to them.
 *
 * Every tensor is a row-major matrix [rows, cols] without gaps (a vector has one row). Tensors are
 * reference counted: the bytes go back to the arena with the last reference. A gradient is a
 * separate object, so that a tensor's bytes can be gone long before the gradient for it arrives.
 * Records come from pools: a steady training step calls no host allocator. */
#ifndef PLIMSOLL_ENGINE_TENSOR_TENSOR_H
#define PLIMSOLL_ENGINE_TENSOR_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/memory/arena.h"
#include "kernels/device.h"

/* Where tensors live: one device, one arena, the pools. */
struct tensor_space {
    struct device *device;
    struct arena *arena;
    struct tensor *free_tensors;
    struct gradient *free_gradients;
    struct pool_chunk *chunks;
    int64_t live_tensors, live_gradients; /* for leak checks */
};

/* Zeroes the space and takes the device's workspace from the arena. */
enum status tensor_space_init(struct tensor_space *space, struct device *device,
                              struct arena *arena, struct err *e);
/* Every tensor must have been released. */
void tensor_space_release(struct tensor_space *space);

struct tensor {
    struct tensor_space *space;
    enum dtype dtype;
    int64_t rows, cols;
    void *data;                /* device memory */
    struct arena_block *block; /* NULL for a view into `owner` */
    struct tensor *owner;      /* retained while the view lives */
    struct gradient *gradient; /* NULL: nothing upstream wants one */
    int64_t references;
    struct tensor *next_free;
};

/* The gradient of the loss with respect to one tensor, f32, same shape. `value` is NULL until the
 * first contribution arrives (unless it is persistent: a parameter's slice of the gradient buffer,
 * which accumulates over micro-batches). */
struct gradient {
    struct tensor_space *space;
    int64_t rows, cols;
    struct tensor *value;
    bool persistent;
    int64_t references;
    struct gradient *next_free;
};

/* A new tensor, contents undefined; *out holds one reference. STATUS_OOM. */
enum status tensor_new(struct tensor_space *space, enum dtype dtype, int64_t rows, int64_t cols,
                       enum category category, struct tensor **out, struct err *e);
/* Rows [first, first+rows) of another tensor, sharing its bytes; retains it. */
struct tensor *tensor_view_rows(struct tensor *owner, int64_t first, int64_t rows);
/* A view of a flat range as a matrix: elements [first, first + rows*cols). */
struct tensor *tensor_view_flat(struct tensor *owner, int64_t first, int64_t rows, int64_t cols);
struct tensor *tensor_retain(struct tensor *t);
/* NULL is fine. */
void tensor_release(struct tensor *t);
/* Releases and sets to NULL. */
void tensor_drop(struct tensor **t);

int64_t tensor_count(const struct tensor *t);
int64_t tensor_bytes(const struct tensor *t);
float *tensor_f32(const struct tensor *t); /* asserts the dtype */
int32_t *tensor_i32(const struct tensor *t);
struct matrix tensor_matrix(const struct tensor *t);

enum status tensor_fill_zero(struct tensor *t, struct err *e);
/* The whole tensor from, or to, host memory of tensor_bytes. */
enum status tensor_upload(struct tensor *t, const void *host, struct err *e);
enum status tensor_download(const struct tensor *t, void *host, struct err *e);

/* Gives `t` a gradient object if it has none. */
void tensor_want_gradient(struct tensor *t);
struct gradient *gradient_retain(struct gradient *g);
void gradient_release(struct gradient *g);

/* Where an operation's backward may write its contribution: *value is [rows, cols] f32, and
 * *accumulate says whether to add to it or to overwrite it. A value shared with another gradient is
 * copied first. */
enum status gradient_target(struct gradient *g, struct tensor **value, bool *accumulate,
                            struct err *e);
/* Adds a whole tensor; takes a reference instead of copying when nothing is there yet. */
enum status gradient_add(struct gradient *g, struct tensor *contribution, struct err *e);
/* Takes the value out, *out may become NULL. The caller owns the reference. Not for persistent
 * gradients. */
struct tensor *gradient_take(struct gradient *g);

#endif
