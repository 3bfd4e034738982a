/* test_pipeline.c - goal: every schedule trains every micro-batch once on every stage, nobody waits
 * for ever, and what is in memory at a time is what the schedule promises; stages are cut so that
 * the largest is as small as can be; steps of micro-batches are kept that no other exceeds.
 * Method: all small pipelines, played by hand with messages that wait for both sides; every way to
 * cut a model into stages, tried one by one. */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/train/pipeline_order.h"
#include "engine/train/shapes.h"
#include "engine/train/stages.h"

enum { STAGES = 6, MICROS = 10 };
static const enum pipeline_kind KINDS[] = {PIPELINE_1F1B, PIPELINE_GPIPE};

static void test_pipelineOrder_allSizes_eachMicroOnceAndForwardFirst(void **state) {
    (void)state;
    struct pipeline_work works[2 * MICROS];
    for (int64_t size = 0; size < STAGES * STAGES * MICROS * 2; size++) {
        const struct pipeline_place place = {size % STAGES, 1 + size / STAGES % STAGES};
        const int64_t micros = 1 + size / (STAGES * STAGES) % MICROS;
        const enum pipeline_kind kind = KINDS[size / (STAGES * STAGES * MICROS)];
        if (place.stage >= place.stages) continue;
        pipeline_order(kind, &place, micros, works);
        int64_t forward = 0, backward = 0, most = 0;
        for (int64_t i = 0; i < 2 * micros; i++) {
            assert_int_equal(works[i].micro, works[i].backward ? backward++ : forward++);
            assert_true(forward >= backward);
            if (forward - backward > most) most = forward - backward;
        }
        assert_int_equal(forward, micros);
        assert_int_equal(backward, micros);
        const int64_t bound = kind == PIPELINE_GPIPE ? micros : place.stages - place.stage;
        assert_int_equal(most, bound < micros ? bound : micros);
    }
}

/* One stage in a game of messages: where it is in its works, and what it waits for. */
struct player {
    struct pipeline_place place;
    struct pipeline_work works[2 * MICROS];
    int64_t next;         /* the exchange before works[next] is posted */
    bool sends, receives; /* still to be done in it */
    int64_t sends_to, receives_from;
    bool sends_back, receives_back;
    int64_t sent[2], received[2]; /* forward, backward: the next micro-batch in each direction */
};

static void post(struct player *p, int64_t works) {
    p->sends = p->receives = false;
    if (p->next > 0) {
        const struct pipeline_work *const before = &p->works[p->next - 1];
        p->sends = pipeline_sends(&p->place, before, &p->sends_to);
        p->sends_back = before->backward;
    }
    if (p->next < works) {
        const struct pipeline_work *const after = &p->works[p->next];
        p->receives = pipeline_receives(&p->place, after, &p->receives_from);
        p->receives_back = after->backward;
    }
}

/* A message goes when both sides have posted it. */
static bool deliver(struct player *players, struct player *from) {
    if (!from->sends) return false;
    struct player *const to = &players[from->sends_to];
    if (!to->receives || to->receives_from != from->place.stage ||
        to->receives_back != from->sends_back)
        return false;
    const int way = from->sends_back;
    assert_int_equal(from->works[from->next - 1].micro, to->works[to->next].micro);
    assert_int_equal(from->sent[way]++, to->received[way]++);
    from->sends = to->receives = false;
    return true;
}

static void play(enum pipeline_kind kind, int64_t stages, int64_t micros) {
    struct player *const players = mem_new(STAGES, sizeof *players);
    int64_t over = 0;
    for (int64_t s = 0; s < stages; s++) {
        players[s].place = (struct pipeline_place){s, stages};
        pipeline_order(kind, &players[s].place, micros, players[s].works);
        post(&players[s], 2 * micros);
    }
    for (bool moved = true; moved;) {
        moved = false;
        over = 0;
        for (int64_t s = 0; s < stages; s++) {
            struct player *const p = &players[s];
            moved = deliver(players, p) || moved;
            if (p->next <= 2 * micros && !p->sends && !p->receives) {
                p->next++;
                if (p->next <= 2 * micros) post(p, 2 * micros);
                moved = true;
            }
            over += p->next > 2 * micros;
        }
    }
    if (over != stages)
        fail_msg("%lld stages, %lld micro-batches: %lld stages wait for ever", (long long)stages,
                 (long long)micros, (long long)(stages - over));
    for (int64_t s = 0; s + 1 < stages; s++) {
        assert_int_equal(players[s].sent[0], micros);
        assert_int_equal(players[s + 1].sent[1], micros);
    }
    mem_free(players);
}

