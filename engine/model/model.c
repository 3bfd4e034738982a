/* model.c - memory for a model: storages are laid out, allocated, and handed to the layers.
 *
 * The order of allocation is fixed, because the planner must see the same one. */
#include "engine/model/model.h"

#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/model/layout.h"
#include "engine/model/quantised.h"
#include "engine/model/replicated.h"
#include "engine/model/shard.h"
#include "engine/model/shard_weights.h"
#include "engine/model/units.h"

static bool is_adapter(enum param_kind kind) {
    return kind == PARAM_LORA_A || kind == PARAM_LORA_B || kind == PARAM_MAGNITUDE;
}

/* Whether forward reads some trained thing from a rounded copy of its master that stays here. In
 * tails it does not: those are written one by one. */
static bool needs_copies(const struct model *m) {
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (units_are_away(m) && s->unit != UNIT_VECTORS) continue;
        if (s->trainable && s->inside < 0 && !storage_is_narrow(m, s) &&
            units_value_dtype(m, s->kind) != DTYPE_F32) {
            return true;
        }
    }
    return false;
}

static enum dtype copies_dtype(const struct model *m) {
    return m->options.full ? m->options.weight_dtype : m->space->device->activation_dtype;
}

/* Zeroed, because of the gaps. */
static enum status allocate_flat(struct model *m, struct err *e) {
    if (m->flat_count == 0) return STATUS_OK;
    const enum category category = m->options.full ? CATEGORY_WEIGHTS : CATEGORY_ADAPTERS;
    const int64_t wide = m->held_count - m->flat_from;
    struct tensor_space *const space = m->space;
    if (m->narrow_count > 0) {
        TRY(tensor_new(space, m->options.weight_dtype, 1, m->narrow_count, category,
                       &m->flat_narrow, e));
        TRY(tensor_fill_zero(m->flat_narrow, e));
    }
    if (wide > 0) {
        TRY(tensor_new(space, DTYPE_F32, 1, wide, category, &m->flat, e));
        TRY(tensor_fill_zero(m->flat, e));
    }
    if (needs_copies(m)) {
        const int64_t count = units_are_away(m)       ? wide
                              : units_are_gathered(m) ? m->held_count
                                                      : m->flat_count;
        TRY(tensor_new(space, copies_dtype(m), 1, count, category, &m->copies, e));
    }
    TRY(shard_open(m, e));
    const int64_t summed = shard_is_on(m) ? m->own_count : m->flat_count;
    TRY(tensor_new(space, DTYPE_F32, 1, summed, CATEGORY_GRADIENTS, &m->gradients, e));
    return tensor_fill_zero(m->gradients, e);
}

static void give_gradient(struct model *m, const struct storage *s) {
    tensor_want_gradient(s->value);
    struct gradient *const g = s->value->gradient;
    g->persistent = true;
    g->dtype = DTYPE_F32;
    if (shard_is_on(m)) return; /* handed out unit by unit */
    g->value = tensor_view_flat(m->gradients, s->flat_first, s->rows, s->cols);
}

/* What is trained is a piece of the flat buffer; of a frozen bias that is narrower in forward, the
 * full precision is kept too, because a sum after DoRA's magnitudes wants it. */
static enum status allocate_master(struct model *m, struct storage *s, struct err *e) {
    if (storage_is_divided(m, s)) {
        const enum dtype dtype =
            storage_is_narrow(m, s) ? units_value_dtype(m, s->kind) : DTYPE_F32;
        s->master = tensor_hollow(m->space, dtype, s->rows, s->cols);
    } else if (s->trainable && storage_is_narrow(m, s)) {
        s->master = tensor_view_flat(m->flat_narrow, units_held(m, s), s->rows, s->cols);
    } else if (s->trainable) {
        s->master = tensor_view_flat(m->flat, units_held(m, s) - m->flat_from, s->rows, s->cols);
    } else if (s->kind == PARAM_BIAS && units_value_dtype(m, s->kind) != DTYPE_F32) {
        return tensor_new(m->space, DTYPE_F32, s->rows, s->cols, CATEGORY_WEIGHTS, &s->master, e);
    }
    return STATUS_OK;
}

