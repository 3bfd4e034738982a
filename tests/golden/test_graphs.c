/* test_graphs.c - goal: a micro-batch that is launched as a graph is the same micro-batch: the same
 * bits and the same books; and only what is the same shares a graph. Method: golden models trained
 * over rows of a few shapes, on the CPU behind a recorder (support_recorder.h) or, with
 * PLIMSOLL_TEST_DEVICE=cuda:N, by the card's own graphs, against the same steps run by calls. Then
 * the cache alone, over work of one operation. */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tests/golden/support_golden.h"
#include "tests/golden/support_recorder.h"

enum { STEPS = 24, SHAPES = 3, ROWS = 3, LENGTH = 16, VOCAB = 320 };

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

/* How a model is trained. */
struct subject {
    const char *family, *variant, *changes;
    bool tails;
};

/* What came of it. */
struct outcome {
    double losses[STEPS], norms[STEPS];
    struct arena_stats stats;
    int64_t captured, launched, refused;
    bool troubled;
};

/* Rows of LENGTH tokens, or one or two less; other ids in every step. */
static void make_batch(struct batch *b, int step) {
    const int64_t length = LENGTH - step % SHAPES, tokens = ROWS * length;
    *b = (struct batch){.tokens = tokens,
                        .real_tokens = tokens,
                        .segments = ROWS,
                        .max_seqlen = length,
                        .capacity_tokens = tokens,
                        .capacity_segments = ROWS};
    b->ids = mem_new((size_t)tokens, sizeof *b->ids);
    b->labels = mem_new((size_t)tokens, sizeof *b->labels);
    b->positions = mem_new((size_t)tokens, sizeof *b->positions);
    b->row_keys = mem_new((size_t)tokens, sizeof *b->row_keys);
    b->cu_seqlens = mem_new(ROWS + 1, sizeof *b->cu_seqlens);
    uint32_t random = 77u + (uint32_t)step;
    for (int64_t t = 0; t < tokens; t++) {
        random = random * 1664525u + 1013904223u;
        b->ids[t] = (int32_t)(3 + (random >> 8) % (VOCAB - 3));
        b->positions[t] = (int32_t)(t % length);
        b->row_keys[t] = t;
        const bool trained = t % length > 2 && t % length + 1 < length;
        b->labels[t] = trained ? (int32_t)(3 + (random >> 4) % (VOCAB - 3)) : -100;
        b->trained += trained;
    }
    for (int32_t i = 0; i <= ROWS; i++) {
        b->cu_seqlens[i] = i * (int32_t)length;
    }
}

static enum status one_step(struct golden *g, int step, struct optimizer_report *report,
                            struct err *e) {
    struct session *const s = &g->session;
    struct step_sums sums = {0};
    struct batch batch;
    make_batch(&batch, step);
    const double scale = step / SHAPES % 2 ? 0.5 : 0.75; /* the same shape under two scales */
    struct layout layout = layout_of_spec(&g->spec, &g->config);
    layout.loss_chunk_rows = 20;
    const struct step_options options = {.totals = optimizer_totals(&s->optimizer),
                                         .loss_scale = optimizer_loss_scale(&s->optimizer),
                                         .graphs = &s->graphs,
                                         .layout = layout,
                                         .seed = 9,
                                         .step = (uint64_t)step,
                                         .grad_scale = scale / (double)batch.trained};
    enum status status = optimizer_zero_grad(&s->optimizer, e);
    /* Twice: the second micro-batch adds to the gradients of the first. */
    for (int micro = 0; status == STATUS_OK && micro < 2; micro++) {
        status = step_train(&s->model, &batch, &options, &sums, e);
    }
    arena_enter(s->arena, PHASE_OPTIMIZER);
    if (status == STATUS_OK) status = optimizer_step(&s->optimizer, 1e-3, report, e);
    batch_release(&batch);
    return status;
}

