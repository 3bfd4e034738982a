/* test_ops.c - norm, rope, gated units, embedding, cross-entropy: forward against formulas in
 * double, gradients by central differences of those formulas. rooms: kernels base
 *
 * Tolerances: 2e-6 of the value's scale forward (a few f32 roundings, exp and tanh within 2 ulp),
 * 2e-5 for gradients. */
#include "tests/unit/support_ops.h"

static const int64_t WIDTHS[] = {1, 3, 17, 63, 64, 65, 576};

/* ---- rmsnorm ---- */

struct norm_data {
    int64_t tokens, groups, width, ld;
    double *x, *weight;
    float *dy;
    double offset, eps;
};

static double norm_value(const struct norm_data *d, int64_t t, int64_t g, int64_t i, double *rstd) {
    const double *x = d->x + t * d->ld + g * d->width;
    double square = 0;
    for (int64_t j = 0; j < d->width; j++) {
        square += x[j] * x[j];
    }
    *rstd = 1 / sqrt(square / (double)d->width + d->eps);
    return x[i] * *rstd * (d->offset + d->weight[i]);
}

static double norm_loss(void *context) {
    const struct norm_data *d = context;
    double loss = 0, rstd = 0;
    for (int64_t t = 0; t < d->tokens; t++) {
        for (int64_t g = 0; g < d->groups; g++) {
            for (int64_t i = 0; i < d->width; i++) {
                loss += norm_value(d, t, g, i, &rstd) * (double)d->dy[t * d->ld + g * d->width + i];
            }
        }
    }
    return loss;
}

static void check_norm_values(const struct norm_data *d, const float *y, const float *rstd) {
    for (int64_t t = 0; t < d->tokens; t++) {
        for (int64_t i = 0; i < d->groups * d->width; i++) {
            double want_rstd = 0;
            const double want = norm_value(d, t, i / d->width, i % d->width, &want_rstd);
            ops_near((double)y[t * d->ld + i], want, 2e-6, 1, "y", i);
            ops_near((double)rstd[t * d->groups + i / d->width], want_rstd, 1e-6, 0, "rstd", t);
        }
    }
}

static void check_norm(struct device *device, int64_t width, int64_t groups, bool residual) {
    const int64_t tokens = 9, row = groups * width, ld = row + 3, count = tokens * ld;
    float *x = ops_random(count, 2, 1), *r = ops_random(count, 2, 2),
          *sum = ops_random(count, 1, 3), *gap = ops_random(count, 1, 3);
    float *weight = ops_random(width, 1, 4), *y = ops_random(count, 1, 5),
          *dy = ops_random(count, 1, 6);
    float *rstd = ops_random(tokens * groups, 1, 7), *dx = ops_random(count, 1, 8),
          *dx0 = ops_random(count, 1, 8);
    float *dweight = ops_random(width, 0, 9);
    const float offset = groups > 1 ? 1.0f : 0.0f;
    ops_ok(device_rmsnorm(device,
                          &(struct rmsnorm_args){.tokens = tokens,
                                                 .groups = groups,
                                                 .width = width,
                                                 .x = x,
                                                 .ld_x = ld,
                                                 .residual = residual ? r : NULL,
                                                 .ld_residual = ld,
                                                 .sum = residual ? sum : NULL,
                                                 .ld_sum = ld,
                                                 .weight = weight,
                                                 .weight_offset = offset,
                                                 .eps = 1e-5f,
                                                 .y = y,
                                                 .ld_y = ld,
                                                 .rstd = rstd},
                          e));
    if (residual) {
        for (int64_t i = 0; i < count; i++) {
            assert_true(sum[i] == (i % ld < row ? x[i] + r[i] : gap[i]));
        }
    }
    const float *source = residual ? sum : x;
    struct norm_data d = {
        tokens, groups,         width, ld, ops_widen(source, count), ops_widen(weight, width),
        dy,     (double)offset, 1e-5};
    check_norm_values(&d, y, rstd);
    const struct rmsnorm_backward_args backward = {.tokens = tokens,
                                                   .groups = groups,
                                                   .width = width,
                                                   .x = source,
                                                   .ld_x = ld,
                                                   .weight = weight,
                                                   .weight_offset = offset,
                                                   .rstd = rstd,
                                                   .dy = dy,
                                                   .ld_dy = ld,
                                                   .dx = dx,
                                                   .ld_dx = ld,
                                                   .accumulate = residual,
                                                   .dweight = dweight};
    ops_ok(device_rmsnorm_backward(device, &backward, e));
    for (int64_t i = 0; residual && i < count; i++) {
        dx[i] -= dx0[i];
    }
    ops_check_gradient(&(struct ops_gradient){d.x, dx, row, norm_loss, &d, "dx"}, 20,
                       residual ? 1e-4 : 2e-5);
    ops_check_gradient(&(struct ops_gradient){d.weight, dweight, width, norm_loss, &d, "dweight"},
                       20, 2e-5);
    float *all[] = {x, r, sum, gap, weight, y, dy, rstd, dx, dx0, dweight};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        mem_free(all[i]);
    }
    mem_free(d.x);
    mem_free(d.weight);
}

