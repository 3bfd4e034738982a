/* test_ops_split.c - operations on a piece of what is divided among devices give that piece of what
 * the whole gives. rooms: kernels base
 *
 * Cross-entropy over uneven pieces of a vocabulary is compared with cross-entropy over all of it
 * (which test_ops.c holds against finite differences), with and without a soft cap, with ties
 * across pieces; embedding, its gradient and dropout with their whole. */
#include "tests/unit/support_ops.h"

enum { ROWS = 37, VOCAB = 5003, MEMBERS = 3 };
/* A block of 2048 powers is summed in f32, one by one where nothing is vectorised. */
#define SUMS 6e-6

/* Where each piece begins; the last is the end. */
static const int64_t CUTS[MEMBERS + 1] = {0, 1, 2900, VOCAB};

struct result {
    float losses[ROWS], *gradient; /* [ROWS, VOCAB] */
    int32_t correct[ROWS];
};

static void whole(struct device *device, const float *logits, const int32_t *labels, float softcap,
                  struct result *out) {
    const float twice = 2;
    out->gradient = mem_new(ROWS * VOCAB, sizeof(float));
    memcpy(out->gradient, logits, ROWS * VOCAB * sizeof(float));
    ops_ok(device_cross_entropy(device,
                                &(struct cross_entropy_args){.rows = ROWS,
                                                             .vocab = VOCAB,
                                                             .logits = out->gradient,
                                                             .labels = labels,
                                                             .softcap = softcap,
                                                             .grad_scale = 0.25f,
                                                             .loss_scale = &twice,
                                                             .write_gradient = true,
                                                             .losses = out->losses,
                                                             .correct = out->correct},
                                e));
}

/* Columns from..end of the logits, as a matrix without gaps. */
static float *piece_of(const float *logits, int64_t from, int64_t end) {
    const int64_t width = end - from;
    float *const piece = mem_new((size_t)(ROWS * width), sizeof *piece);
    for (int64_t row = 0; row < ROWS; row++) {
        memcpy(piece + row * width, logits + row * VOCAB + from, (size_t)width * sizeof *piece);
    }
    return piece;
}

/* One member's second half, held against the whole. */
static void check_member(struct device *device, int member, float *piece, const double *stats,
                         const int32_t *labels, float softcap, const struct result *expected) {
    const int64_t from = CUTS[member], width = CUTS[member + 1] - from;
    const float twice = 2;
    struct result got;
    const struct split_cross_entropy_args args = {.rows = ROWS,
                                                  .vocab = width,
                                                  .first = from,
                                                  .members = MEMBERS,
                                                  .logits = piece,
                                                  .labels = labels,
                                                  .softcap = softcap,
                                                  .grad_scale = 0.25f,
                                                  .loss_scale = &twice,
                                                  .write_gradient = true,
                                                  .stats = stats,
                                                  .losses = got.losses,
                                                  .correct = got.correct};
    ops_ok(device_split_cross_entropy(device, &args, e));
    for (int64_t row = 0; row < ROWS; row++) {
        ops_near((double)got.losses[row], (double)expected->losses[row], SUMS, 1, "loss", row);
        assert_int_equal(got.correct[row], expected->correct[row]);
        for (int64_t i = 0; i < width; i++) {
            const float want = expected->gradient[row * VOCAB + from + i];
            /* p - 1 of a label that is nearly certain is what f32 sums leave of it. */
            const double scale = from + i == labels[row] ? 0.5 : 1e-9;
            ops_near((double)piece[row * width + i], (double)want, SUMS, scale, "gradient", i);
        }
    }
}

static void check_split(const float *logits, const int32_t *labels, float softcap) {
    struct device *const device = ops_open();
    static double stats[MEMBERS * ROWS * SOFTMAX_STATS];
    struct result expected;
    float *pieces[MEMBERS];
    whole(device, logits, labels, softcap, &expected);
    for (int i = 0; i < MEMBERS; i++) {
        pieces[i] = piece_of(logits, CUTS[i], CUTS[i + 1]);
        const struct softmax_stats_args args = {.rows = ROWS,
                                                .vocab = CUTS[i + 1] - CUTS[i],
                                                .first = CUTS[i],
                                                .logits = pieces[i],
                                                .labels = labels,
                                                .softcap = softcap,
                                                .stats = stats + i * ROWS * SOFTMAX_STATS};
        ops_ok(device_softmax_stats(device, &args, e));
    }
    for (int i = 0; i < MEMBERS; i++) {
        check_member(device, i, pieces[i], stats, labels, softcap, &expected);
        mem_free(pieces[i]);
    }
    mem_free(expected.gradient);
    ops_close_device(device);
}

static void make_labels(int32_t labels[ROWS]) {
    for (int64_t row = 0; row < ROWS; row++) {
        labels[row] = (int32_t)(row * 2713 % VOCAB);
    }
    labels[0] = 0;
    labels[1] = VOCAB - 1;
}

