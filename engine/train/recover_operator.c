/* recover_operator.c - what the operator wants while the run goes on: another cap, a remedy, a
 * remedy taken back, an answer to what was offered.
 *
 * Rank 0 reads control.json and everybody does what it read (agree_wishes). All of it happens
 * between two steps, or while the run waits for an answer; nothing waits without looking for stop.
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/rundir.h"
#include "engine/train/recover_report.h"

enum { ASK_LOOK_MS = 100 };
/* Remedies are taken back only when so much of the capacity stays free: else they come and go. */
#define UNDO_SPARE 0.05

static enum status read_wishes(struct run *r, struct agree_wishes *w, struct err *e) {
    *w = (struct agree_wishes){.available = arena_available(r->session.arena),
                               .remedy = REMEDY_KIND_COUNT,
                               .undo = REMEDY_KIND_COUNT};
    w->stop = r->stop();
    if (r->comm->rank == 0) {
        struct run_control control;
        struct err broken = {0};
        bool fresh = false;
        if (rundir_control_read(r->folder, &r->recovery.control_mark, &fresh, &control, &broken) !=
                STATUS_OK &&
            fresh)
            TRY(report_log(&r->log, "warn", broken.text, e));
        w->stop |= control.stop;
        w->fresh = fresh;
        w->has_cap = control.has_cap;
        w->cap = control.cap;
        w->remedy = remedy_parse(control.remedy);
        w->undo = remedy_parse(control.undo);
        w->accept = control.accept;
        w->snapshot = control.snapshot;
        if (fresh && control.remedy[0] && w->remedy == REMEDY_KIND_COUNT)
            TRY(report_log(&r->log, "warn", "control.json: there is no remedy of that name", e));
        if (fresh && control.undo[0] && w->undo == REMEDY_KIND_COUNT)
            TRY(report_log(&r->log, "warn", "control.json: undo names no remedy", e));
    }
    return agree_wishes(r->comm, w, e);
}

static enum status say_log(struct run *r, const char *level, const char *text, struct err *e) {
    return r->comm->rank == 0 ? report_log(&r->log, level, text, e) : STATUS_OK;
}

/* ---- taking remedies back ---- */

static enum status take_back(struct run *r, const struct layout *to, const struct plan *plan,
                             const char *why, struct err *e) {
    struct remedy_report report = {.state = "undone",
                                   .why = why,
                                   .from = r->layout,
                                   .to = *to,
                                   .peak_before = plan_need(&r->plan),
                                   .peak_after = plan_need(plan)};
    report.cost = r->plan.flops > 0 ? plan->flops / r->plan.flops : 1;
    TRY(recover_available(r, &report.capacity, e));
    TRY(recover_take(r, to, e));
    r->recovery.epoch++;
    return report_layout(r, &report, e);
}

/* The gentlest layout that fits into `capacity`, if it is another one than that in use. */
static enum status grow_back(struct run *r, int64_t capacity, const char *why, struct err *e) {
    struct remedy_list list = {0};
    enum status status = STATUS_OK;
    GUARD(recover_find(r, &r->recovery.asked, capacity, &list, e));
    struct layout to = list.count ? list.items[list.count - 1].layout : r->recovery.asked;
    int64_t fits = list.fits;
    GUARD(agree_least(r->comm, &fits, e));
    GUARD(agree_layout(r->comm, &to, e));
    r->recovery.decided_at = capacity;
    if (!fits || layout_equal(&to, &r->layout)) goto done;
    const struct plan *const plan = list.count ? &list.items[list.count - 1].plan : &list.now;
    GUARD(take_back(r, &to, plan, why, e));
done:
    remedy_list_release(&list);
    return status;
}

static int64_t with_spare(int64_t capacity) {
    return capacity - (int64_t)(UNDO_SPARE * (double)capacity);
}

static bool may_grow_back(const struct run *r, int64_t available) {
    const struct recovery *const c = &r->recovery;
    return !layout_equal(&r->layout, &c->asked) && with_spare(available) > c->decided_at &&
           r->state.step - c->changed_at >= c->undo_wait;
}

static enum status undo(struct run *r, enum remedy_kind kind, int64_t available, struct err *e) {
    struct plan plan;
    const struct layout to = remedy_undo(&r->layout, &r->recovery.asked, kind);
    char text[REMEDY_TEXT_MAX], need[24], there[24];
    if (layout_equal(&to, &r->layout))
        return say_log(r, "warn", "undo: that remedy is not in use", e);
    TRY(run_plan_layout(r, &to, &plan, e));
    int64_t room = available - plan_need(&plan);
    TRY(agree_least(r->comm, &room, e));
    if (room >= 0) return take_back(r, &to, &plan, "asked for by the operator", e);
    snprintf(text, sizeof text, "Taking it back would need %s, and %s are there.",
             str_bytes(plan_need(&plan), need), str_bytes(available, there));
    const struct remedy_report report = {.kind = kind,
                                         .state = "refused",
                                         .why = "asked for by the operator",
                                         .text = text,
                                         .from = r->layout,
                                         .to = to,
                                         .peak_before = plan_need(&r->plan),
                                         .peak_after = plan_need(&plan),
                                         .capacity = available,
                                         .cost = 1};
    return report_remedy(r, &report, e);
}

