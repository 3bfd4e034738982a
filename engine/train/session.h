/* session.h - what a run holds on its device: arena, model, optimizer.
 *
 * Opened the same way on a real device and on a null one; that the planner is this code and nothing
 * else is law 1. */
#ifndef PLIMSOLL_ENGINE_TRAIN_SESSION_H
#define PLIMSOLL_ENGINE_TRAIN_SESSION_H

#include "engine/spec.h"
#include "engine/train/optimizer.h"
#include "engine/train/step.h"

struct session {
    struct device *device;
    struct arena *arena;
    struct tensor_space space;
    struct model model;
    struct optimizer optimizer; /* zeroed when the session does not train */
};

/* How a spec wants the model: adapter or full, dtypes, targets. With spec->adapter_name_or_path,
 * the adapter's own config decides its shape. `targets` owns what options->target_modules points
 * at. */
struct session_options {
    struct model_options model;
    struct optimizer_options optimizer;
    bool gemm_bf16;
    char **targets;
    int64_t target_count;
};
enum status session_options_read(struct session_options *o, const struct spec *spec, struct err *e);
/* For a model that only speaks: no adapter (NULL) or the one in this folder, fp32. */
enum status session_options_for(struct session_options *o, const char *adapter, int64_t length_max,
                                struct err *e);
void session_options_release(struct session_options *o);

/* Opens the device, reserves the arena and allocates model and (if train) optimizer; contents
 * undefined. capacity 0: all of the device's memory. Close with session_close, also after an error.
 */
struct session_place {
    const char *device;
    int64_t capacity;
    bool train;
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

#endif
