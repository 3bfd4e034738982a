/* step.c - a batch on the device, the decoder, the loss head, and back.
 *
 * Losses come back to the host once a micro-batch; nothing in between waits for the device. */
#include "engine/train/step.h"

#include <math.h>

#include "base/mem.h"

/* A micro-batch on the device, and where its losses go. */
struct micro {
    struct decoder_inputs inputs;
    struct tensor *index, *labels, *losses, *correct;
    int64_t rows;
};

static enum status put(struct tensor_space *space, enum dtype dtype, const void *host,
                       int64_t count, struct tensor **out, struct err *e) {
    TRY(tensor_new(space, dtype, 1, count, CATEGORY_STAGING, out, e));
    return tensor_upload(*out, host, e);
}

static void micro_close(struct micro *u) {
    tensor_release(u->inputs.ids);
    tensor_release(u->inputs.documents.positions);
    tensor_release(u->inputs.documents.cu_seqlens);
    tensor_release(u->inputs.keys.row_keys);
    tensor_release(u->index);
    tensor_release(u->labels);
    tensor_release(u->losses);
    tensor_release(u->correct);
}

/* The rows that have a label, and the labels. */
static enum status put_labels(struct micro *u, struct tensor_space *space, const struct batch *b,
                              struct err *e) {
    int32_t *const index = mem_new((size_t)b->trained, sizeof *index);
    int32_t *const labels = mem_new((size_t)b->trained, sizeof *labels);
    for (int64_t t = 0; t < b->tokens; t++) {
        if (b->labels[t] < 0) continue;
        index[u->rows] = (int32_t)t;
        labels[u->rows++] = b->labels[t];
    }
    ASSERT(u->rows == b->trained);
    enum status status = put(space, DTYPE_I32, index, u->rows, &u->index, e);
    if (status == STATUS_OK) status = put(space, DTYPE_I32, labels, u->rows, &u->labels, e);
    mem_free(index);
    mem_free(labels);
    TRY(status);
    TRY(tensor_new(space, DTYPE_F32, 1, u->rows, CATEGORY_STAGING, &u->losses, e));
    return tensor_new(space, DTYPE_I32, 1, u->rows, CATEGORY_STAGING, &u->correct, e);
}

static enum status micro_open(struct micro *u, struct model *m, const struct batch *b,
                              const struct step_options *o, struct err *e) {
    *u = (struct micro){.inputs = {.model = m, .checkpointing = o->checkpointing}};
    struct decoder_inputs *const in = &u->inputs;
    in->documents.segments = b->segments;
    in->documents.max_seqlen = b->max_seqlen;
    in->keys.seed = o->seed;
    in->keys.step = o->step;
    TRY(put(m->space, DTYPE_I32, b->ids, b->tokens, &in->ids, e));
    TRY(put(m->space, DTYPE_I32, b->positions, b->tokens, &in->documents.positions, e));
    TRY(put(m->space, DTYPE_I32, b->cu_seqlens, b->segments + 1, &in->documents.cu_seqlens, e));
    TRY(put(m->space, DTYPE_I64, b->row_keys, b->tokens, &in->keys.row_keys, e));
    return put_labels(u, m->space, b, e);
}

static struct loss_options loss_of(const struct micro *u, const struct step_options *o) {
    const struct model *const m = u->inputs.model;
    return (struct loss_options){.head = m->head,
                                 .softcap = (float)m->config.final_softcap,
                                 .grad_scale = (float)o->grad_scale,
                                 .chunk_rows = o->loss_chunk_rows,
                                 .rows = u->rows,
                                 .index = u->index,
                                 .labels = u->labels};
}

static enum status add_sums(const struct micro *u, const struct batch *b, struct step_sums *sums,
                            struct err *e) {
    float *const losses = mem_new((size_t)u->rows, sizeof *losses);
    int32_t *const correct = mem_new((size_t)u->rows, sizeof *correct);
    enum status status = tensor_download(u->losses, losses, e);
    if (status == STATUS_OK) status = tensor_download(u->correct, correct, e);
    for (int64_t i = 0; status == STATUS_OK && i < u->rows; i++) {
        sums->loss += losses[i];
        sums->correct += correct[i];
    }
    sums->trained += u->rows;
    sums->tokens += b->real_tokens;
    mem_free(losses);
    mem_free(correct);
    return status;
}

