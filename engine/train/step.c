/* step.c - a batch on the device, the decoder, the loss head, and back.
 *
 * Everything that a micro-batch needs goes to the device in one transfer; nothing after that waits
 * for the device, unless the caller wants the losses at once. So what lies between that transfer
 * and the end of backward can be one graph; graph_key_of knows what it depends on. */
#include "engine/train/step.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model/shard.h"
#include "engine/model/shard_weights.h"

/* A micro-batch on the device, and where its losses go. */
struct micro {
    struct decoder_inputs inputs;
    struct tensor *staging; /* everything below are views of it */
    struct tensor *index, *labels;
    struct tensor *losses, *correct;
    int64_t rows;
};

/* The parts of the staging buffer: each begins at a whole STAGING_ALIGN. */
enum { PART_IDS, PART_POSITIONS, PART_SEQLENS, PART_KEYS, PART_INDEX, PART_LABELS, PART_COUNT };
enum { STAGING_ALIGN = 64 };
struct part {
    enum dtype dtype;
    int64_t count, offset; /* elements, bytes */
};

static int64_t lay_out(struct part parts[PART_COUNT], const struct batch *b) {
    parts[PART_IDS] = (struct part){DTYPE_I32, b->tokens, 0};
    parts[PART_POSITIONS] = (struct part){DTYPE_I32, b->tokens, 0};
    parts[PART_SEQLENS] = (struct part){DTYPE_I32, b->segments + 1, 0};
    parts[PART_KEYS] = (struct part){DTYPE_I64, b->tokens, 0};
    parts[PART_INDEX] = (struct part){DTYPE_I32, b->trained, 0};
    parts[PART_LABELS] = (struct part){DTYPE_I32, b->trained, 0};
    int64_t bytes = 0;
    for (int i = 0; i < PART_COUNT; i++) {
        parts[i].offset = bytes;
        bytes += parts[i].count * dtype_bytes(parts[i].dtype);
        bytes = (bytes + STAGING_ALIGN - 1) / STAGING_ALIGN * STAGING_ALIGN;
    }
    return bytes;
}

/* The rows that have a label, and the labels. */
static void fill_labels(const struct batch *b, int32_t *index, int32_t *labels) {
    int64_t rows = 0;
    for (int64_t t = 0; t < b->tokens; t++) {
        if (b->labels[t] < 0) continue;
        ASSERT(rows < b->trained);
        index[rows] = (int32_t)t;
        labels[rows++] = b->labels[t];
    }
    ASSERT(rows == b->trained);
}

static void fill_staging(char *host, const struct part parts[PART_COUNT], const struct batch *b) {
    const void *const sources[] = {[PART_IDS] = b->ids,
                                   [PART_POSITIONS] = b->positions,
                                   [PART_SEQLENS] = b->cu_seqlens,
                                   [PART_KEYS] = b->row_keys};
    for (size_t i = 0; i < COUNT_OF(sources); i++) {
        memcpy(host + parts[i].offset, sources[i],
               (size_t)(parts[i].count * dtype_bytes(parts[i].dtype)));
    }
    fill_labels(b, (int32_t *)(host + parts[PART_INDEX].offset),
                (int32_t *)(host + parts[PART_LABELS].offset));
}

static void micro_close(struct micro *u) {
    tensor_release(u->inputs.ids);
    tensor_release(u->inputs.documents.positions);
    tensor_release(u->inputs.documents.cu_seqlens);
    tensor_release(u->inputs.keys.row_keys);
    tensor_release(u->index);
    tensor_release(u->labels);
    tensor_release(u->staging);
    tensor_release(u->losses);
    tensor_release(u->correct);
}

static struct tensor *view_part(const struct micro *u, const struct part *part) {
    return tensor_view_bytes(u->staging, part->offset, part->dtype, 1, part->count);
}

