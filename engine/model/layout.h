/* layout.h - which storages and names a model of this config and these adapters has, and which
 * layer uses which.
 *
 * Internal to engine/model: model.c declares, allocates, then connects. */
#ifndef PLIMSOLL_ENGINE_MODEL_LAYOUT_H
#define PLIMSOLL_ENGINE_MODEL_LAYOUT_H

#include "engine/model/model.h"

/* Storage indices of one linear layer; -1 for what it does not have. */
struct linear_layout {
    int64_t weight, bias, lora_a;
    struct {
        int64_t first_row, rows, rank_first, b, magnitude;
    } adapters[LINEAR_ADAPTERS_MAX];
    int64_t adapter_count;
    int64_t first_input; /* of those that all ranks have together */
    bool divides_inputs; /* its result is a part of a sum, to which the bias is added */
};

struct layer_layout {
    struct linear_layout qkv, o, gate_up, down;
    int64_t norm_attention, norm_attention_after, norm_mlp, norm_mlp_after, q_norm, k_norm;
};

struct layout {
    struct layer_layout *layers;
    int64_t embedding, final_norm, head;
    bool *target_hit; /* which of the wanted target modules matched something */
};

/* Fills m->storages, m->params and m->adapter_params. STATUS_INVALID for a target module that
 * matches nothing. */
enum status layout_declare(struct layout *layout, struct model *m, struct err *e);
/* What an adapter's product is multiplied with. */
double layout_lora_scaling(const struct model_options *o);
/* Points the layers of `m` at the allocated storages. */
void layout_connect(const struct layout *layout, struct model *m);
void layout_release(struct layout *layout);

#endif
