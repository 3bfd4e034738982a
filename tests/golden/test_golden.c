/* test_golden.c - goal: the engine computes what transformers and PEFT compute, for every family.
 * Method: the reference files in tests/golden/data are replayed on the CPU device in fp32 and
 * compared number by number.
 *
 * Tolerances: logits 1e-4 absolute, loss 1e-5 relative, gradients and weights after ten steps 1e-4
 * relative L2 per tensor, trajectories 1e-4 relative. The largest seen is 3e-5, for weights: AdamW
 * divides by the gradient's own size, so an element whose gradient is near zero carries the
 * rounding of a different summation order into its full step. */
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

struct subject {
    const char *family, *variant;
    bool tails; /* LoRA in the tails of its operands, as on a GPU */
};

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

static void open_subject(struct golden *g, const struct subject *s, const char *changes) {
    if (s->tails) {
        golden_open_tails(g, s->family, s->variant, "cpu", changes);
        const struct linear *const l = &g->session.model.layers[0].qkv;
        assert_true(strcmp(s->variant, "dora") == 0 || l->augmented);
    } else {
        golden_open(g, s->family, s->variant, "cpu", changes);
    }
}

static struct step_options step_options_of(const struct golden *g) {
    return (struct step_options){.checkpointing = g->spec.gradient_checkpointing,
                                 .loss_chunk_rows = g->spec.loss_chunk_rows,
                                 .grad_scale = 1.0 / (double)g->batch.trained};
}

static double backward(struct golden *g) {
    const struct step_options options = step_options_of(g);
    struct step_sums sums = {0};
    struct err e = {0};
    must(optimizer_zero_grad(&g->session.optimizer, &e), &e);
    must(step_train(&g->session.model, &g->batch, &options, &sums, &e), &e);
    return sums.loss / (double)sums.trained;
}

static void assert_close(const char *what, double got, double wanted, double relative) {
    if (fabs(got - wanted) <= relative * fabs(wanted)) return;
    fail_msg("%s is %.9g, the reference has %.9g (relative %.2e)", what, got, wanted,
             fabs(got / wanted - 1));
}

/* Compares the parameters (or their gradients) with tensors of a reference file. `end` is what the
 * reference's names have where ours have nothing (PEFT names gradients with the adapter's name). */
static void compare_params(const struct golden *g, const char *file, bool gradients,
                           double tolerance) {
    struct err e = {0};
    struct st_set set = {0};
    const struct model *const m = &g->session.model;
    const struct param *const params = m->options.lora ? m->adapter_params : m->params;
    const size_t count = m->options.lora ? m->adapter_param_count : m->param_count;
    char *path = golden_path(g, file);
    must(st_open_file(&set, path, &e), &e);
    assert_true(set.count > 0);
    for (size_t i = 0; i < count; i++) {
        char name[PARAM_NAME_MAX + 16];
        snprintf(name, sizeof name, "%s", params[i].name);
        if (m->options.lora && gradients) {
            char *const end =
                strstr(name, "lora_magnitude_vector") ? NULL : strstr(name, ".weight");
            snprintf(end ? end : name + strlen(name), 24, ".default.weight");
        }
        const struct st_tensor *const t = st_find(&set, name);
        if (!t) fail_msg("%s has no %s", path, name);
        struct tensor *view =
            gradients ? model_param_gradient(m, &params[i]) : model_param_view(m, &params[i], true);
        assert_int_equal(tensor_count(view), t->elements);
        float *const ours = mem_new((size_t)t->elements, 4), *const reference =
                                                                 mem_new((size_t)t->elements, 4);
        must(tensor_download(view, ours, &e), &e);
        must(st_read_f32(t, 0, t->elements, reference, &e), &e);
        const double distance = relative_l2(ours, reference, t->elements);
        if (!(distance <= tolerance)) fail_msg("%s %s: relative L2 %.2e", file, name, distance);
        mem_free(ours);
        mem_free(reference);
        tensor_release(view);
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
    golden_open(&g, s->family, "full", "cpu", NULL);
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
    if (!(worst <= 1e-4)) fail_msg("logits differ by up to %.2e", worst);
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
    assert_close("the loss", backward(&g), loss->valuedouble, 1e-5);
    char file[64];
    snprintf(file, sizeof file, "%s_grads.safetensors", s->variant);
    compare_params(&g, full ? "grads.safetensors" : file, true, 1e-4);
    golden_close(&g);
}

static void train(struct golden *g) {
    const cJSON *const rows = json_member(g->section, "rows");
    const struct schedule schedule = {.type = schedule_parse(g->spec.lr_scheduler_type),
                                      .peak = g->spec.learning_rate,
                                      .warmup_steps = g->spec.warmup_steps,
                                      .total_steps = g->spec.max_steps};
    struct err e = {0};
    int64_t step = 0;
    for (const cJSON *row = rows->child; row; row = row->next, step++) {
        struct optimizer_report report;
        char what[32];
        const double loss = backward(g), rate = schedule_rate(&schedule, step);
        must(optimizer_step(&g->session.optimizer, rate, &report, &e), &e);
        snprintf(what, sizeof what, "the loss of step %d", (int)step + 1);
        assert_close(what, loss, json_member(row, "loss")->valuedouble, 1e-4);
        assert_close("its gradient norm", report.grad_norm,
                     json_member(row, "grad_norm")->valuedouble, 1e-4);
        assert_close("its learning rate", rate, json_member(row, "lr")->valuedouble, 1e-9);
    }
    assert_true(step >= 10);
}

static void test_trajectory_matches(void **state) {
    const struct subject *const s = *state;
    struct golden g;
    open_subject(&g, s, NULL);
    train(&g);
    char file[64];
    const bool full = strcmp(s->variant, "full") == 0;
    snprintf(file, sizeof file,
             full ? "full_after.safetensors" : "%s_after/adapter_model.safetensors", s->variant);
    char *path = golden_path(&g, file);
    if (file_exists(path)) compare_params(&g, file, false, 1e-4);
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
    compare_params(&again, file, false, 0);
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
    golden_open(&g, s->family, "full", "cpu", NULL);
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

int main(void) {
    static struct list list;
    for (size_t f = 0; f < COUNT_OF(FAMILIES); f++) {
        const struct subject whole = {FAMILIES[f], "full", false};
        add(&list, "logits", &whole, test_logits_match);
        add(&list, "greedy", &whole, test_greedy_continuation_matches);
        for (size_t v = 0; v < 2 * COUNT_OF(VARIANTS); v++) {
            const struct subject s = {FAMILIES[f], VARIANTS[v / 2], v % 2 == 1};
            if (!golden_has(s.family, s.variant) || (s.tails && v / 2 == 0)) continue;
            add(&list, "gradients", &s, test_loss_and_gradients_match);
            add(&list, "trajectory", &s, test_trajectory_matches);
            if (v / 2 > 0) add(&list, "adapter", &s, test_adapter_saved_equals_reference);
        }
    }
    for (int tails = 0; tails < 2; tails++) {
        const struct subject s = {"llama", "lora", tails == 1};
        add(&list, "merged", &s, test_merged_weights_match);
    }
    return _cmocka_run_group_tests("golden", list.tests, list.count, NULL, NULL);
}
