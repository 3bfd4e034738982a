/* step.c - a batch on the device (micro.h), forward, and back.
 *
 * Nothing after the batch's transfer waits for the device, unless the caller wants the losses at
 * once. So what lies between that transfer and the end of backward can be one graph; graph_key_of
 * knows what it depends on. */
#include "engine/train/step.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model/shard.h"
#include "engine/model/shard_weights.h"
#include "engine/train/micro.h"
#include "engine/train/neighbours.h"

/* A micro-batch that is on the device, and how it is trained. */
struct training {
    struct micro *micro;
    const struct step_options *options;
    bool begins; /* it is the first one of a step */
};

/* Forward, backward, sums: all on the device. */
static enum status train_micro(void *context, struct err *e) {
    const struct training *const t = context;
    struct model *const m = t->micro->inputs.model;
    struct tensor_space *const space = m->space;
    struct tape tape;
    struct tensor *anchor = NULL;
    enum status status = STATUS_OK;
    tape_init(&tape, space);
    tape.training = tape.recording = true;
    arena_enter(space->arena, PHASE_FORWARD);
    if (t->begins) model_begin_gradients(m);
    GUARD(micro_forward(&tape, t->micro, t->options, &anchor, e));
    tape.recording = false;
    tensor_drop(&anchor);
    arena_enter(space->arena, PHASE_BACKWARD);
    GUARD(shard_begin(m, UNIT_VECTORS, e));
    GUARD(tape_backward(&tape, 0, e));
    GUARD(shard_end(m, UNIT_EMBEDDING, e));
    GUARD(shard_end(m, UNIT_VECTORS, e));
    if (shard_is_on(m)) GUARD(shard_finish(m, e));
    if (t->begins) GUARD(model_end_gradients(m, e));
    GUARD(micro_add_totals(t->micro, t->options, e));
done:
    tape.recording = false;
    tape_release(&tape);
    tensor_release(anchor);
    shard_drop(m);
    return status;
}

/* Dropout is drawn by the number of the step, offloading copies to the host, and sums that nobody
 * has room for are waited for: such a micro-batch is not like another one. Nor is one in which
 * ranks exchange memory. */
static bool repeats(const struct model *m, const struct step_options *o) {
    const bool drops = m->options.lora && m->options.lora_dropout > 0;
    const bool exchanges = shard_has_marks(m) || weights_come_and_go(m) || m->group;
    return o->totals && !o->layout.activation_offloading && !drops && !exchanges;
}

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* All that the host decides by and bakes into arguments: sizes, scales, and where things lie. The
 * tensors that are allocated on the way lie where the arena's state puts them. */
static struct graph_key graph_key_of(const struct micro *u, const struct batch *b,
                                     const struct step_options *o) {
    const struct tensor_space *const space = u->staging->space;
    return (struct graph_key){
        {(uint64_t)b->tokens, (uint64_t)b->trained, (uint64_t)b->segments, (uint64_t)b->max_seqlen,
         (uint64_t)o->layout.loss_chunk_rows, (uint64_t)o->layout.checkpointed_layers,
         bits_of(o->grad_scale), (uintptr_t)o->loss_scale, (uintptr_t)o->totals,
         (uintptr_t)u->staging->data, (uintptr_t)u->losses->data, (uintptr_t)u->correct->data,
         (uintptr_t)space->device->workspace, (uintptr_t)u->inputs.model,
         arena_fingerprint(space->arena), u->inputs.model->forgets}};
}

enum status step_idle(struct model *m, bool last, struct err *e) {
    arena_enter(m->space->arena, PHASE_BACKWARD);
    shard_expect(m, last);
    const enum status status = shard_idle(m, e);
    shard_drop(m);
    return status;
}

enum status step_idle_forward(struct model *m, struct err *e) {
    arena_enter(m->space->arena, PHASE_EVAL);
    return shard_walk(m, false, e);
}

enum status step_train(struct model *m, const struct batch *batch,
                       const struct step_options *options, struct step_sums *sums, struct err *e) {
    if (batch->trained == 0) return step_idle(m, options->last, e);
    struct micro u = {0};
    enum status status = STATUS_OK;
    shard_expect(m, options->last);
    arena_enter(m->space->arena, PHASE_FORWARD);
    GUARD(micro_open(&u, m, batch, options, e));
    struct training training = {&u, options, m->forgets};
    const struct graph_work work = {train_micro, &training};
    const struct graph_key key = graph_key_of(&u, batch, options);
    GUARD(graphs_run(repeats(m, options) ? options->graphs : NULL, &key, &work, e));
    m->forgets = false;
    GUARD(micro_add_sums(&u, batch, options, sums, e));
done:
    micro_close(&u);
    return status;
}

