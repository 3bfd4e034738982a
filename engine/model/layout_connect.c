/* layout_connect.c - points the layers of a model at the storages that layout.c has declared and
 * model.c has allocated.
 *
 * Everything that an operation is told about a layer (scales, tails, windows, who shares it) is
 * said here, once, from config and options. */
#include <math.h>

#include "engine/model/layout.h"
#include "engine/model/quantised.h"

double layout_lora_scaling(const struct model_options *o) {
    return o->lora_alpha / (o->use_rslora ? sqrt((double)o->r) : (double)o->r);
}

static struct tensor *at(const struct model *m, int64_t storage) {
    return storage < 0 ? NULL : m->storages[storage].value;
}

/* In full precision, where forward reads something narrower. */
static struct tensor *master_at(const struct model *m, int64_t storage) {
    if (storage < 0) return NULL;
    const struct storage *const s = &m->storages[storage];
    return s->master ? s->master : s->value;
}

static void connect_linear(const struct linear_layout *from, struct model *m, uint64_t stream,
                           struct linear *to) {
    const struct model_options *const o = &m->options;
    const struct storage *const weight = &m->storages[from->weight];
    const int64_t bias = from->divides_inputs ? -1 : from->bias;
    const int64_t sum_bias = from->divides_inputs ? from->bias : -1;
    *to = (struct linear){.weight = at(m, from->weight),
                          .codes = storage_is_quantised(weight) ? &weight->quantised : NULL,
                          .bias = at(m, bias),
                          .bias_master = master_at(m, bias),
                          .sum_bias = {at(m, sum_bias), master_at(m, sum_bias)},
                          .lora_a = at(m, from->lora_a),
                          .lora_a_master = master_at(m, from->lora_a),
                          .adapter_count = from->adapter_count,
                          .dropout = (float)o->lora_dropout,
                          .stream = stream,
                          .inputs_shared = from->divides_inputs ? m->group : NULL,
                          .first_input = from->first_input,
                          .augmented = m->storages[from->weight].augmented,
                          .tail = m->storages[from->weight].tail};
    for (int64_t i = 0; i < from->adapter_count; i++) {
        to->adapters[i] = (struct lora){.first_row = from->adapters[i].first_row,
                                        .rows = from->adapters[i].rows,
                                        .rank_first = from->adapters[i].rank_first,
                                        .rank = o->r,
                                        .scaling = (float)layout_lora_scaling(o),
                                        .b = at(m, from->adapters[i].b),
                                        .b_master = master_at(m, from->adapters[i].b),
                                        .magnitude = at(m, from->adapters[i].magnitude)};
    }
}

static struct norm norm_of(const struct model *m, int64_t storage, int64_t tail) {
    return (struct norm){.weight = at(m, storage),
                         .eps = m->config.rms_norm_eps,
                         .offset = m->config.norm_weight_offset,
                         .tail = tail};
}

static struct attention_options attention_of(const struct layer_layout *from, const struct model *m,
                                             int64_t i) {
    const struct model_config *const c = &m->config;
    const int rope = c->has_rope_local && c->layer_slides[i] ? 1 : 0;
    return (struct attention_options){
        .heads = m->division.heads.count,
        .kv_heads = m->division.kv_heads.count,
        .head_dim = c->head_dim,
        .rotary_dim = c->rotary_dim,
        .scale = (float)c->attention_scale,
        .softcap = (float)c->attention_softcap,
        .window = c->layer_slides[i] ? c->sliding_window : 0,
        .rope_scale = m->rope_scale[rope],
        .inv_freq = m->inv_freq[rope],
        .q_weight = at(m, from->q_norm),
        .k_weight = at(m, from->k_norm),
        .norm = {.eps = c->rms_norm_eps, .offset = c->norm_weight_offset},
        .tail = m->layers[i].o.tail};
}

void layout_connect(const struct layout *layout, struct model *m) {
    m->embedding = at(m, layout->embedding);
    m->final_norm = norm_of(m, layout->final_norm, 0);
    m->head = layout->head < 0 ? m->embedding : at(m, layout->head);
    for (int64_t i = m->options.first_layer; i < m->options.end_layer; i++) {
        const struct layer_layout *const from = &layout->layers[i];
        struct layer *const to = &m->layers[i];
        const uint64_t stream = (uint64_t)i * 4;
        connect_linear(&from->qkv, m, stream, &to->qkv);
        connect_linear(&from->o, m, stream + 1, &to->o);
        connect_linear(&from->gate_up, m, stream + 2, &to->gate_up);
        connect_linear(&from->down, m, stream + 3, &to->down);
        to->gate_up.output_tail = to->gate_up.tail; /* the unit's backward works in place */
        /* Among ranks it is who gathers a norm's rows that makes room behind them. */
        to->norm_attention = norm_of(m, from->norm_attention, m->group ? 0 : to->qkv.tail);
        to->norm_attention_after = norm_of(m, from->norm_attention_after, 0);
        to->norm_mlp = norm_of(m, from->norm_mlp, m->group ? 0 : to->gate_up.tail);
        to->norm_mlp_after = norm_of(m, from->norm_mlp_after, 0);
        to->attention = attention_of(from, m, i);
    }
}
