/* group.h - some of the ranks exchanging device memory: sums, pieces, messages.
 *
 * A group is every `stride`-th rank from `first` on, so all groups of a mesh (mesh.h) are made of
 * numbers. GPUs that are all different go through NCCL, everything else through MPI, shared GPUs by
 * way of the host; in a world of one, and in the planner's where nobody is there, every function
 * only counts. All members must make the same calls in the same order. Waits have the deadlines of
 * comm.h, and a lost rank ends them with STATUS_LOST. One thread, the trainer's. */
#ifndef PLIMSOLL_ENGINE_DIST_GROUP_H
#define PLIMSOLL_ENGINE_DIST_GROUP_H

#include "engine/dist/comm.h"

/* Read rank and world; the rest is group's. */
struct comm_group {
    struct comm *comm;
    int64_t rank, world;        /* own place among the members, and how many there are */
    int64_t first, stride;      /* member i is rank first + i * stride of the run */
    struct device_peers *peers; /* from GPU to GPU, or NULL */
    bool owns_peers;
    bool aside; /* between comm_aside_begin and comm_aside_end */
};

/* After comm_attach: every rank of the run calls it at the same time, each with a group that it is
 * a member of, all of the same size. Close with comm_group_close, before comm_detach. */
struct comm_members {
    int64_t first, stride, world;
};
enum status comm_group_open(struct comm_group *out, struct comm *c, struct device *device,
                            const struct comm_members *members, struct err *e);
void comm_group_close(struct comm_group *g);
/* Rank of the run that is member i. */
int64_t comm_group_member(const struct comm_group *g, int64_t i);

/* Memory of the device in which pieces of others arrive. */
struct comm_scratch {
    void *data; /* comm_scratch_bytes of it */
    int64_t bytes;
};
/* How much a world needs for buffers of up to `count` f32; 0 in a world of one, and for GPUs, which
 * need none (NCCL has memory of its own) or take the host's. A pure function. */
int64_t comm_scratch_bytes(enum device_kind kind, int64_t count, int64_t world);

/* What one member owns of `count` elements; pieces begin at whole multiples of `pitch`, and the
 * last members may own nothing. */
struct comm_piece {
    int64_t first, count;
};
struct comm_piece comm_piece_of(int64_t count, int64_t pitch, int64_t rank, int64_t world);
enum { COMM_PITCH = 64 };

/* A buffer of device memory, cut into one contiguous piece a member. */
struct comm_buffer {
    void *data;
    enum dtype dtype; /* f32, bf16, f16; all_gather takes any */
    int64_t count;    /* elements */
    int64_t pitch;    /* of pieces; 0: COMM_PITCH. C: whole rows of C elements */
};

/* Sums are taken in f32 in the order of members and rounded once (NCCL has an order of its own), so
 * every member gets the same bits.
 *
 * data[own piece] = sum over members; what lies outside the own piece is undefined afterwards. */
enum status comm_reduce_scatter(struct comm_group *g, struct device *device,
                                const struct comm_scratch *scratch, const struct comm_buffer *b,
                                struct err *e);
/* Every member's own piece to every member. */
enum status comm_all_gather(struct comm_group *g, struct device *device,
                            const struct comm_buffer *b, struct err *e);
/* data = sum over members: the two above, one after the other. */
enum status comm_all_reduce(struct comm_group *g, struct device *device,
                            const struct comm_scratch *scratch, const struct comm_buffer *b,
                            struct err *e);

/* Device memory to, or from, member `peer`. */
struct comm_message {
    int64_t peer;
    void *data;
    int64_t bytes;
    bool sends;
};
/* All of these messages, which run side by side: done when it returns on the CPU, in order with the
 * device's operations on GPUs. Between two members they arrive in the order of calls. */
enum status comm_exchange(struct comm_group *g, struct device *device,
                          const struct comm_message *messages, int64_t count, struct err *e);

/* ---- beside the computing ------------------------------------------------------------------
 * What is asked of a group between begin and end starts when everything asked of the device before
 * is done, and runs beside what is asked of it afterwards, until comm_aside_wait: then everything
 * asked of the device from there on comes after it. Its buffers must stay untouched meanwhile.
 * Without NCCL the collectives are done at once, and these do nothing. */
enum status comm_aside_begin(struct comm_group *g, struct err *e);
/* *ticket: for the wait; tickets of one group are done in order. */
enum status comm_aside_end(struct comm_group *g, int64_t *ticket, struct err *e);
enum status comm_aside_wait(struct comm_group *g, int64_t ticket, struct err *e);

#endif
