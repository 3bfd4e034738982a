/* test_laws.c - goal: laws 1 and 2. The plan is the run: the null device and the device of
 * golden_place make the same allocations and reach the same peak, to the byte, for every family,
 * LoRA and full, checkpointing on and off, packing on and off. Layout never changes learning:
 * micro-batches, accumulation, checkpointing and packing leave the loss curve alone (golden_bounds:
 * on the CPU relative 1e-5, the rounding of re-ordered sums; a card also chooses other algorithms
 * for other sizes). Method: short runs on the golden models over generated samples. */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/weights.h"
#include "engine/text/dataset_store.h"
#include "engine/train/plan.h"
#include "tests/golden/support_golden.h"

static const char *const FAMILIES[] = {"llama",           "llama3_rope", "llama_bias_mha", "yarn",
                                       "mistral_sliding", "qwen2",       "qwen3",          "phi3",
                                       "gemma",           "gemma2",      "gemma3"};

/* A golden model, how it is trained, and further spec keys or NULL. */
struct subject {
    const char *family, *variant, *changes;
};

enum { SAMPLES = 24, GLOBAL_ROWS = 8, MAX_LENGTH = 32, STEPS = 6, VOCAB = 320 };

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

/* Samples of 3 to MAX_LENGTH tokens, the first third of each not trained. */
static void make_dataset(struct dataset *d) {
    struct dataset_writer w = {0};
    struct err e = {0};
    uint32_t random = 11;
    must(dataset_writer_open(&w, NULL, &e), &e);
    w.counts.rows = SAMPLES;
    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t ids[MAX_LENGTH];
        uint8_t trained[MAX_LENGTH];
        const int64_t length = i == 0 ? MAX_LENGTH : 3 + (i * 7) % (MAX_LENGTH - 2);
        for (int64_t t = 0; t < length; t++) {
            random = random * 1664525u + 1013904223u;
            ids[t] = (int32_t)(3 + (random >> 8) % (VOCAB - 3));
            trained[t] = t > length / 3;
        }
        const struct sample sample = {ids, trained, length, i + 1};
        must(dataset_writer_add(&w, &sample, &e), &e);
    }
    must(dataset_writer_finish(&w, FORMAT_TEXT, d, &e), &e);
}

struct layout_case {
    int64_t micro_rows;
    bool packing, checkpointing, offloading;
    bool away;  /* AdamW's states are in host memory */
    bool visit; /* weights are there, and in full fine-tuning the states too */
    bool some;  /* of the layers only the first is checkpointed */
    bool moves; /* the layout is another one at every step, and every other step is begun twice */
    int64_t chunk_rows;
    bool tails; /* LoRA in the tails of its operands, as on a GPU */
};

static void open_case(struct golden *g, const struct subject *s, const char *device,
                      const struct layout_case *c) {
    const char *const changes = c->visit  ? "{\"param_offloading\":true}"
                                : c->away ? "{\"optimizer_offloading\":true}"
                                          : s->changes;
    assert_true(changes == s->changes || !s->changes);
    if (c->tails) {
        golden_open_tails(g, s->family, s->variant, device, changes);
    } else {
        golden_open(g, s->family, s->variant, device, changes);
    }
}

static struct batch_options options_of(const struct layout_case *c) {
    return (struct batch_options){.micro_rows = c->micro_rows,
                                  .global_rows = GLOBAL_ROWS,
                                  .max_length = MAX_LENGTH,
                                  .packing = c->packing,
                                  .shuffle = true,
                                  .seed = 5};
}

static struct layout layout_at(const struct layout_case *c, int64_t layers, int64_t step) {
    struct layout l = {.micro_rows = c->micro_rows,
                       .loss_chunk_rows = c->chunk_rows ? c->chunk_rows : 64,
                       .checkpointed_layers = c->some            ? 1
                                              : c->checkpointing ? layers
                                                                 : 0,
                       .activation_offloading = c->offloading,
                       .optimizer_offloading = c->away,
                       .param_offloading = c->visit};
    if (!c->moves) return l;
    l.micro_rows = GLOBAL_ROWS >> step % 4;
    l.micro_tokens = step % 2 ? 2 * MAX_LENGTH / 3 : 0;
    l.checkpointed_layers = step % (layers + 1);
    l.loss_chunk_rows = 64 >> step % 3;
    return l;
}