/* Hidden states and loss; *anchor is set while recording. */
static enum status run_forward(struct tape *tape, struct micro *u, const struct step_options *o,
                               struct tensor **anchor, struct err *e) {
    struct tensor *hidden = NULL;
    const struct loss_options loss = loss_of(u, o);
    enum status status = decoder_forward(tape, &u->inputs, &hidden, e);
    if (status == STATUS_OK)
        status = op_loss(tape, hidden, &loss, u->losses, u->correct, anchor, e);
    tensor_release(hidden);
    return status;
}

enum status step_train(struct model *m, const struct batch *batch,
                       const struct step_options *options, struct step_sums *sums, struct err *e) {
    if (batch->trained == 0) return STATUS_OK;
    struct micro u = {0};
    struct tape tape;
    struct tensor *anchor = NULL;
    enum status status = STATUS_OK;
    tape_init(&tape, m->space);
    tape.training = true;
    arena_enter(m->space->arena, PHASE_FORWARD);
    GUARD(micro_open(&u, m, batch, options, e));
    tape.recording = true;
    GUARD(run_forward(&tape, &u, options, &anchor, e));
    tape.recording = false;
    tensor_drop(&anchor);
    arena_enter(m->space->arena, PHASE_BACKWARD);
    GUARD(tape_backward(&tape, 0, e));
    GUARD(add_sums(&u, batch, sums, e));
done:
    tape.recording = false;
    tape_release(&tape);
    tensor_release(anchor);
    micro_close(&u);
    return status;
}

enum status step_evaluate(struct model *m, const struct batch *batch,
                          const struct step_options *options, struct step_sums *sums, float *losses,
                          struct err *e) {
    if (batch->trained == 0) return STATUS_OK;
    struct micro u = {0};
    struct tape tape;
    struct tensor *anchor = NULL;
    enum status status = STATUS_OK;
    tape_init(&tape, m->space);
    arena_enter(m->space->arena, PHASE_EVAL);
    GUARD(micro_open(&u, m, batch, options, e));
    GUARD(run_forward(&tape, &u, options, &anchor, e));
    GUARD(add_sums(&u, batch, sums, e));
    if (losses) GUARD(tensor_download(u.losses, losses, e));
done:
    micro_close(&u);
    return status;
}

static void soft_cap(float *logits, int64_t count, double cap) {
    for (int64_t i = 0; cap > 0 && i < count; i++) {
        logits[i] = (float)(cap * tanh(logits[i] / cap));
    }
}

enum status step_logits(struct model *m, const struct batch *batch, const int32_t *tokens,
                        int64_t count, float *logits, struct err *e) {
    struct micro u = {0};
    struct tape tape;
    struct tensor *hidden = NULL, *picked = NULL, *index = NULL, *out = NULL;
    const struct step_options options = {.loss_chunk_rows = 1};
    const struct loss_options head = {.head = m->head};
    enum status status = STATUS_OK;
    tape_init(&tape, m->space);
    arena_enter(m->space->arena, PHASE_EVAL);
    GUARD(micro_open(&u, m, batch, &options, e));
    GUARD(decoder_forward(&tape, &u.inputs, &hidden, e));
    GUARD(put(m->space, DTYPE_I32, tokens, count, &index, e));
    GUARD(tensor_new(m->space, DTYPE_F32, count, hidden->cols, CATEGORY_ACTIVATIONS, &picked, e));
    const struct rows_args gather = {.rows = count,
                                     .width = hidden->cols,
                                     .index = tensor_i32(index),
                                     .src = tensor_f32(hidden),
                                     .dst = tensor_f32(picked)};
    GUARD(device_gather_rows(m->space->device, &gather, e));
    GUARD(op_logits(&tape, picked, &head, &out, e));
    GUARD(tensor_download(out, logits, e));
    soft_cap(logits, count * m->config.vocab_size, m->config.final_softcap);
done:
    tensor_release(hidden);
    tensor_release(picked);
    tensor_release(index);
    tensor_release(out);
    micro_close(&u);
    return status;
}