static void test_rmsnorm_every_width_matches_reference_and_differences(void **state) {
    (void)state;
    struct device *device = ops_open();
    for (size_t i = 0; i < COUNT_OF(WIDTHS); i++) {
        check_norm(device, WIDTHS[i], 1, false);
        check_norm(device, WIDTHS[i], 1, true);
        check_norm(device, WIDTHS[i], 3, false);
    }
    ops_close_device(device);
}

/* ---- rope ---- */

static void check_rope(struct device *device, int64_t head_dim, int64_t rotary, int64_t pad) {
    const int64_t tokens = 11, heads = 3, ld = heads * head_dim + pad, half = rotary / 2;
    float *x = ops_random(tokens * ld, 1, 1), *before = ops_random(tokens * ld, 1, 1);
    float *inv_freq = mem_new((size_t)half, sizeof *inv_freq);
    int32_t positions[11];
    for (int64_t i = 0; i < half; i++) {
        inv_freq[i] = (float)pow(10000.0, -(double)i / (double)half);
    }
    for (int i = 0; i < 11; i++) {
        positions[i] = i * 97;
    }
    struct rope_args args = {.tokens = tokens,
                             .heads = heads,
                             .head_dim = head_dim,
                             .rotary = rotary,
                             .x = x,
                             .ld = ld,
                             .positions = positions,
                             .inv_freq = inv_freq,
                             .scale = 1.25f};
    ops_ok(device_rope(device, &args, e));
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t c = 0; c < ld; c++) {
            const int64_t i = c % head_dim, pair = i % half, at = t * ld + c;
            if (c >= heads * head_dim || i >= rotary) {
                assert_true(x[at] == before[at]);
                continue;
            }
            const double angle = (double)((float)positions[t] * inv_freq[pair]);
            const double other = i < half ? -(double)before[at + half] : (double)before[at - half];
            ops_near((double)x[at], 1.25 * ((double)before[at] * cos(angle) + other * sin(angle)),
                     2e-6, 1, "rope", at);
        }
    }
    args.inverse = true;
    ops_ok(device_rope(device, &args, e));
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t c = 0; c < heads * head_dim; c++) {
            const double factor = c % head_dim < rotary ? 1.25 * 1.25 : 1;
            ops_near((double)x[t * ld + c], factor * (double)before[t * ld + c], 2e-6, 1,
                     "rope back", t * ld + c);
        }
    }
    mem_free(x);
    mem_free(before);
    mem_free(inv_freq);
}

static void test_rope_rotates_pairs_and_the_inverse_rotates_back(void **state) {
    (void)state;
    struct device *device = ops_open();
    check_rope(device, 64, 64, 0);
    check_rope(device, 80, 32, 5);
    check_rope(device, 2, 2, 0);
    check_rope(device, 320, 300, 1);
    ops_close_device(device);
}

/* ---- gated linear units ---- */

struct glu_data {
    int64_t tokens, width, ld_x, ld_out;
    enum activation activation;
    double *x;
    float *dout;
};

