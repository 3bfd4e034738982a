/* job_body.c - from the body of a create call to a run spec: defaults <- hyperparameters <-
 * `plimsoll`, and what only the server knows (paths). Unknown members are refused with the nearest
 * known name: silence would be a bug. */
#include "server/api/api.h"

#include <string.h>

#include "base/mem.h"
#include "engine/spec.h"

enum {
    SUFFIX_MAX = 64,
    METADATA_MAX = 16,
    METADATA_KEY_MAX = 64,
    METADATA_VALUE_MAX = 512,
    NEAR = 3,
    DEVICES_AGE_MS = 60000
};
static const double LEARNING_RATE = 2e-4; /* what a learning_rate_multiplier of 1 means */

static const char *const BODY_KEYS[] = {
    "model",    "training_file", "validation_file", "suffix", "seed",
    "metadata", "integrations",  "hyperparameters", "method", "plimsoll"};
static const char *const PLAN_KEYS[] = {
    "model",        "training_file",   "validation_file", "suffix",   "seed", "metadata",
    "integrations", "hyperparameters", "method",          "plimsoll", "card", "probe"};
static const char *const HYPER_KEYS[] = {"n_epochs", "batch_size", "learning_rate_multiplier"};
static const char *const METHOD_KEYS[] = {"type", "supervised"};
static const char *const SUPERVISED_KEYS[] = {"hyperparameters"};

/* Refuses members of `object` that are not among `known`. */
static enum status check_keys(const cJSON *object, const char *const *known, size_t count,
                              const char *prefix, struct err *e) {
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, object) {
        const char *nearest = known[0];
        for (size_t i = 0; i < count; i++) {
            if (str_distance(item->string, known[i]) < str_distance(item->string, nearest)) {
                nearest = known[i];
            }
        }
        const int distance = str_distance(item->string, nearest);
        if (distance == 0) continue;
        const bool near = distance <= NEAR;
        return err_set_param(e, STATUS_INVALID, item->string, "%s%.80s is not known%s%s%s", prefix,
                             item->string, near ? "; did you mean " : "", near ? nearest : "",
                             near ? "?" : "; settings of the run itself go into `plimsoll`");
    }
    return STATUS_OK;
}

static enum status want_object(const cJSON *item, const char *key, struct err *e) {
    if (!item || cJSON_IsNull(item) || cJSON_IsObject(item)) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, key, "%s: expected an object", key);
}

/* The hyperparameters, at their old or new place, as an object of its own: "auto" or a number each.
 */
static enum status read_hyperparameters(const cJSON *body, cJSON *out, struct err *e) {
    const cJSON *const method = json_member(body, "method");
    const char *type = "supervised";
    TRY(want_object(method, "method", e));
    TRY(check_keys(method, METHOD_KEYS, COUNT_OF(METHOD_KEYS), "method.", e));
    if (method) TRY(json_get_string(method, "type", &type, e));
    if (strcmp(type, "supervised") != 0) {
        return err_set_param(e, STATUS_UNSUPPORTED, "method.type",
                             "method.type is \"%.40s\"; this server trains supervised", type);
    }
    const cJSON *const supervised = json_member(method, "supervised");
    TRY(want_object(supervised, "method.supervised", e));
    TRY(check_keys(supervised, SUPERVISED_KEYS, COUNT_OF(SUPERVISED_KEYS), "method.supervised.",
                   e));
    const cJSON *given = json_member(supervised, "hyperparameters");
    if (!given) given = json_member(body, "hyperparameters");
    TRY(want_object(given, "hyperparameters", e));
    TRY(check_keys(given, HYPER_KEYS, COUNT_OF(HYPER_KEYS), "hyperparameters.", e));
    for (size_t i = 0; i < COUNT_OF(HYPER_KEYS); i++) {
        const cJSON *const value = json_member(given, HYPER_KEYS[i]);
        const bool is_auto = !value || cJSON_IsNull(value) ||
                             (cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0);
        if (!is_auto && !cJSON_IsNumber(value)) {
            return err_set_param(e, STATUS_INVALID, HYPER_KEYS[i],
                                 "hyperparameters.%s: expected \"auto\" or a number",
                                 HYPER_KEYS[i]);
        }
        cJSON_AddItemToObject(out, HYPER_KEYS[i],
                              is_auto ? cJSON_CreateString("auto") : cJSON_Duplicate(value, true));
    }
    return STATUS_OK;
}

/* A hyperparameter becomes a key of the spec, unless the spec has it already. */
struct mapping {
    const char *hyper, *spec;
    double min, max, factor, preset; /* preset: what "auto" means, 0: the spec's own */
    bool whole;
};