/* The first micro-batch of a step that is then begun again, as after a lack of memory. */
static void begin_in_vain(struct golden *g, struct batcher *b, const struct step_options *options) {
    struct err e = {0};
    struct batch batch = {0};
    struct step_sums ignored = {0};
    must(optimizer_zero_grad(&g->session.optimizer, &e), &e);
    batcher_micro(b, 0, &batch);
    must(step_train(&g->session.model, &batch, options, &ignored, &e), &e);
    batch_release(&batch);
}

/* Trains STEPS steps and leaves the losses. */
static void train(struct golden *g, const struct dataset *data, const struct layout_case *c,
                  double losses[STEPS]) {
    struct err e = {0};
    struct batcher b = {0};
    struct batch batch = {0};
    const struct batch_options options = options_of(c);
    struct optimizer *const o = &g->session.optimizer;
    must(batcher_open(&b, data, &options, &e), &e);
    for (int64_t step = 0; step < STEPS; step++) {
        struct step_sums sums = {0};
        struct optimizer_report report;
        const struct layout layout = layout_at(c, g->config.layers, step);
        batcher_cut(&b, layout.micro_rows, layout.micro_tokens);
        batcher_step(&b, step);
        const struct step_options step_options = {.layout = layout,
                                                  .totals = optimizer_totals(o),
                                                  .loss_scale = optimizer_loss_scale(o),
                                                  .seed = 9,
                                                  .step = (uint64_t)step,
                                                  .grad_scale = 1.0 / (double)b.step_trained};
        if (c->moves && step % 2) begin_in_vain(g, &b, &step_options);
        must(optimizer_zero_grad(o, &e), &e);
        for (int64_t micro = 0; micro < b.micro_count; micro++) {
            batcher_micro(&b, micro, &batch);
            must(step_train(&g->session.model, &batch, &step_options, &sums, &e), &e);
        }
        assert_int_equal(sums.trained, b.step_trained);
        arena_enter(g->session.arena, PHASE_OPTIMIZER);
        must(optimizer_step(o, 1e-3, &report, &e), &e);
        losses[step] = report.loss / (double)sums.trained;
    }
    batch_release(&batch);
    batcher_close(&b);
}

static void assert_same_books(const char *what, const struct arena_stats *a,
                              const struct arena_stats *b) {
    if (a->trace != b->trace || a->allocations != b->allocations)
        fail_msg("%s: the allocations differ", what);
    if (a->allocated_peak != b->allocated_peak || a->reserved_peak != b->reserved_peak) {
        fail_msg("%s: peak %lld on the null device, %lld on the other", what,
                 (long long)a->allocated_peak, (long long)b->allocated_peak);
    }
    assert_memory_equal(a->phase_peak, b->phase_peak, sizeof a->phase_peak);
    assert_memory_equal(a->at_peak, b->at_peak, sizeof a->at_peak);
    assert_int_equal(a->allocated, b->allocated);
}

static void compare_books(const struct subject *s, const struct dataset *data,
                          const struct layout_case *c) {
    struct arena_stats stats[2];
    double losses[STEPS];
    for (int device = 0; device < 2; device++) {
        struct golden g;
        open_case(&g, s, device ? GOLDEN_HERE : GOLDEN_HERE_PLANNED, c);
        train(&g, data, c, losses);
        arena_get_stats(g.session.arena, &stats[device]);
        golden_close(&g);
    }
    char what[96];
    snprintf(what, sizeof what, "%s %s%s%s%s", s->family, s->variant, c->packing ? " packed" : "",
             c->checkpointing ? " checkpointed" : "", c->tails ? " in tails" : "");
    assert_same_books(what, &stats[0], &stats[1]);
}

