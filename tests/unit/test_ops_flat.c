/* test_ops_flat.c - optimizer, clipping, dropout, row moves, column operations and conversions
 * against plain loops. rooms: kernels base
 *
 * Counts lie on both sides of the size from which work is split over threads. */
#include "kernels/philox.h"
#include "tests/unit/support_ops.h"

static const int64_t COUNTS[] = {1, 3, 17, 65, 4097, 50001};

static void check_adamw(struct device *device, int64_t count) {
    float *p = ops_random(count, 1, 1), *g = ops_random(count, 1, 2), *m = ops_random(count, 0, 3);
    float *v = ops_random(count, 0, 4), scale = 0.5f;
    double *p_ref = ops_widen(p, count), *m_ref = ops_widen(m, count), *v_ref = ops_widen(v, count);
    for (int64_t step = 1; step <= 3; step++) {
        ops_ok(device_adamw(
            device,
            &(struct adamw_args){count, p, g, m, v, &scale, 1e-2, 0.9, 0.999, 1e-8, 0.1, step}, e));
        for (int64_t i = 0; i < count; i++) {
            const double grad = 0.5 * (double)g[i];
            p_ref[i] *= 1 - 1e-2 * 0.1;
            m_ref[i] = 0.9 * m_ref[i] + 0.1 * grad;
            v_ref[i] = 0.999 * v_ref[i] + 0.001 * grad * grad;
            const double root = sqrt(v_ref[i] / (1 - pow(0.999, (double)step)));
            p_ref[i] -= 1e-2 / (1 - pow(0.9, (double)step)) * m_ref[i] / (root + 1e-8);
        }
    }
    ops_near_all(p, p_ref, count, 2e-6, 1, "p");
    ops_near_all(m, m_ref, count, 2e-6, 1, "m");
    ops_near_all(v, v_ref, count, 2e-6, 1e-3, "v");
    void *all[] = {p, g, m, v, p_ref, m_ref, v_ref};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        mem_free(all[i]);
    }
}

static void test_adamw_three_steps_match_reference(void **state) {
    (void)state;
    struct device *device = ops_open();
    for (size_t i = 0; i < COUNT_OF(COUNTS); i++) {
        check_adamw(device, COUNTS[i]);
    }
    ops_close_device(device);
}

static void test_sum_squares_and_clip_match_reference(void **state) {
    (void)state;
    struct device *device = ops_open();
    for (size_t i = 0; i < COUNT_OF(COUNTS); i++) {
        float *x = ops_random(COUNTS[i], 3, 1), norm = 0, coefficient = 0;
        double sum = 2, want = 2;
        for (int64_t j = 0; j < COUNTS[i]; j++) {
            want += (double)x[j] * (double)x[j];
        }
        ops_ok(device_sum_squares(device, &(struct sum_squares_args){COUNTS[i], x, &sum}, e));
        ops_near(sum, want, 1e-12, 0, "sum", i);
        ops_ok(device_clip(device, &(struct clip_args){&sum, 1.0f, &norm, &coefficient}, e));
        ops_near((double)norm, sqrt(want), 1e-6, 0, "norm", 0);
        ops_near((double)coefficient, 1 / (sqrt(want) + 1e-6), 1e-6, 0, "coefficient", 0);
        ops_ok(device_clip(device, &(struct clip_args){&sum, 0, &norm, &coefficient}, e));
        assert_true(coefficient == 1);
        mem_free(x);
    }
    double nan = NAN;
    float norm = 0, coefficient = 0;
    ops_ok(device_clip(device, &(struct clip_args){&nan, 1, &norm, &coefficient}, e));
    assert_true(isnan(norm) && isnan(coefficient));
    ops_close_device(device);
}

