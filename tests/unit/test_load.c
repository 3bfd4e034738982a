/* test_load.c - goal: stored tensors arrive in device memory as they are in the file, whoever reads
 * them. Method: a file of five million elements (more than one thread's work) with known values is
 * read into matrices with and without gaps between their rows, in every dtype, and compared, and so
 * are blocks of it; a stored type that is not a float is refused from whatever thread meets it. */
/* rooms: engine_model */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/load.h"
#include "engine/model/weights.h"

enum { ROWS = 5001, COLS = 1000, CAPACITY = 256 << 20 };

struct subject {
    char folder[32], *path;
    struct device *device;
    struct arena *arena;
    struct tensor_space space;
    struct st_set set;
};

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

/* Exact in f16 and bf16 too: small whole numbers, different in neighbouring rows and columns. */
static float value_at(int64_t i) {
    return (float)((i / COLS * 7 + i % COLS * 3) % 251) - 125;
}

static void write_file(const struct subject *s, enum st_dtype dtype) {
    struct err e = {0};
    struct st_writer w = {0};
    const int64_t shape[] = {ROWS, COLS};
    float *const row = mem_new(COLS, sizeof *row);
    st_writer_declare(&w, "t", dtype, shape, 2);
    must(st_writer_begin(&w, s->path, &e), &e);
    for (int64_t r = 0; r < ROWS; r++) {
        for (int64_t c = 0; c < COLS; c++) {
            row[c] = value_at(r * COLS + c);
        }
        must(st_writer_data(&w, row, COLS * 4, &e), &e);
    }
    must(st_writer_commit(&w, &e), &e);
    mem_free(row);
}

static int setup(void **state) {
    struct subject *const s = mem_new(1, sizeof *s);
    struct err e = {0};
    memcpy(s->folder, "/tmp/plimsoll-test-XXXXXX", sizeof "/tmp/plimsoll-test-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    s->path = file_join(s->folder, "t.safetensors");
    must(device_open(&s->device, "cpu", &(struct device_options){0}, &e), &e);
    must(arena_open(&s->arena, s->device, CAPACITY, &e), &e);
    must(tensor_space_init(&s->space, s->device, s->arena, &e), &e);
    *state = s;
    return 0;
}

static int teardown(void **state) {
    struct subject *const s = *state;
    struct err e = {0};
    st_close(&s->set);
    tensor_space_release(&s->space);
    arena_close(s->arena);
    device_close(s->device);
    must(file_remove_all(s->folder, &e), &e);
    mem_free(s->path);
    mem_free(s);
    return 0;
}

/* What a 16-bit float is worth: e exponent bits, m mantissa bits; normal numbers and zero only. */
static float from_bits(uint16_t bits, int m, int bias) {
    const int exponent = (bits & 0x7FFF) >> m;
    const float mantissa = (float)(bits & ((1 << m) - 1)) / (float)(1 << m);
    const float size = exponent ? ldexpf(1 + mantissa, exponent - bias) : 0;
    return bits & 0x8000 ? -size : size;
}

static float element(const void *host, enum dtype dtype, int64_t i) {
    if (dtype == DTYPE_F32) return ((const float *)host)[i];
    const uint16_t bits = ((const uint16_t *)host)[i];
    return dtype == DTYPE_BF16 ? from_bits(bits, 7, 127) : from_bits(bits, 10, 15);
}

static void check(struct subject *s, enum dtype dtype, int64_t tail) {
    struct err e = {0};
    struct tensor *t = NULL;
    const struct shape shape = {.dtype = dtype, .rows = ROWS, .cols = COLS, .tail = tail};
    must(tensor_make(&s->space, &shape, CATEGORY_WEIGHTS, &t, &e), &e);
    must(weights_read_tensor(st_find(&s->set, "t"), t, &e), &e);
    void *const host = mem_new(ROWS * COLS, (size_t)dtype_bytes(dtype));
    must(tensor_download(t, host, &e), &e);
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        if (element(host, dtype, i) == value_at(i)) continue;
        fail_msg("%s, tail %d: element %d is %g, the file has %g", dtype_name(dtype), (int)tail,
                 (int)i, (double)element(host, dtype, i), (double)value_at(i));
    }
    mem_free(host);
    tensor_release(t);
}

static void test_load_of_many_pieces_equals_the_file(void **state) {
    struct subject *const s = *state;
    struct err e = {0};
    write_file(s, ST_F32);
    must(st_open_file(&s->set, s->path, &e), &e);
    for (int tail = 0; tail < 2; tail++) {
        check(s, DTYPE_F32, 8 * tail);
        check(s, DTYPE_BF16, 8 * tail);
        check(s, DTYPE_F16, 8 * tail);
    }
}

