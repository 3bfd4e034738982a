/* test_spec.c - the run spec: defaults, bounds, unknown keys, and that writing and reading are
 * inverse for every key.
 *
 * Method: the table itself is walked, so a new key is tested by being there.
 * rooms: engine_contract base */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/spec.h"

static const char LEAST[] = "{\"model\":\"m\",\"data\":{\"train_files\":[\"a.jsonl\"]}}";

static enum status parse_text(struct spec *s, const char *text, struct err *e) {
    cJSON *json = NULL;
    *e = (struct err){0};
    *s = (struct spec){0};
    TRY(json_parse(text, strlen(text), "spec", &json, e));
    const enum status status = spec_parse(s, json, e);
    cJSON_Delete(json);
    return status;
}

/* `more` goes into the least valid spec, in front. */
static void expect_error(const char *text, const char *param, const char *part) {
    struct spec s;
    struct err e;
    assert_int_equal(parse_text(&s, text, &e), STATUS_INVALID);
    assert_string_equal(e.param, param);
    if (!strstr(e.text, part)) fail_msg("\"%s\" is not in \"%s\"", part, e.text);
    spec_release(&s);
}

static void test_spec_least_hasDefaults(void **state) {
    (void)state;
    struct spec s;
    struct err e;
    assert_int_equal(parse_text(&s, LEAST, &e), STATUS_OK);
    assert_string_equal(s.finetuning_type, "lora");
    assert_string_equal(s.device, "cpu");
    assert_int_equal(s.r, 16);
    assert_true(s.lora_alpha == 32 && s.learning_rate == 2e-4 && s.adam_epsilon == 1e-8);
    assert_int_equal(s.target_modules.count, 1);
    assert_string_equal(s.target_modules.items[0], "all-linear");
    assert_true(s.data.packing && s.data.shuffle && !s.bf16);
    assert_int_equal(s.data.max_length, 1024);
    assert_int_equal(s.save_total_limit, 2);
    assert_null(s.adapter_name_or_path);
    spec_release(&s);
    spec_release(&s);
}

static void test_spec_written_readsBackTheSame(void **state) {
    (void)state;
    static const char TEXT[] =
        "{\"model\":\"m \\u00e9\",\"device\":\"cuda:3\",\"r\":8,\"lora_alpha\":0.1,"
        "\"learning_rate\":0.00012345678901234567,\"num_train_epochs\":0.3,\"seed\":2147483647,"
        "\"adapter_name_or_path\":\"x\",\"target_modules\":[\"q_proj\",\"v_proj\"],"
        "\"use_dora\":true,\"lr_scheduler_type\":\"cosine\",\"sample_prompts\":[\"a\\n\\\"b\"],"
        "\"memory\":{\"cap\":\"24GiB\"},\"data\":{\"train_files\":[\"a\",\"b\"],"
        "\"mask\":\"last\",\"packing\":false}}";
    struct spec first, second;
    struct err e;
    assert_int_equal(parse_text(&first, TEXT, &e), STATUS_OK);
    assert_true(first.memory.cap.bytes == (int64_t)24 << 30);
    cJSON *json = spec_to_json(&first);
    struct str text = {0}, again = {0};
    json_append(&text, json);
    assert_int_equal(parse_text(&second, text.data, &e), STATUS_OK);
    cJSON *json_again = spec_to_json(&second);
    json_append(&again, json_again);
    assert_string_equal(text.data, again.data);
    assert_true(first.learning_rate == second.learning_rate);
    assert_true(first.lora_alpha == second.lora_alpha && second.use_dora);
    assert_string_equal(second.sample_prompts.items[0], "a\n\"b");
    /* the tree itself is as good as its text */
    spec_release(&second);
    assert_int_equal(spec_parse(&second, json, &e), STATUS_OK);
    cJSON_Delete(json);
    cJSON_Delete(json_again);
    str_release(&text);
    str_release(&again);
    spec_release(&first);
    spec_release(&second);
}

