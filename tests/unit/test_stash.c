/* test_stash.c - goal: a tensor that waited in host memory comes back with the same bytes, whatever
 * its size and the order of return, and steady steps take no more host memory. Method: tensors of
 * several pieces with known values are sent away, their bytes overwritten, and taken back. */
/* rooms: engine_tensor */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "engine/tensor/tensor.h"

/* A piece is 8 MiB: two of these are five pieces and a bit. */
enum { COLS = 1024, ROWS = 5500, TENSORS = 3, CAPACITY = 256 << 20 };

struct place {
    struct device *device;
    struct arena *arena;
    struct tensor_space space;
};

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

static void place_open(struct place *p, const char *device) {
    struct err e = {0};
    must(device_open(&p->device, device, &(struct device_options){0}, &e), &e);
    must(arena_open(&p->arena, p->device, CAPACITY, &e), &e);
    must(tensor_space_init(&p->space, p->device, p->arena, &e), &e);
}

static void place_close(struct place *p) {
    tensor_space_release(&p->space); /* asserts that nothing leaked */
    arena_close(p->arena);
    device_close(p->device);
}

/* Padded rows: what lies in the padding is carried too. */
static struct tensor *make(struct place *p, int64_t rows) {
    struct err e = {0};
    struct tensor *t = NULL;
    const struct shape shape = {.dtype = DTYPE_F32, .rows = rows, .cols = COLS, .tail = 8};
    must(tensor_make(&p->space, &shape, CATEGORY_ACTIVATIONS, &t, &e), &e);
    return t;
}

static void fill(struct tensor *t, uint32_t seed) {
    uint32_t *const words = t->data;
    for (int64_t i = 0; i < t->rows * t->ld; i++) {
        words[i] = (uint32_t)i * 2654435761u + seed;
    }
}

static void assert_filled(const struct tensor *t, uint32_t seed) {
    const uint32_t *const words = t->data;
    for (int64_t i = 0; i < t->rows * t->ld; i++) {
        if (words[i] != (uint32_t)i * 2654435761u + seed)
            fail_msg("word %lld of the tensor of seed %u is wrong", (long long)i, seed);
    }
}

/* Sends tensors of `rows` and more rows away, spoils them, and takes them back in the order of a
 * backward pass: each recalled while the one after it is still used. */
static void send_and_take(struct place *p, int64_t rows) {
    struct err e = {0};
    struct stash *stashes[TENSORS] = {0};
    for (uint32_t i = 0; i < TENSORS; i++) {
        struct tensor *const t = make(p, rows + i);
        if (p->device->computes) fill(t, i);
        must(stash_send(t, &stashes[i], &e), &e);
        must(device_copies_wait(p->device, &e), &e);
        must(tensor_fill_zero(t, &e), &e);
        tensor_release(t);
    }
    for (uint32_t i = TENSORS; i-- > 0;) {
        struct tensor *t = NULL;
        must(stash_take(stashes[i], &t, &e), &e);
        if (i > 0) must(stash_recall(stashes[i - 1], &e), &e);
        assert_int_equal(t->rows, rows + i);
        assert_int_equal(t->cols, COLS);
        if (p->device->computes) assert_filled(t, i);
        stash_release(stashes[i]);
        tensor_release(t);
    }
}

static void test_stash_of_several_pieces_comes_back_bit_for_bit(void **state) {
    struct place p = {0};
    (void)state;
    place_open(&p, "cpu");
    send_and_take(&p, ROWS);
    place_close(&p);
}

static void test_stash_host_memory_is_used_again_whatever_the_shape(void **state) {
    static const char *const DEVICES[] = {"cpu", "null:cuda"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(DEVICES); i++) {
        struct place p = {0};
        place_open(&p, DEVICES[i]);
        send_and_take(&p, ROWS);
        const int64_t taken = p.space.host_bytes;
        assert_true(taken >= (int64_t)TENSORS * ROWS * COLS * 4);
        for (int64_t rows = 1; rows <= ROWS; rows += 1833) {
            send_and_take(&p, rows);
            assert_int_equal(p.space.host_bytes, taken);
        }
        place_close(&p);
    }
}

/* Recalled and never taken, or never recalled: what an error on the way leaves. */
static void test_stash_released_early_leaves_nothing(void **state) {
    struct place p = {0};
    struct err e = {0};
    struct stash *recalled = NULL, *away = NULL;
    (void)state;
    place_open(&p, "cpu");
    struct tensor *const t = make(&p, 100);
    must(stash_send(t, &recalled, &e), &e);
    must(stash_send(t, &away, &e), &e);
    must(stash_recall(recalled, &e), &e);
    stash_release(recalled);
    stash_release(away);
    stash_release(NULL);
    tensor_release(t);
    assert_int_equal(p.space.live_tensors, 0);
    place_close(&p);
}

static void test_stash_more_than_the_host_has_is_refused_with_the_numbers(void **state) {
    struct place p = {0};
    struct err e = {0};
    void *host = &host;
    (void)state;
    place_open(&p, "cpu");
    assert_int_equal(device_stage_new(p.device, INT64_C(1) << 50, &host, &e), STATUS_DEVICE);
    assert_null(host);
    assert_non_null(strstr(e.text, "available"));
    place_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stash_of_several_pieces_comes_back_bit_for_bit),
        cmocka_unit_test(test_stash_host_memory_is_used_again_whatever_the_shape),
        cmocka_unit_test(test_stash_released_early_leaves_nothing),
        cmocka_unit_test(test_stash_more_than_the_host_has_is_refused_with_the_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
