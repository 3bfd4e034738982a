/* test_batch.c - goal: the order of samples and the cutting into micro-batches keep law 2. Method:
 * a synthetic dataset of many lengths, and properties that must hold for every seed, size of
 * micro-batch and packing: each sample exactly once an epoch, the same steps however they are cut,
 * labels, positions and keys right for every token. rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/mem.h"
#include "engine/text/batch.h"
#include "engine/text/dataset_store.h"

enum { SAMPLES = 103, LONGEST = 64, GLOBAL = 10, PAD = 7777 };

/* Sample i: ids i*1000, i*1000+1, ...; the second half of it is trained. */
static void dataset_make(struct dataset *d) {
    struct dataset_writer w = {0};
    struct err e = {0};
    assert_int_equal(dataset_writer_open(&w, NULL, &e), STATUS_OK);
    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t ids[LONGEST];
        uint8_t trained[LONGEST];
        const int64_t count = 2 + i * 37 % (LONGEST - 1);
        for (int64_t k = 0; k < count; k++) {
            ids[k] = (int32_t)(i * 1000 + k);
            trained[k] = k >= count / 2 && k > 0;
        }
        const struct sample sample = {ids, trained, count, i + 1};
        assert_int_equal(dataset_writer_add(&w, &sample, &e), STATUS_OK);
    }
    assert_int_equal(dataset_writer_finish(&w, FORMAT_TEXT, d, &e), STATUS_OK);
}

static struct batch_options options_make(int64_t micro, bool packing, bool shuffle) {
    return (struct batch_options){.micro_rows = micro,
                                  .global_rows = GLOBAL,
                                  .max_length = LONGEST,
                                  .packing = packing,
                                  .shuffle = shuffle,
                                  .seed = 42,
                                  .pad_id = PAD};
}

/* Checks one document and returns its sample. */
static int64_t check_document(const struct dataset *d, const struct batch *m, int64_t segment,
                              bool packing) {
    const int64_t begin = m->cu_seqlens[segment], end = m->cu_seqlens[segment + 1];
    const int64_t sample = m->row_keys[begin] >> 24;
    const struct sample s = dataset_sample(d, sample);
    assert_true(end - begin >= s.count);
    if (packing) assert_int_equal(end - begin, s.count);
    for (int64_t t = begin; t < end; t++) {
        const int64_t k = t - begin;
        const bool real = k < s.count;
        assert_int_equal(m->positions[t], k);
        assert_int_equal(m->row_keys[t], sample << 24 | k);
        assert_int_equal(m->ids[t], real ? s.ids[k] : PAD);
        const bool predicts = k + 1 < s.count && s.trained[k + 1];
        assert_int_equal(m->labels[t], predicts ? s.ids[k + 1] : -100);
    }
    return sample;
}

/* One epoch: every sample once, every step whole, sums right. */
static void check_epoch(struct batcher *b, int64_t epoch, int *step_of_sample) {
    struct batch m = {0};
    int seen[SAMPLES] = {0};
    for (int64_t k = 0; k < b->steps_per_epoch; k++) {
        batcher_step(b, epoch * b->steps_per_epoch + k);
        int64_t trained = 0, real = 0, rows = 0;
        for (int64_t i = 0; i < b->micro_count; i++) {
            batcher_micro(b, i, &m);
            assert_int_equal(m.cu_seqlens[0], 0);
            assert_int_equal(m.cu_seqlens[m.segments], m.tokens);
            assert_true(m.tokens <= b->options.micro_rows * b->options.max_length);
            if (!b->options.packing) assert_true(m.segments <= b->options.micro_rows);
            for (int64_t s = 0; s < m.segments; s++) {
                const int64_t sample = check_document(b->dataset, &m, s, b->options.packing);
                seen[sample]++;
                step_of_sample[sample] = (int)k;
            }
            trained += m.trained;
            real += m.real_tokens;
            rows += m.segments;
        }
        assert_int_equal(trained, b->step_trained);
        assert_int_equal(real, b->step_tokens);
        assert_int_equal(rows, b->step_rows);
    }
    for (int i = 0; i < SAMPLES; i++) {
        assert_int_equal(seen[i], 1);
    }
    batch_release(&m);
}

static void test_batch_epoch_has_every_sample_once(void **state) {
    (void)state;
    struct dataset d;
    dataset_make(&d);
    int steps[SAMPLES];
    for (int packing = 0; packing < 2; packing++) {
        for (int64_t micro = 1; micro <= 16; micro *= 2) {
            const struct batch_options o = options_make(micro, packing, true);
            struct batcher b;
            struct err e = {0};
            assert_int_equal(batcher_open(&b, &d, &o, &e), STATUS_OK);
            assert_int_equal(b.steps_per_epoch, (SAMPLES + GLOBAL - 1) / GLOBAL);
            for (int64_t epoch = 0; epoch < 3; epoch++) {
                check_epoch(&b, epoch, steps);
            }
            batcher_close(&b);
        }
    }
    dataset_release(&d);
}