static void test_null_device_keeps_the_same_books(void **state) {
    struct dataset data;
    make_dataset(&data);
    for (int bits = 0; bits < 12; bits++) {
        const bool tails = bits >= 8;
        const struct subject s = {*state, !tails && bits & 1 ? "full" : "lora", NULL};
        if (!golden_has(s.family, s.variant)) continue;
        const struct layout_case c = {.micro_rows = 4,
                                      .packing = bits & 2,
                                      .away = bits & 2 && bits != 10,
                                      .visit = bits == 6 || bits == 7 || bits == 10,
                                      .checkpointing = tails ? bits & 1 : bits & 4,
                                      .some = bits == 5 || bits == 11,
                                      .offloading = bits >= 9 && bits & 1,
                                      .tails = tails};
        compare_books(&s, &data, &c);
    }
    dataset_release(&data);
}

/* The planner proper: shapes from the batcher, then the peak of a real run over the same data. */
static void test_planned_peak_is_measured_peak(void **state) {
    const char *const family = *state;
    struct dataset data;
    struct err e = {0};
    make_dataset(&data);
    for (int packing = 0; packing < 2; packing++) {
        struct golden g;
        struct batcher b = {0};
        struct batch_shapes shapes;
        struct plan plan;
        struct arena_stats measured;
        double losses[STEPS];
        const struct layout_case c = {.micro_rows = 4, .packing = packing};
        const struct batch_options options = options_of(&c);
        golden_open(&g, family, "lora", GOLDEN_HERE, "{\"loss_chunk_rows\":64}");
        must(batcher_open(&b, &data, &options, &e), &e);
        shapes_scan(&shapes, &b, STEPS);
        assert_true(shapes.exact);
        const struct plan_request request = {
            .config = &g.config, .options = &g.options, .spec = &g.spec, .train = &shapes};
        must(plan_make(&plan, &request, &e), &e);
        train(&g, &data, &c, losses);
        arena_get_stats(g.session.arena, &measured);
        assert_int_equal(plan.stats.allocated_peak, measured.allocated_peak);
        assert_memory_equal(plan.stats.at_peak, measured.at_peak, sizeof measured.at_peak);
        assert_int_equal(plan.trainable_parameters, g.session.model.trainable_count);
        batcher_close(&b);
        golden_close(&g);
    }
    dataset_release(&data);
}

/* The largest difference between layouts so far, printed at the end. */
static double *largest_difference(void) {
    static double largest;
    return &largest;
}

static void compare_losses(const struct subject *s, const struct layout_case *c,
                           const double losses[STEPS], const double reference[STEPS]) {
    for (int step = 0; step < STEPS; step++) {
        const double off = fabs(losses[step] / reference[step] - 1);
        *largest_difference() = fmax(*largest_difference(), off);
        if (off <= golden_bounds().layout) continue;
        fail_msg("%s %s: micro-batch %lld%s%s%s%s%s%s: loss %.8f at step %d, the reference layout "
                 "has %.8f (relative %.2e)",
                 s->family, s->variant, (long long)c->micro_rows, c->packing ? " packed" : "",
                 c->checkpointing ? " checkpointed" : "", c->offloading ? " offloaded" : "",
                 c->tails ? " in tails" : "", c->some ? " checkpointed in part" : "",
                 c->moves ? " moving" : "", losses[step], step + 1, reference[step], off);
    }
}

static void compare_layouts(const struct subject *s) {
    static const struct layout_case CASES[] = {
        {.micro_rows = 8},
        {.micro_rows = 4},
        {.micro_rows = 1},
        {.micro_rows = 8, .checkpointing = true},
        {.micro_rows = 8, .packing = true},
        {.micro_rows = 2, .packing = true},
        {.micro_rows = 4, .packing = true, .checkpointing = true},
        {.micro_rows = 4, .checkpointing = true, .offloading = true},
        {.micro_rows = 8, .some = true, .chunk_rows = 7},
        {.micro_rows = 4, .packing = true, .some = true, .offloading = true},
        {.micro_rows = 8, .moves = true},
        {.micro_rows = 8, .packing = true, .moves = true, .tails = true},
        {.micro_rows = 8, .tails = true},
        {.micro_rows = 4, .packing = true, .checkpointing = true, .tails = true},
    };
    struct dataset data;
    double reference[STEPS];
    make_dataset(&data);
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        const struct layout_case *const c = &CASES[i];
        struct golden g;
        double losses[STEPS];
        open_case(&g, s, GOLDEN_HERE, c);
        train(&g, &data, c, losses);
        golden_close(&g);
        if (i == 0) memcpy(reference, losses, sizeof reference);
        compare_losses(s, c, losses, reference);
    }
    dataset_release(&data);
}