/* As a block of a matrix whose bytes come and go. */
static struct tensor *hollow_block(struct model *m, const struct storage *s, int64_t ld) {
    struct tensor *const t = tensor_hollow(m->space, m->options.weight_dtype, s->rows, s->cols);
    t->ld = ld;
    return t;
}

/* Everything of a layer's weight and adapters in one matrix; zero where there is neither. */
static enum status allocate_augmented(struct model *m, struct storage *s, struct err *e) {
    if (storage_is_sharded(m, s)) {
        s->augmented = tensor_hollow(m->space, m->options.weight_dtype, s->rows + s->tail, s->cols);
        s->augmented->ld = tail_pitch(s);
        s->value = hollow_block(m, s, s->augmented->ld);
        return STATUS_OK;
    }
    const struct shape shape = {.dtype = m->options.weight_dtype,
                                .rows = s->rows + s->tail,
                                .cols = s->cols,
                                .tail = s->tail};
    TRY(tensor_make(m->space, &shape, CATEGORY_WEIGHTS, &s->augmented, e));
    TRY(tensor_fill_zero(s->augmented, e));
    s->value = tensor_view_block(s->augmented, 0, s->rows, 0, s->cols);
    return STATUS_OK;
}

/* An adapter as a block of the matrix of its layer. */
static struct tensor *tail_view(struct model *m, const struct storage *s) {
    const struct storage *const weight = &m->storages[s->inside];
    if (storage_is_quantised(weight)) return quantised_tail_view(weight, s);
    if (storage_is_sharded(m, weight)) return hollow_block(m, s, weight->augmented->ld);
    return tensor_view_block(weight->augmented, s->inside_row, s->rows, s->inside_col, s->cols);
}

static enum status allocate_value(struct model *m, struct storage *s, struct err *e) {
    const enum dtype dtype = units_value_dtype(m, s->kind);
    if (s->inside >= 0) {
        s->value = tail_view(m, s);
    } else if (storage_is_quantised(s)) {
        return quantised_allocate(m, s, e);
    } else if (s->tail > 0) {
        return allocate_augmented(m, s, e);
    } else if (s->trainable && s->master->dtype == dtype) {
        s->value = tensor_retain(s->master);
    } else if (s->trainable && !storage_is_sharded(m, s)) {
        ASSERT(m->copies->dtype == dtype);
        s->value = tensor_view_flat(m->copies, units_copied(m, s), s->rows, s->cols);
    } else if (storage_is_sharded(m, s)) {
        s->value = tensor_hollow(m->space, dtype, s->rows, s->cols);
    } else {
        const enum category category = is_adapter(s->kind) ? CATEGORY_ADAPTERS : CATEGORY_WEIGHTS;
        return tensor_new(m->space, dtype, s->rows, s->cols, category, &s->value, e);
    }
    return STATUS_OK;
}

static enum status allocate_storage(struct model *m, struct storage *s, struct err *e) {
    TRY(allocate_master(m, s, e));
    TRY(allocate_value(m, s, e));
    if (s->trainable) give_gradient(m, s);
    return STATUS_OK;
}

/* An adapter inside its layer's matrix. */
static bool in_tail(const struct storage *s) {
    return s->trainable && s->inside >= 0;
}

/* One item for every adapter in a tail, so that a step makes all of them in one go. Tails that come
 * and go are made when they come (shard_weights.c). */
