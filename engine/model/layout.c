/* layout.c - the one description of what a decoder consists of: names, shapes, order, adapters.
 * Families differ by flags of the config (which norms, which biases, fused projections), read here
 * and nowhere else. */
#include "engine/model/layout.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/model/quantised.h"

static int64_t add_storage(struct model *m, enum param_kind kind, int64_t rows, int64_t cols) {
    m->storages =
        mem_grow(m->storages, m->storage_count, &m->storage_capacity, sizeof *m->storages);
    const bool base = kind <= PARAM_BIAS;
    const bool matrix = kind != PARAM_NORM && kind != PARAM_BIAS && kind != PARAM_MAGNITUDE;
    m->storages[m->storage_count] =
        (struct storage){.kind = kind,
                         .rows = rows,
                         .cols = cols,
                         .trainable = base ? m->options.full : true,
                         .flat_first = -1,
                         .unit = UNIT_EMBEDDING,
                         .inside = -1,
                         .scale = 1,
                         .decayed = matrix || m->options.decay_norms_and_biases};
    return (int64_t)m->storage_count++;
}

static struct param *add_param(struct param **list, size_t *count, size_t *capacity) {
    *list = mem_grow(*list, *count, capacity, sizeof **list);
    struct param *const p = &(*list)[(*count)++];
    *p = (struct param){0};
    return p;
}

/* All of the tensor is here. */
static void name_whole(const struct model *m, struct param *p) {
    p->whole_rows = p->rows;
    p->whole_cols = model_param_cols(m, p);
}

/* A base parameter: rows [first, first+rows) of a storage; vectors are storages of one row, cut by
 * elements. */
static void name_param(struct model *m, const char *name, int64_t storage, int64_t first,
                       int64_t rows, int64_t rank) {
    struct param *const p = add_param(&m->params, &m->param_count, &m->param_capacity);
    snprintf(p->name, sizeof p->name, "%s", name);
    p->storage = storage;
    p->first_row = first;
    p->rows = rows;
    p->rank = rank;
    name_whole(m, p);
}

static void name_adapter(struct model *m, const char *module, const char *end, int64_t storage,
                         int64_t first, int64_t rows) {
    struct param *const p =
        add_param(&m->adapter_params, &m->adapter_param_count, &m->adapter_param_capacity);
    snprintf(p->name, sizeof p->name, "base_model.model.%s.%s", module, end);
    p->storage = storage;
    p->first_row = first;
    p->rows = rows;
    p->rank = m->storages[storage].kind == PARAM_MAGNITUDE ? 1 : 2;
    name_whole(m, p);
}

static int64_t add_vector(struct model *m, enum param_kind kind, const char *name, int64_t width) {
    const int64_t storage = add_storage(m, kind, 1, width);
    name_param(m, name, storage, 0, width, 1);
    return storage;
}

/* One module of a linear layer: "model.layers.3.self_attn.q_proj" with its rows of the packed
 * weight. */
struct module {
    char name[128];
    int64_t rows;
};

/* The modules that share one product, one input and the answer to whether there is a bias. */
struct modules {
    const struct module *items;
    int64_t count, inputs;
    bool bias;
};

static bool is_target(struct layout *layout, const struct model *m, const char *module) {
    const char *const last = strrchr(module, '.') + 1;
    bool hit = false;
    for (int64_t i = 0; i < m->options.target_count; i++) {
        const char *const wanted = m->options.target_modules[i];
        const size_t n = strlen(module), w = strlen(wanted);
        const bool ends = n > w && module[n - w - 1] == '.' && strcmp(module + n - w, wanted) == 0;
        if (!ends && strcmp(wanted, module) != 0 && strcmp(wanted, last) != 0 &&
            strcmp(wanted, "all-linear") != 0) {
            continue;
        }
        layout->target_hit[i] = true;
        hit = true;
    }
    return hit;
}

static double lora_scaling(const struct model_options *o) {
    return o->lora_alpha / (o->use_rslora ? sqrt((double)o->r) : (double)o->r);
}

