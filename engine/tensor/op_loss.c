/* op_loss.c - the loss head: logits never exist as a whole, and rows without a label are never
 * multiplied.
 *
 * The gradient of the head is computed in forward, chunk by chunk, while the chunk's logits are at
 * hand; what survives is one [rows, C] matrix. Correct because the loss is the last thing of a
 * micro-batch and its scale is known beforehand (the trained tokens of the global batch are counted
 * before the first micro-batch). */
#include "engine/tensor/ops.h"

#include <string.h>

#include "engine/tensor/loss_internal.h"

enum { SAVED_GRADIENT, SAVED_INDEX };

static enum status loss_backward(struct tape *tape, struct node *node, struct err *e) {
    if (!node->inputs[0])
        return STATUS_OK; /* only the head is trained, and it has its gradient already */
    const struct tensor *const dh = node->saved[SAVED_GRADIENT];
    struct gradient *const target = node->inputs[0];
    struct tensor *dx = NULL;
    TRY(tensor_activation(tape->space, target->rows, target->cols, target->tail, &dx, e));
    const struct rows_args args = {.rows = dh->rows,
                                   .width = dh->cols,
                                   .dtype = dh->dtype,
                                   .index = tensor_i32(node->saved[SAVED_INDEX]),
                                   .src = dh->data,
                                   .ld_src = dh->ld,
                                   .dst = dx->data,
                                   .ld_dst = dx->ld};
    enum status status = tensor_fill_zero(dx, e);
    if (status == STATUS_OK) status = device_scatter_rows(tape->space->device, &args, e);
    if (status == STATUS_OK) status = gradient_add(target, dx, e);
    tensor_release(dx);
    return status;
}

/* Where the chunks of one loss live. */
struct head {
    const struct loss_options *options;
    struct tensor *h;      /* [rows,C], the labelled rows of x */
    struct tensor *dh;     /* [rows,C] or NULL */
    struct tensor *logits; /* [chunk,V] */
    struct tensor *stats;  /* of a divided head: see loss_part */
    struct tensor *losses, *correct;
    bool record;
};

/* logits[0..count) = h[first..first+count) head^T */
static enum status chunk_logits(struct device *device, const struct tensor *h,
                                const struct tensor *head, int64_t first, int64_t count,
                                struct tensor *logits, struct err *e) {
    const struct gemm_args args = {.m = count,
                                   .n = head->rows,
                                   .k = head->cols,
                                   .alpha = 1,
                                   .trans_b = true,
                                   .a = tensor_matrix_at(h, first, 0),
                                   .b = tensor_matrix(head),
                                   .c = tensor_matrix(logits)};
    return device_gemm(device, &args, e);
}

static enum status chunk_backward(struct device *device, const struct head *w, int64_t first,
                                  int64_t count, struct err *e) {
    struct tensor *const head = w->options->head;
    const int64_t channels = head->cols;
    if (w->dh) {
        const struct gemm_args to_h = {.m = count,
                                       .n = channels,
                                       .k = head->rows,
                                       .alpha = 1,
                                       .a = tensor_matrix(w->logits),
                                       .b = tensor_matrix(head),
                                       .c = tensor_matrix_at(w->dh, first, 0)};
        TRY(device_gemm(device, &to_h, e));
    }
    if (!head->gradient) return STATUS_OK;
    struct tensor *dhead = NULL;
    bool accumulate = false;
    TRY(gradient_target(head->gradient, &dhead, &accumulate, e));
    const struct gemm_args to_head = {.m = head->rows,
                                      .n = channels,
                                      .k = count,
                                      .alpha = 1,
                                      .beta = accumulate ? 1 : 0,
                                      .trans_a = true,
                                      .a = tensor_matrix(w->logits),
                                      .b = tensor_matrix_at(w->h, first, 0),
                                      .c = tensor_matrix(dhead)};
    return device_gemm(device, &to_head, e);
}

