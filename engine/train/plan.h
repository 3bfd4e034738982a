/* plan.h - the memory of a run, known before it: the same session and the same steps on a null
 * device, which keeps the books and computes nothing (law 1).
 *
 * There is no formula for memory anywhere in the project. Loading, checkpoints, resuming and export
 * go through host memory and allocate nothing on the device, but for the magnitudes of DoRA, which
 * the plan makes as the run does; tests/unit/test_plan.c watches over that. */
#ifndef PLIMSOLL_ENGINE_TRAIN_PLAN_H
#define PLIMSOLL_ENGINE_TRAIN_PLAN_H

#include "base/json.h"
#include "engine/train/links.h"
#include "engine/train/session.h"
#include "engine/train/shapes.h"

struct plan_request {
    const struct model_config *config;
    const struct session_options *options;
    const struct spec *spec;
    const struct layout *layout;             /* NULL: as the spec asks */
    const struct batch_shapes *train, *eval; /* of that layout; eval may be NULL */
    const struct shape_source *source; /* shapes of other layouts, for remedies; may be NULL */
    bool counts_work;                  /* fill micro_work and update_work, for estimates of time */
};

/* What is going on while memory is fullest. */
enum plan_part { PLAN_LOAD, PLAN_TRAIN, PLAN_EVAL, PLAN_SAMPLES, PLAN_PART_COUNT };
const char *plan_part_name(enum plan_part part);

struct plan {
    struct arena_stats stats; /* after the planned steps: peaks by category and phase */
    enum plan_part peak_part;
    struct batch_shape peak_shape;            /* of the micro-batch; zero while loading */
    int64_t parameters, trainable_parameters; /* of the whole model, all stages */
    int64_t first_layer, end_layer;           /* that the rank has, the end excluded */
    double flops;                             /* of training, per token: to compare layouts by */
    /* Host memory that the device copies from or to by itself, at most: while loading, and then. */
    int64_t staged_load, staged_train;
    /* What comes from there in a micro-batch (weights) and in an update (AdamW's states,
     * which go back beside it): bytes one way. */
    int64_t bus_micro, bus_update;
    /* Of one average micro-batch and of one update, and what a step is made of on average; zero
     * unless the request wants it. */
    struct device_work micro_work, update_work;
    struct traffic_book micro_traffic, last_traffic, update_traffic; /* last: of a step's last
                                       micro-batch, in which gradients may be summed */
    double micros_per_step, tokens_per_step;                         /* tokens: padding included */
};

/* What a capacity must be for the planned run to fit, in bytes. */
int64_t plan_need(const struct plan *plan);
/* The work of one step. */
struct device_work plan_step_work(const struct plan *plan);

/* Runs two steps of every shape (in a pipeline every step twice), the evaluation and the samples.
 * Errors as for the run itself, except that memory never runs out. */
enum status plan_make(struct plan *plan, const struct plan_request *request, struct err *e);

/* A fingerprint of what the rank of a request holds all the time: allocations while the session is
 * opened. Ranks of one stage that differ in nothing else and have the same one, have the same plan.
 */
enum status plan_held(const struct plan_request *request, uint64_t *out, struct err *e);

/* One step in an open session: so many micro-batches like this one, then the update. */
enum status plan_step(struct session *s, const struct plan_request *request, struct batch *batch,
                      int64_t micros, struct err *e);

/* Runs the steps of a request in an open session: what plan_make does after opening and loading.
 * Tests run it on real devices and compare. */
enum status plan_steps(struct session *s, const struct plan_request *request, struct err *e);

/* {"planned_peak_bytes","planned_reserved_bytes","capacity_bytes","fits","peak_phase",
 * "categories_at_peak":{},"phases":{},"phase_table":[{"phase","peak_bytes","categories":{}}],
 * "parameters","trainable_parameters","allocations","trace"}. capacity 0: unknown, and fits is
 * null. Caller frees with cJSON_Delete. */
cJSON *plan_to_json(const struct plan *plan, int64_t capacity);

#endif
