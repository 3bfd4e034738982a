/* recover.c - before, in and after a micro-step: reserve, agree, notice a failure, begin again.
 *
 * What the arena holds after a failed micro-step is what it held before, in every category: that is
 * checked each time, because whatever stayed would be short the next time. */
#include "engine/train/recover.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/shard.h"
#include "engine/model/shard_weights.h"
#include "engine/train/pipeline.h"
#include "engine/train/recover_report.h"
#include "engine/train/remember.h"

/* Steps after which a layout is first tried to be taken back; doubled each time it had to be
 * changed again. */
/* How often, in one step, and how long memory is waited for when nothing else is left. */
enum { WAITS_MAX = 5, WAIT_LOOKS = 20, WAIT_LOOK_MS = 100 };
enum { UNDO_WAIT_STEPS = 8, UNDO_WAIT_MAX = 4096 };

bool recover_asks(const struct run *r) {
    return str_equal(r->spec.memory.on_oom, "ask");
}

bool recover_is_off(const struct run *r) {
    return str_equal(r->spec.memory.on_oom, "off");
}

enum status recover_available(struct run *r, int64_t *bytes, struct err *e) {
    *bytes = arena_available(r->session.arena);
    return agree_least(r->comm, bytes, e);
}

static void begin_empty(struct run *r) {
    struct recovery *const c = &r->recovery;
    c->asked = r->layout;
    c->undo_wait = UNDO_WAIT_STEPS;
    c->posts = mem_new((size_t)r->comm->world, sizeof *c->posts);
}

/* The layout that this job needed the last time here, if it is still needed, and enough. */
static enum status take_remembered(struct run *r, int64_t capacity, bool *taken, struct err *e) {
    struct layout layout = r->layout;
    struct plan plan;
    const int64_t before = plan_need(&r->plan);
    *taken = false;
    if (!remember_find(&r->spec, r->session.device, &layout)) return STATUS_OK;
    const struct layout from = r->layout;
    TRY(run_plan_layout(r, &layout, &plan, e));
    if (plan_need(&plan) > capacity || plan_need(&plan) >= before) return STATUS_OK;
    TRY(recover_take(r, &layout, e));
    const struct remedy_report report = {.state = "planned",
                                         .why = "this job needed it the last time on this device",
                                         .from = from,
                                         .to = layout,
                                         .peak_before = before,
                                         .peak_after = plan_need(&r->plan),
                                         .capacity = capacity,
                                         .cost = 1};
    *taken = true;
    return report_layout(r, &report, e);
}

/* What the neediest rank needs. */
static enum status most_needed(struct run *r, int64_t *need, struct err *e) {
    int64_t negative = -*need;
    TRY(agree_least(r->comm, &negative, e));
    *need = -negative;
    return STATUS_OK;
}

static enum status refuse(struct run *r, const struct remedy_list *list, int64_t capacity,
                          struct err *e) {
    char needed[24], there[24], least[24];
    int64_t need = plan_need(&r->plan);
    int64_t lowest = list->count ? plan_need(&list->items[list->count - 1].plan) : need;
    TRY(most_needed(r, &need, e));
    TRY(most_needed(r, &lowest, e));
    if (recover_is_off(r) && list->fits) {
        return err_set_param(
            e, STATUS_OOM, "memory.on_oom",
            "the run needs %s and there are %s; it would fit with changes that leave the loss "
            "curve alone (%s), but memory.on_oom is off",
            str_bytes(need, needed), str_bytes(capacity, there),
            list->count ? remedy_name(list->items[list->count - 1].kind) : "none");
    }
    return err_set_param(
        e, STATUS_OOM, "memory.cap",
        "the run needs %s and there are %s; with every change that leaves the loss curve alone it "
        "still needs %s: lower data.max_length or r, train with finetuning_type lora, or give it "
        "more memory",
        str_bytes(need, needed), str_bytes(capacity, there), str_bytes(lowest, least));
}

static enum status fit(struct run *r, int64_t capacity, struct err *e) {
    struct remedy_list list = {0};
    bool taken = false;
    enum status status = STATUS_OK;
    const char *const why = "what the spec asks for does not fit";
    if (!recover_is_off(r) && !recover_asks(r)) GUARD(take_remembered(r, capacity, &taken, e));
    if (taken) goto done;
    GUARD(recover_find(r, &r->layout, capacity, &list, e));
    if (!list.fits || recover_is_off(r)) GUARD(refuse(r, &list, capacity, e));
    if (recover_asks(r)) {
        GUARD(recover_ask(r, why, e));
    } else if (list.count > 0) {
        GUARD(recover_climb(r, &list, list.count - 1, "planned", why, e));
    }
done:
    remedy_list_release(&list);
    return status;
}