static enum status list_tails(struct model *m, struct err *e) {
    struct convert_item *const items = mem_new(m->storage_count, sizeof *items);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (!in_tail(s) || tails_are_gathered(m, &m->storages[s->inside])) continue;
        ASSERT(s->master->dtype == DTYPE_F32 && s->value->dtype == m->options.weight_dtype);
        items[m->tail_count++] = (struct convert_item){.src = s->master->data,
                                                       .dst = s->value->data,
                                                       .rows = s->rows,
                                                       .cols = s->cols,
                                                       .ld_src = s->master->ld,
                                                       .ld_dst = s->value->ld,
                                                       .scale = (double)s->scale};
        m->tail_elements += s->rows * s->cols;
        if (s->rows * s->cols > m->tail_largest) m->tail_largest = s->rows * s->cols;
    }
    if (m->tail_count > 0) {
        const int64_t words = m->tail_count * (int64_t)(sizeof *items / sizeof(int64_t));
        GUARD(tensor_new(m->space, DTYPE_I64, 1, words, CATEGORY_ADAPTERS, &m->tail_items, e));
        GUARD(tensor_upload(m->tail_items, items, e));
    }
done:
    mem_free(items);
    return status;
}

static enum status upload_frequencies(struct model *m, struct err *e) {
    const int64_t half = m->config.rotary_dim / 2;
    float *const table = mem_new((size_t)half, sizeof *table);
    const struct rope_config *const ropes[] = {&m->config.rope, &m->config.rope_local};
    enum status status = STATUS_OK;
    for (int i = 0; i < (m->config.has_rope_local ? 2 : 1); i++) {
        rope_frequencies(&m->config, ropes[i], m->options.length_max, table, &m->rope_scale[i]);
        GUARD(tensor_new(m->space, DTYPE_F32, 1, half, CATEGORY_WEIGHTS, &m->inv_freq[i], e));
        GUARD(tensor_upload(m->inv_freq[i], table, e));
    }
done:
    mem_free(table);
    return status;
}

static bool has_parts(const struct model_options *o) {
    return o->mesh && o->mesh->axis[AXIS_TENSOR].world * o->mesh->axis[AXIS_PIPELINE].world > 1;
}

/* Declared as if this rank were alone. */
static enum status declare_whole(struct model *m, struct err *e) {
    struct model alone = {.config = m->config, .options = m->options, .space = m->space};
    struct layout layout = {0};
    if (!has_parts(&m->options)) return STATUS_OK;
    alone.options.mesh = NULL;
    alone.options.first_layer = 0;
    alone.options.end_layer = m->config.layers;
    const enum status status = layout_declare(&layout, &alone, e);
    layout_release(&layout);
    const bool full = m->options.full;
    m->whole = full ? alone.params : alone.adapter_params;
    m->whole_count = full ? alone.param_count : alone.adapter_param_count;
    mem_free(full ? alone.adapter_params : alone.params);
    mem_free(alone.storages);
    return status;
}

static int64_t count_whole(const struct model *m) {
    int64_t elements = 0;
    for (size_t i = 0; i < m->whole_count; i++) {
        elements += m->whole[i].whole_rows * m->whole[i].whole_cols;
    }
    return elements;
}

enum status model_build(struct model *m, const struct model_config *config,
                        const struct model_options *options, struct tensor_space *space,
                        struct err *e) {
    *m = (struct model){.config = *config, .options = *options, .space = space};
    if (m->options.end_layer == 0) m->options.end_layer = config->layers;
    m->parameter_count = model_parameter_count(config);
    m->layers = mem_new((size_t)config->layers, sizeof *m->layers);
    struct layout layout = {0};
    enum status status = declare_whole(m, e);
    if (status == STATUS_OK) status = layout_declare(&layout, m, e);
    if (status == STATUS_OK) status = quantised_declare(m, e);
    if (status == STATUS_OK) {
        units_place(m);
        if (m->whole) m->trainable_elsewhere = count_whole(m) - m->trainable_count;
        status = allocate_flat(m, e);
    }
    if (status == STATUS_OK) status = replicated_open(m, e);
    if (status == STATUS_OK) status = shard_weights_open(m, e);
    for (size_t i = 0; status == STATUS_OK && i < m->storage_count; i++) {
        status = allocate_storage(m, &m->storages[i], e);
    }
    if (status == STATUS_OK) status = list_tails(m, e);
    if (status == STATUS_OK) status = upload_frequencies(m, e);
    if (status == STATUS_OK) layout_connect(&layout, m);
    layout_release(&layout);
    m->options.target_modules = NULL;
    return status;
}

