/* checkpoint_part.c - blocks between files and the memory of a rank.
 *
 * What is read goes through the ring of engine/model/load.c, some thousand runs at a time; what is
 * written through its bounded buffers. */
#include "engine/train/checkpoint_part.h"

#include <stdio.h>

#include "base/mem.h"
#include "engine/model/load.h"
#include "engine/model/weights.h"

enum { RUNS_AT_ONCE = 4096 };

static const char *const KIND_PREFIX[OWNED_KIND_COUNT] = {
    [OWNED_VALUE] = "", [OWNED_EXP_AVG] = "exp_avg/", [OWNED_EXP_AVG_SQ] = "exp_avg_sq/"};

/* The rectangles of a run in the whole tensor. `tensor` holds its name. */
struct run_blocks {
    char tensor[PARAM_NAME_MAX + 16];
    struct block items[BLOCK_CUTS_MAX];
    int count;
};

static void cut_run(const struct model *m, enum owned_kind kind, const struct owned_run *run,
                    struct run_blocks *out) {
    const struct param *const p = run->param;
    struct block_place cuts[BLOCK_CUTS_MAX];
    snprintf(out->tensor, sizeof out->tensor, "%s%s", KIND_PREFIX[kind], p->name);
    out->count = block_cut(run->first, run->count, model_param_cols(m, p), cuts);
    for (int i = 0; i < out->count; i++) {
        cuts[i].row += p->from_row;
        cuts[i].col += p->from_col;
        out->items[i] = (struct block){.tensor = out->tensor,
                                       .rank = p->rank,
                                       .whole_rows = p->whole_rows,
                                       .whole_cols = p->whole_cols,
                                       .at = cuts[i]};
    }
}

/* ---- writing ------------------------------------------------------------------------------ */

struct writing {
    const struct optimizer *optimizer;
    struct st_writer writer;
    enum owned_kind kind;
};

static enum status declare_run(void *context, const struct owned_run *run, struct err *e) {
    struct writing *const w = context;
    struct run_blocks blocks;
    (void)e;
    cut_run(w->optimizer->model, w->kind, run, &blocks);
    for (int i = 0; i < blocks.count; i++) {
        block_declare(&w->writer, &blocks.items[i]);
    }
    return STATUS_OK;
}

static enum status write_run(void *context, const struct owned_run *run, struct err *e) {
    struct writing *const w = context;
    struct owned_place place;
    owned_find(w->optimizer, w->kind, run, &place);
    if (place.host)
        return st_writer_data(&w->writer, place.host, run->count * st_dtype_bytes(ST_F32), e);
    const enum status status = weights_write_tensor(place.view, ST_F32, &w->writer, e);
    tensor_release(place.view);
    return status;
}

static enum status each_kind(struct writing *w, const struct part_kinds *kinds, const bool *writes,
                             owned_visit *visit, struct err *e) {
    for (int kind = 0; kind < OWNED_KIND_COUNT; kind++) {
        w->kind = (enum owned_kind)kind;
        if (kinds->has[kind]) TRY(owned_each_written(w->optimizer, writes, visit, w, e));
    }
    return STATUS_OK;
}

static char *file_name(const struct optimizer *o, const char *prefix) {
    const struct mesh *const mesh = o->model->options.mesh;
    return str_format("%s%05lld-of-%05lld.safetensors", prefix,
                      mesh ? (long long)mesh->comm->rank + 1 : 1,
                      mesh ? (long long)mesh->comm->world : 1);
}

static enum status write_part(struct writing *w, const struct part_kinds *kinds, const bool *writes,
                              const char *path, struct err *e) {
    enum status status = owned_settle(w->optimizer, e);
    if (status == STATUS_OK) status = st_writer_begin(&w->writer, path, e);
    if (status == STATUS_OK) status = each_kind(w, kinds, writes, write_run, e);
    if (status == STATUS_OK) status = st_writer_commit(&w->writer, e);
    return status;
}

