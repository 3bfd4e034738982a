/* test_precision.c - goal: what changes the numbers' width changes nothing else. Method: on the CPU
 * device, training with a loss scale takes the same path as without, skips what overflows and grows
 * and shrinks as torch.amp.GradScaler does; on null:cuda, every precision of a GPU is planned
 * through the whole trainer, where the shape and dtype checks of the device interface see it. */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/train/plan.h"
#include "tests/golden/support_golden.h"

enum { STEPS = 5 };

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

static void backward(struct golden *g) {
    struct err e = {0};
    struct step_sums sums = {0};
    struct optimizer *const o = &g->session.optimizer;
    const struct step_options options = {.layout = {.loss_chunk_rows = 64},
                                         .grad_scale = 1.0 / (double)g->batch.trained,
                                         .loss_scale = optimizer_loss_scale(o),
                                         .totals = optimizer_totals(o)};
    must(optimizer_zero_grad(o, &e), &e);
    must(step_train(&g->session.model, &g->batch, &options, &sums, &e), &e);
}

static void scale_loss(struct golden *g, double scale, int64_t good) {
    struct err e = {0};
    struct optimizer *const o = &g->session.optimizer;
    const struct loss_scaling scaling = {.scale = scale, .good = good};
    o->options.scales_loss = true;
    must(optimizer_resume(o, &scaling, o->updates, &e), &e);
}

static void test_loss_scale_leaves_learning_alone(void **state) {
    (void)state;
    double losses[2][STEPS], norms[2][STEPS];
    for (int scaled = 0; scaled < 2; scaled++) {
        struct golden g;
        struct err e = {0};
        golden_open(&g, "llama", "lora", "cpu", NULL);
        if (scaled) scale_loss(&g, 1024, 0);
        for (int i = 0; i < STEPS; i++) {
            struct optimizer_report report;
            backward(&g);
            must(optimizer_step(&g.session.optimizer, 1e-3, &report, &e), &e);
            assert_false(report.skipped);
            losses[scaled][i] = report.loss;
            norms[scaled][i] = report.grad_norm;
        }
        assert_int_equal(g.session.optimizer.updates, STEPS);
        golden_close(&g);
    }
    for (int i = 0; i < STEPS; i++) {
        assert_true(fabs(losses[1][i] - losses[0][i]) <= 1e-6 * losses[0][i]);
        assert_true(fabs(norms[1][i] - norms[0][i]) <= 1e-5 * norms[0][i]);
    }
}

/* The flat masters; the caller frees. */
static float *weights_of(const struct golden *g) {
    struct err e = {0};
    float *const values = mem_new((size_t)tensor_count(g->session.model.flat), sizeof *values);
    must(tensor_download(g->session.model.flat, values, &e), &e);
    return values;
}

static void spoil_gradient(struct golden *g) {
    struct err e = {0};
    const float infinite = INFINITY;
    must(device_upload(g->session.device, g->session.model.gradients->data, &infinite,
                       sizeof infinite, &e),
         &e);
}

static void test_overflow_is_skipped_and_halves_the_scale(void **state) {
    (void)state;
    struct golden g;
    struct err e = {0};
    struct optimizer_report report;
    golden_open(&g, "llama", "lora", "cpu", NULL);
    struct optimizer *const o = &g.session.optimizer;
    scale_loss(&g, 1024, 7);
    float *const before = weights_of(&g);
    backward(&g);
    spoil_gradient(&g);
    must(optimizer_step(o, 1e-3, &report, &e), &e);
    float *const after = weights_of(&g);
    assert_true(report.skipped);
    assert_memory_equal(before, after, (size_t)tensor_bytes(g.session.model.flat));
    assert_true(o->scaling.scale == 512);
    assert_int_equal(o->scaling.good, 0);
    assert_int_equal(o->scaling.skipped, 1);
    assert_int_equal(o->updates, 0);
    mem_free(before);
    mem_free(after);
    golden_close(&g);
}

static void test_scale_doubles_after_two_thousand_good_updates(void **state) {
    (void)state;
    struct golden g;
    struct err e = {0};
    struct optimizer_report report;
    golden_open(&g, "llama", "lora", "cpu", NULL);
    scale_loss(&g, 1024, 1999);
    backward(&g);
    must(optimizer_step(&g.session.optimizer, 1e-3, &report, &e), &e);
    assert_true(g.session.optimizer.scaling.scale == 2048);
    assert_int_equal(g.session.optimizer.scaling.good, 0);
    golden_close(&g);
}

