/* remedy.h - what can be changed about a run that does not fit, gentlest first: the ladder.
 *
 * A remedy is a layout (layout.h), so it never changes the samples of a step, nor the loss curve.
 * Finding one is a pure function of spec, shapes of the data, layout and capacity: every candidate
 * is planned, by the engine on the null device, and kept only if its planned need is lower. So all
 * ranks find the same, and what is offered is known to help. */
#ifndef PLIMSOLL_ENGINE_TRAIN_REMEDY_H
#define PLIMSOLL_ENGINE_TRAIN_REMEDY_H

#include "engine/train/plan.h"

/* In the order in which they are tried. TRIM gives unused pages back and changes no layout: a run
 * does it before it looks for another one. */
enum remedy_kind {
    REMEDY_TRIM,
    REMEDY_EVAL_BATCH,    /* fewer rows at a time in evaluation */
    REMEDY_SAMPLE_LENGTH, /* shorter samples */
    REMEDY_MICRO_BATCH,   /* fewer rows at a time, more micro-batches */
    REMEDY_LOSS_CHUNK,    /* fewer tokens whose logits exist at a time */
    REMEDY_CHECKPOINT_SOME,
    REMEDY_CHECKPOINT_ALL,
    REMEDY_OFFLOAD_ACTIVATIONS,
    REMEDY_ZERO_STAGE,        /* ranks divide more among them */
    REMEDY_OFFLOAD_OPTIMIZER, /* AdamW's states wait in host memory */
    REMEDY_OFFLOAD_PARAMS,    /* weights wait there, on a GPU's host */
    REMEDY_KIND_COUNT
};
/* "trim", "eval_batch", "sample_length", "micro_batch", "loss_chunk", "checkpoint_some",
 * "checkpoint_all", "offload_activations", "zero_stage", "offload_optimizer",
 * "offload_params". */
const char *remedy_name(enum remedy_kind kind);
/* REMEDY_KIND_COUNT for an unknown name. */
enum remedy_kind remedy_parse(const char *name);

enum { REMEDY_TEXT_MAX = 200 };

/* One rung. `layout` is that of the rung before with this change. */
struct remedy {
    enum remedy_kind kind;
    struct layout layout;
    struct plan plan;
    double cost; /* work of a step, 1 = as before: FLOPs of a token against those of `now` */
    bool fits;
    char text[REMEDY_TEXT_MAX]; /* one sentence for people */
};

struct remedy_list {
    struct remedy *items;
    int64_t count;
    size_t capacity;
    struct plan now;   /* of the layout that the search began with */
    bool fits;         /* the last one, or `now` when there is none, fits */
    unsigned excluded; /* bits of kinds that are not to be tried: set by the caller */
    int64_t
        host_room; /* most host memory that may be taken, the arena's too where the device is the
                          CPU; 0: not known. Set by the caller */
};

/* Climbs from `now` until the plan fits into `capacity` bytes; nothing is listed when it does at
 * once. The request's shapes are those of any layout: its source (plan.h) gives those of the
 * candidates; without one, micro-batches stay as they are. Errors as for plan_make. Release with
 * remedy_list_release, also after an error; list->excluded and host_room are
 * read. */
enum status remedies_find(struct remedy_list *list, const struct plan_request *request,
                          const struct layout *now, int64_t capacity, struct err *e);
void remedy_list_release(struct remedy_list *list);
void remedy_list_add(struct remedy_list *list, const struct remedy *rung);
/* [{"remedy","peak","cost","text","fits","layout":{},"plan":{}}], one entry a kind in a row: its
 * last rung; "plan" as plan_to_json has it, without a capacity. Caller frees with cJSON_Delete. */
cJSON *remedy_list_to_json(const struct remedy_list *list);

/* Whether weights can wait in host memory, and it is another memory: frozen ones, or the only copy
 * of what is trained. */
bool remedy_can_offload_params(const struct plan_request *request);
/* The plan of this layout, with its own shapes. */
enum status remedy_plan(struct plan *plan, const struct plan_request *request,
                        const struct layout *layout, struct err *e);

/* Divides as much among ranks as the spec's rules allow; false: nothing more. */
bool remedy_divide(const struct plan_request *request, struct layout *layout);
/* The layout with what `kind` changes as `asked` has it. */
struct layout remedy_undo(const struct layout *now, const struct layout *asked,
                          enum remedy_kind kind);
/* The gentlest kind in which the two differ; REMEDY_KIND_COUNT: in none. Above `after`, or -1. */
enum remedy_kind remedy_difference(const struct layout *a, const struct layout *b, int after);
/* The sentence for going from one layout to another by one kind. */
void remedy_sentence(enum remedy_kind kind, const struct layout *from, const struct layout *to,
                     int64_t layers, char text[REMEDY_TEXT_MAX]);

#endif
