/* test_golden.c - goal: the engine computes what transformers and PEFT compute, for every family.
 * Method: the reference files in tests/golden/data are replayed and compared number by number, on
 * the device and in the precision that golden_place names; a word after the program's name chooses
 * tests ("llama/lora/...", * for any letters).
 *
 * Tolerances are golden_bounds. In fp32 the largest seen is 3e-5, for weights: AdamW divides by the
 * gradient's own size, so an element whose gradient is near zero carries the rounding of a
 * different summation order into its full step; hence narrow precisions compare curves, not the
 * weights after them, and neither greedy words nor merged weights. In bf16 the curve may lie from
 * the fp32 reference's twice as far as the reference's own does when it computes in bf16
 * (data/bf16_spread.json, made by bf16_spread.py). */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/adapter.h"
#include "engine/model/weights.h"
#include "engine/train/generate.h"
#include "engine/train/schedule.h"
#include "tests/golden/support_golden.h"

static const char *const FAMILIES[] = {"llama",           "llama3_rope", "llama_bias_mha", "yarn",
                                       "mistral_sliding", "qwen2",       "qwen3",          "phi3",
                                       "gemma",           "gemma2",      "gemma3"};
static const char *const VARIANTS[] = {"full", "lora", "rslora", "dora"};

static const char SPREAD[] = "tests/golden/data/bf16_spread.json";

struct subject {
    const char *family, *variant;
    bool tails; /* LoRA in the tails of its operands, as on a GPU (where it always is) */
};

/* The comparison of each kind that came closest to its bound, printed at the end. */
enum kind { KIND_LOGITS, KIND_LOSS, KIND_GRADIENTS, KIND_CURVE, KIND_NORM, KIND_WEIGHTS, KINDS };

struct closest {
    double distance, bound;
    char where[96];
};

static struct closest *closest_of(enum kind kind) {
    static struct closest all[KINDS];
    return &all[kind];
}

/* Fails the running test unless distance <= bound; NaN fails. */
static void check(enum kind kind, const struct subject *s, const char *what, double distance,
                  double bound) {
    struct closest *const c = closest_of(kind);
    if (!(distance <= bound))
        fail_msg("%s: off by %.3e, at most %.1e is right", what, distance, bound);
    if (c->where[0] && distance * c->bound <= c->distance * bound) return;
    *c = (struct closest){.distance = distance, .bound = bound};
    snprintf(c->where, sizeof c->where, "%s %s%s: %s", s->family, s->variant,
             s->tails ? " in tails" : "", what);
}

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

static void open_subject(struct golden *g, const struct subject *s, const char *changes) {
    if (s->tails) {
        golden_open_tails(g, s->family, s->variant, GOLDEN_HERE, changes);
        const struct linear *const l = &g->session.model.layers[0].qkv;
        assert_true(strcmp(s->variant, "dora") == 0 || l->augmented);
    } else {
        golden_open(g, s->family, s->variant, GOLDEN_HERE, changes);
    }
}

static double relative(double got, double wanted) {
    return fabs(got - wanted) / fabs(wanted);
}

static struct step_options step_options_of(const struct golden *g) {
    return (struct step_options){.layout = layout_of_spec(&g->spec, &g->config),
                                 .grad_scale = 1.0 / (double)g->batch.trained,
                                 .loss_scale = optimizer_loss_scale(&g->session.optimizer)};
}

static double backward(struct golden *g) {
    const struct step_options options = step_options_of(g);
    struct step_sums sums = {0};
    struct err e = {0};
    must(optimizer_zero_grad(&g->session.optimizer, &e), &e);
    must(step_train(&g->session.model, &g->batch, &options, &sums, &e), &e);
    return sums.loss / (double)sums.trained;
}

/* The name that a parameter, or its gradient, has in PEFT's files. */
static void reference_name(const struct model *m, const struct param *p, bool gradient, char *name,
                           size_t size) {
    snprintf(name, size, "%s", p->name);
    if (!m->options.lora || !gradient) return;
    char *const end = strstr(name, "lora_magnitude_vector") ? NULL : strstr(name, ".weight");
    snprintf(end ? end : name + strlen(name), 24, ".default.weight");
}

