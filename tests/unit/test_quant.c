/* test_quant.c - goal: numbers become the codes that bitsandbytes makes of them, and codes become
 * its numbers; E4M3 is rounded to the nearest; a file's tensors arrive as codes whoever reads them,
 * whole or in part.
 * rooms: engine_model
 *
 * Method: tests/unit/data/quant/nf4.safetensors is a matrix [96,128] with a block of zeros and an
 * outlier, as bitsandbytes 0.50.2 quantised it on a GPU: codes, scales and dequantised numbers are
 * compared bit by bit. Its mean of scales is a sum in another order: one last bit is allowed. All
 * 256 codes of E4M3 are known from the definition of the format. */
#include <stdlib.h>

#include "engine/model/load.h"
#include "engine/model/quantize.h"
#include "tests/unit/support_ops.h"

static const char GOLDEN[] = "tests/unit/data/quant/nf4.safetensors";
enum { ROWS = 96, COLS = 128, BLOCKS = ROWS * COLS / QUANT_BLOCK };

struct golden {
    struct st_set set;
    float weight[ROWS * COLS];
};

static const void *stored(const struct golden *g, const char *name) {
    const struct st_tensor *const t = st_find(&g->set, name);
    assert_non_null(t);
    return t->data;
}

static int setup(void **state) {
    struct golden *const g = mem_new(1, sizeof *g);
    ops_ok(st_open_file(&g->set, GOLDEN, e));
    ops_ok(st_read_f32(st_find(&g->set, "weight"), 0, ROWS * COLS, g->weight, e));
    *state = g;
    return 0;
}

static int teardown(void **state) {
    struct golden *const g = *state;
    st_close(&g->set);
    mem_free(g);
    return 0;
}

static void test_nf4_codes_are_the_reference_s(void **state) {
    const struct golden *const g = *state;
    const float *const absmax = stored(g, "absmax");
    const uint8_t *const packed = stored(g, "packed");
    for (int64_t b = 0; b < BLOCKS; b++) {
        uint8_t codes[QUANT_BLOCK / 2];
        const float scale = quantize_nf4(g->weight + b * QUANT_BLOCK, QUANT_BLOCK, codes);
        assert_true(scale == absmax[b]);
        assert_memory_equal(codes, packed + b * QUANT_BLOCK / 2, sizeof codes);
    }
}

static void test_double_quantised_scales_are_the_reference_s(void **state) {
    const struct golden *const g = *state;
    uint8_t codes[BLOCKS];
    float nested[2];
    quantize_scales(stored(g, "absmax"), BLOCKS, codes, nested);
    const float *const offset = stored(g, "nested_offset"), *const scale =
                                                                stored(g, "nested_absmax");
    ops_near((double)nested[0], (double)*offset, 1.2e-7, 0, "mean", 0);
    ops_near((double)nested[1], (double)*scale, 1.2e-7, 0, "scale", 0);
    assert_memory_equal(codes, stored(g, "nested_absmax_q"), BLOCKS);
    assert_memory_equal(quant_dynamic_map, stored(g, "nested_code"), sizeof quant_dynamic_map);
}

static void check_numbers(const struct golden *g, bool twice) {
    struct device *const device = ops_open();
    float nested[2] = {0};
    uint16_t out[ROWS * COLS];
    if (twice) {
        memcpy(&nested[0], stored(g, "nested_offset"), 4);
        memcpy(&nested[1], stored(g, "nested_absmax"), 4);
    }
    const struct dequantize_args args = {.rows = ROWS,
                                         .cols = COLS,
                                         .quant = twice ? QUANT_NF4_DOUBLE : QUANT_NF4,
                                         .codes = stored(g, twice ? "nested_packed" : "packed"),
                                         .scales = stored(g, twice ? "nested_absmax_q" : "absmax"),
                                         .nested = twice ? nested : NULL,
                                         .out = {out, DTYPE_BF16, COLS}};
    ops_ok(device_dequantize(device, &args, e));
    assert_memory_equal(out, stored(g, twice ? "nested_dequantised" : "dequantised"), sizeof out);
    ops_close_device(device);
}

