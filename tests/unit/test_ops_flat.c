/* test_ops_flat.c - optimizer, clipping, dropout, row moves, column operations and conversions
 * against plain loops. rooms: kernels base
 *
 * Counts lie on both sides of the size from which work is split over threads. */
#include "kernels/philox.h"
#include "tests/unit/support_ops.h"

static const int64_t COUNTS[] = {1, 3, 17, 65, 4097, 50001};

/* The copy is the parameter to half a unit in the last of bf16's eight bits. */
static void check_copy(const float *param, const uint16_t *copy, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const uint32_t bits = (uint32_t)copy[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        ops_near((double)value, (double)param[i], 0x1p-8, 0, "copy", i);
    }
}

static void check_adamw(struct device *device, int64_t count) {
    float *p = ops_random(count, 1, 1), *g = ops_random(count, 1, 2), *m = ops_random(count, 0, 3);
    float *v = ops_random(count, 0, 4), scale = 0.5f;
    double *p_ref = ops_widen(p, count), *m_ref = ops_widen(m, count), *v_ref = ops_widen(v, count);
    uint16_t *copy = mem_new((size_t)count, sizeof *copy);
    struct adamw_args args = {.count = count,
                              .param = p,
                              .grad = g,
                              .m = m,
                              .v = v,
                              .copy = copy,
                              .copy_dtype = DTYPE_BF16,
                              .grad_scale = &scale,
                              .lr = 1e-2,
                              .beta1 = 0.9,
                              .beta2 = 0.999,
                              .eps = 1e-8,
                              .weight_decay = 0.1};
    for (int64_t step = 1; step <= 3; step++) {
        args.step = step;
        ops_ok(device_adamw(device, &args, e));
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
    check_copy(p, copy, count);
    void *all[] = {p, g, m, v, copy, p_ref, m_ref, v_ref};
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

/* What clip gives for gradients that overflowed: the step must not be taken. */
static void test_adamw_changes_nothing_where_the_scale_is_not_finite(void **state) {
    (void)state;
    struct device *device = ops_open();
    static const float scales[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(scales); i++) {
        float p[2] = {1, 2}, m[2] = {3, 4}, v[2] = {5, 6}, copy[2] = {7, 8};
        const float grad[2] = {INFINITY, 1};
        const struct adamw_args args = {.count = 2,
                                        .param = p,
                                        .grad = grad,
                                        .m = m,
                                        .v = v,
                                        .copy = copy,
                                        .copy_dtype = DTYPE_F32,
                                        .grad_scale = scales + i,
                                        .lr = 1,
                                        .beta1 = 0.9,
                                        .beta2 = 0.9,
                                        .eps = 1e-8,
                                        .weight_decay = 0.5,
                                        .step = 1};
        ops_ok(device_adamw(device, &args, e));
        assert_true(p[0] == 1 && p[1] == 2 && m[0] == 3 && m[1] == 4);
        assert_true(v[0] == 5 && v[1] == 6 && copy[0] == 7 && copy[1] == 8);
    }
    ops_close_device(device);
}

static void test_adamw_of_types_that_the_cpu_has_not_is_an_internal_error(void **state) {
    (void)state;
    struct device *device = ops_open();
    float x[2] = {0};
    const struct adamw_args good = {
        .count = 2, .param = x, .grad = x, .m = x, .v = x, .grad_scale = x, .step = 1};
    struct adamw_args args[3] = {good, good, good};
    args[0].param_dtype = DTYPE_BF16;
    args[1].state_dtype = DTYPE_BF16;
    args[2].copy = x;
    args[2].copy_dtype = DTYPE_F16;
    for (size_t i = 0; i < COUNT_OF(args); i++) {
        struct err error = {0};
        assert_int_equal(device_adamw(device, args + i, &error), STATUS_INTERNAL);
        assert_non_null(strstr(error.text, "device_adamw"));
    }
    ops_close_device(device);
}

static void check_clip(struct device *device, double sum, const float *loss_scale, float max_norm,
                       double norm, double coefficient) {
    float got_norm = 0, got_coefficient = 0;
    const struct clip_args args = {.sum_squares = &sum,
                                   .loss_scale = loss_scale,
                                   .max_norm = max_norm,
                                   .norm = &got_norm,
                                   .coefficient = &got_coefficient};
    ops_ok(device_clip(device, &args, e));
    if (!isfinite(norm)) {
        assert_true(!isfinite(got_norm) && isnan(got_coefficient));
        return;
    }
    ops_near((double)got_norm, norm, 1e-6, 0, "norm", 0);
    ops_near((double)got_coefficient, coefficient, 1e-6, 0, "coefficient", 0);
}

static void test_clip_undoes_the_loss_scale_and_marks_overflow(void **state) {
    (void)state;
    struct device *device = ops_open();
    const float scale = 8;
    check_clip(device, 64 * 9, &scale, 1, 3, 1 / (3 + 1e-6) / 8);
    check_clip(device, 64 * 9, &scale, 5, 3, 1.0 / 8);
    check_clip(device, 64 * 9, &scale, 0, 3, 1.0 / 8);
    check_clip(device, 9, NULL, 5, 3, 1);
    static const double overflows[] = {NAN, INFINITY};
    for (size_t i = 0; i < COUNT_OF(overflows); i++) {
        check_clip(device, overflows[i], NULL, 1, overflows[i], 0);
        check_clip(device, overflows[i], NULL, 0, overflows[i], 0);
        check_clip(device, overflows[i], &scale, 1, overflows[i], 0);
    }
    ops_close_device(device);
}

static void test_sum_squares_and_clip_match_reference(void **state) {
    (void)state;
    struct device *device = ops_open();
    for (size_t i = 0; i < COUNT_OF(COUNTS); i++) {
        float *x = ops_random(COUNTS[i], 3, 1);
        double sum = 2, want = 2;
        for (int64_t j = 0; j < COUNTS[i]; j++) {
            want += (double)x[j] * (double)x[j];
        }
        ops_ok(device_sum_squares(device, &(struct sum_squares_args){COUNTS[i], x, &sum}, e));
        ops_near(sum, want, 1e-12, 0, "sum", i);
        check_clip(device, sum, NULL, 1, sqrt(want), 1 / (sqrt(want) + 1e-6));
        check_clip(device, sum, NULL, 0, sqrt(want), 1);
        mem_free(x);
    }
    ops_close_device(device);
}

static void test_dropout_follows_its_keys_and_keeps_the_mean(void **state) {
    (void)state;
    struct device *device = ops_open();
    enum { ROWS = 40, WIDTH = 999, LD = 1003 };
    float *x = ops_random(ROWS * WIDTH, 0, 1), *y = ops_random(ROWS * LD, 0, 2),
          *z = ops_random(WIDTH, 0, 3);
    int64_t keys[ROWS];
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = 1;
    }
    for (int i = 0; i < ROWS; i++) {
        keys[i] = INT64_C(1) << 40 | (i * 31);
    }
    struct dropout_args args = {.rows = ROWS,
                                .width = WIDTH,
                                .x = x,
                                .ld_x = WIDTH,
                                .y = y,
                                .ld_y = LD,
                                .p = 0.25f,
                                .seed = 7,
                                .stream = UINT64_C(9) << 33,
                                .row_keys = keys};
    ops_ok(device_dropout(device, &args, e));
    const uint64_t key = philox_stream_key(args.seed, args.stream);
    int dropped = 0;
    for (int i = 0; i < ROWS * LD; i++) {
        if (i % LD >= WIDTH) {
            assert_true(y[i] == 0); /* the gap between rows, as it was */
            continue;
        }
        const struct philox quad = philox_quad(key, keys[i / LD], (uint32_t)(i % LD / 4));
        const bool keep = quad.word[i % LD % 4] >= UINT32_C(1) << 30;
        assert_true(y[i] == (keep ? 1.0f / 0.75f : 0));
        dropped += !keep;
    }
    /* 39960 draws with p = 1/4: six standard deviations are 520. */
    assert_in_range(dropped, 9990 - 520, 9990 + 520);
    /* One row alone, and added: the same mask as in the batch. */
    args.rows = 1;
    args.y = z;
    args.row_keys = keys + 5;
    args.accumulate = true;
    ops_ok(device_dropout(device, &args, e));
    assert_memory_equal(z, y + (size_t)5 * LD, WIDTH * sizeof *z);
    args.stream++;
    args.accumulate = false;
    ops_ok(device_dropout(device, &args, e));
    assert_memory_not_equal(z, y + (size_t)5 * LD, WIDTH * sizeof *z);
    mem_free(x);
    mem_free(y);
    mem_free(z);
    ops_close_device(device);
}

static void test_rows_gathered_and_scattered_return_to_their_places(void **state) {
    (void)state;
    struct device *device = ops_open();
    enum { ROWS = 300, WIDTH = 65, LD = 68 };
    float *x = ops_random(ROWS * WIDTH, 1, 1), *y = ops_random(ROWS * LD, 1, 2),
          *z = ops_random(ROWS * WIDTH, 1, 3), *gap = ops_random(ROWS * LD, 1, 2);
    int32_t index[ROWS];
    for (int i = 0; i < ROWS; i++) {
        index[i] = i * 7 % ROWS; /* 7 and 300 have no common factor */
    }
    struct rows_args args = {.rows = ROWS,
                             .width = WIDTH,
                             .index = index,
                             .src = x,
                             .ld_src = WIDTH,
                             .dst = y,
                             .ld_dst = LD};
    ops_ok(device_gather_rows(device, &args, e));
    assert_memory_equal(y + LD, x + (size_t)7 * WIDTH, WIDTH * sizeof *x);
    assert_memory_equal(y + WIDTH, gap + WIDTH, (LD - WIDTH) * sizeof *y);
    args.src = y;
    args.ld_src = LD;
    args.dst = z;
    args.ld_dst = WIDTH;
    ops_ok(device_scatter_rows(device, &args, e));
    assert_memory_equal(z, x, ROWS * WIDTH * sizeof *x);
    args.ld_src = WIDTH - 1;
    struct err error = {0};
    assert_int_equal(device_scatter_rows(device, &args, &error), STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "ld_src"));
    mem_free(x);
    mem_free(y);
    mem_free(z);
    mem_free(gap);
    ops_close_device(device);
}

