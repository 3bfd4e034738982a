/* checkpoint_states.c - see checkpoint_states.h.
 *
 * What of which storage lies where stands beside the states as a table of numbers, because the
 * file's own metadata is for the format. A file that has none is of a rank that was alone. */
#include "engine/train/checkpoint_states.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model/pieces.h"
#include "engine/model/weights.h"

static const char *const NAMES[AWAY_STATES] = {"exp_avg", "exp_avg_sq"};
static const char PIECES_NAME[] = "pieces", FILE_PREFIX[] = "optimizer",
                  FILE_SUFFIX[] = ".safetensors";

static struct tensor *state_here(const struct optimizer *o, int state) {
    return state == 0 ? o->exp_avg : o->exp_avg_sq;
}

static bool holds_all(const struct optimizer *o) {
    return o->model->own_count == o->model->flat_count;
}

/* A row of the table. */
struct row {
    int64_t storage, first, count, own;
};
struct table {
    struct row *rows;
    size_t count, capacity;
};

static enum status add_row(void *context, const struct own_piece *p, struct err *e) {
    struct table *const t = context;
    (void)e;
    t->rows = mem_grow(t->rows, t->count, &t->capacity, sizeof *t->rows);
    t->rows[t->count++] = (struct row){p->storage, p->first, p->count, p->own};
    return STATUS_OK;
}

/* Caller frees. */
static char *file_of(const struct optimizer *o, const char *folder) {
    if (holds_all(o)) return file_join(folder, "optimizer.safetensors");
    char name[64];
    snprintf(name, sizeof name, "optimizer-%05lld-of-%05lld.safetensors",
             (long long)o->model->options.mesh->data.rank + 1,
             (long long)o->model->options.mesh->data.world);
    return file_join(folder, name);
}

/* One of AdamW's states, wherever it is. */
static enum status write_state(const struct optimizer *o, int state, struct st_writer *w,
                               struct err *e) {
    const struct tensor *const here = state_here(o, state);
    if (here) return weights_write_tensor(here, ST_F32, w, e);
    TRY(device_synchronize(o->away.space->device, e));
    return st_writer_data(w, o->away.host[state], o->away.count * st_dtype_bytes(ST_F32), e);
}

static enum status write_states(const struct optimizer *o, const struct table *t, const char *path,
                                struct err *e) {
    struct st_writer w = {0};
    const int64_t shape[] = {o->model->own_count}, rows[] = {(int64_t)t->count, 4};
    st_writer_declare(&w, PIECES_NAME, ST_I64, rows, 2);
    for (int i = 0; i < AWAY_STATES; i++) {
        st_writer_declare(&w, NAMES[i], ST_F32, shape, 1);
    }
    enum status status = st_writer_begin(&w, path, e);
    if (status == STATUS_OK)
        status = st_writer_data(&w, t->rows, (int64_t)(t->count * sizeof *t->rows), e);
    for (int i = 0; status == STATUS_OK && i < AWAY_STATES; i++) {
        status = write_state(o, i, &w, e);
    }
    if (status == STATUS_OK) return st_writer_commit(&w, e);
    st_writer_abort(&w);
    return status;
}

enum status states_save(const struct optimizer *o, const char *folder, struct err *e) {
    char *const path = file_of(o, folder);
    struct table t = {0};
    enum status status = pieces_each(o->model, add_row, &t, e);
    if (status == STATUS_OK) status = write_states(o, &t, path, e);
    mem_free(t.rows);
    mem_free(path);
    return status;
}

/* `count` elements from `into` on of a state here, which the file has from `from` on. */
static enum status read_part(struct optimizer *o, int state, const struct st_tensor *stored,
                             const struct comm_piece *part, int64_t into, struct err *e) {
    struct tensor *const here = state_here(o, state);
    if (!here) {
        TRY(device_synchronize(o->away.space->device, e));
        return st_read_f32(stored, part->first, part->count, o->away.host[state] + into, e);
    }
    float *const host = mem_new((size_t)part->count, sizeof *host);
    enum status status = st_read_f32(stored, part->first, part->count, host, e);
    if (status == STATUS_OK)
        status = device_upload(here->space->device, tensor_f32(here) + into, host,
                               part->count * dtype_bytes(DTYPE_F32), e);
    mem_free(host);
    return status;
}

