/* test_plan.c - goal: the plan covers what a run does beside its steps. Loading, checkpoints,
 * resuming and export allocate on the device exactly what the plan knows of; a plan says when
 * memory is fullest, and grows with every size it depends on. Method: the sample model on the CPU,
 * its books before and after each of these; plans of models from the catalog on the null device.
 */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/catalog.h"
#include "engine/model/weights.h"
#include "engine/train/checkpoint.h"
#include "engine/train/corpus.h"
#include "engine/train/cost.h"
#include "engine/train/plan.h"
#include "tests/unit/support_scratch.h"

static const char MODEL[] = "examples/models/harbour-1m";

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

static void parse(struct spec *spec, const char *text) {
    struct err e = {0};
    cJSON *json = NULL;
    must(json_parse(text, strlen(text), "spec", &json, &e), &e);
    must(spec_parse_question(spec, json, &e), &e);
    cJSON_Delete(json);
}

/* The plan of a model of the catalog with full rows; the spec is given as JSON. */
static struct plan plan_of(const char *text) {
    struct err e = {0};
    struct spec spec;
    struct model_config config;
    struct session_options options;
    struct plan plan;
    struct batch_shapes *const train = mem_new(1, sizeof *train);
    parse(&spec, text);
    must(catalog_load(&config, spec.model, &e), &e);
    must(session_options_read(&options, &spec, &e), &e);
    const struct batch_options batch = corpus_batch_options(&spec, 0, false);
    shapes_full(train, &batch);
    const struct plan_request request = {
        .config = &config, .options = &options, .spec = &spec, .train = train, .counts_work = true};
    must(plan_make(&plan, &request, &e), &e);
    mem_free(train);
    session_options_release(&options);
    spec_release(&spec);
    return plan;
}

static int64_t peak_of(const char *text) {
    return plan_of(text).stats.allocated_peak;
}

static void test_plan_grows_with_every_size(void **state) {
    (void)state;
    const int64_t base = peak_of("{\"model\":\"Qwen2.5-0.5B\",\"device\":\"cuda:0\",\"bf16\":true,"
                                 "\"data\":{\"max_length\":512}}");
    static const char *const LARGER[] = {
        "{\"model\":\"Qwen2.5-0.5B\",\"device\":\"cuda:0\",\"bf16\":true,"
        "\"data\":{\"max_length\":1024}}",
        "{\"model\":\"Qwen2.5-0.5B\",\"device\":\"cuda:0\",\"bf16\":true,\"r\":64,"
        "\"data\":{\"max_length\":512}}",
        "{\"model\":\"Qwen2.5-0.5B\",\"device\":\"cuda:0\",\"data\":{\"max_length\":512}}",
        "{\"model\":\"Qwen2.5-1.5B\",\"device\":\"cuda:0\",\"bf16\":true,"
        "\"data\":{\"max_length\":512}}",
        "{\"model\":\"Qwen2.5-0.5B\",\"device\":\"cuda:0\",\"bf16\":true,"
        "\"per_device_train_batch_size\":8,\"data\":{\"max_length\":512}}",
    };
    for (size_t i = 0; i < COUNT_OF(LARGER); i++) {
        if (peak_of(LARGER[i]) <= base) fail_msg("%s is not larger", LARGER[i]);
    }
    assert_true(peak_of("{\"model\":\"Qwen2.5-0.5B\",\"device\":\"cuda:0\",\"bf16\":true,"
                        "\"gradient_checkpointing\":true,\"data\":{\"max_length\":512}}") < base);
}

static void test_plan_says_when_memory_is_fullest(void **state) {
    (void)state;
    const struct plan p = plan_of("{\"model\":\"SmolLM2-135M\",\"data\":{\"max_length\":256},"
                                  "\"per_device_train_batch_size\":2,"
                                  "\"gradient_accumulation_steps\":3}");
    assert_int_equal(p.peak_part, PLAN_TRAIN);
    assert_int_equal(p.peak_shape.tokens, 512);
    assert_int_equal(p.peak_shape.segments, 2);
    assert_true(p.micros_per_step == 3);
    assert_true(p.tokens_per_step == 3 * 512);
    assert_true(p.stats.phase_peak[PHASE_CHECKPOINT] > 0);
    assert_true(p.stats.phase_peak[PHASE_CHECKPOINT] == p.stats.phase_peak[PHASE_EXPORT]);
    assert_true(p.stats.phase_peak[PHASE_LOAD] < p.stats.allocated_peak);
    assert_true(p.staged_load > 0);
}

