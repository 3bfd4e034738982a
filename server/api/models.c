/* models.c - /v1/models: the folders under each --models folder that hold a config.json, and what
 * jobs have made.
 *
 * What the engine says about a folder is asked once and kept until its config.json changes; a
 * folder that the engine refuses is listed with the reason, so that it does not hide the others. */
#include "server/api/api.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "server/run/process.h"

enum { INSPECT_LIMIT_MS = 60000, INSPECT_BYTES_MAX = 1 << 20, KNOWN_NAMED_MAX = 12 };

void model_ref_release(struct model_ref *ref) {
    mem_free(ref->folder);
    mem_free(ref->adapter);
    *ref = (struct model_ref){0};
}

/* Changes whenever the folder's configuration does. False if this is no model folder. */
static bool stamp_of(const char *folder, char stamp[64], int64_t *created) {
    char *config = file_join(folder, "config.json");
    struct stat info;
    const bool found = stat(config, &info) == 0 && S_ISREG(info.st_mode);
    mem_free(config);
    if (!found) return false;
    *created = info.st_mtim.tv_sec;
    snprintf(stamp, 64, "%lld.%09ld-%lld", (long long)info.st_mtim.tv_sec, info.st_mtim.tv_nsec,
             (long long)info.st_size);
    return true;
}

static cJSON *error_object(const char *message) {
    cJSON *const object = cJSON_CreateObject();
    json_add_string(object, "error", message);
    return object;
}

/* What the engine says about the folder, or {"error": ...}: one broken folder must not hide the
 * others. */
static cJSON *ask_engine(const struct app *app, const char *folder) {
    const char *const argv[] = {app->engine, "inspect", folder, NULL};
    struct process_output output = {0};
    struct err error = {0};
    cJSON *report = NULL;
    const struct process_question question = {
        .argv = argv, .bytes_max = INSPECT_BYTES_MAX, .limit_ms = INSPECT_LIMIT_MS};
    enum status status = process_capture(&question, &output, &error);
    if (status == STATUS_OK) {
        status = json_parse(str_text(&output.out), output.out.len, "the engine's report", &report,
                            &error);
    }
    if (status != STATUS_OK) report = error_object(output.err.len ? output.err.data : error.text);
    process_output_release(&output);
    return report;
}

static enum status inspect(const struct app *app, const char *folder, const char *stamp,
                           cJSON **out, struct err *e) {
    char *known = NULL;
    TRY(store_inspection_get(app->store, folder, stamp, &known, e));
    if (known) {
        *out = api_parsed(known);
        mem_free(known);
        return STATUS_OK;
    }
    *out = ask_engine(app, folder);
    if (json_member(*out, "error")) return STATUS_OK; /* ask again next time */
    struct str text = {0};
    json_append(&text, *out);
    const enum status status = store_inspection_put(app->store, folder, stamp, str_text(&text), e);
    str_release(&text);
    return status;
}

static cJSON *model_object(const char *id, int64_t created, const char *owner) {
    cJSON *const model = cJSON_CreateObject();
    json_add_string(model, "id", id);
    json_add_string(model, "object", "model");
    json_add_i64(model, "created", created);
    json_add_string(model, "owned_by", owner);
    return model;
}

/* Calls `see` for each base model until it returns false; a name that an earlier folder has hides
 * later ones. */
struct base_visit {
    bool (*see)(struct base_visit *v, const char *name, const char *folder);
    const struct app *app;
    const char *wanted; /* find_base: the name */
    char *found;
    cJSON *data;       /* list_base: the list */
    struct str *names; /* name_base */
    int named;
    struct err *e;
    enum status status;
};

static void visit_folder(struct base_visit *v, const char *parent, bool *go_on) {
    char **names = NULL;
    size_t count = 0;
    struct err ignored = {0};
    if (file_list(parent, &names, &count, &ignored) != STATUS_OK) return;
    for (size_t i = 0; i < count && *go_on; i++) {
        char *folder = file_join(parent, names[i]);
        char *config = file_join(folder, "config.json");
        if (names[i][0] != '.' && file_exists(config)) *go_on = v->see(v, names[i], folder);
        mem_free(config);
        mem_free(folder);
    }
    file_names_free(names, count);
}

static void visit_base_models(struct base_visit *v) {
    bool go_on = true;
    for (int i = 0; i < v->app->model_folder_count && go_on; i++) {
        visit_folder(v, v->app->model_folders[i], &go_on);
    }
}

static bool see_wanted(struct base_visit *v, const char *name, const char *folder) {
    if (strcmp(name, v->wanted) != 0) return true;
    v->found = mem_strdup(folder);
    return false;
}

static char *find_base(const struct app *app, const char *name) {
    struct base_visit v = {.see = see_wanted, .app = app, .wanted = name};
    visit_base_models(&v);
    return v.found;
}

static bool see_name(struct base_visit *v, const char *name, const char *folder) {
    (void)folder;
    str_appendf(v->names, "%s%s", v->named ? ", " : "", name);
    return ++v->named < KNOWN_NAMED_MAX;
}

static enum status not_found(const struct app *app, const char *id, struct err *e) {
    struct str names = {0};
    struct base_visit v = {.see = see_name, .app = app, .names = &names};
    visit_base_models(&v);
    err_set_param(e, STATUS_NOT_FOUND, "model", "No such model: %.200s. %s%s", id,
                  names.len ? "Known models: " : "No model folder was found; see --models",
                  str_text(&names));
    str_release(&names);
    return STATUS_NOT_FOUND;
}

