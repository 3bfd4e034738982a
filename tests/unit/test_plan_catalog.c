/* test_plan_catalog.c - goal: a model of the catalog has exactly the parameters of the published
 * one, and is found by the names that people use. Method: the counts that the published files state
 * (metadata of their safetensors), for every row of the table. */
/* rooms: engine_model */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "engine/model/catalog.h"

static const struct {
    const char *name;
    int64_t parameters;
} PUBLISHED[] = {
    {"Llama-3.2-1B", 1235814400},
    {"Llama-3.2-3B", 3212749824},
    {"Llama-3.1-8B", 8030261248},
    {"Llama-3.1-70B", 70553706496},
    {"Llama-3.3-70B", 70553706496},
    {"Llama-3.1-405B", 405853388800},
    {"Meta-Llama-3-8B", 8030261248},
    {"Meta-Llama-3-70B", 70553706496},
    {"Llama-2-7b", 6738415616},
    {"Llama-2-13b", 13015864320},
    {"Llama-2-70b", 68976648192},
    {"TinyLlama-1.1B", 1100048384},
    {"SmolLM2-135M", 134515008},
    {"SmolLM2-360M", 361821120},
    {"SmolLM2-1.7B", 1711376384},
    {"Qwen2.5-0.5B", 494032768},
    {"Qwen2.5-1.5B", 1543714304},
    {"Qwen2.5-3B", 3085938688},
    {"Qwen2.5-7B", 7615616512},
    {"Qwen2.5-14B", 14770033664},
    {"Qwen2.5-32B", 32763876352},
    {"Qwen2.5-72B", 72706203648},
    {"Qwen3-0.6B", 596049920},
    {"Qwen3-1.7B", 1720574976},
    {"Qwen3-4B", 4022468096},
    {"Qwen3-8B", 8190735360},
    {"Qwen3-14B", 14768307200},
    {"Qwen3-32B", 32762123264},
    {"gemma-2b", 2506172416},
    {"gemma-7b", 8537680896},
    {"gemma-2-2b", 2614341888},
    {"gemma-2-9b", 9241705984},
    {"gemma-2-27b", 27227128320},
    {"gemma-3-270m", 268098176},
    {"gemma-3-1b", 999885952},
    {"Mistral-7B-v0.1", 7241732096},
    {"Mistral-7B-v0.3", 7248023552},
    {"Mistral-Nemo-2407", 12247782400},
    {"Mistral-Small-24B-2501", 23572403200},
    {"Phi-3-mini-4k", 3821079552},
    {"Phi-3-medium-4k", 13960238080},
    {"phi-4", 14659507200},
};

static int64_t parameters_of(const char *name) {
    struct model_config config;
    struct err e = {0};
    if (catalog_load(&config, name, &e) != STATUS_OK) fail_msg("%s", e.text);
    return model_parameter_count(&config);
}

static void test_catalog_every_model_has_the_published_parameters(void **state) {
    (void)state;
    int64_t rows = 0;
    while (catalog_name(rows)) {
        rows++;
    }
    assert_int_equal(rows, COUNT_OF(PUBLISHED));
    for (size_t i = 0; i < COUNT_OF(PUBLISHED); i++) {
        assert_string_equal(catalog_name((int64_t)i), PUBLISHED[i].name);
        const int64_t found = parameters_of(PUBLISHED[i].name);
        if (found != PUBLISHED[i].parameters) {
            fail_msg("%s: %lld parameters, published are %lld", PUBLISHED[i].name, (long long)found,
                     (long long)PUBLISHED[i].parameters);
        }
    }
}

static void test_catalog_names_of_repositories_are_found(void **state) {
    (void)state;
    static const char *const NAMES[] = {"meta-llama/Llama-3.1-8B-Instruct",
                                        "llama-3.1-8b",
                                        "Qwen/Qwen3-8B",
                                        "Qwen3-8B-Base",
                                        "google/gemma-3-1b-it",
                                        "mistralai/Mistral-7B-Instruct-v0.3",
                                        "microsoft/phi-4",
                                        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
                                        "meta-llama/Llama-2-7b-chat-hf",
                                        "mistralai/Mistral-Nemo-Base-2407",
                                        "mistralai/Mistral-Small-24B-Instruct-2501",
                                        "microsoft/Phi-3-mini-4k-instruct",
                                        "HuggingFaceTB/SmolLM2-135M-Instruct"};
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        if (!catalog_has(NAMES[i])) fail_msg("%s is not found", NAMES[i]);
    }
}

static void test_catalog_unknown_name_is_refused_with_the_nearest(void **state) {
    (void)state;
    static const char *const NAMES[] = {"", "/", "Llama-3.1-9B", "models/x/Llama-3.1-8B",
                                        "Llama-3.1-8B-Vision"};
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        assert_false(catalog_has(NAMES[i]));
    }
    struct model_config config;
    struct err e = {0};
    assert_int_equal(catalog_load(&config, "Llama-3.1-9B", &e), STATUS_NOT_FOUND);
    assert_non_null(strstr(e.text, "Llama-3.1-8B"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_catalog_every_model_has_the_published_parameters),
        cmocka_unit_test(test_catalog_names_of_repositories_are_found),
        cmocka_unit_test(test_catalog_unknown_name_is_refused_with_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
