/* run_ranks.c - how a run becomes one of many ranks: joining the others, taking turns where they
 * would do the same work, and saying it when one is lost.
 *
 * Rank 0 speaks for all where one is enough: it writes checkpoints, results and samples. */
#include <poll.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/io/folder.h"
#include "engine/rundir.h"
#include "engine/train/corpus_report.h"
#include "engine/train/run_parts.h"

/* Reading a large data set for the first time takes hours; ranks wait for the one that does it as
 * long as it lives. */
enum { READING_PATIENCE_MS = 24 * 3600 * 1000 };
/* So long a rank of an earlier start may need to end on a machine far away; one process alone has
 * only to let pass who looks at its lock. */
enum { CLAIM_MANY_MS = 20000, CLAIM_ALONE_MS = 200, CLAIM_AGAIN_MS = 20 };

enum status run_claim(struct run *r, struct err *e) {
    const int64_t patience_ms = r->place.world > 1 ? CLAIM_MANY_MS : CLAIM_ALONE_MS;
    const int64_t began = clock_steady_ns();
    enum status status;
    while ((status = rundir_claim(r->folder, r->place.rank, &r->lock_fd, e)) == STATUS_CONFLICT) {
        if ((clock_steady_ns() - began) / 1000000 > patience_ms || r->stop()) break;
        err_clear(e);
        (void)poll(NULL, 0, CLAIM_AGAIN_MS);
    }
    return status;
}

static enum status check_world(const struct run *r, struct err *e) {
    const long long wanted = (long long)r->spec.parallel.ranks, there = (long long)r->place.world;
    if (wanted == there) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, "parallel.ranks",
                         "parallel.ranks is %lld and %lld %s started: start the run with mpirun -n "
                         "%lld plimsoll-engine run %s, or set parallel.ranks to %lld (the global "
                         "batch is then another one)",
                         wanted, there, there == 1 ? "process was" : "processes were", wanted,
                         r->folder, there);
}

/* On the channel's own thread, and at once: the process may be ended before the trainer hears. */
static void say_lost(void *context, const struct err *why) {
    struct run *const r = context;
    if (atomic_exchange(&r->told, true)) return;
    report_error(&r->log, why);
}

enum status run_join(struct run *r, struct err *e) {
    const struct comm_options options = {.folder = r->folder,
                                         .silence_ms = (int64_t)(r->spec.parallel.silence_s * 1000),
                                         .patience_ms =
                                             (int64_t)(r->spec.parallel.patience_s * 1000),
                                         .lost = say_lost,
                                         .context = r,
                                         .exit_code = RUN_EXIT_LOST};
    TRY(check_world(r, e));
    r->options.rank = r->place.rank;
    TRY(comm_open(&r->comm, &r->place, &options, e));
    r->place.local_rank = r->comm->local_rank;
    r->place.local_world = r->comm->local_world;
    return STATUS_OK;
}

static enum status read_corpus(struct run *r, struct err *e) {
    struct corpus_progress_report progress = {.log = &r->log};
    const struct corpus_watch watch = {&progress, corpus_report_progress};
    return corpus_open(&r->corpus, &r->spec, &r->config, &watch, e);
}

/* Rank 0 encodes the rows, then the first rank of each other machine, which finds them where the
 * machines share a cache; the others find them in the cache of their machine. */
static enum status read_in_turn(struct run *r, struct err *e) {
    struct comm *const c = r->comm;
    comm_doing(c, "reading the data");
    comm_set_patience(c, READING_PATIENCE_MS);
    const int turn = c->rank == 0 ? 0 : c->local_rank == 0 ? 1 : 2;
    for (int now = 0; now < 3; now++) {
        if (now == turn) TRY(read_corpus(r, e));
        TRY(comm_barrier(c, e));
    }
    comm_set_patience(c, (int64_t)(r->spec.parallel.patience_s * 1000));
    return STATUS_OK;
}

enum status run_read_corpus(struct run *r, struct err *e) {
    const bool many = r->comm && r->comm->world > 1;
    TRY(many ? read_in_turn(r, e) : read_corpus(r, e));
    corpus_take_rank(&r->corpus, session_data_rank(&r->spec, r->place.rank));
    return STATUS_OK;
}

/* What a crash left of a checkpoint that was being written: all ranks of this run are here, so
 * nobody writes there. */
static enum status sweep(const struct run *r, struct err *e) {
    char *const folder = rundir_checkpoints(r->folder);
    const enum status status = run_leads(r) ? folder_sweep(folder, e) : STATUS_OK;
    mem_free(folder);
    return status;
}

/* All continue from the same checkpoint: the one that rank 0 finds. */
enum status run_load_checkpoint(struct run *r, struct err *e) {
    int64_t step = 0, damaged = 0;
    comm_doing(r->comm, "resuming");
    TRY(sweep(r, e));
    TRY(checkpoint_find(r->comm, r->folder, &step, &damaged, e));
    if (damaged > 0 && r->place.rank == 0) {
        TRY(report_log(&r->log, "warn",
                       "a damaged checkpoint was passed over: its manifest does not hold", e));
    }
    return step > 0 ? checkpoint_load(&r->session, r->folder, step, &r->state, e) : STATUS_OK;
}

bool run_leads(const struct run *r) {
    return r->place.rank == 0;
}
