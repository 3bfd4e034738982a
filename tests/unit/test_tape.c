/* test_tape.c - goal: every operation on the tape has the right gradient. Method: for a scalar loss
 * sum(weights * out) and a random direction d, the directional derivative (L(p + h d) - L(p - h d))
 * / 2h must equal the sum of gradient * d, for every input that wants a gradient; with h = 1e-2 and
 * fp32 losses of size 1, rounding and curvature stay below the tolerance of 1e-3. */
/* rooms: engine_tensor */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/tensor/ops.h"

enum { TOKENS = 13, SEGMENTS = 3, INPUTS_MAX = 10, CAPACITY = 64 << 20 };

/* One operation under test: its inputs are leaf tensors; run() makes `out` from them. */
struct subject {
    struct tensor_space space;
    struct device *device;
    struct arena *arena;
    struct tape tape;
    struct tensor *inputs[INPUTS_MAX]; /* those with a gradient are checked */
    int input_count;
    struct tensor *weights; /* of the loss, shape of out */
    struct tensor *ids, *positions, *cu_seqlens, *row_keys, *inv_freq;
    struct linear linear;
    struct norm norm;
    struct attention_options attention;
    struct documents documents;
    struct random_keys keys;
    enum status (*run)(struct subject *, struct tensor **out, struct err *);
    bool checkpoint;
    uint32_t random;
};

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

static float uniform(struct subject *s) {
    s->random = s->random * 1664525u + 1013904223u;
    return (float)(s->random >> 8) / 8388608.0f - 1.0f;
}

static struct tensor *random_tensor(struct subject *s, int64_t rows, int64_t cols, float scale,
                                    float shift) {
    struct err e = {0};
    struct tensor *t = NULL;
    must(tensor_new(&s->space, DTYPE_F32, rows, cols, CATEGORY_WEIGHTS, &t, &e), &e);
    float *const values = mem_new((size_t)(rows * cols), sizeof *values);
    for (int64_t i = 0; i < rows * cols; i++) {
        values[i] = shift + scale * uniform(s);
    }
    must(tensor_upload(t, values, &e), &e);
    mem_free(values);
    return t;
}

static struct tensor *input(struct subject *s, int64_t rows, int64_t cols, float scale,
                            float shift) {
    struct tensor *const t = random_tensor(s, rows, cols, scale, shift);
    tensor_want_gradient(t);
    s->inputs[s->input_count++] = t;
    return t;
}

static struct tensor *host_tensor(struct subject *s, enum dtype dtype, const void *values,
                                  int64_t count) {
    struct err e = {0};
    struct tensor *t = NULL;
    must(tensor_new(&s->space, dtype, 1, count, CATEGORY_STAGING, &t, &e), &e);
    must(tensor_upload(t, values, &e), &e);
    return t;
}

static int setup(void **state) {
    struct subject *const s = mem_new(1, sizeof *s);
    struct err e = {0};
    must(device_open(&s->device, "cpu", &(struct device_options){0}, &e), &e);
    must(arena_open(&s->arena, s->device, CAPACITY, &e), &e);
    must(tensor_space_init(&s->space, s->device, s->arena, &e), &e);
    tape_init(&s->tape, &s->space);
    s->random = 7;
    int32_t ids[TOKENS], positions[TOKENS];
    int64_t keys[TOKENS];
    const int32_t cu_seqlens[SEGMENTS + 1] = {0, 5, 6, TOKENS};
    for (int t = 0, d = 0; t < TOKENS; t++) {
        d += t == cu_seqlens[d + 1];
        ids[t] = (t * 5) % 7;
        positions[t] = t - cu_seqlens[d];
        keys[t] = (int64_t)d << 24 | positions[t];
    }
    s->ids = host_tensor(s, DTYPE_I32, ids, TOKENS);
    s->positions = host_tensor(s, DTYPE_I32, positions, TOKENS);
    s->cu_seqlens = host_tensor(s, DTYPE_I32, cu_seqlens, SEGMENTS + 1);
    s->row_keys = host_tensor(s, DTYPE_I64, keys, TOKENS);
    s->documents = (struct documents){.segments = SEGMENTS,
                                      .max_seqlen = 7,
                                      .positions = s->positions,
                                      .cu_seqlens = s->cu_seqlens};
    s->keys = (struct random_keys){.seed = 3, .step = 1, .row_keys = s->row_keys};
    *state = s;
    return 0;
}

