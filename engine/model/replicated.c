/* replicated.c - see replicated.h.
 *
 * What is shared lies in runs; neighbouring runs of the flat buffer are summed in one exchange. The
 * gaps between storages are zero on all ranks and may be summed with them. */
#include "engine/model/replicated.h"

#include <stdlib.h>

#include "base/mem.h"

/* A run of all that is trained that `sharers` neighbours have. */
struct shared_run {
    int64_t first, count, sharers;
};

struct replicated {
    struct comm_group neighbours; /* who has the same key/value heads, where not all have */
    struct tensor *scratch;
    struct shared_run *runs; /* in order */
    size_t run_count;
};

static int by_place(const void *a, const void *b) {
    const struct shared_run *const x = a, *const y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int64_t padded(int64_t n) {
    return (n + FLAT_PITCH - 1) / FLAT_PITCH * FLAT_PITCH;
}

static struct shared_run run_of(const struct storage *s) {
    const int64_t count = s->rows * s->cols;
    return (struct shared_run){s->flat_first + count - s->shared, s->shared, s->sharers};
}

/* All runs in order, those that touch made one. */
static void list_runs(const struct model *m, struct replicated *r) {
    struct shared_run *const runs = mem_new(m->storage_count, sizeof *runs);
    size_t found = 0, used = 0;
    for (size_t i = 0; i < m->storage_count; i++) {
        const struct storage *const s = &m->storages[i];
        if (s->trainable && s->shared > 0) runs[found++] = run_of(s);
    }
    qsort(runs, found, sizeof *runs, by_place);
    for (size_t i = 0; i < found; i++) {
        struct shared_run *const last = used ? &runs[used - 1] : NULL;
        if (last && last->sharers == runs[i].sharers &&
            padded(last->first + last->count) == runs[i].first) {
            last->count = runs[i].first + runs[i].count - last->first;
        } else {
            runs[used++] = runs[i];
        }
    }
    r->runs = runs;
    r->run_count = used;
}

static bool has_neighbours(const struct model *m) {
    return m->division.kv_sharers > 1 && m->division.kv_sharers < m->division.world;
}

/* Ranks with the same key/value heads are neighbours: the tensor axis is the fastest one. */
static enum status open_neighbours(struct model *m, struct err *e) {
    const int64_t sharers = m->division.kv_sharers, rank = m->division.rank;
    const struct comm_members members = {.first =
                                             comm_group_member(m->group, rank / sharers * sharers),
                                         .stride = m->group->stride,
                                         .world = sharers};
    return comm_group_open(&m->replicated->neighbours, m->group->comm, m->space->device, &members,
                           e);
}

static enum status open_scratch(struct model *m, struct err *e) {
    struct replicated *const r = m->replicated;
    int64_t bytes = 0;
    for (size_t i = 0; i < r->run_count; i++) {
        const int64_t own =
            comm_scratch_bytes(m->space->device->kind, r->runs[i].count, r->runs[i].sharers);
        if (own > bytes) bytes = own;
    }
    if (bytes == 0) return STATUS_OK;
    return tensor_new(m->space, DTYPE_F32, 1, bytes / dtype_bytes(DTYPE_F32),
                      CATEGORY_COMMUNICATION, &r->scratch, e);
}

enum status replicated_open(struct model *m, struct err *e) {
    if (!m->group || m->flat_count == 0) return STATUS_OK;
    m->replicated = mem_new(1, sizeof *m->replicated);
    list_runs(m, m->replicated);
    if (has_neighbours(m)) TRY(open_neighbours(m, e));
    return open_scratch(m, e);
}

void replicated_close(struct model *m) {
    if (!m->replicated) return;
    comm_group_close(&m->replicated->neighbours);
    tensor_release(m->replicated->scratch);
    mem_free(m->replicated->runs);
    mem_free(m->replicated);
    m->replicated = NULL;
}

/* The elements of a run that are an own piece's; their gradients lie together. */
static enum status sum_part(struct model *m, const struct shared_run *run,
                            const struct flat_part *p, struct err *e) {
    struct replicated *const r = m->replicated;
    struct comm_group *const g = run->sharers < m->group->world ? &r->neighbours : m->group;
    const int64_t run_end = run->first + run->count, part_end = p->first + p->count;
    const int64_t first = run->first > p->first ? run->first : p->first;
    const int64_t end = run_end < part_end ? run_end : part_end;
    struct comm_scratch scratch = {0};
    if (r->scratch) scratch = (struct comm_scratch){r->scratch->data, tensor_bytes(r->scratch)};
    const struct comm_buffer b = {tensor_f32(m->gradients) + p->summed + (first - p->first),
                                  DTYPE_F32, end - first, 0};
    return end > first ? comm_all_reduce(g, m->space->device, &scratch, &b, e) : STATUS_OK;
}

enum status replicated_sum(struct model *m, struct err *e) {
    if (!m->replicated) return STATUS_OK;
    for (size_t i = 0; i < m->replicated->run_count; i++) {
        for (size_t k = 0; k < m->part_count; k++) {
            TRY(sum_part(m, &m->replicated->runs[i], &m->parts[k], e));
        }
    }
    return STATUS_OK;
}

bool replicated_next(const struct model *m, int64_t from, struct comm_piece *out) {
    for (size_t i = 0; m->replicated && i < m->replicated->run_count; i++) {
        const struct shared_run *const run = &m->replicated->runs[i];
        if (m->division.rank % run->sharers == 0 || run->first + run->count <= from) continue;
        *out = (struct comm_piece){run->first, run->count};
        return true;
    }
    return false;
}
