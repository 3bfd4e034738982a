/* test_ops_gemm.c - products against sums in double: every transpose, alpha, beta, bias, strides,
 * element types. rooms: kernels base
 *
 * With --bench [bf16]: one JSON line a shape of a 135M-parameter model, in the library that
 * PLIMSOLL_CPU_GEMM names. Tolerance: 4e-7 * sqrt(k) of the size of the sum, the growth of rounding
 * errors in f32. bf16 operands are exact inputs, and bf16 products are compared with sums of the
 * rounded operands (their products are exact in f32), so all have the same. */
#include "tests/unit/support_ops.h"

static const int64_t SIDES[] = {1, 3, 17, 63, 65, 130};

struct gemm_case {
    int64_t m, n, k, pad;
    bool trans_a, trans_b, bias;
    enum dtype a, b;
    float alpha, beta;
};

static uint16_t *narrowed(float *x, int64_t count) {
    uint16_t *out = mem_new((size_t)count + 1, sizeof *out);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        out[i] = (uint16_t)(bits >> 16);
        bits &= 0xffff0000u;
        memcpy(x + i, &bits, sizeof bits);
    }
    return out;
}

/* Copy rounded to bf16, to nearest, ties to even. */
static float *rounded(const float *x, int64_t count) {
    float *out = mem_new((size_t)count + 1, sizeof *out);
    for (int64_t i = 0; i < count; i++) {
        const double spacing = ldexp(1, ilogb((double)x[i]) - 7);
        out[i] = x[i] == 0 ? 0 : (float)(nearbyint((double)x[i] / spacing) * spacing);
    }
    return out;
}

static double expected(const struct gemm_case *c, const struct gemm_args *args, const float *a,
                       const float *b, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t p = 0; p < c->k; p++) {
        const double x = (double)(c->trans_a ? a[p * args->a.ld + i] : a[i * args->a.ld + p]);
        const double y = (double)(c->trans_b ? b[j * args->b.ld + p] : b[p * args->b.ld + j]);
        sum += x * y;
    }
    return sum * (double)c->alpha;
}

static void check_case(struct device *device, const struct gemm_case *c) {
    const int64_t rows_a = c->trans_a ? c->k : c->m, rows_b = c->trans_b ? c->n : c->k;
    struct gemm_args args = {.m = c->m,
                             .n = c->n,
                             .k = c->k,
                             .alpha = c->alpha,
                             .beta = c->beta,
                             .trans_a = c->trans_a,
                             .trans_b = c->trans_b};
    args.a = (struct matrix){NULL, c->a, (c->trans_a ? c->m : c->k) + c->pad};
    args.b = (struct matrix){NULL, c->b, (c->trans_b ? c->k : c->n) + c->pad};
    args.c = (struct matrix){NULL, DTYPE_F32, c->n + c->pad};
    float *a = ops_random(rows_a * args.a.ld, 1, 1), *b = ops_random(rows_b * args.b.ld, 1, 2);
    float *out = ops_random(c->m * args.c.ld, 1, 3), *before = ops_random(c->m * args.c.ld, 1, 3);
    float *bias = ops_random(c->n, 1, 4);
    uint16_t *a16 = c->a == DTYPE_BF16 ? narrowed(a, rows_a * args.a.ld) : NULL;
    uint16_t *b16 = c->b == DTYPE_BF16 ? narrowed(b, rows_b * args.b.ld) : NULL;
    args.a.data = a16 ? (void *)a16 : (void *)a;
    args.b.data = b16 ? (void *)b16 : (void *)b;
    args.c.data = out;
    args.bias = c->bias ? bias : NULL;
    if (c->beta == 0) {
        for (int64_t i = 0; i < c->m; i++) {
            out[i * args.c.ld] = NAN; /* beta == 0 must not read C */
        }
    }
    /* Thin products of f32 are not rounded: it would cost more than it brings. */
    const bool rounds =
        device->precision == PRECISION_BF16 && (a16 || b16 || c->m * c->n >= 64 * (c->m + c->n));
    float *const want_a = rounds ? rounded(a, rows_a * args.a.ld) : NULL;
    float *const want_b = rounds ? rounded(b, rows_b * args.b.ld) : NULL;
    ops_ok(device_gemm(device, &args, e));
    const double tolerance = 4e-7 * sqrt((double)c->k) * (1 + fabs((double)c->alpha));
    /* Large products are looked at in places. */
    const int64_t step_i = c->m > 200 ? 37 : 1, step_j = c->n > 200 ? 41 : 1;
    for (int64_t i = 0; i < c->m; i += step_i) {
        for (int64_t j = 0; j < args.c.ld; j += step_j) {
            const int64_t at = i * args.c.ld + j;
            if (j >= c->n) {
                assert_true(out[at] == before[at]);
                continue;
            }
            const double rest = (c->beta == 0 ? 0 : (double)c->beta * (double)before[at]) +
                                (c->bias ? (double)bias[j] : 0);
            ops_near((double)out[at],
                     expected(c, &args, want_a ? want_a : a, want_b ? want_b : b, i, j) + rest,
                     tolerance, 1, "c", at);
        }
    }
    mem_free(a);
    mem_free(b);
    mem_free(out);
    mem_free(before);
    mem_free(bias);
    mem_free(a16);
    mem_free(b16);
    mem_free(want_a);
    mem_free(want_b);
}

