/* comm.h - the ranks of a run talking to each other. World 1 is the same path, as a no-op.
 *
 * There are two channels. The host channel (comm_gather) carries small records through sockets that
 * a thread of each rank serves: no device work holds it up, and it knows within seconds who is gone
 * or stopped. Device data (group.h) go from GPU to GPU through NCCL where every rank has one of its
 * own, else through MPI, or over TCP where MPI has not started the ranks. Every wait has a
 * deadline; a rank that is lost ends the wait on every other with STATUS_LOST, whose text names the
 * rank and the collective. Every rank must make the same calls in the same order. One thread, the
 * trainer's. */
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
    LAUNCHED_BY_NAME /* RANK and WORLD_SIZE, or SLURM_PROCID and SLURM_STEP_NUM_TASKS */
};

/* A process's place among the ranks. */
struct comm_place {
    int64_t rank, world;
    int64_t local_rank, local_world; /* among those on this machine */
    bool local_told;                 /* by the launcher; else the ranks find it out (comm_open) */
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

/* What a rank has exchanged: the books of communication, kept by a planned world too. One row for
 * each kind of collective, distance of members and whether it ran beside computing. */
enum traffic_kind {
    TRAFFIC_REDUCE_SCATTER,
    TRAFFIC_ALL_GATHER,
    TRAFFIC_ALL_REDUCE,
    TRAFFIC_MESSAGE,
    TRAFFIC_KIND_COUNT
};
struct comm_traffic {
    enum traffic_kind kind;
    int64_t first, stride, world; /* of the group */
    bool aside;
    double bytes, calls; /* bytes: of whole buffers, before they are cut */
};
enum { COMM_TRAFFIC_MAX = 64 };

struct wire;
struct mover;
struct device_peers;
/* One rank's end. Read rank and world; the rest is comm's. */
struct comm {
    int64_t rank, world;
    int64_t local_rank, local_world;
    struct wire *wire;   /* the host channel, NULL where nobody else is there */
    struct mover *mover; /* device data by way of the host, NULL where that fails: no_mover */
    struct err no_mover;
    struct device_peers *peers; /* device data from GPU to GPU, or NULL */
    int64_t peers_bytes;        /* what NCCL took of the device, outside the arena */
    struct comm_traffic traffic[COMM_TRAFFIC_MAX];
    int traffic_count;
    int64_t waited_ns; /* for others: in gathers, and in exchanges by way of the host */
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

#endif
