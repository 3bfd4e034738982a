/* tensor.h - matrices in device memory, and the gradients that flow to them.
 *
 * Every tensor is a row-major matrix [rows, cols]; `ld` elements lie between its rows. What lies
 * behind the columns of each row is its *tail*: room in which a linear layer keeps its LoRA
 * products, so that they ride along in one product (op_linear.c). Tensors are reference counted:
 * the bytes go back to the arena with the last reference. A gradient is a separate object, so that
 * a tensor's bytes can be gone long before the gradient for it arrives. A *recipe* says how to make
 * a tensor again from others that are kept anyway; it is kept in the tensor's place. Records come
 * from pools: a steady training step calls no host allocator. */
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
    struct recipe *free_recipes;
    struct pool_chunk *chunks;
    struct stash_pool *stashes; /* of stash.c: NULL before the first */
    int64_t host_bytes;         /* that stashes took; they keep it until the space is released */
    int64_t live_tensors, live_gradients, live_recipes, live_stashes; /* for leak checks */
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
    int64_t ld;                /* elements between rows, >= cols */
    void *data;                /* device memory */
    struct arena_block *block; /* NULL for a view into `owner` */
    struct tensor *owner;      /* retained while the view lives */
    struct gradient *gradient; /* NULL: nothing upstream wants one */
    struct recipe *recipe;     /* NULL: these bytes are all there is */
    int64_t gradient_tail;     /* what its gradient's value will need: see tensor_want_tail */
    int64_t references;
    struct tensor *next_free;
};

/* How to make a tensor's values again: `make` writes exactly what the forward pass wrote, from
 * tensors that stay alive for it. */
enum { RECIPE_FROM_MAX = 3, RECIPE_EXTRA_MAX = 16 };
struct recipe {
    struct tensor_space *space;
    enum status (*make)(const struct recipe *recipe, struct tensor *into, struct err *e);
    struct tensor *from[RECIPE_FROM_MAX];
    struct recipe *inner; /* of what `make` makes first, or NULL */
    enum dtype dtype;
    int64_t rows, cols;
    _Alignas(8) unsigned char extra[RECIPE_EXTRA_MAX]; /* the operation's own numbers */
    int64_t references;
    struct recipe *next_free;
};

/* The gradient of the loss with respect to one tensor, same shape; of the tensor's dtype for
 * activations, f32 for parameters. `value` is NULL until the first contribution arrives (unless it
 * is persistent: a parameter's slice of the gradient buffer, which accumulates over micro-batches).
 * Its value always has room for `tail` elements behind each row. */
struct gradient {
    struct tensor_space *space;
    enum dtype dtype;
    int64_t rows, cols, tail;
    struct tensor *value;
    bool persistent;
    bool stale; /* persistent: what the value holds is over, and the next to write overwrites it */
    int64_t references;
    struct gradient *next_free;
};

/* What a new tensor is. With a tail the rows are padded to whole 64 elements. */
struct shape {
    enum dtype dtype;
    int64_t rows, cols;
    int64_t tail; /* elements behind each row, 0: none */
};
enum { TAIL_PITCH = 64 };

/* A new tensor, contents undefined; *out holds one reference. STATUS_OOM. */
enum status tensor_make(struct tensor_space *space, const struct shape *shape,
                        enum category category, struct tensor **out, struct err *e);
/* The same without a tail. */
enum status tensor_new(struct tensor_space *space, enum dtype dtype, int64_t rows, int64_t cols,
                       enum category category, struct tensor **out, struct err *e);
/* An activation: of the device's activation dtype, in the category of activations. */
enum status tensor_activation(struct tensor_space *space, int64_t rows, int64_t cols, int64_t tail,
                              struct tensor **out, struct err *e);

/* An activation that is never read or written: shape and gradient only. */
struct tensor *tensor_without_bytes(struct tensor_space *space, int64_t rows, int64_t cols);

/* Bytes come and go: `data` is NULL until somebody who has them sets it, and again when they are
 * gone. No gradient, no views while there are none. */
struct tensor *tensor_hollow(struct tensor_space *space, enum dtype dtype, int64_t rows,
                             int64_t cols);

/* Rows [first, first+rows) of another tensor, sharing its bytes; retains it. */
struct tensor *tensor_view_rows(struct tensor *owner, int64_t first, int64_t rows);
/* A view of a flat range as a matrix: elements [first, first + rows*cols). The owner has no gaps
 * between its rows. */