/* ---- remedies that nobody needed ---- */

static enum status apply(struct run *r, enum remedy_kind kind, struct err *e) {
    struct remedy_list list = {.excluded = ~(1u << kind)};
    enum status status = STATUS_OK;
    GUARD(recover_find(r, &r->layout, plan_need(&r->plan) - 1, &list, e));
    if (list.count == 0) {
        status = say_log(r, "warn", "the remedy was left out: it would not lower the peak", e);
        goto done;
    }
    GUARD(recover_climb(r, &list, list.count - 1, "applied", "asked for by the operator", e));
    /* It is what is asked for now: nothing takes it back by itself. */
    const struct layout all = r->layout;
    const struct layout changed = remedy_undo(&r->recovery.asked, &all, kind);
    r->recovery.asked = changed;
done:
    remedy_list_release(&list);
    return status;
}

/* ---- the cap ---- */

static enum status refuse_cap(struct run *r, const struct remedy_list *list, int64_t wanted,
                              struct err *e) {
    char cap[24], need[24], text[REMEDY_TEXT_MAX];
    const int64_t least =
        list->count ? plan_need(&list->items[list->count - 1].plan) : plan_need(&r->plan);
    const bool off = recover_is_off(r);
    snprintf(text, sizeof text, "A cap of %s is refused and the old one stays: %s %s.",
             str_bytes(wanted, cap),
             off ? "memory.on_oom is off, and the run needs"
                 : "with every change that leaves the loss curve alone the run needs",
             str_bytes(off ? plan_need(&r->plan) : least, need));
    const struct remedy_report report = {.kind = list->count ? list->items[list->count - 1].kind
                                                             : REMEDY_TRIM,
                                         .state = "refused",
                                         .why = "the cap was lowered",
                                         .text = text,
                                         .from = r->layout,
                                         .to = r->layout,
                                         .peak_before = plan_need(&r->plan),
                                         .peak_after = least,
                                         .capacity = wanted,
                                         .cost = 1};
    return report_remedy(r, &report, e);
}

/* The cap is lower than what the run needs as it is. */
static enum status shrink(struct run *r, int64_t available, int64_t wanted, int64_t before,
                          struct err *e) {
    struct remedy_list list = {0};
    enum status status = STATUS_OK;
    GUARD(recover_find(r, &r->layout, available, &list, e));
    int64_t fits = list.fits;
    GUARD(agree_least(r->comm, &fits, e));
    if (!fits || recover_is_off(r)) {
        arena_set_capacity(r->session.arena, before);
        GUARD(refuse_cap(r, &list, wanted, e));
    } else if (recover_asks(r)) {
        GUARD(recover_ask(r, "the cap was lowered", e));
    } else if (list.count > 0) {
        r->recovery.decided_at = available;
        GUARD(recover_climb(r, &list, list.count - 1, "applied", "the cap was lowered", e));
    }
done:
    remedy_list_release(&list);
    return status;
}

static enum status change_cap(struct run *r, const struct spec_cap *cap, struct err *e) {
    struct arena_stats stats;
    arena_get_stats(r->session.arena, &stats);
    struct device *const device = r->session.device;
    const int64_t total = device->total_bytes, page = device->page_bytes;
    int64_t wanted = spec_cap_bytes(cap, total), available = 0;
    if (wanted == 0 || wanted > total) wanted = total;
    r->recovery.capped = true;
    if (wanted == stats.capacity) return STATUS_OK;
    char was[24], is[24];
    if (wanted < page) wanted = page;
    arena_set_capacity(r->session.arena, wanted);
    TRY(recover_available(r, &available, e));
    char *text = str_format("memory.cap is now %s, it was %s", str_bytes(wanted, is),
                            str_bytes(stats.capacity, was));
    const enum status said = say_log(r, "info", text, e);
    mem_free(text);
    TRY(said);
    int64_t room = available - plan_need(&r->plan);
    TRY(agree_least(r->comm, &room, e));
    if (room < 0) return shrink(r, available, wanted, stats.capacity, e);
    arena_trim(r->session.arena);
    return wanted > stats.capacity && !layout_equal(&r->layout, &r->recovery.asked)
               ? grow_back(r, with_spare(available), "the cap was raised", e)
               : STATUS_OK;
}

