/* pipeline_order.h - in which order a stage of a pipeline runs the micro-batches of a step: pure
 * functions.
 *
 * gpipe (Huang et al. 2019): all forward, then all backward; every micro-batch of the step is in
 * memory at a time. 1f1b (Narayanan et al. 2021, section 2.2): stage s of p runs p - s - 1 forward,
 * then one forward and one backward in turn, so that at most p - s are in memory. Between two
 * pieces of work a stage sends what the one before has made and receives what the next one needs,
 * in one exchange. */
#ifndef PLIMSOLL_ENGINE_TRAIN_PIPELINE_ORDER_H
#define PLIMSOLL_ENGINE_TRAIN_PIPELINE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

enum pipeline_kind { PIPELINE_1F1B, PIPELINE_GPIPE };
/* "1f1b" or "gpipe", as spec_check has seen to. */
enum pipeline_kind pipeline_kind_parse(const char *name);

/* A piece of work: one micro-batch forward or backward through the layers of the stage. */
struct pipeline_work {
    bool backward;
    int64_t micro;
};
/* A stage in its pipeline. */
struct pipeline_place {
    int64_t stage, stages;
};

/* works [2 * micros], in order. Forward and backward go through the micro-batches in order, on
 * every stage, so messages between two neighbours need no names. */
void pipeline_order(enum pipeline_kind kind, const struct pipeline_place *place, int64_t micros,
                    struct pipeline_work *works);

/* Whether this work needs something of another stage, and which one; and whether what it makes is
 * wanted by one. */
bool pipeline_receives(const struct pipeline_place *place, const struct pipeline_work *work,
                       int64_t *from);
bool pipeline_sends(const struct pipeline_place *place, const struct pipeline_work *work,
                    int64_t *to);

#endif