static void test_pipelineOrder_playedWithWaitingMessages_nobodyWaitsForEver(void **state) {
    (void)state;
    for (size_t k = 0; k < COUNT_OF(KINDS); k++) {
        for (int64_t stages = 1; stages <= STAGES; stages++) {
            for (int64_t micros = 1; micros <= MICROS; micros++) {
                play(KINDS[k], stages, micros);
            }
        }
    }
}

/* As stages.h says it. */
static double share(const struct stages_question *q, int64_t stage, int64_t layers) {
    const struct stage_costs *const c = &q->costs;
    const double n = (double)layers, all = (double)q->layers, p = (double)q->stages;
    const double time =
        n * c->layer.time + (stage == 0) * c->begin.time + (stage == q->stages - 1) * c->end.time;
    const double kept =
        n * c->layer.kept + (stage == 0) * c->begin.kept + (stage == q->stages - 1) * c->end.kept;
    return fmax(time * p / (all * c->layer.time + c->begin.time + c->end.time),
                kept * p / (all * c->layer.kept + c->begin.kept + c->end.kept));
}

/* The least of the largest shares over all cuts. */
static double best_cut(const struct stages_question *q, int64_t stage, int64_t left) {
    if (stage == q->stages - 1) return share(q, stage, left);
    double best = HUGE_VAL;
    for (int64_t n = 1; n <= left - (q->stages - 1 - stage); n++) {
        best = fmin(best, fmax(share(q, stage, n), best_cut(q, stage + 1, left - n)));
    }
    return best;
}

static void test_stagesCut_allWays_largestIsSmallest(void **state) {
    (void)state;
    const struct stage_cost layers[] = {{1, 1, 0}, {3, 1, 0}},
                            ends[] = {{0, 0, 0}, {2, 5, 0}, {7, 2, 0}};
    for (int64_t i = 0; i < 9 * 5 * 2 * 9; i++) {
        struct stages_question q = {.layers = 1 + i % 9,
                                    .stages = 1 + i / 9 % 5,
                                    .micros = 4,
                                    .costs = {.layer = layers[i / 45 % 2],
                                              .begin = {.kept = ends[i / 90 % 3].kept},
                                              .end = ends[i / 270 % 3]}};
        int64_t cut[5], begin = 0;
        double largest = 0;
        if (q.stages > q.layers) continue;
        stages_cut(&q, cut);
        for (int64_t stage = 0; stage < q.stages; stage++) {
            assert_true(cut[stage] > begin);
            largest = fmax(largest, share(&q, stage, cut[stage] - begin));
            begin = cut[stage];
        }
        assert_int_equal(begin, q.layers);
        assert_true(largest <= best_cut(&q, 0, q.layers) * (1 + 1e-9));
    }
}

static void test_stagesRange_moreStagesThanLayers_nearestIsNamed(void **state) {
    (void)state;
    struct err e = {0};
    const struct model_config config = {.layers = 5,
                                        .hidden_size = 8,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .head_dim = 4,
                                        .intermediate_size = 16,
                                        .vocab_size = 32};
    const struct stage_wishes wishes = {.micro_tokens = 16, .micros = 2, .data = 1};
    const struct stages_place place = {.stage = 1, .stages = 6, .ranks = 12};
    int64_t first = 0, end = 0;
    assert_int_equal(stages_range(&config, &wishes, &place, &first, &end, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "5 layers"));
    assert_non_null(strstr(e.text, "the nearest is 4"));
    const struct stages_place fine = {.stage = 4, .stages = 5, .ranks = 5};
    assert_int_equal(stages_range(&config, &wishes, &fine, &first, &end, &e), STATUS_OK);
    assert_int_equal(first, 4);
    assert_int_equal(end, 5);
}

