/* test_remedy.c - goal: the ladder helps, is gentle, and ends. Every rung kept has a lower planned
 * need than the one before; the last one fits, or nothing would; a smaller capacity never gets
 * fewer changes; and the need that was planned for a layout is what a run of it then takes.
 * Method: a golden model on the null device, at capacities between what it asks for and too
 * little. */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/train/remedy.h"
#include "tests/golden/support_golden.h"

enum { ROWS = 8, LENGTH = 256, EVAL_ROWS = 16 };

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

static void find_shapes(void *context, bool eval, const struct layout *layout,
                        struct batch_shapes *out) {
    const struct batch_options options = {
        .micro_rows = eval ? layout->eval_rows : layout->micro_rows, .max_length = LENGTH};
    (void)context;
    shapes_full(out, &options);
}

/* A model that trains on full rows, and what is asked of the ladder about it. */
struct subject {
    struct golden g;
    struct batch_shapes train, eval;
    struct shape_source source;
    struct plan_request request;
    struct layout asked;
};

static void open_subject(struct subject *s, const char *variant, const char *changes, bool evals) {
    golden_open(&s->g, "gemma3", variant, "null:cpu", changes);
    s->asked = layout_of_spec(&s->g.spec, &s->g.config);
    s->source = (struct shape_source){.find = find_shapes};
    find_shapes(NULL, false, &s->asked, &s->train);
    find_shapes(NULL, true, &s->asked, &s->eval);
    s->request = (struct plan_request){.config = &s->g.config,
                                       .options = &s->g.options,
                                       .spec = &s->g.spec,
                                       .train = &s->train,
                                       .eval = evals ? &s->eval : NULL,
                                       .source = &s->source};
}

#define ASKED(more)                                                                                \
    "{\"per_device_train_batch_size\":8,\"per_device_eval_batch_size\":16,"                        \
    "\"loss_chunk_rows\":1024,\"data\":{\"train_files\":[\"x\"],\"max_length\":256}" more "}"

static void find(const struct subject *s, int64_t capacity, struct remedy_list *list) {
    struct err e = {0};
    *list = (struct remedy_list){.excluded = list->excluded, .host_room = list->host_room};
    must(remedies_find(list, &s->request, &s->asked, capacity, &e), &e);
}

/* The kinds of a list, neighbours that are equal once: "micro_batch loss_chunk". */
static void name_kinds(const struct remedy_list *list, struct str *out) {
    str_clear(out);
    for (int64_t i = 0; i < list->count; i++) {
        if (i > 0 && list->items[i].kind == list->items[i - 1].kind) continue;
        str_appendf(out, "%s%s", out->len ? " " : "", remedy_name(list->items[i].kind));
    }
}

static void check_list(const struct subject *s, const struct remedy_list *list, int64_t capacity) {
    int64_t need = plan_need(&list->now);
    assert_true(list->count > 0 || list->fits == (need <= capacity));
    for (int64_t i = 0; i < list->count; i++) {
        const struct remedy *const r = &list->items[i];
        struct plan again;
        struct err e = {0};
        assert_true(plan_need(&r->plan) < need);
        need = plan_need(&r->plan);
        assert_int_equal(r->fits, need <= capacity);
        assert_true(i + 1 == list->count || !r->fits);
        assert_true(r->text[0] && r->cost > 0.99 && r->cost < 2);
        must(remedy_plan(&again, &s->request, &r->layout, &e), &e);
        assert_int_equal(plan_need(&again), need);
    }
    assert_int_equal(list->fits, need <= capacity);
}

