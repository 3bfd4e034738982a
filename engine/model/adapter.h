/* adapter.h - adapter folders in PEFT layout: adapter_config.json and adapter_model.safetensors.
 *
 * What is written here loads in PEFT unchanged, and the other way round. */
#ifndef PLIMSOLL_ENGINE_MODEL_ADAPTER_H
#define PLIMSOLL_ENGINE_MODEL_ADAPTER_H

#include "engine/model/model.h"

#define ADAPTER_WEIGHTS_NAME "adapter_model.safetensors"

/* What an adapter_config.json says about the adapter's shape. */
struct adapter_config {
    int64_t r;
    double lora_alpha, lora_dropout;
    bool use_rslora, use_dora;
    char **target_modules;
    int64_t target_count;
};

/* Reads <folder>/adapter_config.json. Whatever changes the computation and is not done here
 * (rank_pattern, bias, other PEFT types, modules_to_save, ...) is refused by name. Release with
 * adapter_config_release, also after an error. */
enum status adapter_config_load(struct adapter_config *c, const char *folder, struct err *e);
void adapter_config_release(struct adapter_config *c);

/* Fills the model's adapter parameters from <folder>/adapter_model.safetensors. */
enum status adapter_load(struct model *m, const char *folder, struct err *e);
/* Writes adapter_config.json into an existing folder. `base` is what base_model_name_or_path says.
 */
enum status adapter_save_config(const struct model *m, const char *base, const char *folder,
                                struct err *e);
/* Writes both files into an existing folder, weights in f32, of a model that is all here. */
enum status adapter_save(const struct model *m, const char *base, const char *folder,
                         struct err *e);

#endif
