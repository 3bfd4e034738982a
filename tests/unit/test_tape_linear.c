/* test_tape_linear.c - goal: the linear layer in all its ways, alone and behind a gated unit, has
 * the right gradients.
 *
 * The method is that of support_tape.h. rooms: engine_tensor */
#include "tests/unit/support_tape.h"

static enum status run_linear(struct subject *s, struct tensor **out, struct err *e) {
    return op_linear(&s->tape, s->inputs[0], &s->linear, &s->keys, out, e);
}

/* x [T,6], W [9,6] with bias, adapters on rows 0..3 and 5..8 (one row between them has none). */
static void make_linear(struct subject *s) {
    input(s, TOKENS, 6, 1, 0);
    s->linear.weight = input(s, 9, 6, 0.5f, 0);
    s->linear.bias = s->linear.bias_master = input(s, 1, 9, 0.5f, 0);
    s->run = run_linear;
}

static void add_adapters(struct subject *s) {
    s->linear.lora_a = input(s, 4, 6, 0.5f, 0);
    s->linear.adapter_count = 2;
    s->linear.adapters[0] = (struct lora){.first_row = 0,
                                          .rows = 4,
                                          .rank_first = 0,
                                          .rank = 2,
                                          .scaling = 0.7f,
                                          .b = input(s, 4, 2, 0.5f, 0)};
    s->linear.adapters[1] = (struct lora){.first_row = 5,
                                          .rows = 4,
                                          .rank_first = 2,
                                          .rank = 2,
                                          .scaling = 0.7f,
                                          .b = input(s, 4, 2, 0.5f, 0)};
}

static void test_linear_gradient(void **state) {
    struct subject *const s = *state;
    make_linear(s);
    check(s);
}

static void test_linear_with_lora_gradient(void **state) {
    struct subject *const s = *state;
    make_linear(s);
    add_adapters(s);
    check(s);
}

/* A layer behind a gated unit: x [T,12], of which the layer reads [T,6]. */
static enum status run_glu_linear(struct subject *s, struct tensor **out, struct err *e) {
    const struct glu_linear layer = {ACTIVATION_GELU_TANH, &s->linear};
    struct tensor *x = tensor_retain(s->inputs[0]);
    return op_glu_linear(&s->tape, &x, &layer, &s->keys, out, e);
}

static void make_glu_linear(struct subject *s) {
    s->inputs[s->input_count++] = random_tensor(s, TOKENS, 12, 1, 0);
    s->linear.weight = input(s, 9, 6, 0.5f, 0);
    s->linear.bias = s->linear.bias_master = input(s, 1, 9, 0.5f, 0);
    s->run = run_glu_linear;
}

static void test_glu_with_linear_gradient(void **state) {
    struct subject *const s = *state;
    make_glu_linear(s);
    tensor_want_gradient(s->inputs[0]);
    add_adapters(s);
    check(s);
}

static void test_glu_with_linear_under_dropout_gradient(void **state) {
    struct subject *const s = *state;
    make_glu_linear(s);
    tensor_want_gradient(s->inputs[0]);
    add_adapters(s);
    s->tape.training = true;
    s->linear.dropout = 0.25f;
    check(s);
}

static void test_glu_with_linear_over_what_is_not_trained_gradient(void **state) {
    struct subject *const s = *state;
    make_glu_linear(s);
    add_adapters(s);
    check(s);
}

static void test_linear_with_lora_and_dropout_gradient(void **state) {
    struct subject *const s = *state;
    make_linear(s);
    add_adapters(s);
    s->linear.dropout = 0.3f;
    s->linear.stream = 5;
    s->tape.training = true;
    check(s);
}

/* The norm is a constant in backward (Liu et al. 2024, 4.3), so difference quotients of A and B
 * would disagree with the gradient by design; x, the bias and the magnitude must agree. */
static void check_dora(struct subject *s) {
    make_linear(s);
    add_adapters(s);
    s->linear.adapters[0].magnitude = input(s, 1, 4, 0.2f, 1);
    s->linear.adapters[1].magnitude = input(s, 1, 4, 0.2f, 1);
    compute_gradients(s);
    const int checked[] = {0, 2, s->input_count - 2, s->input_count - 1};
    for (size_t i = 0; i < COUNT_OF(checked); i++) {
        check_input(s, checked[i]);
    }
}

static void test_linear_with_dora_gradient(void **state) {
    check_dora(*state);
}

static void test_linear_with_dora_and_dropout_gradient(void **state) {
    struct subject *const s = *state;
    s->linear.dropout = 0.3f;
    s->linear.stream = 5;
    s->tape.training = true;
    check_dora(s);
}

/* One of the blocks of the augmented matrix, as an input that is checked. */
static struct tensor *block(struct subject *s, const int64_t place[4]) {
    struct err e = {0};
    struct tensor *const t =
        tensor_view_block(s->linear.augmented, place[0], place[1], place[2], place[3]);
    float *const values = mem_new((size_t)tensor_count(t), sizeof *values);
    for (int64_t i = 0; i < tensor_count(t); i++) {
        values[i] = 0.5f * uniform(s);
    }
    must(tensor_upload(t, values, &e), &e);
    mem_free(values);
    tensor_want_gradient(t);
    s->inputs[s->input_count++] = t;
    return t;
}