static enum status put_batch(struct micro *u, struct tensor_space *space, const struct batch *b,
                             struct err *e) {
    struct part parts[PART_COUNT];
    const int64_t bytes = lay_out(parts, b);
    TRY(tensor_new(space, DTYPE_I32, 1, bytes / dtype_bytes(DTYPE_I32), CATEGORY_STAGING,
                   &u->staging, e));
    char *const host = mem_new((size_t)bytes, 1);
    fill_staging(host, parts, b);
    const enum status status = tensor_upload(u->staging, host, e);
    mem_free(host);
    TRY(status);
    u->inputs.ids = view_part(u, &parts[PART_IDS]);
    u->inputs.documents.positions = view_part(u, &parts[PART_POSITIONS]);
    u->inputs.documents.cu_seqlens = view_part(u, &parts[PART_SEQLENS]);
    u->inputs.keys.row_keys = view_part(u, &parts[PART_KEYS]);
    u->index = view_part(u, &parts[PART_INDEX]);
    u->labels = view_part(u, &parts[PART_LABELS]);
    return STATUS_OK;
}

static enum status micro_open(struct micro *u, struct model *m, const struct batch *b,
                              const struct step_options *o, struct err *e) {
    *u = (struct micro){.inputs = {.model = m,
                                   .checkpointed_layers = o->layout.checkpointed_layers,
                                   .offloading = o->layout.activation_offloading},
                        .rows = b->trained};
    struct decoder_inputs *const in = &u->inputs;
    in->documents.segments = b->segments;
    in->documents.max_seqlen = b->max_seqlen;
    in->keys.seed = o->seed;
    in->keys.step = o->step;
    arena_set_label(m->space->arena, (struct arena_label){"batch", -1});
    TRY(put_batch(u, m->space, b, e));
    TRY(tensor_new(m->space, DTYPE_F32, 1, u->rows, CATEGORY_STAGING, &u->losses, e));
    return tensor_new(m->space, DTYPE_I32, 1, u->rows, CATEGORY_STAGING, &u->correct, e);
}

static struct loss_options loss_of(const struct micro *u, const struct step_options *o) {
    const struct model *const m = u->inputs.model;
    return (struct loss_options){.head = m->head,
                                 .softcap = (float)m->config.final_softcap,
                                 .grad_scale = (float)o->grad_scale,
                                 .loss_scale = o->loss_scale,
                                 .chunk_rows = o->layout.loss_chunk_rows,
                                 .rows = u->rows,
                                 .index = u->index,
                                 .labels = u->labels};
}

static enum status download_sums(const struct micro *u, struct step_sums *sums, struct err *e) {
    float *const losses = mem_new((size_t)u->rows, sizeof *losses);
    int32_t *const correct = mem_new((size_t)u->rows, sizeof *correct);
    enum status status = tensor_download(u->losses, losses, e);
    if (status == STATUS_OK) status = tensor_download(u->correct, correct, e);
    for (int64_t i = 0; status == STATUS_OK && i < u->rows; i++) {
        sums->loss += losses[i];
        sums->correct += correct[i];
    }
    mem_free(losses);
    mem_free(correct);
    return status;
}

/* On the device, where the caller has room for them there. */
static enum status add_totals(const struct micro *u, const struct step_options *o, struct err *e) {
    if (!o->totals) return STATUS_OK;
    const struct loss_sums_args args = {.rows = u->rows,
                                        .losses = tensor_f32(u->losses),
                                        .correct = tensor_i32(u->correct),
                                        .totals = o->totals};
    return device_loss_sums(u->losses->space->device, &args, e);
}

static enum status add_sums(const struct micro *u, const struct batch *b,
                            const struct step_options *o, struct step_sums *sums, struct err *e) {
    sums->trained += u->rows;
    sums->tokens += b->real_tokens;
    return o->totals ? STATUS_OK : download_sums(u, sums, e);
}

