/* harness.c - arrays on both sides, the comparison and the clock of the GPU suite.
 *
 * Memory is filled with bytes 0xFF before anything is put there: NaN in every float type and -1 in
 * integers, so that an element that is not written, or padding that is, shows. */
#include "tests/gpu/harness.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum { GRANULE = 512, POISON = 0xFF, NORMALS = 1 << 16 };
static const int64_t RANGE_BYTES = INT64_C(48) << 30;
static const int64_t KEPT_COMMITTED_MAX = INT64_C(2) << 30;
static const double TIMED_NS = 30e6;
enum { BATCHES = 5, RUNS_MAX = 200 };

static int64_t round_up(int64_t value, int64_t to) {
    return (value + to - 1) / to * to;
}

/* `bytes` at the end of what is used. */
static enum status cut(struct gpu_side *side, int64_t bytes, void **out, struct err *e) {
    const int64_t end = side->used + round_up(bytes, GRANULE);
    const int64_t page = side->device->page_bytes;
    FAIL_IF(end > side->range, STATUS_OOM, "the case needs more than %lld bytes",
            (long long)side->range);
    if (end > side->committed) {
        const int64_t more = round_up(end - side->committed, page);
        TRY(device_commit(side->device, side->base + side->committed, more, e));
        side->committed += more;
    }
    *out = side->base + side->used;
    side->used = end;
    return STATUS_OK;
}

enum status gpu_side_open(struct gpu_side *side, const char *name,
                          const struct device_options *options, struct err *e) {
    void *base = NULL, *workspace = NULL;
    TRY(device_open(&side->device, name, options, e));
    side->range = round_up(RANGE_BYTES, side->device->page_bytes);
    TRY(device_reserve(side->device, side->range, &base, e));
    side->base = base;
    TRY(cut(side, side->device->workspace_bytes, &workspace, e));
    device_set_workspace(side->device, workspace);
    side->kept = side->used;
    return STATUS_OK;
}

void gpu_side_close(struct gpu_side *side) {
    if (!side->device) return;
    if (side->committed > 0) device_decommit(side->device, side->base, side->committed);
    device_unreserve(side->device, side->base, side->range);
    device_close(side->device);
    *side = (struct gpu_side){.device = NULL};
}

/* Gives back what the case used; on the CPU always, so that the process stays small. */
static void empty(struct gpu_side *side) {
    const int64_t keep = round_up(side->kept, side->device->page_bytes);
    const bool large = side->device->kind == DEVICE_CPU || side->committed > KEPT_COMMITTED_MAX;
    if (large && side->committed > keep) {
        device_decommit(side->device, side->base + keep, side->committed - keep);
        side->committed = keep;
    }
    side->used = side->kept;
}

void gpu_test_begin(struct gpu_test *t, const char *name) {
    t->array_count = 0;
    t->random = UINT64_C(0xCBF29CE484222325);
    for (const char *c = name; *c; c++) {
        t->random = (t->random ^ (uint64_t)(unsigned char)*c) * UINT64_C(0x100000001B3);
    }
    t->error = t->tolerance = t->worst = t->us = t->gbps = t->tflops = 0;
    t->what[0] = t->failure[0] = '\0';
}

void gpu_test_end(struct gpu_test *t) {
    for (int side = 0; side < SIDE_COUNT; side++) {
        empty(t->sides[side]);
    }
}

struct device *gpu_device(struct gpu_test *t, enum side side) {
    return t->sides[side]->device;
}

void gpu_expect(struct gpu_test *t, bool ok, const char *format, ...) {
    if (ok || t->failure[0]) return;
    va_list args;
    va_start(args, format);
    vsnprintf(t->failure, sizeof t->failure, format, args);
    va_end(args);
}