static void test_layout_leaves_the_loss_alone(void **state) {
    const struct subject lora = {*state, "lora", NULL}, full = {*state, "full", NULL};
    compare_layouts(&lora);
    if (golden_has(full.family, full.variant)) compare_layouts(&full);
}

/* Where a checkpoint waits, or a state of AdamW, changes no bit of what is learned. On the CPU
 * device, whose sums have one order. */
static void compare_bits(const struct subject *s, const struct layout_case *here,
                         const struct layout_case *there) {
    struct dataset data;
    double losses[2][STEPS];
    make_dataset(&data);
    for (int away = 0; away < 2; away++) {
        struct golden g;
        open_case(&g, s, "cpu", away ? there : here);
        train(&g, &data, away ? there : here, losses[away]);
        assert_true((g.session.space.host_bytes > 0) == away);
        golden_close(&g);
    }
    assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
    dataset_release(&data);
}

static void test_offloading_changes_no_bit(void **state) {
    const struct subject lora = {*state, "lora", NULL}, full = {*state, "full", NULL};
    struct layout_case here = {.micro_rows = 4, .checkpointing = true, .tails = true};
    struct layout_case there = here;
    there.offloading = true;
    compare_bits(&lora, &here, &there);
    for (int bits = 0; bits < 4; bits++) {
        there = here = (struct layout_case){
            .micro_rows = 4, .checkpointing = bits & 1, .packing = bits & 1, .tails = bits & 2};
        there.visit = true;
        compare_bits(&lora, &here, &there);
    }
    there = here = (struct layout_case){.micro_rows = 4};
    there.away = true;
    compare_bits(golden_has(full.family, full.variant) ? &full : &lora, &here, &there);
    for (int bits = 0; bits < 2 && golden_has(full.family, full.variant); bits++) {
        there = here =
            (struct layout_case){.micro_rows = 4, .checkpointing = bits & 1, .packing = bits & 1};
        there.visit = true;
        compare_bits(&full, &here, &there);
    }
}

/* Dropout masks are keyed by (seed, step, sample, position, module): the layout must not show in
 * them either. */
static void test_layout_leaves_dropout_alone(void **state) {
    const struct subject s = {*state, "lora", "{\"lora_dropout\":0.2}"};
    compare_layouts(&s);
}

/* Frozen matrices in 4 or 8 bits obey the same laws. Rows of the golden models' last matrix are not
 * whole blocks. */
static const char *const QUANTISED[] = {
    "{\"load_in_4bit\":true}",
    "{\"load_in_4bit\":true,\"bnb_4bit_use_double_quant\":true}",
    "{\"base_weight_dtype\":\"float8_e4m3\"}",
};

static void test_quantised_weights_obey_the_laws(void **state) {
    struct dataset data;
    make_dataset(&data);
    for (size_t i = 0; i < COUNT_OF(QUANTISED); i++) {
        const struct subject s = {*state, "lora", QUANTISED[i]};
        if (i == 1 && strcmp(s.family, "llama") == 0) compare_layouts(&s);
        for (int bits = 0; bits < 4; bits += 3) {
            const struct layout_case c = {
                .micro_rows = 4, .packing = bits & 1, .checkpointing = bits & 1, .tails = bits & 2};
            compare_books(&s, &data, &c);
        }
    }
    const struct subject dora = {*state, "dora", QUANTISED[0]};
    if (strcmp(dora.family, "llama") == 0) {
        const struct layout_case c = {.micro_rows = 4, .checkpointing = true};
        compare_books(&dora, &data, &c);
    }
    dataset_release(&data);
}

/* Weights as the codes say them, as numbers: what a merge with fresh adapters, which are zero,
 * gives. Both models begin with the same ones. */
