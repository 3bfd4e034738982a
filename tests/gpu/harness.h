/* harness.h - what the GPU suite's main file and the machinery behind cases.h share.
 *
 * Each side has one range of reserved memory from which a case's arrays are cut, one behind the
 * other; it is given back after the case. A card is opened once for each pair of precision and
 * determinism, and stays open. */
#ifndef PLIMSOLL_TESTS_GPU_HARNESS_H
#define PLIMSOLL_TESTS_GPU_HARNESS_H

#include "tests/gpu/cases.h"

enum { GPU_ARRAYS_MAX = 64, GPU_TEXT_MAX = 512 };

struct gpu_side {
    struct device *device;
    char *base;
    int64_t range, committed, used, kept; /* kept: what lies below stays: the workspace */
};

struct gpu_test {
    struct gpu_side *sides[SIDE_COUNT];
    struct gpu_array arrays[GPU_ARRAYS_MAX];
    int array_count;
    uint64_t random;
    const char *program; /* to start itself again, for faults that end a process */
    const char *card;    /* "cuda:0" */
    bool timed;
    /* What came out. `worst` is error / tolerance of the comparison that was closest to failing. */
    double error, tolerance, worst;
    char what[64];
    char failure[GPU_TEXT_MAX];
    double us, gbps, tflops;
};

enum status gpu_side_open(struct gpu_side *side, const char *name,
                          const struct device_options *options, struct err *e);
void gpu_side_close(struct gpu_side *side);

/* Empties the result and the arrays; the seed depends on the name alone, so that a case can be run
 * by itself. */
void gpu_test_begin(struct gpu_test *t, const char *name);
void gpu_test_end(struct gpu_test *t);

#endif
