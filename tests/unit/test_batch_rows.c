/* test_batch_rows.c - steps that are made of full rows.
 *
 * Goal: micro-batches at least 97 % full on lengths like those of examples/ and on a log-normal
 * set, every sample once an epoch, law 2, and any step from (seed, step) alone. Method: datasets of
 * given lengths; the lengths of the examples are measured with their own tokenizer and template.
 * The fill is real tokens / (micro-batches x micro_rows x max_length), over whole epochs.
 *
 * rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/mem.h"
#include "engine/text/batch.h"
#include "engine/text/dataset_store.h"
#include "engine/text/template.h"
#include "engine/text/tokenizer.h"

enum { FILL_PERCENT = 97 };

struct lengths {
    int64_t *items;
    size_t count, capacity;
};

static void lengths_add(struct lengths *l, int64_t length) {
    l->items = mem_grow(l->items, l->count, &l->capacity, sizeof *l->items);
    l->items[l->count++] = length;
}

/* Samples of these lengths; everything but the first token is trained. */
static void dataset_of(const struct lengths *l, struct dataset *d) {
    struct dataset_writer w = {0};
    assert_int_equal(dataset_writer_open(&w, NULL, NULL), STATUS_OK);
    for (size_t i = 0; i < l->count; i++) {
        int32_t *const ids = mem_new((size_t)l->items[i], sizeof *ids);
        uint8_t *const trained = mem_new((size_t)l->items[i], 1);
        memset(trained + 1, 1, (size_t)l->items[i] - 1);
        const struct sample sample = {ids, trained, l->items[i], (int64_t)i + 1};
        assert_int_equal(dataset_writer_add(&w, &sample, NULL), STATUS_OK);
        mem_free(ids);
        mem_free(trained);
    }
    assert_int_equal(dataset_writer_finish(&w, FORMAT_TEXT, d, NULL), STATUS_OK);
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* The lengths of examples/NAME.jsonl as the sample model reads it. */
static void add_example(struct lengths *l, const char *name) {
    static const char MODEL[] = "examples/models/harbour-1m";
    struct tokenizer *tokenizer = NULL;
    struct chat_template *chat = NULL;
    struct dataset d = {0};
    struct err e = {0};
    char *path = str_format("examples/%s.jsonl", name);
    assert_int_equal(tokenizer_open(&tokenizer, MODEL, &e), STATUS_OK);
    assert_int_equal(chat_template_open(&chat, MODEL, &e), STATUS_OK);
    const struct dataset_options o = {
        .max_length = 1024, .tokenizer = tokenizer, .chat_template = chat, .vocab = 1024};
    if (dataset_load(&d, &path, 1, &o, NULL, &e) != STATUS_OK) fail_msg("%s", e.text);
    for (int64_t i = 0; i < d.counts.samples; i++) {
        lengths_add(l, dataset_sample(&d, i).count);
    }
    dataset_release(&d);
    chat_template_free(chat);
    tokenizer_free(tokenizer);
    mem_free(path);
}

static struct batch_options options_of(int64_t micro, int64_t global, int64_t max_length) {
    return (struct batch_options){.strategy = BATCH_OF_ROWS,
                                  .micro_rows = micro,
                                  .global_rows = global,
                                  .max_length = max_length,
                                  .packing = true,
                                  .shuffle = true,
                                  .seed = 42};
}

/* Real tokens in percent of what the micro-batches of an epoch have room for. */
static double fill_percent(const struct dataset *d, const struct batch_options *o, int64_t epoch) {
    struct batcher b;
    struct batch m = {0};
    int64_t tokens = 0, micros = 0;
    assert_int_equal(batcher_open(&b, d, o, NULL), STATUS_OK);
    for (int64_t k = 0; k < b.steps_per_epoch; k++) {
        batcher_step(&b, epoch * b.steps_per_epoch + k);
        for (int64_t i = 0; i < b.micro_count; i++) {
            batcher_micro(&b, i, &m);
            assert_true(m.tokens <= o->micro_rows * o->max_length);
            assert_true(m.segments <= batcher_segments_max(&b));
            tokens += m.real_tokens;
        }
        micros += b.micro_count;
    }
    assert_int_equal(tokens, d->counts.tokens);
    batch_release(&m);
    batcher_close(&b);
    return 100.0 * (double)tokens / (double)(micros * o->micro_rows * o->max_length);
}

static void assert_full(const char *name, const struct dataset *d, const struct batch_options *o) {
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        const double fill = fill_percent(d, o, epoch);
        if (fill < FILL_PERCENT)
            fail_msg("%s, %lld rows of %lld: %.2f %% full", name, (long long)o->micro_rows,
                     (long long)o->max_length, fill);
    }
}

