/* test_device_books.c - goal: what others hold on a device is what neither this rank nor the run's
 * other ranks there hold, whatever processes there are; a device that is not known may be shared.
 * Method: shares of ranks as they come over the host channel, and a session on the CPU. */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "engine/train/session.h"

static void test_device_books_hear_counts_ranks_on_the_same_device_only(void **state) {
    (void)state;
    const struct device_share shares[] = {{7, 100}, {7, 200}, {9, 400}, {0, 800}};
    struct device_books books = {.place = 7};
    device_books_hear(&books, shares, 4, 0);
    assert_int_equal(books.ours_elsewhere, 200);
    assert_true(books.shared);
    books.place = 9;
    device_books_hear(&books, shares, 4, 2);
    assert_int_equal(books.ours_elsewhere, 0);
    assert_false(books.shared);
    books.place = 0; /* not known: nothing can be counted, and it may be shared */
    device_books_hear(&books, shares, 4, 1);
    assert_int_equal(books.ours_elsewhere, 0);
    assert_true(books.shared);
    device_books_hear(&books, shares, 1, 0);
    assert_false(books.shared);
}

/* On the CPU the device is the host; the place is that of its boot. */
static void test_device_books_on_the_cpu_are_those_of_the_host(void **state) {
    (void)state;
    struct device_books books = {0};
    struct session s = {.books = &books};
    struct err e = {0};
    struct device_view view;
    device_books_begin(&books, "cpu");
    assert_int_equal(device_open(&s.device, "cpu", &(struct device_options){0}, &e), STATUS_OK);
    assert_int_equal(arena_open(&s.arena, s.device, 64 << 20, &e), STATUS_OK);
    assert_int_equal(device_books_join(&s, &e), STATUS_OK);
    assert_int_equal(books.place, 0); /* a rank that is alone does not ask */
    assert_true(books.held > 0);
    assert_int_equal(device_books_look(&s, &view, &e), STATUS_OK);
    assert_true(view.used > 0 && view.used <= view.total);
    assert_true(view.others >= 0 && view.others <= view.used);
    assert_int_equal(view.communication, 0);
    /* Another rank of this run that holds everything leaves nothing to strangers. */
    books.place = 7;
    const struct device_share shares[] = {{books.place, books.held}, {books.place, view.total}};
    device_books_hear(&books, shares, 2, 0);
    assert_int_equal(device_books_look(&s, &view, &e), STATUS_OK);
    assert_int_equal(view.others, 0);
    arena_close(s.arena);
    device_close(s.device);
}

static void test_device_books_on_a_null_device_have_no_others(void **state) {
    (void)state;
    struct session s = {0};
    struct err e = {0};
    struct device_view view;
    struct arena_block *block = NULL;
    assert_int_equal(device_open(&s.device, "null:cuda", &(struct device_options){0}, &e),
                     STATUS_OK);
    assert_int_equal(arena_open(&s.arena, s.device, 64 << 20, &e), STATUS_OK);
    assert_int_equal(arena_alloc(s.arena, 1000, CATEGORY_WEIGHTS, &block, &e), STATUS_OK);
    assert_int_equal(device_books_join(&s, &e), STATUS_OK); /* nobody keeps books: fine */
    assert_int_equal(device_books_look(&s, &view, &e), STATUS_OK);
    assert_int_equal(view.others, 0);
    assert_true(view.used >= 1024);
    arena_free(s.arena, block);
    arena_close(s.arena);
    device_close(s.device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_books_hear_counts_ranks_on_the_same_device_only),
        cmocka_unit_test(test_device_books_on_the_cpu_are_those_of_the_host),
        cmocka_unit_test(test_device_books_on_a_null_device_have_no_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
