/* test_optimizer_away.c - goal: AdamW's states in host memory visit the device in slices and come
 * back changed, all of them, and the update is the same to the bit as with states that stay.
 * Method: several slices and a rest through away_each on the CPU device, against one call over
 * everything; the null device takes the same room. */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "engine/train/optimizer_away.h"

/* Two whole slices of 4 Mi elements, and a rest. */
enum { COUNT = (8 << 20) + 1029, UPDATES = 3 };

struct place {
    struct device *device;
    struct arena *arena;
    struct tensor_space space;
};

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

static void place_open(struct place *p, const char *name) {
    struct err e = {0};
    const struct device_options options = {.precision = PRECISION_F32};
    must(device_open(&p->device, name, &options, &e), &e);
    must(arena_open(&p->arena, p->device, INT64_C(1) << 30, &e), &e);
    p->space = (struct tensor_space){.device = p->device, .arena = p->arena};
}

static void place_close(struct place *p) {
    assert_int_equal(p->space.host_bytes, 0);
    tensor_space_release(&p->space);
    arena_close(p->arena);
    device_close(p->device);
}

struct work {
    struct device *device;
    float *param, *grad, *scale;
    int64_t step, visited;
};

static enum status visit(const void *context, const struct away_slice *s, struct err *e) {
    struct work *const w = *(struct work *const *)context;
    assert_int_equal(s->first, w->visited);
    w->visited += s->count;
    const struct adamw_args args = {.count = s->count,
                                    .param_dtype = DTYPE_F32,
                                    .state_dtype = DTYPE_F32,
                                    .param = w->param + s->first,
                                    .grad = w->grad + s->first,
                                    .m = s->state[0],
                                    .v = s->state[1],
                                    .grad_scale = w->scale,
                                    .lr = 1e-3,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .eps = 1e-8,
                                    .weight_decay = 0.01,
                                    .step = w->step};
    return device_adamw(w->device, &args, e);
}

static void fill(float *x, uint32_t seed) {
    for (int64_t i = 0; i < COUNT; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 16777216.0f - 0.5f;
    }
}

static struct tensor *new_tensor(struct place *p, uint32_t seed) {
    struct tensor *t = NULL;
    struct err e = {0};
    must(tensor_new(&p->space, DTYPE_F32, 1, COUNT, CATEGORY_STAGING, &t, &e), &e);
    if (seed) {
        fill(tensor_f32(t), seed);
    } else {
        must(tensor_fill_zero(t, &e), &e);
    }
    return t;
}

/* Trains one parameter with states here, and its twin with states away; then they move in. */
static void test_states_away_give_the_same_bits(void **state) {
    (void)state;
    struct place p = {0};
    struct err e = {0};
    struct states_away away = {0};
    float one = 0.75f;
    place_open(&p, "cpu");
    struct tensor *const grad = new_tensor(&p, 1), *const m = new_tensor(&p, 0);
    struct tensor *const v = new_tensor(&p, 0), *const here = new_tensor(&p, 2);
    struct tensor *const there = new_tensor(&p, 2);
    must(away_open(&away, &p.space, COUNT, NULL, &e), &e);
    for (int64_t step = 1; step <= UPDATES; step++) {
        struct work w = {p.device, tensor_f32(here), tensor_f32(grad), &one, step, 0};
        const struct work *const first = &w;
        const struct away_slice all = {0, COUNT, {tensor_f32(m), tensor_f32(v)}, {NULL}};
        must(visit(&first, &all, &e), &e);
        struct work twin = {p.device, tensor_f32(there), tensor_f32(grad), &one, step, 0};
        const struct work *const second = &twin;
        must(away_each(&away, visit, &second, &e), &e);
        assert_int_equal(twin.visited, COUNT);
    }
    const size_t bytes = COUNT * sizeof(float);
    assert_memory_equal(tensor_f32(here), tensor_f32(there), bytes);
    assert_memory_equal(away_state(&away, 0), tensor_f32(m), bytes);
    assert_memory_equal(away_state(&away, 1), tensor_f32(v), bytes);
    away_close(&away);
    struct tensor *const all[] = {grad, m, v, here, there};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        tensor_release(all[i]);
    }
    place_close(&p);
}

/* 560 GB of states of a 70B model: planned, not taken. */
static void test_null_device_plans_states_of_any_size(void **state) {
    (void)state;
    struct place p = {0};
    struct err e = {0};
    struct states_away away = {0};
    const int64_t count = INT64_C(70) << 30;
    place_open(&p, "null:cuda");
    must(away_open(&away, &p.space, count, NULL, &e), &e);
    assert_int_equal(p.space.host_bytes, 8 * count);
    struct arena_stats stats;
    arena_get_stats(p.arena, &stats);
    assert_int_equal(stats.allocated, 6 * (16 << 20));
    away_close(&away);
    place_close(&p);
}

static void test_no_room_on_the_device_is_told_and_leaves_nothing(void **state) {
    (void)state;
    struct place p = {0};
    struct err e = {0};
    struct states_away away = {0};
    const struct device_options options = {.precision = PRECISION_F32};
    must(device_open(&p.device, "cpu", &options, &e), &e);
    must(arena_open(&p.arena, p.device, 24 << 20, &e), &e);
    p.space = (struct tensor_space){.device = p.device, .arena = p.arena};
    assert_int_equal(away_open(&away, &p.space, COUNT, NULL, &e), STATUS_OOM);
    away_close(&away);
    struct arena_stats stats;
    arena_get_stats(p.arena, &stats);
    assert_int_equal(stats.allocated, 0);
    place_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_away_give_the_same_bits),
        cmocka_unit_test(test_null_device_plans_states_of_any_size),
        cmocka_unit_test(test_no_room_on_the_device_is_told_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
