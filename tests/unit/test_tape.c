/* test_tape.c - goal: every operation on the tape has the right gradient, with checkpoints too.
 *
 * The method is that of support_tape.h; linear layers are in test_tape_linear.c.
 * rooms: engine_tensor */
#include "tests/unit/support_tape.h"

static enum status run_embedding(struct subject *s, struct tensor **out, struct err *e) {
    const struct embedding embedding = {.table = s->inputs[0], .scale = 3};
    return op_embedding(&s->tape, s->ids, &embedding, out, e);
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
    float first[TOKENS * 32], again[TOKENS * 32];
    input(s, TOKENS, 32, 1, 0);
    s->norm = (struct norm){.weight = input(s, 1, 32, 0.3f, 1), .eps = 1e-5f, .tail = 8};
    struct tensor *h = NULL, *made = NULL;
    s->tape.recording = true;
    must(op_rmsnorm(&s->tape, s->inputs[0], &s->norm, &h, &e), &e);
    s->tape.recording = false;
    assert_int_equal(h->ld, 64);
    must(tensor_download(h, first, &e), &e);
    struct recipe *const recipe = recipe_retain(h->recipe);
    tensor_release(h);
    must(recipe_make(recipe, &made, &e), &e);
    assert_int_equal(made->ld, 32);
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

/* The norm's weight gets its gradient through gradient_target, the sum's addend through
 * gradient_add: neither adds to what is over. */
static void test_stale_gradients_are_overwritten(void **state) {
    struct subject *const s = *state;
    struct err e = {0};
    float first[3][TOKENS * 8], again[TOKENS * 8];
    input(s, TOKENS, 8, 1, 0);
    input(s, TOKENS, 8, 1, 0);
    s->norm = (struct norm){.weight = input(s, 1, 8, 0.3f, 1), .eps = 1e-5f};
    s->run = run_add_norm;
    for (int round = 0; round < 2; round++) {
        compute_gradients(s);
        for (int i = 0; i < 3; i++) {
            struct gradient *const g = s->inputs[i]->gradient;
            must(tensor_download(g->value, round ? again : first[i], &e), &e);
            const size_t bytes = (size_t)tensor_bytes(g->value);
            if (round) assert_memory_equal(first[i], again, bytes);
            assert_false(g->stale);
            g->stale = true;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_SUBJECT(test_embedding_gradient),
        WITH_SUBJECT(test_rmsnorm_gradient),
        WITH_SUBJECT(test_add_gradient_of_a_tensor_used_twice),
        WITH_SUBJECT(test_sum_with_norm_gradient),
        WITH_SUBJECT(test_recipe_makes_the_same_bits),
        WITH_SUBJECT(test_attention_gradient),
        WITH_SUBJECT(test_attention_with_norms_window_and_softcap_gradient),
        WITH_SUBJECT(test_checkpointed_segments_have_the_same_gradient),
        WITH_SUBJECT(test_stale_gradients_are_overwritten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