/* Every transpose with sides from both ends of what a library treats in its own way. */
static void check_sides(struct device *device, enum dtype weights) {
    static const float alphas[] = {1, 0.5f, 1, -2}, betas[] = {0, 1, 0.25f, 0};
    int turn = 0;
    for (size_t m = 0; m < COUNT_OF(SIDES); m++) {
        for (size_t n = 0; n < COUNT_OF(SIDES); n++) {
            for (size_t k = 0; k < COUNT_OF(SIDES); k++) {
                for (int trans = 0; trans < 4; trans++, turn++) {
                    const int pick = turn * 7 / 5 % 4;
                    check_case(device,
                               &(struct gemm_case){SIDES[m], SIDES[n], SIDES[k], turn % 3,
                                                   trans & 1, trans >> 1, turn % 5 == 0, DTYPE_F32,
                                                   weights, alphas[pick], betas[pick]});
                }
            }
        }
    }
}

static void test_gemm_every_transpose_and_side_matches_reference(void **state) {
    (void)state;
    struct device *device = ops_open();
    check_sides(device, DTYPE_F32);
    ops_close_device(device);
}

/* A device that multiplies bf16 whether that is fast here or not: the path is the same where
 * device_open grants it. NULL where the library cannot, which must be said in words. */
static struct device *open_bf16(void) {
    struct device *device = ops_open();
    device->precision = PRECISION_BF16;
    float x[2] = {1, 1}, c = 0;
    uint16_t ones[2] = {0x3f80, 0x3f80};
    const struct gemm_args args = {.m = 1,
                                   .n = 1,
                                   .k = 2,
                                   .alpha = 1,
                                   .a = {x, DTYPE_F32, 2},
                                   .b = {ones, DTYPE_BF16, 1},
                                   .c = {&c, DTYPE_F32, 1}};
    struct err error = {0};
    if (device_gemm(device, &args, &error) == STATUS_OK) return device;
    assert_int_equal(error.status, STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.text, "set bf16 to false"));
    assert_false(strstr(device->detail, "oneDNN") && strstr(device->detail, "avx512"));
    ops_close_device(device);
    return NULL;
}

