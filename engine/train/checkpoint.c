/* checkpoint.c - saving, finding and loading checkpoints.
 *
 * A checkpoint is a whole folder that appears at once, or not at all. */
#include "engine/train/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/io/folder.h"
#include "engine/io/manifest.h"
#include "engine/model/adapter.h"
#include "engine/model/weights.h"
#include "engine/rundir.h"
#include "engine/train/checkpoint_states.h"

enum { STATE_BYTES_MAX = 1 << 16 };

static enum status save_state(const struct session *s, const struct trainer_state *state,
                              const char *folder, struct err *e) {
    cJSON *const json = cJSON_CreateObject();
    json_add_i64(json, "step", state->step);
    json_add_i64(json, "updates", s->optimizer.updates);
    json_add_i64(json, "trained_tokens", state->trained_tokens);
    if (s->optimizer.options.scales_loss) {
        json_add_number(json, "loss_scale", s->optimizer.scaling.scale);
        json_add_i64(json, "loss_scale_good", s->optimizer.scaling.good);
        json_add_i64(json, "skipped_updates", s->optimizer.scaling.skipped);
    }
    char *path = file_join(folder, "trainer_state.json");
    const enum status status = json_write_file(path, json, e);
    mem_free(path);
    cJSON_Delete(json);
    return status;
}

static enum status save_weights(const struct session *s, const char *base, const char *folder,
                                struct err *e) {
    const struct model *const m = &s->model;
    if (m->options.lora) return adapter_save(m, base, folder, e);
    char *path = file_join(folder, "model.safetensors");
    const enum status status = weights_save(m, m->params, m->param_count, ST_F32, path, e);
    mem_free(path);
    return status;
}