static int teardown(void **state) {
    struct subject *const s = *state;
    for (int i = 0; i < s->input_count; i++) {
        tensor_release(s->inputs[i]);
    }
    tensor_release(s->weights);
    tensor_release(s->ids);
    tensor_release(s->positions);
    tensor_release(s->cu_seqlens);
    tensor_release(s->row_keys);
    tensor_release(s->inv_freq);
    tensor_release(s->linear.augmented);
    tape_release(&s->tape);
    tensor_space_release(&s->space); /* asserts that nothing leaked */
    arena_close(s->arena);
    device_close(s->device);
    mem_free(s);
    return 0;
}

static double loss_of(struct subject *s) {
    struct err e = {0};
    struct tensor *out = NULL;
    s->tape.recording = false;
    must(s->run(s, &out, &e), &e);
    const int64_t count = tensor_count(out);
    float *const y = mem_new((size_t)count, sizeof *y), *const w =
                                                            mem_new((size_t)count, sizeof *w);
    must(tensor_download(out, y, &e), &e);
    must(tensor_download(s->weights, w, &e), &e);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)y[i] * w[i];
    }
    mem_free(y);
    mem_free(w);
    tensor_release(out);
    return sum;
}

static void compute_gradients(struct subject *s) {
    struct err e = {0};
    struct tensor *out = NULL;
    s->tape.recording = true;
    must(s->run(s, &out, &e), &e);
    s->tape.recording = false;
    if (!s->weights) s->weights = random_tensor(s, out->rows, out->cols, 1, 0);
    must(gradient_add(out->gradient, s->weights, &e), &e);
    tensor_release(out);
    must(tape_backward(&s->tape, 0, &e), &e);
}

/* L at input + h * direction. */
static double shifted(struct subject *s, struct tensor *t, const float *values,
                      const float *direction, double h) {
    struct err e = {0};
    const int64_t count = tensor_count(t);
    float *const moved = mem_new((size_t)count, sizeof *moved);
    for (int64_t i = 0; i < count; i++) {
        moved[i] = (float)(values[i] + h * direction[i]);
    }
    must(tensor_upload(t, moved, &e), &e);
    const double loss = loss_of(s);
    must(tensor_upload(t, values, &e), &e);
    mem_free(moved);
    return loss;
}

static void check_input(struct subject *s, int index) {
    struct err e = {0};
    struct tensor *const t = s->inputs[index];
    const int64_t count = tensor_count(t);
    float *const values = mem_new((size_t)count, sizeof *values),
                 *const direction = mem_new((size_t)count, sizeof *direction),
                 *const gradient = mem_new((size_t)count, sizeof *gradient);
    must(tensor_download(t, values, &e), &e);
    assert_non_null(t->gradient->value);
    must(tensor_download(t->gradient->value, gradient, &e), &e);
    double expected = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        direction[i] = uniform(s);
        expected += (double)gradient[i] * direction[i];
        size += fabs((double)gradient[i] * direction[i]);
    }
    const double h = 1e-2;
    const double got =
        (shifted(s, t, values, direction, h) - shifted(s, t, values, direction, -h)) / (2 * h);
    if (!(fabs(got - expected) <= 1e-3 * (size + 1e-3))) {
        fail_msg("input %d: the difference quotient is %.6f, the gradient says %.6f", index, got,
                 expected);
    }
    mem_free(values);
    mem_free(direction);
    mem_free(gradient);
}

static void check(struct subject *s) {
    compute_gradients(s);
    for (int i = 0; i < s->input_count; i++) {
        check_input(s, i);
    }
}

static enum status run_embedding(struct subject *s, struct tensor **out, struct err *e) {
    return op_embedding(&s->tape, s->ids, s->inputs[0], 3, out, e);
}

static void test_embedding_gradient(void **state) {
    struct subject *const s = *state;
    input(s, 7, 5, 1, 0);
    s->run = run_embedding;
    check(s);
}

static enum status run_norm(struct subject *s, struct tensor **out, struct err *e) {
    const struct norm norm = {.weight = s->inputs[1], .eps = 1e-5f, .offset = 1};
    return op_rmsnorm(&s->tape, s->inputs[0], &norm, out, e);
}

static void test_rmsnorm_gradient(void **state) {
    struct subject *const s = *state;
    input(s, TOKENS, 17, 1, 0);
    input(s, 1, 17, 0.3f, 0);
    s->run = run_norm;
    check(s);
}

