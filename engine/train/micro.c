/* micro.c - see micro.h.
 *
 * Everything that a micro-batch needs goes to the device in one transfer; nothing after that waits
 * for the device, unless the caller wants the losses at once. */
#include "engine/train/micro.h"

#include <string.h>

#include "base/mem.h"
#include "engine/model/shard.h"
#include "engine/model/shard_weights.h"

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

void micro_close(struct micro *u) {
    tensor_release(u->inputs.ids);
    tensor_release(u->inputs.documents.positions);
    tensor_release(u->inputs.documents.cu_seqlens);
    tensor_release(u->inputs.keys.row_keys);
    tensor_release(u->index);
    tensor_release(u->labels);
    tensor_release(u->staging);
    tensor_release(u->losses);
    tensor_release(u->correct);
    tensor_release(u->inputs.given);
    tensor_release(u->handed);
    *u = (struct micro){0};
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

enum status micro_open(struct micro *u, struct model *m, const struct batch *b,
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
    if (!model_begins(m))
        TRY(tensor_activation(m->space, group_rows(m->group, b->tokens), m->config.hidden_size, 0,
                              &in->given, e));
    if (!model_ends(m)) return STATUS_OK;
    TRY(tensor_new(m->space, DTYPE_F32, 1, u->rows, CATEGORY_STAGING, &u->losses, e));
    return tensor_new(m->space, DTYPE_I32, 1, u->rows, CATEGORY_STAGING, &u->correct, e);
}

static struct loss_options loss_of(const struct micro *u, const struct step_options *o) {
    const struct model *const m = u->inputs.model;
    return (struct loss_options){.head = m->head,
                                 .group = m->group,
                                 .first = m->division.vocab.first,
                                 .vocab = m->config.vocab_size,
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

enum status micro_add_totals(const struct micro *u, const struct step_options *o, struct err *e) {
    if (!o->totals || !u->losses) return STATUS_OK;
    const struct loss_sums_args args = {.rows = u->rows,
                                        .losses = tensor_f32(u->losses),
                                        .correct = tensor_i32(u->correct),
                                        .totals = o->totals};
    return device_loss_sums(u->losses->space->device, &args, e);
}

enum status micro_add_sums(const struct micro *u, const struct batch *b,
                           const struct step_options *o, struct step_sums *sums, struct err *e) {
    sums->trained += u->rows;
    sums->tokens += b->real_tokens;
    return o->totals || !u->losses ? STATUS_OK : download_sums(u, sums, e);
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
    return tape->recording && unit == UNIT_HEAD ? shard_end(m, unit, e) : STATUS_OK;
}

enum status micro_forward(struct tape *tape, struct micro *u, const struct step_options *o,
                          struct tensor **anchor, struct err *e) {
    struct tensor *hidden = NULL;
    enum status status = decoder_forward(tape, &u->inputs, &hidden, e);
    if (status == STATUS_OK && !model_ends(u->inputs.model)) {
        u->handed = hidden;
        return STATUS_OK;
    }
    if (status == STATUS_OK) status = run_head(tape, u, hidden, o, anchor, e);
    tensor_release(hidden);
    return status;
}