static void test_gemm_bf16_products_match_reference_of_rounded_operands(void **state) {
    (void)state;
    struct device *device = open_bf16();
    if (!device) skip();
    check_sides(device, DTYPE_F32);
    check_sides(device, DTYPE_BF16);
    for (int trans = 0; trans < 4; trans++) {
        for (int types = 0; types < 4; types++) {
            check_case(device, &(struct gemm_case){33, 65, 70, 2, trans & 1, trans >> 1, true,
                                                   types & 1 ? DTYPE_BF16 : DTYPE_F32,
                                                   types & 2 ? DTYPE_BF16 : DTYPE_F32, 0.5f, 1});
            check_case(device, &(struct gemm_case){9, 5, 4, 1, trans & 1, trans >> 1, false,
                                                   types & 1 ? DTYPE_BF16 : DTYPE_F32,
                                                   types & 2 ? DTYPE_BF16 : DTYPE_F32, 0, 2});
        }
    }
    ops_close_device(device);
}

static void test_gemm_bf16_products_larger_than_a_block_match_reference(void **state) {
    (void)state;
    struct device *device = open_bf16();
    if (!device) skip();
    for (int trans = 0; trans < 4; trans++) {
        check_case(device, &(struct gemm_case){300, 300, 9000, 0, trans & 1, trans >> 1, true,
                                               DTYPE_F32, DTYPE_BF16, 1, 1});
        check_case(device, &(struct gemm_case){2500, 700, 1100, 0, trans & 1, trans >> 1, true,
                                               DTYPE_F32, DTYPE_F32, 2, 0});
    }
    ops_close_device(device);
}

/* More shapes than compiled products are kept, and each of them again. */
static void test_gemm_bf16_products_of_many_shapes_match_reference(void **state) {
    (void)state;
    struct device *device = open_bf16();
    if (!device) skip();
    for (int round = 0; round < 2; round++) {
        for (int64_t m = 1; m <= 150; m++) {
            check_case(device, &(struct gemm_case){m, 3, 5, 0, false, true, false, DTYPE_F32,
                                                   DTYPE_BF16, 1, round ? 1.0f : 0.0f});
        }
    }
    ops_close_device(device);
}

static void test_gemm_bf16_operands_match_reference(void **state) {
    (void)state;
    struct device *device = ops_open();
    for (int trans = 0; trans < 4; trans++) {
        for (int types = 1; types < 4; types++) {
            check_case(device, &(struct gemm_case){33, 65, 70, 2, trans & 1, trans >> 1, true,
                                                   types & 1 ? DTYPE_BF16 : DTYPE_F32,
                                                   types & 2 ? DTYPE_BF16 : DTYPE_F32, 0.5f, 1});
        }
    }
    ops_close_device(device);
}

static void test_gemm_bf16_operands_larger_than_a_block_match_reference(void **state) {
    (void)state;
    struct device *device = ops_open();
    for (int trans = 0; trans < 4; trans++) {
        check_case(device, &(struct gemm_case){300, 2500, 700, 0, trans & 1, trans >> 1, true,
                                               DTYPE_F32, DTYPE_BF16, 1, 1});
        check_case(device, &(struct gemm_case){300, 300, 9000, 0, trans & 1, trans >> 1, true,
                                               DTYPE_BF16, DTYPE_BF16, 1, 0});
    }
    ops_close_device(device);
}

static void test_gemm_bad_arguments_are_named(void **state) {
    (void)state;
    struct device *device = ops_open();
    float x[4] = {0};
    struct gemm_args args = {.m = 2,
                             .n = 2,
                             .k = 2,
                             .alpha = 1,
                             .a = {x, DTYPE_F32, 2},
                             .b = {x, DTYPE_F32, 1},
                             .c = {x, DTYPE_F32, 2}};
    struct err error = {0};
    assert_int_equal(device_gemm(device, &args, &error), STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "device_gemm: b.ld"));
    args.b.ld = 2;
    args.k = 0;
    err_clear(&error);
    assert_int_equal(device_gemm(device, &args, &error), STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "k must be positive"));
    args.k = 2;
    args.c.dtype = DTYPE_BF16;
    err_clear(&error);
    assert_int_equal(device_gemm(device, &args, &error), STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "c must be float32"));
    args.c.dtype = DTYPE_F32;
    args.a.dtype = DTYPE_F16;
    err_clear(&error);
    assert_int_equal(device_gemm(device, &args, &error), STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "a has a type"));
    ops_close_device(device);
}