static enum status run_add(struct subject *s, struct tensor **out, struct err *e) {
    /* x + x: both inputs are one tensor, so the shared gradient must be copied before it is added
     * to. */
    return op_add(&s->tape, s->inputs[0], s->inputs[0], out, e);
}

static void test_add_gradient_of_a_tensor_used_twice(void **state) {
    struct subject *const s = *state;
    input(s, TOKENS, 4, 1, 0);
    s->run = run_add;
    check(s);
}

static enum status run_glu(struct subject *s, struct tensor **out, struct err *e) {
    return op_glu(&s->tape, s->inputs[0], ACTIVATION_GELU_TANH, 0, out, e);
}

static void test_glu_gradient(void **state) {
    struct subject *const s = *state;
    input(s, TOKENS, 10, 1, 0);
    s->run = run_glu;
    check(s);
}

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

/* A decoder's neighbours of a linear layer: a norm before it, whose result is made again in
 * backward, and a gated unit after it, whose gradient takes the place of its input. */
static enum status run_norm_linear_glu(struct subject *s, struct tensor **out, struct err *e) {
    struct tensor *h = NULL, *y = NULL;
    enum status status = op_rmsnorm(&s->tape, s->inputs[0], &s->norm, &h, e);
    if (status == STATUS_OK) status = op_linear(&s->tape, h, &s->linear, &s->keys, &y, e);
    tensor_release(h);
    if (status == STATUS_OK) status = op_glu(&s->tape, y, ACTIVATION_SILU, 0, out, e);
    tensor_release(y);
    return status;
}