enum status recover_begin(struct run *r, struct err *e) {
    int64_t capacity = 0;
    begin_empty(r);
    TRY(recover_available(r, &capacity, e));
    r->recovery.decided_at = capacity;
    int64_t room = capacity - plan_need(&r->plan);
    TRY(agree_least(r->comm, &room, e));
    return room >= 0 ? STATUS_OK : fit(r, capacity, e);
}

void recover_end(struct run *r) {
    mem_free(r->recovery.posts);
    r->recovery.posts = NULL;
}

static void take_books(const struct run *r, int64_t by_category[CATEGORY_COUNT]) {
    struct arena_stats stats;
    arena_get_stats(r->session.arena, &stats);
    memcpy(by_category, stats.by_category, sizeof stats.by_category);
}

/* Where gradients are summed during backward, the others are in the middle of a sum by now: no rank
 * can begin the step again, so all begin again from the last checkpoint. What a step needs is
 * backed before it, so this is for faults alone. */
static enum status lose_step(const struct err *why, struct err *e) {
    return err_set(e, STATUS_LOST,
                   "memory was short in the middle of work that all ranks do together: %.700s",
                   why->text);
}

enum status recover_together(const struct run *r, enum status status, struct err *why) {
    const struct model *const m = &r->session.model;
    const bool together = weights_are_sharded(m) || pipeline_is_on(m) || m->group;
    if (status != STATUS_OOM || !together) return status;
    const struct err shortage = *why;
    err_clear(why);
    return lose_step(&shortage, why);
}

enum status recover_idle(struct run *r, bool last, struct err *e) {
    struct err why = {0};
    const enum status status = step_idle(&r->session.model, last, &why);
    if (status == STATUS_OOM) return lose_step(&why, e);
    return status == STATUS_OK ? STATUS_OK : err_set_param(e, status, why.param, "%s", why.text);
}

enum status recover_train(struct run *r, const struct step_options *options, struct step_sums *sums,
                          struct err *e) {
    int64_t before[CATEGORY_COUNT], after[CATEGORY_COUNT];
    struct err why = {0};
    take_books(r, before);
    const enum status status = step_train(&r->session.model, &r->batch, options, sums, &why);
    take_books(r, after);
    ASSERT(memcmp(before, after, sizeof before) == 0);
    const bool together = shard_has_marks(&r->session.model) || r->session.model.group;
    if (status == STATUS_OOM && together) return lose_step(&why, e);
    if (status == STATUS_OOM) {
        r->recovery.failed = true;
        r->recovery.why = why;
        return STATUS_OK;
    }
    return status == STATUS_OK ? STATUS_OK : err_set_param(e, status, why.param, "%s", why.text);
}

static const struct batch *next_micro(void *context, int64_t micro) {
    struct run *const r = context;
    batcher_micro(&r->corpus.batcher, micro, &r->batch);
    return &r->batch;
}

enum status recover_pipeline(struct run *r, const struct step_options *options,
                             struct step_sums *sums, struct err *e) {
    int64_t before[CATEGORY_COUNT], after[CATEGORY_COUNT];
    struct err why = {0};
    const struct pipeline_source source = {next_micro, r, r->corpus.batcher.micro_count};
    take_books(r, before);
    const enum status status = pipeline_train(&r->session.model, &source, options, sums, &why);
    take_books(r, after);
    ASSERT(memcmp(before, after, sizeof before) == 0);
    if (status == STATUS_OOM) return lose_step(&why, e);
    return status == STATUS_OK ? STATUS_OK : err_set_param(e, status, why.param, "%s", why.text);
}

static enum status say_short(const struct run *r, const struct err *own, struct err *e) {
    const struct agreement *const a = &r->recovery.last;
    if (own->status != STATUS_OK) return err_set(e, STATUS_OOM, "%s", own->text);
    char need[24], there[24];
    return err_set(e, STATUS_OOM, "rank %lld is short of memory: %s are needed and %s are there",
                   (long long)a->rank, str_bytes(r->recovery.posts[a->rank].need, need),
                   str_bytes(r->recovery.posts[a->rank].can_back, there));
}

/* Asking the device takes a while, so only who is short does: the others can back at least what
 * they need, and their capacity at most. */
static int64_t can_back(struct arena *arena, bool enough) {
    struct arena_stats stats;
    if (!enough) return arena_available(arena);
    arena_get_stats(arena, &stats);
    return stats.capacity;
}