static void bench_shape(struct device *device, int64_t m, int64_t n, int64_t k, int trans,
                        enum dtype weights) {
    float *a = ops_random(m * k, 1, 1), *b = ops_random(n * k, 1, 2), *c = ops_random(m * n, 1, 3);
    uint16_t *b16 = narrowed(b, n * k);
    const struct gemm_args args = {
        .m = m,
        .n = n,
        .k = k,
        .alpha = 1,
        .trans_a = trans & 1,
        .trans_b = trans >> 1,
        .a = {a, DTYPE_F32, trans & 1 ? m : k},
        .b = {weights == DTYPE_BF16 ? (void *)b16 : (void *)b, weights, trans >> 1 ? k : n},
        .c = {c, DTYPE_F32, n}};
    double best = 1e30;
    for (int i = 0; i < 20; i++) {
        const int64_t start = clock_steady_ns();
        ops_ok(device_gemm(device, &args, e));
        const double ns = (double)(clock_steady_ns() - start);
        best = ns < best ? ns : best;
    }
    printf("{\"op\":\"gemm\",\"m\":%lld,\"n\":%lld,\"k\":%lld,\"trans\":\"%c%c\",\"weights\":\"%"
           "s\",\"gflops\":%.1f,"
           "\"us\":%.0f}\n",
           (long long)m, (long long)n, (long long)k, trans & 1 ? 'T' : 'N', trans >> 1 ? 'T' : 'N',
           dtype_name(weights), 2.0 * (double)m * (double)n * (double)k / best, best / 1e3);
    mem_free(a);
    mem_free(b);
    mem_free(c);
    mem_free(b16);
}

static int bench(bool bf16) {
    /* Forward x W^T, gradient of x (dy W), gradient of W (dy^T x). */
    static const int64_t shapes[][4] = {
        {256, 576, 576, 2},  {256, 960, 576, 2},   {256, 3072, 576, 2},  {256, 576, 1536, 2},
        {256, 576, 3072, 0}, {256, 49152, 576, 2}, {256, 576, 49152, 0}, {512, 576, 576, 2},
        {512, 3072, 576, 2}, {512, 576, 1536, 2},  {512, 49152, 576, 2}, {3072, 576, 512, 1},
        {512, 16, 576, 2},   {512, 576, 16, 2}};
    struct device *device = ops_open();
    device->precision = bf16 ? PRECISION_BF16 : PRECISION_F32;
    printf("{\"device\":\"%s\",\"bf16\":%s}\n", device->detail, bf16 ? "true" : "false");
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        bench_shape(device, shapes[i][0], shapes[i][1], shapes[i][2], (int)shapes[i][3], DTYPE_F32);
        bench_shape(device, shapes[i][0], shapes[i][1], shapes[i][2], (int)shapes[i][3],
                    DTYPE_BF16);
    }
    ops_close_device(device);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return bench(argc > 2 && strcmp(argv[2], "bf16") == 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm_every_transpose_and_side_matches_reference),
        cmocka_unit_test(test_gemm_bf16_operands_match_reference),
        cmocka_unit_test(test_gemm_bf16_operands_larger_than_a_block_match_reference),
        cmocka_unit_test(test_gemm_bf16_products_match_reference_of_rounded_operands),
        cmocka_unit_test(test_gemm_bf16_products_larger_than_a_block_match_reference),
        cmocka_unit_test(test_gemm_bf16_products_of_many_shapes_match_reference),
        cmocka_unit_test(test_gemm_bad_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
