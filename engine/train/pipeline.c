/* pipeline.c - see pipeline.h: the order of a schedule (pipeline_order.h), one exchange between two
 * pieces of work.
 *
 * Before the exchange everything is there that it fills, so what is in memory at a time is what the
 * order says, on every device. */
#include "engine/train/pipeline.h"

#include "base/mem.h"
#include "engine/train/flight.h"
#include "engine/train/neighbours.h"

struct walk {
    struct model *model;
    const struct pipeline_source *source;
    const struct step_options *options;
    struct step_sums *sums;
    struct pipeline_place place;
    struct flight *flights;      /* [micros] */
    struct pipeline_work *works; /* [2 * micros] */
};

bool pipeline_is_on(const struct model *m) {
    return neighbours_stages(m) > 1;
}

static struct flight *flight_of(const struct walk *w, int64_t work) {
    return &w->flights[w->works[work].micro];
}

/* What the work before has made, and what the next one needs, where other stages are concerned. */
static int64_t list_hands(const struct walk *w, int64_t next, struct hand hands[HANDS_MAX]) {
    const int64_t works = 2 * w->source->count;
    int64_t count = 0, neighbour = 0;
    const struct pipeline_work *const before = next > 0 ? &w->works[next - 1] : NULL;
    const struct pipeline_work *const after = next < works ? &w->works[next] : NULL;
    if (before && !flight_of(w, next - 1)->empty && pipeline_sends(&w->place, before, &neighbour))
        hands[count++] =
            (struct hand){flight_of(w, next - 1)->out, before->backward ? TO_BEFORE : TO_NEXT};
    if (after && !flight_of(w, next)->empty && pipeline_receives(&w->place, after, &neighbour))
        hands[count++] = (struct hand){after->backward ? flight_of(w, next)->back
                                                       : flight_of(w, next)->micro.inputs.given,
                                       after->backward ? FROM_NEXT : FROM_BEFORE};
    return count;
}

static enum status exchange(const struct walk *w, int64_t next, struct err *e) {
    struct hand hands[HANDS_MAX] = {0};
    const int64_t count = list_hands(w, next, hands);
    TRY(neighbours_exchange(w->model, hands, count, e));
    if (next == 0) return STATUS_OK;
    struct flight *const before = flight_of(w, next - 1);
    tensor_drop(&before->out);
    if (w->works[next - 1].backward) flight_close(before);
    return STATUS_OK;
}

static enum status prepare(const struct walk *w, int64_t next, struct err *e) {
    const struct pipeline_work *const work = &w->works[next];
    struct flight *const f = flight_of(w, next);
    if (work->backward) return flight_expect(f, e);
    arena_enter(w->model->space->arena, PHASE_FORWARD);
    return flight_open(f, w->model, w->source->micro(w->source->context, work->micro), w->options,
                       w->sums, e);
}

static enum status run_works(const struct walk *w, struct err *e) {
    const int64_t works = 2 * w->source->count;
    for (int64_t i = 0; i < works; i++) {
        TRY(prepare(w, i, e));
        TRY(exchange(w, i, e));
        TRY((w->works[i].backward ? flight_backward : flight_forward)(flight_of(w, i), w->options,
                                                                      e));
    }
    return exchange(w, works, e);
}

enum status pipeline_train(struct model *m, const struct pipeline_source *source,
                           const struct step_options *options, struct step_sums *sums,
                           struct err *e) {
    const int64_t micros = source->count;
    if (micros == 0) return STATUS_OK;
    struct walk w = {.model = m,
                     .source = source,
                     .options = options,
                     .sums = sums,
                     .place = {neighbours_stage(m), neighbours_stages(m)},
                     .flights = mem_new((size_t)micros, sizeof *w.flights),
                     .works = mem_new(2 * (size_t)micros, sizeof *w.works)};
    pipeline_order(options->order, &w.place, micros, w.works);
    if (m->forgets) model_begin_gradients(m);
    enum status status = run_works(&w, e);
    for (int64_t i = 0; i < micros; i++) {
        flight_close(&w.flights[i]);
    }
    if (status == STATUS_OK && m->forgets) status = model_end_gradients(m, e);
    if (status == STATUS_OK) m->forgets = false;
    mem_free(w.flights);
    mem_free(w.works);
    return status;
}
