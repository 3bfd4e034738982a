/* recover_report.c - events from what recover.c decided.
 *
 * Peaks in remedy events are what a capacity must be at least (plan_need), so that they can be
 * compared with one. */
#include "engine/train/recover_report.h"

#include "base/mem.h"

static enum status write(struct run *r, enum event_kind kind, cJSON *fields, struct err *e) {
    if (r->comm->rank == 0) return event_write(&r->log, kind, fields, e);
    cJSON_Delete(fields);
    return STATUS_OK;
}

enum status report_remedy(struct run *r, const struct remedy_report *report, struct err *e) {
    cJSON *const fields = cJSON_CreateObject();
    json_add_i64(fields, "step", r->state.step + 1);
    json_add_i64(fields, "epoch", r->recovery.epoch);
    json_add_string(fields, "remedy", remedy_name(report->kind));
    json_add_string(fields, "state", report->state);
    json_add_string(fields, "why", report->why);
    cJSON_AddItemToObject(fields, "from", layout_to_json(&report->from));
    cJSON_AddItemToObject(fields, "to", layout_to_json(&report->to));
    json_add_i64(fields, "peak_before", report->peak_before);
    json_add_i64(fields, "peak_after", report->peak_after);
    json_add_i64(fields, "capacity", report->capacity);
    event_add_number(fields, "cost", report->cost);
    json_add_string(fields, "text", report->text);
    return write(r, EVENT_REMEDY, fields, e);
}

enum status report_layout(struct run *r, const struct remedy_report *common, struct err *e) {
    const int64_t layers = r->config.layers;
    struct remedy_report one = *common;
    char text[REMEDY_TEXT_MAX];
    int kind = -1;
    while ((kind = remedy_difference(&common->from, &common->to, kind)) < REMEDY_KIND_COUNT) {
        one.kind = (enum remedy_kind)kind;
        const bool all =
            common->from.checkpointed_layers == layers || common->to.checkpointed_layers == layers;
        if (kind == REMEDY_CHECKPOINT_SOME && all) one.kind = REMEDY_CHECKPOINT_ALL;
        remedy_sentence(one.kind, &common->from, &common->to, layers, text);
        one.text = text;
        TRY(report_remedy(r, &one, e));
    }
    return STATUS_OK;
}

enum status report_attention(struct run *r, const struct remedy_list *list, struct err *e) {
    cJSON *const fields = cJSON_CreateObject();
    json_add_i64(fields, "step", r->state.step + 1);
    cJSON_AddItemToObject(fields, "remedies", remedy_list_to_json(list));
    return write(r, EVENT_ATTENTION, fields, e);
}

enum status recover_tell_shortage(struct run *r, int64_t micro, struct err *e) {
    struct arena_stats stats;
    struct recovery *const c = &r->recovery;
    arena_get_stats(r->session.arena, &stats);
    if (stats.failures == c->reported_failures) return STATUS_OK;
    c->reported_failures = stats.failures;
    const int64_t world = c->posts ? r->comm->world : 0;
    struct diagnosis_rank *const ranks = mem_new((size_t)world + 1, sizeof *ranks);
    for (int64_t rank = 0; rank < world; rank++) {
        ranks[rank] = (struct diagnosis_rank){rank, c->posts[rank].need, c->posts[rank].can_back};
    }
    const struct oom_report oom = {.step = r->state.step + 1,
                                   .micro = micro,
                                   .cap = run_cap(r),
                                   .world = r->comm->world,
                                   .ranks = ranks,
                                   .rank_count = world};
    const enum status status = report_oom(&r->log, &r->session, &oom, NULL, e);
    mem_free(ranks);
    return status;
}
