/* quantised.c - see quantised.h.
 *
 * Blocks are counted through a stored tensor, as bitsandbytes counts them. A rank that has only a
 * part of one has the same blocks where its columns are whole ones; scales that are quantised
 * themselves belong to all of a tensor, so those are not cut. */
#include "engine/model/quantised.h"

#include "engine/model/shard_weights.h"

bool storage_is_quantised(const struct storage *s) {
    return s->quantised.layout.quant != QUANT_NONE;
}

static bool is_whole(const struct param *p, int64_t cols) {
    return p->rows == p->whole_rows && cols == p->whole_cols;
}

/* Below `degree`, the next into which whole blocks of so many columns can be dealt, or 1. */
static int64_t nearest_degree(int64_t cols, int64_t degree) {
    while (degree > 1 && cols % (degree * QUANT_BLOCK) != 0) {
        degree--;
    }
    return degree;
}

static enum status check_part(const struct model *m, const struct param *p, struct err *e) {
    const int64_t cols = m->storages[p->storage].cols;
    const enum quant quant = m->options.quant;
    FAIL_IF(cols % QUANT_GRANULE != 0, STATUS_UNSUPPORTED,
            "%s: %lld columns are not a multiple of %d: this matrix cannot be quantised", p->name,
            (long long)cols, QUANT_GRANULE);
    if (is_whole(p, cols) || quant == QUANT_FP8) return STATUS_OK;
    FAIL_IF(cols % QUANT_BLOCK != 0, STATUS_UNSUPPORTED,
            "%s: a rank has %lld of its %lld columns, which cuts blocks of %d columns of NF4; the "
            "nearest parallel.tensor_parallel_degree is %lld",
            p->name, (long long)cols, (long long)p->whole_cols, QUANT_BLOCK,
            (long long)nearest_degree(p->whole_cols, p->whole_cols / cols));
    FAIL_IF(
        quant == QUANT_NF4_DOUBLE, STATUS_UNSUPPORTED,
        "bnb_4bit_use_double_quant does not go with parallel.tensor_parallel_degree: scales are "
        "quantised over all of a tensor; set bnb_4bit_use_double_quant to false");
    return STATUS_OK;
}

enum status quantised_declare(struct model *m, struct err *e) {
    if (m->options.quant == QUANT_NONE) return STATUS_OK;
    ASSERT(!m->options.full);
    for (size_t i = 0; i < m->param_count; i++) {
        const struct param *const p = &m->params[i];
        struct storage *const s = &m->storages[p->storage];
        if (s->kind != PARAM_WEIGHT) continue;
        TRY(check_part(m, p, e));
        struct quant_layout *const l = &s->quantised.layout;
        ASSERT(l->part_count < QUANT_PARTS_MAX && l->rows == p->first_row);
        l->quant = m->options.quant;
        l->cols = s->cols;
        l->parts[l->part_count++].rows = p->rows;
        l->rows += p->rows;
    }
    for (size_t i = 0; i < m->storage_count; i++) {
        struct storage *const s = &m->storages[i];
        if (!storage_is_quantised(s)) continue;
        quant_place(&s->quantised.layout);
        ASSERT(s->quantised.layout.rows == s->rows);
    }
    return STATUS_OK;
}

static struct tensor *hollow(struct model *m, const struct storage *s, int64_t rows) {
    struct tensor *const t = tensor_hollow(m->space, m->options.weight_dtype, rows, s->cols);
    if (s->tail > 0) t->ld = tail_pitch(s);
    return t;
}

/* Zero where there is no adapter. */
static enum status allocate_tails(struct model *m, struct storage *s, struct err *e) {
    const enum dtype dtype = m->options.weight_dtype;
    struct quantised *const q = &s->quantised;
    s->augmented = hollow(m, s, s->rows + s->tail);
    TRY(tensor_new(m->space, dtype, s->tail, s->cols + s->tail, CATEGORY_ADAPTERS, &q->below, e));
    TRY(tensor_new(m->space, dtype, s->rows, s->tail, CATEGORY_ADAPTERS, &q->beside, e));
    TRY(tensor_fill_zero(q->below, e));
    return tensor_fill_zero(q->beside, e);
}

enum status quantised_allocate(struct model *m, struct storage *s, struct err *e) {
    const int64_t words = s->quantised.layout.bytes / 4;
    s->value = hollow(m, s, s->rows);
    if (s->tail > 0) TRY(allocate_tails(m, s, e));
    if (!storage_is_sharded(m, s))
        return tensor_new(m->space, DTYPE_I32, 1, words, CATEGORY_WEIGHTS, &s->quantised.bytes, e);
    s->quantised.bytes = tensor_hollow(m->space, DTYPE_I32, 1, words);
    return STATUS_OK;
}

struct tensor *quantised_tail_view(const struct storage *weight, const struct storage *adapter) {
    const struct quantised *const q = &weight->quantised;
    const int64_t row = adapter->inside_row - weight->rows;
    return row >= 0 ? tensor_view_block(q->below, row, adapter->rows, 0, adapter->cols)
                    : tensor_view_block(q->beside, adapter->inside_row, adapter->rows,
                                        adapter->inside_col - weight->cols, adapter->cols);
}

void quantised_release(struct storage *s) {
    tensor_drop(&s->quantised.bytes);
    tensor_drop(&s->quantised.below);
    tensor_drop(&s->quantised.beside);
}

void quantised_target(const struct model *m, const struct param *p, struct load_item *item) {
    const struct storage *const s = &m->storages[p->storage];
    item->layout = NULL;
    if (!storage_is_quantised(s)) return;
    const struct quant_layout *const l = &s->quantised.layout;
    item->layout = l;
    item->part = 0;
    while (l->parts[item->part].first_row != p->first_row) {
        item->part++;
        ASSERT(item->part < l->part_count);
    }
    item->to = tensor_retain(s->quantised.bytes);
}
