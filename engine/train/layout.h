/* layout.h - how a step is run, never what it learns: everything that may change between two steps,
 * or before the same step is run again, without changing the loss curve (law 2).
 *
 * Pure data. The spec asks for one (layout_of_spec); remedies for a lack of memory change it
 * (remedy.h); step, planner and evaluation read it and nothing else. */
#ifndef PLIMSOLL_ENGINE_TRAIN_LAYOUT_H
#define PLIMSOLL_ENGINE_TRAIN_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "engine/model/config.h"
#include "engine/spec.h"

struct layout {
    int64_t micro_rows;          /* rows of one micro-batch; the samples of a step stay the same */
    int64_t micro_tokens;        /* of packed samples, fewer than the rows hold; 0: no fewer */
    int64_t loss_chunk_rows;     /* tokens whose logits exist at one time */
    int64_t checkpointed_layers; /* the first so many decoder layers; 0 none */
    bool activation_offloading;  /* of checkpointed layers; GPU only */
    bool optimizer_offloading;   /* AdamW's states wait in host memory */
    bool param_offloading;       /* weights wait in host memory */
    int64_t zero_stage;          /* 0: every rank holds everything */
    int64_t eval_rows;           /* rows of one micro-batch of evaluation */
    int64_t sample_tokens;       /* longest text of a sample, prompt and answer together */
};

/* As the spec asks. gradient_checkpointing_layers beyond the model's layers means all of them. */
struct layout layout_of_spec(const struct spec *spec, const struct model_config *config);
bool layout_equal(const struct layout *a, const struct layout *b);
/* An object with the names of the fields. Caller frees with cJSON_Delete. */
cJSON *layout_to_json(const struct layout *layout);
/* Reads what layout_to_json wrote; what is missing keeps its value. STATUS_INVALID names the key.
 */
enum status layout_from_json(struct layout *layout, const cJSON *object, struct err *e);

#endif