/* Relative L2 between a parameter (or its gradient) and the reference's tensor. `size_min` takes
 * the place of the reference's size where that is smaller. */
static double distance_of(const struct golden *g, const struct param *p, bool gradient,
                          const struct st_tensor *t, double size_min) {
    struct err e = {0};
    const struct model *const m = &g->session.model;
    struct tensor *view = gradient ? model_param_gradient(m, p) : model_param_view(m, p, true);
    assert_int_equal(tensor_count(view), t->elements);
    float *const ours = mem_new((size_t)t->elements, 4);
    float *const reference = mem_new((size_t)t->elements, 4);
    must(tensor_download(view, ours, &e), &e);
    must(st_read_f32(t, 0, t->elements, reference, &e), &e);
    const double scale = gradient ? 1 / g->session.optimizer.scaling.scale : 1;
    double difference = 0, size = 0;
    for (int64_t i = 0; i < t->elements; i++) {
        const double want = reference[i], off = ours[i] * scale - want;
        difference += off * off;
        size += want * want;
    }
    mem_free(ours);
    mem_free(reference);
    tensor_release(view);
    size = fmax(sqrt(size), size_min);
    return size > 0 ? sqrt(difference) / size : sqrt(difference);
}

/* A tenth of the root mean square of the tensors' sizes. A gradient that is much smaller than the
 * others is what is left when larger numbers cancel, and their rounding remains. */
static double small_size(const struct st_set *set) {
    double sum = 0;
    for (int64_t i = 0; i < set->count; i++) {
        struct err e = {0};
        const struct st_tensor *const t = &set->tensors[i];
        float *const values = mem_new((size_t)t->elements, 4);
        must(st_read_f32(t, 0, t->elements, values, &e), &e);
        for (int64_t k = 0; k < t->elements; k++) {
            sum += (double)values[k] * values[k];
        }
        mem_free(values);
    }
    return 0.1 * sqrt(sum / (double)set->count);
}

/* Compares the parameters (or their gradients) with the tensors of a reference file. */
static void compare_params(const struct golden *g, const struct subject *s, const char *file,
                           bool gradients, double tolerance) {
    struct err e = {0};
    struct st_set set = {0};
    const struct model *const m = &g->session.model;
    const struct param *const params = m->options.lora ? m->adapter_params : m->params;
    const size_t count = m->options.lora ? m->adapter_param_count : m->param_count;
    char *path = golden_path(g, file);
    must(st_open_file(&set, path, &e), &e);
    assert_true(set.count > 0);
    const bool narrow = gradients && golden_place().precision != PRECISION_F32;
    const double size_min = narrow ? small_size(&set) : 0;
    for (size_t i = 0; i < count; i++) {
        char name[PARAM_NAME_MAX + 16];
        reference_name(m, &params[i], gradients, name, sizeof name);
        const struct st_tensor *const t = st_find(&set, name);
        if (!t) fail_msg("%s has no %s", path, name);
        check(gradients ? KIND_GRADIENTS : KIND_WEIGHTS, s, name,
              distance_of(g, &params[i], gradients, t, size_min), tolerance);
    }
    assert_int_equal(set.count, (int64_t)count);
    st_close(&set);
    mem_free(path);
}

