/* test_alloc_conf.c - goal: a PYTORCH_CUDA_ALLOC_CONF that a user brings along is either taken over
 * or refused with the key's name and a reason, and contradictions name both sides (case M05).
 * Method: tables of values with the outcome wanted. */
/* rooms: engine_memory */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/memory/alloc_conf.h"

static const char VARIABLE[] = "PYTORCH_CUDA_ALLOC_CONF";

static void test_alloc_conf_known_keys_are_taken_over(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool expandable;
        int64_t split_mib;
        double collect;
    } cases[] = {
        {"", false, 0, 0},
        {"expandable_segments:True", true, 0, 0},
        {"max_split_size_mb:128", false, 128, 0},
        {"garbage_collection_threshold:0.6,max_split_size_mb:128", false, 128, 0.6},
        {" expandable_segments : True , backend:native,", true, 0, 0},
        /* M05: PyTorch ends in an assertion where both are set; here each does its own work. */
        {"expandable_segments:True,max_split_size_mb:512", true, 512, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct alloc_conf conf;
        struct err e = {0};
        assert_int_equal(alloc_conf_parse(&conf, VARIABLE, cases[i].text, &e), STATUS_OK);
        assert_int_equal(conf.expandable_segments, cases[i].expandable);
        assert_int_equal(conf.max_split_bytes, cases[i].split_mib << 20);
        assert_true(conf.collect_threshold == cases[i].collect);
    }
}

static void test_alloc_conf_everything_else_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum status status;
        const char *names;
    } cases[] = {
        {"roundup_power2_divisions:[256:1,512:2]", STATUS_UNSUPPORTED, "roundup_power2_divisions"},
        {"backend:cudaMallocAsync", STATUS_UNSUPPORTED, "cudaMallocAsync"},
        {"expandable_segments:False", STATUS_UNSUPPORTED, "expandable_segments:False"},
        {"per_process_memory_fraction:0.5", STATUS_UNSUPPORTED, "memory.cap"},
        {"pinned_num_register_threads:8", STATUS_UNSUPPORTED, "pinned_num_register_threads"},
        {"max_split_size_mb:128,max_split:1", STATUS_UNSUPPORTED, "max_split is not known"},
        {"max_split_size_mb:20", STATUS_INVALID, "\"20\""},
        {"max_split_size_mb:many", STATUS_INVALID, "\"many\""},
        {"max_split_size_mb", STATUS_INVALID, "max_split_size_mb"},
        {"garbage_collection_threshold:1", STATUS_INVALID, "between 0 and 1"},
        {"garbage_collection_threshold:nan", STATUS_INVALID, "between 0 and 1"},
        {"expandable_segments:yes", STATUS_INVALID, "True or False"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct alloc_conf conf;
        struct err e = {0};
        assert_int_equal(alloc_conf_parse(&conf, VARIABLE, cases[i].text, &e), cases[i].status);
        assert_non_null(strstr(e.text, cases[i].names));
        assert_non_null(strstr(e.text, VARIABLE));
        assert_string_equal(e.param, VARIABLE);
    }
}

static void test_alloc_conf_two_variables_must_agree(void **state) {
    (void)state;
    struct alloc_conf conf;
    struct err e = {0};
    unsetenv("PYTORCH_CUDA_ALLOC_CONF");
    unsetenv("PYTORCH_ALLOC_CONF");
    assert_int_equal(alloc_conf_read(&conf, &e), STATUS_OK);
    assert_null(conf.variable);
    setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64", 1);
    assert_int_equal(alloc_conf_read(&conf, &e), STATUS_OK);
    assert_string_equal(conf.variable, "PYTORCH_ALLOC_CONF");
    assert_int_equal(conf.max_split_bytes, 64 << 20);
    setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32", 1);
    assert_int_equal(alloc_conf_read(&conf, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "PYTORCH_ALLOC_CONF"));
    assert_non_null(strstr(e.text, "PYTORCH_CUDA_ALLOC_CONF"));
    unsetenv("PYTORCH_CUDA_ALLOC_CONF");
    unsetenv("PYTORCH_ALLOC_CONF");
}

/* M05: settings are judged together, and the error names both. */
static void test_alloc_conf_against_the_spec_names_both(void **state) {
    (void)state;
    struct alloc_conf conf;
    struct err e = {0};
    assert_int_equal(alloc_conf_parse(&conf, VARIABLE,
                                      "max_split_size_mb:64,garbage_collection_threshold:0.5", &e),
                     STATUS_OK);
    struct arena_settings settings = {0};
    assert_int_equal(alloc_conf_apply(&conf, 1000, &settings, &e), STATUS_OK);
    assert_int_equal(settings.split_limit, 64 << 20);
    assert_int_equal(settings.trim_threshold, 500);
    settings = (struct arena_settings){.split_limit = 1 << 20};
    assert_int_equal(alloc_conf_apply(&conf, 1000, &settings, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "memory.split_limit"));
    assert_non_null(strstr(e.text, "max_split_size_mb"));
    err_clear(&e);
    settings = (struct arena_settings){.trim_threshold = 1 << 20};
    assert_int_equal(alloc_conf_apply(&conf, 1000, &settings, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "memory.trim_threshold"));
    assert_non_null(strstr(e.text, "garbage_collection_threshold"));
}

static void test_alloc_conf_description_says_what_was_taken(void **state) {
    (void)state;
    struct alloc_conf conf = {0};
    struct str text = {0};
    struct err e = {0};
    alloc_conf_describe(&conf, &text);
    assert_int_equal(text.len, 0);
    assert_int_equal(
        alloc_conf_parse(&conf, VARIABLE, "expandable_segments:True,max_split_size_mb:64", &e),
        STATUS_OK);
    alloc_conf_describe(&conf, &text);
    assert_string_equal(str_text(&text),
                        "PYTORCH_CUDA_ALLOC_CONF: expandable_segments is how the arena always "
                        "works, max_split_size_mb sets memory.split_limit to 64 MiB");
    str_release(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alloc_conf_known_keys_are_taken_over),
        cmocka_unit_test(test_alloc_conf_everything_else_is_refused_by_name),
        cmocka_unit_test(test_alloc_conf_two_variables_must_agree),
        cmocka_unit_test(test_alloc_conf_against_the_spec_names_both),
        cmocka_unit_test(test_alloc_conf_description_says_what_was_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