/* Without a scale, and at its lower end, there is nothing left to try: the run ends. */
static void test_gradient_that_is_not_finite_changes_nothing_and_is_an_error(void **state) {
    (void)state;
    for (int scaled = 0; scaled < 2; scaled++) {
        struct golden g;
        struct err e = {0};
        struct optimizer_report report;
        golden_open(&g, "llama", "lora", "cpu", NULL);
        if (scaled) scale_loss(&g, 1, 0);
        float *const before = weights_of(&g);
        backward(&g);
        spoil_gradient(&g);
        assert_int_equal(optimizer_step(&g.session.optimizer, 1e-3, &report, &e), STATUS_DEVICE);
        float *const after = weights_of(&g);
        assert_memory_equal(before, after, (size_t)tensor_bytes(g.session.model.flat));
        mem_free(before);
        mem_free(after);
        golden_close(&g);
    }
}

/* Peak of two steps, an evaluation and a sample on null:cuda. */
static int64_t planned_peak(const char *variant, const char *changes) {
    struct golden g;
    struct err e = {0};
    struct plan plan;
    struct batch_shapes shapes = {.count = 1, .exact = true};
    golden_open(&g, "llama", variant, "null:cuda", changes);
    shapes.items[0] =
        (struct batch_shape){.tokens = 4096, .trained = 4000, .segments = 4, .max_seqlen = 1024};
    const struct plan_request request = {.config = &g.config,
                                         .options = &g.options,
                                         .spec = &g.spec,
                                         .train = &shapes,
                                         .eval = &shapes};
    must(plan_make(&plan, &request, &e), &e);
    assert_true(plan.stats.phase_peak[PHASE_EVAL] > 0);
    golden_close(&g);
    return plan.stats.allocated_peak;
}

#define CUDA "\"device\":\"cuda:0\""

static void test_every_precision_of_a_gpu_can_be_planned(void **state) {
    (void)state;
    static const char *const VARIANTS[] = {"lora", "dora", "full"};
    static const char *const PRECISIONS[] = {"", ",\"tf32\":true", ",\"bf16\":true",
                                             ",\"fp16\":true"};
    for (size_t v = 0; v < COUNT_OF(VARIANTS); v++) {
        int64_t peaks[COUNT_OF(PRECISIONS)];
        for (size_t p = 0; p < COUNT_OF(PRECISIONS); p++) {
            char *const changes = str_format("{" CUDA "%s,\"gradient_checkpointing\":%s}",
                                             PRECISIONS[p], v == 2 ? "true" : "false");
            peaks[p] = planned_peak(VARIANTS[v], changes);
            mem_free(changes);
        }
        assert_int_equal(peaks[0], peaks[1]);
        assert_int_equal(peaks[2], peaks[3]);
    }
}

static void test_stochastic_rounding_saves_the_masters(void **state) {
    (void)state;
    const int64_t with = planned_peak("full", "{" CUDA ",\"bf16\":true}");
    const int64_t without =
        planned_peak("full", "{" CUDA ",\"bf16\":true,\"stochastic_rounding\":true}");
    assert_true(without < with);
}

/* Dropout wants the adapters apart; what it dropped is drawn again, not kept. */
static void test_dropout_costs_no_copy_of_its_input(void **state) {
    (void)state;
    const int64_t without = planned_peak("lora", "{" CUDA ",\"bf16\":true}");
    const int64_t with = planned_peak("lora", "{" CUDA ",\"bf16\":true,\"lora_dropout\":0.1}");
    assert_true(with < without + without / 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss_scale_leaves_learning_alone),
        cmocka_unit_test(test_overflow_is_skipped_and_halves_the_scale),
        cmocka_unit_test(test_scale_doubles_after_two_thousand_good_updates),
        cmocka_unit_test(test_gradient_that_is_not_finite_changes_nothing_and_is_an_error),
        cmocka_unit_test(test_every_precision_of_a_gpu_can_be_planned),
        cmocka_unit_test(test_stochastic_rounding_saves_the_masters),
        cmocka_unit_test(test_dropout_costs_no_copy_of_its_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