/* Law 2: which samples are in a step depends on neither micro_rows nor packing. */
static void test_batch_steps_do_not_depend_on_how_they_are_cut(void **state) {
    (void)state;
    struct dataset d;
    dataset_make(&d);
    int expected[SAMPLES], steps[SAMPLES];
    for (int64_t micro = 1; micro <= 12; micro++) {
        for (int packing = 0; packing < 2; packing++) {
            const struct batch_options o = options_make(micro, packing, true);
            struct batcher b;
            assert_int_equal(batcher_open(&b, &d, &o, NULL), STATUS_OK);
            check_epoch(&b, 1, steps);
            if (micro == 1 && !packing) memcpy(expected, steps, sizeof expected);
            assert_memory_equal(expected, steps, sizeof expected);
            batcher_close(&b);
        }
    }
    dataset_release(&d);
}

/* A step can be made again from its number alone: visited backwards it is the same. */
static void test_batch_step_is_a_function_of_its_number(void **state) {
    (void)state;
    struct dataset d;
    dataset_make(&d);
    const struct batch_options o = options_make(4, true, true);
    struct batcher forward, backward;
    struct batch a = {0}, b = {0};
    assert_int_equal(batcher_open(&forward, &d, &o, NULL), STATUS_OK);
    const int64_t steps = forward.steps_per_epoch * 3;
    for (int64_t step = steps - 1; step >= 0; step--) {
        assert_int_equal(batcher_open(&backward, &d, &o, NULL), STATUS_OK);
        batcher_step(&forward, step);
        batcher_step(&backward, step);
        assert_int_equal(forward.micro_count, backward.micro_count);
        for (int64_t i = 0; i < forward.micro_count; i++) {
            batcher_micro(&forward, i, &a);
            batcher_micro(&backward, i, &b);
            assert_int_equal(a.tokens, b.tokens);
            assert_memory_equal(a.ids, b.ids, (size_t)a.tokens * sizeof *a.ids);
            assert_memory_equal(a.row_keys, b.row_keys, (size_t)a.tokens * sizeof *a.row_keys);
        }
        batcher_close(&backward);
    }
    batcher_close(&forward);
    batch_release(&a);
    batch_release(&b);
    dataset_release(&d);
}

static void test_batch_shuffle_differs_by_epoch_and_seed(void **state) {
    (void)state;
    struct dataset d;
    dataset_make(&d);
    int64_t first[SAMPLES];
    struct batch_options o = options_make(1, false, true);
    struct batcher b;
    assert_int_equal(batcher_open(&b, &d, &o, NULL), STATUS_OK);
    batcher_step(&b, 0);
    memcpy(first, b.order, sizeof first);
    batcher_step(&b, b.steps_per_epoch);
    assert_memory_not_equal(first, b.order, sizeof first);
    batcher_close(&b);
    o.seed = 43;
    assert_int_equal(batcher_open(&b, &d, &o, NULL), STATUS_OK);
    batcher_step(&b, 0);
    assert_memory_not_equal(first, b.order, sizeof first);
    batcher_close(&b);
    o.shuffle = false;
    assert_int_equal(batcher_open(&b, &d, &o, NULL), STATUS_OK);
    batcher_step(&b, b.steps_per_epoch * 5);
    for (int64_t i = 0; i < SAMPLES; i++) {
        assert_int_equal(b.order[i], i);
    }
    batcher_close(&b);
    dataset_release(&d);
}

/* Fisher-Yates must be fair: over many seeds each sample is first about equally often. The bound is
 * five standard deviations of a binomial with n = 20600, p = 1/103: 200 +- 71. */
static void test_batch_shuffle_is_fair(void **state) {
    (void)state;
    struct dataset d;
    dataset_make(&d);
    int hits[SAMPLES] = {0};
    for (uint64_t seed = 0; seed < SAMPLES * 200; seed++) {
        struct batch_options o = options_make(1, false, true);
        o.seed = seed;
        struct batcher b;
        assert_int_equal(batcher_open(&b, &d, &o, NULL), STATUS_OK);
        batcher_step(&b, 0);
        hits[b.order[0]]++;
        batcher_close(&b);
    }
    for (int i = 0; i < SAMPLES; i++) {
        assert_in_range(hits[i], 200 - 71, 200 + 71);
    }
    dataset_release(&d);
}

