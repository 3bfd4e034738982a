/* test_batch_ranks.c - goal: dealing a step to ranks changes nothing that is learned, and is fair.
 * Method: a synthetic dataset of many lengths, every world from 1 to 7, both strategies, padded and
 * packed: the ranks' parts together are the step of one rank, every rank agrees on how often all
 * meet, no rank has more units than its share, and loads differ by no more than one long sample.
 * rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "engine/text/batch.h"
#include "engine/text/batch_ranks.h"
#include "engine/text/dataset_store.h"

enum { SAMPLES = 103, LONGEST = 64, WORLD_MAX = 7, STEPS = 12 };

static void dataset_make(struct dataset *d) {
    struct dataset_writer w = {0};
    struct err e = {0};
    assert_int_equal(dataset_writer_open(&w, NULL, &e), STATUS_OK);
    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t ids[LONGEST] = {0};
        uint8_t trained[LONGEST];
        const int64_t count = 2 + i * 37 % (LONGEST - 1);
        for (int64_t k = 0; k < count; k++) {
            trained[k] = k > 0 && k >= i % count;
        }
        trained[count - 1] = 1;
        const struct sample sample = {ids, trained, count, i + 1};
        assert_int_equal(dataset_writer_add(&w, &sample, &e), STATUS_OK);
    }
    assert_int_equal(dataset_writer_finish(&w, FORMAT_TEXT, d, &e), STATUS_OK);
}

/* What the ranks of a step get. */
struct deal {
    int owner[SAMPLES]; /* rank + 1, 0: nobody */
    int64_t trained, tokens, costs[WORLD_MAX], units[WORLD_MAX];
};

static void take_part(struct batcher *b, int64_t step, int64_t rank, struct deal *deal) {
    struct batch m = {0};
    int64_t trained = 0, tokens = 0;
    batcher_take_rank(b, rank);
    batcher_step(b, step);
    assert_true(b->micro_count <= b->micro_count_most);
    for (int64_t i = 0; i < b->micro_count; i++) {
        batcher_micro(b, i, &m);
        assert_true(m.tokens > 0 && m.tokens <= b->options.micro_rows * b->options.max_length);
        for (int64_t s = 0; s < m.segments; s++) {
            const int64_t sample = m.row_keys[m.cu_seqlens[s]] >> 24;
            assert_int_equal(deal->owner[sample], 0);
            deal->owner[sample] = (int)rank + 1;
            deal->units[rank]++;
        }
        trained += m.trained;
        tokens += m.real_tokens;
    }
    batch_release(&m);
    assert_int_equal(trained, b->rank_trained);
    assert_int_equal(tokens, b->rank_tokens);
    deal->trained += trained;
    deal->tokens += tokens;
    deal->costs[rank] = trained + tokens;
}

static void check_step(struct batcher *b, int64_t step, const struct deal *alone) {
    const int64_t world = b->options.world;
    struct deal deal = {0};
    int64_t most = 0, meetings = 0, low = INT64_MAX, high = 0;
    for (int64_t rank = 0; rank < world; rank++) {
        take_part(b, step, rank, &deal);
        if (rank == 0) meetings = b->micro_count_most;
        assert_int_equal(b->micro_count_most, meetings);
        if (b->micro_count > most) most = b->micro_count;
        if (deal.costs[rank] < low) low = deal.costs[rank];
        if (deal.costs[rank] > high) high = deal.costs[rank];
    }
    assert_int_equal(most, meetings);
    assert_int_equal(deal.trained, b->step_trained);
    assert_int_equal(deal.tokens, b->step_tokens);
    assert_int_equal(deal.trained, alone->trained);
    for (int i = 0; i < SAMPLES; i++) {
        assert_int_equal(deal.owner[i] > 0, alone->owner[i] > 0);
    }
    if (b->options.strategy == BATCH_OF_ROWS) return; /* a row is as long as many samples */
    for (int64_t rank = 0; rank < world; rank++) {
        assert_true(deal.units[rank] <= (b->step_rows + world - 1) / world);
    }
    if (b->step_rows % world == 0) assert_true(high - low <= 2 * LONGEST);
}

static void check_worlds(const struct dataset *d, enum batch_strategy strategy, bool packing) {
    const struct batch_options o = {.strategy = strategy,
                                    .micro_rows = 2,
                                    .global_rows = 20,
                                    .max_length = LONGEST,
                                    .packing = packing,
                                    .shuffle = true,
                                    .seed = 42};
    struct batcher alone;
    struct err e = {0};
    assert_int_equal(batcher_open(&alone, d, &o, &e), STATUS_OK);
    for (int64_t world = 1; world <= WORLD_MAX; world++) {
        struct batch_options many = o;
        many.world = world;
        struct batcher b;
        assert_int_equal(batcher_open(&b, d, &many, &e), STATUS_OK);
        assert_int_equal(b.steps_per_epoch, alone.steps_per_epoch);
        for (int64_t step = 0; step < STEPS; step++) {
            struct deal whole = {0};
            take_part(&alone, step, 0, &whole);
            check_step(&b, step, &whole);
        }
        batcher_close(&b);
    }
    batcher_close(&alone);
}

static void test_batch_ranks_parts_make_the_step_of_one_rank(void **state) {
    (void)state;
    struct dataset d;
    dataset_make(&d);
    for (int packing = 0; packing < 2; packing++) {
        check_worlds(&d, BATCH_OF_SAMPLES, packing);
        check_worlds(&d, BATCH_OF_ROWS, packing);
    }
    dataset_release(&d);
}

/* The last step of an epoch may have fewer samples than there are ranks: some then have nothing. */
static void test_batch_ranks_more_than_samples_leave_some_idle(void **state) {
    (void)state;
    const int64_t costs[] = {5, 9, 5};
    int64_t owners[3];
    batch_deal_ranks(costs, 3, 5, owners);
    assert_int_equal(owners[1], 0);
    assert_int_equal(owners[0], 1);
    assert_int_equal(owners[2], 2);
}

static void test_batch_ranks_rank_outside_the_world_is_refused(void **state) {
    (void)state;
    struct dataset d;
    dataset_make(&d);
    struct err e = {0};
    struct batcher b;
    const struct batch_options o = {
        .micro_rows = 1, .global_rows = 4, .max_length = LONGEST, .rank = 4, .world = 4};
    assert_int_equal(batcher_open(&b, &d, &o, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "rank 4 does not exist among 4 ranks"));
    batcher_close(&b);
    dataset_release(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_ranks_parts_make_the_step_of_one_rank),
        cmocka_unit_test(test_batch_ranks_more_than_samples_leave_some_idle),
        cmocka_unit_test(test_batch_ranks_rank_outside_the_world_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