/* DoRA's magnitudes are computed from weights in full precision, which takes room while loading. */
static void test_plan_knows_what_loading_allocates(void **state) {
    (void)state;
    const struct plan plain = plan_of("{\"model\":\"SmolLM2-135M\",\"data\":{\"max_length\":16},"
                                      "\"per_device_train_batch_size\":1}");
    const struct plan dora = plan_of("{\"model\":\"SmolLM2-135M\",\"data\":{\"max_length\":16},"
                                     "\"per_device_train_batch_size\":1,\"use_dora\":true}");
    assert_true(dora.stats.phase_peak[PHASE_LOAD] - dora.stats.phase_peak[PHASE_EXPORT] >
                plain.stats.phase_peak[PHASE_LOAD] - plain.stats.phase_peak[PHASE_EXPORT]);
}

static uint64_t allocations(const struct session *s) {
    struct arena_stats stats;
    arena_get_stats(s->arena, &stats);
    return stats.allocations;
}

static void expect_same_files(const char *a, const char *b) {
    struct str x = {0}, y = {0};
    struct err e = {0};
    must(file_read(a, 64 << 20, &x, &e), &e);
    must(file_read(b, 64 << 20, &y, &e), &e);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    str_release(&x);
    str_release(&y);
}

/* A result that was put together from a checkpoint has the bytes that the device holds. */
static void expect_result(const struct session *s, const char *run) {
    const struct model *const m = &s->model;
    const bool bf16 = strcmp(m->config.torch_dtype, "bfloat16") == 0;
    struct err e = {0};
    size_t count = 0;
    const struct param *const params = model_whole_params(m, &count);
    char *const direct = file_join(run, "direct.safetensors");
    char *const made = file_join(run, m->options.full ? "model/model.safetensors"
                                                      : "adapter/adapter_model.safetensors");
    must(weights_save(m, params, count, m->options.full && bf16 ? ST_BF16 : ST_F32, direct, &e),
         &e);
    expect_same_files(direct, made);
    mem_free(direct);
    mem_free(made);
}

static void keep_books(const char *text) {
    struct err e = {0};
    struct spec spec;
    struct model_config config;
    struct session_options options;
    struct session s;
    struct weights_report report;
    char *const run = scratch_new();
    parse(&spec, text);
    must(model_config_load(&config, MODEL, &e), &e);
    must(session_options_read(&options, &spec, &e), &e);
    const struct session_place place = {.device = "cpu", .train = true};
    must(session_open(&s, &place, &config, &options, &e), &e);
    const struct session_source source = {.model = MODEL, .seed = 1};
    must(session_load(&s, &source, &report, &e), &e);
    const uint64_t before = allocations(&s);
    struct trainer_state trained = {.step = 3}, read = {0};
    const struct checkpoint_place checkpoint = {.run = run, .base = MODEL};
    must(checkpoint_save(&s, &trained, &checkpoint, &e), &e);
    must(checkpoint_load(&s, run, 3, &read, &e), &e);
    assert_int_equal(read.step, 3);
    const struct result_source from = {.base = MODEL, .step = 3};
    const char *name = NULL;
    must(result_save(&s, run, &from, &name, &e), &e);
    expect_result(&s, run);
    assert_int_equal(allocations(&s), before);
    session_close(&s);
    session_options_release(&options);
    spec_release(&spec);
    scratch_free(run);
}

static void test_plan_checkpoints_resuming_and_export_allocate_nothing(void **state) {
    (void)state;
    keep_books("{\"model\":\"x\"}");
    keep_books("{\"model\":\"x\",\"use_dora\":true}");
    keep_books("{\"model\":\"x\",\"finetuning_type\":\"full\"}");
}

/* 6 FLOPs a parameter and token for full training, less the input embedding, which is read and not
 * multiplied; attention and the rest come on top. */
static void test_plan_work_is_that_of_the_model(void **state) {
    (void)state;
    const struct plan p = plan_of("{\"model\":\"SmolLM2-135M\",\"finetuning_type\":\"full\","
                                  "\"data\":{\"max_length\":128},"
                                  "\"per_device_train_batch_size\":1}");
    const struct device_work step = plan_step_work(&p);
    const double least = 6.0 * (double)p.parameters * 128;
    assert_true(cost_flops(&step) > least);
    assert_true(cost_flops(&step) < 1.25 * least);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_grows_with_every_size),
        cmocka_unit_test(test_plan_says_when_memory_is_fullest),
        cmocka_unit_test(test_plan_knows_what_loading_allocates),
        cmocka_unit_test(test_plan_checkpoints_resuming_and_export_allocate_nothing),
        cmocka_unit_test(test_plan_work_is_that_of_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