static enum status map_hyperparameter(const struct mapping *m, const cJSON *hyper, cJSON *spec,
                                      struct err *e) {
    const cJSON *const value = json_member(hyper, m->hyper);
    double number = m->preset;
    if (cJSON_IsNumber(value)) {
        number = value->valuedouble;
        const bool fine = number >= m->min && number <= m->max &&
                          (!m->whole || number == (double)(int64_t)number);
        if (!fine) {
            return err_set_param(e, STATUS_INVALID, m->hyper,
                                 "hyperparameters.%s is %g, it must be %s from %g to %g", m->hyper,
                                 number, m->whole ? "a whole number" : "a number", m->min, m->max);
        }
    }
    if (number > 0 && !json_member(spec, m->spec)) {
        json_add_number(spec, m->spec, number * m->factor);
    }
    return STATUS_OK;
}

static enum status map_hyperparameters(const cJSON *hyper, cJSON *spec, struct err *e) {
    const struct mapping epochs = {"n_epochs", "num_train_epochs", 1, 50, 1, 3, true};
    const struct mapping batch = {"batch_size", "per_device_train_batch_size", 1, 256, 1, 0, true};
    const struct mapping rate = {
        "learning_rate_multiplier", "learning_rate", 1e-6, 1e4, LEARNING_RATE, 1, false};
    TRY(map_hyperparameter(&epochs, hyper, spec, e));
    TRY(map_hyperparameter(&batch, hyper, spec, e));
    return map_hyperparameter(&rate, hyper, spec, e);
}

/* A file that a job may train on: adds its path to the spec's list. */
static enum status add_file(const struct app *app, const cJSON *body, const char *key, cJSON *list,
                            struct err *e) {
    const char *id = NULL;
    struct file_row row = {0};
    TRY(json_get_string(body, key, &id, e));
    if (!id) return STATUS_OK;
    struct err missing = {0};
    if (store_file_get(app->store, id, &row, &missing) != STATUS_OK) {
        return err_set_param(e, STATUS_INVALID, key, "%s: %s", key, missing.text);
    }
    enum status status = STATUS_OK;
    if (strcmp(row.purpose, "fine-tune") != 0) {
        status = err_set_param(e, STATUS_INVALID, key, "%s: %s has the purpose %s, not fine-tune",
                               key, id, row.purpose);
    } else if (strcmp(row.status, "processed") != 0) {
        status = err_set_param(e, STATUS_INVALID, key, "%s: %s (%s) cannot be trained on: %s", key,
                               id, row.filename, row.details ? row.details : row.status);
    } else {
        cJSON_AddItemToArray(list, cJSON_CreateString(row.path));
    }
    file_row_release(&row);
    return status;
}

static enum status refuse_paths(const cJSON *ours, struct err *e) {
    const cJSON *const data = json_member(ours, "data");
    const char *key = NULL;
    if (json_member(ours, "model")) key = "model";
    if (json_member(ours, "adapter_name_or_path")) key = "adapter_name_or_path";
    if (json_member(data, "train_files")) key = "data.train_files";
    if (json_member(data, "eval_files")) key = "data.eval_files";
    if (!key) return STATUS_OK;
    return err_set_param(
        e, STATUS_INVALID, key,
        "plimsoll.%s is set by the server: use model, training_file and validation_file", key);
}

/* "Llama-3.1-8B" or "owner/Llama-3.1-8B": never a path. */
static bool is_model_name(const char *name) {
    const char *const slash = strchr(name, '/');
    return name[0] != '.' && name[0] != '/' && !(slash && strchr(slash + 1, '/')) &&
           !strstr(name, "..");
}

/* A plan may name a model that is not here; whether it is known by name the engine knows. */
static enum status set_model(const struct app *app, const cJSON *body, struct plan_body *plan,
                             cJSON *spec, struct err *e) {
    const char *model = NULL;
    struct err missing = {0};
    struct model_ref ref = {0};
    TRY(json_get_string(body, "model", &model, e));
    if (!model)
        return err_set_param(e, STATUS_INVALID, "model",
                             "model is missing: name a model of GET /v1/models");
    if (model_find(app, model, &ref, &missing) == STATUS_OK) {
        json_add_string(spec, "model", ref.folder);
        if (ref.adapter) json_add_string(spec, "adapter_name_or_path", ref.adapter);
        model_ref_release(&ref);
        return STATUS_OK;
    }
    if (!plan || missing.status != STATUS_NOT_FOUND || !is_model_name(model)) {
        *e = missing;
        return missing.status;
    }
    plan->by_name = true;
    json_add_string(spec, "model", model);
    return STATUS_OK;
}

