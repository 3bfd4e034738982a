/* test_tokenizer_threads.c - one tokenizer, many threads.
 *
 * Goal: a tokenizer may be used by several threads at once and gives each the ids it gives one.
 * Method: eight threads encode and decode the same texts in different orders, all at the same time,
 * with more threads than scratches at first; what they get is compared with what one thread got
 * before. Built with -fsanitize=thread the same program looks for races.
 *
 * rooms: engine_text engine_io base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/text/tokenizer.h"

enum { THREADS = 8, ROUNDS = 40 };

static const char *const TEXTS[] = {
    "The harbour master writes the log at six bells, and nobody asks why.",
    "  \n\n\tdon't  WE'LL  HelloWorld 12345678 v1.20 ->(x):\n\n",
    "\u4f60\u597d\uff0c\u4e16\u754c e\u0301 \U0001f642\U0001f44d\U0001f3fd \u00a0\u3000",
    "<|im_start|>user\nsee <|im_end|> and <think><|im_end|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "a",
    "",
};

struct answer {
    struct token_list ids, ends;
    struct str text;
};

static enum status ask(const struct tokenizer *t, const char *text, enum special_mode mode,
                       struct answer *a) {
    struct err e = {0};
    struct token_list ids = {0};
    enum status status =
        tokenizer_encode_offsets(t, text, strlen(text), mode, &a->ids, &a->ends, &e);
    if (status == STATUS_OK)
        status = tokenizer_encode(t, text, strlen(text), mode, false, &ids, &e);
    const bool same =
        ids.count == a->ids.count &&
        (ids.count == 0 || memcmp(ids.ids, a->ids.ids, ids.count * sizeof *ids.ids) == 0);
    token_list_release(&ids);
    if (status != STATUS_OK || !same) return STATUS_INTERNAL;
    return tokenizer_decode(t, a->ids.ids, a->ids.count, false, &a->text, &e);
}

static void answer_release(struct answer *a) {
    token_list_release(&a->ids);
    token_list_release(&a->ends);
    str_release(&a->text);
}

static bool same_list(const struct token_list *a, const struct token_list *b) {
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0);
}

static bool same_answer(const struct answer *a, const struct answer *b) {
    return same_list(&a->ids, &b->ids) && same_list(&a->ends, &b->ends) &&
           str_equal(str_text(&a->text), str_text(&b->text));
}

struct worker {
    const struct tokenizer *tokenizer;
    const struct answer (*expected)[COUNT_OF(TEXTS)]; /* [mode] */
    size_t number;
    int64_t asked, wrong;
    pthread_t thread;
};

static void *work(void *context) {
    struct worker *const w = context;
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < COUNT_OF(TEXTS) * 2; i++) {
            const size_t which = (i * 7 + w->number + round) % (COUNT_OF(TEXTS) * 2);
            const enum special_mode mode = which % 2 ? SPECIAL_TEXT : SPECIAL_PARSE;
            struct answer a = {0};
            const enum status status = ask(w->tokenizer, TEXTS[which / 2], mode, &a);
            w->wrong += status != STATUS_OK || !same_answer(&a, &w->expected[which % 2][which / 2]);
            w->asked++;
            answer_release(&a);
        }
    }
    return NULL;
}

static void check_folder(const char *folder) {
    struct tokenizer *t = NULL, *alone = NULL;
    struct answer expected[2][COUNT_OF(TEXTS)] = {0};
    struct worker workers[THREADS] = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_open(&t, folder, &e), STATUS_OK);
    assert_int_equal(tokenizer_open(&alone, folder, &e), STATUS_OK);
    for (size_t i = 0; i < COUNT_OF(TEXTS); i++) {
        assert_int_equal(ask(alone, TEXTS[i], SPECIAL_PARSE, &expected[0][i]), STATUS_OK);
        assert_int_equal(ask(alone, TEXTS[i], SPECIAL_TEXT, &expected[1][i]), STATUS_OK);
    }
    for (size_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.tokenizer = t, .expected = expected, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_int_equal(workers[i].asked, ROUNDS * (int64_t)COUNT_OF(TEXTS) * 2);
        assert_int_equal(workers[i].wrong, 0);
    }
    for (size_t i = 0; i < COUNT_OF(TEXTS); i++) {
        answer_release(&expected[0][i]);
        answer_release(&expected[1][i]);
    }
    tokenizer_free(t);
    tokenizer_free(alone);
}

static void test_tokenizer_threads_share_a_byte_level_tokenizer(void **state) {
    (void)state;
    check_folder("examples/models/harbour-1m");
}

static void test_tokenizer_threads_share_a_sentencepiece_tokenizer(void **state) {
    (void)state;
    check_folder("tests/unit/data/tokenizer/pieces");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer_threads_share_a_byte_level_tokenizer),
        cmocka_unit_test(test_tokenizer_threads_share_a_sentencepiece_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