/* Ranks in the tails of a layer are padded to what a product's operands like. */
enum { TAIL_GRANULE = 8 };

/* The layer's adapters become blocks of one matrix with its weight. Dropout and DoRA need them
 * apart. */
static void ride_in_tails(struct model *m, const struct linear_layout *l) {
    const struct model_options *const o = &m->options;
    if (!m->space->device->lora_tails || o->use_dora || o->lora_dropout > 0) return;
    if (o->quant != QUANT_NONE) return; /* a weight that is made for each product has no tail */
    struct storage *const weight = &m->storages[l->weight], *const a = &m->storages[l->lora_a];
    weight->tail = (a->rows + TAIL_GRANULE - 1) / TAIL_GRANULE * TAIL_GRANULE;
    a->inside = l->weight;
    a->inside_row = weight->rows;
    for (int64_t i = 0; i < l->adapter_count; i++) {
        struct storage *const b = &m->storages[l->adapters[i].b];
        b->inside = l->weight;
        b->inside_row = l->adapters[i].first_row;
        b->inside_col = weight->cols + l->adapters[i].rank_first;
        b->scale = (float)lora_scaling(o);
    }
}

static void add_adapters(struct layout *layout, struct model *m, struct linear_layout *l,
                         const struct modules *of) {
    const int64_t r = m->options.r;
    int64_t first_row = 0, names[LINEAR_ADAPTERS_MAX] = {0};
    for (int64_t i = 0; i < of->count; i++) {
        if (is_target(layout, m, of->items[i].name)) {
            names[l->adapter_count] = i;
            l->adapters[l->adapter_count].first_row = first_row;
            l->adapters[l->adapter_count].rows = of->items[i].rows;
            l->adapters[l->adapter_count].rank_first = l->adapter_count * r;
            l->adapter_count++;
        }
        first_row += of->items[i].rows;
    }
    if (l->adapter_count == 0) return;
    l->lora_a = add_storage(m, PARAM_LORA_A, l->adapter_count * r, of->inputs);
    for (int64_t i = 0; i < l->adapter_count; i++) {
        const struct module *const module = &of->items[names[i]];
        l->adapters[i].b = add_storage(m, PARAM_LORA_B, module->rows, r);
        name_adapter(m, module->name, "lora_A.weight", l->lora_a, i * r, r);
        name_adapter(m, module->name, "lora_B.weight", l->adapters[i].b, 0, module->rows);
        l->adapters[i].magnitude = -1;
        if (!m->options.use_dora) continue;
        l->adapters[i].magnitude = add_storage(m, PARAM_MAGNITUDE, 1, module->rows);
        name_adapter(m, module->name, "lora_magnitude_vector", l->adapters[i].magnitude, 0,
                     module->rows);
    }
    ride_in_tails(m, l);
}

static void add_linear(struct layout *layout, struct model *m, struct linear_layout *l,
                       const struct modules *of) {
    *l = (struct linear_layout){.weight = -1, .bias = -1, .lora_a = -1};
    int64_t rows = 0;
    for (int64_t i = 0; i < of->count; i++) {
        rows += of->items[i].rows;
    }
    l->weight = add_storage(m, PARAM_WEIGHT, rows, of->inputs);
    if (of->bias) l->bias = add_storage(m, PARAM_BIAS, 1, rows);
    int64_t first = 0;
    for (int64_t i = 0; i < of->count; i++) {
        char name[PARAM_NAME_MAX];
        snprintf(name, sizeof name, "%s.weight", of->items[i].name);
        name_param(m, name, l->weight, first, of->items[i].rows, 2);
        snprintf(name, sizeof name, "%s.bias", of->items[i].name);
        if (of->bias) name_param(m, name, l->bias, first, of->items[i].rows, 1);
        first += of->items[i].rows;
    }
    if (m->options.lora) add_adapters(layout, m, l, of);
}

