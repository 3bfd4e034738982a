/* catalog.h - the architectures of well-known models, for plans before anything is downloaded.
 *
 * Numbers of the config.json that each model was published with, and nothing of its weights. A name
 * is the repository's ("meta-llama/Llama-3.1-8B-Instruct"), with or without its owner, in any case,
 * with or without an ending such as -Instruct: fine-tuned siblings have the same shape. Another
 * name is never guessed. */
#ifndef PLIMSOLL_ENGINE_MODEL_CATALOG_H
#define PLIMSOLL_ENGINE_MODEL_CATALOG_H

#include "engine/model/config.h"

/* The models in the order in which people look for them; NULL after the last. Static text. */
const char *catalog_name(int64_t index);

/* Is there a model of this name? */
bool catalog_has(const char *name);

/* Its config, through the same parser as a config.json from a folder. STATUS_NOT_FOUND names the
 * nearest known model. */
enum status catalog_load(struct model_config *c, const char *name, struct err *e);

#endif