bool model_begins(const struct model *m) {
    return m->options.first_layer == 0;
}

bool model_ends(const struct model *m) {
    return m->options.end_layer == m->config.layers;
}

void model_release(struct model *m) {
    if (!m) return;
    replicated_close(m);
    shard_close(m);
    shard_weights_close(m);
    for (size_t i = 0; i < m->storage_count; i++) {
        tensor_release(m->storages[i].master);
        tensor_release(m->storages[i].value);
        tensor_release(m->storages[i].augmented);
        quantised_release(&m->storages[i]);
    }
    tensor_release(m->tail_items);
    tensor_release(m->inv_freq[0]);
    tensor_release(m->inv_freq[1]);
    tensor_release(m->flat);
    tensor_release(m->flat_narrow);
    tensor_release(m->gradients);
    tensor_release(m->copies);
    mem_free(m->spans);
    mem_free(m->units);
    mem_free(m->parts);
    mem_free(m->storages);
    mem_free(m->params);
    mem_free(m->adapter_params);
    mem_free(m->whole);
    mem_free(m->layers);
    *m = (struct model){0};
}

const struct param *model_whole_params(const struct model *m, size_t *count) {
    const bool full = m->options.full;
    *count = m->whole ? m->whole_count : full ? m->param_count : m->adapter_param_count;
    return m->whole ? m->whole : full ? m->params : m->adapter_params;
}

int64_t model_param_cols(const struct model *m, const struct param *p) {
    return p->rank == 1 ? 1 : m->storages[p->storage].cols;
}

static struct tensor *rows_of(const struct param *p, struct tensor *whole) {
    return p->rank == 1 ? tensor_view_flat(whole, p->first_row, 1, p->rows)
                        : tensor_view_rows(whole, p->first_row, p->rows);
}

struct tensor *model_param_view(const struct model *m, const struct param *p, bool master) {
    const struct storage *const s = &m->storages[p->storage];
    return rows_of(p, master && s->master ? s->master : s->value);
}

struct tensor *model_param_gradient(const struct model *m, const struct param *p) {
    const struct storage *const s = &m->storages[p->storage];
    return s->trainable ? rows_of(p, s->value->gradient->value) : NULL;
}

void model_begin_gradients(struct model *m) {
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (s->trainable) s->value->gradient->stale = true;
    }
}

enum status model_end_gradients(struct model *m, struct err *e) {
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (!s->trainable || !s->value->gradient->stale) continue;
        TRY(tensor_fill_zero(s->value->gradient->value, e));
        s->value->gradient->stale = false;
    }
    return STATUS_OK;
}

enum status model_refresh(struct model *m, struct err *e) {
    TRY(shard_refresh(m, e));
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (!s->master || s->master == s->value || in_tail(s) || storage_is_divided(m, s)) continue;
        TRY(tensor_convert(s->value, s->master, s->scale, e));
    }
    return model_refresh_tails(m, e);
}

enum status model_refresh_tails(struct model *m, struct err *e) {
    if (m->tail_count == 0) return STATUS_OK;
    const struct convert_items_args args = {.count = m->tail_count,
                                            .items = m->tail_items->data,
                                            .src_dtype = DTYPE_F32,
                                            .dst_dtype = m->options.weight_dtype,
                                            .largest = m->tail_largest,
                                            .elements = m->tail_elements};
    return device_convert_items(m->space->device, &args, e);
}
