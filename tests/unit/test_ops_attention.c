/* test_ops_attention.c - attention against the textbook formula in double, its gradient by finite
 * differences. rooms: kernels base
 *
 * One table of cases serves the forward check, the gradient check and, with --bench, the timing
 * (one JSON line a case). Tolerances: forward 2e-6 of the value's scale (sums of at most 300 f32
 * terms); gradients 2e-5, central differences of the double reference with step 1e-4 are good to
 * 1e-8, the rest is f32. */
#include "tests/unit/support_ops.h"

enum { SEGMENTS_MAX = 8 };

struct attention_case {
    int64_t heads, kv_heads, head_dim, window;
    float softcap;
    int32_t lengths[SEGMENTS_MAX]; /* ends with 0 */
    int64_t pad;                   /* ld - width, of out and dout too */
};

static const struct attention_case CASES[] = {
    {1, 1, 16, 0, 0, {1}, 0},
    {2, 2, 32, 0, 0, {7, 1, 3}, 0},
    {4, 2, 64, 0, 0, {130, 64, 5}, 3},
    {4, 1, 80, 0, 0, {65, 33}, 0},
    {2, 1, 96, 17, 0, {100, 90}, 1},
    {2, 2, 128, 64, 0, {129}, 0},
    {2, 1, 256, 0, 0, {70, 2}, 0},
    {4, 2, 64, 5, 8.0f, {130, 1, 40}, 7},
    {2, 1, 32, 0, 3.0f, {63, 64, 65}, 0},
    {3, 3, 24, 1, 0, {80}, 0},
    {3, 1, 5, 200, 0, {128, 128}, 2},
};

/* All arrays of one case; the doubles are copies of the floats. */
struct attention_data {
    const struct attention_case *c;
    struct attention_args args;
    int32_t cu_seqlens[SEGMENTS_MAX + 1];
    float *q, *k, *v, *out, *lse, *dout;
    double *q_ref, *k_ref, *v_ref, *out_ref, *lse_ref;
};

static void setup(struct attention_data *d, const struct attention_case *c) {
    memset(d, 0, sizeof *d);
    d->c = c;
    int64_t segments = 0, longest = 0;
    while (segments < SEGMENTS_MAX && c->lengths[segments] > 0) {
        longest = c->lengths[segments] > longest ? c->lengths[segments] : longest;
        d->cu_seqlens[segments + 1] = d->cu_seqlens[segments] + c->lengths[segments];
        segments++;
    }
    const int64_t tokens = d->cu_seqlens[segments];
    const int64_t ld_q = c->heads * c->head_dim + c->pad, ld_k = c->kv_heads * c->head_dim + c->pad;
    d->q = ops_random(tokens * ld_q, 1.5, 1);
    d->k = ops_random(tokens * ld_k, 1.5, 2);
    d->v = ops_random(tokens * ld_k, 1, 3);
    d->dout = ops_random(tokens * ld_q, 1, 4);
    d->out = ops_random(tokens * ld_q, 1, 5);
    d->lse = ops_random(tokens * c->heads, 1, 6);
    d->q_ref = ops_widen(d->q, tokens * ld_q);
    d->k_ref = ops_widen(d->k, tokens * ld_k);
    d->v_ref = ops_widen(d->v, tokens * ld_k);
    d->out_ref = ops_widen(d->out, tokens * ld_q);
    d->lse_ref = ops_widen(d->lse, tokens * c->heads);
    d->args = (struct attention_args){.tokens = tokens,
                                      .heads = c->heads,
                                      .kv_heads = c->kv_heads,
                                      .head_dim = c->head_dim,
                                      .segments = segments,
                                      .max_seqlen = longest,
                                      .cu_seqlens = d->cu_seqlens,
                                      .scale = 1.0f / sqrtf((float)c->head_dim),
                                      .softcap = c->softcap,
                                      .window = c->window,
                                      .q = d->q,
                                      .k = d->k,
                                      .v = d->v,
                                      .ld_q = ld_q,
                                      .ld_k = ld_k,
                                      .ld_v = ld_k,
                                      .out = d->out,
                                      .ld_out = ld_q,
                                      .lse = d->lse};
}

static void release(struct attention_data *d) {
    float *floats[] = {d->q, d->k, d->v, d->out, d->lse, d->dout};
    double *doubles[] = {d->q_ref, d->k_ref, d->v_ref, d->out_ref, d->lse_ref};
    for (size_t i = 0; i < COUNT_OF(floats); i++) {
        mem_free(floats[i]);
    }
    for (size_t i = 0; i < COUNT_OF(doubles); i++) {
        mem_free(doubles[i]);
    }
}

