/* support_ops.h - what the tests of the device's operations share: a CPU device with its workspace,
 * random inputs, the comparison with a reference in double, and gradients by central differences of
 * that reference.
 *
 * Header only, because every unit test links the support files and only these know of devices.
 * Seeds are fixed. */
#ifndef PLIMSOLL_TESTS_SUPPORT_OPS_H
#define PLIMSOLL_TESTS_SUPPORT_OPS_H

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "kernels/device.h"

#define ops_ok(call)                                                                               \
    do {                                                                                           \
        struct err ops_error_ = {0};                                                               \
        struct err *const e = &ops_error_;                                                         \
        if ((call) != STATUS_OK) fail_msg("%s", ops_error_.text);                                  \
    } while (0)

/* Without a workspace. */
static inline struct device *ops_open_named(const char *name, enum precision precision) {
    struct device *device = NULL;
    ops_ok(device_open(&device, name, &(struct device_options){.precision = precision}, e));
    return device;
}

static inline struct device *ops_open(void) {
    struct device *device = ops_open_named("cpu", PRECISION_F32);
    device_set_workspace(device, mem_new(1, (size_t)device->workspace_bytes));
    return device;
}

static inline void ops_close_device(struct device *device) {
    mem_free(device->workspace);
    device_close(device);
}

/* Uniform in [-1,1); splitmix64. */
static inline double ops_uniform(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-52 - 1.0;
}

/* New array of `count` random floats of at most `size`. Caller frees with mem_free. */
static inline float *ops_random(int64_t count, double size, uint64_t seed) {
    float *x = mem_new((size_t)count + 1, sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)(size * ops_uniform(&seed));
    }
    return x;
}

static inline double *ops_widen(const float *x, int64_t count) {
    double *wide = mem_new((size_t)count + 1, sizeof *wide);
    for (int64_t i = 0; i < count; i++) {
        wide[i] = (double)x[i];
    }
    return wide;
}

/* |got - want| <= tolerance * (scale + |want|); NaN never passes. */
static inline void ops_near(double got, double want, double tolerance, double scale,
                            const char *what, int64_t at) {
    if (fabs(got - want) <= tolerance * (scale + fabs(want))) return;
    fail_msg("%s[%lld] is %.9g, the reference says %.9g", what, (long long)at, got, want);
}

static inline void ops_near_all(const float *got, const double *want, int64_t count,
                                double tolerance, double scale, const char *what) {
    for (int64_t i = 0; i < count; i++) {
        ops_near((double)got[i], want[i], tolerance, scale, what, i);
    }
}

/* A function of an input that the test may change, and what is called its gradient. */
struct ops_gradient {
    double *input;
    const float *grad;
    int64_t count;
    double (*loss)(void *);
    void *context;
    const char *what;
};

/* Checks `samples` entries (all when samples >= count) against central differences of the loss. */
static inline void ops_check_gradient(const struct ops_gradient *g, int64_t samples,
                                      double tolerance) {
    const int64_t count = g->count;
    double *input = g->input;
    const double step = 1e-4;
    uint64_t state = 77;
    const int64_t tries = samples < count ? samples : count;
    for (int64_t s = 0; s < tries; s++) {
        const int64_t i =
            samples < count ? (int64_t)((ops_uniform(&state) + 1) / 2 * (double)count) : s;
        const double old = input[i];
        input[i] = old + step;
        const double high = g->loss(g->context);
        input[i] = old - step;
        const double low = g->loss(g->context);
        input[i] = old;
        ops_near((double)g->grad[i], (high - low) / (2 * step), tolerance, 1, g->what, i);
    }
}

#endif
