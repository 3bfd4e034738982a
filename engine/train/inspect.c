/* inspect.c - describing a model folder, letting it speak, and listing what one can compute on.
 *
 * The first two read the folder through the same doors as a run, so what passes here passes
 * there. */
#include "engine/train/inspect.h"

#include <stdio.h>

#include "base/file.h"
#include "base/str.h"
#include "engine/model/weights.h"
#include "engine/train/corpus.h"
#include "engine/train/generate.h"
#include "engine/train/session.h"
#include "kernels/cards.h"

enum { ANSWER_TOKENS_MAX = 128, ANSWER_LENGTH_MAX = 4096 };

static enum status describe(const char *folder, const struct model_config *c,
                            const struct st_set *set, cJSON *json, struct err *e) {
    struct tokenizer *tokenizer = NULL;
    struct chat_template *chat_template = NULL;
    const enum status status = corpus_open_text(folder, &tokenizer, &chat_template, e);
    if (status == STATUS_OK) {
        json_add_i64(json, "tokenizer_size", tokenizer_size(tokenizer));
        json_add_bool(json, "chat_template", chat_template != NULL);
    }
    tokenizer_free(tokenizer);
    chat_template_free(chat_template);
    TRY(status);
    int64_t bytes = 0;
    for (int64_t i = 0; i < set->count; i++) {
        bytes += set->tensors[i].bytes;
    }
    json_add_string(json, "model_type", c->model_type);
    json_add_string(json, "architecture", c->architecture);
    json_add_i64(json, "parameters", model_parameter_count(c));
    json_add_i64(json, "layers", c->layers);
    json_add_i64(json, "hidden_size", c->hidden_size);
    json_add_i64(json, "vocab_size", c->vocab_size);
    json_add_i64(json, "max_position_embeddings", c->max_position_embeddings);
    json_add_string(json, "torch_dtype", c->torch_dtype[0] ? c->torch_dtype : NULL);
    json_add_i64(json, "weights_bytes", bytes);
    return STATUS_OK;
}

enum status inspect_model(const char *folder, cJSON **out, struct err *e) {
    struct model_config config;
    struct st_set set = {0};
    cJSON *json = cJSON_CreateObject();
    enum status status = STATUS_OK;
    GUARD(model_config_load(&config, folder, e));
    GUARD(st_open_folder(&set, folder, e));
    GUARD(weights_check(&config, &set, e));
    GUARD(describe(folder, &config, &set, json, e));
    *out = json;
    json = NULL;
done:
    st_close(&set);
    cJSON_Delete(json);
    return status;
}

static cJSON *device_json(const char *id, const char *name, int64_t total, int64_t free_bytes) {
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "id", id);
    json_add_string(json, "name", name);
    json_add_i64(json, "total_bytes", total);
    if (free_bytes < 0) {
        cJSON_AddNullToObject(json, "free_bytes");
    } else {
        json_add_i64(json, "free_bytes", free_bytes);
    }
    return json;
}

static enum status add_cpu(cJSON *list, struct err *e) {
    struct device *device = NULL;
    struct device_memory memory = {0};
    const struct device_options options = {.precision = PRECISION_F32};
    TRY(device_open(&device, "cpu", &options, e));
    const enum status status = device_memory(device, &memory, e);
    if (status == STATUS_OK) {
        cJSON *const json = device_json("cpu", device->detail, memory.total, memory.free);
        cJSON_AddNullToObject(json, "capability");
        json_add_bool(json, "usable", true);
        cJSON_AddNullToObject(json, "reason");
        cJSON_AddItemToArray(list, json);
    }
    device_close(device);
    return status;
}

static void add_card(cJSON *list, const struct device_card *card) {
    const bool usable = card->problem.status == STATUS_OK;
    char capability[24];
    snprintf(capability, sizeof capability, "%d.%d", card->capability / 10, card->capability % 10);
    cJSON *const json = device_json(card->id, card->name, card->total_bytes, card->free_bytes);
    json_add_string(json, "capability", card->capability ? capability : NULL);
    json_add_bool(json, "usable", usable);
    json_add_string(json, "reason", usable ? NULL : card->problem.text);
    cJSON_AddItemToArray(list, json);
}

enum status inspect_devices(cJSON **out, struct err *e) {
    struct device_cards cards;
    cJSON *const json = cJSON_CreateObject();
    cJSON *const list = cJSON_AddArrayToObject(json, "devices");
    const enum status status = add_cpu(list, e);
    device_cards_find(&cards);
    for (int i = 0; i < cards.count; i++) {
        add_card(list, &cards.items[i]);
    }
    json_add_string(json, "driver", cards.driver[0] ? cards.driver : NULL);
    json_add_string(json, "reason", cards.problem.status == STATUS_OK ? NULL : cards.problem.text);
    if (status == STATUS_OK) {
        *out = json;
    } else {
        cJSON_Delete(json);
    }
    return status;
}

static enum status answer(struct session *s, const char *folder, const char *prompt,
                          struct str *text, struct err *e) {
    struct tokenizer *tokenizer = NULL;
    struct chat_template *chat_template = NULL;
    enum status status = corpus_open_text(folder, &tokenizer, &chat_template, e);
    const struct speaker speaker = {.model = &s->model,
                                    .tokenizer = tokenizer,
                                    .chat_template = chat_template,
                                    .now_unix_s = clock_unix_ms() / 1000};
    const struct generate_options options = {.tokens_max = ANSWER_TOKENS_MAX,
                                             .length_max = ANSWER_LENGTH_MAX};
    if (status == STATUS_OK) status = generate_answer(&speaker, prompt, &options, text, e);
    chat_template_free(chat_template);
    tokenizer_free(tokenizer);
    return status;
}

/* A GPU speaks in what the model was made in; a processor is fast at f32 everywhere. */
static enum precision speaking_precision(const struct question *q, const struct model_config *c) {
    return str_starts_with(q->device, "cuda") && str_equal(c->torch_dtype, "bfloat16")
               ? PRECISION_BF16
               : PRECISION_F32;
}

enum status inspect_answer(const struct question *q, cJSON **out, struct err *e) {
    struct session_options options = {0};
    struct session session = {0};
    struct model_config config;
    struct weights_report report;
    struct str text = {0};
    const struct session_place place = {.device = q->device};
    const struct session_source source = {.model = q->model, .adapter = q->adapter};
    enum status status = STATUS_OK;
    GUARD(model_config_load(&config, q->model, e));
    GUARD(session_options_for(&options, q->adapter, speaking_precision(q, &config),
                              ANSWER_LENGTH_MAX, e));
    GUARD(session_open(&session, &place, &config, &options, e));
    GUARD(session_load(&session, &source, &report, e));
    GUARD(answer(&session, q->model, q->prompt, &text, e));
    *out = cJSON_CreateObject();
    json_add_string(*out, "prompt", q->prompt);
    json_add_string(*out, "text", str_text(&text));
done:
    str_release(&text);
    session_close(&session);
    session_options_release(&options);
    return status;
}