static double glu_value(const struct glu_data *d, int64_t t, int64_t i) {
    const double gate = d->x[t * d->ld_x + i], up = d->x[t * d->ld_x + d->width + i];
    if (d->activation == ACTIVATION_SILU) return gate / (1 + exp(-gate)) * up;
    return 0.5 * gate * (1 + tanh(sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
}

static double glu_loss(void *context) {
    const struct glu_data *d = context;
    double loss = 0;
    for (int64_t i = 0; i < d->tokens * d->width; i++) {
        const int64_t t = i / d->width, column = i % d->width;
        loss += glu_value(d, t, column) * (double)d->dout[t * d->ld_out + column];
    }
    return loss;
}

static void check_glu(struct device *device, int64_t width, enum activation activation) {
    const int64_t tokens = 5, ld_x = 2 * width + 3, ld_out = width + 2;
    float *x = ops_random(tokens * ld_x, 6, 1), *out = ops_random(tokens * ld_out, 1, 2);
    float *dout = ops_random(tokens * ld_out, 1, 3), *gap = ops_random(tokens * ld_out, 1, 2);
    struct glu_data d = {tokens, width, ld_x, ld_out, activation, ops_widen(x, tokens * ld_x),
                         dout};
    const struct glu_args args = {.tokens = tokens,
                                  .width = width,
                                  .activation = activation,
                                  .gate_up = x,
                                  .ld_gate_up = ld_x,
                                  .out = out,
                                  .ld_out = ld_out};
    ops_ok(device_glu(device, &args, e));
    for (int64_t i = 0; i < tokens * ld_out; i++) {
        const int64_t t = i / ld_out, column = i % ld_out;
        if (column >= width) {
            assert_true(out[i] == gap[i]);
        } else {
            ops_near((double)out[i], glu_value(&d, t, column), 2e-6, 1, "glu", i);
        }
    }
    /* In place, which device.h allows; what forward gave is made again over its gradient. */
    float *again = ops_random(tokens * ld_out, 1, 3);
    ops_ok(device_glu_backward(device,
                               &(struct glu_backward_args){.tokens = tokens,
                                                           .width = width,
                                                           .activation = activation,
                                                           .gate_up = x,
                                                           .ld_gate_up = ld_x,
                                                           .dout = again,
                                                           .ld_dout = ld_out,
                                                           .dgate_up = x,
                                                           .ld_dgate_up = ld_x,
                                                           .gated = again,
                                                           .ld_gated = ld_out},
                               e));
    for (int64_t i = 0; i < tokens * ld_out; i++) {
        assert_true(again[i] == (i % ld_out < width ? out[i] : dout[i]));
    }
    for (int64_t t = 0; t < tokens; t++) {
        ops_check_gradient(&(struct ops_gradient){d.x + t * ld_x, x + t * ld_x, 2 * width, glu_loss,
                                                  &d, "dgate_up"},
                           8, 2e-5);
        assert_true((double)x[t * ld_x + 2 * width] == d.x[t * ld_x + 2 * width]);
    }
    mem_free(x);
    mem_free(out);
    mem_free(gap);
    mem_free(dout);
    mem_free(again);
    mem_free(d.x);
}

static void test_glu_both_activations_match_reference_and_differences(void **state) {
    (void)state;
    struct device *device = ops_open();
    for (size_t i = 0; i < COUNT_OF(WIDTHS); i++) {
        check_glu(device, WIDTHS[i], ACTIVATION_SILU);
        check_glu(device, WIDTHS[i], ACTIVATION_GELU_TANH);
    }
    ops_close_device(device);
}

/* exp and tanh through glu with up = 1: the far ends must be exact limits, not NaN. */
static void test_glu_extreme_gates_reach_their_limits(void **state) {
    (void)state;
    struct device *device = ops_open();
    float x[10] = {100, -100, 3e38f, -3e38f, NAN, 1, 1, 1, 1, 1}, out[5];
    struct glu_args args = {.tokens = 1,
                            .width = 5,
                            .activation = ACTIVATION_SILU,
                            .gate_up = x,
                            .ld_gate_up = 10,
                            .out = out,
                            .ld_out = 5};
    ops_ok(device_glu(device, &args, e));
    assert_true(out[0] == 100 && fabsf(out[1]) < 1e-40f && out[2] == 3e38f && out[3] == 0 &&
                isnan(out[4]));
    args.width = 2;
    args.activation = ACTIVATION_GELU_TANH;
    args.gate_up = (float[]){100, -100, 1, 1};
    ops_ok(device_glu(device, &args, e));
    assert_true(out[0] == 100 && out[1] == 0);
    ops_close_device(device);
}

/* ---- embedding ---- */

static void test_embedding_and_its_gradient_with_repeated_ids(void **state) {
    (void)state;
    struct device *device = ops_open();
    enum { VOCAB = 5, CHANNELS = 65, LD = 70, TOKENS = 7 };
    const int32_t ids[TOKENS] = {4, 0, 4, 4, 2, 0, 1};
    float *table = ops_random(VOCAB * CHANNELS, 1, 1), *out = ops_random(TOKENS * LD, 1, 2);
    float *dtable = ops_random(VOCAB * CHANNELS, 1, 3), *want = ops_random(VOCAB * CHANNELS, 1, 3);
    float *gap = ops_random(TOKENS * LD, 1, 2);
    struct embedding_args args = {.tokens = TOKENS,
                                  .channels = CHANNELS,
                                  .vocab = VOCAB,
                                  .ids = ids,
                                  .table = table,
                                  .scale = 2,
                                  .out = out,
                                  .ld_out = LD};
    ops_ok(device_embedding(device, &args, e));
    for (int i = 0; i < TOKENS * LD; i++) {
        const int column = i % LD;
        assert_true(out[i] ==
                    (column < CHANNELS ? 2 * table[ids[i / LD] * CHANNELS + column] : gap[i]));
    }
    ops_ok(device_embedding_backward(device,
                                     &(struct embedding_backward_args){.tokens = TOKENS,
                                                                       .channels = CHANNELS,
                                                                       .vocab = VOCAB,
                                                                       .ids = ids,
                                                                       .dout = out,
                                                                       .ld_dout = LD,
                                                                       .scale = 0.5f,
                                                                       .dtable = dtable},
                                     e));
    for (int i = 0; i < TOKENS * CHANNELS; i++) {
        want[ids[i / CHANNELS] * CHANNELS + i % CHANNELS] +=
            0.5f * out[i / CHANNELS * LD + i % CHANNELS];
    }
    for (int i = 0; i < VOCAB * CHANNELS; i++) {
        ops_near((double)dtable[i], (double)want[i], 1e-6, 1, "dtable", i);
    }
    struct err error = {0};
    args.vocab = 4;
    assert_int_equal(device_embedding(device, &args, &error), STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "ids[0] is 4"));
    mem_free(table);
    mem_free(gap);
    mem_free(out);
    mem_free(dtable);
    mem_free(want);
    ops_close_device(device);
}

/* ---- cross-entropy ---- */

struct loss_data {
    int64_t vocab, label;
    double cap;
    double *x;
};

static double capped(const struct loss_data *d, int64_t i) {
    return d->cap > 0 ? d->cap * tanh(d->x[i] / d->cap) : d->x[i];
}

static double loss_value(void *context) {
    const struct loss_data *d = context;
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < d->vocab; i++) {
        top = fmax(top, capped(d, i));
    }
    for (int64_t i = 0; i < d->vocab; i++) {
        sum += exp(capped(d, i) - top);
    }
    return log(sum) + top - capped(d, d->label);
}

