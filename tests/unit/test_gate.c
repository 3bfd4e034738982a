/* test_gate.c - goal: no more are inside than there are places, a waiter gets the place that is
 * given back, and nobody waits beyond the limit. Method: threads that count who is inside.
 * rooms: server engine_contract base */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/file.h"
#include "server/run/gate.h"
#include "server/run/process.h"

enum { PLACES = 2, THREADS = 12, INSIDE_MS = 5, LIMIT_MS = 20000, SHORT_MS = 30 };

struct crowd {
    struct gate *gate;
    atomic_int inside, most, served;
};

static void *pass_through(void *context) {
    struct crowd *const crowd = context;
    struct err e = {0};
    if (gate_enter(crowd->gate, LIMIT_MS, &e) != STATUS_OK) return NULL;
    const int now = atomic_fetch_add(&crowd->inside, 1) + 1;
    int most = atomic_load(&crowd->most);
    while (now > most && !atomic_compare_exchange_weak(&crowd->most, &most, now)) {
    }
    process_pause_ms(INSIDE_MS);
    atomic_fetch_sub(&crowd->inside, 1);
    atomic_fetch_add(&crowd->served, 1);
    gate_leave(crowd->gate);
    return NULL;
}

static void test_gate_crowd_is_served_in_turn(void **state) {
    (void)state;
    struct crowd crowd = {.gate = gate_new(PLACES)};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, pass_through, &crowd), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(atomic_load(&crowd.served), THREADS);
    assert_int_equal(atomic_load(&crowd.most), PLACES);
    gate_free(crowd.gate);
}

static void test_gate_full_says_so_after_the_limit(void **state) {
    (void)state;
    struct gate *const gate = gate_new(1);
    struct err e = {0};
    assert_int_equal(gate_enter(gate, 0, &e), STATUS_OK);
    const int64_t begin_ns = clock_steady_ns();
    assert_int_equal(gate_enter(gate, SHORT_MS, &e), STATUS_TIMEOUT);
    assert_true(clock_steady_ns() - begin_ns >= (int64_t)SHORT_MS * 1000000);
    gate_leave(gate);
    err_clear(&e);
    assert_int_equal(gate_enter(gate, 0, &e), STATUS_OK);
    gate_leave(gate);
    gate_free(gate);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gate_crowd_is_served_in_turn),
        cmocka_unit_test(test_gate_full_says_so_after_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