/* What the stage before has made, where there is one. */
static enum status take_given(const struct micro *u, struct err *e) {
    struct model *const m = u->inputs.model;
    if (model_begins(m)) return STATUS_OK;
    const struct hand hand = {.tensor = u->inputs.given, .way = FROM_BEFORE};
    return neighbours_exchange(m, &hand, 1, e);
}

/* To the next stage, where there is one. */
static enum status hand_on(struct model *m, struct tensor *hidden, struct err *e) {
    if (model_ends(m)) return STATUS_OK;
    const struct hand hand = {.tensor = hidden, .way = TO_NEXT};
    return neighbours_exchange(m, &hand, 1, e);
}

enum status step_evaluate(struct model *m, const struct batch *batch,
                          const struct step_options *options, struct step_sums *sums, float *losses,
                          struct err *e) {
    if (batch->trained == 0) return step_idle_forward(m, e);
    struct micro u = {0};
    struct tape tape;
    struct tensor *anchor = NULL;
    enum status status = STATUS_OK;
    tape_init(&tape, m->space);
    arena_enter(m->space->arena, PHASE_EVAL);
    GUARD(micro_open(&u, m, batch, options, e));
    GUARD(take_given(&u, e));
    GUARD(micro_forward(&tape, &u, options, &anchor, e));
    GUARD(hand_on(m, u.handed, e));
    GUARD(micro_add_totals(&u, options, e));
    GUARD(micro_add_sums(&u, batch, options, sums, e));
    if (losses && u.losses) GUARD(tensor_download(u.losses, losses, e));
done:
    shard_drop(m);
    micro_close(&u);
    return status;
}

static void soft_cap(float *logits, int64_t count, double cap) {
    for (int64_t i = 0; cap > 0 && i < count; i++) {
        logits[i] = (float)(cap * tanh(logits[i] / cap));
    }
}

/* Activations as f32 on the host. */
static enum status download_wide(const struct tensor *t, float *host, struct err *e) {
    if (t->dtype == DTYPE_F32) return tensor_download(t, host, e);
    struct tensor *wide = NULL;
    TRY(tensor_new(t->space, DTYPE_F32, t->rows, t->cols, CATEGORY_ACTIVATIONS, &wide, e));
    enum status status = tensor_convert(wide, t, 1, e);
    if (status == STATUS_OK) status = tensor_download(wide, host, e);
    tensor_release(wide);
    return status;
}

/* Ranks' columns of the logits lie one after the other. */
static enum status download_logits(const struct model *m, const struct tensor *t, int64_t count,
                                   float *logits, struct err *e) {
    const int64_t members = m->division.world, vocab = m->config.vocab_size;
    if (!m->group) return download_wide(t, logits, e);
    float *const host = mem_new((size_t)tensor_count(t), sizeof *host);
    const enum status status = download_wide(t, host, e);
    for (int64_t i = 0; status == STATUS_OK && i < members; i++) {
        const struct comm_piece part = comm_piece_of(vocab, 1, i, members);
        for (int64_t row = 0; row < count; row++) {
            memcpy(logits + row * vocab + part.first, host + (i * count + row) * t->cols,
                   (size_t)part.count * sizeof *host);
        }
    }
    mem_free(host);
    return status;
}

enum status step_logits(struct model *m, const struct batch *batch, const int32_t *tokens,
                        int64_t count, float *logits, struct err *e) {
    struct micro u = {0};
    struct tape tape;
    struct tensor *hidden = NULL, *picked = NULL, *index = NULL, *out = NULL;
    const struct step_options options = {.layout = {.loss_chunk_rows = 1}};
    const struct loss_options head = {
        .head = m->head, .group = m->group, .vocab = m->config.vocab_size};
    enum status status = STATUS_OK;
    tape_init(&tape, m->space);
    arena_enter(m->space->arena, PHASE_EVAL);
    GUARD(micro_open(&u, m, batch, &options, e));
    GUARD(take_given(&u, e));
    GUARD(decoder_forward(&tape, &u.inputs, &hidden, e));
    GUARD(hand_on(m, hidden, e));
    if (!model_ends(m)) goto done;
    GUARD(tensor_new(m->space, DTYPE_I32, 1, count, CATEGORY_STAGING, &index, e));
    GUARD(tensor_upload(index, tokens, e));
    GUARD(op_gather_rows(hidden, index, &picked, e));
    tensor_drop(&hidden);
    GUARD(shard_gather(m, shard_head(m), UNIT_NONE, e));
    GUARD(op_logits(&tape, picked, &head, &out, e));
    shard_let_go(m, shard_head(m));
    GUARD(download_logits(m, out, count, logits, e));
    soft_cap(logits, count * m->config.vocab_size, m->config.final_softcap);
done:
    tensor_release(hidden);
    tensor_release(picked);
    tensor_release(index);
    tensor_release(out);
    shard_drop(m);
    micro_close(&u);
    return status;
}
