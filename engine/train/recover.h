/* recover.h - what a run does when memory is short, or becomes less: trim, the next remedy, and the
 * same step again in the same process.
 *
 * Memory is reserved before each micro-step, when all ranks agree that they have it (agree.h); a
 * micro-step that could not allocate all the same leaves nothing behind. The step is then begun
 * again: same samples, same random keys, gradients anew, another layout (remedy.h). Parameters
 * change only in the update after it, which allocates nothing, so a lack of memory costs no step
 * and changes no loss. Every change is an event, and can be taken back. */
#ifndef PLIMSOLL_ENGINE_TRAIN_RECOVER_H
#define PLIMSOLL_ENGINE_TRAIN_RECOVER_H

#include "engine/train/agree.h"
#include "engine/train/remedy.h"

struct run;

struct recovery {
    struct layout asked; /* by the spec and, later, the operator; run.layout is the one in use */
    struct agree_post *posts; /* [world] of the last agreement */
    struct agreement last;
    int64_t epoch;         /* see agree_post */
    int64_t tries;         /* shortages in the step at hand */
    int64_t waits;         /* in it, for memory to come back */
    int64_t decided_at;    /* the capacity for which the layout was chosen */
    int64_t changed_at;    /* the step at which it was */
    int64_t undo_wait;     /* steps before a layout is tried to be taken back */
    unsigned refused;      /* kinds that the operator does not want: 1 << kind */
    uint64_t control_mark; /* of rundir_control_read */
    bool running;          /* the session is there, with its weights */
    bool capped;           /* the operator has set a cap */
    bool failed;           /* this rank's micro-step failed: `why` says how */
    bool snapshot;         /* the operator wants one of the next step */
    struct err why;
    int64_t reported_failures; /* arena_stats.failures when an oom event was last written */
};

/* After the plan, before the first step: finds a layout that fits, if what is asked for does not.
 * STATUS_OOM when there is none, or the spec does not allow a change. */
enum status recover_begin(struct run *r, struct err *e);
void recover_end(struct run *r);

/* Between two steps: the operator's wishes (stop, cap, undo, remedy), and whether remedies can be
 * taken back. */
enum status recover_between(struct run *r, bool *stopping, struct err *e);

/* Before micro-batch `micro` of the step, and once after the last one: reserves and agrees. The
 * number of micro-batches of the rank that has most is r->recovery.last.rounds. STATUS_OOM: call
 * recover_again, and begin the step again. */
enum status recover_ready(struct run *r, int64_t micro, struct err *e);
/* After an evaluation or a sample that ended with this status: where ranks go through it together
 * (zero_stage 3, a pipeline), no rank can begin it again by itself, and STATUS_OOM becomes
 * STATUS_LOST in *why too. */
enum status recover_together(const struct run *r, enum status status, struct err *why);
/* Instead of it, on a rank that has no micro-batch left (step_idle). */
enum status recover_idle(struct run *r, bool last, struct err *e);
/* Trains r->batch. A lack of memory is no error here: the next recover_ready tells the others.
 * STATUS_LOST where it strikes in the middle of a sum over all ranks (shard_has_marks). */
enum status recover_train(struct run *r, const struct step_options *options, struct step_sums *sums,
                          struct err *e);
/* Instead of both for all micro-batches of a step, where the model is a stage of a pipeline: what
 * the whole step needs was reserved by recover_ready(r, 0), and STATUS_OOM becomes STATUS_LOST. */
enum status recover_pipeline(struct run *r, const struct step_options *options,
                             struct step_sums *sums, struct err *e);
/* After STATUS_OOM: trims, or changes the layout, or waits for the operator's answer. An error ends
 * the run: STATUS_OOM when nothing is left to try, STATUS_INTERRUPTED when it was stopped while it
 * waited. */
enum status recover_again(struct run *r, struct err *e);
/* The step is done. */
void recover_done(struct run *r);

/* What evaluation, samples, checkpoints and exports do about a lack of memory: `kind` is what they
 * may change, REMEDY_TRIM nothing. `tries` counts from 0. STATUS_OK: try again. Else the shortage,
 * told and logged: the run goes on without this one where it can. */
enum status recover_beside(struct run *r, enum remedy_kind kind, int64_t tries, struct err *why);

/* ---- for the files of recover_*.c ---- */

/* Bytes that could be backed, the least of all ranks. */
enum status recover_available(struct run *r, int64_t *bytes, struct err *e);
/* Finds rungs from `from`, all ranks the same ones, each with its own plan of them; list->fits: on
 * every rank. Release the list. */
enum status recover_find(struct run *r, const struct layout *from, int64_t capacity,
                         struct remedy_list *list, struct err *e);
/* The same for several ranks (recover_ranks.c). */
enum status recover_find_together(struct run *r, const struct plan_request *request,
                                  const struct layout *from, int64_t capacity,
                                  struct remedy_list *list, struct err *e);
/* Makes `to` the layout in use; its plan is made. Says nothing. */
enum status recover_take(struct run *r, const struct layout *to, struct err *e);
/* Takes the rungs of a list up to `last`, and tells each kind. */
enum status recover_climb(struct run *r, const struct remedy_list *list, int64_t last,
                          const char *state, const char *why, struct err *e);
/* memory.on_oom: 'a'uto, as'k', 'o'ff. */
bool recover_asks(const struct run *r);
bool recover_is_off(const struct run *r);
/* Offers the rungs and waits for control.json. STATUS_OK: one was taken, or memory is there again.
 */
enum status recover_ask(struct run *r, const char *why, struct err *e);
/* The capacity that counts for the next decision. */
int64_t recover_target(const struct run *r);
/* A checkpoint of what was trained, unless there is one. */
enum status recover_keep(struct run *r, struct err *e);
/* No rung is left: keeps what was trained and says what would be needed. Always an error. */
enum status recover_give_up(struct run *r, const char *why, struct err *e);

#endif
