/* inspect.h - questions about a model folder or the machine that need the engine but no
 * run.
 *
 * The server asks them through plimsoll-engine, because it knows nothing of tensors. */
#ifndef PLIMSOLL_ENGINE_TRAIN_INSPECT_H
#define PLIMSOLL_ENGINE_TRAIN_INSPECT_H

#include "base/err.h"
#include "base/json.h"

/* {"model_type","architecture","parameters","layers","hidden_size","vocab_size",
 * "max_position_embeddings","torch_dtype","weights_bytes","tokenizer_size","chat_template"};
 * checks config, weights (names and shapes) and tokenizer on the way. Caller frees *out with
 * cJSON_Delete. */
enum status inspect_model(const char *folder, cJSON **out, struct err *e);

/* {"devices":[{"id","name","total_bytes","free_bytes","capability","usable","reason"}],"driver",
 * "reason"}: the CPU, then each GPU; `reason` beside the list says why there is no GPU, else null.
 * free_bytes and capability are null where they are not known. Caller frees *out. */
enum status inspect_devices(cJSON **out, struct err *e);

/* {"prompt","text"}: the greedy answer of a model, with an adapter folder or NULL, on "cpu" (in
 * fp32) or "cuda:N" (in bf16 where config.json says so). Caller frees *out. */
struct question {
    const char *model, *prompt, *adapter, *device;
};
enum status inspect_answer(const struct question *q, cJSON **out, struct err *e);

#endif