struct tensor *tensor_view_flat(struct tensor *owner, int64_t first, int64_t rows, int64_t cols);
/* A block of a matrix, tail included: rows from first_row, columns from first_col. */
struct tensor *tensor_view_block(struct tensor *owner, int64_t first_row, int64_t rows,
                                 int64_t first_col, int64_t cols);
/* Other elements in the same bytes, from a byte offset that suits them. The owner has one row. */
struct tensor *tensor_view_bytes(struct tensor *owner, int64_t first_byte, enum dtype dtype,
                                 int64_t rows, int64_t cols);
struct tensor *tensor_retain(struct tensor *t);
/* NULL is fine. */
void tensor_release(struct tensor *t);
/* Releases and sets to NULL. */
void tensor_drop(struct tensor **t);

int64_t tensor_count(const struct tensor *t);
/* Without what lies between the rows. */
int64_t tensor_bytes(const struct tensor *t);
/* Elements behind each row that belong to it. */
int64_t tensor_tail(const struct tensor *t);
float *tensor_f32(const struct tensor *t); /* asserts the dtype */
int32_t *tensor_i32(const struct tensor *t);
struct matrix tensor_matrix(const struct tensor *t);
/* The matrix that starts at this element. */
struct matrix tensor_matrix_at(const struct tensor *t, int64_t row, int64_t col);

/* Every row; tails are left alone (or filled too, where that is cheaper). */
enum status tensor_fill_zero(struct tensor *t, struct err *e);
/* to = from, same shape and dtype; tails are not copied. */
enum status tensor_copy(struct tensor *to, const struct tensor *from, struct err *e);
/* out = a + b; same shapes and dtype, out may be a or b. */
enum status tensor_add(struct tensor *out, const struct tensor *a, const struct tensor *b,
                       struct err *e);
/* to = scale * from with conversion, same shape. */
enum status tensor_convert(struct tensor *to, const struct tensor *from, float scale,
                           struct err *e);
/* The whole tensor from, or to, host memory of tensor_bytes: rows without gaps. */
enum status tensor_upload(struct tensor *t, const void *host, struct err *e);
enum status tensor_download(const struct tensor *t, void *host, struct err *e);

/* A new recipe for `t` (which may have none yet), to be filled by the caller; it takes references
 * of its own to the tensors given. NULLs are skipped. */
struct recipe *recipe_attach(struct tensor *t, struct tensor *const *from, int count);
struct recipe *recipe_retain(struct recipe *r);
/* NULL is fine. */
void recipe_release(struct recipe *r);
/* Makes the tensor again, without tail and without gradient. */
enum status recipe_make(const struct recipe *r, struct tensor **out, struct err *e);

/* A tensor that waits in host memory. stash_send begins the copy, which runs beside what is asked
 * for next: until device_copies_wait the bytes of `t`, which is no view, have to stay.
 * STATUS_DEVICE when the host has no room. */
struct stash;
enum status stash_send(const struct tensor *t, struct stash **out, struct err *e);
/* Begins to bring it back, into a new tensor; nothing if that was done before. */
enum status stash_recall(struct stash *s, struct err *e);
/* The tensor, to be used at once; recalled now if nobody did. Once. The caller owns *out. */
enum status stash_take(struct stash *s, struct tensor **out, struct err *e);
/* NULL is fine. */
void stash_release(struct stash *s);

/* Gives `t` a gradient object if it has none. */
void tensor_want_gradient(struct tensor *t);
/* Whoever makes `t` says that the value of its gradient, should there be one, needs a tail. */
void tensor_want_tail(struct tensor *t, int64_t tail);
struct gradient *gradient_retain(struct gradient *g);
void gradient_release(struct gradient *g);

/* Where an operation's backward may write its contribution: *value is [rows, cols] with the tail
 * that was asked for, and *accumulate says whether to add to it or to overwrite it. A value shared
 * with another gradient is copied first. */
enum status gradient_target(struct gradient *g, struct tensor **value, bool *accumulate,
                            struct err *e);
/* Adds a whole tensor; takes a reference instead of copying when nothing is there yet and it has
 * the tail that is needed. */
enum status gradient_add(struct gradient *g, struct tensor *contribution, struct err *e);
/* Adds the column sums of dy: the gradient of a bias [1,cols]. NULL: nobody wants it. */
enum status gradient_add_columns(struct gradient *g, const struct tensor *dy, struct err *e);
/* Takes the value out, *out may become NULL. The caller owns the reference. Not for persistent
 * gradients. */
struct tensor *gradient_take(struct gradient *g);

#endif
