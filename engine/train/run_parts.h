/* run_parts.h - what the files of a run share: everything that it holds, from the spec to the
 * session. run_start.c fills it, run.c trains with it, plan_ask.c stops before there is a device.
 *
 * Only those files include it. */
#ifndef PLIMSOLL_ENGINE_TRAIN_RUN_PARTS_H
#define PLIMSOLL_ENGINE_TRAIN_RUN_PARTS_H

#include <stdatomic.h>

#include "engine/model/weights.h"
#include "engine/train/checkpoint.h"
#include "engine/train/corpus.h"
#include "engine/train/gang.h"
#include "engine/train/recover.h"
#include "engine/train/report.h"
#include "engine/train/run.h"
#include "engine/train/schedule.h"
#include "engine/train/watching.h"

/* Everything of one run. Zeroed, then filled in this order. */
struct run {
    const char *folder;
    bool (*stop)(void);
    bool rehearses; /* on a null device */
    struct event_log log;
    int lock_fd;
    struct comm_place place; /* among the ranks */
    struct comm *comm;
    atomic_bool told;        /* that a rank is lost has been reported already */
    struct gang_part *parts; /* [world] of the last step */
    struct spec spec;
    struct model_config config;
    struct session_options options;
    struct corpus corpus;
    struct layout layout; /* in use, and its plan */
    struct plan plan;
    struct recovery recovery;
    struct device_books books; /* as long as the process: sessions come and go */
    struct session session;
    struct weights_report weights; /* what the model files hold beyond the model */
    struct trainer_state state;
    struct schedule schedule;
    struct batch batch;
    struct watching watching;
    bool stopping; /* all ranks have agreed to stop */
    int64_t started_ns;
};

/* The spec, the model's config, and whether the weights are there. */
enum status run_read_spec(struct run *r, const char *spec_path, struct err *e);
/* The data; progress goes to the log. */
enum status run_read_corpus(struct run *r, struct err *e);
/* The plan of r->layout, from the data. */
enum status run_make_plan(struct run *r, struct err *e);
/* The plan of any layout, from the data. */
enum status run_plan_layout(struct run *r, const struct layout *layout, struct plan *plan,
                            struct err *e);
/* For struct shape_source; the context is a struct run. The batcher stays cut so. */
void run_find_shapes(void *context, bool eval, const struct layout *layout,
                     struct batch_shapes *out);
/* The session of r->layout, without and with its weights. */
enum status run_open_session(struct run *r, struct err *e);
/* Whether the session holds what r->layout says: else it has to be opened again. */
bool run_holds_layout(const struct run *r);
enum status run_load_weights(struct run *r, struct err *e);
/* Host memory that a rank may have in all, what it has already included, without making the host
 * swap: the least of all ranks. 0 where it is not known. */
enum status run_host_room(struct run *r, int64_t *bytes, struct err *e);
/* STATUS_OOM if the plan wants more. */
enum status run_check_host(struct run *r, struct err *e);
/* Becomes the rank in the run directory; the one before may be about to end. */
enum status run_claim(struct run *r, struct err *e);
/* Joins the other ranks, of which there must be as many as the spec says. */
enum status run_join(struct run *r, struct err *e);
/* Continues from the newest checkpoint, if there is one. */
enum status run_load_checkpoint(struct run *r, struct err *e);
/* True on the rank that speaks for all. */
bool run_leads(const struct run *r);
/* Everything up to the first step: the spec, the data, the plan, the session, the last checkpoint.
 */
enum status run_prepare(struct run *r, struct err *e);
void run_close(struct run *r);

/* One optimizer step, however often it has to be begun. */
enum status run_train_step(struct run *r, struct err *e);
enum status run_evaluate(struct run *r, struct err *e);
enum status run_say_samples(struct run *r, struct err *e);
enum status run_save_checkpoint(struct run *r, struct err *e);
/* adapter/ or model/; *name is "adapter" or "model" on the rank that leads, else NULL. */
enum status run_export(struct run *r, const char **name, struct err *e);
/* What memory.cap allows now; 0: it is not set. */
int64_t run_cap(const struct run *r);

#endif
