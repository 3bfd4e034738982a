/* stages.c - see stages.h: a search for the smallest bound that the stages can keep.
 *
 * A bound is kept greedily: each stage takes as many layers as the bound allows, but leaves one for
 * each stage behind it. The search halves the bound until two neighbours in double precision, or
 * SEARCH_TURNS; then the cut is that of the last bound that was kept. */
#include "engine/train/stages.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { SEARCH_TURNS = 60 };

static double frozen_bytes_of(const struct spec *s) {
    if (s->load_in_4bit) return 0.5;
    if (strcmp(s->base_weight_dtype, "auto") != 0) return 1;
    return s->bf16 || s->fp16 ? 2 : 4;
}

struct stage_wishes stages_wishes_of(const struct spec *s) {
    const int64_t rows =
        s->per_device_train_batch_size > 0 ? s->per_device_train_batch_size : 1; /* not "auto" */
    return (struct stage_wishes){
        .full = strcmp(s->finetuning_type, "full") == 0,
        .wide = !s->bf16 && !s->fp16,
        .checkpointing = s->gradient_checkpointing && s->gradient_checkpointing_layers == 0,
        .gpipe = strcmp(s->parallel.pipeline_parallel_schedule, "gpipe") == 0,
        .frozen_bytes = frozen_bytes_of(s),
        .adapter_rank = s->r,
        .micro_tokens = rows * s->data.max_length,
        .micros = s->gradient_accumulation_steps,
        .data = s->parallel.zero_stage > 0 ? spec_data_world(s) : 1};
}

/* Memory that a parameter takes all the time: its weight; trained, also gradient and two states in
 * f32, and a master where the weight is narrower. */
static double bytes_of(const struct stage_wishes *w, bool trained) {
    const double weight = w->wide ? 4 : 2;
    if (!trained) return weight;
    return weight + 4 + 8 / (double)w->data + (w->wide ? 0 : 4);
}

/* Parameters of a layer, and of its adapters. */
static double layer_parameters(const struct model_config *c) {
    const double q = (double)(c->heads * c->head_dim), kv = (double)(c->kv_heads * c->head_dim);
    const double width = (double)c->hidden_size, f = (double)c->intermediate_size;
    return width * (2 * q + 2 * kv + 3 * f);
}

static double adapter_parameters(const struct model_config *c, int64_t r) {
    const double q = (double)(c->heads * c->head_dim), kv = (double)(c->kv_heads * c->head_dim);
    const double width = (double)c->hidden_size, f = (double)c->intermediate_size;
    return (double)r * (7 * width + 2 * q + 2 * kv + 3 * f);
}

/* What a layer keeps of a token for its backward: input, projections, attention's result, the sum
 * in the middle, gate and up; checkpointed only the input. */
static double kept_elements(const struct model_config *c, bool checkpointing) {
    const double q = (double)(c->heads * c->head_dim), kv = (double)(c->kv_heads * c->head_dim);
    const double width = (double)c->hidden_size;
    if (checkpointing) return width;
    return 2 * width + 2 * q + 2 * kv + 2 * (double)c->intermediate_size;
}

struct stage_costs stages_costs_of(const struct model_config *c, const struct stage_wishes *w) {
    const double tokens = (double)w->micro_tokens, element = w->wide ? 4 : 2;
    const double layer = layer_parameters(c), vocabulary = (double)(c->vocab_size * c->hidden_size);
    const double adapters = w->full ? 0 : adapter_parameters(c, w->adapter_rank);
    const double attention = (double)(c->heads * c->head_dim) * tokens;
    return (struct stage_costs){
        .layer = {.time = (layer + adapters + attention) * tokens,
                  .kept = layer * (w->full ? bytes_of(w, true) : w->frozen_bytes) +
                          adapters * bytes_of(w, true),
                  .flight = kept_elements(c, w->checkpointing) * element * tokens},
        .begin = {.kept = vocabulary * bytes_of(w, w->full)},
        .end = {.time = vocabulary * tokens, .kept = vocabulary * bytes_of(w, w->full)}};
}

