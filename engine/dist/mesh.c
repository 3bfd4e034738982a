/* mesh.c - see mesh.h: arithmetic on ranks, and one group an axis.
 *
 * Groups are opened in one order on all ranks, because opening one is a meeting of all. */
#include "engine/dist/mesh.h"

#include "base/mem.h"

int64_t mesh_world(const struct mesh_shape *shape) {
    int64_t world = 1;
    for (int axis = 0; axis < AXIS_COUNT; axis++) {
        world *= shape->degree[axis];
    }
    return world;
}

/* Ranks from one place along the axis to the next. */
static int64_t stride_of(const struct mesh_shape *shape, int axis) {
    int64_t stride = 1;
    for (int i = 0; i < axis; i++) {
        stride *= shape->degree[i];
    }
    return stride;
}

struct mesh_place mesh_place_of(const struct mesh_shape *shape, int64_t rank) {
    struct mesh_place place;
    for (int axis = 0; axis < AXIS_COUNT; axis++) {
        place.at[axis] = rank / stride_of(shape, axis) % shape->degree[axis];
    }
    return place;
}

int64_t mesh_rank_of(const struct mesh_shape *shape, const struct mesh_place *place) {
    int64_t rank = 0;
    for (int axis = 0; axis < AXIS_COUNT; axis++) {
        rank += place->at[axis] * stride_of(shape, axis);
    }
    return rank;
}

int64_t mesh_data_world(const struct mesh_shape *shape) {
    return shape->degree[AXIS_SHARD] * shape->degree[AXIS_REPLICATE];
}

int64_t mesh_data_rank(const struct mesh_shape *shape, const struct mesh_place *place) {
    return place->at[AXIS_REPLICATE] * shape->degree[AXIS_SHARD] + place->at[AXIS_SHARD];
}

static enum status open_axis(struct mesh *m, struct device *device, int axis, struct err *e) {
    const int64_t stride = stride_of(&m->shape, axis);
    const struct comm_members members = {.first = m->comm->rank - m->place.at[axis] * stride,
                                         .stride = stride,
                                         .world = m->shape.degree[axis]};
    return comm_group_open(&m->axis[axis], m->comm, device, &members, e);
}

static enum status open_data(struct mesh *m, struct device *device, struct err *e) {
    const int64_t stride = stride_of(&m->shape, AXIS_SHARD);
    const struct comm_members members = {.first = m->comm->rank -
                                                  mesh_data_rank(&m->shape, &m->place) * stride,
                                         .stride = stride,
                                         .world = mesh_data_world(&m->shape)};
    return comm_group_open(&m->data, m->comm, device, &members, e);
}

/* Ranks in between have a group of their own alone, so that all open at the same time. */
static enum status open_ends(struct mesh *m, struct device *device, struct err *e) {
    const int64_t stages = m->shape.degree[AXIS_PIPELINE], at = m->place.at[AXIS_PIPELINE];
    const bool is_end = stages > 1 && (at == 0 || at == stages - 1);
    const int64_t stride = stride_of(&m->shape, AXIS_PIPELINE) * (stages - 1);
    const struct comm_members alone = {.first = m->comm->rank, .stride = 1, .world = 1};
    const struct comm_members ends = {
        .first = at == 0 ? m->comm->rank : m->comm->rank - stride, .stride = stride, .world = 2};
    return comm_group_open(&m->ends, m->comm, device, is_end ? &ends : &alone, e);
}

enum status mesh_open(struct mesh *m, struct comm *c, struct device *device,
                      const struct mesh_shape *shape, struct err *e) {
    const struct comm_members all = {.first = 0, .stride = 1, .world = c->world};
    ASSERT(mesh_world(shape) == c->world);
    *m = (struct mesh){.comm = c, .shape = *shape, .place = mesh_place_of(shape, c->rank)};
    TRY(comm_group_open(&m->world, c, device, &all, e));
    for (int axis = 0; axis < AXIS_COUNT; axis++) {
        TRY(open_axis(m, device, axis, e));
    }
    TRY(open_data(m, device, e));
    return open_ends(m, device, e);
}

void mesh_close(struct mesh *m) {
    comm_group_close(&m->ends);
    comm_group_close(&m->data);
    for (int axis = AXIS_COUNT - 1; axis >= 0; axis--) {
        comm_group_close(&m->axis[axis]);
    }
    comm_group_close(&m->world);
}

bool mesh_counts(const struct mesh *m) {
    return m->place.at[AXIS_TENSOR] == 0 &&
           m->place.at[AXIS_PIPELINE] == m->shape.degree[AXIS_PIPELINE] - 1;
}
