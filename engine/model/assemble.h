/* assemble.h - whole tensors in one file, put together from the blocks that ranks have written.
 *
 * No rank needs to have a tensor, let alone the model: rows go from mapped files through two small
 * buffers to the new one. */
#ifndef PLIMSOLL_ENGINE_MODEL_ASSEMBLE_H
#define PLIMSOLL_ENGINE_MODEL_ASSEMBLE_H

#include "engine/io/blocks.h"
#include "engine/model/model.h"

/* The file at `path` gets all of these tensors, in this order, as ST_F32 or ST_BF16. Host memory: 8
 * bytes for each of a million elements, or of one row where that is longer. STATUS_INVALID names
 * what the blocks lack. */
enum status weights_assemble(const struct param *tensors, size_t count,
                             const struct block_set *blocks, enum st_dtype dtype, const char *path,
                             struct err *e);

#endif
