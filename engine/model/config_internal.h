/* config_internal.h - what config.c and config_rope.c share. Nobody else includes it.
 *
 * Kept apart so that the many spellings of rotary parameters do not crowd the family table. */
#ifndef PLIMSOLL_ENGINE_MODEL_CONFIG_INTERNAL_H
#define PLIMSOLL_ENGINE_MODEL_CONFIG_INTERNAL_H

#include "engine/model/config.h"

/* What a family's transformers class assumes about rotary positions when config.json is silent. */
struct rope_presets {
    double theta;
    double theta_local; /* of sliding layers; 0: the same as theta */
};

/* Fills rope, rope_local, has_rope_local and rotary_dim; head_dim and max_position_embeddings are
 * set before. */
enum status config_parse_rope(struct model_config *c, const cJSON *json,
                              const struct rope_presets *presets, struct err *e);
/* Reads a number and checks its bounds, both inclusive; a missing or null key leaves *out alone. */
enum status config_number(const cJSON *json, const char *key, double min, double max, double *out,
                          struct err *e);

#endif