static struct module module_of(int64_t layer, const char *part, int64_t rows) {
    struct module module = {.rows = rows};
    snprintf(module.name, sizeof module.name, "model.layers.%lld.%s", (long long)layer, part);
    return module;
}

static int64_t layer_norm(struct model *m, int64_t layer, const char *part, int64_t width) {
    char name[PARAM_NAME_MAX];
    snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)layer, part);
    return add_vector(m, PARAM_NORM, name, width);
}

static void declare_attention(struct layout *layout, struct model *m, int64_t i) {
    const struct model_config *const c = &m->config;
    struct layer_layout *const l = &layout->layers[i];
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const struct module fused[] = {module_of(i, "self_attn.qkv_proj", q + 2 * kv)};
    const struct module split[] = {module_of(i, "self_attn.q_proj", q),
                                   module_of(i, "self_attn.k_proj", kv),
                                   module_of(i, "self_attn.v_proj", kv)};
    const struct module o[] = {module_of(i, "self_attn.o_proj", c->hidden_size)};
    const bool packed = c->fused_projections;
    const struct modules qkv = {packed ? fused : split, packed ? 1 : 3, c->hidden_size,
                                c->qkv_bias};
    const struct modules out = {o, 1, q, c->o_bias};
    add_linear(layout, m, &l->qkv, &qkv);
    add_linear(layout, m, &l->o, &out);
    l->q_norm = c->qk_norm ? layer_norm(m, i, "self_attn.q_norm", c->head_dim) : -1;
    l->k_norm = c->qk_norm ? layer_norm(m, i, "self_attn.k_norm", c->head_dim) : -1;
}

