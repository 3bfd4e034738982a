/* gate.c - a counting semaphore whose wait has a deadline.
 *
 * On the monotonic clock, so that setting the machine's time neither frees nor strands a waiter. */
#include "server/run/gate.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "base/mem.h"

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    int free, places;
};

struct gate *gate_new(int places) {
    ASSERT(places > 0);
    struct gate *const gate = mem_new(1, sizeof *gate);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->freed, &attributes);
    pthread_condattr_destroy(&attributes);
    gate->free = gate->places = places;
    return gate;
}

void gate_free(struct gate *gate) {
    if (!gate) return;
    ASSERT(gate->free == gate->places);
    pthread_cond_destroy(&gate->freed);
    pthread_mutex_destroy(&gate->lock);
    mem_free(gate);
}

static struct timespec deadline_in(int64_t limit_ms) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += limit_ms / 1000;
    at.tv_nsec += limit_ms % 1000 * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

enum status gate_enter(struct gate *gate, int64_t limit_ms, struct err *e) {
    const struct timespec deadline = deadline_in(limit_ms);
    int code = 0;
    pthread_mutex_lock(&gate->lock);
    while (gate->free == 0 && code == 0) {
        code = pthread_cond_timedwait(&gate->freed, &gate->lock, &deadline);
    }
    const bool entered = gate->free > 0;
    if (entered) gate->free--;
    pthread_mutex_unlock(&gate->lock);
    FAIL_IF(!entered, STATUS_TIMEOUT,
            "the server is busy with %d questions of this kind: ask again in a moment",
            gate->places);
    return STATUS_OK;
}

void gate_leave(struct gate *gate) {
    pthread_mutex_lock(&gate->lock);
    ASSERT(gate->free < gate->places);
    gate->free++;
    pthread_cond_signal(&gate->freed);
    pthread_mutex_unlock(&gate->lock);
}