static void test_logits_match(void **state) {
    const struct subject *const s = *state;
    struct golden g;
    struct err e = {0};
    struct st_set set = {0};
    golden_open(&g, s->family, "full", GOLDEN_HERE, NULL);
    char *path = golden_path(&g, "logits.safetensors");
    must(st_open_file(&set, path, &e), &e);
    const struct st_tensor *const t = st_find(&set, "logits");
    float *const ours = mem_new((size_t)t->elements, 4), *const reference =
                                                             mem_new((size_t)t->elements, 4);
    int32_t *const tokens = mem_new((size_t)g.batch.tokens, sizeof *tokens);
    for (int64_t i = 0; i < g.batch.tokens; i++) {
        tokens[i] = (int32_t)i;
    }
    must(st_read_f32(t, 0, t->elements, reference, &e), &e);
    must(step_logits(&g.session.model, &g.batch, tokens, g.batch.tokens, ours, &e), &e);
    double worst = 0;
    for (int64_t i = 0; i < t->elements; i++) {
        worst = fmax(worst, fabs((double)ours[i] - reference[i]));
    }
    if (golden_place().precision != PRECISION_F32)
        worst = relative_l2(ours, reference, t->elements);
    check(KIND_LOGITS, s, "logits", worst, golden_bounds().logits);
    mem_free(ours);
    mem_free(reference);
    mem_free(tokens);
    mem_free(path);
    st_close(&set);
    golden_close(&g);
}

static void test_loss_and_gradients_match(void **state) {
    const struct subject *const s = *state;
    struct golden g;
    open_subject(&g, s, NULL);
    const bool full = strcmp(s->variant, "full") == 0;
    const cJSON *const loss = json_member(full ? g.json : g.section, "loss");
    check(KIND_LOSS, s, "the loss", relative(backward(&g), loss->valuedouble),
          golden_bounds().loss);
    char file[64];
    snprintf(file, sizeof file, "%s_grads.safetensors", s->variant);
    compare_params(&g, s, full ? "grads.safetensors" : file, true, golden_bounds().gradients);
    golden_close(&g);
}

/* How far the curve may lie from the reference's: in bf16 twice as far as the reference's own bf16
 * curve of the same subject does, since both are one draw of the same rounding. `what` is "loss" or
 * "grad_norm". */
static double curve_bound(const struct subject *s, const char *what, double bound) {
    struct err e = {0};
    cJSON *spread = NULL;
    if (golden_place().precision != PRECISION_BF16 || !file_exists(SPREAD)) return bound;
    must(json_read_file(SPREAD, 1 << 20, &spread, &e), &e);
    const cJSON *const item =
        json_member(json_member(json_member(spread, s->family), s->variant), what);
    assert_non_null(item);
    const double own = item->valuedouble;
    cJSON_Delete(spread);
    return 2 * own;
}

/* A sanitizer's run needs no more than the first steps: PLIMSOLL_TEST_STEPS. */
static int64_t steps_of(const cJSON *rows) {
    const char *const wanted = getenv("PLIMSOLL_TEST_STEPS");
    const int64_t all = cJSON_GetArraySize(rows);
    assert_true(all >= 10);
    return wanted ? atoll(wanted) : all;
}

static void train(struct golden *g, const struct subject *s) {
    const cJSON *const rows = json_member(g->section, "rows");
    const struct schedule schedule = {.type = schedule_parse(g->spec.lr_scheduler_type),
                                      .peak = g->spec.learning_rate,
                                      .warmup_steps = g->spec.warmup_steps,
                                      .total_steps = g->spec.max_steps};
    const double curve = curve_bound(s, "loss", golden_bounds().curve);
    const double norm = curve_bound(s, "grad_norm", golden_bounds().norm);
    const int64_t steps = steps_of(rows);
    struct err e = {0};
    int64_t step = 0;
    for (const cJSON *row = rows->child; step < steps; row = row->next, step++) {
        struct optimizer_report report;
        char what[48];
        const double rate = schedule_rate(&schedule, step);
        double loss = 0;
        do { /* fp16 repeats a step whose gradient overflowed, with half the scale */
            loss = backward(g);
            must(optimizer_step(&g->session.optimizer, rate, &report, &e), &e);
        } while (report.skipped);
        snprintf(what, sizeof what, "loss of step %d", (int)step + 1);
        check(KIND_CURVE, s, what, relative(loss, json_member(row, "loss")->valuedouble), curve);
        snprintf(what, sizeof what, "gradient norm of step %d", (int)step + 1);
        check(KIND_NORM, s, what,
              relative(report.grad_norm, json_member(row, "grad_norm")->valuedouble), norm);
        assert_true(fabs(rate - json_member(row, "lr")->valuedouble) <= 1e-9 * rate);
    }
    assert_true(step == steps && steps > 0);
}

