/* plan_ranks.c - one plan a rank, from the rank's own shapes.
 *
 * With full rows every rank but the first has the same plan, so it is made once. */
#include "engine/train/plan_ranks.h"

#include "base/mem.h"

static void full_rows(const struct plan_subject *s, bool eval, const struct layout *layout,
                      struct batch_shapes *out) {
    struct batch_options options = corpus_batch_options(s->spec, 0, eval);
    options.micro_rows = eval ? layout->eval_rows : layout->micro_rows;
    shapes_full(out, &options);
}

/* What the batcher would cut in that layout. */
static void find_shapes(void *context, bool eval, const struct layout *layout,
                        struct batch_shapes *out) {
    const struct plan_subject *const s = context;
    if (!s->corpus) {
        full_rows(s, eval, layout, out);
        return;
    }
    struct batcher *const b = eval ? &s->corpus->eval_batcher : &s->corpus->batcher;
    const int64_t rows = b->options.micro_rows, tokens = b->options.micro_tokens;
    batcher_cut(b, eval ? layout->eval_rows : layout->micro_rows, eval ? 0 : layout->micro_tokens);
    shapes_scan(out, b, eval ? b->steps_per_epoch : s->corpus->total_steps);
    batcher_cut(b, rows, tokens);
}

static void take_rank(struct plan_ranks *r, int64_t rank) {
    struct plan_subject *const s = &r->subject;
    const bool has_eval = s->corpus ? s->corpus->has_eval : s->spec->data.eval_files.count > 0;
    s->options->rank = rank;
    if (s->corpus) corpus_take_rank(s->corpus, session_data_rank(s->spec, rank));
    r->source = (struct shape_source){s, s->corpus != NULL, find_shapes};
    find_shapes(s, false, s->layout, &r->train);
    if (has_eval) find_shapes(s, true, s->layout, &r->eval);
    r->request = (struct plan_request){.config = s->config,
                                       .options = s->options,
                                       .spec = s->spec,
                                       .layout = s->layout,
                                       .train = &r->train,
                                       .eval = has_eval ? &r->eval : NULL,
                                       .source = &r->source,
                                       .counts_work = true};
}

static void note(struct plan_ranks *r, int64_t rank, const struct plan *plan) {
    r->ranks[rank].peak = plan->stats.allocated_peak;
    r->ranks[rank].reserved = plan->stats.reserved_peak;
    r->ranks[rank].need = plan_need(plan);
    r->count = rank + 1;
    if (rank > 0 && plan_need(plan) <= plan_need(&r->plan)) return;
    r->plan = *plan;
    r->neediest = rank;
}

enum status plan_ranks_make(struct plan_ranks *r, const struct plan_subject *subject,
                            struct err *e) {
    r->subject = *subject;
    r->world = subject->spec->parallel.ranks;
    struct plan *const plan = mem_new(1, sizeof *plan);
    enum status status = STATUS_OK;
    for (int64_t rank = 0; rank < r->world && rank < PLAN_RANKS_MAX; rank++) {
        const bool known = !subject->corpus && rank > 1;
        if (!known) {
            take_rank(r, rank);
            GUARD(plan_make(plan, &r->request, e));
        }
        note(r, rank, plan);
    }
    take_rank(r, r->neediest);
done:
    mem_free(plan);
    return status;
}

cJSON *plan_ranks_to_json(const struct plan_ranks *r) {
    cJSON *const list = cJSON_CreateArray();
    for (int64_t i = 0; i < r->count; i++) {
        cJSON *const item = cJSON_CreateObject();
        json_add_i64(item, "rank", i);
        json_add_i64(item, "planned_peak_bytes", r->ranks[i].peak);
        json_add_i64(item, "planned_reserved_bytes", r->ranks[i].reserved);
        json_add_i64(item, "planned_need_bytes", r->ranks[i].need);
        cJSON_AddItemToArray(list, item);
    }
    return list;
}
