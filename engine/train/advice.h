/* advice.h - what a user can change about a run that does not fit, where remedies (remedy.h) do not
 * reach: they leave what is learned alone, advice does not have to.
 *
 * The choice is the table of the field, a pure function of a few numbers of the plan: what is too
 * big decides what is offered. What this version cannot do is named as such. */
#ifndef PLIMSOLL_ENGINE_TRAIN_ADVICE_H
#define PLIMSOLL_ENGINE_TRAIN_ADVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

enum advice_kind {
    ADVICE_PLAIN, /* it fits: nothing is needed */
    ADVICE_BF16,
    ADVICE_LORA,
    ADVICE_STOCHASTIC_ROUNDING, /* full training without float32 copies */
    ADVICE_ZERO,                /* several cards that divide the optimizer's states */
    ADVICE_CHECKPOINTING,
    ADVICE_MICRO_BATCH,
    ADVICE_OFFLOADING, /* of activations */
    ADVICE_SHORTER,
    ADVICE_NF4,   /* frozen weights in 4 bits: what is learned changes a little */
    ADVICE_SHARD, /* several cards that divide weights too */
    ADVICE_KIND_COUNT
};
/* "plain", "bf16", "lora", "stochastic_rounding", "checkpointing", "micro_batch", "offloading",
 * "zero", "shorter", "nf4", "shard". */
const char *advice_name(enum advice_kind kind);

/* Of a plan and of what it was made for, in bytes of one device. */
struct advice_facts {
    int64_t capacity, need;
    int64_t weights;   /* base weights, in the type that forward reads */
    int64_t states;    /* gradients, float32 copies, optimizer, adapters */
    int64_t optimizer; /* of the states */
    int64_t ranks, zero_stage;
    int64_t longest;            /* tokens of a row */
    int64_t rows, accumulation; /* of a micro-batch; micro-batches of a step */
    bool full, wide;            /* every weight is trained; weights are float32 */
    bool gpu, checkpointing, offloading, rounding;
    bool quantised; /* frozen weights are in 4 or 8 bits */
};

/* Fills `out` with what to offer, the best first; returns how many. */
int advice_choose(const struct advice_facts *facts, enum advice_kind out[ADVICE_KIND_COUNT]);

/* The keys of the run spec that follow it, NULL where the spec has none; `facts` as for the choice.
 * Caller frees with cJSON_Delete. */
cJSON *advice_keys(enum advice_kind kind, const struct advice_facts *facts);
/* One sentence for people. Caller frees with mem_free. */
char *advice_sentence(enum advice_kind kind, const struct advice_facts *facts);

#endif
