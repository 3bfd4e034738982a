/* load.h - stored tensors into device memory: several threads read and convert, one uploads.
 *
 * Host memory is bounded by a ring of buffers, however large the model is. Internal to
 * engine/model. */
#ifndef PLIMSOLL_ENGINE_MODEL_LOAD_H
#define PLIMSOLL_ENGINE_MODEL_LOAD_H

#include "engine/io/safetensors.h"
#include "engine/tensor/tensor.h"

/* A block of a stored tensor, as large as where it goes. */
struct load_item {
    const struct st_tensor *from;
    struct tensor *to; /* f32, bf16 or f16: stored elements are converted */
    /* The stored element that the block begins with, and how many lie between its rows; 0: it is
     * stored without gaps. */
    int64_t first, pitch;
    /* Quantised on the way: `to` is the buffer of this layout, and the tensor one part of it. NULL:
     * kept as numbers. */
    const struct quant_layout *layout;
    int64_t part;
};

/* Everything, in any number of threads; returns when all of it is on its way. STATUS_UNSUPPORTED
 * for stored types that are not floats. */
enum status load_items(const struct load_item *items, size_t count, struct err *e);

/* Host memory that load_items takes meanwhile, for so many elements of at most so many bytes. */
enum { LOAD_QUANT_BYTES = 2 }; /* of one that is quantised */
int64_t load_staging_bytes(int64_t elements, int64_t element_bytes);

#endif
