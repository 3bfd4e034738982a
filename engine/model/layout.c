/* layout.c - the one description of what a decoder consists of: names, shapes, order, adapters.
 * Families differ by flags of the config (which norms, which biases, fused projections), read here
 * and nowhere else. */
#include "engine/model/layout.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

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
                         .sharers = 1,
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

/* A base parameter; `p` has all but the name. Vectors are storages of one row, cut by elements. */
static void name_param(struct model *m, const char *name, const struct param *p) {
    struct param *const to = add_param(&m->params, &m->param_count, &m->param_capacity);
    *to = *p;
    model_tensor_name(&(struct tensor_name){-1, name, ""}, to->name, sizeof to->name);
}

static void name_adapter(struct model *m, const char *module, const char *end,
                         const struct param *p) {
    struct param *const to =
        add_param(&m->adapter_params, &m->adapter_param_count, &m->adapter_param_capacity);
    *to = *p;
    snprintf(to->name, sizeof to->name, "base_model.model.%s.%s", module, end);
}

/* All ranks along the tensor axis have it. */
static void share_storage(struct model *m, int64_t storage) {
    struct storage *const s = &m->storages[storage];
    if (m->division.world == 1) return;
    s->shared = s->rows * s->cols;
    s->sharers = m->division.world;
}

static int64_t add_vector(struct model *m, enum param_kind kind, const char *name, int64_t width) {
    const int64_t storage = add_storage(m, kind, 1, width);
    share_storage(m, storage);
    name_param(m, name,
               &(struct param){.storage = storage,
                               .rows = width,
                               .rank = 1,
                               .whole_rows = width,
                               .whole_cols = 1,
                               .sharers = m->division.world});
    return storage;
}

/* Rows of a module's tensor that are here, and how many neighbours have the same. */
struct run {
    int64_t from, rows, sharers;
};
enum { RUNS_MAX = 3 };

/* One module of a linear layer: "model.layers.3.self_attn.q_proj" with its rows of the packed
 * weight. */
struct module {
    char name[128];
    int64_t rows, whole;
    struct run runs[RUNS_MAX];
    int64_t run_count;
};

/* The modules that share one product, one input and the answer to whether there is a bias. */
struct modules {
    const struct module *items;
    int64_t count;
    struct cut inputs; /* of each row; a part of them: the product is a part of a sum */
    bool bias;
};

static bool divides_inputs(const struct modules *of) {
    return of->inputs.count < of->inputs.whole;
}

/* The part of a module's tensor, or of its adapter's, that one run is: `base` says which storage,
 * where it begins there, and how long whole rows are. */
static struct param run_of(const struct module *module, int64_t index, const struct param *base) {
    const struct run *const run = &module->runs[index];
    struct param p = *base;
    for (int64_t i = 0; i < index; i++) {
        p.first_row += module->runs[i].rows;
    }
    p.rows = run->rows;
    p.whole_rows = module->whole;
    p.from_row = run->from;
    p.sharers = run->sharers;
    return p;
}

/* Storages end with what neighbours have too. */
static void share_runs(struct model *m, int64_t storage, const struct module *modules,
                       int64_t count) {
    struct storage *const s = &m->storages[storage];
    int64_t rows = 0;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t k = 0; k < modules[i].run_count; k++) {
            const struct run *const run = &modules[i].runs[k];
            if (run->sharers == 1) continue;
            rows += run->rows;
            s->sharers = run->sharers;
        }
    }
    s->shared = s->rows == 1 ? rows : rows * s->cols;
}

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

/* Ranks in the tails of a layer are padded to what a product's operands like. */
enum { TAIL_GRANULE = 8 };

/* The layer's adapters become blocks of one matrix with its weight. Dropout and DoRA need them
 * apart. */