/* The examples themselves are small, and their last row is what is left over: at most one row more
 * than their tokens need. */
static void test_batch_rows_of_the_examples_are_few(void **state) {
    (void)state;
    static const char *const NAMES[] = {"first-mate", "logbook"};
    static const int64_t ROW_TOKENS[] = {256, 512, 1024};
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        struct lengths l = {0};
        struct dataset d;
        add_example(&l, NAMES[i]);
        dataset_of(&l, &d);
        for (size_t k = 0; k < COUNT_OF(ROW_TOKENS); k++) {
            struct batch_rows rows;
            batch_rows_pack(&rows, &d, ROW_TOKENS[k], false);
            const int64_t least = (d.counts.tokens - 1) / ROW_TOKENS[k] + 1;
            assert_in_range(rows.count, least, least + 1);
            batch_rows_release(&rows);
        }
        dataset_release(&d);
        mem_free(l.items);
    }
}

/* 4000 samples with lengths drawn from those of the examples. */
static void test_batch_rows_are_97_percent_full_on_lengths_like_the_examples(void **state) {
    (void)state;
    struct lengths examples = {0}, l = {0};
    struct dataset d;
    uint64_t random = 7;
    add_example(&examples, "first-mate");
    add_example(&examples, "logbook");
    for (int i = 0; i < 4000; i++) {
        lengths_add(&l, examples.items[next_random(&random) % examples.count]);
    }
    dataset_of(&l, &d);
    for (int64_t micro = 1; micro <= 4; micro *= 2) {
        for (int64_t max_length = 256; max_length <= 2048; max_length *= 2) {
            const struct batch_options o = options_of(micro, micro * 2, max_length);
            assert_full("examples", &d, &o);
        }
    }
    dataset_release(&d);
    mem_free(examples.items);
    mem_free(l.items);
}

/* exp(normal): median 200 tokens, sigma 1, the longest cut at 2048, as chat data are. */
static void test_batch_rows_are_97_percent_full_on_log_normal_lengths(void **state) {
    (void)state;
    struct lengths l = {0};
    struct dataset d;
    uint64_t random = 11;
    for (int i = 0; i < 5000; i++) {
        const double u = ((double)next_random(&random) + 1) * 0x1p-31;
        const double v = (double)next_random(&random) * 0x1p-31;
        const double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
        const double length = 200 * exp(normal);
        lengths_add(&l, length < 2 ? 2 : length > 2048 ? 2048 : (int64_t)length);
    }
    dataset_of(&l, &d);
    for (int64_t micro = 1; micro <= 4; micro *= 2) {
        const struct batch_options o = options_of(micro, micro * 4, 2048);
        assert_full("log-normal", &d, &o);
    }
    dataset_release(&d);
    mem_free(l.items);
}

enum { SAMPLES = 301, ROW = 128 };

static void small_dataset(struct dataset *d) {
    struct lengths l = {0};
    for (int i = 0; i < SAMPLES; i++) {
        lengths_add(&l, 2 + i * 37 % (ROW - 1));
    }
    dataset_of(&l, d);
    mem_free(l.items);
}

/* The step of every sample in this epoch; each is there once. */
static void steps_of(const struct dataset *d, const struct batch_options *o, int64_t epoch,
                     int64_t *step_of) {
    struct batcher b;
    struct batch m = {0};
    assert_int_equal(batcher_open(&b, d, o, NULL), STATUS_OK);
    for (int64_t i = 0; i < SAMPLES; i++) {
        step_of[i] = -1;
    }
    for (int64_t k = 0; k < b.steps_per_epoch; k++) {
        int64_t trained = 0;
        batcher_step(&b, epoch * b.steps_per_epoch + k);
        for (int64_t i = 0; i < b.micro_count; i++) {
            batcher_micro(&b, i, &m);
            trained += m.trained;
            for (int64_t s = 0; s < m.segments; s++) {
                const int64_t sample = m.row_keys[m.cu_seqlens[s]] >> 24;
                assert_int_equal(step_of[sample], -1);
                step_of[sample] = k;
            }
        }
        assert_int_equal(trained, b.step_trained);
        if (k + 1 < b.steps_per_epoch) assert_true(b.step_tokens > o->global_rows * ROW * 9 / 10);
    }
    for (int64_t i = 0; i < SAMPLES; i++) {
        assert_true(step_of[i] >= 0);
    }
    batch_release(&m);
    batcher_close(&b);
}