/* What only the server knows; `plan`: a question, which may come without data. */
static enum status set_paths(const struct app *app, const cJSON *body, struct plan_body *plan,
                             cJSON *spec, struct err *e) {
    const char *file = NULL;
    TRY(json_get_string(body, "training_file", &file, e));
    if (!file && !plan) {
        return err_set_param(e, STATUS_INVALID, "training_file",
                             "training_file is missing: upload a file first");
    }
    TRY(set_model(app, body, plan, spec, e));
    cJSON *data = cJSON_GetObjectItemCaseSensitive(spec, "data");
    if (!data) data = cJSON_AddObjectToObject(spec, "data");
    TRY(add_file(app, body, "training_file", cJSON_AddArrayToObject(data, "train_files"), e));
    return add_file(app, body, "validation_file", cJSON_AddArrayToObject(data, "eval_files"), e);
}

/* What "auto" ranks are: a job claims its devices before its plan is made. */
static void count_ranks(const struct app *app, struct spec *spec) {
    if (spec->parallel.ranks != SPEC_AUTO) return;
    spec->parallel.ranks = 0;
    if (strcmp(spec->device, "cuda") == 0) {
        cJSON *const devices = devices_list(app->devices, app->engine, DEVICES_AGE_MS);
        const cJSON *device = NULL;
        cJSON_ArrayForEach(device, devices) {
            const char *id = NULL;
            struct err ignored = {0};
            (void)json_get_string(device, "id", &id, &ignored);
            spec->parallel.ranks += id && str_starts_with(id, "cuda");
        }
        cJSON_Delete(devices);
    }
    if (spec->parallel.ranks < 1) spec->parallel.ranks = 1;
}

/* The spec as JSON text, checked by the engine's own rules; a question keeps what is open. */
static enum status resolve_spec(const struct app *app, const cJSON *object, bool question,
                                char **out, struct err *e) {
    struct spec spec = {0};
    struct err wrong = {0};
    struct str text = {0};
    const enum status status =
        question ? spec_parse_question(&spec, object, &wrong) : spec_parse(&spec, object, &wrong);
    if (status == STATUS_OK) {
        if (!question) count_ranks(app, &spec);
        cJSON *resolved = spec_to_json(&spec);
        json_append(&text, resolved);
        cJSON_Delete(resolved);
        *out = str_take(&text);
    }
    spec_release(&spec);
    if (status == STATUS_OK) return STATUS_OK;
    char *param = str_format("plimsoll.%s", wrong.param);
    err_set_param(e, status, wrong.param[0] ? param : "plimsoll", "%s", wrong.text);
    mem_free(param);
    return status;
}

static enum status check_suffix(const cJSON *body, struct err *e) {
    const char *suffix = NULL;
    TRY(json_get_string(body, "suffix", &suffix, e));
    if (!suffix) return STATUS_OK;
    const size_t len = strlen(suffix);
    bool fine = len > 0 && len <= SUFFIX_MAX;
    for (size_t i = 0; i < len && fine; i++) {
        fine = (unsigned char)suffix[i] >= 0x20 && !strchr(":/\\\x7F", suffix[i]);
    }
    if (fine) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, "suffix",
                         "suffix must be 1 to %d characters without : / and \\", SUFFIX_MAX);
}

static enum status check_metadata(const cJSON *body, struct err *e) {
    const cJSON *const metadata = json_member(body, "metadata");
    const cJSON *item = NULL;
    TRY(want_object(metadata, "metadata", e));
    bool fine = cJSON_GetArraySize(metadata) <= METADATA_MAX;
    cJSON_ArrayForEach(item, metadata) {
        fine = fine && cJSON_IsString(item) && strlen(item->string) <= METADATA_KEY_MAX &&
               strlen(item->valuestring) <= METADATA_VALUE_MAX;
    }
    if (fine) return STATUS_OK;
    return err_set_param(e, STATUS_INVALID, "metadata",
                         "metadata holds at most %d texts, keys to %d and values to %d bytes",
                         METADATA_MAX, METADATA_KEY_MAX, METADATA_VALUE_MAX);
}

static enum status check_body(const cJSON *body, const char *const *keys, size_t count,
                              struct err *e) {
    FAIL_IF(!cJSON_IsObject(body), STATUS_INVALID, "the request's body must be a JSON object");
    TRY(check_keys(body, keys, count, "", e));
    TRY(want_object(json_member(body, "plimsoll"), "plimsoll", e));
    TRY(refuse_paths(json_member(body, "plimsoll"), e));
    TRY(check_suffix(body, e));
    TRY(check_metadata(body, e));
    const cJSON *const integrations = json_member(body, "integrations");
    if (cJSON_GetArraySize(integrations) > 0) {
        return err_set_param(e, STATUS_UNSUPPORTED, "integrations",
                             "integrations are not supported: nothing leaves this machine");
    }
    return STATUS_OK;
}

