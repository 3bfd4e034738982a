/* comm.h - the ranks of a run talking to each other. World 1 is the same path, as a no-op.
 *
 * There are two channels. The host channel (comm_gather) carries small records through sockets that
 * a thread of each rank serves: no device work holds it up, and it knows within seconds who is gone
 * or stopped. Device data (the other collectives) go from GPU to GPU through NCCL where every rank
 * has one of its own, and else through MPI. Every wait has a deadline; a rank
 * that is lost ends the wait on every other with STATUS_LOST, whose text names the rank and the
 * collective. Every rank must make the same calls in the same order. One thread, the trainer's. */
#ifndef PLIMSOLL_ENGINE_DIST_COMM_H
#define PLIMSOLL_ENGINE_DIST_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/device.h"

enum { COMM_WORLD_MAX = 4096 };

/* Who started this process as a rank. */
enum comm_launcher {
    LAUNCHED_ALONE,  /* by nobody: it is the only rank */
    LAUNCHED_BY_MPI, /* mpirun, or srun with its MPI plugin */
    LAUNCHED_BY_NAME /* RANK and WORLD_SIZE, or SLURM_PROCID and SLURM_NTASKS */
};

/* A process's place among the ranks. */
struct comm_place {
    int64_t rank, world;
    int64_t local_rank, local_world; /* among those on this machine */
    bool elsewhere;                  /* some may be on other machines */
    enum comm_launcher launcher;
};
/* From what launchers set: OMPI_COMM_WORLD_* and PMI_*; RANK, WORLD_SIZE, LOCAL_RANK and the like;
 * SLURM_*. Without any of them the place is rank 0 of 1. STATUS_INVALID for a half or impossible
 * one, naming the variable. */
enum status comm_place_read(struct comm_place *place, struct err *e);

struct comm_options {
    const char *folder;  /* the run directory: ranks find each other there */
    int64_t silence_ms;  /* a rank that gives no sign of life for so long is lost */
    int64_t patience_ms; /* a rank that lives but does not join a collective for so long is lost */
    /* Told once, by another thread and at once, that a rank is lost; the trainer's own thread then
     * has COMM_GRACE_MS to end the process with what its next collective returns, or the process is
     * ended with exit_code. NULL: nobody is told. */
    void (*lost)(void *context, const struct err *why);
    void *context;
    int exit_code;
};
enum { COMM_SILENCE_MS = 8000, COMM_PATIENCE_MS = 600000, COMM_GRACE_MS = 3000 };

struct wire;
struct mover;
struct device_peers;
/* One rank's end. Read rank and world; the rest is comm's. */
struct comm {
    int64_t rank, world;
    int64_t local_rank, local_world;
    struct wire *wire;   /* the host channel, NULL where nobody else is there */
    struct mover *mover; /* device data through MPI, NULL where there is none: no_mover says why */
    struct err no_mover;
    struct device_peers *peers; /* device data from GPU to GPU, or NULL */
    int64_t peers_bytes;        /* what NCCL took of the device, outside the arena */
    struct comm_options options;
    bool abandoned;
    char doing[96]; /* see comm_doing */
};

/* Joins the others, who must come within a minute. Caller frees with comm_close. */
enum status comm_open(struct comm **out, const struct comm_place *place,
                      const struct comm_options *options, struct err *e);
/* Before the first collective of device data: chooses their way, the same on all ranks. device is
 * where all of them will be, and must be closed after comm_detach. STATUS_UNSUPPORTED where there
 * is no way, with what is missing. */
enum status comm_attach(struct comm *c, struct device *device, struct err *e);
/* The device is about to be closed. */
void comm_detach(struct comm *c);
/* For the planner: rank `rank` of `world`, and nobody is there. A gather repeats the caller's own
 * record; nothing else happens. */
enum status comm_open_planned(struct comm **out, int64_t rank, int64_t world, struct err *e);
/* Leaves in good order, when the others do. NULL is fine. */
void comm_close(struct comm *c);
/* After a failure: tells the others why (they fail with the same status and "rank N: " in front of
 * the text), and leaves without waiting for anybody. The process must end soon; comm_close after it
 * frees. */
void comm_abandon(struct comm *c, const struct err *why);
/* Names what the next collectives are for, in errors: "step 12". Cut at 95 bytes. */
void comm_doing(struct comm *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* From here on a rank that lives may take so long to come. */
void comm_set_patience(struct comm *c, int64_t patience_ms);
/* STATUS_LOST if a rank is known to be lost, without waiting: for long work between collectives. */
enum status comm_check(const struct comm *c, struct err *e);

enum { COMM_RECORD_MAX = 1 << 20 };
/* Host channel: every rank's record to every rank. mine [bytes], all [world][bytes], in order of
 * ranks; bytes is the same on all ranks, at most COMM_RECORD_MAX. */
enum status comm_gather(struct comm *c, const void *mine, int64_t bytes, void *all, struct err *e);
/* All ranks are here. */
enum status comm_barrier(struct comm *c, struct err *e);

/* ---- device data -------------------------------------------------------------------------------
 * A buffer of `count` elements is cut into one contiguous piece a rank (comm_piece). Sums are taken
 * in the order of ranks, so every rank gets the same bits, and the same as the last time. */

/* Memory of the device in which pieces of others arrive. */
struct comm_scratch {
    void *data; /* comm_scratch_bytes of it */
    int64_t bytes;
};
/* How much a world needs for buffers of up to `count` f32; 0 in a world of one, and for GPUs, which
 * need none (NCCL has memory of its own) or take the host's. A pure function. */
int64_t comm_scratch_bytes(enum device_kind kind, int64_t count, int64_t world);

/* What one rank owns of `count` elements; pieces begin at whole multiples of `pitch`, and the last
 * ranks may own nothing. */
struct comm_piece {
    int64_t first, count;
};
struct comm_piece comm_piece_of(int64_t count, int64_t pitch, int64_t rank, int64_t world);
enum { COMM_PITCH = 64 };

/* data[own piece] = sum over ranks; what lies outside the own piece is undefined afterwards. */
enum status comm_reduce_scatter(struct comm *c, struct device *device,
                                const struct comm_scratch *scratch, float *data, int64_t count,
                                struct err *e);
/* A part of a buffer of which no rank has the whole: elements first..first + count of it. */
struct comm_slice {
    const float *from;
    int64_t first, count;
};
/* Of that buffer of `count` elements: the rank's own piece. */
struct comm_owned {
    int64_t count;
    float *piece;
};
/* piece += sum over ranks of their slices, on each rank that owns some of these elements. */
enum status comm_reduce_to_owners(struct comm *c, struct device *device,
                                  const struct comm_scratch *scratch,
                                  const struct comm_slice *slice, const struct comm_owned *owned,
                                  struct err *e);
/* Every rank's own piece to every rank; elements of `element_bytes`. */
enum status comm_all_gather(struct comm *c, struct device *device, void *data,
                            int64_t element_bytes, int64_t count, struct err *e);
/* data = sum over ranks: the two above, one after the other. */
enum status comm_all_reduce(struct comm *c, struct device *device,
                            const struct comm_scratch *scratch, float *data, int64_t count,
                            struct err *e);

#endif
