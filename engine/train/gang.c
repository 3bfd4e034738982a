/* gang.c - see gang.h.
 *
 * Sums are taken in the order of ranks by every rank itself, so all have the same bits. */
#include "engine/train/gang.h"

#include "base/mem.h"

enum status gang_sum(struct comm *c, const struct gang_part *mine, struct gang_part *parts,
                     struct gang_part *sum, struct err *e) {
    *sum = (struct gang_part){0};
    TRY(comm_gather(c, mine, sizeof *mine, parts, e));
    for (int64_t rank = 0; rank < c->world; rank++) {
        const struct gang_part *const p = &parts[rank];
        sum->loss += p->loss;
        sum->correct += p->correct;
        sum->trained += p->trained;
        sum->tokens += p->tokens;
        sum->stopping |= p->stopping;
        if (p->seconds > sum->seconds) sum->seconds = p->seconds;
    }
    return STATUS_OK;
}

enum status gang_follow(struct comm *c, int64_t *number, struct err *e) {
    int64_t *const all = mem_new((size_t)c->world, sizeof *all);
    const enum status status = comm_gather(c, number, sizeof *number, all, e);
    if (status == STATUS_OK) *number = all[0];
    mem_free(all);
    return status;
}
