/* support_tape.h - what the tests of operations on the tape share: one operation under test, its
 * inputs, and the check of its gradients.
 *
 * Method: for a scalar loss sum(weights * out) and a random direction d, the directional derivative
 * (L(p + h d) - L(p - h d)) / 2h must equal the sum of gradient * d, for every input that wants a
 * gradient; with h = 1e-2 and fp32 losses of size 1, rounding and curvature stay below the
 * tolerance of 1e-3. Header only, because every unit test links the support files. */
#ifndef PLIMSOLL_TESTS_SUPPORT_TAPE_H
#define PLIMSOLL_TESTS_SUPPORT_TAPE_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/tensor/ops.h"

enum { TOKENS = 13, SEGMENTS = 3, INPUTS_MAX = 10, CAPACITY = 64 << 20 };

/* One operation under test: its inputs are leaf tensors; run() makes `out` from them. */
struct subject {
    struct tensor_space space;
    struct device *device;
    struct arena *arena;
    struct tape tape;
    struct tensor *inputs[INPUTS_MAX]; /* those with a gradient are checked */
    int input_count;
    struct tensor *weights; /* of the loss, shape of out */
    struct tensor *ids, *positions, *cu_seqlens, *row_keys, *inv_freq;
    struct linear linear, after; /* after: behind a gated unit */
    struct norm norm;
    struct attention_options attention;
    struct documents documents;
    struct random_keys keys;
    enum status (*run)(struct subject *, struct tensor **out, struct err *);
    bool checkpoint;
    uint32_t random;
};

static inline void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

static inline float uniform(struct subject *s) {
    s->random = s->random * 1664525u + 1013904223u;
    return (float)(s->random >> 8) / 8388608.0f - 1.0f;
}

static inline struct tensor *random_tensor(struct subject *s, int64_t rows, int64_t cols,
                                           float scale, float shift) {
    struct err e = {0};
    struct tensor *t = NULL;
    must(tensor_new(&s->space, DTYPE_F32, rows, cols, CATEGORY_WEIGHTS, &t, &e), &e);
    float *const values = mem_new((size_t)(rows * cols), sizeof *values);
    for (int64_t i = 0; i < rows * cols; i++) {
        values[i] = shift + scale * uniform(s);
    }
    must(tensor_upload(t, values, &e), &e);
    mem_free(values);
    return t;
}

static inline struct tensor *input(struct subject *s, int64_t rows, int64_t cols, float scale,
                                   float shift) {
    struct tensor *const t = random_tensor(s, rows, cols, scale, shift);
    tensor_want_gradient(t);
    s->inputs[s->input_count++] = t;
    return t;
}

static inline struct tensor *host_tensor(struct subject *s, enum dtype dtype, const void *values,
                                         int64_t count) {
    struct err e = {0};
    struct tensor *t = NULL;
    must(tensor_new(&s->space, dtype, 1, count, CATEGORY_STAGING, &t, &e), &e);
    must(tensor_upload(t, values, &e), &e);
    return t;
}

static inline int setup(void **state) {
    struct subject *const s = mem_new(1, sizeof *s);
    struct err e = {0};
    must(device_open(&s->device, "cpu", &(struct device_options){0}, &e), &e);
    must(arena_open(&s->arena, s->device, CAPACITY, &e), &e);
    must(tensor_space_init(&s->space, s->device, s->arena, &e), &e);
    tape_init(&s->tape, &s->space);
    s->random = 7;
    int32_t ids[TOKENS], positions[TOKENS];
    int64_t keys[TOKENS];
    const int32_t cu_seqlens[SEGMENTS + 1] = {0, 5, 6, TOKENS};
    for (int t = 0, d = 0; t < TOKENS; t++) {
        d += t == cu_seqlens[d + 1];
        ids[t] = (t * 5) % 7;
        positions[t] = t - cu_seqlens[d];
        keys[t] = (int64_t)d << 24 | positions[t];
    }
    s->ids = host_tensor(s, DTYPE_I32, ids, TOKENS);
    s->positions = host_tensor(s, DTYPE_I32, positions, TOKENS);
    s->cu_seqlens = host_tensor(s, DTYPE_I32, cu_seqlens, SEGMENTS + 1);
    s->row_keys = host_tensor(s, DTYPE_I64, keys, TOKENS);
    s->documents = (struct documents){.segments = SEGMENTS,
                                      .max_seqlen = 7,
                                      .positions = s->positions,
                                      .cu_seqlens = s->cu_seqlens};
    s->keys = (struct random_keys){.seed = 3, .step = 1, .row_keys = s->row_keys};
    *state = s;
    return 0;
}

