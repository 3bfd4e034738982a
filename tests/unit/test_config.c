/* test_config.c - config.json of every supported family, hostile ones, rotary frequencies, and the
 * tensor list.
 *
 * Method: tests/unit/data/config holds files that transformers wrote, tests/unit/data/tensors the
 * names and shapes of the weights it wrote beside them. Both lists must be equal as sets.
 * Frequencies are compared with numbers from a few lines of Python in doubles (the command stands
 * above them); f32 steps allow a relative 2e-6. rooms: engine_model base */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/config.h"
#include "tests/unit/support_scratch.h"

static const char *const FAMILIES[] = {"gemma",       "gemma2",         "gemma3", "llama",
                                       "llama3_rope", "llama_bias_mha", "phi3",   "mistral_sliding",
                                       "qwen2",       "qwen3",          "yarn"};

static void load(struct model_config *c, const char *family) {
    struct err e = {0};
    cJSON *json = NULL;
    char *path = str_format("tests/unit/data/config/%s.json", family);
    assert_int_equal(json_read_file(path, 1 << 20, &json, &e), STATUS_OK);
    if (model_config_parse(c, json, path, &e) != STATUS_OK) fail_msg("%s", e.text);
    cJSON_Delete(json);
    mem_free(path);
}

static enum status parse(struct model_config *c, const char *text, struct err *e) {
    cJSON *json = NULL;
    *e = (struct err){0};
    if (json_parse(text, strlen(text), "text", &json, e) != STATUS_OK) fail_msg("%s", e->text);
    const enum status status = model_config_parse(c, json, "config.json", e);
    cJSON_Delete(json);
    return status;
}

static void expect(const char *text, enum status status, const char *part) {
    struct model_config c;
    struct err e;
    const enum status got = parse(&c, text, &e);
    if (got != status) fail_msg("%s: %s (%s)", text, status_name(got), e.text);
    if (!strstr(e.text, part)) fail_msg("%s: \"%s\" is not in \"%s\"", text, part, e.text);
}

struct expected {
    cJSON *shapes;
    int64_t parameters;
};

static bool take(void *context, const struct model_tensor *t) {
    struct expected *const x = context;
    const cJSON *const shape = json_member(x->shapes, t->name);
    if (!shape) fail_msg("%s is not in the reference", t->name);
    assert_int_equal(cJSON_GetArraySize(shape), t->rank);
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++) {
        assert_int_equal(cJSON_GetArrayItem(shape, i)->valueint, t->shape[i]);
        count *= t->shape[i];
    }
    x->parameters += count;
    cJSON_DeleteItemFromObjectCaseSensitive(x->shapes, t->name);
    return true;
}

static void test_config_everyFamily_listsExactlyTheStoredTensors(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(FAMILIES); i++) {
        struct model_config c;
        struct err e = {0};
        struct expected x = {0};
        load(&c, FAMILIES[i]);
        char *path = str_format("tests/unit/data/tensors/%s.json", FAMILIES[i]);
        assert_int_equal(json_read_file(path, 1 << 20, &x.shapes, &e), STATUS_OK);
        model_tensors(&c, take, &x);
        if (x.shapes->child) fail_msg("%s: %s is missing", FAMILIES[i], x.shapes->child->string);
        assert_int_equal(model_parameter_count(&c), x.parameters);
        cJSON_Delete(x.shapes);
        mem_free(path);
    }
}