/* Rows from..from + rows and as many columns, where both begin at `from`. */
static void check_block(struct subject *s, const struct shape *shape, int64_t from) {
    struct err e = {0};
    struct tensor *t = NULL;
    must(tensor_make(&s->space, shape, CATEGORY_WEIGHTS, &t, &e), &e);
    const struct load_item item = {
        .from = st_find(&s->set, "t"), .to = t, .first = from * COLS + from, .pitch = COLS};
    must(load_items(&item, 1, &e), &e);
    void *const host =
        mem_new((size_t)(shape->rows * shape->cols), (size_t)dtype_bytes(shape->dtype));
    must(tensor_download(t, host, &e), &e);
    for (int64_t i = 0; i < shape->rows * shape->cols; i++) {
        const int64_t at = (from + i / shape->cols) * COLS + from + i % shape->cols;
        if (element(host, shape->dtype, i) != value_at(at))
            fail_msg("%d columns from %d, tail %d: element %d is wrong", (int)shape->cols,
                     (int)from, (int)shape->tail, (int)i);
    }
    mem_free(host);
    tensor_release(t);
}

/* Small ones are read by one thread, large ones by several; with all columns they have no gaps in
 * the file. */
static void test_load_of_a_block_equals_that_part_of_the_file(void **state) {
    struct subject *const s = *state;
    struct err e = {0};
    write_file(s, ST_F32);
    must(st_open_file(&s->set, s->path, &e), &e);
    const struct shape shapes[] = {{DTYPE_F32, 40, 7, 0},      {DTYPE_BF16, 40, 7, 8},
                                   {DTYPE_F32, 1, 300, 0},     {DTYPE_F32, 4950, 949, 0},
                                   {DTYPE_F16, 4950, 949, 16}, {DTYPE_F32, 50, 1, 0}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        check_block(s, &shapes[i], 51);
    }
    check_block(s, &(struct shape){DTYPE_F32, ROWS, COLS, 0}, 0);
    check_block(s, &(struct shape){DTYPE_F32, ROWS - 3, COLS - 1, 0}, 1);
}

static void test_load_of_integers_is_refused(void **state) {
    struct subject *const s = *state;
    struct err e = {0};
    struct tensor *t = NULL;
    write_file(s, ST_I32);
    must(st_open_file(&s->set, s->path, &e), &e);
    must(tensor_new(&s->space, DTYPE_F32, ROWS, COLS, CATEGORY_WEIGHTS, &t, &e), &e);
    assert_int_equal(weights_read_tensor(st_find(&s->set, "t"), t, &e), STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.text, "I32"));
    tensor_release(t);
}

/* f32 to f16 at the edges: ties to even, the smallest normal and subnormal, overflow, NaN. */
static void test_f16_rounds_to_nearest_even(void **state) {
    (void)state;
    static const struct {
        float value;
        uint16_t bits;
    } CASES[] = {{0.0f, 0x0000},           {-0.0f, 0x8000},          {1.0f, 0x3C00},
                 {1.00048828125f, 0x3C00}, {1.0005f, 0x3C01},        {1.00146484375f, 0x3C02},
                 {65504.0f, 0x7BFF},       {65519.0f, 0x7BFF},       {65520.0f, 0x7C00},
                 {-1e10f, 0xFC00},         {0x1p-14f, 0x0400},       {0x1.ff8p-15f, 0x03FF},
                 {0x1p-24f, 0x0001},       {0x1p-25f, 0x0000},       {0x1.8p-25f, 0x0001},
                 {0x1.8p-24f, 0x0002},     {(float)INFINITY, 0x7C00}};
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct err e = {0};
        uint16_t bits = 0;
        const struct st_tensor t = {.name = "t",
                                    .dtype = ST_F32,
                                    .elements = 1,
                                    .bytes = 4,
                                    .data = (const unsigned char *)&CASES[i].value};
        must(st_read_f16(&t, 0, 1, &bits, &e), &e);
        if (bits != CASES[i].bits)
            fail_msg("%a becomes %04x, not %04x", (double)CASES[i].value, bits, CASES[i].bits);
    }
    const float nan_value = NAN;
    uint16_t bits = 0;
    struct err e = {0};
    const struct st_tensor t = {
        .dtype = ST_F32, .elements = 1, .bytes = 4, .data = (const unsigned char *)&nan_value};
    must(st_read_f16(&t, 0, 1, &bits, &e), &e);
    assert_true((bits & 0x7C00) == 0x7C00 && (bits & 0x3FF) != 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_load_of_many_pieces_equals_the_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_load_of_a_block_equals_that_part_of_the_file, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_load_of_integers_is_refused, setup, teardown),
        cmocka_unit_test(test_f16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
