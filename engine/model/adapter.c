/* adapter.c - reading and writing PEFT's adapter_config.json with exact key names, and its
 * weights.
 *
 * What a config says that would change the computation and is not done here is refused by name. */
#include "engine/model/adapter.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/model/weights.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

/* Keys that would change what is computed; each must be absent, null, false, empty or have its
 * neutral text. */
static const struct {
    const char *key, *neutral;
} NEUTRAL[] = {
    {"alora_invocation_tokens", NULL},
    {"alpha_pattern", NULL},
    {"bias", "none"},
    {"fan_in_fan_out", NULL},
    {"layer_replication", NULL},
    {"layers_to_transform", NULL},
    {"lora_bias", NULL},
    {"modules_to_save", NULL},
    {"peft_type", "LORA"},
    {"rank_pattern", NULL},
    {"target_parameters", NULL},
    {"trainable_token_indices", NULL},
    {"use_qalora", NULL},
    {"exclude_modules", NULL},
    {"megatron_config", NULL},
};

static bool is_neutral(const cJSON *value, const char *neutral) {
    if (!value || cJSON_IsNull(value) || cJSON_IsFalse(value)) return true;
    if (cJSON_IsString(value)) return neutral && strcmp(value->valuestring, neutral) == 0;
    return (cJSON_IsObject(value) || cJSON_IsArray(value)) && cJSON_GetArraySize(value) == 0;
}

static enum status read_targets(struct adapter_config *c, const cJSON *targets, const char *path,
                                struct err *e) {
    const bool one = cJSON_IsString(targets);
    FAIL_IF(!one && !(cJSON_IsArray(targets) && cJSON_GetArraySize(targets) > 0), STATUS_INVALID,
            "%s: target_modules must be a list of module names", path);
    const cJSON *item = one ? targets : targets->child;
    c->target_modules =
        mem_new((size_t)(one ? 1 : cJSON_GetArraySize(targets)), sizeof *c->target_modules);
    for (; item; item = one ? NULL : item->next) {
        FAIL_IF(!cJSON_IsString(item), STATUS_INVALID,
                "%s: target_modules must be a list of module names", path);
        c->target_modules[c->target_count++] = mem_strdup(item->valuestring);
    }
    return STATUS_OK;
}

static enum status read_config(struct adapter_config *c, const cJSON *json, const char *path,
                               struct err *e) {
    for (size_t i = 0; i < COUNT_OF(NEUTRAL); i++) {
        FAIL_IF(!is_neutral(json_member(json, NEUTRAL[i].key), NEUTRAL[i].neutral),
                STATUS_UNSUPPORTED, "%s: %s is set to something that Plimsoll does not train", path,
                NEUTRAL[i].key);
    }
    *c = (struct adapter_config){.r = 8, .lora_alpha = 8};
    TRY(json_get_i64(json, "r", &c->r, e));
    TRY(json_get_f64(json, "lora_alpha", &c->lora_alpha, e));
    TRY(json_get_f64(json, "lora_dropout", &c->lora_dropout, e));
    TRY(json_get_bool(json, "use_rslora", &c->use_rslora, e));
    TRY(json_get_bool(json, "use_dora", &c->use_dora, e));
    FAIL_IF(c->r < 1 || c->r > 16384, STATUS_INVALID, "%s: r is %lld, it must be 1 to 16384", path,
            (long long)c->r);
    return read_targets(c, json_member(json, "target_modules"), path, e);
}

enum status adapter_config_load(struct adapter_config *c, const char *folder, struct err *e) {
    *c = (struct adapter_config){0};
    char *path = file_join(folder, "adapter_config.json");
    cJSON *json = NULL;
    enum status status = json_read_file(path, CONFIG_BYTES_MAX, &json, e);
    if (status == STATUS_OK) status = read_config(c, json, path, e);
    cJSON_Delete(json);
    mem_free(path);
    return status;
}