/* Puts `value` at the key's path of a valid spec; takes ownership of value. */
static enum status parse_with(const struct spec_key *key, cJSON *value, struct err *e) {
    cJSON *json = NULL;
    *e = (struct err){0};
    TRY(json_parse(LEAST, strlen(LEAST), "least", &json, e));
    const char *const dot = strchr(key->path, '.');
    cJSON *parent = json;
    if (dot) {
        char *group = mem_strndup(key->path, (size_t)(dot - key->path));
        parent = cJSON_GetObjectItemCaseSensitive(json, group);
        if (!parent) parent = cJSON_AddObjectToObject(json, group);
        mem_free(group);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(parent, dot ? dot + 1 : key->path);
    cJSON_AddItemToObject(parent, dot ? dot + 1 : key->path, value);
    struct spec s;
    const enum status status = spec_parse(&s, json, e);
    spec_release(&s);
    cJSON_Delete(json);
    return status;
}

static void test_spec_everyKey_refusesWrongTypesAndBounds(void **state) {
    (void)state;
    int64_t count = 0;
    struct err e;
    const struct spec_key *const keys = spec_keys(&count);
    assert_true(count > 30);
    for (int64_t i = 0; i < count; i++) {
        const struct spec_key *const key = &keys[i];
        assert_int_equal(parse_with(key, cJSON_CreateObject(), &e), STATUS_INVALID);
        assert_string_equal(e.param, key->path);
        if (key->type == SPEC_INT || key->type == SPEC_FLOAT) {
            assert_int_equal(parse_with(key, cJSON_CreateNumber(key->max * 2 + 1), &e),
                             STATUS_INVALID);
            assert_string_equal(e.param, key->path);
            assert_int_equal(parse_with(key, cJSON_CreateNumber(key->min - 1), &e), STATUS_INVALID);
            assert_string_equal(e.param, key->path);
        }
        if (key->type == SPEC_INT) {
            assert_int_equal(parse_with(key, cJSON_CreateNumber(key->min + 0.5), &e),
                             STATUS_INVALID);
        }
        if (key->type == SPEC_CHOICE) {
            assert_int_equal(parse_with(key, cJSON_CreateString("nonsense"), &e), STATUS_INVALID);
            const bool several = strchr(key->choices, '|') != NULL; /* else it is a right value */
            assert_int_equal(parse_with(key, cJSON_CreateString(key->choices), &e) == STATUS_OK,
                             !several);
        }
    }
}

static void test_spec_unknownKey_namesTheNearest(void **state) {
    (void)state;
    expect_error("{\"learning_rat\":1}", "learning_rat", "\"learning_rate\"");
    expect_error("{\"data\":{\"max_lenght\":1}}", "data.max_lenght", "\"data.max_length\"");
    expect_error("{\"max_length\":1}", "max_length", "{\"data\": {\"max_length\": ...}}");
    expect_error("{\"data.max_length\":1}", "data.max_length", "{\"data\": {\"max_length\": ...}}");
    expect_error("{\"r\":1,\"r\":2}", "r", "twice");
    expect_error("{\"R\":1}", "R", "unknown");
}

static void test_spec_keysTogether_areChecked(void **state) {
    (void)state;
#define WITH(more) "{\"model\":\"m\",\"data\":{\"train_files\":[\"a\"]}," more "}"
    expect_error("{}", "model", "missing");
    expect_error("{\"model\":\"m\"}", "data.train_files", "missing");
    expect_error(WITH("\"max_steps\":5,\"warmup_steps\":5"), "warmup_steps", "less than");
    expect_error(WITH("\"gradient_checkpointing_layers\":2"), "gradient_checkpointing_layers",
                 "needs gradient_checkpointing");
    expect_error(WITH("\"memory\":{\"allow\":[\"lora\",\"luck\"]}"), "memory.allow", "luck");
    expect_error(WITH("\"num_train_epochs\":0"), "num_train_epochs", "both 0");
    expect_error(WITH("\"eval_steps\":5"), "eval_steps", "eval_files");
    expect_error(WITH("\"device\":\"gpu\""), "device", "cuda:N");
    expect_error(WITH("\"finetuning_type\":\"full\",\"use_dora\":true"), "use_dora", "lora");
    expect_error(WITH("\"device\":\"cuda:0\",\"bf16\":true,\"fp16\":true"), "fp16", "both");
    expect_error(WITH("\"activation_offloading\":true"), "activation_offloading", "checkpointing");
    expect_error(WITH("\"fp16\":true"), "fp16", "cuda:N");
    expect_error(WITH("\"tf32\":true"), "tf32", "cuda:N");
    expect_error(WITH("\"stochastic_rounding\":true"), "stochastic_rounding", "cuda:N");
    expect_error(WITH("\"finetuning_type\":\"full\",\"param_offloading\":true,"
                      "\"parallel\":{\"ranks\":2,\"zero_stage\":1}"),
                 "param_offloading", "parallel.zero_stage 3");
    expect_error(WITH("\"finetuning_type\":\"full\",\"param_offloading\":true,\"bf16\":true,"
                      "\"device\":\"cuda:0\",\"stochastic_rounding\":true"),
                 "param_offloading", "stochastic_rounding");
    expect_error(WITH("\"device\":\"cuda:0\",\"stochastic_rounding\":true,\"bf16\":true"),
                 "stochastic_rounding", "full");
    expect_error(WITH("\"target_modules\":[]"), "target_modules", "empty");
    expect_error(WITH("\"target_modules\":[\"all-linear\",\"x\"]"), "target_modules", "alone");
    expect_error(WITH("\"memory\":{\"cap\":\"much\"}"), "memory.cap", "much");
    expect_error(WITH("\"memory\":3"), "memory", "object");
    expect_error(WITH("\"parallel\":{\"hostfile\":\"/h\"}"), "parallel.hostfile",
                 "for parallel.launcher mpi, it is local");
    expect_error(WITH("\"parallel\":{\"launcher\":\"mpi\"}"), "parallel.hostfile", "needs");
    expect_error(WITH("\"parallel\":{\"launcher\":\"mpi\",\"hostfile\":\"h\"}"),
                 "parallel.hostfile", "whole path");
    expect_error(WITH("\"parallel\":{\"launcher\":\"torchrun\"}"), "parallel.launcher", "external");
    /* M05: settings are judged together, and the text names both. */
    expect_error(WITH("\"memory\":{\"cap\":\"1GiB\",\"growth\":\"2GiB\"}"), "memory.growth",
                 "memory.cap");
    expect_error(WITH("\"memory\":{\"cap\":\"1GiB\",\"trim_threshold\":\"2GiB\"}"),
                 "memory.trim_threshold", "memory.cap");
    expect_error(WITH("\"memory\":{\"split_limit\":-1}"), "memory.split_limit", "from 0");
#undef WITH
}

static void test_spec_cap_isBytesOrAShare(void **state) {
    (void)state;
    static const struct {
        const char *json;
        int64_t of_1000;
        const char *written; /* NULL: refused */
    } CASES[] = {
        {"0", 0, "0"},
        {"\"90%\"", 900, "\"90%\""},
        {"0.25", 250, "\"25%\""},
        {"1", 1000, "\"100%\""},
        {"\"0.5\"", 500, "\"50%\""},
        {"700", 700, "700"},
        {"\"1KiB\"", 1024, "1024"},
        {"-1", 0, NULL},
        {"1.5", 0, NULL},
        {"\"101%\"", 0, NULL},
        {"\"0%\"", 0, NULL},
        {"true", 0, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct spec_cap cap = {0};
        struct err e = {0};
        struct str text = {0};
        cJSON *const value = cJSON_Parse(CASES[i].json);
        const enum status status = spec_cap_parse(&cap, value, "memory.cap", &e);
        assert_int_equal(status, CASES[i].written ? STATUS_OK : STATUS_INVALID);
        assert_int_equal(spec_cap_bytes(&cap, 1000), CASES[i].of_1000);
        if (!CASES[i].written) assert_string_equal(e.param, "memory.cap");
        cJSON *const back = spec_cap_to_json(&cap);
        json_append(&text, back);
        if (CASES[i].written) assert_string_equal(text.data, CASES[i].written);
        str_release(&text);
        cJSON_Delete(back);
        cJSON_Delete(value);
    }
}

static void test_spec_table_asJsonIsComplete(void **state) {
    (void)state;
    int64_t count = 0;
    spec_keys(&count);
    cJSON *json = spec_keys_to_json();
    assert_int_equal(cJSON_GetArraySize(json), count);
    for (const cJSON *item = json->child; item; item = item->next) {
        assert_true(cJSON_IsString(json_member(item, "path")));
        assert_true(strlen(json_member(item, "help")->valuestring) > 5);
        assert_non_null(json_member(item, "default"));
    }
    cJSON_Delete(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spec_least_hasDefaults),
        cmocka_unit_test(test_spec_written_readsBackTheSame),
        cmocka_unit_test(test_spec_everyKey_refusesWrongTypesAndBounds),
        cmocka_unit_test(test_spec_unknownKey_namesTheNearest),
        cmocka_unit_test(test_spec_keysTogether_areChecked),
        cmocka_unit_test(test_spec_cap_isBytesOrAShare),
        cmocka_unit_test(test_spec_table_asJsonIsComplete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
