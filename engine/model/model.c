/* model.c - memory for a model: storages are laid out, allocated, and handed to the layers.
 *
 * The order of allocation is fixed, because the planner must see the same one. */
#include "engine/model/model.h"

#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/model/layout.h"

static bool is_matrix(enum param_kind kind) {
    return kind == PARAM_WEIGHT || kind == PARAM_EMBEDDING;
}

static bool is_adapter(enum param_kind kind) {
    return kind == PARAM_LORA_A || kind == PARAM_LORA_B || kind == PARAM_MAGNITUDE;
}

/* Decayed ones first, so that the optimizer needs two calls and no table. */
static void place_trainables(struct model *m) {
    m->trainable_count = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < m->storage_count; i++) {
            struct storage *const s = &m->storages[i];
            if (pass == 0) s->flat_first = -1;
            if (!s->trainable || s->decayed != (pass == 0)) continue;
            s->flat_first = m->trainable_count;
            m->trainable_count += s->rows * s->cols;
        }
        if (pass == 0) m->decayed_count = m->trainable_count;
    }
}

static enum status allocate_flat(struct model *m, struct err *e) {
    if (m->trainable_count == 0) return STATUS_OK;
    const enum category category = m->options.full ? CATEGORY_WEIGHTS : CATEGORY_ADAPTERS;
    TRY(tensor_new(m->space, DTYPE_F32, 1, m->trainable_count, category, &m->flat, e));
    return tensor_new(m->space, DTYPE_F32, 1, m->trainable_count, CATEGORY_GRADIENTS, &m->gradients,
                      e);
}

static void give_gradient(struct model *m, const struct storage *s) {
    tensor_want_gradient(s->value);
    struct gradient *const g = s->value->gradient;
    g->persistent = true;
    g->value = tensor_view_flat(m->gradients, s->flat_first, s->rows, s->cols);
}

static enum status allocate_storage(struct model *m, struct storage *s, struct err *e) {
    const enum dtype dtype = is_matrix(s->kind) ? m->options.weight_dtype : DTYPE_F32;
    if (s->trainable) s->master = tensor_view_flat(m->flat, s->flat_first, s->rows, s->cols);
    if (s->trainable && dtype == DTYPE_F32) {
        s->value = tensor_retain(s->master);
    } else {
        const enum category category = is_adapter(s->kind) ? CATEGORY_ADAPTERS : CATEGORY_WEIGHTS;
        TRY(tensor_new(m->space, dtype, s->rows, s->cols, category, &s->value, e));
    }
    if (s->trainable) give_gradient(m, s);
    return STATUS_OK;
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

enum status model_build(struct model *m, const struct model_config *config,
                        const struct model_options *options, struct tensor_space *space,
                        struct err *e) {
    *m = (struct model){.config = *config, .options = *options, .space = space};
    m->layers = mem_new((size_t)config->layers, sizeof *m->layers);
    struct layout layout = {0};
    enum status status = layout_declare(&layout, m, e);
    if (status == STATUS_OK) {
        place_trainables(m);
        status = allocate_flat(m, e);
    }
    for (size_t i = 0; status == STATUS_OK && i < m->storage_count; i++) {
        status = allocate_storage(m, &m->storages[i], e);
    }
    if (status == STATUS_OK) status = upload_frequencies(m, e);
    if (status == STATUS_OK) layout_connect(&layout, m);
    layout_release(&layout);
    m->options.target_modules = NULL;
    for (size_t i = 0; i < m->param_count; i++) {
        const struct param *const p = &m->params[i];
        m->parameter_count += p->rank == 1 ? p->rows : p->rows * m->storages[p->storage].cols;
    }
    return status;
}

void model_release(struct model *m) {
    if (!m) return;
    for (size_t i = 0; i < m->storage_count; i++) {
        tensor_release(m->storages[i].master);
        tensor_release(m->storages[i].value);
    }
    tensor_release(m->inv_freq[0]);
    tensor_release(m->inv_freq[1]);
    tensor_release(m->flat);
    tensor_release(m->gradients);
    mem_free(m->storages);
    mem_free(m->params);
    mem_free(m->adapter_params);
    mem_free(m->layers);
    *m = (struct model){0};
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

enum status model_refresh(struct model *m, struct err *e) {
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (!s->master || s->master == s->value) continue;
        const struct convert_args args = {.rows = s->rows,
                                          .cols = s->cols,
                                          .src = tensor_matrix(s->master),
                                          .dst = tensor_matrix(s->value)};
        TRY(device_convert(m->space->device, &args, e));
    }
    return STATUS_OK;
}