static struct batch_shape shape_of(int64_t tokens) {
    return (struct batch_shape){
        .tokens = tokens, .trained = tokens - 1, .segments = 1, .max_seqlen = tokens};
}

static void test_stepShapes_coveredSteps_areLeftOut(void **state) {
    (void)state;
    struct step_shapes *const steps = mem_new(1, sizeof *steps);
    const struct batch_shape small[] = {shape_of(4), shape_of(8)},
                             other[] = {shape_of(9), shape_of(3)},
                             large[] = {shape_of(4), shape_of(9), shape_of(2)};
    steps->listed = true;
    step_shapes_add(steps, small, 2);
    step_shapes_add(steps, other, 2);
    assert_int_equal(step_shapes_count(steps), 2);
    step_shapes_add(steps, large, 3);
    assert_int_equal(step_shapes_count(steps), 2);
    assert_int_equal(step_shapes_at(steps, 0, 0)->tokens, 9);
    assert_int_equal(step_shapes_micros(steps, 1), 3);
    assert_int_equal(step_shapes_at(steps, 1, 1)->tokens, 9);
    step_shapes_add(steps, small, 2);
    assert_int_equal(step_shapes_count(steps), 2);
    mem_free(steps);
}

static void test_stepShapes_tooMany_oneThatExceedsThemAll(void **state) {
    (void)state;
    struct step_shapes *const steps = mem_new(1, sizeof *steps);
    steps->listed = true;
    for (int64_t i = 0; i <= STEPS_MAX + 3; i++) {
        const struct batch_shape micros[] = {shape_of(10 + i), shape_of(200 - i), shape_of(5)};
        step_shapes_add(steps, micros, i % 7 == 1 ? 3 : 2);
    }
    assert_true(steps->listed);
    assert_int_equal(step_shapes_count(steps), 1);
    assert_int_equal(step_shapes_micros(steps, 0), 3);
    assert_int_equal(step_shapes_at(steps, 0, 0)->tokens, 10 + STEPS_MAX + 3);
    assert_int_equal(step_shapes_at(steps, 0, 1)->tokens, 200);
    assert_int_equal(step_shapes_at(steps, 0, 2)->tokens, 5);
    mem_free(steps);
}

static void test_stepShapes_moreMicrosThanAreKept_allAreTheLargest(void **state) {
    (void)state;
    struct step_shapes *const steps = mem_new(1, sizeof *steps);
    struct batch_shape *const micros = mem_new(STEP_MICROS_MAX + 1, sizeof *micros);
    steps->listed = true;
    for (int64_t i = 0; i <= STEP_MICROS_MAX; i++) {
        micros[i] = shape_of(i + 2);
    }
    step_shapes_add(steps, micros, 2);
    step_shapes_add(steps, micros, STEP_MICROS_MAX + 1);
    assert_int_equal(step_shapes_count(steps), 1);
    assert_int_equal(step_shapes_micros(steps, 0), STEP_MICROS_MAX + 1);
    assert_int_equal(step_shapes_at(steps, 0, 0)->tokens, STEP_MICROS_MAX + 2);
    mem_free(micros);
    mem_free(steps);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipelineOrder_allSizes_eachMicroOnceAndForwardFirst),
        cmocka_unit_test(test_pipelineOrder_playedWithWaitingMessages_nobodyWaitsForEver),
        cmocka_unit_test(test_stagesCut_allWays_largestIsSmallest),
        cmocka_unit_test(test_stagesRange_moreStagesThanLayers_nearestIsNamed),
        cmocka_unit_test(test_stepShapes_coveredSteps_areLeftOut),
        cmocka_unit_test(test_stepShapes_tooMany_oneThatExceedsThemAll),
        cmocka_unit_test(test_stepShapes_moreMicrosThanAreKept_allAreTheLargest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