static void test_remedies_shrinkingCapacity_climbTheLadderInOrder(void **state) {
    (void)state;
    struct subject s;
    struct remedy_list list = {0};
    struct str kinds = {0}, before = {0};
    open_subject(&s, "lora", ASKED(""), false);
    find(&s, INT64_MAX, &list);
    const int64_t need = plan_need(&list.now);
    assert_true(list.fits && list.count == 0);
    find(&s, 1 << 20, &list);
    assert_false(list.fits);
    assert_true(list.count > 3);
    const int64_t least = plan_need(&list.items[list.count - 1].plan);
    name_kinds(&list, &kinds);
    assert_string_equal(str_text(&kinds), "micro_batch loss_chunk checkpoint_all");
    remedy_list_release(&list);
    int64_t last = 0;
    bool some = false;
    for (int step = 0; step <= 40; step++) {
        const int64_t capacity = need - (need - least) * step / 40;
        find(&s, capacity, &list);
        check_list(&s, &list, capacity);
        assert_true(list.fits);
        name_kinds(&list, &kinds);
        assert_true(list.count >= last);
        last = list.count;
        some = some || strstr(str_text(&kinds), "checkpoint_some");
        remedy_list_release(&list);
    }
    assert_true(some);
    find(&s, least, &list);
    assert_true(list.fits);
    remedy_list_release(&list);
    find(&s, least - 1, &list);
    assert_false(list.fits);
    remedy_list_release(&list);
    str_release(&kinds);
    str_release(&before);
    golden_close(&s.g);
}

static void test_remedies_largeEvaluation_leavesTrainingAlone(void **state) {
    (void)state;
    struct subject s;
    struct remedy_list list = {0};
    /* Evaluation of 256 rows is larger than training with all checkpointed. */
    open_subject(&s, "lora",
                 "{\"per_device_train_batch_size\":1,\"per_device_eval_batch_size\":256,"
                 "\"gradient_checkpointing\":true,\"loss_chunk_rows\":64,"
                 "\"data\":{\"train_files\":[\"x\"],\"max_length\":256}}",
                 true);
    find(&s, INT64_MAX, &list);
    find(&s, plan_need(&list.now) - 1, &list);
    assert_true(list.fits);
    for (int64_t i = 0; i < list.count; i++) {
        assert_int_equal(list.items[i].kind, REMEDY_EVAL_BATCH);
        assert_int_equal(list.items[i].layout.micro_rows, 1);
    }
    check_list(&s, &list, plan_need(&list.now) - 1);
    remedy_list_release(&list);
    golden_close(&s.g);
}

static void test_remedies_excludedKinds_areNotListed(void **state) {
    (void)state;
    struct subject s;
    struct remedy_list list = {.excluded = 1u << REMEDY_MICRO_BATCH};
    open_subject(&s, "full", ASKED(""), false);
    find(&s, 1 << 20, &list);
    assert_true(list.count > 0);
    for (int64_t i = 0; i < list.count; i++) {
        assert_int_not_equal(list.items[i].kind, REMEDY_MICRO_BATCH);
    }
    remedy_list_release(&list);
    golden_close(&s.g);
}

static void test_remedies_card_offloadsLast(void **state) {
    (void)state;
    struct subject s;
    struct remedy_list list = {0};
    struct str kinds = {0};
    open_subject(&s, "lora", ASKED(",\"device\":\"cuda:0\",\"bf16\":true"), false);
    find(&s, 1 << 20, &list);
    name_kinds(&list, &kinds);
    assert_non_null(strstr(str_text(&kinds), "offload_activations"));
    assert_true(list.items[list.count - 1].layout.activation_offloading);
    check_list(&s, &list, 1 << 20);
    remedy_list_release(&list);
    str_release(&kinds);
    golden_close(&s.g);
}

/* What would go to the host is offered only where the host has room for it. */
static void test_remedies_fullHost_keepsTheOptimizerOnTheDevice(void **state) {
    (void)state;
    static const int64_t ROOMS[] = {0, 1, INT64_C(1) << 40};
    for (size_t i = 0; i < COUNT_OF(ROOMS); i++) {
        struct subject s;
        struct remedy_list list = {.host_room = ROOMS[i]};
        struct str kinds = {0};
        open_subject(&s, "full", ASKED(",\"device\":\"cuda:0\",\"bf16\":true"), false);
        s.g.config.vocab_size = 1 << 19; /* states that are more than what visits of them */
        find(&s, 1 << 20, &list);
        name_kinds(&list, &kinds);
        assert_int_equal(strstr(str_text(&kinds), "offload_optimizer") != NULL, ROOMS[i] != 1);
        check_list(&s, &list, 1 << 20);
        remedy_list_release(&list);
        str_release(&kinds);
        golden_close(&s.g);
    }
}

