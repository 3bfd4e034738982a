/* test_plan_print.c - goal: the report of `plimsoll plan` says what the plan says. Verdict first,
 * bars that add up and are cut by the capacity's line at the right place, remedies with the keys
 * that ask for them, nothing of a model's name that steers the terminal. Method: JSON as the engine
 * answers, the text that comes out. */
/* rooms: server */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "server/cli/plan_print.h"

/* A plan that does not fit; 46 cells are 23 GB: two cells a GB. */
static const char UNFIT[] = "tests/unit/data/plan_unfit.json";

/* Of a file, or of JSON as it stands there. */
static char *print(const char *source, bool colour) {
    struct err e = {0};
    struct str out = {0};
    cJSON *json = NULL;
    const bool file = str_ends_with(source, ".json");
    const enum status status = file ? json_read_file(source, 1 << 16, &json, &e)
                                    : json_parse(source, strlen(source), "plan", &json, &e);
    if (status != STATUS_OK) fail_msg("%s", e.text);
    plan_print(&out, json, colour);
    cJSON_Delete(json);
    return str_take(&out);
}

static void must_say(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" is not in:\n%s", part, text);
}

static void test_plan_print_begins_with_the_verdict(void **state) {
    (void)state;
    char *const text = print(UNFIT, false);
    must_say(text, "DOES NOT FIT  it needs 23, 20 are there");
    assert_true(strstr(text, "DOES NOT FIT") < strstr(text, "load "));
    must_say(text, "LoRA r 16 trains 41.9M of them");
    must_say(text, "4 rows of at most 1024 tokens");
    mem_free(text);
}

static void test_plan_print_bars_are_to_scale(void **state) {
    (void)state;
    char *const text = print(UNFIT, false);
    must_say(text, "  load        wwwwwwwwwwwwwwwwwwww                    \xE2\x94\x82");
    must_say(text, "  backward    wwwwwwwwwwwwwwwwwwww####################\xE2\x94\x82######");
    must_say(text, "<- fullest");
    mem_free(text);
}

static void test_plan_print_remedies_come_with_their_keys(void **state) {
    (void)state;
    char *const text = print(UNFIT, false);
    must_say(text, "work x1.25");
    must_say(text, "--set per_device_train_batch_size=2 --set data.max_length=512");
    must_say(text, "Spread it.");
    must_say(text, "not measured on this device yet");
    mem_free(text);
}

static void test_plan_print_nothing_steers_the_terminal(void **state) {
    (void)state;
    char *const plain = print(UNFIT, false), *const coloured = print(UNFIT, true);
    assert_null(strchr(plain, '\033'));
    assert_null(strstr(coloured, "b\033[31m"));
    must_say(coloured, "b<U+001B>[31m");
    mem_free(plain);
    mem_free(coloured);
}

/* What comes over the network may be anything. */
static void test_plan_print_an_empty_answer_is_no_crash(void **state) {
    (void)state;
    static const char *const TEXTS[] = {"{}", "[]", "{\"phase_table\":[1,{}],\"remedies\":[{}]}",
                                        "{\"advice\":{\"a\":1},\"ranks\":[1,2]}"};
    for (size_t i = 0; i < COUNT_OF(TEXTS); i++) {
        char *const text = print(TEXTS[i], false);
        assert_non_null(text);
        mem_free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_print_begins_with_the_verdict),
        cmocka_unit_test(test_plan_print_bars_are_to_scale),
        cmocka_unit_test(test_plan_print_remedies_come_with_their_keys),
        cmocka_unit_test(test_plan_print_nothing_steers_the_terminal),
        cmocka_unit_test(test_plan_print_an_empty_answer_is_no_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