uint64_t gpu_next(struct gpu_test *t) {
    uint64_t z = (t->random += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* ---- dtypes on the host ---- */

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value)) return 0x7FFF;
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t value) {
    const uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static uint16_t to_f16(float value) {
    const _Float16 narrow = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return bits;
}

static float from_f16(uint16_t bits) {
    _Float16 narrow;
    memcpy(&narrow, &bits, sizeof narrow);
    return (float)narrow;
}

static bool is_half(enum dtype dtype) {
    return dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

static float rounded(float value, enum dtype dtype) {
    if (dtype == DTYPE_BF16) return from_bf16(to_bf16(value));
    return dtype == DTYPE_F16 ? from_f16(to_f16(value)) : value;
}

enum dtype gpu_dtype(const struct gpu_array *a, enum side side) {
    return side == SIDE_CPU && is_half(a->dtype) ? DTYPE_F32 : a->dtype;
}

struct matrix gpu_matrix(const struct gpu_array *a, enum side side) {
    return (struct matrix){a->at[side], gpu_dtype(a, side), a->ld};
}

/* ---- arrays ---- */

static int64_t bytes_on(const struct gpu_array *a, enum side side) {
    return a->rows * a->ld * dtype_bytes(gpu_dtype(a, side));
}

/* A case that cannot get its memory ends the program: nothing after it would mean anything. */
static void must(enum status status, const struct err *error) {
    if (status == STATUS_OK) return;
    fprintf(stderr, "gpu_ops: %s\n", error->text);
    exit(2);
}

static void put(struct gpu_test *t, struct gpu_array *a, enum side side, const void *bytes) {
    struct err error = {0};
    must(device_upload(gpu_device(t, side), a->at[side], bytes, bytes_on(a, side), &error), &error);
}

static struct gpu_array *new_array(struct gpu_test *t, int64_t rows, int64_t cols, int64_t ld,
                                   enum dtype dtype) {
    struct err error = {0};
    ASSERT(t->array_count < GPU_ARRAYS_MAX && rows > 0 && cols > 0 && ld >= cols);
    struct gpu_array *a = &t->arrays[t->array_count++];
    *a = (struct gpu_array){.rows = rows, .cols = cols, .ld = ld, .dtype = dtype};
    for (enum side side = 0; side < SIDE_COUNT; side++) {
        must(cut(t->sides[side], bytes_on(a, side), &a->at[side], &error), &error);
        unsigned char *poison = mem_new(1, (size_t)bytes_on(a, side));
        memset(poison, POISON, (size_t)bytes_on(a, side));
        put(t, a, side, poison);
        mem_free(poison);
    }
    return a;
}

/* Puts f32 values [rows, ld], which are already rounded, on both sides; padding stays poison. */
static void put_floats(struct gpu_test *t, struct gpu_array *a, const float *values) {
    const int64_t count = a->rows * a->ld;
    put(t, a, SIDE_CPU, values);
    if (!is_half(a->dtype)) {
        put(t, a, SIDE_GPU, values);
        return;
    }
    uint16_t *narrow = mem_new((size_t)count, sizeof *narrow);
    for (int64_t i = 0; i < count; i++) {
        narrow[i] = a->dtype == DTYPE_BF16 ? to_bf16(values[i]) : to_f16(values[i]);
        if (i % a->ld >= a->cols) narrow[i] = 0xFFFF;
    }
    put(t, a, SIDE_GPU, narrow);
    mem_free(narrow);
}

static float *normal_table(struct gpu_test *t) {
    float *table = mem_new(NORMALS, sizeof *table);
    for (int i = 0; i < NORMALS; i++) {
        const double u = ((double)(gpu_next(t) >> 11) + 0.5) * 0x1p-53;
        const double v = (double)(gpu_next(t) >> 11) * 0x1p-53;
        table[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
    return table;
}

struct gpu_array *gpu_random(struct gpu_test *t, int64_t rows, int64_t cols, int64_t ld,
                             enum dtype dtype, double size) {
    struct gpu_array *a = new_array(t, rows, cols, ld, dtype);
    float *table = normal_table(t);
    float *values = mem_new((size_t)(rows * ld), sizeof *values);
    memset(values, POISON, (size_t)(rows * ld) * sizeof *values);
    for (int64_t i = 0; i < NORMALS; i++) {
        table[i] = rounded((float)size * table[i], dtype);
    }
    for (int64_t r = 0; r < rows; r++) {
        uint64_t bits = 0;
        for (int64_t c = 0; c < cols; c++) {
            bits = c % 4 == 0 ? gpu_next(t) : bits >> 16;
            values[r * ld + c] = table[bits & (NORMALS - 1)];
        }
    }
    put_floats(t, a, values);
    mem_free(values);
    mem_free(table);
    return a;
}

struct gpu_array *gpu_output(struct gpu_test *t, int64_t rows, int64_t cols, int64_t ld,
                             enum dtype dtype) {
    return new_array(t, rows, cols, ld, dtype);
}

struct gpu_array *gpu_zeros(struct gpu_test *t, int64_t rows, int64_t cols, int64_t ld,
                            enum dtype dtype) {
    struct gpu_array *a = new_array(t, rows, cols, ld, dtype);
    for (enum side side = 0; side < SIDE_COUNT; side++) {
        const int64_t element = dtype_bytes(gpu_dtype(a, side));
        unsigned char *bytes = mem_new(1, (size_t)bytes_on(a, side));
        for (int64_t r = 0; r < rows; r++) {
            memset(bytes + (r * ld + cols) * element, POISON, (size_t)((ld - cols) * element));
        }
        put(t, a, side, bytes);
        mem_free(bytes);
    }
    return a;
}

struct gpu_array *gpu_values(struct gpu_test *t, const void *values, int64_t count,
                             enum dtype dtype) {
    ASSERT(!is_half(dtype));
    struct gpu_array *a = new_array(t, 1, count, count, dtype);
    for (enum side side = 0; side < SIDE_COUNT; side++) {
        put(t, a, side, values);
    }
    return a;
}

struct gpu_array *gpu_indices(struct gpu_test *t, int64_t count, int64_t below) {
    int32_t *values = mem_new((size_t)count, sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        values[i] = (int32_t)(gpu_next(t) % (uint64_t)below);
    }
    struct gpu_array *a = gpu_values(t, values, count, DTYPE_I32);
    mem_free(values);
    return a;
}

/* There is no f64 among the dtypes: eight bytes are eight bytes. */
struct gpu_array *gpu_doubles(struct gpu_test *t, int64_t count) {
    return gpu_zeros(t, 1, count, count, DTYPE_I64);
}

void *gpu_scratch(struct gpu_test *t, enum side side, int64_t bytes) {
    struct err error = {0};
    void *out = NULL;
    if (bytes == 0) return NULL;
    must(cut(t->sides[side], bytes, &out, &error), &error);
    return out;
}

/* ---- running, comparing, timing ---- */

enum status gpu_run(struct gpu_test *t, gpu_op *op, void *context, struct err *e) {
    TRY(op(gpu_device(t, SIDE_CPU), SIDE_CPU, context, e));
    TRY(op(gpu_device(t, SIDE_GPU), SIDE_GPU, context, e));
    return device_synchronize(gpu_device(t, SIDE_GPU), e);
}

double gpu_tolerance(enum dtype dtype) {
    return dtype == DTYPE_BF16 ? 6e-3 : dtype == DTYPE_F16 ? 1e-3 : 2e-5;
}

/* All bytes of one side, padding included. Caller frees with mem_free. */
static void *fetch(struct gpu_test *t, const struct gpu_array *a, enum side side) {
    struct err error = {0};
    void *bytes = mem_new(1, (size_t)bytes_on(a, side));
    must(device_download(gpu_device(t, side), bytes, a->at[side], bytes_on(a, side), &error),
         &error);
    return bytes;
}

static float element(const void *bytes, enum dtype dtype, int64_t i) {
    if (!is_half(dtype)) return ((const float *)bytes)[i];
    const uint16_t bits = ((const uint16_t *)bytes)[i];
    return dtype == DTYPE_BF16 ? from_bf16(bits) : from_f16(bits);
}

static void note(struct gpu_test *t, const char *what, double error, double tolerance) {
    const double ratio = isnan(error)    ? (double)INFINITY
                         : tolerance > 0 ? error / tolerance
                         : error > 0     ? (double)INFINITY
                                         : 0;
    gpu_expect(t, ratio <= 1, "%s: error %.3g, at most %.3g is right", what, error, tolerance);
    if (ratio < t->worst || (t->what[0] && ratio == t->worst)) return;
    t->worst = ratio;
    t->error = error;
    t->tolerance = tolerance;
    snprintf(t->what, sizeof t->what, "%s", what);
}

/* The first byte of padding that was written, as a failure. */
static void check_padding(struct gpu_test *t, const struct gpu_array *a, const char *what,
                          const unsigned char *bytes) {
    const int64_t size = dtype_bytes(a->dtype);
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t i = a->cols * size; i < a->ld * size; i++) {
            if (bytes[r * a->ld * size + i] == POISON) continue;
            gpu_expect(t, false, "%s: row %lld was written beyond its %lld columns", what,
                       (long long)r, (long long)a->cols);
            return;
        }
    }
}

static void compare_floats(struct gpu_test *t, const struct gpu_array *a, const char *what,
                           double tolerance) {
    float *want = fetch(t, a, SIDE_CPU);
    void *got = fetch(t, a, SIDE_GPU);
    double difference = 0, size = 0;
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t c = 0; c < a->cols; c++) {
            const int64_t i = r * a->ld + c;
            const double w = (double)want[i], d = (double)element(got, a->dtype, i) - w;
            difference += d * d;
            size += w * w;
        }
    }
    check_padding(t, a, what, got);
    note(t, what, size > 0 ? sqrt(difference / size) : sqrt(difference), tolerance);
    mem_free(got);
    mem_free(want);
}

