/* run_parts.h - what the files of a run share: everything that it holds, from the spec to the
 * session. run_start.c fills it, run.c trains with it, run_plan.c stops before there is a device.
 *
 * Only those files include it. */
#ifndef PLIMSOLL_ENGINE_TRAIN_RUN_PARTS_H
#define PLIMSOLL_ENGINE_TRAIN_RUN_PARTS_H

#include "engine/model/weights.h"
#include "engine/train/checkpoint.h"
#include "engine/train/corpus.h"
#include "engine/train/report.h"
#include "engine/train/run.h"
#include "engine/train/schedule.h"

/* Everything of one run. Zeroed, then filled in this order. */
struct run {
    const char *folder;
    bool (*stop)(void);
    struct event_log log;
    int lock_fd;
    struct spec spec;
    struct model_config config;
    struct session_options options;
    struct corpus corpus;
    struct layout layout;
    struct plan plan;
    struct session session;
    struct weights_report weights; /* what the model files hold beyond the model */
    struct trainer_state state;
    struct schedule schedule;
    struct batch batch;
    int64_t started_ns;
};

/* The spec, the model's config, and whether the weights are there. */
enum status run_read_spec(struct run *r, const char *spec_path, struct err *e);
/* The data; progress goes to the log. */
enum status run_read_corpus(struct run *r, struct err *e);
/* The plan of r->layout, from the data. */
enum status run_make_plan(struct run *r, struct err *e);
/* Everything up to the first step: the spec, the data, the plan, the session, the last checkpoint.
 */
enum status run_prepare(struct run *r, struct err *e);
void run_close(struct run *r);

#endif