static void test_dequantised_numbers_are_the_reference_s(void **state) {
    check_numbers(*state, false);
    check_numbers(*state, true);
}

/* What a code of E4M3 is worth (Micikevicius et al. 2022, table 1). */
static double fp8_value(int code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double size =
        exponent ? ldexp(1 + mantissa / 8.0, exponent - 7) : ldexp(mantissa / 8.0, -6);
    return code & 128 ? -size : size;
}

static void test_fp8_codes_mean_what_the_format_says(void **state) {
    (void)state;
    struct device *const device = ops_open();
    uint8_t codes[256], again[256];
    float out[256];
    static const float SCALES[16] = {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2};
    for (int i = 0; i < 256; i++) {
        codes[i] = (uint8_t)i;
    }
    const struct dequantize_args args = {.rows = 16,
                                         .cols = 16,
                                         .quant = QUANT_FP8,
                                         .codes = codes,
                                         .scales = SCALES,
                                         .out = {out, DTYPE_F32, 16}};
    ops_ok(device_dequantize(device, &args, e));
    quantize_fp8(out, 256, 2, again);
    for (int i = 0; i < 256; i++) {
        assert_true((i & 127) == 127 ? isnan(out[i]) : (double)out[i] == 2 * fp8_value(i));
        assert_int_equal(again[i], codes[i]);
    }
    ops_close_device(device);
}

static void test_fp8_rounds_to_the_nearest_and_ties_to_even(void **state) {
    (void)state;
    for (int code = 0; code < 126; code++) {
        const double low = fp8_value(code), high = fp8_value(code + 1), middle = (low + high) / 2;
        const float x[] = {(float)middle, nextafterf((float)middle, 0),
                           nextafterf((float)middle, 1e9f), (float)-middle};
        uint8_t got[4];
        quantize_fp8(x, 4, 1, got);
        const int even = code % 2 == 0 ? code : code + 1;
        assert_int_equal(got[0], even);
        assert_int_equal(got[1], code);
        assert_int_equal(got[2], code + 1);
        assert_int_equal(got[3], 128 | even);
    }
    const float beyond[] = {449, -1e30f, INFINITY};
    uint8_t got[3];
    quantize_fp8(beyond, 3, 1, got);
    assert_true(got[0] == 126 && got[1] == 254 && got[2] == 126);
    quantize_fp8(beyond, 1, 0, got); /* a row of zeros has no scale */
    assert_int_equal(got[0], 0);
}

/* Of any shape: blocks that rows cut, an own distance between rows, f32 and bf16. */
static void test_dequantize_follows_blocks_through_rows(void **state) {
    (void)state;
    enum { R = 7, C = 48, LD = 61 };
    struct device *const device = ops_open();
    float *const x = ops_random(R * C, 1, 3), wide[R * LD], scales[6];
    uint16_t narrow[R * LD];
    _Alignas(8) uint8_t codes[R * C / 2];
    for (int64_t i = 0; i < R * C; i += QUANT_BLOCK) {
        const int64_t count = R * C - i < QUANT_BLOCK ? R * C - i : QUANT_BLOCK;
        scales[i / QUANT_BLOCK] = quantize_nf4(x + i, count, codes + i / 2);
    }
    struct dequantize_args args = {.rows = R,
                                   .cols = C,
                                   .quant = QUANT_NF4,
                                   .codes = codes,
                                   .scales = scales,
                                   .out = {wide, DTYPE_F32, LD}};
    static const float VALUES[16] = QUANT_NF4_VALUES;
    ops_ok(device_dequantize(device, &args, e));
    args.out = (struct matrix){narrow, DTYPE_BF16, LD};
    ops_ok(device_dequantize(device, &args, e));
    for (int64_t i = 0; i < R * C; i++) {
        const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
        const float want = VALUES[code] * scales[i / QUANT_BLOCK];
        const int64_t at = i / C * LD + i % C;
        uint32_t bits = (uint32_t)narrow[at] << 16;
        float got = 0;
        memcpy(&got, &bits, sizeof got);
        assert_true(wide[at] == want);
        ops_near((double)got, (double)want, 0x1p-8, 0, "bf16", i);
        ops_near((double)want, (double)x[i], 0.16, 1, "quantised", i); /* half the widest step */
    }
    mem_free(x);
    ops_close_device(device);
}

