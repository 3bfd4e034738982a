/* weights.c - loading and saving.
 *
 * What is read goes through the ring of load.c, what is written through a host buffer of
 * STAGING_ELEMENTS: a model larger than host memory loads as well as a small one. */
#include "engine/model/weights.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model/load.h"
#include "engine/model/quantised.h"
#include "engine/model/shard_weights.h"

enum { STAGING_ELEMENTS = 1 << 20 };

static enum status check_shape(const struct st_tensor *t, const struct param *p, struct err *e) {
    const int64_t rows = p->whole_rows, cols = p->whole_cols;
    const bool vector = t->rank == 1 && p->rank == 1 && t->shape[0] == rows;
    const bool matrix = t->rank == 2 && p->rank == 2 && t->shape[0] == rows && t->shape[1] == cols;
    if (vector || matrix) return STATUS_OK;
    if (t->rank == 2) {
        return err_set(e, STATUS_INVALID,
                       "%s: %s has the shape [%lld, %lld], config.json says [%lld, %lld]", t->file,
                       t->name, (long long)t->shape[0], (long long)t->shape[1], (long long)rows,
                       (long long)cols);
    }
    return err_set(e, STATUS_INVALID,
                   "%s: %s has %lld dimensions and %lld elements, config.json says %lld elements",
                   t->file, t->name, (long long)t->rank, (long long)t->elements,
                   (long long)(p->rank == 1 ? rows : rows * cols));
}

/* Names and shapes that a config wants, against what is stored. */
struct check {
    const struct st_set *set;
    struct err *e;
    enum status status;
};

static bool check_tensor(void *context, const struct model_tensor *wanted) {
    struct check *const check = context;
    const struct st_tensor *const t = st_find(check->set, wanted->name);
    const char *const file = check->set->map_count ? check->set->paths[0] : "the weights";
    if (!t) {
        check->status =
            err_set(check->e, STATUS_INVALID, "%s: the tensor %s is missing", file, wanted->name);
        return false;
    }
    const struct param p = {.rank = wanted->rank,
                            .whole_rows = wanted->shape[0],
                            .whole_cols = wanted->rank == 2 ? wanted->shape[1] : 1};
    check->status = check_shape(t, &p, check->e);
    return check->status == STATUS_OK;
}

enum status weights_check(const struct model_config *config, const struct st_set *set,
                          struct err *e) {
    struct check check = {.set = set, .e = e, .status = STATUS_OK};
    model_tensors(config, check_tensor, &check);
    return check.status;
}

enum status weights_read_tensor(const struct st_tensor *t, struct tensor *to, struct err *e) {
    const struct load_item item = {.from = t, .to = to};
    return load_items(&item, 1, e);
}

static enum st_dtype stored_dtype(enum dtype dtype) {
    return dtype == DTYPE_BF16 ? ST_BF16 : dtype == DTYPE_F16 ? ST_F16 : ST_F32;
}

/* Elements of a matrix without gaps, or some rows of one with gaps. */
static enum status download_piece(const struct tensor *t, int64_t first, int64_t part, void *to,
                                  struct err *e) {
    const int64_t size = dtype_bytes(t->dtype);
    if (t->ld == t->cols || t->rows == 1) {
        return device_download(t->space->device, to, (const char *)t->data + first * size,
                               part * size, e);
    }
    const struct transfer rows = {.device = tensor_matrix_at(t, first / t->cols, 0).data,
                                  .device_pitch = t->ld * size,
                                  .host = to,
                                  .host_pitch = t->cols * size,
                                  .width = t->cols * size,
                                  .rows = part / t->cols};
    return device_download_rows(t->space->device, &rows, e);
}

enum status weights_write_tensor(const struct tensor *t, enum st_dtype dtype, struct st_writer *w,
                                 struct err *e) {
    ASSERT(dtype == ST_F32 || dtype == ST_BF16);
    const int64_t count = tensor_count(t), size = dtype_bytes(t->dtype);
    /* Whole rows, where there is more than one. */
    const int64_t step =
        t->rows == 1 ? STAGING_ELEMENTS : (STAGING_ELEMENTS + t->cols - 1) / t->cols * t->cols;
    const int64_t largest = count < step ? count : step;
    void *const staging = mem_new((size_t)largest, (size_t)size);
    void *const converted = mem_new((size_t)largest, (size_t)st_dtype_bytes(dtype));
    enum status status = STATUS_OK;
    for (int64_t first = 0; first < count; first += step) {
        const int64_t part = count - first < step ? count - first : step;
        GUARD(download_piece(t, first, part, staging, e));
        const struct st_tensor piece = {.name = "staging",
                                        .dtype = stored_dtype(t->dtype),
                                        .elements = part,
                                        .bytes = part * size,
                                        .data = staging};
        GUARD(dtype == ST_BF16 ? st_read_bf16(&piece, 0, part, converted, e)
                               : st_read_f32(&piece, 0, part, converted, e));
        GUARD(st_writer_data(w, converted, part * st_dtype_bytes(dtype), e));
    }
done:
    mem_free(staging);
    mem_free(converted);
    return status;
}