static void test_config_families_haveTheirFlags(void **state) {
    (void)state;
    struct model_config c;
    load(&c, "gemma3");
    assert_true(c.qk_norm && c.sandwich_norms && c.has_rope_local && c.norm_weight_offset == 1);
    assert_true(c.rope.theta == 1e6 && c.rope_local.theta == 1e4 && c.sliding_window == 8);
    assert_true(c.layer_slides[0] && c.layer_slides[4] && !c.layer_slides[5]);
    assert_true(c.embedding_scale == 8 && c.activation == ACTIVATION_GELU_TANH);
    load(&c, "gemma2");
    assert_true(c.attention_softcap == 50 && c.final_softcap == 30);
    assert_true(c.layer_slides[0] && !c.layer_slides[1] && c.tie_word_embeddings);
    assert_true(fabs(c.attention_scale - 1 / sqrt(32)) < 1e-15);
    load(&c, "qwen2");
    assert_true(c.qkv_bias && !c.o_bias && c.sliding_window == 0 && c.rope.theta == 1e6);
    load(&c, "llama_bias_mha");
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias && c.kv_heads == 4);
    load(&c, "mistral_sliding");
    assert_true(c.sliding_window == 8 && c.layer_slides[0] && c.layer_slides[1]);
    load(&c, "phi3");
    assert_true(c.fused_projections && c.sliding_window == 0 && c.head_dim == 16);
    load(&c, "yarn");
    assert_true(c.rope.type == ROPE_YARN && c.rope.factor == 4 && c.rope.truncate);
    assert_string_equal(c.torch_dtype, "float32");
    assert_true(c.bos_token_id == 1 && c.eos_token_count == 1 && c.eos_token_ids[0] == 2);
}

static void test_config_missingKeys_takeTheFamilysDefaults(void **state) {
    (void)state;
    struct model_config c;
    struct err e;
    assert_int_equal(parse(&c, "{\"model_type\":\"mistral\",\"head_dim\":null}", &e), STATUS_OK);
    assert_true(c.kv_heads == 8 && c.sliding_window == 4096 && c.head_dim == 128);
    assert_int_equal(parse(&c, "{\"model_type\":\"mistral\",\"sliding_window\":null}", &e), 0);
    assert_true(c.sliding_window == 0 && !c.layer_slides[0]);
    assert_int_equal(parse(&c, "{\"model_type\":\"gemma3_text\"}", &e), STATUS_OK);
    assert_true(c.rope.theta == 1e6 && c.rope_local.theta == 1e4 && c.has_rope_local);
    assert_true(!c.layer_slides[5] && c.layer_slides[6] && c.attention_softcap == 0);
    assert_int_equal(parse(&c, "{\"model_type\":\"gemma\",\"hidden_act\":\"gelu\"}", &e), 0);
    assert_int_equal(c.activation, ACTIVATION_GELU_TANH);
    assert_int_equal(parse(&c,
                           "{\"model_type\":\"qwen2\",\"use_sliding_window\":true,"
                           "\"max_window_layers\":3}",
                           &e),
                     STATUS_OK);
    assert_true(c.sliding_window == 4096 && !c.layer_slides[2] && c.layer_slides[3]);
}

static void test_config_rope_bothLayoutsAgreeAndConflictsAreRefused(void **state) {
    (void)state;
    struct model_config a, b;
    struct err e;
#define L(more) "{\"model_type\":\"llama\"," more "}"
    assert_int_equal(parse(&a, L("\"rope_theta\":5e5,\"rope_scaling\":null"), &e), STATUS_OK);
    assert_int_equal(parse(&b, L("\"rope_parameters\":{\"rope_theta\":5e5}"), &e), STATUS_OK);
    assert_true(a.rope.theta == 5e5 && b.rope.theta == 5e5);
    assert_int_equal(parse(&a, L("\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}"), &e),
                     STATUS_OK);
    assert_true(a.rope.type == ROPE_LINEAR && a.rope.factor == 2 && a.rope.theta == 1e4);
    expect(L("\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":5e5}"), STATUS_INVALID,
           "agree");
    expect(L("\"rope_scaling\":{\"type\":\"a\",\"rope_type\":\"b\"}"), STATUS_INVALID, "agree");
    expect(L("\"rope_scaling\":{\"rope_type\":\"longrope\"}"), STATUS_UNSUPPORTED, "longrope");
    expect(L("\"rope_scaling\":{\"type\":\"su\"}"), STATUS_UNSUPPORTED, "\"su\"");
    expect(L("\"rope_scaling\":{\"type\":\"linear\"}"), STATUS_INVALID, "factor is missing");
    expect(L("\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}"), STATUS_INVALID, "low_freq");
    expect(L("\"rope_scaling\":3"), STATUS_INVALID, "object");
    expect(L("\"partial_rotary_factor\":0.01"), STATUS_INVALID, "even");
    expect(L("\"rope_parameters\":{\"full_attention\":{}}"), STATUS_INVALID, "sliding_attention");
    expect(L("\"rope_theta\":0"), STATUS_INVALID, "rope_theta");
}