static void read_dequantised(struct golden *from, struct golden *to) {
    char folder[] = "/tmp/plimsoll-test-XXXXXX";
    struct err e = {0};
    struct st_set set = {0};
    struct weights_report report;
    assert_non_null(mkdtemp(folder));
    must(weights_init_adapter(&from->session.model, 7, &e), &e);
    must(weights_init_adapter(&to->session.model, 7, &e), &e);
    char *const path = file_join(folder, "model.safetensors");
    must(weights_save_merged(&from->session.model, ST_F32, path, &e), &e);
    must(st_open_file(&set, path, &e), &e);
    must(weights_load(&to->session.model, &set, &report, &e), &e);
    st_close(&set);
    mem_free(path);
    must(file_remove_all(folder, &e), &e);
}

/* A run on codes learns what a run learns on the numbers that they stand for, bit by bit. */
static void test_quantised_run_is_a_run_on_its_numbers(void **state) {
    struct dataset data;
    make_dataset(&data);
    for (size_t i = 0; i < COUNT_OF(QUANTISED); i++) {
        const struct layout_case c = {.micro_rows = 4, .packing = true, .checkpointing = i > 0};
        const struct subject codes = {*state, "lora", QUANTISED[i]}, plain = {*state, "lora", NULL};
        struct golden a, b;
        double losses[2][STEPS], unquantised[STEPS];
        open_case(&a, &codes, "cpu", &c);
        open_case(&b, &plain, "cpu", &c);
        train(&b, &data, &c, unquantised);
        golden_close(&b);
        open_case(&b, &plain, "cpu", &c);
        read_dequantised(&a, &b);
        train(&a, &data, &c, losses[0]);
        train(&b, &data, &c, losses[1]);
        assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
        assert_true(losses[0][0] != unquantised[0]);
        golden_close(&a);
        golden_close(&b);
    }
    dataset_release(&data);
}

enum { TESTS_MAX = 64 };

int main(int argc, char **argv) {
    static struct CMUnitTest tests[TESTS_MAX];
    static char names[TESTS_MAX][64];
    static const struct {
        const char *what;
        CMUnitTestFunction run;
    } KINDS[] = {
        {"same books", test_null_device_keeps_the_same_books},
        {"planned is measured", test_planned_peak_is_measured_peak},
        {"layout", test_layout_leaves_the_loss_alone},
        {"offloading", test_offloading_changes_no_bit},
    };
    size_t count = 0;
    for (size_t f = 0; f < COUNT_OF(FAMILIES); f++) {
        for (size_t k = 0; k < COUNT_OF(KINDS); k++, count++) {
            snprintf(names[count], sizeof names[count], "%s/%s", FAMILIES[f], KINDS[k].what);
            tests[count] = (struct CMUnitTest){.name = names[count],
                                               .test_func = KINDS[k].run,
                                               .initial_state = (void *)(uintptr_t)FAMILIES[f]};
        }
    }
    static const char *const FEW[] = {"llama", "qwen2", "phi3"};
    for (size_t f = 0; f < COUNT_OF(FEW); f++) {
        snprintf(names[count], sizeof names[count], "%s/quantised", FEW[f]);
        tests[count] = (struct CMUnitTest){.name = names[count],
                                           .test_func = test_quantised_weights_obey_the_laws,
                                           .initial_state = (void *)(uintptr_t)FEW[f]};
        count++;
    }
    tests[count++] = (struct CMUnitTest){.name = "codes/numbers",
                                         .test_func = test_quantised_run_is_a_run_on_its_numbers,
                                         .initial_state = (void *)(uintptr_t) "llama"};
    tests[count++] = (struct CMUnitTest){.name = "dropout/layout",
                                         .test_func = test_layout_leaves_dropout_alone,
                                         .initial_state = (void *)(uintptr_t) "llama"};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const int failed = _cmocka_run_group_tests("laws", tests, count, NULL, NULL);
    const struct golden_place place = golden_place();
    print_message("# %s %s layouts: %.2e apart at most, %.1e is right\n", place.device,
                  precision_name(place.precision), *largest_difference(), golden_bounds().layout);
    return failed;
}