/* Where one parameter comes from and goes to. The master takes the full precision of the file;
 * model_refresh makes what forward reads. */
static enum status item_of(const struct model *m, const struct param *p, const struct st_set *set,
                           struct load_item *item, struct err *e) {
    item->from = st_find(set, p->name);
    FAIL_IF(!item->from, STATUS_INVALID, "%s: the tensor %s is missing",
            set->map_count ? set->paths[0] : "weights", p->name);
    TRY(check_shape(item->from, p, e));
    quantised_target(m, p, item);
    if (!item->layout) item->to = model_param_view(m, p, true);
    item->first = p->from_row * p->whole_cols + p->from_col;
    item->pitch = p->rank == 1 ? 0 : p->whole_cols;
    return STATUS_OK;
}

/* The unit that a parameter is filled with, or UNIT_NONE: its bytes are always there. */
static int64_t filled_with(const struct model *m, const struct param *p) {
    const struct storage *const s = &m->storages[p->storage];
    return storage_is_sharded(m, s) || storage_is_divided(m, s) ? s->unit : UNIT_NONE;
}

static bool has_params_of(const struct model *m, const struct param *params, size_t count,
                          int64_t unit) {
    for (size_t i = 0; i < count; i++) {
        if (filled_with(m, &params[i]) == unit) return true;
    }
    return false;
}

static enum status load_unit(struct model *m, const struct param *params, size_t count,
                             const struct st_set *set, int64_t unit, struct err *e) {
    struct load_item *const items = mem_new(count, sizeof *items);
    enum status status = STATUS_OK;
    size_t used = 0;
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        if (filled_with(m, &params[i]) != unit) continue;
        status = item_of(m, &params[i], set, &items[used], e);
        used += status == STATUS_OK;
    }
    if (status == STATUS_OK) status = load_items(items, used, e);
    for (size_t i = 0; i < used; i++) {
        tensor_release(items[i].to);
    }
    mem_free(items);
    return status;
}

enum status weights_load_params(struct model *m, const struct param *params, size_t count,
                                const struct st_set *set, struct err *e) {
    TRY(load_unit(m, params, count, set, UNIT_NONE, e));
    for (int64_t i = UNIT_HEAD; i < m->config.layers; i++) {
        if (!has_params_of(m, params, count, i)) continue;
        TRY(shard_fill_begin(m, i, e));
        TRY(load_unit(m, params, count, set, i, e));
        TRY(shard_fill_end(m, i, e));
    }
    return model_refresh(m, e);
}

enum status weights_load_nothing(struct model *m, struct err *e) {
    for (int64_t i = UNIT_HEAD; m->weight_shards && i < m->config.layers; i++) {
        TRY(shard_fill_begin(m, i, e));
        TRY(shard_fill_end(m, i, e));
    }
    return m->away.count > 0 ? shard_refresh(m, e) : STATUS_OK;
}

int64_t weights_staging_bytes(const struct model *m) {
    int64_t elements = 0, widest = 0;
    for (size_t i = 0; i < m->param_count; i++) {
        struct tensor *const view = model_param_view(m, &m->params[i], true);
        const bool codes = storage_is_quantised(&m->storages[m->params[i].storage]);
        const int64_t own = codes ? LOAD_QUANT_BYTES : dtype_bytes(view->dtype);
        elements += tensor_count(view);
        if (own > widest) widest = own;
        tensor_release(view);
    }
    return load_staging_bytes(elements, widest);
}

/* A name that is looked for among those of a whole model. */
struct search {
    const char *name;
    bool found;
};

static bool compare_name(void *context, const struct model_tensor *t) {
    struct search *const search = context;
    search->found = strcmp(t->name, search->name) == 0;
    return !search->found;
}

static bool is_param(const struct model *m, const char *name) {
    struct search search = {.name = name};
    model_tensors(&m->config, compare_name, &search);
    return search.found;
}

enum status weights_load(struct model *m, const struct st_set *set, struct weights_report *report,
                         struct err *e) {
    *report = (struct weights_report){0};
    TRY(weights_load_params(m, m->params, m->param_count, set, e));
    for (int64_t i = 0; i < set->count; i++) {
        if (is_param(m, set->tensors[i].name)) continue;
        if (report->unused++ == 0) {
            strncpy(report->first_unused, set->tensors[i].name, sizeof report->first_unused - 1);
        }
    }
    return STATUS_OK;
}

/* Gives the tensor to write for one parameter; the caller releases it. */
typedef enum status (*source_fn)(const struct model *m, const struct param *p, struct tensor **out,
                                 struct err *e);

