/* holdings.h - what a session really holds, by group of parameters: how many, how many of them are
 * trained, and in which type and with how many bytes their weights, gradients, master copies and
 * optimizer states exist.
 *
 * Read off the tensors themselves, not off the spec: "is mixed precision on, do the adapters train"
 * is a look and not a guess. */
#ifndef PLIMSOLL_ENGINE_TRAIN_HOLDINGS_H
#define PLIMSOLL_ENGINE_TRAIN_HOLDINGS_H

#include "base/json.h"
#include "engine/train/session.h"

enum holding_group {
    HOLDING_EMBEDDING,
    HOLDING_ATTENTION,
    HOLDING_MLP,
    HOLDING_NORMS,
    HOLDING_HEAD, /* empty where the head is the embedding */
    HOLDING_ADAPTERS,
    HOLDING_GROUP_COUNT
};
/* A kind of thing that exists of a parameter. */
enum holding_part {
    HOLDING_WEIGHTS, /* what forward reads */
    HOLDING_GRADIENTS,
    HOLDING_MASTER,    /* in more bits than what forward reads, where the two differ */
    HOLDING_OPTIMIZER, /* both states of AdamW together */
    HOLDING_PART_COUNT
};

/* Types of bytes: every dtype, and behind them what is quantised, as DTYPE_COUNT + enum quant. */
enum { HOLDING_TYPE_COUNT = DTYPE_COUNT + QUANT_FP8 + 1 };
struct holding {
    int64_t parameters, trained;
    int64_t bytes[HOLDING_PART_COUNT][HOLDING_TYPE_COUNT];
};
struct holdings {
    struct holding groups[HOLDING_GROUP_COUNT];
    bool tied; /* the head is the embedding */
};

void holdings_find(struct holdings *out, const struct session *s);
/* The array `groups` of the event; groups without parameters are left out. A dtype is "float32", or
 * "bfloat16, float32" where a group is mixed, the larger part first, or "nf4"; null where there are
 * no bytes. Caller frees with cJSON_Delete. */
cJSON *holdings_to_json(const struct holdings *holdings);

#endif
