/* recover_ranks.c - one ladder for all ranks: whoever is furthest from fitting climbs, the others
 * plan the same rungs for themselves, until everybody fits.
 *
 * Ranks need different amounts: a stage of a pipeline has its own layers, and each has its own part
 * of the data. All must change the same, in the same order. */
#include <string.h>

#include "base/mem.h"
#include "engine/train/recover_report.h"

/* Rungs of one climb that travel: halvings of a few numbers and some kinds. */
enum { RUNGS_MAX = 48 };
struct shared_rung {
    int64_t kind;
    struct layout layout;
    char text[REMEDY_TEXT_MAX];
};
struct shared_rungs {
    int64_t fits, count;
    struct shared_rung items[RUNGS_MAX];
};

/* *most: by how much the neediest rank is beyond the capacity. */
static enum status find_neediest(struct run *r, int64_t beyond, int64_t *rank, int64_t *most,
                                 struct err *e) {
    int64_t *const all = mem_new((size_t)r->comm->world, sizeof *all);
    comm_doing(r->comm, "the search for remedies");
    const enum status status = comm_gather(r->comm, &beyond, sizeof beyond, all, e);
    *rank = 0;
    for (int64_t i = 1; status == STATUS_OK && i < r->comm->world; i++) {
        if (all[i] > all[*rank]) *rank = i;
    }
    *most = all[*rank];
    mem_free(all);
    return status;
}

/* The last one is always there. */
static void pack(const struct remedy_list *list, struct shared_rungs *out) {
    out->fits = list->fits;
    for (int64_t i = 0; i < list->count; i++) {
        if (out->count == RUNGS_MAX) out->count--;
        struct shared_rung *const to = &out->items[out->count++];
        to->kind = list->items[i].kind;
        to->layout = list->items[i].layout;
        memcpy(to->text, list->items[i].text, sizeof to->text);
    }
}

/* A search that has come to `at`, which needs so much here. */
struct search {
    struct run *run;
    const struct plan_request *request;
    struct remedy_list *list;
    int64_t capacity, need;
    struct layout at;
};

/* What the leader would climb from here, to all. */
static enum status follow_leader(const struct search *s, int64_t leader, struct shared_rungs *rungs,
                                 struct err *e) {
    struct comm *const c = s->run->comm;
    struct remedy_list own = {.excluded = s->list->excluded, .host_room = s->list->host_room};
    struct shared_rungs *const mine = mem_new(1, sizeof *mine);
    struct shared_rungs *const all = mem_new((size_t)c->world, sizeof *all);
    enum status status = STATUS_OK;
    if (c->rank == leader) {
        GUARD(remedies_find(&own, s->request, &s->at, s->capacity, e));
        pack(&own, mine);
    }
    GUARD(comm_gather(c, mine, sizeof *mine, all, e));
    *rungs = all[leader];
done:
    remedy_list_release(&own);
    mem_free(mine);
    mem_free(all);
    return status;
}

/* The leader's rungs, with this rank's plans. */
static enum status take_rungs(struct search *s, const struct shared_rungs *rungs, struct err *e) {
    struct remedy *const rung = mem_new(1, sizeof *rung);
    enum status status = STATUS_OK;
    for (int64_t i = 0; i < rungs->count; i++) {
        const struct shared_rung *const from = &rungs->items[i];
        rung->kind = (enum remedy_kind)from->kind;
        rung->layout = from->layout;
        memcpy(rung->text, from->text, sizeof rung->text);
        GUARD(remedy_plan(&rung->plan, s->request, &rung->layout, e));
        s->need = plan_need(&rung->plan);
        s->at = rung->layout;
        rung->fits = s->need <= s->capacity;
        rung->cost = s->list->now.flops > 0 ? rung->plan.flops / s->list->now.flops : 1;
        remedy_list_add(s->list, rung);
    }
done:
    mem_free(rung);
    return status;
}

static enum status climb_together(struct search *s, struct shared_rungs *rungs, struct err *e) {
    for (;;) {
        int64_t leader = 0, beyond = 0;
        TRY(find_neediest(s->run, s->need - s->capacity, &leader, &beyond, e));
        s->list->fits = beyond <= 0;
        if (s->list->fits) return STATUS_OK;
        TRY(follow_leader(s, leader, rungs, e));
        TRY(take_rungs(s, rungs, e));
        if (!rungs->fits) return STATUS_OK;
    }
}

enum status recover_find_together(struct run *r, const struct plan_request *request,
                                  const struct layout *from, int64_t capacity,
                                  struct remedy_list *list, struct err *e) {
    struct search search = {
        .run = r, .request = request, .list = list, .capacity = capacity, .at = *from};
    *list = (struct remedy_list){.excluded = list->excluded, .host_room = list->host_room};
    TRY(remedy_plan(&list->now, request, from, e));
    search.need = plan_need(&list->now);
    struct shared_rungs *const rungs = mem_new(1, sizeof *rungs);
    const enum status status = climb_together(&search, rungs, e);
    mem_free(rungs);
    return status;
}
