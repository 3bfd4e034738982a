/* recover_change.c - finding and taking another layout, and what is left when there is none.
 *
 * A change is taken between two micro-steps, when nothing but the static memory is held: the next
 * micro-step is simply cut and run in another way. */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/rundir.h"
#include "engine/train/recover_report.h"

enum status recover_find(struct run *r, const struct layout *from, int64_t capacity,
                         struct remedy_list *list, struct err *e) {
    const struct shape_source source = {r, true, run_find_shapes};
    const struct batch_shapes none = {0};
    const struct plan_request request = {.config = &r->config,
                                         .options = &r->options,
                                         .spec = &r->spec,
                                         .train = &none,
                                         .eval = r->corpus.has_eval ? &none : NULL,
                                         .source = &source};
    list->excluded |= r->recovery.refused;
    TRY(run_host_room(r, &list->host_room, e));
    return r->comm->world == 1 ? remedies_find(list, &request, from, capacity, e)
                               : recover_find_together(r, &request, from, capacity, list, e);
}

/* What the session holds all the time becomes another thing: it is made anew from the checkpoint of
 * this step, as when a run is resumed. So the memory is laid out as it was planned, without a hole
 * where the optimizer was. */
static enum status open_again(struct run *r, struct err *e) {
    const int64_t step = r->state.step;
    struct arena_stats stats;
    TRY(recover_keep(r, e));
    arena_get_stats(r->session.arena, &stats);
    watching_move(&r->watching, NULL);
    session_close(&r->session);
    TRY(run_open_session(r, e));
    watching_move(&r->watching, r->session.arena);
    arena_set_capacity(r->session.arena, stats.capacity);
    TRY(run_load_weights(r, e));
    if (step > 0) TRY(checkpoint_load(&r->session, r->folder, step, &r->state, e));
    r->session.device->hurried = false;
    r->recovery.reported_failures = 0;
    return report_holdings(&r->log, &r->session, step, e);
}

enum status recover_take(struct run *r, const struct layout *to, struct err *e) {
    struct plan plan;
    TRY(run_plan_layout(r, to, &plan, e));
    r->layout = *to;
    r->plan = plan;
    r->recovery.changed_at = r->state.step;
    graphs_reset(&r->session.graphs);
    if (r->recovery.running && !run_holds_layout(r)) return open_again(r, e);
    arena_trim(r->session.arena);
    return STATUS_OK;
}

enum status recover_climb(struct run *r, const struct remedy_list *list, int64_t last,
                          const char *state, const char *why, struct err *e) {
    struct layout agreed = list->items[last].layout;
    struct remedy_report report = {.state = state, .why = why, .from = r->layout};
    report.peak_before = plan_need(&list->now);
    r->recovery.epoch++;
    TRY(agree_layout(r->comm, &agreed, e));
    TRY(recover_available(r, &report.capacity, e));
    for (int64_t i = 0; i <= last; i++) {
        const struct remedy *const rung = &list->items[i];
        if (i < last && list->items[i + 1].kind == rung->kind) continue;
        char text[REMEDY_TEXT_MAX];
        report.kind = rung->kind;
        report.to = i == last ? agreed : rung->layout;
        report.peak_after = plan_need(&rung->plan);
        report.cost = rung->cost;
        remedy_sentence(rung->kind, &report.from, &report.to, r->config.layers, text);
        report.text = text;
        TRY(report_remedy(r, &report, e));
        report.from = report.to;
        report.peak_before = report.peak_after;
    }
    return recover_take(r, &agreed, e);
}

enum status recover_keep(struct run *r, struct err *e) {
    char *path = rundir_checkpoint(r->folder, r->state.step);
    const bool kept = r->state.step == 0 || file_exists(path);
    mem_free(path);
    return kept ? STATUS_OK : run_save_checkpoint(r, e);
}

enum status recover_give_up(struct run *r, const char *why, struct err *e) {
    char need[24], there[24];
    struct err failed = {0};
    const bool kept = recover_keep(r, &failed) == STATUS_OK;
    return err_set_param(
        e, STATUS_OOM, "memory.cap",
        "%s. Everything that leaves the loss curve alone has been done: at step %lld the run needs "
        "%s and %s are there. %s. To go on: free memory on the device, raise memory.cap, lower "
        "data.max_length or r",
        why, (long long)r->state.step + 1, str_bytes(plan_need(&r->plan), need),
        str_bytes(r->recovery.last.can_back, there),
        r->state.step == 0 ? "Nothing was trained yet"
        : kept             ? "What was trained is in the last checkpoint"
                           : "The last steps could not be saved");
}

/* Half of what evaluation or samples take at a time; false: they cannot take less. */
static bool take_half(struct layout *layout, enum remedy_kind kind) {
    int64_t *const number = kind == REMEDY_EVAL_BATCH      ? &layout->eval_rows
                            : kind == REMEDY_SAMPLE_LENGTH ? &layout->sample_tokens
                                                           : NULL;
    if (!number || *number <= 1) return false;
    *number /= 2;
    return true;
}

enum status recover_beside(struct run *r, enum remedy_kind kind, int64_t tries, struct err *why) {
    struct err ignored = {0};
    struct remedy_report report = {.state = "applied",
                                   .why = why->text,
                                   .from = r->layout,
                                   .to = r->layout,
                                   .peak_before = plan_need(&r->plan),
                                   .capacity = arena_available(r->session.arena),
                                   .cost = 1};
    (void)recover_tell_shortage(r, -1, &ignored);
    if (recover_is_off(r) || (tries > 0 && !take_half(&report.to, kind))) return STATUS_OOM;
    graphs_reset(&r->session.graphs);
    arena_trim(r->session.arena);
    if (tries > 0 && recover_take(r, &report.to, &ignored) != STATUS_OK) return STATUS_OOM;
    report.peak_after = plan_need(&r->plan);
    char text[REMEDY_TEXT_MAX];
    report.kind = tries > 0 ? kind : REMEDY_TRIM;
    remedy_sentence(report.kind, &report.from, &report.to, r->config.layers, text);
    report.text = text;
    (void)report_remedy(r, &report, &ignored);
    return STATUS_OK;
}