/* Law 2: what is in a step depends on neither micro_rows nor packing, and an epoch has it all. */
static void test_batch_rows_steps_do_not_depend_on_how_they_are_cut(void **state) {
    (void)state;
    struct dataset d;
    int64_t expected[SAMPLES], steps[SAMPLES], other[SAMPLES];
    small_dataset(&d);
    for (int64_t micro = 1; micro <= 9; micro++) {
        for (int packing = 0; packing < 2; packing++) {
            struct batch_options o = options_of(micro, 8, ROW);
            o.packing = packing;
            steps_of(&d, &o, 3, steps);
            if (micro == 1 && !packing) memcpy(expected, steps, sizeof expected);
            assert_memory_equal(expected, steps, sizeof expected);
        }
    }
    struct batch_options o = options_of(2, 8, ROW);
    steps_of(&d, &o, 4, other);
    assert_memory_not_equal(expected, other, sizeof expected);
    o.seed = 43;
    steps_of(&d, &o, 3, other);
    assert_memory_not_equal(expected, other, sizeof expected);
    dataset_release(&d);
}

static void assert_same_step(struct batcher *a, struct batcher *b, int64_t step) {
    struct batch x = {0}, y = {0};
    batcher_step(a, step);
    batcher_step(b, step);
    assert_int_equal(a->micro_count, b->micro_count);
    for (int64_t i = 0; i < a->micro_count; i++) {
        batcher_micro(a, i, &x);
        batcher_micro(b, i, &y);
        assert_int_equal(x.tokens, y.tokens);
        assert_int_equal(x.segments, y.segments);
        assert_memory_equal(x.row_keys, y.row_keys, (size_t)x.tokens * sizeof *x.row_keys);
        assert_memory_equal(x.labels, y.labels, (size_t)x.tokens * sizeof *x.labels);
    }
    batch_release(&x);
    batch_release(&y);
}

/* O(1): a step costs the same whichever it is. One that has walked through its neighbours and one
 * that is new agree, and a step beyond a million million is there at once: whoever walked would
 * never arrive. */
static void test_batch_rows_any_step_is_made_from_its_number_alone(void **state) {
    (void)state;
    struct dataset d;
    struct batcher walker, fresh;
    small_dataset(&d);
    for (int strategy = BATCH_OF_SAMPLES; strategy <= BATCH_OF_ROWS; strategy++) {
        struct batch_options o = options_of(2, 8, ROW);
        o.strategy = (enum batch_strategy)strategy;
        assert_int_equal(batcher_open(&walker, &d, &o, NULL), STATUS_OK);
        const int64_t starts[] = {0, walker.steps_per_epoch * 7 + 1, INT64_C(3000000000000)};
        for (size_t i = 0; i < COUNT_OF(starts); i++) {
            for (int64_t step = starts[i]; step < starts[i] + walker.steps_per_epoch; step++) {
                assert_int_equal(batcher_open(&fresh, &d, &o, NULL), STATUS_OK);
                assert_same_step(&walker, &fresh, step);
                batcher_close(&fresh);
            }
        }
        batcher_close(&walker);
    }
    dataset_release(&d);
}

/* Without shuffle the samples keep the order of the file, in every epoch. */
static void test_batch_rows_without_shuffle_keep_file_order(void **state) {
    (void)state;
    struct dataset d;
    struct batcher b;
    small_dataset(&d);
    struct batch_options o = options_of(2, 8, ROW);
    o.shuffle = false;
    assert_int_equal(batcher_open(&b, &d, &o, NULL), STATUS_OK);
    batcher_step(&b, b.steps_per_epoch * 2);
    for (int64_t i = 0; i < SAMPLES; i++) {
        assert_int_equal(b.order[i], i);
    }
    batcher_close(&b);
    dataset_release(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_rows_of_the_examples_are_few),
        cmocka_unit_test(test_batch_rows_are_97_percent_full_on_lengths_like_the_examples),
        cmocka_unit_test(test_batch_rows_are_97_percent_full_on_log_normal_lengths),
        cmocka_unit_test(test_batch_rows_steps_do_not_depend_on_how_they_are_cut),
        cmocka_unit_test(test_batch_rows_any_step_is_made_from_its_number_alone),
        cmocka_unit_test(test_batch_rows_without_shuffle_keep_file_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