/* A wish is also tried when the capacity is the same as before: the file may be an old one. */
enum status recover_between(struct run *r, bool *stopping, struct err *e) {
    struct agree_wishes w;
    TRY(read_wishes(r, &w, e));
    *stopping = w.stop;
    r->recovery.snapshot = w.fresh && w.snapshot;
    if (w.stop) return STATUS_OK;
    if (w.fresh && w.has_cap) {
        TRY(change_cap(r, &w.cap, e));
        TRY(recover_available(r, &w.available, e));
    }
    if (w.fresh && w.undo != REMEDY_KIND_COUNT)
        return undo(r, (enum remedy_kind)w.undo, w.available, e);
    if (w.fresh && w.remedy != REMEDY_KIND_COUNT && w.accept)
        return apply(r, (enum remedy_kind)w.remedy, e);
    if (may_grow_back(r, w.available))
        return grow_back(r, with_spare(w.available), "memory is there again", e);
    return STATUS_OK;
}

/* ---- asking ---- */

static enum status refuse_offer(struct run *r, const struct remedy_list *list,
                                enum remedy_kind kind, struct err *e) {
    const struct remedy_report report = {.kind = kind,
                                         .state = "refused",
                                         .why = "answered by the operator",
                                         .text = "It is not offered again in this run.",
                                         .from = r->layout,
                                         .to = r->layout,
                                         .peak_before = plan_need(&list->now),
                                         .peak_after = plan_need(&list->now),
                                         .capacity = r->recovery.last.can_back,
                                         .cost = 1};
    r->recovery.refused |= 1u << kind;
    return report_remedy(r, &report, e);
}

static int64_t last_of_kind(const struct remedy_list *list, enum remedy_kind kind) {
    int64_t last = list->count - 1;
    while (last >= 0 && list->items[last].kind != kind) {
        last--;
    }
    return last;
}

/* One look at control.json. *over: the run can go on. *again: what is offered has changed. */
static enum status look(struct run *r, const struct remedy_list *list, bool *over, bool *again,
                        struct err *e) {
    struct agree_wishes w;
    const int64_t need = plan_need(&r->plan);
    TRY(read_wishes(r, &w, e));
    if (w.stop) TRY(recover_keep(r, e));
    FAIL_IF(w.stop, STATUS_INTERRUPTED, "stopped on request after step %lld",
            (long long)r->state.step);
    if (w.fresh && w.has_cap) {
        const int64_t total = r->session.device->total_bytes;
        const int64_t wanted = spec_cap_bytes(&w.cap, total);
        arena_set_capacity(r->session.arena, wanted > 0 && wanted < total ? wanted : total);
        TRY(recover_available(r, &w.available, e));
        *again = true;
    }
    if (w.fresh && w.remedy != REMEDY_KIND_COUNT) {
        const enum remedy_kind kind = (enum remedy_kind)w.remedy;
        const int64_t last = last_of_kind(list, kind);
        if (last < 0) return say_log(r, "warn", "that remedy is not offered", e);
        *over = w.accept;
        *again = !w.accept;
        return w.accept ? recover_climb(r, list, last, "applied", "answered by the operator", e)
                        : refuse_offer(r, list, kind, e);
    }
    /* Only when it was known to be too little: what failed for no known reason would fail again. */
    int64_t there = w.available >= need && r->recovery.last.can_back < need;
    TRY(agree_least(r->comm, &there, e));
    *over = there;
    return there ? say_log(r, "info", "memory is there again: the run goes on", e) : STATUS_OK;
}

static enum status wait_for_answer(struct run *r, const struct remedy_list *list, bool *over,
                                   struct err *e) {
    bool again = false;
    while (!*over && !again) {
        clock_pause_ms(ASK_LOOK_MS);
        TRY(look(r, list, over, &again, e));
    }
    return STATUS_OK;
}

enum status recover_ask(struct run *r, const char *why, struct err *e) {
    enum status status = STATUS_OK;
    bool over = false;
    TRY(recover_available(r, &r->recovery.last.can_back, e));
    while (status == STATUS_OK && !over) {
        struct remedy_list list = {0};
        status = recover_find(r, &r->layout, recover_target(r), &list, e);
        if (status == STATUS_OK && list.count == 0) status = recover_give_up(r, why, e);
        if (status == STATUS_OK) status = report_attention(r, &list, e);
        if (status == STATUS_OK) status = wait_for_answer(r, &list, &over, e);
        remedy_list_release(&list);
        if (status == STATUS_OK) status = recover_available(r, &r->recovery.last.can_back, e);
        /* With the cap raised in the meantime nothing has to be changed any more. */
        if (status == STATUS_OK && plan_need(&r->plan) <= r->recovery.last.can_back) over = true;
    }
    TRY(status);
    return r->comm->rank == 0 ? report_phase(&r->log, "train", e) : STATUS_OK;
}
