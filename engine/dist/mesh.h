/* mesh.h - how the ranks of a run divide the work: by tensor, by data, by layers.
 *
 * Ranks are numbered so that those that talk most are neighbours: the tensor axis is the fastest,
 * then the ranks that share one copy of the parameters (shard), then copies (replicate), then
 * pipeline stages (Narayanan et al. 2021, section 3.1). Every rank is in one group of each axis.
 * Ranks with the same tensor and pipeline place train different rows: the group `data`. */
#ifndef PLIMSOLL_ENGINE_DIST_MESH_H
#define PLIMSOLL_ENGINE_DIST_MESH_H

#include "engine/dist/group.h"

enum mesh_axis { AXIS_TENSOR, AXIS_SHARD, AXIS_REPLICATE, AXIS_PIPELINE, AXIS_COUNT };

/* How many there are along each axis, at least 1; their product is the number of ranks. */
struct mesh_shape {
    int64_t degree[AXIS_COUNT];
};
/* Where a rank is along each axis. */
struct mesh_place {
    int64_t at[AXIS_COUNT];
};
int64_t mesh_world(const struct mesh_shape *shape);
struct mesh_place mesh_place_of(const struct mesh_shape *shape, int64_t rank);
int64_t mesh_rank_of(const struct mesh_shape *shape, const struct mesh_place *place);
/* Ranks that train different rows, and which of them this place is. */
int64_t mesh_data_world(const struct mesh_shape *shape);
int64_t mesh_data_rank(const struct mesh_shape *shape, const struct mesh_place *place);

struct mesh {
    struct comm *comm; /* borrowed: all ranks, and the host channel */
    struct mesh_shape shape;
    struct mesh_place place;
    struct comm_group world;
    struct comm_group axis[AXIS_COUNT];
    struct comm_group data; /* shard and replicate together */
    struct comm_group ends; /* the first and the last stage of a pipeline, for tied embeddings;
                               only they have it, the others' has world 1 */
};
/* Opens all groups; the comm is attached, or a planned one. All ranks together. Close with
 * mesh_close, also after an error. */
enum status mesh_open(struct mesh *m, struct comm *c, struct device *device,
                      const struct mesh_shape *shape, struct err *e);
void mesh_close(struct mesh *m);

/* What this rank measures of losses and tokens counts once for all who computed the same: those of
 * the last stage, the first along the tensor axis. */
bool mesh_counts(const struct mesh *m);

#endif