static void train(const struct subject *subject, bool graphs, int64_t fail_after,
                  struct outcome *out) {
    struct golden g;
    struct recorder recorder;
    struct err e = {0}, trouble = {0};
    const bool card = golden_place().card;
    char changes[128];
    snprintf(changes, sizeof changes, "{\"full_determinism\":true,\"cuda_graphs\":%s%s}",
             graphs ? "true" : "false", subject->changes ? subject->changes : "");
    *out = (struct outcome){0};
    if (subject->tails) {
        golden_open_tails(&g, subject->family, subject->variant, GOLDEN_HERE, changes);
    } else {
        golden_open(&g, subject->family, subject->variant, GOLDEN_HERE, changes);
    }
    struct session *const s = &g.session;
    if (!card) {
        recorder_install(&recorder, s->device);
        recorder.fail_after = fail_after;
        graphs_init(&s->graphs, s->device, s->arena, g.options.cuda_graphs);
    }
    for (int step = 0; step < STEPS; step++) {
        struct optimizer_report report;
        must(one_step(&g, step, &report, &e), &e);
        out->losses[step] = report.loss;
        out->norms[step] = report.grad_norm;
    }
    arena_get_stats(s->arena, &out->stats);
    out->captured = s->graphs.captured;
    out->launched = s->graphs.launched;
    out->refused = s->graphs.refused;
    out->troubled = graphs_take_trouble(&s->graphs, &trouble);
    assert_false(graphs_take_trouble(&s->graphs, &trouble));
    graphs_release(&s->graphs);
    if (!card) {
        assert_int_equal(recorder.alive, 0);
        recorder_remove(&recorder, s->device);
    }
    golden_close(&g);
}

static void assert_same(const struct subject *s, const struct outcome *a, const struct outcome *b) {
    for (int step = 0; step < STEPS; step++) {
        if (a->losses[step] == b->losses[step] && a->norms[step] == b->norms[step]) continue;
        fail_msg("%s %s%s, step %d: loss %.17g and norm %.17g by calls, %.17g and %.17g by graphs",
                 s->family, s->variant, s->tails ? " in tails" : "", step + 1, a->losses[step],
                 a->norms[step], b->losses[step], b->norms[step]);
    }
    assert_int_equal(a->stats.trace, b->stats.trace);
    assert_int_equal(a->stats.allocations, b->stats.allocations);
    assert_int_equal(a->stats.allocated_peak, b->stats.allocated_peak);
    assert_int_equal(a->stats.reserved_peak, b->stats.reserved_peak);
    assert_memory_equal(a->stats.phase_peak, b->stats.phase_peak, sizeof a->stats.phase_peak);
    assert_memory_equal(a->stats.at_peak, b->stats.at_peak, sizeof a->stats.at_peak);
}

static const struct subject SUBJECTS[] = {
    {"llama", "lora", NULL, false},
    {"llama", "lora", NULL, true},
    {"llama", "full", NULL, false},
    {"llama", "dora", NULL, false},
    {"qwen3", "lora", ",\"gradient_checkpointing\":true", true},
    {"gemma2", "lora", ",\"gradient_checkpointing\":true", false},
    {"phi3", "full", NULL, false},
    {"llama", "lora", ",\"load_in_4bit\":true", true},
    {"llama", "lora", ",\"base_weight_dtype\":\"float8_e4m3\"", false},
};

static void test_graphs_change_neither_bits_nor_books(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(SUBJECTS); i++) {
        const struct subject *const s = &SUBJECTS[i];
        struct outcome calls, graphs;
        if (!golden_has(s->family, s->variant)) continue;
        train(s, false, 0, &calls);
        train(s, true, 0, &graphs);
        assert_int_equal(calls.captured + calls.launched, 0);
        /* 48 micro-batches of 12 kinds (shape, scale, first of a step or not), of which GRAPHS_MAX
         * are kept: seen, captured, launched twice; a growing arena may cost a few that are only
         * seen. */
        assert_true(graphs.captured >= 2 * SHAPES && graphs.launched >= 4 * SHAPES);
        assert_int_equal(graphs.refused, 0);
        assert_same(s, &calls, &graphs);
    }
}

static void test_graphs_failed_capture_is_run_by_calls_and_said(void **state) {
    (void)state;
    if (golden_place().card) skip();
    struct outcome calls, graphs;
    train(&SUBJECTS[0], false, 0, &calls);
    train(&SUBJECTS[0], true, 25, &graphs);
    assert_int_equal(graphs.captured, 0);
    assert_int_equal(graphs.launched, 0);
    assert_true(graphs.refused >= SHAPES);
    assert_true(graphs.troubled);
    assert_same(&SUBJECTS[0], &calls, &graphs);
}

static void test_graphs_are_not_used_with_dropout(void **state) {
    (void)state;
    const struct subject s = {"llama", "lora", ",\"lora_dropout\":0.2", false};
    struct outcome out;
    train(&s, true, 0, &out);
    assert_int_equal(out.captured, 0);
}