static void test_dequantize_refuses_what_it_cannot_read(void **state) {
    (void)state;
    struct device *const device = ops_open();
    float room[64] = {0};
    struct err error = {0};
    const struct dequantize_args good = {.rows = 1,
                                         .cols = 16,
                                         .quant = QUANT_NF4,
                                         .codes = room,
                                         .scales = room,
                                         .out = {room, DTYPE_F32, 16}};
    struct dequantize_args bad = good;
    bad.cols = 8;
    assert_int_equal(device_dequantize(device, &bad, &error), STATUS_INTERNAL);
    bad = good;
    bad.quant = QUANT_NF4_DOUBLE;
    assert_int_equal(device_dequantize(device, &bad, &error), STATUS_INTERNAL);
    bad = good;
    bad.out.ld = 8;
    assert_int_equal(device_dequantize(device, &bad, &error), STATUS_INTERNAL);
    bad = good;
    bad.out.dtype = DTYPE_F16; /* not on the CPU */
    assert_int_equal(device_dequantize(device, &bad, &error), STATUS_INTERNAL);
    ops_close_device(device);
}

/* ---- loading ---- */

enum { TALL = 9000, WIDE = 512, PART_ROWS = 700, PART_COLS = 192, PART_ROW = 301, PART_COL = 128 };

struct loaded {
    char folder[32], *path;
    struct device *device;
    struct arena *arena;
    struct tensor_space space;
    struct st_set set;
    float *x; /* [TALL,WIDE] */
};