/* Frozen weights leave a GPU last, with their price; where the host is the device they stay. */
static void test_remedies_frozenWeights_leaveAGpuLast(void **state) {
    (void)state;
    static const char *const DEVICES[] = {ASKED(",\"device\":\"cuda:0\",\"bf16\":true"), ASKED("")};
    for (size_t i = 0; i < COUNT_OF(DEVICES); i++) {
        struct subject s;
        struct remedy_list list = {0};
        struct str kinds = {0};
        open_subject(&s, "lora", DEVICES[i], false);
        s.g.config.layers = 8; /* weights that are more than two layers */
        find(&s, 1 << 20, &list);
        name_kinds(&list, &kinds);
        const bool gpu = i == 0;
        assert_int_equal(strstr(str_text(&kinds), "offload_params") != NULL, gpu);
        for (int64_t k = 0; k < list.count; k++) {
            const struct remedy *const r = &list.items[k];
            if (r->kind != REMEDY_OFFLOAD_PARAMS) continue;
            assert_true(r->layout.param_offloading && r->plan.staged_train > 0);
            assert_true(r->plan.bus_micro > 0);
            assert_non_null(strstr(r->text, "come over the bus in a micro-batch"));
        }
        check_list(&s, &list, 1 << 20);
        remedy_list_release(&list);
        str_release(&kinds);
        golden_close(&s.g);
    }
}

static void test_remedy_undo_takesBackOneKind(void **state) {
    (void)state;
    const struct layout asked = {.micro_rows = 8, .loss_chunk_rows = 1024, .eval_rows = 4};
    struct layout now = asked;
    assert_int_equal(remedy_difference(&now, &asked, -1), REMEDY_KIND_COUNT);
    now.micro_rows = 2;
    now.checkpointed_layers = 3;
    now.activation_offloading = true;
    assert_int_equal(remedy_difference(&now, &asked, -1), REMEDY_MICRO_BATCH);
    assert_int_equal(remedy_difference(&now, &asked, REMEDY_MICRO_BATCH), REMEDY_CHECKPOINT_SOME);
    assert_int_equal(remedy_difference(&now, &asked, REMEDY_CHECKPOINT_SOME),
                     REMEDY_OFFLOAD_ACTIVATIONS);
    struct layout to = remedy_undo(&now, &asked, REMEDY_CHECKPOINT_ALL);
    assert_int_equal(to.checkpointed_layers, 0);
    assert_false(to.activation_offloading);
    assert_int_equal(to.micro_rows, 2);
    to = remedy_undo(&now, &asked, REMEDY_MICRO_BATCH);
    assert_int_equal(to.micro_rows, 8);
    assert_int_equal(to.checkpointed_layers, 3);
    for (int kind = 0; kind < REMEDY_KIND_COUNT; kind++) {
        assert_int_equal(remedy_parse(remedy_name((enum remedy_kind)kind)), kind);
    }
    assert_int_equal(remedy_parse("luck"), REMEDY_KIND_COUNT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_remedies_shrinkingCapacity_climbTheLadderInOrder),
        cmocka_unit_test(test_remedies_largeEvaluation_leavesTrainingAlone),
        cmocka_unit_test(test_remedies_excludedKinds_areNotListed),
        cmocka_unit_test(test_remedies_card_offloadsLast),
        cmocka_unit_test(test_remedies_fullHost_keepsTheOptimizerOnTheDevice),
        cmocka_unit_test(test_remedies_frozenWeights_leaveAGpuLast),
        cmocka_unit_test(test_remedy_undo_takesBackOneKind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