enum status recover_ready(struct run *r, int64_t micro, struct err *e) {
    struct recovery *const c = &r->recovery;
    struct arena *const arena = r->session.arena;
    struct err own = c->why;
    const int64_t need = plan_need(&r->plan);
    const struct batcher *const b = &r->corpus.batcher;
    /* After the last micro-batch there is nothing to reserve for. */
    const bool last = micro > 0 && micro >= c->last.rounds;
    arena_enter(arena, PHASE_FORWARD);
    const enum status backed = c->failed || last ? STATUS_OK : arena_reserve(arena, need, &own);
    if (backed != STATUS_OK && backed != STATUS_OOM) return err_set(e, backed, "%s", own.text);
    const struct agree_post mine = {.epoch = c->epoch,
                                    .step = r->state.step,
                                    .micro = micro,
                                    .micro_count = b->micro_count,
                                    .need = need,
                                    .can_back = can_back(arena, backed == STATUS_OK && !c->failed),
                                    .backed = backed == STATUS_OK,
                                    .failed = c->failed};
    TRY(agree_micro_step(r->comm, &mine, c->posts, &c->last, e));
    if (c->last.verdict == AGREE_GO) return STATUS_OK;
    c->why = own;
    TRY(recover_tell_shortage(r, c->failed ? micro - 1 : micro, e));
    return say_short(r, &own, e);
}

void recover_done(struct run *r) {
    r->recovery.tries = r->recovery.waits = 0;
}

int64_t recover_target(const struct run *r) {
    const struct agreement *const a = &r->recovery.last;
    const int64_t need = plan_need(&r->plan);
    const int64_t most = a->need > need ? a->need : need; /* before the first step none is agreed */
    /* What should have been enough was not: less than that is wanted. */
    return a->can_back < most ? a->can_back : need - 1;
}

/* Nothing is left to change. Others may hold memory for a moment only: *there, it has come back. */
static enum status wait_for_memory(struct run *r, bool *there, struct err *e) {
    struct recovery *const c = &r->recovery;
    *there = false;
    if (c->waits++ >= WAITS_MAX) return STATUS_OK;
    for (int look = 0; look < WAIT_LOOKS && !*there; look++) {
        int64_t available = 0;
        clock_pause_ms(WAIT_LOOK_MS);
        TRY(recover_available(r, &available, e));
        *there = available >= c->last.need;
    }
    return STATUS_OK;
}

static enum status change(struct run *r, const char *why, struct err *e) {
    struct remedy_list list = {.excluded = r->recovery.refused};
    enum status status = STATUS_OK;
    bool there = false;
    if (recover_asks(r)) return recover_ask(r, why, e);
    GUARD(recover_find(r, &r->layout, recover_target(r), &list, e));
    if (list.count == 0) {
        GUARD(wait_for_memory(r, &there, e));
        status = there ? STATUS_OK : recover_give_up(r, why, e);
        goto done;
    }
    GUARD(recover_climb(r, &list, list.count - 1, "applied", why, e));
    r->recovery.decided_at = recover_target(r);
    if (r->recovery.undo_wait < UNDO_WAIT_MAX) r->recovery.undo_wait *= 2;
    remember_keep(&r->spec, r->session.device, &r->layout);
done:
    remedy_list_release(&list);
    return status;
}

static enum status tell_trim(struct run *r, const char *why, struct err *e) {
    char text[REMEDY_TEXT_MAX];
    remedy_sentence(REMEDY_TRIM, &r->layout, &r->layout, r->config.layers, text);
    const struct remedy_report report = {.kind = REMEDY_TRIM,
                                         .state = "applied",
                                         .why = why,
                                         .text = text,
                                         .from = r->layout,
                                         .to = r->layout,
                                         .peak_before = plan_need(&r->plan),
                                         .peak_after = plan_need(&r->plan),
                                         .capacity = r->recovery.last.can_back,
                                         .cost = 1};
    return report_remedy(r, &report, e);
}

enum status recover_again(struct run *r, struct err *e) {
    struct recovery *const c = &r->recovery;
    char why[ERR_TEXT_MAX];
    struct err ignored = {0};
    say_short(r, &c->why, &ignored);
    memcpy(why, ignored.text, sizeof why);
    c->failed = false;
    c->why = (struct err){0};
    c->epoch++;
    graphs_reset(&r->session.graphs);
    if (recover_is_off(r)) {
        return err_set_param(e, STATUS_OOM, "memory.on_oom",
                             "%s; memory.on_oom is off, so nothing was changed", why);
    }
    arena_trim(r->session.arena);
    /* Trimming makes no room where there is less than is needed in all. */
    const bool hopeless = c->last.can_back < c->last.need;
    return c->tries++ > 0 || hopeless ? change(r, why, e) : tell_trim(r, why, e);
}