static int load_setup(void **state) {
    struct loaded *const s = mem_new(1, sizeof *s);
    memcpy(s->folder, "/tmp/plimsoll-test-XXXXXX", sizeof "/tmp/plimsoll-test-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    s->path = file_join(s->folder, "t.safetensors");
    s->x = ops_random((int64_t)TALL * WIDE, 3, 5);
    struct st_writer w = {0};
    st_writer_declare(&w, "t", ST_F32, (const int64_t[]){TALL, WIDE}, 2);
    ops_ok(st_writer_begin(&w, s->path, e));
    ops_ok(st_writer_data(&w, s->x, (int64_t)TALL * WIDE * 4, e));
    ops_ok(st_writer_commit(&w, e));
    s->device = ops_open_named("cpu", PRECISION_F32);
    ops_ok(arena_open(&s->arena, s->device, 256 << 20, e));
    ops_ok(tensor_space_init(&s->space, s->device, s->arena, e));
    ops_ok(st_open_file(&s->set, s->path, e));
    *state = s;
    return 0;
}

static int load_teardown(void **state) {
    struct loaded *const s = *state;
    st_close(&s->set);
    tensor_space_release(&s->space);
    arena_close(s->arena);
    device_close(s->device);
    ops_ok(file_remove_all(s->folder, e));
    mem_free(s->path);
    mem_free(s->x);
    mem_free(s);
    return 0;
}

/* One block of the file as one part of a buffer that has another one before it. */
static uint8_t *load(struct loaded *s, struct quant_layout *l, const struct load_item *like) {
    struct tensor *bytes = NULL;
    struct load_item item = *like;
    quant_place(l);
    ops_ok(tensor_new(&s->space, DTYPE_I32, 1, l->bytes / 4, CATEGORY_WEIGHTS, &bytes, e));
    item.from = st_find(&s->set, "t");
    item.to = bytes;
    item.layout = l;
    item.part = 1;
    ops_ok(load_items(&item, 1, e));
    uint8_t *const host = mem_new((size_t)l->bytes, 1);
    ops_ok(tensor_download(bytes, host, e));
    tensor_release(bytes);
    return host;
}

static void test_load_quantises_what_the_file_has(void **state) {
    struct loaded *const s = *state;
    const struct load_item whole = {.pitch = WIDE};
    const int64_t blocks = (int64_t)TALL * WIDE / QUANT_BLOCK;
    struct quant_layout l = {
        .quant = QUANT_NF4, .cols = WIDE, .part_count = 2, .parts = {{.rows = 3}, {.rows = TALL}}};
    uint8_t *const once = load(s, &l, &whole);
    const struct quant_part single = l.parts[1];
    l.quant = QUANT_NF4_DOUBLE;
    uint8_t *const twice = load(s, &l, &whole);
    const struct quant_part nested = l.parts[1];
    const float *const scales = (const float *)(once + single.scales);
    for (int64_t b = 0; b < blocks; b++) {
        uint8_t codes[QUANT_BLOCK / 2];
        assert_true(quantize_nf4(s->x + b * QUANT_BLOCK, QUANT_BLOCK, codes) == scales[b]);
        assert_memory_equal(codes, once + single.codes + b * QUANT_BLOCK / 2, sizeof codes);
        assert_memory_equal(codes, twice + nested.codes + b * QUANT_BLOCK / 2, sizeof codes);
    }
    const int64_t count = quant_nested_count(QUANT_NF4_DOUBLE, TALL, WIDE);
    uint8_t *const codes = mem_new((size_t)blocks, 1);
    float *const values = mem_new((size_t)count, sizeof *values);
    quantize_scales(scales, blocks, codes, values);
    assert_memory_equal(codes, twice + nested.scales, blocks);
    assert_memory_equal(values, twice + nested.nested, count * 4);
    mem_free(codes);
    mem_free(values);
    mem_free(once);
    mem_free(twice);
}

/* A block of a matrix has the codes that it has in the whole. */
static void test_load_of_a_block_equals_the_same_block_of_the_whole(void **state) {
    struct loaded *const s = *state;
    static const enum quant QUANTS[] = {QUANT_NF4, QUANT_FP8};
    const struct load_item whole = {.pitch = WIDE};
    const struct load_item block = {.pitch = WIDE, .first = PART_ROW * WIDE + PART_COL};
    for (size_t q = 0; q < COUNT_OF(QUANTS); q++) {
        const enum quant quant = QUANTS[q];
        struct quant_layout all = {
            .quant = quant, .cols = WIDE, .part_count = 2, .parts = {{.rows = 5}, {.rows = TALL}}};
        struct quant_layout some = {.quant = quant,
                                    .cols = PART_COLS,
                                    .part_count = 2,
                                    .parts = {{.rows = 5}, {.rows = PART_ROWS}}};
        uint8_t *const large = load(s, &all, &whole), *const small = load(s, &some, &block);
        for (int64_t row = 0; row < PART_ROWS; row++) {
            const int64_t from = (PART_ROW + row) * WIDE + PART_COL;
            assert_memory_equal(small + some.parts[1].codes +
                                    quant_code_bytes(quant, row * PART_COLS),
                                large + all.parts[1].codes + quant_code_bytes(quant, from),
                                quant_code_bytes(quant, PART_COLS));
            const bool rows = quant == QUANT_FP8;
            const float *const a = (const float *)(small + some.parts[1].scales);
            const float *const b = (const float *)(large + all.parts[1].scales);
            assert_true(a[rows ? row : row * PART_COLS / QUANT_BLOCK] ==
                        b[rows ? PART_ROW + row : from / QUANT_BLOCK]);
        }
        mem_free(large);
        mem_free(small);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nf4_codes_are_the_reference_s, setup, teardown),
        cmocka_unit_test_setup_teardown(test_double_quantised_scales_are_the_reference_s, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_dequantised_numbers_are_the_reference_s, setup,
                                        teardown),
        cmocka_unit_test(test_fp8_codes_mean_what_the_format_says),
        cmocka_unit_test(test_fp8_rounds_to_the_nearest_and_ties_to_even),
        cmocka_unit_test(test_dequantize_follows_blocks_through_rows),
        cmocka_unit_test(test_dequantize_refuses_what_it_cannot_read),
        cmocka_unit_test_setup_teardown(test_load_quantises_what_the_file_has, load_setup,
                                        load_teardown),
        cmocka_unit_test_setup_teardown(test_load_of_a_block_equals_the_same_block_of_the_whole,
                                        load_setup, load_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
