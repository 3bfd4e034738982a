/* op_loss_part.c - see loss_internal.h: cross-entropy over a divided vocabulary (Shoeybi et al.
 * 2019, section 3).
 *
 * Whoever has the label's logit says it; every member puts the same numbers together in the same
 * order, so that all end with the same losses. Only the gradient of the logits differs: each has
 * its own columns of it. */
#include "engine/tensor/loss_internal.h"

#include "base/mem.h"

enum status loss_part_stats(struct tensor_space *space, const struct loss_options *options,
                            int64_t rows, struct tensor **out, struct err *e) {
    return tensor_new(space, DTYPE_I64, 1, options->group->world * rows * SOFTMAX_STATS,
                      CATEGORY_ACTIVATIONS, out, e);
}

static enum status own_stats(const struct loss_part *p, double *stats, struct err *e) {
    const struct loss_options *const o = p->options;
    const struct softmax_stats_args args = {.rows = p->count,
                                            .vocab = o->head->rows,
                                            .first = o->first,
                                            .dtype = p->logits->dtype,
                                            .logits = p->logits->data,
                                            .labels = tensor_i32(o->labels) + p->first,
                                            .softcap = o->softcap,
                                            .stats = stats};
    return device_softmax_stats(p->logits->space->device, &args, e);
}

enum status loss_of_part(const struct loss_part *p, struct err *e) {
    const struct loss_options *const o = p->options;
    const int64_t each = p->count * SOFTMAX_STATS;
    struct tensor *const all = tensor_view_flat(p->stats, 0, o->group->world, each);
    double *const stats = all->data;
    const struct split_cross_entropy_args loss = {.rows = p->count,
                                                  .vocab = o->head->rows,
                                                  .first = o->first,
                                                  .members = o->group->world,
                                                  .dtype = p->logits->dtype,
                                                  .logits = p->logits->data,
                                                  .labels = tensor_i32(o->labels) + p->first,
                                                  .softcap = o->softcap,
                                                  .grad_scale = o->grad_scale,
                                                  .loss_scale = o->loss_scale,
                                                  .write_gradient = p->record,
                                                  .stats = stats,
                                                  .losses = tensor_f32(p->losses) + p->first,
                                                  .correct = tensor_i32(p->correct) + p->first};
    enum status status = own_stats(p, stats + o->group->rank * each, e);
    if (status == STATUS_OK) status = group_share_rows(o->group, all, e);
    if (status == STATUS_OK)
        status = device_split_cross_entropy(p->logits->space->device, &loss, e);
    tensor_release(all);
    return status;
}
