/* owned.c - from pieces of flat buffers to runs of parameters.
 *
 * Who writes what many have is agreed by telling each other: every rank posts the blocks that it
 * has, and the first part of the model (stage and place along the tensor axis) that has a block
 * writes it. So nothing here needs to know why a block is in several places. */
#include "engine/train/owned.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/io/hash.h"
#include "engine/model/pieces.h"
#include "engine/model/shard_weights.h"

const struct param *owned_params(const struct model *m, size_t *count) {
    *count = m->options.full ? m->param_count : m->adapter_param_count;
    return m->options.full ? m->params : m->adapter_params;
}

/* A walk over pieces, which knows what it calls for each run. */
struct walk {
    const struct optimizer *optimizer;
    const struct param *params;
    size_t count;
    const bool *writes; /* [count] which of them are visited; NULL: all */
    bool divided;       /* only what no rank holds as a whole */
    owned_visit *visit;
    void *context;
};

static struct walk walk_of(const struct optimizer *o, owned_visit *visit, void *context) {
    struct walk w = {.optimizer = o, .visit = visit, .context = context};
    w.params = owned_params(o->model, &w.count);
    return w;
}

/* The masters of a piece as a tensor, from element `skipped` on. */
static struct tensor *masters_of(const struct model *m, const struct own_piece *piece,
                                 int64_t skipped, int64_t count) {
    const int64_t size = dtype_bytes(piece->master_dtype);
    const struct tensor *const narrow = m->flat_narrow;
    const char *const master = piece->master;
    const bool in_narrow = narrow && master >= (const char *)narrow->data &&
                           master < (const char *)narrow->data + tensor_count(narrow) * size;
    struct tensor *const flat = in_narrow ? m->flat_narrow : m->flat;
    const int64_t first = (master - (const char *)flat->data) / size;
    return tensor_view_flat(flat, first + skipped, 1, count);
}

static enum status visit_piece(void *context, const struct own_piece *piece, struct err *e) {
    const struct walk *const w = context;
    const struct model *const m = w->optimizer->model;
    if (w->divided && !storage_is_divided(m, &m->storages[piece->storage])) return STATUS_OK;
    for (size_t i = 0; i < w->count; i++) {
        const struct param *const p = &w->params[i];
        if (p->storage != piece->storage || (w->writes && !w->writes[i])) continue;
        const int64_t cols = model_param_cols(m, p), begin = p->first_row * cols;
        const int64_t end = begin + p->rows * cols, piece_end = piece->first + piece->count;
        const int64_t first = begin > piece->first ? begin : piece->first;
        const int64_t last = end < piece_end ? end : piece_end, skipped = first - piece->first;
        if (first >= last) continue;
        struct owned_run run = {
            .param = p, .first = first - begin, .count = last - first, .own = piece->own + skipped};
        if (piece->away) {
            run.host = (float *)piece->master + skipped;
        } else {
            run.values = masters_of(m, piece, skipped, run.count);
        }
        const enum status status = w->visit(w->context, &run, e);
        tensor_release(run.values);
        TRY(status);
    }
    return STATUS_OK;
}

/* What every rank holds as a whole. */
static enum status visit_whole(const struct walk *w, struct err *e) {
    const struct model *const m = w->optimizer->model;
    for (size_t i = 0; i < w->count; i++) {
        const struct param *const p = &w->params[i];
        if (storage_is_divided(m, &m->storages[p->storage])) continue;
        struct tensor *const master = model_param_view(m, p, true);
        const int64_t count = tensor_count(master);
        const struct owned_run run = {
            .param = p, .count = count, .own = -1, .values = tensor_view_flat(master, 0, 1, count)};
        const enum status status = w->visit(w->context, &run, e);
        tensor_release(run.values);
        tensor_release(master);
        TRY(status);
    }
    return STATUS_OK;
}

enum status owned_each(const struct optimizer *o, enum owned_kind kind, owned_visit *visit,
                       void *context, struct err *e) {
    struct walk w = walk_of(o, visit, context);
    w.divided = kind == OWNED_VALUE;
    if (kind == OWNED_VALUE) TRY(visit_whole(&w, e));
    return pieces_each(o->model, visit_piece, &w, e);
}

void owned_find(const struct optimizer *o, enum owned_kind kind, const struct owned_run *run,
                struct owned_place *place) {
    *place = (struct owned_place){0};
    if (kind == OWNED_VALUE && run->host) {
        place->host = run->host;
        return;
    }
    if (kind == OWNED_VALUE) {
        place->view = tensor_retain(run->values);
        return;
    }
    ASSERT(run->own >= 0);
    struct tensor *const state = kind == OWNED_EXP_AVG ? o->exp_avg : o->exp_avg_sq;
    if (state) {
        place->view = tensor_view_flat(state, run->own, 1, run->count);
    } else {
        place->host = away_state(&o->away, kind - OWNED_EXP_AVG) + run->own;
    }
}