/* W [10,6] with two adapters of rank 2 on rows 0..3 and 5..8, in one matrix of 18 rows and 14
 * columns. The block holds scaling * B, so a scaling of 1 lets its difference quotient be B's. */
static void make_tail_linear(struct subject *s) {
    enum { N = 10, K = 6, TAIL = 8 };
    struct err e = {0};
    struct linear *const l = &s->linear;
    const struct shape shape = {.dtype = DTYPE_F32, .rows = N + TAIL, .cols = K, .tail = TAIL};
    must(tensor_make(&s->space, &shape, CATEGORY_WEIGHTS, &l->augmented, &e), &e);
    must(tensor_fill_zero(l->augmented, &e), &e);
    l->tail = TAIL;
    l->weight = block(s, (const int64_t[]){0, N, 0, K});
    l->bias = l->bias_master = input(s, 1, N, 0.5f, 0);
    l->lora_a = block(s, (const int64_t[]){N, 4, 0, K});
    l->adapter_count = 2;
    for (int i = 0; i < 2; i++) {
        l->adapters[i] = (struct lora){.first_row = 5 * i,
                                       .rows = 4,
                                       .rank_first = 2 * i,
                                       .rank = 2,
                                       .scaling = 1,
                                       .b = block(s, (const int64_t[]){5 * i, 4, K + 2 * i, 2})};
    }
}

static void test_linear_with_tails_but_no_room_for_them_gradient(void **state) {
    struct subject *const s = *state;
    make_tail_linear(s);
    s->run = run_linear;
    /* The input comes last here; the operation wants it first. */
    struct tensor *const x = input(s, TOKENS, 6, 1, 0);
    s->inputs[s->input_count - 1] = s->inputs[0];
    s->inputs[0] = x;
    check(s);
}

static void test_glu_with_linear_in_tails_gradient(void **state) {
    struct subject *const s = *state;
    input(s, TOKENS, 12, 1, 0);
    make_tail_linear(s);
    s->run = run_glu_linear;
    check(s);
}

/* A decoder's neighbours of a linear layer: a norm before it, whose result is made again in
 * backward, and a gated unit with a frozen layer after it, whose gradient takes the place of its
 * input. */
static enum status run_norm_linear_glu(struct subject *s, struct tensor **out, struct err *e) {
    const struct glu_linear after = {ACTIVATION_SILU, &s->after};
    struct tensor *h = NULL, *y = NULL;
    enum status status = op_rmsnorm(&s->tape, s->inputs[0], &s->norm, &h, e);
    if (status == STATUS_OK) status = op_linear(&s->tape, h, &s->linear, &s->keys, &y, e);
    tensor_release(h);
    if (status == STATUS_OK) status = op_glu_linear(&s->tape, &y, &after, &s->keys, out, e);
    tensor_release(y);
    return status;
}

static void make_chain(struct subject *s) {
    input(s, TOKENS, 6, 1, 0);
    s->norm = (struct norm){.weight = input(s, 1, 6, 0.3f, 1), .eps = 1e-5f, .tail = 8};
    make_tail_linear(s);
    s->linear.output_tail = s->linear.tail;
    s->after.weight = random_tensor(s, 7, 5, 0.5f, 0);
    s->run = run_norm_linear_glu;
}

static void test_linear_with_tails_gradient(void **state) {
    struct subject *const s = *state;
    make_chain(s);
    check(s);
}

/* The same numbers without a tail, and the memory: what is kept between forward and backward is
 * the projection and small things, not the norm's result. */
static void test_linear_with_tails_equals_plain(void **state) {
    struct subject *const s = *state;
    struct err e = {0};
    float with[INPUTS_MAX][TOKENS * 6], without[TOKENS * 6];
    make_chain(s);
    compute_gradients(s);
    for (int i = 0; i < s->input_count; i++) {
        must(tensor_download(s->inputs[i]->gradient->value, with[i], &e), &e);
        tensor_release(gradient_take(s->inputs[i]->gradient));
    }
    struct tensor *const augmented = s->linear.augmented;
    s->linear.augmented = NULL;
    s->linear.tail = s->linear.output_tail = s->norm.tail = 0;
    compute_gradients(s);
    for (int i = 0; i < s->input_count; i++) {
        must(tensor_download(s->inputs[i]->gradient->value, without, &e), &e);
        for (int64_t k = 0; k < tensor_count(s->inputs[i]); k++) {
            assert_true(fabsf(with[i][k] - without[k]) <= 1e-5f * (1 + fabsf(without[k])));
        }
    }
    s->linear.augmented = augmented;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_SUBJECT(test_linear_gradient),
        WITH_SUBJECT(test_linear_with_lora_gradient),
        WITH_SUBJECT(test_glu_with_linear_gradient),
        WITH_SUBJECT(test_glu_with_linear_under_dropout_gradient),
        WITH_SUBJECT(test_glu_with_linear_over_what_is_not_trained_gradient),
        WITH_SUBJECT(test_linear_with_lora_and_dropout_gradient),
        WITH_SUBJECT(test_linear_with_dora_gradient),
        WITH_SUBJECT(test_linear_with_dora_and_dropout_gradient),
        WITH_SUBJECT(test_linear_with_tails_but_no_room_for_them_gradient),
        WITH_SUBJECT(test_glu_with_linear_in_tails_gradient),
        WITH_SUBJECT(test_linear_with_tails_gradient),
        WITH_SUBJECT(test_linear_with_tails_equals_plain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
