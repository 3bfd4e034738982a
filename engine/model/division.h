/* division.h - which part of each layer is this rank's, where ranks share every layer (tensor
 * parallelism, Shoeybi et al. 2019, section 3).
 *
 * Query heads, key/value heads, feed-forward columns and vocabulary are cut into as many runs as
 * there are ranks. Where there are fewer key/value heads than ranks, neighbours have the same one.
 * Heads and columns divide evenly or are refused; the last run of the vocabulary may be shorter. */
#ifndef PLIMSOLL_ENGINE_MODEL_DIVISION_H
#define PLIMSOLL_ENGINE_MODEL_DIVISION_H

#include "engine/dist/mesh.h"
#include "engine/model/config.h"

struct cut {
    int64_t first, count, whole;
};
struct division {
    int64_t rank, world;
    struct cut heads, kv_heads, width, vocab; /* width: of the feed-forward */
    int64_t kv_sharers; /* neighbouring ranks that have the same key/value heads */
};

/* STATUS_INVALID with the nearest parallel.tensor_parallel_degree that the model can be cut by.
 * mesh NULL: the whole model. */
enum status division_of(struct division *out, const struct model_config *config,
                        const struct mesh *mesh, struct err *e);

/* Ranks that share this rank's layers; NULL: it has them alone. */
struct comm_group *division_group(struct mesh *mesh);

#endif