enum status part_save(const struct optimizer *o, const struct part_kinds *kinds, const char *folder,
                      const char *prefix, char **name, struct err *e) {
    struct writing w = {.optimizer = o};
    bool *writes = NULL;
    *name = NULL;
    enum status status = owned_writes(o, &writes, e);
    if (status == STATUS_OK) status = each_kind(&w, kinds, writes, declare_run, e);
    if (status == STATUS_OK && w.writer.count > 0) {
        char *const file = file_name(o, prefix), *const path = file_join(folder, file);
        status = write_part(&w, kinds, writes, path, e);
        mem_free(path);
        *name = file;
    }
    st_writer_abort(&w.writer);
    mem_free(writes);
    return status;
}

/* ---- reading ------------------------------------------------------------------------------ */

struct reading {
    const struct optimizer *optimizer;
    const struct block_set *set;
    enum owned_kind kind;
    struct owned_place place; /* of the run at hand */
    int64_t at;               /* in it: the rectangle at hand */
    struct st_tensor *from;   /* [RUNS_AT_ONCE] pieces of stored blocks, and where they go */
    struct load_item *items;
    size_t count;
};

static enum status flush(struct reading *r, struct err *e) {
    const enum status status = load_items(r->items, r->count, e);
    for (size_t i = 0; i < r->count; i++) {
        tensor_release(r->items[i].to);
    }
    r->count = 0;
    return status;
}

static enum status take(void *context, const struct block_run *run, struct err *e) {
    struct reading *const r = context;
    const int64_t at = r->at + run->at;
    if (r->place.host)
        return st_read_f32(run->stored, run->first, run->count, r->place.host + at, e);
    if (r->count == RUNS_AT_ONCE) TRY(flush(r, e));
    const int64_t size = st_dtype_bytes(run->stored->dtype);
    struct st_tensor *const piece = &r->from[r->count];
    *piece = *run->stored;
    piece->elements = run->count;
    piece->bytes = run->count * size;
    piece->data = run->stored->data + run->first * size;
    struct tensor *const to = tensor_view_flat(r->place.view, at, 1, run->count);
    r->items[r->count++] = (struct load_item){.from = piece, .to = to};
    return STATUS_OK;
}

static enum status read_run(void *context, const struct owned_run *run, struct err *e) {
    struct reading *const r = context;
    struct run_blocks blocks;
    cut_run(r->optimizer->model, r->kind, run, &blocks);
    owned_find(r->optimizer, r->kind, run, &r->place);
    enum status status = STATUS_OK;
    r->at = 0;
    for (int i = 0; status == STATUS_OK && i < blocks.count; i++) {
        status = blocks_each_run(r->set, &blocks.items[i], take, r, e);
        r->at += blocks.items[i].at.rows * blocks.items[i].at.cols;
    }
    tensor_release(r->place.view);
    return status;
}

/* Another model, or another adapter, has other tensors. */
static enum status check_tensors(const struct optimizer *o, const struct part_kinds *kinds,
                                 const struct block_set *set, struct err *e) {
    size_t count = 0;
    int64_t wanted = 0;
    model_whole_params(o->model, &count);
    for (int kind = 0; kind < OWNED_KIND_COUNT; kind++) {
        wanted += kinds->has[kind] ? (int64_t)count : 0;
    }
    FAIL_IF(set->tensors != wanted, STATUS_INVALID,
            "its files have blocks of %lld tensors, this model and its adapters have %lld",
            (long long)set->tensors, (long long)wanted);
    return STATUS_OK;
}

enum status part_load(const struct optimizer *o, const struct part_kinds *kinds,
                      const struct block_set *set, struct err *e) {
    struct reading r = {.optimizer = o, .set = set};
    TRY(check_tensors(o, kinds, set, e));
    TRY(owned_settle(o, e));
    r.from = mem_new(RUNS_AT_ONCE, sizeof *r.from);
    r.items = mem_new(RUNS_AT_ONCE, sizeof *r.items);
    enum status status = STATUS_OK;
    for (int kind = 0; status == STATUS_OK && kind < OWNED_KIND_COUNT; kind++) {
        r.kind = (enum owned_kind)kind;
        if (kinds->has[kind]) status = owned_each(o, r.kind, read_run, &r, e);
    }
    struct err ignored = {0};
    const enum status last = flush(&r, status == STATUS_OK ? e : &ignored);
    mem_free(r.from);
    mem_free(r.items);
    return status == STATUS_OK ? last : status;
}