static void test_trajectory_matches(void **state) {
    const struct subject *const s = *state;
    struct golden g;
    open_subject(&g, s, NULL);
    train(&g, s);
    char file[64];
    const bool full = strcmp(s->variant, "full") == 0;
    snprintf(file, sizeof file,
             full ? "full_after.safetensors" : "%s_after/adapter_model.safetensors", s->variant);
    char *path = golden_path(&g, file);
    const bool whole = !getenv("PLIMSOLL_TEST_STEPS");
    if (file_exists(path) && whole && golden_place().precision == PRECISION_F32)
        compare_params(&g, s, file, false, 1e-4);
    mem_free(path);
    golden_close(&g);
}

/* What is saved is what PEFT would have saved: the same names and shapes, the config's meaning, the
 * weights. */
static void test_adapter_saved_equals_reference(void **state) {
    const struct subject *const s = *state;
    struct golden g, again;
    struct err e = {0};
    char folder[] = "/tmp/plimsoll-test-XXXXXX", changes[128];
    assert_non_null(mkdtemp(folder));
    open_subject(&g, s, NULL);
    must(adapter_save(&g.session.model, "base", folder, &e), &e);
    snprintf(changes, sizeof changes, "{\"adapter_name_or_path\":\"%s\"}", folder);
    open_subject(&again, s, changes);
    char file[64];
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", s->variant);
    compare_params(&again, s, file, false, 0);
    struct adapter_config ours = {0}, reference = {0};
    char *path = golden_path(&g, s->variant);
    must(adapter_config_load(&ours, folder, &e), &e);
    must(adapter_config_load(&reference, path, &e), &e);
    assert_int_equal(ours.r, reference.r);
    assert_true(ours.lora_alpha == reference.lora_alpha);
    assert_int_equal(ours.use_rslora, reference.use_rslora);
    assert_int_equal(ours.use_dora, reference.use_dora);
    assert_int_equal(ours.target_count, reference.target_count);
    adapter_config_release(&ours);
    adapter_config_release(&reference);
    must(file_remove_all(folder, &e), &e);
    mem_free(path);
    golden_close(&again);
    golden_close(&g);
}

static void test_merged_weights_match(void **state) {
    const struct subject *const s = *state;
    struct golden g;
    struct err e = {0};
    struct st_set ours = {0}, reference = {0};
    char folder[] = "/tmp/plimsoll-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    open_subject(&g, s, "{\"adapter_name_or_path\":\"tests/golden/data/llama/lora_after\"}");
    char *path = file_join(folder, "merged.safetensors"),
         *wanted = golden_path(&g, "lora_merged.safetensors");
    must(weights_save_merged(&g.session.model, ST_F32, path, &e), &e);
    must(st_open_file(&ours, path, &e), &e);
    must(st_open_file(&reference, wanted, &e), &e);
    assert_int_equal(ours.count, reference.count);
    for (int64_t i = 0; i < reference.count; i++) {
        const struct st_tensor *const a = st_find(&ours, reference.tensors[i].name);
        assert_non_null(a);
        assert_int_equal(a->bytes, reference.tensors[i].bytes);
        const double distance = relative_l2((const float *)a->data,
                                            (const float *)reference.tensors[i].data, a->elements);
        if (!(distance <= 1e-6)) fail_msg("%s: relative L2 %.2e", a->name, distance);
    }
    st_close(&ours);
    st_close(&reference);
    must(file_remove_all(folder, &e), &e);
    mem_free(path);
    mem_free(wanted);
    golden_close(&g);
}

