/* session.h - what a run holds on its device: arena, model, optimizer.
 *
 * Opened the same way on a real device and on a null one; that the planner is this code and nothing
 * else is law 1. */
#ifndef PLIMSOLL_ENGINE_TRAIN_SESSION_H
#define PLIMSOLL_ENGINE_TRAIN_SESSION_H

#include "engine/memory/alloc_conf.h"
#include "engine/spec.h"
#include "engine/train/device_books.h"
#include "engine/train/optimizer.h"
#include "engine/train/stages.h"
#include "engine/train/step.h"

struct session {
    struct device *device;
    struct arena *arena;
    struct tensor_space space;
    struct model model;
    struct optimizer optimizer; /* zeroed when the session does not train */
    struct device_books *books; /* borrowed; NULL: nobody asks */
    struct graphs graphs;       /* of step_train; off where the device or the spec has none */
    struct comm *comm;          /* the other ranks */
    struct mesh mesh;           /* how they divide the work */
    bool comm_owned;            /* it is a planned one, and the session's */
};

/* How a spec wants the model: adapter or full, dtypes, targets. With spec->adapter_name_or_path,
 * the adapter's own config decides its shape. `targets` owns what options->target_modules points
 * at. */
struct session_options {
    struct model_options model;
    struct optimizer_options optimizer;
    struct device_options device;
    struct arena_settings arena;
    struct alloc_conf alloc_conf; /* of the environment */
    bool cuda_graphs;
    int64_t rank;               /* which of the run's ranks this is */
    struct mesh_shape shape;    /* how many there are; all zero: one */
    struct stage_wishes stages; /* what decides the layers of each stage of a pipeline */
    char **targets;
    int64_t target_count;
};
enum status session_options_read(struct session_options *o, const struct spec *spec, struct err *e);
/* What a layout has of what a session holds all the time; and whether these options have it. */
void session_take_layout(struct session_options *o, const struct layout *layout);
bool session_has_layout(const struct session_options *o, const struct layout *layout);
/* How a spec divides the work among parallel.ranks. */
struct mesh_shape session_shape(const struct spec *spec);
/* Which of the ranks that train different rows this one is, or shares the work of. */
int64_t session_data_rank(const struct spec *spec, int64_t rank);
/* For a model that only speaks: no adapter (NULL) or the one in this folder. */
enum status session_options_for(struct session_options *o, const char *adapter,
                                enum precision precision, int64_t length_max, struct err *e);
void session_options_release(struct session_options *o);

/* What stays free: on a GPU for what its libraries load at their first calls, beside the arena; on
 * the host for everybody else, so that it never has to swap. */
#define SESSION_MARGIN_BYTES (INT64_C(512) << 20)

/* Memory that a rank may take on an open device: `cap` or all of it, but never more than its share
 * of what is free, less a margin. sharers: ranks that take from the same memory. */
enum status session_capacity(struct device *device, const struct spec_cap *cap, int64_t sharers,
                             int64_t *capacity, struct err *e);
/* As the spec has them, on one machine. */
int64_t session_sharers(const struct spec *spec);

/* Opens the device, reserves the arena and allocates model and (if train) optimizer; contents
 * undefined. cap as for session_capacity. Close with session_close, also after an error.
 */
struct session_place {
    const char *device;
    struct spec_cap cap;
    bool train;
    struct comm *comm; /* borrowed; NULL: nobody is there, as for a plan (comm_open_planned) */
    struct device_books *books; /* borrowed while the session is open, or NULL: who looks at them
                                 * began them before the device was opened for the first time */
    bool lora_tails; /* adapters ride in tails even where the device does not ask for it: tests */
};
enum status session_open(struct session *s, const struct session_place *place,
                         const struct model_config *config, const struct session_options *options,
                         struct err *e);
void session_close(struct session *s);

/* Where the numbers come from. */
struct session_source {
    const char *model;   /* folder */
    const char *adapter; /* folder, or NULL: a fresh one drawn from the seed */
    uint64_t seed;
};
/* Fills base weights and adapter. *report: what the weight files hold beyond the model. */
struct weights_report;
enum status session_load(struct session *s, const struct session_source *source,
                         struct weights_report *report, struct err *e);
/* On a device that computes nothing: only what filling allocates. */
enum status session_load_nothing(struct session *s, const struct session_source *source,
                                 struct err *e);

#endif