static inline int teardown(void **state) {
    struct subject *const s = *state;
    for (int i = 0; i < s->input_count; i++) {
        tensor_release(s->inputs[i]);
    }
    tensor_release(s->weights);
    tensor_release(s->ids);
    tensor_release(s->positions);
    tensor_release(s->cu_seqlens);
    tensor_release(s->row_keys);
    tensor_release(s->inv_freq);
    tensor_release(s->linear.augmented);
    tensor_release(s->after.weight);
    tape_release(&s->tape);
    tensor_space_release(&s->space); /* asserts that nothing leaked */
    arena_close(s->arena);
    device_close(s->device);
    mem_free(s);
    return 0;
}

static inline double loss_of(struct subject *s) {
    struct err e = {0};
    struct tensor *out = NULL;
    s->tape.recording = false;
    must(s->run(s, &out, &e), &e);
    const int64_t count = tensor_count(out);
    float *const y = mem_new((size_t)count, sizeof *y), *const w =
                                                            mem_new((size_t)count, sizeof *w);
    must(tensor_download(out, y, &e), &e);
    must(tensor_download(s->weights, w, &e), &e);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)y[i] * w[i];
    }
    mem_free(y);
    mem_free(w);
    tensor_release(out);
    return sum;
}

static inline void compute_gradients(struct subject *s) {
    struct err e = {0};
    struct tensor *out = NULL;
    s->tape.recording = true;
    must(s->run(s, &out, &e), &e);
    s->tape.recording = false;
    if (!s->weights) s->weights = random_tensor(s, out->rows, out->cols, 1, 0);
    must(gradient_add(out->gradient, s->weights, &e), &e);
    tensor_release(out);
    must(tape_backward(&s->tape, 0, &e), &e);
}

/* L at input + h * direction. */
static inline double shifted(struct subject *s, struct tensor *t, const float *values,
                             const float *direction, double h) {
    struct err e = {0};
    const int64_t count = tensor_count(t);
    float *const moved = mem_new((size_t)count, sizeof *moved);
    for (int64_t i = 0; i < count; i++) {
        moved[i] = (float)(values[i] + h * direction[i]);
    }
    must(tensor_upload(t, moved, &e), &e);
    const double loss = loss_of(s);
    must(tensor_upload(t, values, &e), &e);
    mem_free(moved);
    return loss;
}

static inline void check_input(struct subject *s, int index) {
    struct err e = {0};
    struct tensor *const t = s->inputs[index];
    const int64_t count = tensor_count(t);
    float *const values = mem_new((size_t)count, sizeof *values),
                 *const direction = mem_new((size_t)count, sizeof *direction),
                 *const gradient = mem_new((size_t)count, sizeof *gradient);
    must(tensor_download(t, values, &e), &e);
    assert_non_null(t->gradient->value);
    must(tensor_download(t->gradient->value, gradient, &e), &e);
    double expected = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        direction[i] = uniform(s);
        expected += (double)gradient[i] * direction[i];
        size += fabs((double)gradient[i] * direction[i]);
    }
    const double h = 1e-2;
    const double got =
        (shifted(s, t, values, direction, h) - shifted(s, t, values, direction, -h)) / (2 * h);
    if (!(fabs(got - expected) <= 1e-3 * (size + 1e-3))) {
        fail_msg("input %d: the difference quotient is %.6f, the gradient says %.6f", index, got,
                 expected);
    }
    mem_free(values);
    mem_free(direction);
    mem_free(gradient);
}

static inline void check(struct subject *s) {
    compute_gradients(s);
    for (int i = 0; i < s->input_count; i++) {
        if (s->inputs[i]->gradient) check_input(s, i);
    }
}

#define WITH_SUBJECT(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

#endif
