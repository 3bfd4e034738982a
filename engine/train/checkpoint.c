/* checkpoint.c - saving, finding and loading checkpoints.
 *
 * A checkpoint is a whole folder that appears at once, or not at all. Every rank writes and hashes
 * its own file, side by side; rank 0 writes what is small and the manifest. */
#include "engine/train/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/io/folder.h"
#include "engine/model/adapter.h"
#include "engine/model/assemble.h"
#include "engine/rundir.h"
#include "engine/train/checkpoint_part.h"
#include "engine/train/gang.h"

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

/* What a rank tells the others of what it has just done. */
struct told {
    struct err why;
    struct manifest_entry part;
    char folder[FILE_PATH_MAX];
};

/* A failure of one is the failure of all, told by the name of its rank. all [world] */
static enum status tell_all(struct comm *c, const struct told *mine, struct told *all,
                            struct err *e) {
    TRY(comm_gather(c, mine, sizeof *mine, all, e));
    for (int64_t rank = 0; rank < c->world; rank++) {
        const struct err *const why = &all[rank].why;
        if (why->status == STATUS_OK) continue;
        err_set_param(e, why->status, why->param, "%s", why->text);
        return rank == c->rank ? why->status : err_prefix(e, "rank %lld", (long long)rank);
    }
    return STATUS_OK;
}

/* Rank 0 makes the temporary folder. */
static enum status open_folder(struct checkpoint_writing *w, struct comm *c, struct err *e) {
    struct told *const mine = mem_new(1, sizeof *mine);
    struct told *const all = mem_new((size_t)c->world, sizeof *all);
    if (c->rank == 0 && folder_begin(w->path, &w->made, &mine->why) == STATUS_OK)
        snprintf(mine->folder, sizeof mine->folder, "%s", w->made);
    const enum status status = tell_all(c, mine, all, e);
    if (status == STATUS_OK) w->folder = mem_strdup(all[0].folder);
    mem_free(mine);
    mem_free(all);
    return status;
}

/* This rank's file of these kinds, and what the manifest will say of it. */
static enum status save_part(const struct checkpoint_writing *w, const struct session *s,
                             const struct part_kinds *kinds, const char *prefix,
                             struct manifest_entry *entry, struct err *e) {
    char *name = NULL;
    enum status status = part_save(&s->optimizer, kinds, w->folder, prefix, &name, e);
    if (status == STATUS_OK && name) status = manifest_measure(w->folder, name, entry, e);
    mem_free(name);
    return status;
}

/* Adapters are for readers of PEFT: rank 0 writes them whole, from values that every rank leaves
 * for it, where they are not all on one. */
static bool leaves_values(const struct session *s) {
    return s->model.options.lora && !owned_has_all(&s->optimizer);
}

static enum status save_parts(const struct checkpoint_writing *w, const struct session *s,
                              struct manifest_entry *entry, struct err *e) {
    static const struct part_kinds VALUES = {{[OWNED_VALUE] = true}};
    const struct part_kinds kinds = {{!s->model.options.lora, true, true}};
    TRY(save_part(w, s, &kinds, PART_PREFIX, entry, e));
    struct manifest_entry ignored;
    return leaves_values(s) ? save_part(w, s, &VALUES, PART_VALUES_PREFIX, &ignored, e) : STATUS_OK;
}

static enum status share_parts(struct checkpoint_writing *w, const struct session *s,
                               struct err *e) {
    struct comm *const c = s->comm;
    struct told *const mine = mem_new(1, sizeof *mine);
    struct told *const all = mem_new((size_t)c->world, sizeof *all);
    save_parts(w, s, &mine->part, &mine->why);
    const enum status status = tell_all(c, mine, all, e);
    w->parts = mem_new((size_t)c->world, sizeof *w->parts);
    for (int64_t rank = 0; status == STATUS_OK && rank < c->world; rank++) {
        if (all[rank].part.name[0]) w->parts[w->part_count++] = all[rank].part;
    }
    mem_free(mine);
    mem_free(all);
    return status;
}

enum status checkpoint_begin(struct checkpoint_writing *w, struct session *s, int64_t step,
                             const struct checkpoint_place *place, struct err *e) {
    *w = (struct checkpoint_writing){.path = rundir_checkpoint(place->run, step)};
    arena_enter(s->arena, PHASE_CHECKPOINT);
    TRY(open_folder(w, s->comm, e));
    return share_parts(w, s, e);
}

static enum status remove_files(const char *folder, const char *prefix, struct err *e) {
    char **names = NULL;
    size_t count = 0;
    TRY(file_list(folder, &names, &count, e));
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        if (!str_starts_with(names[i], prefix)) continue;
        char *const path = file_join(folder, names[i]);
        status = file_remove_all(path, e);
        mem_free(path);
    }
    file_names_free(names, count);
    return status;
}