static void test_dropout_follows_its_keys_and_keeps_the_mean(void **state) {
    (void)state;
    struct device *device = ops_open();
    enum { ROWS = 40, WIDTH = 999 };
    float *x = ops_random(ROWS * WIDTH, 0, 1), *y = ops_random(ROWS * WIDTH, 1, 2),
          *z = ops_random(WIDTH, 0, 3);
    int64_t keys[ROWS];
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = 1;
    }
    for (int i = 0; i < ROWS; i++) {
        keys[i] = INT64_C(1) << 40 | (i * 31);
    }
    struct dropout_args args = {ROWS, WIDTH, x, y, 0.25f, 7, UINT64_C(9) << 33, keys, false};
    ops_ok(device_dropout(device, &args, e));
    const uint64_t key = philox_stream_key(args.seed, args.stream);
    int dropped = 0;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        const struct philox quad = philox_quad(key, keys[i / WIDTH], (uint32_t)(i % WIDTH / 4));
        const bool keep = quad.word[i % WIDTH % 4] >= UINT32_C(1) << 30;
        assert_true(y[i] == (keep ? 1.0f / 0.75f : 0));
        dropped += !keep;
    }
    /* 39960 draws with p = 1/4: six standard deviations are 520. */
    assert_in_range(dropped, 9990 - 520, 9990 + 520);
    /* One row alone, and added: the same mask as in the batch. */
    args = (struct dropout_args){1, WIDTH, x, z, 0.25f, 7, UINT64_C(9) << 33, keys + 5, true};
    ops_ok(device_dropout(device, &args, e));
    assert_memory_equal(z, y + 5 * WIDTH, WIDTH * sizeof *z);
    args.stream++;
    args.accumulate = false;
    ops_ok(device_dropout(device, &args, e));
    assert_memory_not_equal(z, y + 5 * WIDTH, WIDTH * sizeof *z);
    mem_free(x);
    mem_free(y);
    mem_free(z);
    ops_close_device(device);
}

static void test_rows_gathered_and_scattered_return_to_their_places(void **state) {
    (void)state;
    struct device *device = ops_open();
    enum { ROWS = 300, WIDTH = 65 };
    float *x = ops_random(ROWS * WIDTH, 1, 1), *y = ops_random(ROWS * WIDTH, 1, 2),
          *z = ops_random(ROWS * WIDTH, 1, 3);
    int32_t index[ROWS];
    for (int i = 0; i < ROWS; i++) {
        index[i] = i * 7 % ROWS; /* 7 and 300 have no common factor */
    }
    ops_ok(device_gather_rows(device, &(struct rows_args){ROWS, WIDTH, index, x, y}, e));
    assert_memory_equal(y + WIDTH, x + (size_t)7 * WIDTH, WIDTH * sizeof *x);
    ops_ok(device_scatter_rows(device, &(struct rows_args){ROWS, WIDTH, index, y, z}, e));
    assert_memory_equal(z, x, ROWS * WIDTH * sizeof *x);
    mem_free(x);
    mem_free(y);
    mem_free(z);
    ops_close_device(device);
}

static void test_add_and_divide_in_place(void **state) {
    (void)state;
    struct device *device = ops_open();
    for (size_t c = 0; c < COUNT_OF(COUNTS); c++) {
        const int64_t count = COUNTS[c];
        float *x = ops_random(count, 1, 1), *y = ops_random(count, 1, 2),
              *old = ops_random(count, 1, 1);
        ops_ok(device_add(device, &(struct add_args){count, x, y, x}, e));
        for (int64_t i = 0; i < count; i++) {
            assert_true(x[i] == old[i] + y[i]);
        }
        ops_ok(device_divide(device, &(struct divide_args){count, old, y, x}, e));
        for (int64_t i = 0; i < count; i++) {
            assert_true(x[i] == old[i] / y[i]);
        }
        mem_free(x);
        mem_free(y);
        mem_free(old);
    }
    ops_close_device(device);
}

