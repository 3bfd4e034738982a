/* checkpoint_states.c - see checkpoint_states.h.
 *
 * The place of a part lies beside it as a tensor of one number, because the file's own metadata is
 * for the format. A file that has none holds everything from the first element on. */
#include "engine/train/checkpoint_states.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model/weights.h"

static const char *const NAMES[AWAY_STATES] = {"exp_avg", "exp_avg_sq"};
static const char PLACE_NAME[] = "first", FILE_PREFIX[] = "optimizer",
                  FILE_SUFFIX[] = ".safetensors";

static struct tensor *state_here(const struct optimizer *o, int state) {
    return state == 0 ? o->exp_avg : o->exp_avg_sq;
}

static bool holds_all(const struct optimizer *o) {
    return o->own.count == o->model->flat_count;
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

enum status states_save(const struct optimizer *o, const char *folder, struct err *e) {
    if (o->own.count == 0) return STATUS_OK;
    char *const path = file_of(o, folder);
    struct st_writer w = {0};
    const int64_t shape[] = {o->own.count}, one[] = {1};
    if (!holds_all(o)) st_writer_declare(&w, PLACE_NAME, ST_I64, one, 1);
    for (int i = 0; i < AWAY_STATES; i++) {
        st_writer_declare(&w, NAMES[i], ST_F32, shape, 1);
    }
    enum status status = st_writer_begin(&w, path, e);
    if (status == STATUS_OK && !holds_all(o))
        status = st_writer_data(&w, &o->own.first, sizeof o->own.first, e);
    for (int i = 0; status == STATUS_OK && i < AWAY_STATES; i++) {
        status = write_state(o, i, &w, e);
    }
    if (status == STATUS_OK) {
        status = st_writer_commit(&w, e);
    } else {
        st_writer_abort(&w);
    }
    mem_free(path);
    return status;
}

/* Elements `first`..`first + count` of the model's states, which the file has from `from` on. */
static enum status read_part(struct optimizer *o, int state, const struct st_tensor *stored,
                             const struct comm_piece *part, int64_t from, struct err *e) {
    struct tensor *const here = state_here(o, state);
    const int64_t into = part->first - o->own.first;
    if (!here) {
        TRY(device_synchronize(o->away.space->device, e));
        return st_read_f32(stored, from, part->count, o->away.host[state] + into, e);
    }
    if (part->count == stored->elements && part->count == o->own.count)
        return weights_read_tensor(stored, here, e);
    float *const host = mem_new((size_t)part->count, sizeof *host);
    enum status status = st_read_f32(stored, from, part->count, host, e);
    if (status == STATUS_OK)
        status = device_upload(here->space->device, tensor_f32(here) + into, host,
                               part->count * dtype_bytes(DTYPE_F32), e);
    mem_free(host);
    return status;
}

static int64_t place_of(const struct st_set *set) {
    const struct st_tensor *const place = st_find(set, PLACE_NAME);
    int64_t first = 0;
    if (place && place->dtype == ST_I64 && place->elements == 1)
        memcpy(&first, place->data, sizeof first);
    return first;
}

/* What the file and this rank have in common; *taken counts its elements. */
static enum status read_file(struct optimizer *o, const char *path, int64_t *taken, struct err *e) {
    struct st_set set = {0};
    enum status status = STATUS_OK;
    GUARD(st_open_file(&set, path, e));
    const int64_t from = place_of(&set), total = o->model->flat_count;
    for (int i = 0; i < AWAY_STATES; i++) {
        const struct st_tensor *const stored = st_find(&set, NAMES[i]);
        GUARD_IF(!stored || from < 0 || from > total - stored->elements ||
                     (from == 0 && !st_find(&set, PLACE_NAME) && stored->elements != total),
                 STATUS_INVALID, "%s: %s does not have the %lld elements of this model", path,
                 NAMES[i], (long long)total);
        const int64_t end = from + stored->elements, own_end = o->own.first + o->own.count;
        const int64_t first = from > o->own.first ? from : o->own.first;
        const struct comm_piece part = {first, (end < own_end ? end : own_end) - first};
        if (part.count <= 0) continue;
        GUARD(read_part(o, i, stored, &part, first - from, e));
        *taken += i == 0 ? part.count : 0;
    }
done:
    st_close(&set);
    return status;
}

enum status states_load(struct optimizer *o, const char *folder, struct err *e) {
    char **names = NULL;
    size_t count = 0;
    int64_t taken = 0;
    TRY(file_list(folder, &names, &count, e));
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        if (!str_starts_with(names[i], FILE_PREFIX) || !str_ends_with(names[i], FILE_SUFFIX))
            continue;
        char *const path = file_join(folder, names[i]);
        status = read_file(o, path, &taken, e);
        mem_free(path);
    }
    file_names_free(names, count);
    TRY(status);
    FAIL_IF(taken != o->own.count, STATUS_INVALID,
            "%s: its optimizer files have %lld of the %lld elements that this rank needs", folder,
            (long long)taken, (long long)o->own.count);
    return STATUS_OK;
}