/* Micro-batches in memory of a stage. */
static double flights_of(const struct stages_question *q, int64_t stage) {
    const int64_t most = q->gpipe ? q->micros : q->stages - stage;
    return (double)(most < q->micros ? most : q->micros);
}

static struct stage_cost cost_of(const struct stages_question *q, int64_t stage, int64_t layers) {
    const struct stage_costs *const c = &q->costs;
    const bool begins = stage == 0, ends = stage == q->stages - 1;
    const double n = (double)layers;
    return (struct stage_cost){
        .time = n * c->layer.time + (begins ? c->begin.time : 0) + (ends ? c->end.time : 0),
        .kept = n * (c->layer.kept + flights_of(q, stage) * c->layer.flight) +
                (begins ? c->begin.kept : 0) + (ends ? c->end.kept : 0)};
}

/* What shares are relative to: an equal part of the computing; of the memory, with flights as the
 * stage in the middle has them. */
static struct stage_cost equal_part(const struct stages_question *q) {
    const struct stage_costs *const c = &q->costs;
    const double layers = (double)q->layers, stages = (double)q->stages;
    const double flight = flights_of(q, q->stages / 2) * c->layer.flight;
    return (struct stage_cost){
        .time = (layers * c->layer.time + c->begin.time + c->end.time) / stages,
        .kept = (layers * (c->layer.kept + flight) + c->begin.kept + c->end.kept) / stages};
}

static double share_of(const struct stages_question *q, int64_t stage, int64_t layers) {
    const struct stage_cost cost = cost_of(q, stage, layers), equal = equal_part(q);
    return fmax(cost.time / equal.time, cost.kept / equal.kept);
}

/* Fills ends; false when the last stage is left with more than the bound. */
static bool keeps(const struct stages_question *q, double bound, int64_t *ends) {
    int64_t begin = 0;
    for (int64_t stage = 0; stage < q->stages - 1; stage++) {
        const int64_t behind = q->stages - 1 - stage;
        int64_t end = begin + 1;
        while (end < q->layers - behind && share_of(q, stage, end + 1 - begin) <= bound) {
            end++;
        }
        if (share_of(q, stage, end - begin) > bound) return false;
        ends[stage] = begin = end;
    }
    ends[q->stages - 1] = q->layers;
    return share_of(q, q->stages - 1, q->layers - begin) <= bound;
}

void stages_cut(const struct stages_question *q, int64_t *ends) {
    double low = 0, high = 0;
    ASSERT(q->stages >= 1 && q->stages <= q->layers);
    for (int64_t stage = 0; stage < q->stages; stage++) {
        high = fmax(high, share_of(q, stage, q->layers));
    }
    for (int turn = 0; turn < SEARCH_TURNS; turn++) {
        const double middle = low + (high - low) / 2;
        if (keeps(q, middle, ends)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    (void)keeps(q, high, ends);
}

/* The most stages that there are layers for, of those that divide the ranks. */
static int64_t nearest(int64_t layers, int64_t ranks) {
    int64_t stages = layers < ranks ? layers : ranks;
    while (stages > 1 && ranks % stages != 0) {
        stages--;
    }
    return stages;
}

enum status stages_range(const struct model_config *config, const struct stage_wishes *wishes,
                         const struct stages_place *place, int64_t *first, int64_t *end,
                         struct err *e) {
    if (place->stages > config->layers) {
        return err_set_param(e, STATUS_INVALID, "parallel.pipeline_parallel_degree",
                             "parallel.pipeline_parallel_degree is %lld and the model has %lld "
                             "layers, of which every stage needs one; the nearest is %lld",
                             (long long)place->stages, (long long)config->layers,
                             (long long)nearest(config->layers, place->ranks));
    }
    const struct stages_question question = {.layers = config->layers,
                                             .stages = place->stages,
                                             .gpipe = wishes->gpipe,
                                             .micros = wishes->micros,
                                             .costs = stages_costs_of(config, wishes)};
    int64_t *const ends = mem_new((size_t)place->stages, sizeof *ends);
    stages_cut(&question, ends);
    *first = place->stage > 0 ? ends[place->stage - 1] : 0;
    *end = ends[place->stage];
    mem_free(ends);
    return STATUS_OK;
}