/* What the Job object gives back of the request. Takes ownership of `hyper`. */
static cJSON *request_of(const cJSON *body, cJSON *hyper, int64_t seed) {
    cJSON *const request = cJSON_CreateObject();
    static const char *const kept[] = {"validation_file", "suffix", "metadata"};
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        const cJSON *const item = json_member(body, kept[i]);
        cJSON_AddItemToObject(request, kept[i],
                              item ? cJSON_Duplicate(item, true) : cJSON_CreateNull());
    }
    cJSON_AddArrayToObject(request, "integrations");
    json_add_i64(request, "seed", seed);
    cJSON *const method = cJSON_AddObjectToObject(request, "method");
    json_add_string(method, "type", "supervised");
    cJSON *const supervised = cJSON_AddObjectToObject(method, "supervised");
    cJSON_AddItemToObject(supervised, "hyperparameters", cJSON_Duplicate(hyper, true));
    cJSON_AddItemToObject(request, "hyperparameters", hyper);
    return request;
}

static enum status build_spec(const struct app *app, const cJSON *body, const cJSON *hyper,
                              struct plan_body *plan, char **out, struct err *e) {
    const cJSON *const ours = json_member(body, "plimsoll");
    cJSON *spec = cJSON_IsObject(ours) ? cJSON_Duplicate(ours, true) : cJSON_CreateObject();
    const cJSON *const seed = json_member(body, "seed");
    const cJSON *const data = json_member(ours, "data");
    enum status status = STATUS_OK;
    GUARD(want_object(data, "plimsoll.data", e));
    if (seed && !cJSON_IsNull(seed) && !json_member(spec, "seed")) {
        cJSON_AddItemToObject(spec, "seed", cJSON_Duplicate(seed, true));
    }
    GUARD(map_hyperparameters(hyper, spec, e));
    GUARD(set_paths(app, body, plan, spec, e));
    GUARD(resolve_spec(app, spec, plan != NULL, out, e));
done:
    cJSON_Delete(spec);
    return status;
}

static enum status seed_of(const char *spec, int64_t *seed, struct err *e) {
    cJSON *resolved = api_parsed(spec);
    const enum status status = json_get_i64(resolved, "seed", seed, e);
    cJSON_Delete(resolved);
    return status;
}

enum status plan_from_body(const struct app *app, const cJSON *body, struct plan_body *plan,
                           struct err *e) {
    cJSON *hyper = cJSON_CreateObject();
    enum status status = STATUS_OK;
    *plan = (struct plan_body){0};
    GUARD(check_body(body, PLAN_KEYS, COUNT_OF(PLAN_KEYS), e));
    GUARD(json_get_string(body, "card", &plan->card, e));
    GUARD(json_get_bool(body, "probe", &plan->probe, e));
    GUARD(read_hyperparameters(body, hyper, e));
    GUARD(build_spec(app, body, hyper, plan, &plan->spec, e));
done:
    cJSON_Delete(hyper);
    return status;
}

enum status job_from_body(const struct app *app, const cJSON *body, struct job_row *row,
                          struct err *e) {
    int64_t seed = 0;
    char id[64];
    const char *model = NULL, *file = NULL;
    struct str text = {0};
    enum status status = STATUS_OK;
    cJSON *hyper = cJSON_CreateObject();
    GUARD(check_body(body, BODY_KEYS, COUNT_OF(BODY_KEYS), e));
    GUARD(read_hyperparameters(body, hyper, e));
    GUARD(build_spec(app, body, hyper, NULL, &row->spec, e));
    GUARD(seed_of(row->spec, &seed, e));
    GUARD(json_get_string(body, "model", &model, e));
    GUARD(json_get_string(body, "training_file", &file, e));
    cJSON *request = request_of(body, hyper, seed);
    hyper = NULL;
    json_append(&text, request);
    cJSON_Delete(request);
    store_new_id(id, "ftjob-");
    row->id = mem_strdup(id);
    row->request = str_take(&text);
    row->model = mem_strdup(model);
    row->training_file = mem_strdup(file);
    row->status = mem_strdup("queued");
    row->phase = mem_strdup("queued");
    row->queued_ms = clock_unix_ms();
    row->created_at = row->queued_ms / 1000;
done:
    cJSON_Delete(hyper);
    return status;
}