static void test_greedy_continuation_matches(void **state) {
    const struct subject *const s = *state;
    struct golden g;
    struct err e = {0};
    golden_open(&g, s->family, "full", GOLDEN_HERE, NULL);
    const cJSON *const greedy = json_member(g.json, "greedy");
    const cJSON *const prompt = json_member(greedy, "prompt"), *const wanted = json_member(
                                                                   greedy, "continuation");
    struct token_list ids = {0};
    for (const cJSON *item = prompt->child; item; item = item->next) {
        ids.ids = mem_grow(ids.ids, ids.count, &ids.capacity, sizeof *ids.ids);
        ids.ids[ids.count++] = item->valueint;
    }
    const size_t start = ids.count;
    const struct generate_options options = {.tokens_max = cJSON_GetArraySize(wanted),
                                             .length_max = 256};
    g.session.model.config.eos_token_count = 0; /* the reference was generated to full length */
    must(generate_greedy(&g.session.model, &options, &ids, &e), &e);
    for (size_t i = start; i < ids.count; i++) {
        assert_int_equal(ids.ids[i], cJSON_GetArrayItem(wanted, (int)(i - start))->valueint);
    }
    assert_int_equal(ids.count - start, cJSON_GetArraySize(wanted));
    token_list_release(&ids);
    golden_close(&g);
}

enum { TESTS_MAX = 256 };

struct list {
    struct CMUnitTest tests[TESTS_MAX];
    struct subject subjects[TESTS_MAX];
    char names[TESTS_MAX][64];
    size_t count;
};

static void add(struct list *l, const char *what, const struct subject *subject,
                CMUnitTestFunction fn) {
    assert_true(l->count < TESTS_MAX);
    l->subjects[l->count] = *subject;
    snprintf(l->names[l->count], sizeof l->names[l->count], "%s/%s/%s%s", subject->family,
             subject->variant, what, subject->tails ? " in tails" : "");
    l->tests[l->count] = (struct CMUnitTest){
        .name = l->names[l->count], .test_func = fn, .initial_state = &l->subjects[l->count]};
    l->count++;
}

/* Where a card or a narrow precision leaves something out, and why, is said at the top. */
static void list_tests(struct list *list) {
    const struct golden_place place = golden_place();
    const bool exact = place.precision == PRECISION_F32;
    for (size_t f = 0; f < COUNT_OF(FAMILIES); f++) {
        const struct subject whole = {FAMILIES[f], "full", false};
        add(list, "logits", &whole, test_logits_match);
        if (exact) add(list, "greedy", &whole, test_greedy_continuation_matches);
        for (size_t v = 0; v < 2 * COUNT_OF(VARIANTS); v++) {
            const struct subject s = {FAMILIES[f], VARIANTS[v / 2], v % 2 == 1};
            if (!golden_has(s.family, s.variant) || (s.tails && (v / 2 == 0 || place.card)))
                continue;
            add(list, "gradients", &s, test_loss_and_gradients_match);
            add(list, "trajectory", &s, test_trajectory_matches);
            if (v / 2 > 0) add(list, "adapter", &s, test_adapter_saved_equals_reference);
        }
    }
    for (int tails = 0; exact && tails < (place.card ? 1 : 2); tails++) {
        const struct subject s = {"llama", "lora", tails == 1};
        add(list, "merged", &s, test_merged_weights_match);
    }
}

static void print_closest(void) {
    static const char *const NAMES[KINDS] = {"logits", "loss",          "gradients",
                                             "curve",  "gradient norm", "weights"};
    const struct golden_place place = golden_place();
    for (enum kind k = 0; k < KINDS; k++) {
        const struct closest *const c = closest_of(k);
        if (!c->where[0]) continue;
        print_message("# %s %s %s: %.2e, at most %.1e is right (%s)\n", place.device,
                      precision_name(place.precision), NAMES[k], c->distance, c->bound, c->where);
    }
}

int main(int argc, char **argv) {
    static struct list list;
    list_tests(&list);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const int failed = _cmocka_run_group_tests("golden", list.tests, list.count, NULL, NULL);
    print_closest();
    return failed;
}
