/* layouts.c - enumerating and naming them.
 *
 * Degrees are divisors of the number of ranks. Tensor parallel ranks exchange four times a layer,
 * so they never leave a machine (Narayanan et al. 2021, section 5.3). */
#include "engine/train/layouts.h"

#include <string.h>

#include "base/str.h"

enum { STAGES_MAX = 16, ZERO_MAX = 3, OFFLOADS_MAX = 5 };

struct list {
    struct layout_choice *items;
    int count;
};

static void add(struct list *l, const struct layout_choice *choice) {
    if (l->count < LAYOUTS_MAX) l->items[l->count++] = *choice;
}

static int64_t data_of(const struct layout_choice *c) {
    return c->ranks / (c->tensor * c->pipeline);
}

/* Stage 3 among the ranks of one machine, copies of it on the others. */
static void add_hybrid(struct list *l, const struct layout_choice *base, int64_t per_node) {
    struct layout_choice c = *base;
    c.rung = RUNG_REST;
    c.zero_stage = ZERO_MAX;
    c.shard = per_node / c.tensor;
    if (c.shard > 1 && data_of(&c) > c.shard && data_of(&c) % c.shard == 0) add(l, &c);
}

/* With a pipeline only the first stage: the others would gather and sum again for every
 * micro-batch. */
static void add_stages_of_zero(struct list *l, const struct layout_choice *base) {
    struct layout_choice c = *base;
    const bool plain = c.tensor == 1 && c.pipeline == 1;
    const int64_t most = c.pipeline > 1 ? 1 : ZERO_MAX, last = data_of(&c) > 1 ? most : 0;
    for (int64_t stage = 0; stage <= last; stage++) {
        c.zero_stage = stage;
        if (plain) c.rung = stage == 0 ? RUNG_DATA : RUNG_ZERO;
        add(l, &c);
    }
}

static bool tensor_fits(int64_t ranks, int64_t per_node, int64_t tensor) {
    if (tensor > per_node || ranks % tensor != 0) return false;
    return ranks <= per_node || per_node % tensor == 0;
}

static void add_meshes(struct list *l, const struct layout_choice *base, int64_t per_node,
                       int64_t layers) {
    for (int64_t t = 1; t <= base->ranks; t++) {
        if (!tensor_fits(base->ranks, per_node, t)) continue;
        for (int64_t p = 1; p <= base->ranks / t && p <= layers && p <= STAGES_MAX; p++) {
            struct layout_choice c = *base;
            if (base->ranks / t % p != 0 || (base->ranks > 64 && (p & (p - 1)))) continue;
            c.tensor = t;
            c.pipeline = p;
            if (t > 1 || p > 1) add_stages_of_zero(l, &c);
            if (p == 1) add_hybrid(l, &c, per_node);
        }
    }
}

/* The states of AdamW leave, or weights; with the two extremes of dividing weights. */
static void add_offloading(struct list *l, const struct layout_choice *base, int64_t per_node) {
    struct layout_choice c = *base;
    c.rung = RUNG_OFFLOAD;
    c.offloads_optimizer = true;
    add(l, &c);
    c.zero_stage = ZERO_MAX;
    if (c.ranks > 1) add(l, &c);
    c.offloads_optimizer = false;
    c.offloads_weights = true;
    if (c.ranks > 1) add(l, &c);
    c.zero_stage = 0;
    add(l, &c);
    c.offloads_optimizer = true;
    c.offloads_weights = false;
    c.tensor = c.ranks < per_node ? c.ranks : per_node;
    if (c.tensor > 1 && tensor_fits(c.ranks, per_node, c.tensor)) add(l, &c);
}

int layouts_list(int64_t ranks, int64_t per_node, int64_t layers, struct layout_choice *out) {
    struct list l = {.items = out};
    const struct layout_choice base = {
        .rung = RUNG_REST, .ranks = ranks, .tensor = 1, .pipeline = 1};
    add_stages_of_zero(&l, &base);
    add_meshes(&l, &base, per_node, layers);
    if (l.count > LAYOUTS_MAX - OFFLOADS_MAX) l.count = LAYOUTS_MAX - OFFLOADS_MAX;
    add_offloading(&l, &base, per_node);
    return l.count;
}

static void append_part(struct str *text, const char *name, int64_t degree) {
    if (degree > 1) str_appendf(text, "%s%s %lld", text->len ? " x " : "", name, (long long)degree);
}

char *layout_choice_name(const struct layout_choice *c) {
    struct str text = {0};
    const int64_t data = data_of(c);
    append_part(&text, "tensor", c->tensor);
    append_part(&text, "pipeline", c->pipeline);
    const bool mesh = text.len > 0;
    if (c->zero_stage == 0) {
        if (mesh) append_part(&text, "data", data);
        if (!mesh && c->ranks == 1) str_append(&text, "one rank");
        if (!mesh && c->ranks > 1) str_appendf(&text, "data parallel over %lld", (long long)data);
    } else {
        const int64_t shard = c->shard ? c->shard : data;
        str_appendf(&text, "%sZeRO %lld over %lld", mesh ? " x " : "", (long long)c->zero_stage,
                    (long long)shard);
        if (shard < data) str_appendf(&text, ", %lld copies", (long long)(data / shard));
    }
    if (c->offloads_optimizer) str_append(&text, ", optimizer in host memory");
    if (c->offloads_weights) str_append(&text, ", weights in host memory");
    return str_take(&text);
}

cJSON *layout_choice_keys(const struct layout_choice *c, const struct spec *spec) {
    cJSON *const keys = cJSON_CreateObject();
    cJSON *const parallel = cJSON_AddObjectToObject(keys, "parallel");
    json_add_string(parallel, "layout", "given");
    json_add_i64(parallel, "ranks", c->ranks);
    json_add_i64(parallel, "zero_stage", c->zero_stage);
    json_add_i64(parallel, "tensor_parallel_degree", c->tensor);
    json_add_i64(parallel, "pipeline_parallel_degree", c->pipeline);
    json_add_i64(parallel, "data_parallel_shard_degree", c->shard);
    const int64_t rows = spec->per_device_train_batch_size;
    const int64_t steps = spec->gradient_accumulation_steps;
    if (rows != SPEC_AUTO) {
        /* A pipeline wants many micro-batches. */
        const int64_t wider = c->pipeline > 1 ? 1 : c->tensor;
        json_add_i64(keys, "per_device_train_batch_size", rows * wider);
        json_add_i64(keys, "gradient_accumulation_steps", steps * c->tensor * c->pipeline / wider);
    } else if (steps > 1) { /* with 1, as many rows as fit, and not a batch of one row */
        json_add_i64(keys, "gradient_accumulation_steps", steps * c->tensor * c->pipeline);
    }
    json_add_bool(keys, "optimizer_offloading", c->offloads_optimizer);
    json_add_bool(keys, "param_offloading", c->offloads_weights);
    return keys;
}