static void declare_layer(struct layout *layout, struct model *m, int64_t i) {
    const struct model_config *const c = &m->config;
    struct layer_layout *const l = &layout->layers[i];
    const int64_t width = c->hidden_size, f = c->intermediate_size;
    l->norm_attention = layer_norm(m, i, "input_layernorm", width);
    declare_attention(layout, m, i);
    /* With sandwich norms the name post_attention_layernorm means what it says; without, it is the
     * norm before the MLP. */
    l->norm_attention_after =
        c->sandwich_norms ? layer_norm(m, i, "post_attention_layernorm", width) : -1;
    l->norm_mlp = layer_norm(
        m, i, c->sandwich_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", width);
    const struct module fused[] = {module_of(i, "mlp.gate_up_proj", 2 * f)};
    const struct module split[] = {module_of(i, "mlp.gate_proj", f),
                                   module_of(i, "mlp.up_proj", f)};
    const struct module down[] = {module_of(i, "mlp.down_proj", width)};
    const bool packed = c->fused_projections;
    const struct modules up = {packed ? fused : split, packed ? 1 : 2, width, c->mlp_bias};
    const struct modules out = {down, 1, f, c->mlp_bias};
    add_linear(layout, m, &l->gate_up, &up);
    add_linear(layout, m, &l->down, &out);
    l->norm_mlp_after =
        c->sandwich_norms ? layer_norm(m, i, "post_feedforward_layernorm", width) : -1;
}

static enum status check_targets(const struct layout *layout, const struct model *m,
                                 struct err *e) {
    for (int64_t i = 0; i < m->options.target_count; i++) {
        if (layout->target_hit[i]) continue;
        const char *const modules =
            m->config.fused_projections
                ? "qkv_proj, o_proj, gate_up_proj, down_proj"
                : "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj";
        return err_set_param(e, STATUS_INVALID, "target_modules",
                             "target_modules: \"%s\" is not a linear module of this %s model; "
                             "there are %s, or all-linear",
                             m->options.target_modules[i], m->config.model_type, modules);
    }
    return STATUS_OK;
}

/* What was declared from here on is of another stage: only that it exists is known. */
struct counts {
    size_t storages, params, adapter_params;
};

static struct counts counts_of(const struct model *m) {
    return (struct counts){m->storage_count, m->param_count, m->adapter_param_count};
}

static void leave_to_others(struct model *m, const struct counts *before) {
    for (size_t i = before->storages; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (s->trainable) m->trainable_elsewhere += s->rows * s->cols;
    }
    m->storage_count = before->storages;
    m->param_count = before->params;
    m->adapter_param_count = before->adapter_params;
}

static void declare_embedding(struct layout *layout, struct model *m) {
    const struct model_config *const c = &m->config;
    const struct counts before = counts_of(m);
    layout->embedding = add_storage(m, PARAM_EMBEDDING, c->vocab_size, c->hidden_size);
    name_param(m, "model.embed_tokens.weight", layout->embedding, 0, c->vocab_size, 2);
    if (model_begins(m) || (model_ends(m) && c->tie_word_embeddings)) return;
    leave_to_others(m, &before);
    layout->embedding = -1;
}

static void declare_end(struct layout *layout, struct model *m) {
    const struct model_config *const c = &m->config;
    const struct counts before = counts_of(m);
    layout->final_norm = add_vector(m, PARAM_NORM, "model.norm.weight", c->hidden_size);
    if (!c->tie_word_embeddings) {
        layout->head = add_storage(m, PARAM_EMBEDDING, c->vocab_size, c->hidden_size);
        m->storages[layout->head].unit = UNIT_HEAD;
        name_param(m, "lm_head.weight", layout->head, 0, c->vocab_size, 2);
    }
    if (model_ends(m)) return;
    leave_to_others(m, &before);
    layout->final_norm = layout->head = -1;
}

/* Layers of other stages are declared too, and dropped: target modules are looked for in the whole
 * model. */
enum status layout_declare(struct layout *layout, struct model *m, struct err *e) {
    const struct model_config *const c = &m->config;
    *layout = (struct layout){.head = -1};
    layout->layers = mem_new((size_t)c->layers, sizeof *layout->layers);
    layout->target_hit = mem_new((size_t)m->options.target_count, sizeof *layout->target_hit);
    declare_embedding(layout, m);
    for (int64_t i = 0; i < c->layers; i++) {
        const struct counts before = counts_of(m);
        declare_layer(layout, m, i);
        for (size_t k = before.storages; k < m->storage_count; k++) {
            m->storages[k].unit = i;
        }
        if (i < m->options.first_layer || i >= m->options.end_layer) leave_to_others(m, &before);
    }
    declare_end(layout, m);
    return m->options.lora ? check_targets(layout, m, e) : STATUS_OK;
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
    *to = (struct linear){.weight = at(m, from->weight),
                          .codes = storage_is_quantised(weight) ? &weight->quantised : NULL,
                          .bias = at(m, from->bias),
                          .bias_master = master_at(m, from->bias),
                          .lora_a = at(m, from->lora_a),
                          .lora_a_master = master_at(m, from->lora_a),
                          .adapter_count = from->adapter_count,
                          .dropout = (float)o->lora_dropout,
                          .stream = stream,
                          .augmented = m->storages[from->weight].augmented,
                          .tail = m->storages[from->weight].tail};
    for (int64_t i = 0; i < from->adapter_count; i++) {
        to->adapters[i] = (struct lora){.first_row = from->adapters[i].first_row,
                                        .rows = from->adapters[i].rows,
                                        .rank_first = from->adapters[i].rank_first,
                                        .rank = o->r,
                                        .scaling = (float)lora_scaling(o),
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
        .heads = c->heads,
        .kv_heads = c->kv_heads,
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
        to->norm_attention = norm_of(m, from->norm_attention, to->qkv.tail);
        to->norm_attention_after = norm_of(m, from->norm_attention_after, 0);
        to->norm_mlp = norm_of(m, from->norm_mlp, to->gate_up.tail);
        to->norm_mlp_after = norm_of(m, from->norm_mlp_after, 0);
        to->attention = attention_of(from, m, i);
    }
}

void layout_release(struct layout *layout) {
    mem_free(layout->layers);
    mem_free(layout->target_hit);
    *layout = (struct layout){0};
}
