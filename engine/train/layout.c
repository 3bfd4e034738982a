/* layout.c - the layout that a spec asks for, and layouts as JSON.
 *
 * The JSON is what events tell and what the cache remembers; its keys are the names of the fields,
 * so that who reads an event can find the code. */
#include "engine/train/layout.h"

struct layout layout_of_spec(const struct spec *spec, const struct model_config *config) {
    const int64_t wanted = spec->gradient_checkpointing_layers;
    const bool all = wanted == 0 || wanted > config->layers;
    return (struct layout){.micro_rows = spec_train_rows(spec),
                           .micro_tokens = spec->micro_batch_tokens,
                           .loss_chunk_rows = spec->loss_chunk_rows,
                           .checkpointed_layers = !spec->gradient_checkpointing ? 0
                                                  : all                         ? config->layers
                                                                                : wanted,
                           .activation_offloading = spec->activation_offloading,
                           .zero_stage = spec->parallel.zero_stage,
                           .optimizer_offloading = spec->optimizer_offloading,
                           .param_offloading = spec->param_offloading,
                           .eval_rows = spec->per_device_eval_batch_size,
                           .sample_tokens = spec->data.max_length};
}

bool layout_equal(const struct layout *a, const struct layout *b) {
    return a->micro_rows == b->micro_rows && a->micro_tokens == b->micro_tokens &&
           a->loss_chunk_rows == b->loss_chunk_rows &&
           a->checkpointed_layers == b->checkpointed_layers &&
           a->activation_offloading == b->activation_offloading &&
           a->optimizer_offloading == b->optimizer_offloading &&
           a->param_offloading == b->param_offloading && a->zero_stage == b->zero_stage &&
           a->eval_rows == b->eval_rows && a->sample_tokens == b->sample_tokens;
}

cJSON *layout_to_json(const struct layout *layout) {
    cJSON *const json = cJSON_CreateObject();
    json_add_i64(json, "micro_rows", layout->micro_rows);
    json_add_i64(json, "micro_tokens", layout->micro_tokens);
    json_add_i64(json, "loss_chunk_rows", layout->loss_chunk_rows);
    json_add_i64(json, "checkpointed_layers", layout->checkpointed_layers);
    json_add_bool(json, "activation_offloading", layout->activation_offloading);
    json_add_bool(json, "optimizer_offloading", layout->optimizer_offloading);
    json_add_bool(json, "param_offloading", layout->param_offloading);
    json_add_i64(json, "zero_stage", layout->zero_stage);
    json_add_i64(json, "eval_rows", layout->eval_rows);
    json_add_i64(json, "sample_tokens", layout->sample_tokens);
    return json;
}

enum status layout_from_json(struct layout *layout, const cJSON *object, struct err *e) {
    FAIL_IF(!cJSON_IsObject(object), STATUS_INVALID, "a layout must be a JSON object");
    TRY(json_get_i64(object, "micro_rows", &layout->micro_rows, e));
    TRY(json_get_i64(object, "micro_tokens", &layout->micro_tokens, e));
    TRY(json_get_i64(object, "loss_chunk_rows", &layout->loss_chunk_rows, e));
    TRY(json_get_i64(object, "checkpointed_layers", &layout->checkpointed_layers, e));
    TRY(json_get_bool(object, "activation_offloading", &layout->activation_offloading, e));
    TRY(json_get_bool(object, "optimizer_offloading", &layout->optimizer_offloading, e));
    TRY(json_get_bool(object, "param_offloading", &layout->param_offloading, e));
    TRY(json_get_i64(object, "zero_stage", &layout->zero_stage, e));
    TRY(json_get_i64(object, "eval_rows", &layout->eval_rows, e));
    return json_get_i64(object, "sample_tokens", &layout->sample_tokens, e);
}