/* From the values that the ranks have left. */
static enum status assemble_adapter(const struct model *m, const char *folder, struct err *e) {
    struct block_set blocks = {0};
    size_t count = 0;
    const struct param *const tensors = model_whole_params(m, &count);
    char *const path = file_join(folder, ADAPTER_WEIGHTS_NAME);
    enum status status = blocks_open(&blocks, folder, PART_VALUES_PREFIX, e);
    if (status == STATUS_OK) status = weights_assemble(tensors, count, &blocks, ST_F32, path, e);
    blocks_close(&blocks);
    mem_free(path);
    return status == STATUS_OK ? remove_files(folder, PART_VALUES_PREFIX, e) : status;
}

static enum status save_adapter(const struct session *s, const char *base, const char *folder,
                                struct err *e) {
    const struct model *const m = &s->model;
    if (!m->options.lora) return STATUS_OK;
    if (!leaves_values(s)) return adapter_save(m, base, folder, e);
    TRY(assemble_adapter(m, folder, e));
    return adapter_save_config(m, base, folder, e);
}

enum status checkpoint_finish(struct checkpoint_writing *w, struct session *s,
                              const struct trainer_state *state,
                              const struct checkpoint_place *place, struct err *e) {
    TRY(save_adapter(s, place->base, w->folder, e));
    TRY(save_state(s, state, w->folder, e));
    TRY(manifest_write(w->folder, w->parts, w->part_count, e));
    TRY(folder_commit(&w->made, w->path, e));
    return remove_old(place->run, place->keep, e);
}

void checkpoint_end(struct checkpoint_writing *w) {
    folder_abort(&w->made);
    mem_free(w->folder);
    mem_free(w->path);
    mem_free(w->parts);
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

/* Every rank reads its share of the files; whole: all of them hold. */
static enum status verify_together(struct comm *c, const char *run, int64_t step, bool *whole,
                                   struct err *e) {
    char *const path = rundir_checkpoint(run, step);
    bool *const all = mem_new((size_t)c->world, sizeof *all);
    struct err damage = {0};
    const bool mine = manifest_verify(path, c->rank, c->world, &damage) == STATUS_OK;
    const enum status status = comm_gather(c, &mine, sizeof mine, all, e);
    *whole = true;
    for (int64_t rank = 0; rank < c->world; rank++) {
        *whole = *whole && all[rank];
    }
    mem_free(all);
    mem_free(path);
    return status;
}

enum status checkpoint_find(struct comm *c, const char *run, int64_t *step, int64_t *damaged,
                            struct err *e) {
    int64_t *steps = NULL;
    size_t count = 0;
    bool found = false;
    *step = *damaged = 0;
    TRY(list_steps(run, &steps, &count, e));
    enum status status = STATUS_OK;
    for (int64_t candidate = 1; status == STATUS_OK && candidate > 0 && !found;) {
        candidate = c->rank == 0 && count > 0 ? steps[--count] : 0;
        status = gang_follow(c, &candidate, e);
        if (status == STATUS_OK && candidate > 0)
            status = verify_together(c, run, candidate, &found, e);
        if (found) *step = candidate;
        *damaged += candidate > 0 && !found;
    }
    mem_free(steps);
    return status;
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

/* Written before parts were: flat buffers, whose order was that of one layout. */
static enum status refuse_old(const char *folder, struct err *e) {
    char *const path = file_join(folder, "optimizer.safetensors");
    const bool old = file_exists(path);
    mem_free(path);
    FAIL_IF(old, STATUS_UNSUPPORTED,
            "it was written by an earlier version of Plimsoll, whose checkpoints fitted one layout "
            "only: finish the run with that version, or remove the folder checkpoints to begin "
            "again");
    return STATUS_OK;
}

static enum status load_parts(struct session *s, const char *folder, struct err *e) {
    const struct part_kinds kinds = {{!s->model.options.lora, true, true}};
    struct block_set blocks = {0};
    enum status status = blocks_open(&blocks, folder, PART_PREFIX, e);
    if (status == STATUS_OK) status = part_load(&s->optimizer, &kinds, &blocks, e);
    blocks_close(&blocks);
    return status;
}

static enum status load_all(struct session *s, const char *folder, struct trainer_state *state,
                            struct err *e) {
    TRY(refuse_old(folder, e));
    if (s->model.options.lora) TRY(adapter_load(&s->model, folder, e));
    TRY(load_parts(s, folder, e));
    if (s->model.options.full) TRY(model_refresh(&s->model, e));
    return load_state(s, folder, state, e);
}

enum status checkpoint_load(struct session *s, const char *run, int64_t step,
                            struct trainer_state *state, struct err *e) {
    char *folder = rundir_checkpoint(run, step);
    const enum status status = load_all(s, folder, state, e);
    if (status != STATUS_OK) err_prefix(e, "resuming from %s", folder);
    mem_free(folder);
    return status;
}