static void check_columns(struct device *device, int64_t rows, int64_t cols, bool accumulate) {
    const int64_t ld = cols + 3;
    float *x = ops_random(rows * ld, 1, 1), *y = ops_random(rows * ld, 1, 2),
          *out = ops_random(cols, 1, 3);
    float *out_1 = ops_random(cols, 1, 3), *old = ops_random(cols, 1, 3),
          *norm = ops_random(rows, 1, 4);
    float *scaled = ops_random(rows * ld, 1, 5), *before = ops_random(rows * ld, 1, 5);
    ops_ok(device_column_sum(
        device, &(struct column_sum_args){rows, cols, x, ld, y, ld, out, accumulate}, e));
    ops_ok(device_column_sum(
        device, &(struct column_sum_args){rows, cols, x, ld, NULL, 0, out_1, accumulate}, e));
    ops_ok(device_row_norm(device, &(struct row_norm_args){rows, cols, x, ld, norm}, e));
    const float *scale = accumulate ? old : NULL, *bias = y;
    ops_ok(device_column_scale(
        device, &(struct column_scale_args){rows, cols, x, ld, scale, bias, scaled, ld, accumulate},
        e));
    for (int64_t c = 0; c < cols; c++) {
        double product = accumulate ? (double)old[c] : 0, sum = product;
        for (int64_t r = 0; r < rows; r++) {
            product += (double)x[r * ld + c] * (double)y[r * ld + c];
            sum += (double)x[r * ld + c];
        }
        ops_near((double)out[c], product, 2e-6, 1, "column sum of products", c);
        ops_near((double)out_1[c], sum, 2e-6, 1, "column sum", c);
    }
    for (int64_t r = 0; r < rows; r++) {
        double square = 0;
        for (int64_t c = 0; c < cols; c++) {
            const double value =
                (double)x[r * ld + c] * (accumulate ? (double)old[c] : 1) + (double)y[c];
            ops_near((double)scaled[r * ld + c],
                     value + (accumulate ? (double)before[r * ld + c] : 0), 1e-6, 1, "column scale",
                     c);
            square += (double)x[r * ld + c] * (double)x[r * ld + c];
        }
        assert_true(scaled[r * ld + cols] == before[r * ld + cols]);
        ops_near((double)norm[r], sqrt(square), 1e-6, 0, "row norm", r);
    }
    float *all[] = {x, y, out, out_1, old, norm, scaled, before};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        mem_free(all[i]);
    }
}

static void test_column_operations_match_reference(void **state) {
    (void)state;
    struct device *device = ops_open();
    static const int64_t sides[] = {1, 17, 63, 65, 200};
    for (size_t r = 0; r < COUNT_OF(sides); r++) {
        for (size_t c = 0; c < COUNT_OF(sides); c++) {
            check_columns(device, sides[r], sides[c], false);
            check_columns(device, sides[r], sides[c], true);
        }
    }
    ops_close_device(device);
}

static void test_convert_rounds_to_nearest_even_and_keeps_nan(void **state) {
    (void)state;
    struct device *device = ops_open();
    /* 1 + 2^-8 is half way: to even 1; 1 + 3*2^-8 to even 1 + 2^-6; the largest float rounds to
     * infinity. */
    float x[7] = {1, 1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1.01p-8f, -0.0f, NAN, 3.4028235e38f}, back[7];
    uint16_t narrow[7];
    const struct matrix wide = {x, DTYPE_F32, 7}, half = {narrow, DTYPE_BF16, 7},
                        again = {back, DTYPE_F32, 7};
    ops_ok(device_convert(device, &(struct convert_args){1, 7, wide, half}, e));
    ops_ok(device_convert(device, &(struct convert_args){1, 7, half, again}, e));
    assert_true(back[0] == 1 && back[1] == 1 && back[2] == 1 + 0x1p-6f && back[3] == 1 + 0x1p-7f);
    assert_true(back[4] == 0 && signbit(back[4]) && isnan(back[5]) && isinf(back[6]));
    ops_close_device(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw_three_steps_match_reference),
        cmocka_unit_test(test_sum_squares_and_clip_match_reference),
        cmocka_unit_test(test_dropout_follows_its_keys_and_keeps_the_mean),
        cmocka_unit_test(test_rows_gathered_and_scattered_return_to_their_places),
        cmocka_unit_test(test_add_and_divide_in_place),
        cmocka_unit_test(test_column_operations_match_reference),
        cmocka_unit_test(test_convert_rounds_to_nearest_even_and_keeps_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