/* ---- the cache ------------------------------------------------------------------------------ */

struct fixture {
    struct device *device;
    struct arena *arena;
    struct arena_block *value; /* one float, doubled by each piece of work */
    struct recorder recorder;
    struct graphs graphs;
    int times; /* additions in a piece of work */
};

static int setup(void **state) {
    struct fixture *const f = mem_new(1, sizeof *f);
    struct err e = {0};
    must(device_open(&f->device, "cpu", &(struct device_options){0}, &e), &e);
    must(arena_open(&f->arena, f->device, 16 << 20, &e), &e);
    must(arena_alloc(f->arena, 4, CATEGORY_ACTIVATIONS, &f->value, &e), &e);
    recorder_install(&f->recorder, f->device);
    graphs_init(&f->graphs, f->device, f->arena, true);
    f->times = 1;
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *const f = *state;
    graphs_release(&f->graphs);
    assert_int_equal(f->recorder.alive, 0);
    recorder_remove(&f->recorder, f->device);
    arena_free(f->arena, f->value);
    arena_close(f->arena);
    device_close(f->device);
    mem_free(f);
    return 0;
}

/* value += value, `times` times, through a block that is gone afterwards. */
static enum status add(void *context, struct err *e) {
    struct fixture *const f = context;
    for (int i = 0; i < f->times; i++) {
        struct arena_block *block = NULL;
        TRY(arena_alloc(f->arena, 4, CATEGORY_ACTIVATIONS, &block, e));
        const struct add_args args = {.rows = 1,
                                      .cols = 1,
                                      .a = f->value->data,
                                      .ld_a = 1,
                                      .b = block->data,
                                      .ld_b = 1,
                                      .out = f->value->data,
                                      .ld_out = 1};
        enum status status = device_copy(f->device, block->data, f->value->data, 4, e);
        if (status == STATUS_OK) status = device_add(f->device, &args, e);
        arena_free(f->arena, block);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status run(struct fixture *f, uint64_t key, struct err *e) {
    const struct graph_key words = {{key}};
    const struct graph_work work = {add, f};
    return graphs_run(&f->graphs, &words, &work, e);
}

static void test_graphs_second_time_is_captured_third_launched(void **state) {
    struct fixture *const f = *state;
    struct err e = {0};
    static const float EXPECTED[] = {2, 4, 8, 16};
    const float one = 1;
    must(device_upload(f->device, f->value->data, &one, sizeof one, &e), &e);
    for (int i = 0; i < 4; i++) {
        float value = 0;
        must(run(f, 5, &e), &e);
        must(device_download(f->device, &value, f->value->data, sizeof value, &e), &e);
        assert_float_equal(value, EXPECTED[i], 0);
        assert_int_equal(f->recorder.computed, 2); /* a copy and a sum, the first time only */
        assert_int_equal(f->graphs.captured, i >= 1);
        assert_int_equal(f->graphs.launched, i < 2 ? 0 : i - 1);
    }
    assert_int_equal(f->graphs.nodes, 2);
}

/* The allocation fails while the work is run by calls (first time), captured (second) or launched
 * (third). What is left is what was there, and after a reset all is as at the beginning. */
static void test_graphs_out_of_memory_leaves_nothing_behind(void **state) {
    struct fixture *const f = *state;
    for (int time = 0; time < 4; time++) {
        struct arena_stats before, after;
        struct err e = {0}, short_of = {0};
        for (int i = 0; i < time; i++) {
            must(run(f, 5, &e), &e);
        }
        const int64_t captured = f->graphs.captured;
        arena_get_stats(f->arena, &before);
        setenv("PLIMSOLL_FAIL_ALLOCATION", "1", 1);
        must(arena_begin_pressure(f->arena, 0, &e), &e);
        unsetenv("PLIMSOLL_FAIL_ALLOCATION");
        const enum status status = run(f, 5, &short_of);
        /* A capture that comes to nothing is done by calls, which find the memory. */
        assert_int_equal(status, time == 1 ? STATUS_OK : STATUS_OOM);
        assert_int_equal(f->device->mode, DEVICE_COMPUTES);
        arena_get_stats(f->arena, &after);
        assert_memory_equal(after.by_category, before.by_category, sizeof after.by_category);
        graphs_reset(&f->graphs);
        assert_int_equal(f->graphs.kept, 0);
        assert_int_equal(f->graphs.nodes, 0);
        assert_int_equal(f->recorder.alive, 0);
        for (int i = 0; i < 3; i++) {
            must(run(f, 5, &e), &e);
        }
        assert_int_equal(f->graphs.captured, captured + 1);
        assert_int_equal(f->graphs.kept, 1);
        graphs_reset(&f->graphs);
        (void)graphs_take_trouble(&f->graphs, &e);
    }
}

static void test_graphs_in_use_are_not_dropped_for_new_ones(void **state) {
    struct fixture *const f = *state;
    struct err e = {0};
    for (int round = 0; round < 4; round++) {
        for (uint64_t key = 1; key <= GRAPHS_MAX + 2; key++) {
            must(run(f, key, &e), &e);
        }
    }
    assert_int_equal(f->graphs.captured, GRAPHS_MAX);
    assert_int_equal(f->graphs.kept, GRAPHS_MAX);
    assert_int_equal(f->graphs.launched, 2 * GRAPHS_MAX);
    for (int i = 0; i < GRAPH_IDLE_MAX; i++) {
        must(run(f, GRAPHS_MAX, &e), &e); /* the others are idle meanwhile */
    }
    must(run(f, GRAPHS_MAX + 1, &e), &e);
    assert_int_equal(f->graphs.captured, GRAPHS_MAX + 1);
    assert_int_equal(f->graphs.kept, GRAPHS_MAX);
    assert_int_equal(f->recorder.alive, GRAPHS_MAX);
}

static void test_graphs_forget_keys_that_came_once(void **state) {
    struct fixture *const f = *state;
    struct err e = {0};
    must(run(f, 1, &e), &e);
    for (uint64_t key = 2; key < 2 + GRAPH_KEYS_MAX; key++) {
        must(run(f, key, &e), &e);
    }
    must(run(f, 1, &e), &e);
    assert_int_equal(f->graphs.captured, 0);
    must(run(f, 1, &e), &e);
    assert_int_equal(f->graphs.captured, 1);
}

static void test_graphs_other_calls_under_the_same_key_are_found(void **state) {
    struct fixture *const f = *state;
    struct err e = {0};
    for (int i = 0; i < 3; i++) {
        must(run(f, 1, &e), &e);
    }
    f->times = 2;
    assert_int_equal(run(f, 1, &e), STATUS_INTERNAL);
    assert_non_null(strstr(e.text, "cuda_graphs"));
}

static enum status download(void *context, struct err *e) {
    struct fixture *const f = context;
    float value = 0;
    return device_download(f->device, &value, f->value->data, sizeof value, e);
}

static void test_graphs_transfers_are_refused_in_a_capture(void **state) {
    struct fixture *const f = *state;
    struct err e = {0}, trouble = {0};
    const struct graph_key key = {{1}};
    const struct graph_work work = {download, f};
    for (int i = 0; i < 3; i++) {
        must(graphs_run(&f->graphs, &key, &work, &e), &e); /* by calls it works */
    }
    assert_int_equal(f->graphs.refused, 1);
    assert_true(graphs_take_trouble(&f->graphs, &trouble));
    assert_non_null(strstr(trouble.text, "device_download cannot be a part of a graph"));
}

static void test_graphs_device_without_them_refuses(void **state) {
    (void)state;
    static const char *const NAMES[] = {"cpu", "null:cpu", "null:cuda"};
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        struct device *device = NULL;
        struct err e = {0}, why = {0};
        must(device_open(&device, NAMES[i], &(struct device_options){0}, &e), &e);
        assert_false(device->graphs);
        assert_int_equal(device_capture_begin(device, &why), STATUS_UNSUPPORTED);
        assert_int_equal(device->mode, DEVICE_COMPUTES);
        device_close(device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_change_neither_bits_nor_books),
        cmocka_unit_test(test_graphs_failed_capture_is_run_by_calls_and_said),
        cmocka_unit_test(test_graphs_are_not_used_with_dropout),
        cmocka_unit_test_setup_teardown(test_graphs_second_time_is_captured_third_launched, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_graphs_out_of_memory_leaves_nothing_behind, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_graphs_in_use_are_not_dropped_for_new_ones, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_graphs_forget_keys_that_came_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_graphs_other_calls_under_the_same_key_are_found, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_graphs_transfers_are_refused_in_a_capture, setup,
                                        teardown),
        cmocka_unit_test(test_graphs_device_without_them_refuses),
    };
    return cmocka_run_group_tests_name("graphs", tests, NULL, NULL);
}