enum status owned_settle(const struct optimizer *o, struct err *e) {
    return o->away.space ? device_synchronize(o->away.space->device, e) : STATUS_OK;
}

bool owned_has_all(const struct optimizer *o) {
    const struct mesh *const mesh = o->model->options.mesh;
    return !mesh || (mesh->axis[AXIS_TENSOR].world == 1 && mesh->axis[AXIS_PIPELINE].world == 1);
}

/* Whether what this rank updates is written by this rank, and not by another that updates the same.
 */
static bool is_first_copy(const struct model *m) {
    const struct mesh *const mesh = m->options.mesh;
    if (!mesh) return true;
    const bool divided = pieces_count(m) < m->flat_count;
    return divided ? mesh->place.at[AXIS_REPLICATE] == 0 : mesh->data.rank == 0;
}

enum status owned_each_written(const struct optimizer *o, const bool *writes, owned_visit *visit,
                               void *context, struct err *e) {
    struct walk w = walk_of(o, visit, context);
    w.writes = writes;
    return is_first_copy(o->model) ? pieces_each(o->model, visit_piece, &w, e) : STATUS_OK;
}

/* ---- who writes what several parts of the model have ------------------------------------ */

struct claim {
    unsigned char block[HASH_BYTES]; /* of its name and place */
};

static struct claim claim_of(const struct model *m, const struct param *p) {
    struct claim claim;
    struct hash_stream h = {0};
    hash_open(&h);
    hash_add_text(&h, p->name);
    hash_add_i64(&h, p->from_row);
    hash_add_i64(&h, p->from_col);
    hash_add_i64(&h, p->rows);
    hash_add_i64(&h, model_param_cols(m, p));
    hash_result(&h, claim.block);
    hash_close(&h);
    return claim;
}

static int compare_claims(const void *a, const void *b) {
    return memcmp(a, b, sizeof(struct claim));
}

/* Of other parts of the model ranks before this one that train the same data; claims of each rank
 * are sorted. */
static bool is_claimed_before(const struct mesh *mesh, const struct claim *all, int64_t most,
                              const struct claim *mine) {
    for (int64_t rank = 0; rank < mesh->comm->rank; rank++) {
        const struct mesh_place there = mesh_place_of(&mesh->shape, rank);
        if (there.at[AXIS_SHARD] != mesh->place.at[AXIS_SHARD] ||
            there.at[AXIS_REPLICATE] != mesh->place.at[AXIS_REPLICATE])
            continue;
        if (bsearch(mine, all + rank * most, (size_t)most, sizeof *mine, compare_claims))
            return true;
    }
    return false;
}

/* The most that any rank has. */
static enum status most_params(struct comm *c, int64_t count, int64_t *most, struct err *e) {
    int64_t *const counts = mem_new((size_t)c->world, sizeof *counts);
    const enum status status = comm_gather(c, &count, sizeof count, counts, e);
    *most = 0;
    for (int64_t rank = 0; status == STATUS_OK && rank < c->world; rank++) {
        if (counts[rank] > *most) *most = counts[rank];
    }
    mem_free(counts);
    return status;
}

static enum status exchange_claims(const struct optimizer *o, const struct param *params,
                                   size_t count, bool *writes, struct err *e) {
    const struct mesh *const mesh = o->model->options.mesh;
    int64_t most = 0;
    TRY(most_params(mesh->comm, (int64_t)count, &most, e));
    struct claim *const mine = mem_new((size_t)most, sizeof *mine);
    struct claim *const all = mem_new((size_t)(most * mesh->comm->world), sizeof *all);
    for (size_t i = 0; i < count; i++) {
        mine[i] = claim_of(o->model, &params[i]);
    }
    if (most > 0) qsort(mine, (size_t)most, sizeof *mine, compare_claims);
    const enum status status = comm_gather(mesh->comm, mine, most * (int64_t)sizeof *mine, all, e);
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        const struct claim claim = claim_of(o->model, &params[i]);
        writes[i] = !is_claimed_before(mesh, all, most, &claim);
    }
    mem_free(mine);
    mem_free(all);
    return status;
}

enum status owned_writes(const struct optimizer *o, bool **writes, struct err *e) {
    size_t count = 0;
    const struct param *const params = owned_params(o->model, &count);
    *writes = mem_new(count, sizeof **writes);
    if (!owned_has_all(o)) return exchange_claims(o, params, count, *writes, e);
    for (size_t i = 0; i < count; i++) {
        (*writes)[i] = true;
    }
    return STATUS_OK;
}