static void check_loss(struct device *device, int64_t vocab, float softcap) {
    enum { ROWS = 4 };
    float *x = ops_random(ROWS * vocab, 8, 1), losses[ROWS];
    double *wide = ops_widen(x, ROWS * vocab);
    int32_t labels[ROWS] = {0, (int32_t)(vocab - 1), (int32_t)(vocab / 2), 0}, correct[ROWS];
    for (int64_t i = 1; i < vocab; i++) {
        labels[3] = x[3 * vocab + i] > x[3 * vocab + labels[3]] ? (int32_t)i : labels[3];
    }
    const float loss_scale = 0.5f; /* with grad_scale 0.5: gradients of a quarter */
    ops_ok(device_cross_entropy(device,
                                &(struct cross_entropy_args){.rows = ROWS,
                                                             .vocab = vocab,
                                                             .logits = x,
                                                             .labels = labels,
                                                             .softcap = softcap,
                                                             .grad_scale = 0.5f,
                                                             .loss_scale = &loss_scale,
                                                             .write_gradient = true,
                                                             .losses = losses,
                                                             .correct = correct},
                                e));
    for (int64_t row = 0; row < ROWS; row++) {
        struct loss_data d = {vocab, labels[row], (double)softcap, wide + row * vocab};
        ops_near((double)losses[row], loss_value(&d), 2e-6, 1, "loss", row);
        bool first = true;
        for (int64_t i = 0; i < vocab; i++) {
            const double difference = d.x[i] - d.x[labels[row]];
            if (difference > 0 || (difference == 0 && i < labels[row])) first = false;
        }
        assert_int_equal(correct[row], first);
        for (int64_t i = 0; i < vocab; i++) {
            x[row * vocab + i] *= 4;
        }
        ops_check_gradient(
            &(struct ops_gradient){d.x, x + row * vocab, vocab, loss_value, &d, "dlogits"}, 12,
            2e-5);
        struct loss_data at_label = d;
        ops_check_gradient(&(struct ops_gradient){at_label.x + labels[row],
                                                  x + row * vocab + labels[row], 1, loss_value, &d,
                                                  "dlabel"},
                           1, 2e-5);
    }
    assert_int_equal(correct[3], 1);
    mem_free(x);
    mem_free(wide);
}