/* What a row of the file and one of this rank have in common. */
static enum status read_row(struct optimizer *o, const struct st_set *set, const struct row *from,
                            const struct row *to, struct err *e) {
    const int64_t first = from->first > to->first ? from->first : to->first;
    const int64_t from_end = from->first + from->count, to_end = to->first + to->count;
    const int64_t end = from_end < to_end ? from_end : to_end;
    if (from->storage != to->storage || first >= end) return STATUS_OK;
    const struct comm_piece part = {from->own + first - from->first, end - first};
    for (int i = 0; i < AWAY_STATES; i++) {
        TRY(read_part(o, i, st_find(set, NAMES[i]), &part, to->own + first - to->first, e));
    }
    return STATUS_OK;
}

static int64_t elements_of(const struct table *t) {
    int64_t elements = 0;
    for (size_t i = 0; i < t->count; i++) {
        elements += t->rows[i].count;
    }
    return elements;
}

static int64_t common(const struct row *a, const struct row *b) {
    const int64_t first = a->first > b->first ? a->first : b->first;
    const int64_t a_end = a->first + a->count, b_end = b->first + b->count;
    const int64_t end = a_end < b_end ? a_end : b_end;
    return a->storage == b->storage && end > first ? end - first : 0;
}

static bool is_row(const struct row *r, const struct st_tensor *stored) {
    return r->first >= 0 && r->count >= 0 && r->own >= 0 && r->own <= stored->elements &&
           r->count <= stored->elements - r->own;
}

/* What the file and this rank have in common; *taken counts its elements. */
static enum status read_file(struct optimizer *o, const char *path, const struct table *own,
                             int64_t *taken, struct err *e) {
    struct st_set set = {0};
    struct table rows = {0};
    enum status status = STATUS_OK;
    GUARD(st_open_file(&set, path, e));
    const struct st_tensor *const table = st_find(&set, PIECES_NAME);
    const struct st_tensor *const m = st_find(&set, NAMES[0]), *const v = st_find(&set, NAMES[1]);
    GUARD_IF(!m || !v || m->elements != v->elements, STATUS_INVALID,
             "%s: it has not the two states of an optimizer", path);
    GUARD_IF(table ? table->dtype != ST_I64 || table->elements % 4 != 0
                   : o->model->units || m->elements != o->model->flat_count,
             STATUS_INVALID, "%s: it does not say which of the %lld elements of this model it has",
             path, (long long)o->model->flat_count);
    rows.count = table ? (size_t)(table->elements / 4) : own->count;
    rows.rows = mem_new(rows.count, sizeof *rows.rows);
    memcpy(rows.rows, table ? table->data : (const void *)own->rows,
           rows.count * sizeof *rows.rows);
    for (size_t i = 0; i < rows.count; i++) {
        GUARD_IF(!is_row(&rows.rows[i], m), STATUS_INVALID, "%s: row %zu of its pieces is wrong",
                 path, i);
        for (size_t k = 0; k < own->count; k++) {
            GUARD(read_row(o, &set, &rows.rows[i], &own->rows[k], e));
            *taken += common(&rows.rows[i], &own->rows[k]);
        }
    }
done:
    mem_free(rows.rows);
    st_close(&set);
    return status;
}

enum status states_load(struct optimizer *o, const char *folder, struct err *e) {
    char **names = NULL;
    size_t count = 0;
    int64_t taken = 0;
    struct table own = {0};
    TRY(file_list(folder, &names, &count, e));
    enum status status = pieces_each(o->model, add_row, &own, e);
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        if (!str_starts_with(names[i], FILE_PREFIX) || !str_ends_with(names[i], FILE_SUFFIX))
            continue;
        char *const path = file_join(folder, names[i]);
        status = read_file(o, path, &own, &taken, e);
        mem_free(path);
    }
    file_names_free(names, count);
    const int64_t needed = elements_of(&own);
    mem_free(own.rows);
    TRY(status);
    FAIL_IF(taken != needed, STATUS_INVALID,
            "%s: its optimizer files have %lld of the %lld elements that this rank needs", folder,
            (long long)taken, (long long)needed);
    return STATUS_OK;
}
