/* init.c - fresh parameters.
 *
 * Every value is a pure function of (seed, name, element), so a model starts the same whatever
 * the device, the rank or the order of calls. */
#include <math.h>

#include "base/mem.h"
#include "engine/model/shard_weights.h"
#include "engine/model/weights.h"
#include "kernels/philox.h"

/* FNV-1a of the name, the second half of the key. */
static uint64_t name_hash(const char *name) {
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (; *name; name++) {
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001B3);
    }
    return hash;
}

/* Four uniform values in (0,1) at an element quad. */
static void uniform_quad(uint64_t key, uint64_t quad, double out[4]) {
    const struct philox counter = {{(uint32_t)quad, (uint32_t)(quad >> 32), 0, 1}};
    const struct philox block = philox(counter, (uint32_t)key, (uint32_t)(key >> 32));
    for (int i = 0; i < 4; i++) {
        out[i] = ((double)block.word[i] + 0.5) / 4294967296.0;
    }
}

/* Elements first..first + count of a tensor that is drawn. */
static void fill_uniform(float *out, int64_t first, int64_t count, uint64_t key, double bound) {
    const int64_t quad = first / 4, end = first + count;
#pragma omp parallel for schedule(static)
    for (int64_t q = quad; q < (end + 3) / 4; q++) {
        double u[4];
        uniform_quad(key, (uint64_t)q, u);
        for (int64_t i = 0; i < 4; i++) {
            const int64_t at = 4 * q + i;
            if (at >= first && at < end) out[at - first] = (float)((2 * u[i] - 1) * bound);
        }
    }
}

/* The block of it that is here. */
static void fill_block(const struct param *p, int64_t cols, uint64_t key, float *out) {
    const double bound = 1 / sqrt((double)p->whole_cols);
    const int64_t at = p->from_row * p->whole_cols + p->from_col;
    if (cols == p->whole_cols) {
        fill_uniform(out, at, p->rows * cols, key, bound);
        return;
    }
    for (int64_t row = 0; row < p->rows; row++) {
        fill_uniform(out + row * cols, at + row * p->whole_cols, cols, key, bound);
    }
}

static enum status put(const struct model *m, const struct param *p, const float *values,
                       struct err *e) {
    struct tensor *view = model_param_view(m, p, true);
    const enum status status = tensor_upload(view, values, e);
    tensor_release(view);
    return status;
}

static enum status init_magnitude(const struct model *m, const struct linear *l,
                                  const struct lora *a, struct err *e) {
    struct device *const device = m->space->device;
    const int64_t cols = l->weight->cols;
    struct tensor *wide = NULL;
    TRY(tensor_new(m->space, DTYPE_F32, a->rows, cols, CATEGORY_WORKSPACE, &wide, e));
    const struct convert_args copy = {.rows = a->rows,
                                      .cols = cols,
                                      .scale = 1,
                                      .src = tensor_matrix_at(l->weight, a->first_row, 0),
                                      .dst = tensor_matrix(wide)};
    const struct row_norm_args norm = {.rows = a->rows,
                                       .cols = cols,
                                       .x = tensor_f32(wide),
                                       .ld = wide->ld,
                                       .out = tensor_f32(a->magnitude)};
    enum status status = device_convert(device, &copy, e);
    if (status == STATUS_OK) status = device_row_norm(device, &norm, e);
    tensor_release(wide);
    return status == STATUS_OK && l->inputs_shared ? group_length(l->inputs_shared, a->magnitude, e)
                                                   : status;
}

static enum status init_layer_magnitudes(const struct model *m, const struct linear *l,
                                         struct err *e) {
    struct tensor *scratch = NULL;
    enum status status = linear_open_weight(l, &scratch, e);
    for (int64_t a = 0; status == STATUS_OK && a < l->adapter_count; a++) {
        status = init_magnitude(m, l, &l->adapters[a], e);
    }
    linear_close_weight(l, &scratch);
    return status;
}

static enum status init_magnitudes(struct model *m, struct err *e) {
    for (int64_t i = 0; i < m->config.layers; i++) {
        const struct layer *const layer = &m->layers[i];
        TRY(shard_gather(m, i, UNIT_NONE, e));
        const struct linear *const all[] = {&layer->qkv, &layer->o, &layer->gate_up, &layer->down};
        for (size_t k = 0; k < COUNT_OF(all); k++) {
            TRY(init_layer_magnitudes(m, all[k], e));
        }
        shard_let_go(m, i);
    }
    return STATUS_OK;
}

enum status weights_init_adapter(struct model *m, uint64_t seed, struct err *e) {
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < m->adapter_param_count; i++) {
        const struct param *const p = &m->adapter_params[i];
        const struct storage *const s = &m->storages[p->storage];
        /* A device that computes nothing wants no values. */
        if (s->kind == PARAM_MAGNITUDE || !m->space->device->computes) continue;
        float *const values = mem_new((size_t)(p->rows * s->cols), sizeof *values);
        if (s->kind == PARAM_LORA_A) {
            const uint64_t key = philox_stream_key(seed, name_hash(p->name));
            fill_block(p, s->cols, key, values);
        }
        status = put(m, p, values, e);
        mem_free(values);
    }
    if (status == STATUS_OK && m->options.use_dora) status = init_magnitudes(m, e);
    return status == STATUS_OK ? model_refresh(m, e) : status;
}
