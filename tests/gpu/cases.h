/* cases.h - the case table of the GPU suite: what a case is, and what the files cases_*.c use.
 *
 * A case makes its arrays, names what it runs, and compares. Every array lives twice, on the CPU
 * device (floats always as f32) and on the card (in its own dtype); inputs are random and rounded
 * to the card's dtype first, so that both sides compute from the same numbers. Outputs begin as
 * NaN on both sides, padding between rows included. The operation is written once, as a function
 * of the side. A file cases_NAME.c defines `const struct gpu_suite gpu_suite_NAME`; the build finds
 * it. */
#ifndef PLIMSOLL_TESTS_GPU_CASES_H
#define PLIMSOLL_TESTS_GPU_CASES_H

#include "kernels/device.h"

enum side { SIDE_CPU, SIDE_GPU, SIDE_COUNT };

struct gpu_test;

/* One row of a table. `n` and `x` are sizes and settings whose meaning is that of `run`. */
struct gpu_case {
    const char *name; /* "rmsnorm/4096x4096"; the dtype is added to what is printed */
    enum status (*run)(struct gpu_test *, const struct gpu_case *, struct err *e);
    enum dtype dtype;
    enum precision precision; /* of the card; the CPU always computes in fp32 */
    bool deterministic;
    int64_t n[8];
    double x[4];
};

struct gpu_suite {
    const char *name;
    const struct gpu_case *cases;
    int64_t count;
};

/* [rows, cols] with ld elements between rows, on both sides. Freed when the case ends. */
struct gpu_array {
    int64_t rows, cols, ld;
    enum dtype dtype; /* on the card; on the CPU f32 in place of bf16 and f16 */
    void *at[SIDE_COUNT];
};

/* Which device a side is; for the facts of it. */
struct device *gpu_device(struct gpu_test *t, enum side side);

/* Normal values times `size`, rounded to dtype. */
struct gpu_array *gpu_random(struct gpu_test *t, int64_t rows, int64_t cols, int64_t ld,
                             enum dtype dtype, double size);
/* NaN (for integers -1) everywhere: what the operation does not write shows. */
struct gpu_array *gpu_output(struct gpu_test *t, int64_t rows, int64_t cols, int64_t ld,
                             enum dtype dtype);
/* Zeros: what the operation adds to. */
struct gpu_array *gpu_zeros(struct gpu_test *t, int64_t rows, int64_t cols, int64_t ld,
                            enum dtype dtype);
/* Copies of `values` [count] i32, i64 or f32 (by dtype) as [1, count]. */
struct gpu_array *gpu_values(struct gpu_test *t, const void *values, int64_t count,
                             enum dtype dtype);
/* Uniform i32 in 0..below-1, [1, count]. */
struct gpu_array *gpu_indices(struct gpu_test *t, int64_t count, int64_t below);
/* Device memory for one f64 [1, count], zero; compared by gpu_compare_f64. */
struct gpu_array *gpu_doubles(struct gpu_test *t, int64_t count);
/* `bytes` of device memory on each side; NULL for 0. */
void *gpu_scratch(struct gpu_test *t, enum side side, int64_t bytes);

/* The dtype that an operation's arguments name on that side, and the operand of a product. */
enum dtype gpu_dtype(const struct gpu_array *a, enum side side);
struct matrix gpu_matrix(const struct gpu_array *a, enum side side);
/* The next number of the case's stream in 0..2^64-1, for the cases' own choices. */
uint64_t gpu_next(struct gpu_test *t);

/* The operation, on one side; `context` is the case's own. */
typedef enum status gpu_op(struct device *device, enum side side, void *context, struct err *e);

/* Runs it once on the CPU and once on the card. */
enum status gpu_run(struct gpu_test *t, gpu_op *op, void *context, struct err *e);

/* ||card - CPU|| / ||CPU|| over the whole array must be at most `tolerance`; NaN never passes, and
 * the padding between rows must be as it was. tolerance 0 means gpu_tolerance of the dtype. The
 * largest error of a case is printed with its tolerance. Integers must be equal. */
void gpu_compare(struct gpu_test *t, const struct gpu_array *a, const char *what, double tolerance);
/* 2e-5 for f32 (sums in another order), 6e-3 for bf16 (one rounding is 2^-9), 1e-3 for f16. */
double gpu_tolerance(enum dtype dtype);
void gpu_compare_f64(struct gpu_test *t, const struct gpu_array *a, const char *what,
                     double tolerance);
/* The whole array of the card as f32 (floats), row after row without padding. Caller frees with
 * mem_free. */
float *gpu_read(struct gpu_test *t, const struct gpu_array *a, enum side side);
/* Fails the case with this text unless `ok`. */
void gpu_expect(struct gpu_test *t, bool ok, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* After the comparison: runs the operation on the card again and again and keeps the median time;
 * `bytes` and `flops` of one run give gbps and tflops (0: not printed). It may destroy what was
 * compared. */
enum status gpu_time(struct gpu_test *t, gpu_op *op, void *context, double bytes, double flops,
                     struct err *e);

#endif