static void test_config_hostile_isRefusedByName(void **state) {
    (void)state;
    expect("[]", STATUS_INVALID, "object");
    expect("{}", STATUS_INVALID, "model_type is missing");
    expect("{\"model_type\":\"gemma9\"}", STATUS_UNSUPPORTED, "gemma9");
    expect("{\"model_type\":\"gemma3\"}", STATUS_UNSUPPORTED, "gemma3_text");
    expect(L("\"quantization_config\":{}"), STATUS_UNSUPPORTED, "quantis");
    expect(L("\"num_local_experts\":8"), STATUS_UNSUPPORTED, "num_local_experts");
    expect(L("\"hidden_act\":\"relu\""), STATUS_UNSUPPORTED, "relu");
    expect(L("\"hidden_size\":0"), STATUS_INVALID, "hidden_size");
    expect(L("\"hidden_size\":1e18"), STATUS_INVALID, "hidden_size");
    expect(L("\"hidden_size\":\"64\""), STATUS_INVALID, "hidden_size");
    expect(L("\"hidden_size\":65"), STATUS_INVALID, "head_dim");
    expect(L("\"num_hidden_layers\":513"), STATUS_INVALID, "num_hidden_layers");
    expect(L("\"num_key_value_heads\":5"), STATUS_INVALID, "multiple");
    expect(L("\"rms_norm_eps\":-1"), STATUS_INVALID, "rms_norm_eps");
    expect(L("\"head_dim\":3"), STATUS_INVALID, "even");
    expect(L("\"layer_types\":[\"full_attention\"]"), STATUS_INVALID, "layer_types");
    expect(L("\"num_hidden_layers\":1,\"layer_types\":[\"chunked_attention\"]"), STATUS_UNSUPPORTED,
           "chunked_attention");
    expect(L("\"num_hidden_layers\":1,\"layer_types\":[\"sliding_attention\"]"), STATUS_INVALID,
           "sliding_window");
    expect(L("\"eos_token_id\":\"x\""), STATUS_INVALID, "eos_token_id");
    expect(L("\"dtype\":\"int4\""), STATUS_UNSUPPORTED, "int4");
#undef L
}

static void compare(const char *config, int64_t length, const double expected[8], double factor) {
    struct model_config c;
    struct err e;
    float got[8], got_factor = 0;
    if (config[0] == '{') {
        assert_int_equal(parse(&c, config, &e), STATUS_OK);
    } else {
        load(&c, config);
    }
    assert_int_equal(c.rotary_dim, 16);
    rope_frequencies(&c, &c.rope, length, got, &got_factor);
    for (int i = 0; i < 8; i++) {
        if (fabs(got[i] / expected[i] - 1) > 2e-6) {
            fail_msg("%s, %d: %.9g is not %.9g", config, i, (double)got[i], expected[i]);
        }
    }
    assert_true(fabs((double)got_factor - factor) < 1e-6);
}

/* python3 -c 'p=lambda t:[t**(i/8) for i in range(8)]; print([1/x for x in p(1e4)]);
 *   print([1/x for x in p(1e4*(2*512/256-1)**(16/14))])'                    # default; dynamic at
 * 512 of 256 python3 -c 'import math def f(x): i=1/x; w=2*math.pi*x; s=(32/w-1)/3; return i/8 if
 * w>32 else i if w<8 else (1-s)*i/8+s*i print([f(5e5**(i/8)) for i in range(8)])' # llama3: factor
 * 8, 1..4, original 32 python3 -c 'import math d=lambda
 * r:16*math.log(32/(r*2*math.pi))/(2*math.log(1e4)); lo,hi=max(d(32),0),min(d(1),15) for a,b in
 * ((math.floor(lo),math.ceil(hi)),(lo,hi)): r=[min(max((i-a)/(b-a),0),1) for i in range(8)]
 *     print([(1-r[i])/1e4**(i/8)+r[i]/1e4**(i/8)/4 for i in range(8)], .1*math.log(4)+1)'  # yarn,
 * truncated or not */