static void check_add(struct device *device, int64_t rows, int64_t cols, int64_t pad) {
    const int64_t ld = cols + pad, count = rows * ld;
    float *x = ops_random(count, 1, 1), *y = ops_random(count, 1, 2),
          *old = ops_random(count, 1, 1);
    ops_ok(device_add(device,
                      &(struct add_args){.rows = rows,
                                         .cols = cols,
                                         .a = x,
                                         .ld_a = ld,
                                         .b = y,
                                         .ld_b = ld,
                                         .out = x,
                                         .ld_out = ld},
                      e));
    for (int64_t i = 0; i < count; i++) {
        assert_true(x[i] == (i % ld < cols ? old[i] + y[i] : old[i]));
    }
    mem_free(x);
    mem_free(y);
    mem_free(old);
}

static void test_add_and_divide_in_place(void **state) {
    (void)state;
    struct device *device = ops_open();
    for (size_t c = 0; c < COUNT_OF(COUNTS); c++) {
        const int64_t count = COUNTS[c];
        float *x = ops_random(count, 1, 3), *y = ops_random(count, 1, 2),
              *old = ops_random(count, 1, 1);
        check_add(device, 1, count, 0);
        check_add(device, count < 7 ? count : 7, 1 + count / 7, 3);
        check_add(device, 1 + count / 7, 7, 0);
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
    struct column_sum_args sums = {.rows = rows,
                                   .cols = cols,
                                   .x = x,
                                   .ld_x = ld,
                                   .y = y,
                                   .ld_y = ld,
                                   .out = out,
                                   .accumulate = accumulate};
    ops_ok(device_column_sum(device, &sums, e));
    sums.y = NULL;
    sums.out = out_1;
    ops_ok(device_column_sum(device, &sums, e));
    ops_ok(device_row_norm(device, &(struct row_norm_args){rows, cols, x, ld, norm}, e));
    const float *scale = accumulate ? old : NULL, *bias = y;
    ops_ok(device_column_scale(device,
                               &(struct column_scale_args){.rows = rows,
                                                           .cols = cols,
                                                           .x = x,
                                                           .ld_x = ld,
                                                           .scale = scale,
                                                           .bias = bias,
                                                           .out = scaled,
                                                           .ld_out = ld,
                                                           .accumulate = accumulate},
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
    ops_ok(device_convert(device, &(struct convert_args){1, 7, 1, wide, half}, e));
    ops_ok(device_convert(device, &(struct convert_args){1, 7, 1, half, again}, e));
    assert_true(back[0] == 1 && back[1] == 1 && back[2] == 1 + 0x1p-6f && back[3] == 1 + 0x1p-7f);
    assert_true(back[4] == 0 && signbit(back[4]) && isnan(back[5]) && isinf(back[6]));
    ops_close_device(device);
}

static void test_convert_scales_between_every_two_types(void **state) {
    (void)state;
    struct device *device = ops_open();
    /* Of few bits, so that every product is exact in both types. */
    float x[4] = {1, -1.5f, 0, 96}, out[4] = {0}, back[4] = {0};
    uint16_t narrow[4] = {0}, scaled[4] = {0};
    const struct matrix f32 = {x, DTYPE_F32, 2}, f32_out = {out, DTYPE_F32, 2},
                        f32_back = {back, DTYPE_F32, 2}, bf16 = {narrow, DTYPE_BF16, 2},
                        bf16_out = {scaled, DTYPE_BF16, 2};
    ops_ok(device_convert(device, &(struct convert_args){2, 2, 0.5f, f32, f32_out}, e));
    ops_ok(device_convert(device, &(struct convert_args){2, 2, -2, f32, bf16}, e));
    ops_ok(device_convert(device, &(struct convert_args){2, 2, 4, bf16, bf16_out}, e));
    ops_ok(device_convert(device, &(struct convert_args){2, 2, 0.25f, bf16_out, f32_back}, e));
    for (int i = 0; i < 4; i++) {
        assert_true(out[i] == 0.5f * x[i] && back[i] == -2 * x[i]);
    }
    struct err error = {0};
    assert_int_equal(device_convert(device, &(struct convert_args){2, 2, 0, f32, f32_out}, &error),
                     STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "scale is 0"));
    err_clear(&error);
    const struct matrix f16 = {narrow, DTYPE_F16, 2};
    assert_int_equal(device_convert(device, &(struct convert_args){2, 2, 1, f32, f16}, &error),
                     STATUS_INTERNAL);
    ops_close_device(device);
}

static void test_convert_items_equal_one_at_a_time(void **state) {
    (void)state;
    struct device *device = ops_open();
    enum { COUNT = 3, SPAN = 4096 };
    static const int64_t rows[COUNT] = {16, 7, 1}, cols[COUNT] = {64, 5, 33};
    float *x = ops_random(COUNT * SPAN, 1, 1), *all = ops_random(COUNT * SPAN, 1, 2),
          *each = ops_random(COUNT * SPAN, 1, 2);
    struct convert_item items[COUNT];
    for (int64_t i = 0; i < COUNT; i++) {
        items[i] =
            (struct convert_item){x + i * SPAN, all + i * SPAN,       rows[i], cols[i], cols[i],
                                  cols[i] + 24, 0.5 * (double)(i + 1)};
        const struct convert_args one = {.rows = rows[i],
                                         .cols = cols[i],
                                         .scale = (float)items[i].scale,
                                         .src = {x + i * SPAN, DTYPE_F32, cols[i]},
                                         .dst = {each + i * SPAN, DTYPE_BF16, cols[i] + 24}};
        ops_ok(device_convert(device, &one, e));
    }
    struct convert_items_args args = {.count = COUNT,
                                      .items = items,
                                      .src_dtype = DTYPE_F32,
                                      .dst_dtype = DTYPE_BF16,
                                      .largest = 16 * 64,
                                      .elements = 16 * 64 + 35 + 33};
    ops_ok(device_convert_items(device, &args, e));
    assert_memory_equal(all, each, COUNT * SPAN * sizeof *all);
    struct err error = {0};
    args.elements = 1;
    assert_int_equal(device_convert_items(device, &args, &error), STATUS_INTERNAL);
    err_clear(&error);
    mem_free(x);
    mem_free(all);
    mem_free(each);
    ops_close_device(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw_three_steps_match_reference),
        cmocka_unit_test(test_adamw_changes_nothing_where_the_scale_is_not_finite),
        cmocka_unit_test(test_adamw_of_types_that_the_cpu_has_not_is_an_internal_error),
        cmocka_unit_test(test_clip_undoes_the_loss_scale_and_marks_overflow),
        cmocka_unit_test(test_sum_squares_and_clip_match_reference),
        cmocka_unit_test(test_dropout_follows_its_keys_and_keeps_the_mean),
        cmocka_unit_test(test_rows_gathered_and_scattered_return_to_their_places),
        cmocka_unit_test(test_add_and_divide_in_place),
        cmocka_unit_test(test_column_operations_match_reference),
        cmocka_unit_test(test_convert_rounds_to_nearest_even_and_keeps_nan),
        cmocka_unit_test(test_convert_scales_between_every_two_types),
        cmocka_unit_test(test_convert_items_equal_one_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