static int compare_steps(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

/* Steps of all checkpoint folders, ascending. Caller frees. */
static enum status list_steps(const char *run, int64_t **steps, size_t *count, struct err *e) {
    char *folder = rundir_checkpoints(run);
    char **names = NULL;
    size_t name_count = 0;
    *steps = NULL;
    *count = 0;
    enum status status = STATUS_OK;
    if (file_is_folder(folder)) status = file_list(folder, &names, &name_count, e);
    if (status == STATUS_OK) {
        *steps = mem_new(name_count, sizeof **steps);
        for (size_t i = 0; i < name_count; i++) {
            const int64_t step = rundir_checkpoint_step(names[i]);
            if (step >= 0) (*steps)[(*count)++] = step;
        }
        qsort(*steps, *count, sizeof **steps, compare_steps);
    }
    file_names_free(names, name_count);
    mem_free(folder);
    return status;
}

static enum status remove_old(const char *run, int64_t keep, struct err *e) {
    int64_t *steps = NULL;
    size_t count = 0;
    enum status status = list_steps(run, &steps, &count, e);
    for (size_t i = 0; status == STATUS_OK && keep > 0 && i + (size_t)keep < count; i++) {
        char *path = rundir_checkpoint(run, steps[i]);
        status = file_remove_all(path, e);
        mem_free(path);
    }
    mem_free(steps);
    return status;
}

/* The temporary folder that rank 0 has made, for the parts of the others. Caller frees. */
static enum status share_folder(struct comm *c, const char *made, char **folder, struct err *e) {
    char *const mine = mem_new(FILE_PATH_MAX, 1);
    char *const all = mem_new((size_t)c->world, FILE_PATH_MAX);
    if (made) snprintf(mine, FILE_PATH_MAX, "%s", made);
    const enum status status = comm_gather(c, mine, FILE_PATH_MAX, all, e);
    if (status == STATUS_OK) *folder = mem_strdup(all);
    mem_free(mine);
    mem_free(all);
    return status;
}

/* A part of a sharded state; without shards rank 0 has everything. */
static enum status save_part(const struct session *s, const char *folder, struct err *e) {
    const bool sharded = s->optimizer.options.zero_stage > 0;
    return s->comm->rank == 0 || sharded ? states_save(&s->optimizer, folder, e) : STATUS_OK;
}

enum status checkpoint_begin(struct checkpoint_writing *w, struct session *s, int64_t step,
                             const struct checkpoint_place *place, struct err *e) {
    *w = (struct checkpoint_writing){.path = rundir_checkpoint(place->run, step)};
    arena_enter(s->arena, PHASE_CHECKPOINT);
    if (s->comm->rank == 0) TRY(folder_begin(w->path, &w->made, e));
    TRY(share_folder(s->comm, w->made, &w->folder, e));
    TRY(save_part(s, w->folder, e));
    return comm_barrier(s->comm, e);
}

enum status checkpoint_finish(struct checkpoint_writing *w, struct session *s,
                              const struct trainer_state *state,
                              const struct checkpoint_place *place, struct err *e) {
    TRY(save_weights(s, place->base, w->folder, e));
    TRY(save_state(s, state, w->folder, e));
    TRY(manifest_write(w->folder, e));
    TRY(folder_commit(&w->made, w->path, e));
    return remove_old(place->run, place->keep, e);
}

void checkpoint_end(struct checkpoint_writing *w) {
    folder_abort(&w->made);
    mem_free(w->folder);
    mem_free(w->path);
    *w = (struct checkpoint_writing){0};
}

enum status checkpoint_save(struct session *s, const struct trainer_state *state,
                            const struct checkpoint_place *place, struct err *e) {
    struct checkpoint_writing w;
    enum status status = checkpoint_begin(&w, s, state->step, place, e);
    if (status == STATUS_OK && s->comm->rank == 0)
        status = checkpoint_finish(&w, s, state, place, e);
    checkpoint_end(&w);
    return status;
}

enum status checkpoint_find(const char *run, int64_t *step, int64_t *damaged, struct err *e) {
    int64_t *steps = NULL;
    size_t count = 0;
    *step = *damaged = 0;
    TRY(list_steps(run, &steps, &count, e));
    while (count > 0 && *step == 0) {
        const int64_t candidate = steps[--count];
        char *path = rundir_checkpoint(run, candidate);
        struct err damage = {0};
        if (manifest_verify(path, &damage) == STATUS_OK) {
            *step = candidate;
        } else {
            ++*damaged;
        }
        mem_free(path);
    }
    mem_free(steps);
    return STATUS_OK;
}

static enum status load_state(struct session *s, const char *folder, struct trainer_state *state,
                              struct err *e) {
    char *path = file_join(folder, "trainer_state.json");
    cJSON *json = NULL;
    enum status status = json_read_file(path, STATE_BYTES_MAX, &json, e);
    if (status == STATUS_OK) status = json_get_i64(json, "step", &state->step, e);
    int64_t updates = 0;
    struct loss_scaling scaling = {0};
    if (status == STATUS_OK) status = json_get_i64(json, "updates", &updates, e);
    if (status == STATUS_OK)
        status = json_get_i64(json, "trained_tokens", &state->trained_tokens, e);
    if (status == STATUS_OK) status = json_get_f64(json, "loss_scale", &scaling.scale, e);
    if (status == STATUS_OK) status = json_get_i64(json, "loss_scale_good", &scaling.good, e);
    if (status == STATUS_OK) status = json_get_i64(json, "skipped_updates", &scaling.skipped, e);
    if (status == STATUS_OK) status = optimizer_resume(&s->optimizer, &scaling, updates, e);
    cJSON_Delete(json);
    mem_free(path);
    return status;
}

static enum status load_weights(struct session *s, const char *folder, struct err *e) {
    struct model *const m = &s->model;
    if (m->options.lora) return adapter_load(m, folder, e);
    char *path = file_join(folder, "model.safetensors");
    struct st_set set = {0};
    enum status status = st_open_file(&set, path, e);
    if (status == STATUS_OK) status = weights_load_params(m, m->params, m->param_count, &set, e);
    st_close(&set);
    mem_free(path);
    return status;
}

enum status checkpoint_load(struct session *s, const char *run, int64_t step,
                            struct trainer_state *state, struct err *e) {
    char *folder = rundir_checkpoint(run, step);
    enum status status = load_weights(s, folder, e);
    if (status == STATUS_OK) status = states_load(&s->optimizer, folder, e);
    if (status == STATUS_OK) status = load_state(s, folder, state, e);
    if (status != STATUS_OK) err_prefix(e, "resuming from %s", folder);
    mem_free(folder);
    return status;
}