static void compare_integers(struct gpu_test *t, const struct gpu_array *a, const char *what) {
    unsigned char *want = fetch(t, a, SIDE_CPU);
    unsigned char *got = fetch(t, a, SIDE_GPU);
    const int64_t size = dtype_bytes(a->dtype);
    int64_t wrong = 0;
    for (int64_t i = 0; i < a->rows * a->ld; i++) {
        wrong += memcmp(want + i * size, got + i * size, (size_t)size) != 0;
    }
    note(t, what, (double)wrong, 0);
    mem_free(got);
    mem_free(want);
}

void gpu_compare(struct gpu_test *t, const struct gpu_array *a, const char *what,
                 double tolerance) {
    if (a->dtype == DTYPE_I32 || a->dtype == DTYPE_I64)
        compare_integers(t, a, what);
    else
        compare_floats(t, a, what, tolerance > 0 ? tolerance : gpu_tolerance(a->dtype));
}

void gpu_compare_f64(struct gpu_test *t, const struct gpu_array *a, const char *what,
                     double tolerance) {
    double *want = fetch(t, a, SIDE_CPU);
    double *got = fetch(t, a, SIDE_GPU);
    for (int64_t i = 0; i < a->cols; i++) {
        const double scale = fabs(want[i]) > 0 ? fabs(want[i]) : 1;
        note(t, what, fabs(got[i] - want[i]) / scale, tolerance);
    }
    mem_free(got);
    mem_free(want);
}