/* One query of one head. */
static void reference_row(struct attention_data *d, int64_t start, int64_t query, int64_t head) {
    const struct attention_args *a = &d->args;
    const int64_t dim = a->head_dim, kv = head / (a->heads / a->kv_heads), row = start + query;
    const int64_t first = a->window > 0 && query >= a->window ? query - a->window + 1 : 0;
    double score[512], top = -INFINITY, sum = 0;
    for (int64_t j = first; j <= query; j++) {
        double s = 0;
        for (int64_t i = 0; i < dim; i++) {
            s += d->q_ref[row * a->ld_q + head * dim + i] *
                 d->k_ref[(start + j) * a->ld_k + kv * dim + i];
        }
        s *= (double)a->scale;
        if (a->softcap > 0) s = (double)a->softcap * tanh(s / (double)a->softcap);
        score[j] = s;
        top = s > top ? s : top;
    }
    for (int64_t j = first; j <= query; j++) {
        sum += exp(score[j] - top);
    }
    d->lse_ref[head * a->tokens + row] = top + log(sum);
    for (int64_t i = 0; i < dim; i++) {
        double value = 0;
        for (int64_t j = first; j <= query; j++) {
            value += exp(score[j] - top) / sum * d->v_ref[(start + j) * a->ld_v + kv * dim + i];
        }
        d->out_ref[row * a->ld_out + head * dim + i] = value;
    }
}

static void reference(struct attention_data *d) {
    for (int64_t s = 0; s < d->args.segments; s++) {
        const int64_t start = d->cu_seqlens[s], length = d->cu_seqlens[s + 1] - start;
        for (int64_t query = 0; query < length; query++) {
            for (int64_t head = 0; head < d->args.heads; head++) {
                reference_row(d, start, query, head);
            }
        }
    }
}

static double reference_loss(void *context) {
    struct attention_data *d = context;
    reference(d);
    double loss = 0;
    const int64_t width = d->args.heads * d->args.head_dim, ld = d->args.ld_out;
    for (int64_t t = 0; t < d->args.tokens; t++) {
        for (int64_t i = 0; i < width; i++) {
            loss += d->out_ref[t * ld + i] * (double)d->dout[t * ld + i];
        }
    }
    return loss;
}

static void test_attention_every_case_matches_reference(void **state) {
    (void)state;
    struct device *device = ops_open();
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct attention_data d;
        setup(&d, &CASES[i]);
        ops_ok(device_attention(device, &d.args, e));
        reference(&d);
        /* The gaps between rows are as they were: out_ref began as out. */
        ops_near_all(d.out, d.out_ref, d.args.tokens * d.args.ld_out, 2e-6, 1, "out");
        ops_near_all(d.lse, d.lse_ref, d.args.tokens * d.args.heads, 2e-6, 1, "lse");
        release(&d);
    }
    ops_close_device(device);
}

/* As many bytes as the device asks for, of numbers that nobody may count on. Caller frees. */
static float *scratch_of(const struct device *device, const struct attention_args *a) {
    const int64_t bytes = device_attention_scratch(device, a, true);
    assert_true(bytes > 0 && bytes % (int64_t)sizeof(float) == 0);
    return ops_random(bytes / (int64_t)sizeof(float), 1, 10);
}

static void check_backward(struct device *device, struct attention_data *d) {
    enum { SAMPLES = 16 };
    struct attention_args *const a = &d->args;
    float *dq = ops_random(a->tokens * a->ld_q, 1, 7), *dk = ops_random(a->tokens * a->ld_k, 1, 8);
    float *dv = ops_random(a->tokens * a->ld_v, 1, 9), *scratch = scratch_of(device, a);
    a->scratch = scratch;
    const float padding = dq[a->ld_q - 1];
    ops_ok(device_attention(device, a, e));
    ops_ok(device_attention_backward(device,
                                     &(struct attention_backward_args){.forward = *a,
                                                                       .dout = d->dout,
                                                                       .ld_dout = a->ld_out,
                                                                       .dq = dq,
                                                                       .dk = dk,
                                                                       .dv = dv,
                                                                       .ld_dq = a->ld_q,
                                                                       .ld_dk = a->ld_k,
                                                                       .ld_dv = a->ld_v},
                                     e));
    if (d->c->pad > 0) assert_true(dq[a->ld_q - 1] == padding);
    if (d->c->pad == 0) {
        ops_check_gradient(
            &(struct ops_gradient){d->q_ref, dq, a->tokens * a->ld_q, reference_loss, d, "dq"},
            SAMPLES, 2e-5);
        ops_check_gradient(
            &(struct ops_gradient){d->k_ref, dk, a->tokens * a->ld_k, reference_loss, d, "dk"},
            SAMPLES, 2e-5);
        ops_check_gradient(
            &(struct ops_gradient){d->v_ref, dv, a->tokens * a->ld_v, reference_loss, d, "dv"},
            SAMPLES, 2e-5);
    } else {
        /* Padding has no gradient: look only at the first row's worth of each matrix, and at its
         * last rows. */
        const int64_t last = a->tokens - 1;
        ops_check_gradient(
            &(struct ops_gradient){d->q_ref, dq, a->heads * a->head_dim, reference_loss, d, "dq"},
            SAMPLES, 2e-5);
        ops_check_gradient(&(struct ops_gradient){d->k_ref + last * a->ld_k, dk + last * a->ld_k,
                                                  a->kv_heads * a->head_dim, reference_loss, d,
                                                  "dk"},
                           SAMPLES, 2e-5);
        ops_check_gradient(&(struct ops_gradient){d->v_ref, dv, a->kv_heads * a->head_dim,
                                                  reference_loss, d, "dv"},
                           SAMPLES, 2e-5);
    }
    mem_free(dq);
    mem_free(dk);
    mem_free(dv);
    mem_free(scratch);
}