static void ride_in_tails(struct model *m, const struct linear_layout *l) {
    const struct model_options *const o = &m->options;
    if (!m->space->device->lora_tails || o->use_dora || o->lora_dropout > 0) return;
    struct storage *const weight = &m->storages[l->weight], *const a = &m->storages[l->lora_a];
    weight->tail = (a->rows + TAIL_GRANULE - 1) / TAIL_GRANULE * TAIL_GRANULE;
    a->inside = l->weight;
    a->inside_row = weight->rows;
    for (int64_t i = 0; i < l->adapter_count; i++) {
        struct storage *const b = &m->storages[l->adapters[i].b];
        b->inside = l->weight;
        b->inside_row = l->adapters[i].first_row;
        b->inside_col = weight->cols + l->adapters[i].rank_first;
        b->scale = (float)layout_lora_scaling(o);
    }
}

/* B's rows, or the magnitudes, of one adapter: its module's, unless the inputs are divided. */
static void name_outputs(struct model *m, const struct module *module, const char *end,
                         const struct modules *of, int64_t storage) {
    const struct storage *const s = &m->storages[storage];
    const int64_t rank = s->kind == PARAM_MAGNITUDE ? 1 : 2;
    const struct param base = {
        .storage = storage, .rank = rank, .whole_cols = rank == 1 ? 1 : s->cols};
    if (divides_inputs(of)) {
        share_storage(m, storage);
    } else {
        share_runs(m, storage, module, 1);
    }
    for (int64_t i = 0; i < module->run_count; i++) {
        struct param p = run_of(module, i, &base);
        if (divides_inputs(of)) p.sharers = m->division.world;
        name_adapter(m, module->name, end, &p);
    }
}

static void name_a(struct model *m, const struct module *module, const struct modules *of,
                   int64_t storage, int64_t first) {
    const bool divides = divides_inputs(of);
    if (!divides) share_storage(m, storage);
    name_adapter(m, module->name, "lora_A.weight",
                 &(struct param){.storage = storage,
                                 .first_row = first,
                                 .rows = m->options.r,
                                 .rank = 2,
                                 .whole_rows = m->options.r,
                                 .whole_cols = of->inputs.whole,
                                 .from_col = of->inputs.first,
                                 .sharers = divides ? 1 : m->division.world});
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
    l->lora_a = add_storage(m, PARAM_LORA_A, l->adapter_count * r, of->inputs.count);
    for (int64_t i = 0; i < l->adapter_count; i++) {
        const struct module *const module = &of->items[names[i]];
        l->adapters[i].b = add_storage(m, PARAM_LORA_B, module->rows, r);
        name_a(m, module, of, l->lora_a, i * r);
        name_outputs(m, module, "lora_B.weight", of, l->adapters[i].b);
        l->adapters[i].magnitude = -1;
        if (!m->options.use_dora) continue;
        l->adapters[i].magnitude = add_storage(m, PARAM_MAGNITUDE, 1, module->rows);
        name_outputs(m, module, "lora_magnitude_vector", of, l->adapters[i].magnitude);
    }
    ride_in_tails(m, l);
}

static void name_weight(struct model *m, const struct linear_layout *l, const struct module *module,
                        const struct modules *of, int64_t first) {
    char name[PARAM_NAME_MAX];
    const struct param weight = {.storage = l->weight,
                                 .first_row = first,
                                 .rank = 2,
                                 .whole_cols = of->inputs.whole,
                                 .from_col = of->inputs.first};
    const struct param bias = {.storage = l->bias, .first_row = first, .rank = 1, .whole_cols = 1};
    model_tensor_name(&(struct tensor_name){-1, module->name, ".weight"}, name, sizeof name);
    for (int64_t i = 0; i < module->run_count; i++) {
        const struct param p = run_of(module, i, &weight);
        name_param(m, name, &p);
    }
    if (l->bias < 0) return;
    model_tensor_name(&(struct tensor_name){-1, module->name, ".bias"}, name, sizeof name);
    for (int64_t i = 0; i < module->run_count; i++) {
        struct param p = run_of(module, i, &bias);
        if (divides_inputs(of)) p.sharers = m->division.world;
        name_param(m, name, &p);
    }
}