float *gpu_read(struct gpu_test *t, const struct gpu_array *a, enum side side) {
    void *bytes = fetch(t, a, side);
    float *out = mem_new((size_t)(a->rows * a->cols), sizeof *out);
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t c = 0; c < a->cols; c++) {
            out[r * a->cols + c] = element(bytes, gpu_dtype(a, side), r * a->ld + c);
        }
    }
    mem_free(bytes);
    return out;
}

/* Nanoseconds of `runs` runs, one after the other on the stream. */
static enum status time_batch(struct device *device, gpu_op *op, void *context, int runs,
                              double *ns, struct err *e) {
    TRY(device_synchronize(device, e));
    const int64_t began = clock_steady_ns();
    for (int i = 0; i < runs; i++) {
        TRY(op(device, SIDE_GPU, context, e));
    }
    TRY(device_synchronize(device, e));
    *ns = (double)(clock_steady_ns() - began);
    return STATUS_OK;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum status gpu_time(struct gpu_test *t, gpu_op *op, void *context, double bytes, double flops,
                     struct err *e) {
    struct device *device = gpu_device(t, SIDE_GPU);
    double ns[BATCHES];
    if (!t->timed) return STATUS_OK;
    TRY(time_batch(device, op, context, 1, &ns[0], e));
    TRY(time_batch(device, op, context, 1, &ns[0], e));
    const double wanted = TIMED_NS / BATCHES / (ns[0] > 1000 ? ns[0] : 1000);
    const int runs = wanted < 1 ? 1 : wanted > RUNS_MAX ? RUNS_MAX : (int)wanted;
    for (int i = 0; i < BATCHES; i++) {
        TRY(time_batch(device, op, context, runs, &ns[i], e));
        ns[i] /= runs;
    }
    qsort(ns, BATCHES, sizeof *ns, by_size);
    const double median = ns[BATCHES / 2];
    t->us = median / 1e3;
    t->gbps = bytes / median;
    t->tflops = flops / median / 1e3;
    return STATUS_OK;
}