void adapter_config_release(struct adapter_config *c) {
    if (!c) return;
    for (int64_t i = 0; i < c->target_count; i++) {
        mem_free(c->target_modules[i]);
    }
    mem_free(c->target_modules);
    *c = (struct adapter_config){0};
}

enum status adapter_load(struct model *m, const char *folder, struct err *e) {
    char *path = file_join(folder, ADAPTER_WEIGHTS_NAME);
    struct st_set set = {0};
    enum status status = st_open_file(&set, path, e);
    if (status == STATUS_OK)
        status = weights_load_params(m, m->adapter_params, m->adapter_param_count, &set, e);
    size_t count = 0;
    model_whole_params(m, &count);
    if (status == STATUS_OK && (size_t)set.count != count) {
        status = err_set(
            e, STATUS_INVALID,
            "%s: holds %lld tensors, the adapter of this model and these target modules has %zu",
            path, (long long)set.count, count);
    }
    st_close(&set);
    mem_free(path);
    return status;
}

/* The last part of each adapted module's name, once each, in order of appearance. */
static cJSON *target_names(const struct model *m) {
    cJSON *const list = cJSON_CreateArray();
    size_t count = 0;
    const struct param *const params = model_whole_params(m, &count);
    for (size_t i = 0; i < count; i++) {
        char module[PARAM_NAME_MAX];
        snprintf(module, sizeof module, "%s", params[i].name);
        char *const end = strstr(module, ".lora_A.weight");
        if (!end) continue;
        *end = 0;
        const char *const last = strrchr(module, '.') + 1;
        bool known = false;
        for (const cJSON *item = list->child; item; item = item->next) {
            known = known || strcmp(item->valuestring, last) == 0;
        }
        if (!known) cJSON_AddItemToArray(list, cJSON_CreateString(last));
    }
    return list;
}

static cJSON *config_to_json(const struct model *m, const char *base) {
    const struct model_options *const o = &m->options;
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "peft_type", "LORA");
    json_add_string(json, "task_type", "CAUSAL_LM");
    json_add_string(json, "base_model_name_or_path", base);
    json_add_i64(json, "r", o->r);
    json_add_number(json, "lora_alpha", o->lora_alpha);
    json_add_number(json, "lora_dropout", o->lora_dropout);
    cJSON_AddItemToObject(json, "target_modules", target_names(m));
    json_add_string(json, "bias", "none");
    json_add_bool(json, "use_rslora", o->use_rslora);
    json_add_bool(json, "use_dora", o->use_dora);
    json_add_bool(json, "fan_in_fan_out", false);
    json_add_bool(json, "inference_mode", true);
    json_add_bool(json, "init_lora_weights", true);
    cJSON_AddNullToObject(json, "modules_to_save");
    cJSON_AddNullToObject(json, "layers_to_transform");
    cJSON_AddNullToObject(json, "layers_pattern");
    cJSON_AddItemToObject(json, "rank_pattern", cJSON_CreateObject());
    cJSON_AddItemToObject(json, "alpha_pattern", cJSON_CreateObject());
    cJSON_AddNullToObject(json, "revision");
    return json;
}

enum status adapter_save_config(const struct model *m, const char *base, const char *folder,
                                struct err *e) {
    char *const path = file_join(folder, "adapter_config.json");
    cJSON *const json = config_to_json(m, base);
    const enum status status = json_write_file(path, json, e);
    cJSON_Delete(json);
    mem_free(path);
    return status;
}

enum status adapter_save(const struct model *m, const char *base, const char *folder,
                         struct err *e) {
    char *const path = file_join(folder, ADAPTER_WEIGHTS_NAME);
    const enum status status =
        weights_save(m, m->adapter_params, m->adapter_param_count, ST_F32, path, e);
    mem_free(path);
    return status == STATUS_OK ? adapter_save_config(m, base, folder, e) : status;
}