static void add_linear(struct layout *layout, struct model *m, struct linear_layout *l,
                       const struct modules *of) {
    *l = (struct linear_layout){
        .weight = -1, .bias = -1, .lora_a = -1, .first_input = of->inputs.first};
    l->divides_inputs = divides_inputs(of);
    int64_t rows = 0;
    for (int64_t i = 0; i < of->count; i++) {
        rows += of->items[i].rows;
    }
    l->weight = add_storage(m, PARAM_WEIGHT, rows, of->inputs.count);
    share_runs(m, l->weight, of->items, of->count);
    if (of->bias) {
        l->bias = add_storage(m, PARAM_BIAS, 1, rows);
        share_runs(m, l->bias, of->items, of->count);
        if (l->divides_inputs) share_storage(m, l->bias);
    }
    int64_t first = 0;
    for (int64_t i = 0; i < of->count; i++) {
        name_weight(m, l, &of->items[i], of, first);
        first += of->items[i].rows;
    }
    if (m->options.lora) add_adapters(layout, m, l, of);
}

static struct module module_of(int64_t layer, const char *part) {
    struct module module = {0};
    model_tensor_name(&(struct tensor_name){layer, part, ""}, module.name, sizeof module.name);
    return module;
}

/* The module has another so many rows, `unit` for each of the block's; runs that touch are one. */
static void add_rows(struct module *module, const struct cut *block, int64_t unit,
                     int64_t sharers) {
    const struct run run = {module->whole + block->first * unit, block->count * unit, sharers};
    struct run *const last = module->run_count ? &module->runs[module->run_count - 1] : NULL;
    module->whole += block->whole * unit;
    module->rows += run.rows;
    if (last && last->from + last->rows == run.from && last->sharers == sharers) {
        last->rows += run.rows;
    } else {
        module->runs[module->run_count++] = run;
    }
}

static struct module module_with(int64_t layer, const char *part, const struct cut *block,
                                 int64_t unit, int64_t sharers) {
    struct module module = module_of(layer, part);
    add_rows(&module, block, unit, sharers);
    return module;
}

static int64_t layer_norm(struct model *m, int64_t layer, const char *part, int64_t width) {
    char name[PARAM_NAME_MAX];
    model_tensor_name(&(struct tensor_name){layer, part, ".weight"}, name, sizeof name);
    return add_vector(m, PARAM_NORM, name, width);
}

/* All outputs, of a layer whose inputs may be divided. */
static struct cut all_of(int64_t count) {
    return (struct cut){0, count, count};
}

static struct cut scaled(const struct cut *b, int64_t unit) {
    return (struct cut){b->first * unit, b->count * unit, b->whole * unit};
}

static void declare_attention(struct layout *layout, struct model *m, int64_t i) {
    const struct model_config *const c = &m->config;
    const struct division *const b = &m->division;
    struct layer_layout *const l = &layout->layers[i];
    const struct cut width = all_of(c->hidden_size);
    struct module fused = module_of(i, "self_attn.qkv_proj");
    add_rows(&fused, &b->heads, c->head_dim, 1);
    add_rows(&fused, &b->kv_heads, c->head_dim, b->kv_sharers);
    add_rows(&fused, &b->kv_heads, c->head_dim, b->kv_sharers);
    const struct module split[] = {
        module_with(i, "self_attn.q_proj", &b->heads, c->head_dim, 1),
        module_with(i, "self_attn.k_proj", &b->kv_heads, c->head_dim, b->kv_sharers),
        module_with(i, "self_attn.v_proj", &b->kv_heads, c->head_dim, b->kv_sharers)};
    const struct module o = module_with(i, "self_attn.o_proj", &width, 1, 1);
    const bool packed = c->fused_projections;
    const struct modules qkv = {packed ? &fused : split, packed ? 1 : 3, width, c->qkv_bias};
    const struct modules out = {&o, 1, scaled(&b->heads, c->head_dim), c->o_bias};
    add_linear(layout, m, &l->qkv, &qkv);
    add_linear(layout, m, &l->o, &out);
    l->q_norm = c->qk_norm ? layer_norm(m, i, "self_attn.q_norm", c->head_dim) : -1;
    l->k_norm = c->qk_norm ? layer_norm(m, i, "self_attn.k_norm", c->head_dim) : -1;
}

