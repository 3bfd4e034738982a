/* layouts.h - the ways to divide a run among its ranks: what `parallel.layout` "auto" chooses from.
 *
 * A pure list in the order in which they are preferred: copies of the whole model, then the ZeRO
 * stages, then mixtures, then offloading. Whether one is possible for a model is not known here:
 * the spec's rules and the planned session say so. All train the same batch. */
#ifndef PLIMSOLL_ENGINE_TRAIN_LAYOUTS_H
#define PLIMSOLL_ENGINE_TRAIN_LAYOUTS_H

#include "base/json.h"
#include "engine/spec.h"

enum layout_rung {
    RUNG_DATA,
    RUNG_ZERO, /* stages 1, 2, 3 over all ranks: the lower the better */
    RUNG_REST, /* stage 3 within a machine; tensor and pipeline, with or without ZeRO */
    RUNG_OFFLOAD
};
struct layout_choice {
    enum layout_rung rung;
    int64_t ranks, zero_stage;
    int64_t shard; /* ranks that divide one copy; 0: all that train different rows */
    int64_t tensor, pipeline;
    bool offloads_optimizer, offloads_weights;
};

enum { LAYOUTS_MAX = 160 };
/* Fills `out` [LAYOUTS_MAX]; returns how many. Tensor parallel ranks stay within a machine of
 * per_node ranks; a pipeline has at most `layers` stages. */
int layouts_list(int64_t ranks, int64_t per_node, int64_t layers, struct layout_choice *out);

/* "data parallel over 8", "ZeRO 3 over 8, 64 copies", "tensor 8 x pipeline 4 x data 16". Caller
 * frees. */
char *layout_choice_name(const struct layout_choice *choice);
/* The keys of a spec that ask for it. The fewer ranks train different rows, the larger are their
 * micro-batches (tensor parallel ranks share the memory of one) or the more there are. Caller
 * frees. */
cJSON *layout_choice_keys(const struct layout_choice *choice, const struct spec *spec);

#endif