static enum status save(const struct model *m, const struct param *params, size_t count,
                        source_fn source, enum st_dtype dtype, const char *path, struct err *e) {
    struct st_writer w = {0};
    for (size_t i = 0; i < count; i++) {
        const struct param *const p = &params[i];
        const int64_t shape[] = {p->rows, m->storages[p->storage].cols};
        st_writer_declare(&w, p->name, dtype, shape, p->rank);
    }
    enum status status = st_writer_begin(&w, path, e);
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        struct tensor *t = NULL;
        status = source(m, &params[i], &t, e);
        if (status == STATUS_OK) status = weights_write_tensor(t, dtype, &w, e);
        tensor_release(t);
    }
    if (status == STATUS_OK) return st_writer_commit(&w, e);
    st_writer_abort(&w);
    return status;
}

static enum status plain_source(const struct model *m, const struct param *p, struct tensor **out,
                                struct err *e) {
    (void)e;
    *out = model_param_view(m, p, true);
    return STATUS_OK;
}

enum status weights_save(const struct model *m, const struct param *params, size_t count,
                         enum st_dtype dtype, const char *path, struct err *e) {
    return save(m, params, count, plain_source, dtype, path, e);
}

/* The linear layer and the adapter that change these rows of a storage, or NULL. */
static const struct linear *linear_of(const struct model *m, const struct tensor *weight) {
    for (int64_t i = 0; i < m->config.layers; i++) {
        const struct layer *const l = &m->layers[i];
        const struct linear *const all[] = {&l->qkv, &l->o, &l->gate_up, &l->down};
        for (size_t k = 0; k < COUNT_OF(all); k++) {
            if (all[k]->weight == weight) return all[k];
        }
    }
    return NULL;
}

static enum status scale_rows_to(struct tensor *merged, const struct lora *a, struct err *e) {
    struct tensor_space *const space = merged->space;
    /* Rows are scaled on the host: a merge happens once, at export. */
    float *const rows = mem_new((size_t)tensor_count(merged), sizeof *rows);
    float *const magnitude = mem_new((size_t)merged->rows, sizeof *magnitude);
    enum status status = tensor_download(merged, rows, e);
    if (status == STATUS_OK) {
        status = device_download(space->device, magnitude, a->magnitude->data, merged->rows * 4, e);
    }
    for (int64_t r = 0; status == STATUS_OK && r < merged->rows; r++) {
        float *const row = rows + r * merged->cols;
        double squares = 0;
        for (int64_t i = 0; i < merged->cols; i++) {
            squares += (double)row[i] * row[i];
        }
        const float factor = magnitude[r] / (float)sqrt(squares);
        for (int64_t i = 0; i < merged->cols; i++) {
            row[i] *= factor;
        }
    }
    if (status == STATUS_OK) status = tensor_upload(merged, rows, e);
    mem_free(rows);
    mem_free(magnitude);
    return status;
}

/* *out = the parameter in f32, of what is quantised the values that the run has seen. */
static enum status wide_base(const struct model *m, const struct param *p, const struct linear *l,
                             struct tensor **out, struct err *e) {
    const int64_t cols = m->storages[p->storage].cols;
    struct tensor *scratch = NULL;
    TRY(tensor_new(m->space, DTYPE_F32, p->rows, cols, CATEGORY_STAGING, out, e));
    enum status status = linear_open_weight(l, &scratch, e);
    if (status == STATUS_OK) {
        struct tensor *base = model_param_view(m, p, true);
        status = tensor_convert(*out, base, 1, e);
        tensor_release(base);
    }
    linear_close_weight(l, &scratch);
    return status;
}

static enum status merged_source(const struct model *m, const struct param *p, struct tensor **out,
                                 struct err *e) {
    const struct storage *const s = &m->storages[p->storage];
    const struct linear *const l = s->kind == PARAM_WEIGHT ? linear_of(m, s->value) : NULL;
    const struct lora *a = NULL;
    for (int64_t i = 0; l && i < l->adapter_count; i++) {
        if (l->adapters[i].first_row == p->first_row) a = &l->adapters[i];
    }
    if (!a && !storage_is_quantised(s)) return plain_source(m, p, out, e);
    TRY(wide_base(m, p, l, out, e));
    if (!a) return STATUS_OK;
    const struct gemm_args delta = {.m = p->rows,
                                    .n = s->cols,
                                    .k = a->rank,
                                    .alpha = a->scaling,
                                    .beta = 1,
                                    .a = tensor_matrix(a->b_master),
                                    .b = tensor_matrix_at(l->lora_a_master, a->rank_first, 0),
                                    .c = tensor_matrix(*out)};
    TRY(device_gemm(m->space->device, &delta, e));
    return a->magnitude ? scale_rows_to(*out, a, e) : STATUS_OK;
}

enum status weights_save_merged(const struct model *m, enum st_dtype dtype, const char *path,
                                struct err *e) {
    arena_enter(m->space->arena, PHASE_EXPORT);
    return save(m, m->params, m->param_count, merged_source, dtype, path, e);
}
