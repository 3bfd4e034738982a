/* test_plan_advice.c - goal: the advice is the choice table of the field: what is too big decides
 * what is offered, best first; nothing is offered that is on already. Method: the pure function on
 * made-up numbers, one row of the table after the other. */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/train/advice.h"

/* A full bf16 run on a card of 80 units that has 16 of weights and 28 of states. */
static struct advice_facts base(void) {
    return (struct advice_facts){.capacity = 80,
                                 .need = 100,
                                 .weights = 16,
                                 .states = 28,
                                 .optimizer = 16,
                                 .ranks = 1,
                                 .longest = 2048,
                                 .rows = 4,
                                 .accumulation = 1,
                                 .full = true,
                                 .gpu = true};
}

static void must_offer(const struct advice_facts *facts, const char *names) {
    enum advice_kind kinds[ADVICE_KIND_COUNT];
    struct str found = {0};
    const int count = advice_choose(facts, kinds);
    for (int i = 0; i < count; i++) {
        str_appendf(&found, "%s%s", i ? " " : "", advice_name(kinds[i]));
    }
    assert_string_equal(str_text(&found), names);
    str_release(&found);
}

static void test_advice_what_fits_needs_nothing(void **state) {
    (void)state;
    struct advice_facts f = base();
    f.need = 80;
    must_offer(&f, "plain");
}

static void test_advice_states_too_big_means_adapters_or_dividing(void **state) {
    (void)state;
    struct advice_facts f = base();
    f.states = 90, f.optimizer = 60;
    must_offer(&f, "lora stochastic_rounding zero shard");
    f.rounding = true;
    must_offer(&f, "lora shard");
    f.gpu = f.rounding = false;
    f.zero_stage = 1;
    must_offer(&f, "lora shard");
}

static void test_advice_weights_too_big_means_four_bits_or_sharding(void **state) {
    (void)state;
    struct advice_facts f = base();
    f.full = false;
    f.weights = 140, f.states = 1, f.optimizer = 1;
    must_offer(&f, "nf4 shard");
    f.wide = true;
    must_offer(&f, "bf16 nf4 shard");
    f.wide = false;
    f.weights = 60; /* they leave no room for activations */
    must_offer(&f, "checkpointing micro_batch nf4 shorter");
    f.quantised = true;
    must_offer(&f, "checkpointing micro_batch shorter");
}

static void test_advice_activations_too_big_means_checkpointing(void **state) {
    (void)state;
    struct advice_facts f = base();
    must_offer(&f, "checkpointing micro_batch shorter");
    f.checkpointing = true;
    f.rows = 1;
    must_offer(&f, "shorter");
}

static void test_advice_long_rows_mean_offloading(void **state) {
    (void)state;
    struct advice_facts f = base();
    f.longest = 32768, f.rows = 1;
    must_offer(&f, "checkpointing offloading shorter");
    f.offloading = f.checkpointing = true;
    must_offer(&f, "shorter");
    f.offloading = f.gpu = false;
    must_offer(&f, "shorter");
}

/* As many ranks as it takes for weights, gradients and a share of the states. */
static void test_advice_dividing_names_how_many_ranks(void **state) {
    (void)state;
    struct advice_facts f = base();
    f.states = 90, f.optimizer = 60;
    cJSON *const keys = advice_keys(ADVICE_ZERO, &f);
    struct str text = {0};
    json_append(&text, keys);
    assert_string_equal(str_text(&text),
                        "{\"device\":\"cuda\",\"parallel\":{\"ranks\":2,\"zero_stage\":1}}");
    str_release(&text);
    cJSON_Delete(keys);
    f.states = 150, f.optimizer = 140;
    char *const sentence = advice_sentence(ADVICE_ZERO, &f);
    assert_non_null(strstr(sentence, "among 4 cards"));
    mem_free(sentence);
    f.weights = 1000, f.gpu = false;
    cJSON *const shard = advice_keys(ADVICE_SHARD, &f);
    text = (struct str){0};
    json_append(&text, shard);
    assert_string_equal(str_text(&text), "{\"parallel\":{\"ranks\":32,\"zero_stage\":3}}");
    str_release(&text);
    cJSON_Delete(shard);
}

static void test_advice_every_kind_has_a_name_and_a_sentence(void **state) {
    (void)state;
    const struct advice_facts f = base();
    for (int i = 0; i < ADVICE_KIND_COUNT; i++) {
        char *const text = advice_sentence((enum advice_kind)i, &f);
        assert_non_null(text);
        assert_true(advice_name((enum advice_kind)i)[0] != 0);
        mem_free(text);
        cJSON_Delete(advice_keys((enum advice_kind)i, &f));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_advice_what_fits_needs_nothing),
        cmocka_unit_test(test_advice_states_too_big_means_adapters_or_dividing),
        cmocka_unit_test(test_advice_weights_too_big_means_four_bits_or_sharding),
        cmocka_unit_test(test_advice_activations_too_big_means_checkpointing),
        cmocka_unit_test(test_advice_long_rows_mean_offloading),
        cmocka_unit_test(test_advice_dividing_names_how_many_ranks),
        cmocka_unit_test(test_advice_every_kind_has_a_name_and_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