/* The loss, where the head's weights are there, and while recording its gradients. */
static enum status run_head(struct tape *tape, const struct micro *u, struct tensor *hidden,
                            const struct step_options *o, struct tensor **anchor, struct err *e) {
    struct model *const m = u->inputs.model;
    const struct loss_options loss = loss_of(u, o);
    const int64_t unit = shard_head(m);
    TRY(shard_gather(m, unit, UNIT_NONE, e));
    if (tape->recording) TRY(shard_begin(m, unit, e));
    TRY(op_loss(tape, hidden, &loss, u->losses, u->correct, anchor, e));
    shard_let_go(m, unit);
    return unit == UNIT_HEAD ? shard_end(m, unit, e) : STATUS_OK;
}

/* Hidden states and loss; *anchor is set while recording. */
static enum status run_forward(struct tape *tape, struct micro *u, const struct step_options *o,
                               struct tensor **anchor, struct err *e) {
    struct tensor *hidden = NULL;
    enum status status = decoder_forward(tape, &u->inputs, &hidden, e);
    if (status == STATUS_OK) status = run_head(tape, u, hidden, o, anchor, e);
    tensor_release(hidden);
    return status;
}

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
    GUARD(run_forward(&tape, t->micro, t->options, &anchor, e));
    tape.recording = false;
    tensor_drop(&anchor);
    arena_enter(space->arena, PHASE_BACKWARD);
    GUARD(shard_begin(m, UNIT_VECTORS, e));
    GUARD(tape_backward(&tape, 0, e));
    GUARD(shard_end(m, UNIT_EMBEDDING, e));
    GUARD(shard_end(m, UNIT_VECTORS, e));
    GUARD(shard_finish(m, e));
    if (t->begins) GUARD(model_end_gradients(m, e));
    GUARD(add_totals(t->micro, t->options, e));
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
    const bool exchanges = shard_is_on(m) || weights_are_sharded(m);
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

enum status step_idle(struct model *m, struct err *e) {
    arena_enter(m->space->arena, PHASE_BACKWARD);
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
    if (batch->trained == 0) return step_idle(m, e);
    struct micro u = {0};
    enum status status = STATUS_OK;
    arena_enter(m->space->arena, PHASE_FORWARD);
    GUARD(micro_open(&u, m, batch, options, e));
    struct training training = {&u, options, m->forgets};
    const struct graph_work work = {train_micro, &training};
    const struct graph_key key = graph_key_of(&u, batch, options);
    GUARD(graphs_run(repeats(m, options) ? options->graphs : NULL, &key, &work, e));
    m->forgets = false;
    GUARD(add_sums(&u, batch, options, sums, e));
done:
    micro_close(&u);
    return status;
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
    GUARD(run_forward(&tape, &u, options, &anchor, e));
    GUARD(add_totals(&u, options, e));
    GUARD(add_sums(&u, batch, options, sums, e));
    if (losses) GUARD(tensor_download(u.losses, losses, e));
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

enum status step_logits(struct model *m, const struct batch *batch, const int32_t *tokens,
                        int64_t count, float *logits, struct err *e) {
    struct micro u = {0};
    struct tape tape;
    struct tensor *hidden = NULL, *picked = NULL, *index = NULL, *out = NULL;
    const struct step_options options = {.layout = {.loss_chunk_rows = 1}};
    const struct loss_options head = {.head = m->head};
    enum status status = STATUS_OK;
    tape_init(&tape, m->space);
    arena_enter(m->space->arena, PHASE_EVAL);
    GUARD(micro_open(&u, m, batch, &options, e));
    GUARD(decoder_forward(&tape, &u.inputs, &hidden, e));
    GUARD(tensor_new(m->space, DTYPE_I32, 1, count, CATEGORY_STAGING, &index, e));
    GUARD(tensor_upload(index, tokens, e));
    GUARD(op_gather_rows(hidden, index, &picked, e));
    tensor_drop(&hidden);
    GUARD(shard_gather(m, shard_head(m), UNIT_NONE, e));
    GUARD(op_logits(&tape, picked, &head, &out, e));
    shard_let_go(m, shard_head(m));
    GUARD(download_wide(out, logits, e));
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