static void declare_mlp(struct layout *layout, struct model *m, int64_t i) {
    const struct model_config *const c = &m->config;
    const struct division *const b = &m->division;
    struct layer_layout *const l = &layout->layers[i];
    const struct cut width = all_of(c->hidden_size);
    struct module fused = module_of(i, "mlp.gate_up_proj");
    add_rows(&fused, &b->width, 1, 1);
    add_rows(&fused, &b->width, 1, 1);
    const struct module split[] = {module_with(i, "mlp.gate_proj", &b->width, 1, 1),
                                   module_with(i, "mlp.up_proj", &b->width, 1, 1)};
    const struct module down = module_with(i, "mlp.down_proj", &width, 1, 1);
    const bool packed = c->fused_projections;
    const struct modules up = {packed ? &fused : split, packed ? 1 : 2, width, c->mlp_bias};
    const struct modules out = {&down, 1, b->width, c->mlp_bias};
    add_linear(layout, m, &l->gate_up, &up);
    add_linear(layout, m, &l->down, &out);
}

static void declare_layer(struct layout *layout, struct model *m, int64_t i) {
    const struct model_config *const c = &m->config;
    struct layer_layout *const l = &layout->layers[i];
    const int64_t width = c->hidden_size;
    l->norm_attention = layer_norm(m, i, "input_layernorm", width);
    declare_attention(layout, m, i);
    /* With sandwich norms the name post_attention_layernorm means what it says; without, it is the
     * norm before the MLP. */
    l->norm_attention_after =
        c->sandwich_norms ? layer_norm(m, i, "post_attention_layernorm", width) : -1;
    l->norm_mlp = layer_norm(
        m, i, c->sandwich_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", width);
    declare_mlp(layout, m, i);
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
    m->storage_count = before->storages;
    m->param_count = before->params;
    m->adapter_param_count = before->adapter_params;
}

/* Embedding or head: this rank's rows. */
static int64_t add_vocabulary(struct model *m, const char *name) {
    const struct cut *const rows = &m->division.vocab;
    const int64_t width = m->config.hidden_size;
    const int64_t storage = add_storage(m, PARAM_EMBEDDING, rows->count, width);
    name_param(m, name,
               &(struct param){.storage = storage,
                               .rows = rows->count,
                               .rank = 2,
                               .whole_rows = rows->whole,
                               .whole_cols = width,
                               .from_row = rows->first,
                               .sharers = 1});
    return storage;
}

static void declare_embedding(struct layout *layout, struct model *m) {
    const struct counts before = counts_of(m);
    layout->embedding = add_vocabulary(m, "model.embed_tokens.weight");
    if (model_begins(m) || (model_ends(m) && m->config.tie_word_embeddings)) return;
    leave_to_others(m, &before);
    layout->embedding = -1;
}

static void declare_end(struct layout *layout, struct model *m) {
    const struct model_config *const c = &m->config;
    const struct counts before = counts_of(m);
    layout->final_norm = add_vector(m, PARAM_NORM, "model.norm.weight", c->hidden_size);
    if (!c->tie_word_embeddings) {
        layout->head = add_vocabulary(m, "lm_head.weight");
        m->storages[layout->head].unit = UNIT_HEAD;
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
    TRY(division_of(&m->division, c, m->options.mesh, e));
    m->group = division_group(m->options.mesh);
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

void layout_release(struct layout *layout) {
    mem_free(layout->layers);
    mem_free(layout->target_hit);
    *layout = (struct layout){0};
}