/* First-fit-decreasing: with lengths up to 64 and bins of 256 the bins of a large step are at least
 * 97 % full. */
static void test_batch_packing_fills_its_bins(void **state) {
    (void)state;
    struct dataset d;
    dataset_make(&d);
    struct batch_options o = options_make(4, true, true);
    o.global_rows = SAMPLES;
    struct batcher b;
    assert_int_equal(batcher_open(&b, &d, &o, NULL), STATUS_OK);
    batcher_step(&b, 0);
    const int64_t least = (b.step_tokens + 255) / 256;
    assert_in_range(b.micro_count, least, least);
    struct batch m = {0};
    for (int64_t i = 0; i + 1 < b.micro_count; i++) {
        batcher_micro(&b, i, &m);
        assert_true(m.tokens * 100 >= 256 * 97);
    }
    batch_release(&m);
    batcher_close(&b);
    dataset_release(&d);
}

/* Case C08: padding is told by length, never by id. Here the padding id is also the last, trained
 * token of a row. */
static void test_batch_C08_pad_equal_to_eos_keeps_the_stop_token(void **state) {
    (void)state;
    static const int32_t IDS[] = {5, 6, 2, 5, 6, 7, 8, 2};
    static const uint8_t TRAINED[] = {0, 1, 1, 0, 0, 1, 1, 1};
    struct dataset d = {0};
    struct dataset_writer w = {0};
    assert_int_equal(dataset_writer_open(&w, NULL, NULL), STATUS_OK);
    assert_int_equal(dataset_writer_add(&w, &(struct sample){IDS, TRAINED, 3, 1}, NULL), STATUS_OK);
    assert_int_equal(dataset_writer_add(&w, &(struct sample){IDS + 3, TRAINED + 3, 5, 2}, NULL),
                     STATUS_OK);
    assert_int_equal(dataset_writer_finish(&w, FORMAT_TEXT, &d, NULL), STATUS_OK);
    const struct batch_options o = {
        .micro_rows = 2, .global_rows = 2, .max_length = 8, .pad_id = 2};
    struct batcher b;
    struct batch m = {0};
    assert_int_equal(batcher_open(&b, &d, &o, NULL), STATUS_OK);
    batcher_step(&b, 0);
    batcher_micro(&b, 0, &m);
    const int32_t expected_ids[] = {5, 6, 2, 2, 2, 5, 6, 7, 8, 2};
    const int32_t expected_labels[] = {6, 2, -100, -100, -100, -100, 7, 8, 2, -100};
    assert_int_equal(m.tokens, 10);
    assert_memory_equal(m.ids, expected_ids, sizeof expected_ids);
    assert_memory_equal(m.labels, expected_labels, sizeof expected_labels);
    assert_int_equal(m.trained, 5);
    assert_int_equal(b.step_trained, 5);
    assert_int_equal(m.real_tokens, 8);
    assert_int_equal(m.max_seqlen, 5);
    batch_release(&m);
    batcher_close(&b);
    dataset_release(&d);
}

static void test_batch_impossible_options_are_refused(void **state) {
    (void)state;
    struct dataset d;
    dataset_make(&d);
    struct batcher b;
    struct err e = {0};
    struct batch_options o = options_make(0, false, true);
    assert_int_equal(batcher_open(&b, &d, &o, &e), STATUS_INVALID);
    o = options_make(1, false, true);
    o.max_length = LONGEST - 1;
    err_clear(&e);
    assert_int_equal(batcher_open(&b, &d, &o, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "longest sample has 64 tokens"));
    o.max_length = 1 << 20;
    o.micro_rows = 1 << 20;
    assert_int_equal(batcher_open(&b, &d, &o, NULL), STATUS_INVALID);
    batcher_close(&b);
    dataset_release(&d);
    const struct dataset empty = {0};
    o = options_make(1, false, true);
    assert_int_equal(batcher_open(&b, &empty, &o, NULL), STATUS_INVALID);
    batcher_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_epoch_has_every_sample_once),
        cmocka_unit_test(test_batch_steps_do_not_depend_on_how_they_are_cut),
        cmocka_unit_test(test_batch_step_is_a_function_of_its_number),
        cmocka_unit_test(test_batch_shuffle_differs_by_epoch_and_seed),
        cmocka_unit_test(test_batch_shuffle_is_fair),
        cmocka_unit_test(test_batch_packing_fills_its_bins),
        cmocka_unit_test(test_batch_C08_pad_equal_to_eos_keeps_the_stop_token),
        cmocka_unit_test(test_batch_impossible_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