static enum status run_chunk(struct tape *tape, const struct head *w, int64_t first, int64_t count,
                             struct err *e) {
    struct device *const device = tape->space->device;
    const struct loss_options *const o = w->options;
    TRY(chunk_logits(device, w->h, o->head, first, count, w->logits, e));
    if (o->group) {
        const struct loss_part part = {.options = o,
                                       .logits = w->logits,
                                       .stats = w->stats,
                                       .losses = w->losses,
                                       .correct = w->correct,
                                       .first = first,
                                       .count = count,
                                       .record = w->record};
        TRY(loss_of_part(&part, e));
        return w->record ? chunk_backward(device, w, first, count, e) : STATUS_OK;
    }
    const struct cross_entropy_args loss = {.rows = count,
                                            .vocab = o->head->rows,
                                            .dtype = w->logits->dtype,
                                            .logits = w->logits->data,
                                            .labels = tensor_i32(o->labels) + first,
                                            .softcap = o->softcap,
                                            .grad_scale = o->grad_scale,
                                            .loss_scale = o->loss_scale,
                                            .write_gradient = w->record,
                                            .losses = tensor_f32(w->losses) + first,
                                            .correct = tensor_i32(w->correct) + first};
    TRY(device_cross_entropy(device, &loss, e));
    return w->record ? chunk_backward(device, w, first, count, e) : STATUS_OK;
}

static enum status record(struct tape *tape, struct tensor *x, const struct head *w,
                          struct tensor **anchor, struct err *e) {
    TRY(tensor_new(tape->space, DTYPE_F32, 1, 1, CATEGORY_ACTIVATIONS, anchor, e));
    struct node *const node = tape_push(tape, loss_backward, *anchor);
    node_input(node, 0, x);
    node_save(node, SAVED_GRADIENT, w->dh);
    node_save(node, SAVED_INDEX, w->options->index);
    /* The anchor's own gradient is only the signal to start; its value is never read. */
    struct tensor *const start = tensor_view_rows(*anchor, 0, 1);
    const enum status status = gradient_add((*anchor)->gradient, start, e);
    tensor_release(start);
    return status;
}

enum status op_gather_rows(const struct tensor *x, const struct tensor *index, struct tensor **out,
                           struct err *e) {
    TRY(tensor_activation(x->space, index->cols, x->cols, 0, out, e));
    const struct rows_args args = {.rows = index->cols,
                                   .width = x->cols,
                                   .dtype = x->dtype,
                                   .index = tensor_i32(index),
                                   .src = x->data,
                                   .ld_src = x->ld,
                                   .dst = (*out)->data,
                                   .ld_dst = (*out)->ld};
    return device_gather_rows(x->space->device, &args, e);
}

enum status op_loss(struct tape *tape, struct tensor *x, const struct loss_options *options,
                    struct tensor *losses, struct tensor *correct, struct tensor **anchor,
                    struct err *e) {
    ASSERT(options->rows > 0 && options->chunk_rows > 0);
    struct tensor_space *const space = tape->space;
    struct tensor *const inputs[] = {x, options->head};
    struct head w = {.options = options,
                     .losses = losses,
                     .correct = correct,
                     .record = tape_records(tape, inputs, 2)};
    const int64_t chunk = options->rows < options->chunk_rows ? options->rows : options->chunk_rows;
    enum status status = STATUS_OK;
    arena_set_label(space->arena, (struct arena_label){"loss", -1});
    GUARD(op_gather_rows(x, options->index, &w.h, e));
    if (w.record && x->gradient) {
        GUARD(tensor_activation(space, options->rows, x->cols, 0, &w.dh, e));
    }
    GUARD(tensor_activation(space, chunk, options->head->rows, 0, &w.logits, e));
    if (options->group) GUARD(loss_part_stats(space, options, chunk, &w.stats, e));
    for (int64_t first = 0; first < options->rows; first += chunk) {
        const int64_t left = options->rows - first;
        GUARD(run_chunk(tape, &w, first, left < chunk ? left : chunk, e));
    }
    if (w.record) GUARD(record(tape, x, &w, anchor, e));
done:
    tensor_release(w.h);
    tensor_release(w.dh);
    tensor_release(w.logits);
    tensor_release(w.stats);
    return status;
}

enum status op_logits(struct tape *tape, struct tensor *x, const struct loss_options *options,
                      struct tensor **out, struct err *e) {
    ASSERT(!tape->recording);
    struct device *const device = tape->space->device;
    struct comm_group *const g = options->group;
    const int64_t members = g ? g->world : 1, rows = x->rows;
    const int64_t columns = g ? (options->vocab + members - 1) / members : options->head->rows;
    TRY(tensor_activation(tape->space, members * rows, columns, 0, out, e));
    if (!g) return chunk_logits(device, x, options->head, 0, rows, *out, e);
    struct tensor *const own = tensor_view_rows(*out, g->rank * rows, rows);
    struct tensor *const all = tensor_view_flat(*out, 0, members, rows * columns);
    enum status status = chunk_logits(device, x, options->head, 0, rows, own, e);
    if (status == STATUS_OK) status = group_share_rows(g, all, e);
    tensor_release(own);
    tensor_release(all);
    return status;
}
