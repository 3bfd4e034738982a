/* agree.c - pure decisions over gathered records.
 *
 * Records are plain structs of eight-byte members, so that they travel as bytes between ranks of
 * one program on machines of one kind, which is all that runs together. */
#include "engine/train/agree.h"

#include "base/mem.h"

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static bool is_apart(const struct agree_post *a, const struct agree_post *b) {
    return a->epoch != b->epoch || a->step != b->step || a->micro != b->micro;
}

struct agreement agree_decide(const struct agree_post *posts, int64_t world) {
    struct agreement a = {
        .verdict = AGREE_GO, .rank = -1, .need = posts[0].need, .can_back = posts[0].can_back};
    for (int64_t rank = 0; rank < world; rank++) {
        const struct agree_post *const post = &posts[rank];
        a.need = most(a.need, post->need);
        a.can_back = least(a.can_back, post->can_back);
        a.rounds = most(a.rounds, post->micro_count);
        if (is_apart(post, &posts[0]) && a.verdict != AGREE_APART) {
            a.verdict = AGREE_APART;
            a.rank = rank;
        }
        if (a.verdict != AGREE_GO || (post->backed && !post->failed)) continue;
        a.verdict = AGREE_SHORT;
        a.rank = rank;
        a.failed = post->failed;
    }
    return a;
}

enum status agree_micro_step(struct comm *comm, const struct agree_post *mine,
                             struct agree_post *posts, struct agreement *out, struct err *e) {
    comm_doing(comm, "the agreement before micro-batch %lld of step %lld",
               (long long)mine->micro + 1, (long long)mine->step + 1);
    TRY(comm_gather(comm, mine, sizeof *mine, posts, e));
    *out = agree_decide(posts, comm->world);
    if (out->verdict != AGREE_APART) return STATUS_OK;
    const struct agree_post *const other = &posts[out->rank];
    return err_set(e, STATUS_INTERNAL,
                   "rank %lld is at step %lld, micro-batch %lld, epoch %lld and rank 0 at step "
                   "%lld, micro-batch %lld, epoch %lld: they must be at the same place",
                   (long long)out->rank, (long long)other->step, (long long)other->micro,
                   (long long)other->epoch, (long long)posts[0].step, (long long)posts[0].micro,
                   (long long)posts[0].epoch);
}

enum status agree_wishes(struct comm *comm, struct agree_wishes *wishes, struct err *e) {
    struct agree_wishes *const all = mem_new((size_t)comm->world, sizeof *all);
    comm_doing(comm, "the agreement between two steps");
    const enum status status = comm_gather(comm, wishes, sizeof *wishes, all, e);
    if (status == STATUS_OK) {
        *wishes = all[0];
        for (int64_t rank = 1; rank < comm->world; rank++) {
            wishes->stop |= all[rank].stop;
            wishes->available = least(wishes->available, all[rank].available);
        }
    }
    mem_free(all);
    return status;
}

enum status agree_layout(struct comm *comm, struct layout *layout, struct err *e) {
    struct layout *const all = mem_new((size_t)comm->world, sizeof *all);
    comm_doing(comm, "the agreement on a layout");
    const enum status status = comm_gather(comm, layout, sizeof *layout, all, e);
    for (int64_t rank = 0; status == STATUS_OK && rank < comm->world; rank++) {
        const struct layout *const l = &all[rank];
        layout->micro_rows = least(layout->micro_rows, l->micro_rows);
        if (l->micro_tokens > 0) /* 0 is no bound */
            layout->micro_tokens = layout->micro_tokens
                                       ? least(layout->micro_tokens, l->micro_tokens)
                                       : l->micro_tokens;
        layout->loss_chunk_rows = least(layout->loss_chunk_rows, l->loss_chunk_rows);
        layout->checkpointed_layers = most(layout->checkpointed_layers, l->checkpointed_layers);
        layout->activation_offloading = layout->activation_offloading || l->activation_offloading;
        layout->optimizer_offloading = layout->optimizer_offloading || l->optimizer_offloading;
        layout->zero_stage = most(layout->zero_stage, l->zero_stage);
        layout->param_offloading = layout->param_offloading || l->param_offloading;
        layout->eval_rows = least(layout->eval_rows, l->eval_rows);
        layout->sample_tokens = least(layout->sample_tokens, l->sample_tokens);
    }
    mem_free(all);
    return status;
}

enum status agree_least(struct comm *comm, int64_t *number, struct err *e) {
    int64_t *const all = mem_new((size_t)comm->world, sizeof *all);
    comm_doing(comm, "the agreement on a number");
    const enum status status = comm_gather(comm, number, sizeof *number, all, e);
    for (int64_t rank = 0; status == STATUS_OK && rank < comm->world; rank++) {
        *number = least(*number, all[rank]);
    }
    mem_free(all);
    return status;
}