static void test_cross_entropy_matches_reference_and_differences(void **state) {
    (void)state;
    struct device *device = ops_open();
    static const int64_t vocabularies[] = {1, 3, 17, 65, 2048, 2049, 9001};
    for (size_t i = 0; i < COUNT_OF(vocabularies); i++) {
        check_loss(device, vocabularies[i], 0);
        check_loss(device, vocabularies[i], 30);
    }
    ops_close_device(device);
}

static void test_cross_entropy_tie_counts_the_first_largest_only(void **state) {
    (void)state;
    struct device *device = ops_open();
    float x[6] = {1, 2, 2, 1, 2, 2}, losses[2];
    int32_t labels[2] = {1, 2}, correct[2];
    const struct cross_entropy_args args = {.rows = 2,
                                            .vocab = 3,
                                            .logits = x,
                                            .labels = labels,
                                            .grad_scale = 1,
                                            .losses = losses,
                                            .correct = correct};
    ops_ok(device_cross_entropy(device, &args, e));
    assert_int_equal(correct[0], 1);
    assert_int_equal(correct[1], 0);
    struct err error = {0};
    labels[1] = 3;
    assert_int_equal(device_cross_entropy(device, &args, &error), STATUS_INTERNAL);
    ops_close_device(device);
}

static void test_loss_sums_are_added_to_the_totals(void **state) {
    (void)state;
    struct device *device = ops_open();
    enum { ROWS = 1001 };
    float *losses = ops_random(ROWS, 3, 1);
    int32_t correct[ROWS];
    double totals[2] = {1.5, 2}, want = 1.5;
    for (int i = 0; i < ROWS; i++) {
        correct[i] = i % 3 == 0;
        want += (double)losses[i];
    }
    const struct loss_sums_args args = {
        .rows = ROWS, .losses = losses, .correct = correct, .totals = totals};
    ops_ok(device_loss_sums(device, &args, e));
    ops_near(totals[0], want, 1e-12, 1, "sum of losses", 0);
    assert_true(totals[1] == 2 + 334);
    mem_free(losses);
    ops_close_device(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm_every_width_matches_reference_and_differences),
        cmocka_unit_test(test_rope_rotates_pairs_and_the_inverse_rotates_back),
        cmocka_unit_test(test_glu_both_activations_match_reference_and_differences),
        cmocka_unit_test(test_glu_extreme_gates_reach_their_limits),
        cmocka_unit_test(test_embedding_and_its_gradient_with_repeated_ids),
        cmocka_unit_test(test_cross_entropy_matches_reference_and_differences),
        cmocka_unit_test(test_cross_entropy_tie_counts_the_first_largest_only),
        cmocka_unit_test(test_loss_sums_are_added_to_the_totals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