static void test_rope_everyType_matchesTheFormula(void **state) {
    (void)state;
#define SMALL "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":4,"
    static const double PLAIN[] = {1,    0.31622777,   0.1,   0.031622777,
                                   0.01, 0.0031622777, 0.001, 0.00031622777};
    static const double DYNAMIC[] = {1,           0.27029613,   0.073059996,   0.019747834,
                                     0.005337763, 0.0014427766, 0.00038997694, 0.00010540926};
    static const double LLAMA3[] = {1,
                                    0.024240343,
                                    0.0047007539,
                                    0.00091158309,
                                    0.0001767767,
                                    3.4281022e-05,
                                    6.6478699e-06,
                                    1.2891732e-06};
    static const double YARN[] = {1,      0.19764235,    0.025,   0.0079056942,
                                  0.0025, 0.00079056942, 0.00025, 7.9056942e-05};
    static const double SMOOTH[] = {1,      0.14849025,    0.025,   0.0079056942,
                                    0.0025, 0.00079056942, 0.00025, 7.9056942e-05};
    double linear[8];
    for (int i = 0; i < 8; i++) {
        linear[i] = PLAIN[i] / 4;
    }
    compare("llama", 100, PLAIN, 1);
    compare(SMALL "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", 100, linear, 1);
    static const char DYNAMIC_CONFIG[] = SMALL
        "\"max_position_embeddings\":256,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}";
    compare(DYNAMIC_CONFIG, 512, DYNAMIC, 1);
    compare(DYNAMIC_CONFIG, 256, PLAIN, 1);
    compare("llama3_rope", 100, LLAMA3, 1);
    compare("yarn", 100, YARN, 1.138629436111989);
    compare(SMALL "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"truncate\":false,"
                  "\"original_max_position_embeddings\":32,\"attention_factor\":0.5}}",
            100, SMOOTH, 0.5);
    /* mscale 2 over mscale_all_dim 1: (0.2 ln 4 + 1) / (0.1 ln 4 + 1) */
    compare(SMALL "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"mscale\":2,"
                  "\"mscale_all_dim\":1,\"original_max_position_embeddings\":32}}",
            100, YARN, 1.2772588722239782 / 1.138629436111989);
#undef SMALL
}

static void test_config_folder_addsGenerationsEndTokens(void **state) {
    (void)state;
    static const char CONFIG[] = "{\"model_type\":\"llama\",\"eos_token_id\":[7,8]}";
    static const char GENERATION[] = "{\"eos_token_id\":[8,9]}";
    char *folder = scratch_new();
    struct model_config c;
    struct err e = {0};
    assert_int_equal(model_config_load(&c, folder, &e), STATUS_NOT_FOUND);
    mem_free(scratch_write(folder, "config.json", CONFIG, strlen(CONFIG)));
    mem_free(scratch_write(folder, "generation_config.json", GENERATION, strlen(GENERATION)));
    err_clear(&e);
    assert_int_equal(model_config_load(&c, folder, &e), STATUS_OK);
    assert_int_equal(c.eos_token_count, 3);
    assert_int_equal(c.eos_token_ids[2], 9);
    scratch_free(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_everyFamily_listsExactlyTheStoredTensors),
        cmocka_unit_test(test_config_families_haveTheirFlags),
        cmocka_unit_test(test_config_missingKeys_takeTheFamilysDefaults),
        cmocka_unit_test(test_config_rope_bothLayoutsAgreeAndConflictsAreRefused),
        cmocka_unit_test(test_config_hostile_isRefusedByName),
        cmocka_unit_test(test_rope_everyType_matchesTheFormula),
        cmocka_unit_test(test_config_folder_addsGenerationsEndTokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
