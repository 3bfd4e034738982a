/* test_holdings.c - goal: the table of what is in memory says what is there: every parameter is
 * counted once, types are those of the tensors, and bytes add up to what the arena counted. Method:
 * golden models of several families on null devices, which hold the same tensors as the real ones,
 * in the precisions that people ask about. */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "engine/train/holdings.h"
#include "tests/golden/support_golden.h"

static int64_t part_bytes(const struct holding *h, enum holding_part part) {
    int64_t sum = 0;
    for (int d = 0; d < DTYPE_COUNT; d++) {
        sum += h->bytes[part][d];
    }
    return sum;
}

static void open_and_find(struct golden *g, const char *family, const char *variant,
                          const char *device, const char *changes, struct holdings *out) {
    golden_open(g, family, variant, device, changes);
    holdings_find(out, &g->session);
}

/* Counts against the model's own, bytes against the arena's. Flat buffers have gaps, so states may
 * be a little less than what was allocated, never more. */
static void check_sums(const struct golden *g, const struct holdings *h) {
    const struct model *const m = &g->session.model;
    struct arena_stats stats;
    int64_t parameters = 0, trained = 0, gradients = 0, optimizer = 0;
    arena_get_stats(g->session.arena, &stats);
    for (int i = 0; i < HOLDING_GROUP_COUNT; i++) {
        if (i != HOLDING_ADAPTERS) parameters += h->groups[i].parameters;
        trained += h->groups[i].trained;
        gradients += part_bytes(&h->groups[i], HOLDING_GRADIENTS);
        optimizer += part_bytes(&h->groups[i], HOLDING_OPTIMIZER);
    }
    assert_int_equal(parameters, m->parameter_count);
    assert_int_equal(trained, m->trainable_count);
    assert_int_equal(gradients, 4 * trained);
    assert_int_equal(optimizer, 8 * trained);
    assert_true(gradients <= stats.by_category[CATEGORY_GRADIENTS]);
    assert_true(gradients > stats.by_category[CATEGORY_GRADIENTS] * 9 / 10);
    assert_true(optimizer <= stats.by_category[CATEGORY_OPTIMIZER]);
    assert_true(optimizer > stats.by_category[CATEGORY_OPTIMIZER] * 9 / 10);
}

static void test_holdings_add_up_in_every_family(void **state) {
    (void)state;
    static const char *const FAMILIES[] = {"llama", "qwen2", "qwen3", "phi3", "gemma3"};
    static const char *const VARIANTS[] = {"lora", "full"};
    for (size_t i = 0; i < COUNT_OF(FAMILIES); i++) {
        for (size_t v = 0; v < COUNT_OF(VARIANTS); v++) {
            if (!golden_has(FAMILIES[i], VARIANTS[v])) continue;
            struct golden g;
            struct holdings h;
            open_and_find(&g, FAMILIES[i], VARIANTS[v], "null:cpu", NULL, &h);
            check_sums(&g, &h);
            golden_close(&g);
        }
    }
}

/* "Does the adapter train, and is the rest frozen?" */
static void test_holdings_lora_trains_the_adapters_only(void **state) {
    (void)state;
    struct golden g;
    struct holdings h;
    open_and_find(&g, "llama", "lora", "null:cpu", NULL, &h);
    for (int i = 0; i < HOLDING_GROUP_COUNT; i++) {
        const struct holding *const group = &h.groups[i];
        assert_int_equal(group->trained, i == HOLDING_ADAPTERS ? group->parameters : 0);
        if (i != HOLDING_ADAPTERS) assert_int_equal(part_bytes(group, HOLDING_OPTIMIZER), 0);
    }
    assert_true(h.groups[HOLDING_ADAPTERS].trained > 0);
    golden_close(&g);
}

/* "Is mixed precision really on?": bf16 weights, f32 norms, and f32 masters of what is trained. */
static void test_holdings_types_are_those_of_the_tensors(void **state) {
    (void)state;
    static const struct {
        const char *variant, *changes;
        enum holding_group group;
        enum dtype weights;
        bool masters;
    } cases[] = {
        {"lora", "{\"bf16\":true}", HOLDING_MLP, DTYPE_BF16, false},
        {"lora", "{\"bf16\":true}", HOLDING_ADAPTERS, DTYPE_BF16, true},
        {"lora", "{\"bf16\":true}", HOLDING_NORMS, DTYPE_F32, false},
        /* In tails the forward pass reads a scaled copy, also in full precision. */
        {"lora", NULL, HOLDING_ADAPTERS, DTYPE_F32, true},
        {"full", NULL, HOLDING_MLP, DTYPE_F32, false},
        {"full", "{\"bf16\":true}", HOLDING_MLP, DTYPE_BF16, true},
        {"full", "{\"device\":\"cuda:0\",\"fp16\":true}", HOLDING_ATTENTION, DTYPE_F16, true},
        {"full", "{\"device\":\"cuda:0\",\"bf16\":true,\"stochastic_rounding\":true}", HOLDING_MLP,
         DTYPE_BF16, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct golden g;
        struct holdings h;
        open_and_find(&g, "llama", cases[i].variant, "null:cuda", cases[i].changes, &h);
        const struct holding *const group = &h.groups[cases[i].group];
        const int64_t width = dtype_bytes(cases[i].weights);
        assert_int_equal(group->bytes[HOLDING_WEIGHTS][cases[i].weights],
                         width * group->parameters);
        assert_int_equal(part_bytes(group, HOLDING_WEIGHTS), width * group->parameters);
        assert_int_equal(part_bytes(group, HOLDING_MASTER),
                         cases[i].masters ? 4 * group->parameters : 0);
        check_sums(&g, &h);
        golden_close(&g);
    }
}

static void test_holdings_json_names_types_and_leaves_out_what_is_not(void **state) {
    (void)state;
    struct holdings h = {.tied = true};
    struct holding *const one = &h.groups[HOLDING_ATTENTION];
    one->parameters = 10;
    one->bytes[HOLDING_WEIGHTS][DTYPE_F32] = 8;
    one->bytes[HOLDING_WEIGHTS][DTYPE_BF16] = 16;
    cJSON *json = holdings_to_json(&h);
    struct str text = {0};
    json_append(&text, json);
    assert_string_equal(str_text(&text),
                        "[{\"name\":\"attention\",\"parameters\":10,\"trained\":0,"
                        "\"weights\":\"bfloat16, float32\",\"gradients\":null,\"master\":null,"
                        "\"optimizer\":null,\"bytes\":{\"weights\":24,\"gradients\":0,"
                        "\"master\":0,\"optimizer\":0}}]");
    str_release(&text);
    cJSON_Delete(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holdings_add_up_in_every_family),
        cmocka_unit_test(test_holdings_lora_trains_the_adapters_only),
        cmocka_unit_test(test_holdings_types_are_those_of_the_tensors),
        cmocka_unit_test(test_holdings_json_names_types_and_leaves_out_what_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
