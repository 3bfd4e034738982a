/* test_ops_math.c - the CPU device's own exp, tanh and random numbers: exp and tanh walked over the
 * floats against long double, Philox against the published known answers (Random123, kat_vectors).
 * rooms: kernels base */
#include "kernels/cpu/simd/math.h"
#include "kernels/philox.h"
#include "tests/unit/support_ops.h"

/* A prime step over the bit patterns visits every exponent thousands of times. */
enum { BITS_STEP = 4099 };

static double ulps(float got, long double want) {
    const double unit = ldexp(1, ilogbl(want) - 23 < -149 ? -149 : ilogbl(want) - 23);
    return fabs((double)((long double)got - want)) / unit;
}

static void test_exp_is_within_two_ulp(void **state) {
    (void)state;
    double worst = 0;
    for (uint64_t bits = 0; bits < UINT32_MAX; bits += BITS_STEP) {
        const float x = simd_from_bits((uint32_t)bits);
        const long double want = expl((long double)x);
        if (!(x > -87.0f && x < 88.7f)) continue;
        worst = fmax(worst, ulps(simd_exp(x), want));
    }
    assert_true(worst < 2);
}

static void test_exp_special_values(void **state) {
    (void)state;
    assert_true(simd_exp(0) == 1 && simd_exp(-INFINITY) == 0 && isinf(simd_exp(INFINITY)));
    assert_true(isnan(simd_exp(NAN)) && isinf(simd_exp(88.8f)) && simd_exp(-104.5f) == 0);
    /* Subnormal results: the last bit is all there is. */
    assert_true(fabs((double)simd_exp(-95.0f) - exp(-95.0)) <= 0x1p-149);
}

static void test_tanh_is_within_two_ulp(void **state) {
    (void)state;
    double worst = 0;
    for (uint64_t bits = 0; bits < UINT32_MAX; bits += BITS_STEP) {
        const float x = simd_from_bits((uint32_t)bits);
        if (!isfinite(x)) continue;
        /* Below 2^-120 x*x vanishes and tanh x is x. */
        if (fabsf(x) < 0x1p-120f) {
            assert_true(simd_tanh(x) == x);
            continue;
        }
        worst = fmax(worst, ulps(simd_tanh(x), tanhl((long double)x)));
    }
    assert_true(worst < 2);
    assert_true(simd_tanh(INFINITY) == 1 && simd_tanh(-INFINITY) == -1 && isnan(simd_tanh(NAN)));
}

static void test_philox_gives_the_published_answers(void **state) {
    (void)state;
    static const struct {
        struct philox counter;
        uint32_t key[2];
        struct philox answer;
    } cases[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}},
         {UINT32_MAX, UINT32_MAX},
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {0xa4093822, 0x299f31d0},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct philox got = philox(cases[i].counter, cases[i].key[0], cases[i].key[1]);
        assert_memory_equal(&got, &cases[i].answer, sizeof got);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_is_within_two_ulp),
        cmocka_unit_test(test_exp_special_values),
        cmocka_unit_test(test_tanh_is_within_two_ulp),
        cmocka_unit_test(test_philox_gives_the_published_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