static void make_chain(struct subject *s) {
    input(s, TOKENS, 6, 1, 0);
    s->norm = (struct norm){.weight = input(s, 1, 6, 0.3f, 1), .eps = 1e-5f, .tail = 8};
    make_tail_linear(s);
    s->linear.output_tail = s->linear.tail;
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

static enum status run_add_norm(struct subject *s, struct tensor **out, struct err *e) {
    struct tensor *sum = NULL, *h = NULL;
    const struct addends addends = {s->inputs[0], s->inputs[1]};
    enum status status = op_add_rmsnorm(&s->tape, addends, &s->norm, &sum, &h, e);
    if (status == STATUS_OK) status = op_add(&s->tape, sum, h, out, e);
    tensor_release(sum);
    tensor_release(h);
    return status;
}

static void test_sum_with_norm_gradient(void **state) {
    struct subject *const s = *state;
    input(s, TOKENS, 8, 1, 0);
    input(s, TOKENS, 8, 1, 0);
    s->norm = (struct norm){.weight = input(s, 1, 8, 0.3f, 1), .eps = 1e-5f};
    s->run = run_add_norm;
    check(s);
}

/* What a recipe makes is what forward made, to the bit, and costs nothing until it is asked for. */
static void test_recipe_makes_the_same_bits(void **state) {
    struct subject *const s = *state;
    struct err e = {0};
    float first[TOKENS * 16], again[TOKENS * 16];
    input(s, TOKENS, 32, 1, 0);
    s->norm = (struct norm){.weight = input(s, 1, 32, 0.3f, 1), .eps = 1e-5f, .tail = 8};
    struct tensor *h = NULL, *y = NULL, *made = NULL;
    s->tape.recording = true;
    must(op_rmsnorm(&s->tape, s->inputs[0], &s->norm, &h, &e), &e);
    must(op_glu(&s->tape, h, ACTIVATION_SILU, 8, &y, &e), &e);
    s->tape.recording = false;
    assert_int_equal(y->ld, 64);
    must(tensor_download(y, first, &e), &e);
    struct recipe *const recipe = recipe_retain(y->recipe);
    tensor_release(y);
    tensor_release(h);
    must(recipe_make(recipe, &made, &e), &e);
    assert_int_equal(made->ld, 16);
    must(tensor_download(made, again, &e), &e);
    assert_memory_equal(first, again, sizeof first);
    tensor_release(made);
    recipe_release(recipe);
    tape_clear(&s->tape);
}

static enum status run_attention(struct subject *s, struct tensor **out, struct err *e) {
    struct tensor *qkv = NULL;
    /* Attention overwrites what it is given: each run works on a copy made by a recorded operation.
     */
    enum status status = op_add(&s->tape, s->inputs[0], s->inputs[0], &qkv, e);
    if (status == STATUS_OK)
        status = op_attention(&s->tape, qkv, &s->attention, &s->documents, out, e);
    tensor_release(qkv);
    return status;
}

static void make_attention(struct subject *s) {
    const float inv_freq[] = {1.0f, 0.3f};
    s->inv_freq = host_tensor(s, DTYPE_F32, inv_freq, 2);
    s->attention = (struct attention_options){.heads = 4,
                                              .kv_heads = 2,
                                              .head_dim = 6,
                                              .rotary_dim = 4,
                                              .scale = 0.4f,
                                              .rope_scale = 1.1f,
                                              .inv_freq = s->inv_freq};
    input(s, TOKENS, (4 + 2 * 2) * 6, 0.5f, 0);
    s->run = run_attention;
}

static void test_attention_gradient(void **state) {
    struct subject *const s = *state;
    make_attention(s);
    check(s);
}

static void test_attention_with_norms_window_and_softcap_gradient(void **state) {
    struct subject *const s = *state;
    make_attention(s);
    s->attention.window = 3;
    s->attention.softcap = 2;
    s->attention.q_weight = input(s, 1, 6, 0.2f, 1);
    s->attention.k_weight = input(s, 1, 6, 0.2f, 1);
    s->attention.norm.eps = 1e-6f;
    check(s);
}

static enum status run_block(struct tape *tape, void *context, int64_t index, struct tensor *x,
                             struct tensor **out, struct err *e) {
    struct subject *const s = context;
    struct tensor *y = NULL;
    (void)index;
    const struct norm norm = {.weight = s->inputs[1], .eps = 1e-5f};
    enum status status = op_rmsnorm(tape, x, &norm, &y, e);
    if (status == STATUS_OK) status = op_add(tape, x, y, out, e);
    tensor_release(y);
    return status;
}

static enum status run_segments(struct subject *s, struct tensor **out, struct err *e) {
    const struct segment segment = {.run = run_block, .context = s};
    struct tensor *x = tensor_retain(s->inputs[0]), *next = NULL;
    enum status status = STATUS_OK;
    for (int i = 0; status == STATUS_OK && i < 3; i++) {
        status = tape_segment(&s->tape, &segment, s->checkpoint, x, &next, e);
        tensor_release(x);
        x = next;
        next = NULL;
    }
    *out = x;
    return status;
}

static void test_checkpointed_segments_have_the_same_gradient(void **state) {
    struct subject *const s = *state;
    float plain[2][TOKENS * 8], again[2][TOKENS * 8];
    struct err e = {0};
    input(s, TOKENS, 8, 1, 0);
    input(s, 1, 8, 0.2f, 1);
    s->run = run_segments;
    for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
        s->checkpoint = checkpoint;
        compute_gradients(s);
        for (int i = 0; i < 2; i++) {
            must(tensor_download(s->inputs[i]->gradient->value, checkpoint ? again[i] : plain[i],
                                 &e),
                 &e);
            tensor_release(gradient_take(s->inputs[i]->gradient));
        }
    }
    assert_memory_equal(plain[0], again[0], sizeof plain[0]);
    assert_memory_equal(plain[1], again[1], 8 * sizeof(float));
    s->checkpoint = true;
    check(s);
}

int main(void) {
#define WITH_SUBJECT(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_SUBJECT(test_embedding_gradient),
        WITH_SUBJECT(test_rmsnorm_gradient),
        WITH_SUBJECT(test_add_gradient_of_a_tensor_used_twice),
        WITH_SUBJECT(test_glu_gradient),
        WITH_SUBJECT(test_linear_gradient),
        WITH_SUBJECT(test_linear_with_lora_gradient),
        WITH_SUBJECT(test_linear_with_lora_and_dropout_gradient),
        WITH_SUBJECT(test_linear_with_dora_gradient),
        WITH_SUBJECT(test_linear_with_dora_and_dropout_gradient),
        WITH_SUBJECT(test_linear_with_tails_but_no_room_for_them_gradient),
        WITH_SUBJECT(test_linear_with_tails_gradient),
        WITH_SUBJECT(test_linear_with_tails_equals_plain),
        WITH_SUBJECT(test_sum_with_norm_gradient),
        WITH_SUBJECT(test_recipe_makes_the_same_bits),
        WITH_SUBJECT(test_attention_gradient),
        WITH_SUBJECT(test_attention_with_norms_window_and_softcap_gradient),
        WITH_SUBJECT(test_checkpointed_segments_have_the_same_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
