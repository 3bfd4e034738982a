/* auto_layout.h - parallel.layout "auto": the fastest way to divide a run that fits, by planning.
 *
 * All of layouts.h are planned. The first that fits in their order is taken, changes that leave
 * learning alone included (remedy.h); a later one only where it is faster by more than the
 * estimate of time can be wrong (a quarter). The batch is the same in all. What was found is
 * kept in the run directory, so that resuming trains in the same layout. */
#ifndef PLIMSOLL_ENGINE_TRAIN_AUTO_LAYOUT_H
#define PLIMSOLL_ENGINE_TRAIN_AUTO_LAYOUT_H

#include "engine/train/layouts.h"
#include "engine/train/plan_ranks.h"

struct auto_candidate {
    struct layout_choice choice;
    cJSON *set;    /* the keys that ask for it */
    char *refused; /* why there is no plan of it, or NULL */
    int64_t need;  /* of the neediest rank */
    bool fits;
    struct step_time time;       /* of all ranks; zero: rates are unknown */
    double tokens_per_second;    /* likewise */
    struct layout asked, layout; /* without and with the changes that it takes to fit */
};
/* Zeroed: nothing was searched. */
struct auto_layouts {
    struct auto_candidate *items;
    int count;
    int picked; /* the best, whether or not it fits */
    char *why;  /* one or two sentences */
};
void auto_layouts_release(struct auto_layouts *found);

/* Where a run says auto. The spec and what follows from it become those of the layout found, and
 * the corpus (if there is one) is cut accordingly. */
struct auto_run {
    struct spec *spec;
    struct session_options *options;
    struct layout *layout;
    const struct model_config *config;
    struct corpus *corpus; /* NULL: full rows */
};
/* Nothing for a given layout. STATUS_INVALID where the capacity is unknown. The one that needs
 * least is picked where none fits. */
enum status auto_layout_find(const struct auto_run *run, const struct estimate_place *place,
                             struct auto_layouts *found, struct err *e);
/* {"why","picked","candidates":[{"layout","set":{},"need_bytes","fits","tokens_per_second",
 * "seconds_per_step","exchange_seconds","hidden_seconds","waiting_seconds","with":[remedy...],
 * "refused"}]}; NULL when nothing was searched. Caller frees. */
cJSON *auto_layouts_to_json(const struct auto_layouts *found);

/* parallel.ranks "auto" becomes a number: every GPU that is here (of device cuda), those of one
 * machine where the plan is for a card by name, else 1. */
void auto_ranks_take(struct spec *spec, bool by_card);

/* Keeps what was found in a run directory; and takes it up: *found is false when there is nothing.
 */
enum status auto_layout_keep(const struct spec *spec, const char *folder, struct err *e);
enum status auto_layout_recall(struct spec *spec, const char *folder, bool *found, struct err *e);
bool auto_layout_is_open(const struct spec *spec);

#endif