enum status model_only(const struct app *app, char **id, struct err *e) {
    struct str names = {0};
    struct base_visit v = {.see = see_name, .app = app, .names = &names};
    visit_base_models(&v);
    enum status status = STATUS_OK;
    if (v.named == 1) {
        *id = str_take(&names);
    } else {
        status = err_set_param(e, STATUS_INVALID, "model", "model is missing: %s%s",
                               names.len ? "name one of " : "no model folder was found; see ",
                               names.len ? str_text(&names) : "--models");
    }
    str_release(&names);
    return status;
}

/* The result of a job; its base model is looked for under the name it was trained from. */
static enum status find_tuned(const struct app *app, const struct job_row *job,
                              struct model_ref *out, struct err *e) {
    char *run = store_run_folder(app->store, job->id);
    char *result = file_join(run, job->result ? job->result : "adapter");
    mem_free(run);
    if (str_equal(job->result, "model")) {
        out->folder = result;
        return STATUS_OK;
    }
    out->adapter = result;
    struct model_ref base = {0};
    const enum status status = model_find(app, job->model, &base, e);
    out->folder = base.folder;
    mem_free(base.adapter);
    return status;
}

enum status model_find(const struct app *app, const char *id, struct model_ref *out,
                       struct err *e) {
    *out = (struct model_ref){0};
    struct job_list tuned = {0};
    out->folder = find_base(app, id);
    if (out->folder) return STATUS_OK;
    TRY(store_job_tuned(app->store, id, &tuned, e));
    const enum status status =
        tuned.count ? find_tuned(app, &tuned.rows[0], out, e) : not_found(app, id, e);
    job_list_release(&tuned);
    if (status != STATUS_OK) model_ref_release(out);
    return status;
}

static cJSON *tuned_object(const struct job_row *job) {
    cJSON *const model = model_object(job->fine_tuned_model, job->finished_at, "fine-tune");
    cJSON *const ours = cJSON_AddObjectToObject(model, "plimsoll");
    json_add_string(ours, "job_id", job->id);
    json_add_string(ours, "base_model", job->model);
    json_add_string(ours, "result", job->result);
    return model;
}

static enum status base_object(const struct app *app, const char *name, const char *folder,
                               cJSON **out, struct err *e) {
    char stamp[64];
    int64_t created = 0;
    cJSON *report = NULL;
    if (!stamp_of(folder, stamp, &created)) return not_found(app, name, e);
    TRY(inspect(app, folder, stamp, &report, e));
    *out = model_object(name, created, "local");
    cJSON_AddItemToObject(*out, "plimsoll", report);
    return STATUS_OK;
}

static bool see_listed(struct base_visit *v, const char *name, const char *folder) {
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, v->data) {
        const cJSON *const id = json_member(item, "id");
        if (cJSON_IsString(id) && strcmp(id->valuestring, name) == 0) return true;
    }
    cJSON *model = NULL;
    v->status = base_object(v->app, name, folder, &model, v->e);
    if (model) cJSON_AddItemToArray(v->data, model);
    return v->status == STATUS_OK;
}

enum status api_models_list(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e) {
    (void)q;
    const struct app *const app = context;
    struct job_list tuned = {0};
    struct base_visit v = {.see = see_listed, .app = app, .data = cJSON_CreateArray(), .e = e};
    visit_base_models(&v);
    if (v.status == STATUS_OK) v.status = store_job_tuned(app->store, NULL, &tuned, e);
    for (int64_t i = 0; i < tuned.count; i++) {
        cJSON_AddItemToArray(v.data, tuned_object(&tuned.rows[i]));
    }
    job_list_release(&tuned);
    http_reply_json(r, api_list(v.data, false));
    return v.status;
}

enum status api_models_get(void *context, struct http_request *q, struct http_reply *r,
                           struct err *e) {
    const struct app *const app = context;
    const char *const id = q->parameters[0];
    struct job_list tuned = {0};
    cJSON *model = NULL;
    char *folder = find_base(app, id);
    enum status status = STATUS_OK;
    if (folder) {
        status = base_object(app, id, folder, &model, e);
    } else {
        status = store_job_tuned(app->store, id, &tuned, e);
        if (status == STATUS_OK && tuned.count == 0) status = not_found(app, id, e);
        if (status == STATUS_OK) model = tuned_object(&tuned.rows[0]);
    }
    job_list_release(&tuned);
    mem_free(folder);
    if (status == STATUS_OK) http_reply_json(r, model);
    return status;
}

static enum status delete_result(const struct app *app, const struct job_row *job, struct err *e) {
    TRY(store_job_untune(app->store, job, e));
    char *run = store_run_folder(app->store, job->id);
    char *folder = file_join(run, job->result ? job->result : "adapter");
    const enum status status = file_remove_all(folder, e);
    mem_free(folder);
    mem_free(run);
    return status;
}

enum status api_models_delete(void *context, struct http_request *q, struct http_reply *r,
                              struct err *e) {
    const struct app *const app = context;
    const char *const id = q->parameters[0];
    struct job_list tuned = {0};
    char *folder = find_base(app, id);
    const bool base = folder != NULL;
    mem_free(folder);
    if (base) {
        r->code = 403;
        return err_set(e, STATUS_INVALID,
                       "%s is a base model; only fine-tuned models can be deleted", id);
    }
    TRY(store_job_tuned(app->store, id, &tuned, e));
    enum status status =
        tuned.count ? delete_result(app, &tuned.rows[0], e) : not_found(app, id, e);
    job_list_release(&tuned);
    TRY(status);
    cJSON *reply = cJSON_CreateObject();
    json_add_string(reply, "id", id);
    json_add_string(reply, "object", "model");
    json_add_bool(reply, "deleted", true);
    http_reply_json(r, reply);
    return STATUS_OK;
}