static void test_attention_backward_every_case_matches_differences(void **state) {
    (void)state;
    struct device *device = ops_open();
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        struct attention_data d;
        setup(&d, &CASES[i]);
        check_backward(device, &d);
        release(&d);
    }
    ops_close_device(device);
}

static void test_attention_run_twice_gives_the_same_bits(void **state) {
    (void)state;
    struct device *device = ops_open();
    struct attention_data one, two;
    setup(&one, &CASES[2]);
    setup(&two, &CASES[2]);
    ops_ok(device_attention(device, &one.args, e));
    /* Old tiles in the workspace must not matter. */
    memset(device->workspace, 0xff, (size_t)device->workspace_bytes);
    ops_ok(device_attention(device, &two.args, e));
    assert_memory_equal(one.out, two.out,
                        sizeof(float) * (size_t)(one.args.tokens * one.args.ld_out));
    release(&one);
    release(&two);
    ops_close_device(device);
}

static void test_attention_without_workspace_is_an_internal_error(void **state) {
    (void)state;
    struct device *device = ops_open_named("cpu", PRECISION_F32);
    struct attention_data d;
    struct err error = {0};
    setup(&d, &CASES[0]);
    assert_int_equal(device_attention(device, &d.args, &error), STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "workspace"));
    release(&d);
    device_close(device);
}

static void test_attention_backward_without_scratch_is_an_internal_error(void **state) {
    (void)state;
    struct device *device = ops_open();
    struct attention_data d;
    struct err error = {0};
    setup(&d, &CASES[0]);
    const struct attention_backward_args args = {.forward = d.args,
                                                 .dout = d.dout,
                                                 .ld_dout = d.args.ld_out,
                                                 .dq = d.q,
                                                 .dk = d.k,
                                                 .dv = d.v,
                                                 .ld_dq = d.args.ld_q,
                                                 .ld_dk = d.args.ld_k,
                                                 .ld_dv = d.args.ld_v};
    assert_int_equal(device_attention_backward(device, &args, &error), STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "scratch is missing"));
    release(&d);
    ops_close_device(device);
}

static void bench_case(struct device *device, const struct attention_case *c) {
    struct attention_data d;
    setup(&d, c);
    struct attention_args *const a = &d.args;
    float *dq = ops_random(a->tokens * a->ld_q, 1, 7), *dk = ops_random(a->tokens * a->ld_k, 1, 8);
    float *dv = ops_random(a->tokens * a->ld_v, 1, 9), *scratch = scratch_of(device, a);
    a->scratch = scratch;
    const struct attention_backward_args b = {.forward = *a,
                                              .dout = d.dout,
                                              .ld_dout = a->ld_out,
                                              .dq = dq,
                                              .dk = dk,
                                              .dv = dv,
                                              .ld_dq = a->ld_q,
                                              .ld_dk = a->ld_k,
                                              .ld_dv = a->ld_v};
    double best[2] = {1e30, 1e30}, flops[2] = {0};
    for (int i = 0; i < 10; i++) {
        for (int pass = 0; pass < 2; pass++) {
            const double before = device->flops;
            const int64_t start = clock_steady_ns();
            if (pass == 0) {
                ops_ok(device_attention(device, a, e));
            } else {
                ops_ok(device_attention_backward(device, &b, e));
            }
            const double ns = (double)(clock_steady_ns() - start);
            best[pass] = ns < best[pass] ? ns : best[pass];
            flops[pass] = device->flops - before;
        }
    }
    printf("{\"op\":\"attention\",\"tokens\":%lld,\"heads\":%lld,\"head_dim\":%lld,\"forward_"
           "gflops\":%.1f,"
           "\"forward_us\":%.0f,\"backward_gflops\":%.1f,\"backward_us\":%.0f}\n",
           (long long)a->tokens, (long long)a->heads, (long long)a->head_dim, flops[0] / best[0],
           best[0] / 1e3, flops[1] / best[1], best[1] / 1e3);
    mem_free(dq);
    mem_free(dk);
    mem_free(dv);
    mem_free(scratch);
    release(&d);
}

static int bench(void) {
    static const struct attention_case cases[] = {{9, 3, 64, 0, 0, {256}, 0},
                                                  {9, 3, 64, 0, 0, {512}, 0},
                                                  {9, 3, 64, 0, 0, {2048}, 0},
                                                  {8, 2, 128, 0, 0, {1024}, 0}};
    struct device *device = ops_open();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        bench_case(device, &cases[i]);
    }
    ops_close_device(device);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) return bench();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_every_case_matches_reference),
        cmocka_unit_test(test_attention_backward_every_case_matches_differences),
        cmocka_unit_test(test_attention_run_twice_gives_the_same_bits),
        cmocka_unit_test(test_attention_without_workspace_is_an_internal_error),
        cmocka_unit_test(test_attention_backward_without_scratch_is_an_internal_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