static void test_cross_entropy_in_pieces_is_that_of_the_whole(void **state) {
    (void)state;
    float *const logits = ops_random(ROWS * VOCAB, 12, 7);
    int32_t labels[ROWS];
    make_labels(labels);
    /* A label that is certain, one that is nearly, and one that is the largest. */
    logits[0] = 60;
    logits[VOCAB + VOCAB - 1] = 30;
    logits[2 * VOCAB + labels[2]] = 13;
    check_split(logits, labels, 0);
    check_split(logits, labels, 30);
    mem_free(logits);
}

static void test_cross_entropy_in_pieces_tie_counts_the_first_largest_only(void **state) {
    (void)state;
    float *const logits = ops_random(ROWS * VOCAB, 1, 8);
    int32_t labels[ROWS];
    make_labels(labels);
    for (int64_t row = 0; row < ROWS; row++) {
        const int64_t other = row % 2 ? CUTS[1] + 5 : CUTS[2] + 5; /* in another piece, or not */
        logits[row * VOCAB + other] = logits[row * VOCAB + labels[row]] = 3;
    }
    check_split(logits, labels, 0);
    mem_free(logits);
}

static void test_embedding_of_a_piece_is_zero_elsewhere_and_its_gradient_too(void **state) {
    (void)state;
    enum { TOKENS = 50, CHANNELS = 33, TABLE = 20, FIRST = 7 };
    struct device *const device = ops_open();
    float *const table = ops_random(TABLE * CHANNELS, 1, 9);
    float *const dout = ops_random(TOKENS * CHANNELS, 1, 10);
    static float out[TOKENS * CHANNELS], dtable[TABLE * CHANNELS];
    int32_t ids[TOKENS];
    double expected[TABLE * CHANNELS] = {0};
    for (int64_t t = 0; t < TOKENS; t++) {
        ids[t] = (int32_t)(t * 11 % 37); /* below, inside and beyond 7..26 */
    }
    const struct embedding_args args = {.tokens = TOKENS,
                                        .channels = CHANNELS,
                                        .vocab = TABLE,
                                        .first = FIRST,
                                        .partial = true,
                                        .ids = ids,
                                        .table = table,
                                        .scale = 2,
                                        .out = out,
                                        .ld_out = CHANNELS};
    const struct embedding_backward_args back = {.tokens = TOKENS,
                                                 .channels = CHANNELS,
                                                 .vocab = TABLE,
                                                 .first = FIRST,
                                                 .partial = true,
                                                 .ids = ids,
                                                 .dout = dout,
                                                 .ld_dout = CHANNELS,
                                                 .scale = 2,
                                                 .dtable = dtable};
    memset(out, 0x7f, sizeof out);
    memset(dtable, 0, sizeof dtable);
    ops_ok(device_embedding(device, &args, e));
    ops_ok(device_embedding_backward(device, &back, e));
    for (int64_t i = 0; i < TOKENS * CHANNELS; i++) {
        const int64_t row = ids[i / CHANNELS] - FIRST, at = row * CHANNELS + i % CHANNELS;
        const bool inside = row >= 0 && row < TABLE;
        assert_true(out[i] == (inside ? 2 * table[at] : 0));
        if (inside) expected[at] += 2 * (double)dout[i];
    }
    for (int64_t i = 0; i < TABLE * CHANNELS; i++) {
        ops_near((double)dtable[i], expected[i], 1e-6, 1e-7, "dtable", i);
    }
    mem_free(table);
    mem_free(dout);
    ops_close_device(device);
}

static void test_dropout_of_some_columns_is_that_of_all(void **state) {
    (void)state;
    enum { WIDTH = 301, PART = 130 };
    struct device *const device = ops_open();
    float *const x = ops_random(ROWS * WIDTH, 1, 11);
    static float all[ROWS * WIDTH], some[ROWS * PART];
    int64_t keys[ROWS];
    for (int64_t row = 0; row < ROWS; row++) {
        keys[row] = row * row << 20;
    }
    struct dropout_args args = {.rows = ROWS,
                                .width = WIDTH,
                                .x = x,
                                .ld_x = WIDTH,
                                .y = all,
                                .ld_y = WIDTH,
                                .p = 0.4f,
                                .seed = 3,
                                .stream = 5,
                                .row_keys = keys};
    ops_ok(device_dropout(device, &args, e));
    for (int64_t first = 0; first < 9; first++) {
        args.width = PART;
        args.first = first;
        args.x = x + first;
        args.y = some;
        args.ld_y = PART;
        ops_ok(device_dropout(device, &args, e));
        for (int64_t i = 0; i < ROWS * PART; i++) {
            assert_true(some[i] == all[i / PART * WIDTH + first + i % PART]);
        }
    }
    mem_free(x);
    ops_close_device(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cross_entropy_in_pieces_is_that_of_the_whole),
        cmocka_unit_test(test_cross_entropy_in_pieces_tie_counts_the_first_largest_only),
        cmocka_unit_test(test_embedding_of_a_piece_is_zero_elsewhere_and_its_gradient_too),
        cmocka_unit_test(test_dropout_of_some_columns_is_that_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
